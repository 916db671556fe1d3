"""Whatever lies where a checkpoint should: the documented error, in bounded memory and time.

GGS_FUZZ_EXAMPLES sets the number of cases per test (a nightly run takes tens of thousands).
"""

import hashlib
import json
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ggs.errors import CheckpointError, ConfigurationError
from ggs.train.arguments import build
from ggs.train.checkpoint import files, find, rng, tree
from ggs.train.checkpoint.load import load
from ggs.train.config import TrainConfig
from ggs.train.worker import train

EXAMPLES = int(os.environ.get("GGS_FUZZ_EXAMPLES", "400"))
fuzz = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
pytestmark = pytest.mark.timeout(60 + EXAMPLES)

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


@fuzz
@given(STATES)
def test_every_plain_state_comes_back(state: Any) -> None:
    text, tensors = tree.flatten(state)
    assert repr(tree.unflatten(text, tensors)) == repr(state)


@fuzz
@given(TREES)
def test_foreign_trees(value: Any) -> None:
    with suppress(CheckpointError):
        tree.unflatten(json.dumps(value), TENSORS)


@fuzz
@given(st.text(max_size=60))
def test_foreign_texts(text: str) -> None:
    with suppress(CheckpointError):
        tree.unflatten(text, TENSORS)


def test_deep_nesting_and_huge_numbers() -> None:
    for text in ("[" * 10**6, '{"a":' * 10**5 + "1" + "}" * 10**5, "9" * 10**6, "1e999", "NaN"):
        try:
            tree.unflatten(text, TENSORS)
        except CheckpointError:
            continue
        assert text == "1e999"  # JSON's own way to write infinity


@fuzz
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


def mutated(content: bytes, edits: list[tuple[int, int, bytes]]) -> bytes:
    for place, length, inserted in edits:
        start = place % (len(content) + 1)
        content = content[:start] + inserted + content[start + length :]
    return content


EDITS = st.lists(
    st.tuples(st.integers(0, 1 << 16), st.integers(0, 20), st.binary(max_size=10)),
    min_size=1,
    max_size=4,
)


@fuzz
@given(edits=EDITS)
def test_mutated_manifests(checkpoint: Path, edits: list[tuple[int, int, bytes]]) -> None:
    original = (checkpoint / files.MANIFEST).read_bytes()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / files.MANIFEST).write_bytes(mutated(original, edits))
        try:
            found = files.read_manifest(Path(folder))
        except CheckpointError:
            return
        assert found == files.read_manifest(checkpoint)


MANIFEST_FIELDS = st.sampled_from(sorted(files.Manifest.model_fields))


@fuzz
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


@fuzz
@given(edits=EDITS, head=st.booleans())
def test_mutated_files_with_a_right_checksum(
    checkpoint: Path, edits: list[tuple[int, int, bytes]], head: bool
) -> None:
    """Headers with wrong lengths, offsets, shapes and names, that only the decoder can refuse."""
    content = (checkpoint / files.rank_file(0)).read_bytes()
    if head:  # the length, and the JSON after it
        edits = [(place % 400, length, inserted) for place, length, inserted in edits]
    content = mutated(content, edits)
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
