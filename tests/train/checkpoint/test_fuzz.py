"""Whatever lies where a checkpoint should: the documented error, in bounded memory and time."""

import hashlib
import json
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ggs.errors import CheckpointError, ConfigurationError
from ggs.train.arguments import build
from ggs.train.checkpoint import files, find, rng, tree
from ggs.train.checkpoint.load import load
from ggs.train.config import TrainConfig
from ggs.train.worker import train
from tests.fuzz import EDITS, Edits, bounded, cases, damaged

pytestmark = pytest.mark.fuzz

TAGS = st.sampled_from(["$tensor", "$tuple", "$items", "$float", "$", "x", "order", ""])
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
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TAGS, inner, max_size=3),
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
TENSORS = {"a": torch.zeros(2, 3), "b": torch.zeros(())}


@given(STATES)
def test_every_plain_state_comes_back(state: Any) -> None:
    text, tensors = tree.flatten(state)
    assert repr(tree.unflatten(text, tensors)) == repr(state)


@given(TREES)
def test_foreign_trees(value: Any) -> None:
    with suppress(CheckpointError):
        tree.unflatten(json.dumps(value), TENSORS)


@given(st.text(max_size=60))
def test_foreign_texts(text: str) -> None:
    with suppress(CheckpointError):
        tree.unflatten(text, TENSORS)


def test_deep_nesting_and_huge_numbers() -> None:
    for text in ("[" * 10**6, '{"a":' * 10**5 + "1" + "}" * 10**5, "9" * 10**6, "1e999", "NaN"):
        try:
            with bounded():
                tree.unflatten(text, TENSORS)
        except CheckpointError:
            continue
        assert text == "1e999"  # JSON's own way to write infinity


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
    """Headers with wrong lengths, offsets, shapes and names, that only the decoder can refuse."""
    content = (checkpoint / files.rank_file(0)).read_bytes()
    if head:  # the length, and the JSON after it
        edits = [(place % 400, length, inserted) for place, length, inserted in edits]
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


def header(content: bytes | dict[str, Any], length: int | None = None) -> bytes:
    """The start of a safetensors file, whose length is claimed to be ``length``."""
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text


def tensor(shape: list[int], end: int) -> dict[str, Any]:
    return {"x": {"dtype": "F32", "shape": shape, "data_offsets": [0, end]}}


@pytest.mark.parametrize(
    "content",
    [
        header({}, 2**30),
        header({}, 2**64 - 1),
        header(tensor([2**28], 2**30)) + bytes(16),
        header(tensor([2**40, 2**40], 16)) + bytes(16),
        header(tensor([4], 16)) + bytes(12),
        header(b'{"__metadata__":' + b"[" * 10**6),
        header({"__metadata__": {"state": "[" * 10**6}}),
        header({"__metadata__": {"state": "9" * 10**6}}),
    ],
    ids=["1 GiB", "2^64", "tensor", "shape", "short", "deep", "deep state", "long number"],
)
def test_a_file_that_claims_what_it_does_not_hold(
    checkpoint: Path, tmp_path: Path, content: bytes
) -> None:
    target = tmp_path / checkpoint.name
    shutil.copytree(checkpoint, target)
    record = files.write_bytes(target / files.rank_file(0), content)
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
