"""Whatever lies where a checkpoint should: the documented error, in bounded memory and time."""

import hashlib
import io
import json
import pickle
import shutil
import tempfile
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ggs.errors import CheckpointError, ConfigurationError
from ggs.train.arguments import build
from ggs.train.checkpoint import files, find, rng, state
from ggs.train.checkpoint.load import load
from ggs.train.config import TrainConfig
from ggs.train.worker import train
from tests.fuzz import EDITS, Edits, bounded, cases, damaged

pytestmark = pytest.mark.fuzz

PICKLES = st.lists(st.sampled_from([*b"(])}tlsaeQR.0N", *range(256)]), max_size=40).map(bytes)
KEYS = st.sampled_from(["sha256", "size", "x", "order", ""])
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
    | st.sampled_from(["a", "b", "inf", "nan", 0, 1, 2, -1, 10**400])
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=12,
)
STATES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=4) | st.integers(), inner, max_size=4)
    ),
    max_leaves=15,
)


@given(STATES)
def test_every_plain_state_comes_back(plain: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.pt"
        state.write(path, state.to_cpu({"x": plain}, {}))
        assert repr(state.read(path)) == repr({"x": plain})


@given(st.binary(max_size=60) | PICKLES)
def test_foreign_pickles(content: bytes) -> None:
    """In a file that is otherwise as torch writes it."""
    with tempfile.TemporaryDirectory() as folder, suppress(CheckpointError):
        state.read(with_pickle(Path(folder) / "x.pt", content))


@given(TREES)
def test_foreign_random_number_states(value: Any) -> None:
    kept = rng.get_state(torch.device("cpu"))
    state = value if isinstance(value, dict) else {**kept, "numpy": value, "python": value}
    with suppress(CheckpointError):
        rng.set_state(state, torch.device("cpu"))
    rng.set_state(kept, torch.device("cpu"))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fuzz")
    values = {
        "run_dir": folder / "run", "checkpoint_dir": folder / "checkpoints", "steps": 2,
        "batch_size": 4, "evaluate_every": 0, "device": "cpu", "eval_batch_size": 1000,
    }  # fmt: skip
    train(build(TrainConfig, values), torch.device("cpu"), None)
    return files.checkpoints(folder / "checkpoints")[0]


@given(edits=EDITS)
def test_mutated_manifests(checkpoint: Path, edits: Edits) -> None:
    original = (checkpoint / files.MANIFEST).read_bytes()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / files.MANIFEST).write_bytes(damaged(original, edits))
        try:
            found = files.read_manifest(Path(folder))
        except CheckpointError:
            return
        assert found == files.read_manifest(checkpoint)


MANIFEST_FIELDS = st.sampled_from(sorted(files.Manifest.model_fields))


@cases(0.5)
@given(field=MANIFEST_FIELDS, value=TREES)
def test_signed_manifests_with_foreign_fields(checkpoint: Path, field: str, value: Any) -> None:
    """A valid checksum keeps nobody from writing nonsense."""
    document = json.loads((checkpoint / files.MANIFEST).read_bytes())
    document.pop("sha256")
    document[field] = value
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / checkpoint.name
        shutil.copytree(checkpoint, target)
        signed = {"sha256": files._digest(document), **document}
        (target / files.MANIFEST).write_text(json.dumps(signed))
        settings_ = build(TrainConfig, {"checkpoint_dir": folder, "steps": 2, "batch_size": 4})
        with suppress(CheckpointError, ConfigurationError):
            find.candidates(settings_)
            load(target, 0, 1)


@cases(0.5)
@given(edits=EDITS, head=st.booleans())
def test_mutated_files_with_a_right_checksum(checkpoint: Path, edits: Edits, head: bool) -> None:
    """Archives and pickles with wrong lengths, offsets, shapes and names, that only torch can refuse."""
    content = (checkpoint / files.rank_file(0)).read_bytes()
    if head:  # the pickle
        edits = [(place % 4000, length, inserted) for place, length, inserted in edits]
    content = damaged(content, edits)
    manifest = files.read_manifest(checkpoint)
    record = files.FileRecord(size=len(content), sha256=hashlib.sha256(content).hexdigest())
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / checkpoint.name
        shutil.copytree(checkpoint, target)
        (target / files.rank_file(0)).write_bytes(content)
        entries = {**manifest.files, files.rank_file(0): record}
        files.write_manifest(target, manifest.model_copy(update={"files": entries}))
        with suppress(CheckpointError):
            load(target, 0, 1)


def with_pickle(path: Path, content: bytes, method: int = zipfile.ZIP_STORED) -> Path:
    """A file as ``torch.save`` writes one of 16 bytes of numbers, but for its pickle."""
    torch.save({"x": torch.zeros(4)}, path)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, original in members.items():
            archive.writestr(name, content if name.endswith("data.pkl") else original)
    return path


class Claim:
    """Pickles as a call of one of torch's own functions, which may be allowed."""

    def __init__(self, function: Callable[..., Any], *arguments: object) -> None:
        self._call = function, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self._call


def a_tensor(numel: int, size: tuple[int, ...], stride: tuple[int, ...]) -> bytes:
    """The pickle of {"x": a tensor} whose memory, and it itself, are claimed to be so large."""
    written = io.BytesIO()

    class Pickler(pickle.Pickler):
        def persistent_id(self, value: Any) -> Any:
            return ("storage", torch.FloatStorage, "0", "cpu", numel) if value is self else None

    pickler = Pickler(written, protocol=2)
    rebuild = torch._utils._rebuild_tensor_v2
    pickler.dump({"x": Claim(rebuild, pickler, 0, size, stride, False, OrderedDict())})
    return written.getvalue()


def test_a_tensor_that_claims_no_more_than_there_is_comes_back(tmp_path: Path) -> None:
    found = state.read(with_pickle(tmp_path / "x.pt", a_tensor(4, (2, 2), (2, 1))))
    assert found["x"].tolist() == [[0, 0], [0, 0]]


DEEP = b"\x80\x02" + b"]" * 10**6 + b"a" * (10**6 - 1) + b"."
NAMED = b"\x80\x02}X\x01\x00\x00\x00x" + DEEP[2:-1] + b"s."


@pytest.mark.parametrize(
    ("content", "method"),
    [
        (a_tensor(2**28, (2**28,), (1,)), zipfile.ZIP_STORED),
        (a_tensor(2**61, (2**61,), (1,)), zipfile.ZIP_STORED),
        (a_tensor(4, (2**28,), (1,)), zipfile.ZIP_STORED),
        (a_tensor(4, (2**28,), (0,)), zipfile.ZIP_STORED),
        (a_tensor(4, (2**40, 2**40), (0, 0)), zipfile.ZIP_STORED),
        (DEEP, zipfile.ZIP_STORED),
        (NAMED, zipfile.ZIP_STORED),
        (b"\x80\x02X\xff\xff\xff\x3fx.", zipfile.ZIP_STORED),
        (b"\x80\x02\x8b\xff\xff\xff\x3fx.", zipfile.ZIP_STORED),
        (bytes(2**28), zipfile.ZIP_DEFLATED),
    ],
    ids=[
        "memory",
        "2^61",
        "size",
        "stride",
        "sizes",
        "deep",
        "deep state",
        "text",
        "number",
        "zeros",
    ],
)
def test_a_file_that_claims_what_it_does_not_hold(
    checkpoint: Path, tmp_path: Path, content: bytes, method: int
) -> None:
    target = tmp_path / checkpoint.name
    shutil.copytree(checkpoint, target)
    record = files.record(with_pickle(target / files.rank_file(0), content, method))
    manifest = files.read_manifest(checkpoint)
    entries = {**manifest.files, files.rank_file(0): record}
    files.write_manifest(target, manifest.model_copy(update={"files": entries}))
    with bounded(), pytest.raises(CheckpointError):
        load(target, 0, 1)


def test_a_manifest_that_claims_or_takes_too_much(checkpoint: Path, tmp_path: Path) -> None:
    target = tmp_path / checkpoint.name
    shutil.copytree(checkpoint, target)
    manifest = files.read_manifest(checkpoint)
    claim = manifest.files[files.rank_file(0)].model_copy(update={"size": 2**40})
    entries = {**manifest.files, files.rank_file(0): claim}
    files.write_manifest(target, manifest.model_copy(update={"files": entries}))
    with bounded(), pytest.raises(CheckpointError, match="instead of 1,099,511,627,776"):
        load(target, 0, 1)
    with (target / files.MANIFEST).open("wb") as file:
        file.truncate(2**30)
    with bounded(), pytest.raises(CheckpointError, match="is larger than"):
        load(target, 0, 1)
    for text in ("[" * 10**6, '{"settings":' * 10**5, '{"step": ' + "9" * 10**6 + "}"):
        (target / files.MANIFEST).write_text(text)
        with bounded(), pytest.raises(CheckpointError):
            load(target, 0, 1)


@pytest.mark.parametrize("text", ["[" * 1000, '{"step": 1e999}', '{"step": "a"}', "1" * 10**6])
def test_a_damaged_mark_of_the_end_is_none(checkpoint: Path, tmp_path: Path, text: str) -> None:
    shutil.copytree(checkpoint, tmp_path / checkpoint.name)
    (tmp_path / find.DONE).write_text(text)
    values = {"checkpoint_dir": tmp_path, "steps": 2, "batch_size": 4, "overwrite": True}
    with bounded():
        assert not find._is_done(tmp_path / checkpoint.name)
        find.candidates(build(TrainConfig, values))
