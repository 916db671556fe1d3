"""Checkpoints on disk and the states in them, without a training."""

import json
import math
import random
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ggs.errors import CheckpointError, ConfigurationError
from ggs.train.arguments import build
from ggs.train.checkpoint import files, find, resize, rng, state
from ggs.train.checkpoint.files import Manifest
from ggs.train.config import TrainConfig


def a_manifest(step: int, **changes: Any) -> Manifest:
    values: dict[str, Any] = {
        "ggs_version": "0",
        "step": step,
        "world_size": 2,
        "steps_per_epoch": 10,
        "density_warmup": 0,
        "created": "2026-01-01T00:00:00+00:00",
        "run_dir": None,
        "settings": {"lr": 0.1, "model": "lenet5"},
        "model": {"weight": "parameter float32 (2, 2)"},
        "files": {},
        **changes,
    }
    return Manifest.model_validate(values)


def a_checkpoint(directory: Path, step: int) -> Path:
    folder = files.step_folder(directory, step)
    folder.mkdir(parents=True)
    record = files.write_state(folder / files.rank_file(0), {"x": torch.arange(4.0)})
    files.write_manifest(folder, a_manifest(step, files={files.rank_file(0): record}))
    return folder


STATE = {
    "state": {0: {"step": torch.tensor(3.0), "exp_avg": torch.randn(2, 3)}, 1: {}},
    "param_groups": [{"betas": (0.9, 0.999), "lr": 1e-3, "foreach": None, "params": [0, 1]}],
    "numbers": [0.1, 1e-300, math.inf, -math.inf, -0.0, 2**70, True, None, "$tensor", "é\0"],
    "a/b": torch.zeros(1),
    "a": {"b": torch.ones(1)},
    "empty": {},
    "$tuple": 1,
    ("x", 1)[0]: (),
    "channels last": torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
    "bf16": torch.randn(3).bfloat16(),
    "bytes": torch.arange(5, dtype=torch.uint8),
    "none at all": torch.zeros(0, 3),
    "every second": torch.arange(6.0)[::2],
    "expanded": torch.ones(1).expand(3),
}


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and bool((one == other).all())
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and repr(one) == repr(other)


def test_a_state_comes_back_from_a_file_as_it_was(tmp_path: Path) -> None:
    files.write_state(tmp_path / "x.pt", state.to_cpu(STATE, {}))
    found = state.read(tmp_path / "x.pt")
    assert same(found, STATE)
    assert found["channels last"].stride() == STATE["channels last"].stride()  # type: ignore[attr-defined]


def test_what_cannot_be_saved_is_named() -> None:
    with pytest.raises(CheckpointError, match="optimizer/0/hook is a function"):
        state.to_cpu({"optimizer": [{"hook": same}]}, {})


@pytest.mark.parametrize("numel", [1, 1 << 20])
def test_a_full_disk_is_called_that(numel: int) -> None:
    with pytest.raises(OSError, match="No space left on device"):
        state.write(Path("/dev/full"), {"x": torch.zeros(numel)})


def test_buffers_are_used_again() -> None:
    buffers: state.Buffers = {}
    images = torch.ones(2, 3, 4, 4)
    first = state.to_cpu({"a": [torch.ones(3)], "b": torch.ones(2), "c": images}, buffers)
    nhwc = images.contiguous(memory_format=torch.channels_last)
    again = state.to_cpu({"a": [torch.zeros(3)], "b": torch.zeros(4), "c": nhwc}, buffers)
    assert again["a"][0] is first["a"][0]
    assert again["a"][0].tolist() == [0, 0, 0]
    assert again["b"].shape == (4,)
    assert again["c"].stride() == nhwc.stride()


def test_random_number_states_come_back_from_a_file(tmp_path: Path) -> None:
    kept = rng.get_state(torch.device("cpu"))
    files.write_state(tmp_path / "x.pt", state.to_cpu(kept, {}))
    drawn = random.random(), np.random.rand(), torch.rand(())
    rng.set_state(state.read(tmp_path / "x.pt"), torch.device("cpu"))
    assert (random.random(), np.random.rand(), torch.rand(())) == drawn


def test_a_checkpoint_without_a_manifest_is_none(tmp_path: Path) -> None:
    assert files.checkpoints(tmp_path / "nowhere") == []
    old, new = a_checkpoint(tmp_path, 5), a_checkpoint(tmp_path, 12)
    (tmp_path / "step-0000000020.abcd.partial").mkdir()
    files.step_folder(tmp_path, 30).mkdir()
    assert files.checkpoints(tmp_path) == [new, old]
    files.remove(new)
    assert files.checkpoints(tmp_path) == [old]
    files.remove_rests(tmp_path)
    assert not list(tmp_path.glob("*.partial"))


def test_the_last_are_kept_and_what_is_later_is_not_ours_to_delete(tmp_path: Path) -> None:
    for step in (10, 20, 30, 90):
        a_checkpoint(tmp_path, step)
    files.prune(tmp_path, 30, 2)
    assert [path.name[-2:] for path in files.checkpoints(tmp_path)] == ["90", "30", "20"]


def test_a_commit_replaces_what_was_there(tmp_path: Path) -> None:
    a_checkpoint(tmp_path, 5)
    partial = a_checkpoint(tmp_path, 77)
    (partial / "mark").touch()
    files.commit(partial, files.step_folder(tmp_path, 5))
    [found] = files.checkpoints(tmp_path)
    assert (found / "mark").exists()


DAMAGES: list[tuple[str, Callable[[Path], object], str]] = [
    ("cut", lambda path: path.write_bytes(path.read_bytes()[:-1]), "bytes instead of"),
    ("bit", lambda path: path.write_bytes(flipped(path.read_bytes())), "checksum"),
    ("gone", lambda path: path.unlink(), "No such file"),
    ("empty", lambda path: path.write_bytes(b""), "0 bytes instead of"),
]


def flipped(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 16]) + content[middle + 1 :]


@pytest.mark.parametrize(
    ("damage", "message"), [d[1:] for d in DAMAGES], ids=[d[0] for d in DAMAGES]
)
def test_a_damaged_file_is_found(
    tmp_path: Path, damage: Callable[[Path], object], message: str
) -> None:
    folder = a_checkpoint(tmp_path, 5)
    manifest = files.read_manifest(folder)
    files.verified(folder, manifest, files.rank_file(0))
    damage(folder / files.rank_file(0))
    with pytest.raises(CheckpointError, match=message):
        files.verified(folder, manifest, files.rank_file(0))


def test_a_file_that_the_manifest_does_not_know_is_not_read(tmp_path: Path) -> None:
    folder = a_checkpoint(tmp_path, 5)
    with pytest.raises(CheckpointError, match="does not mention rank-00001"):
        files.verified(folder, files.read_manifest(folder), files.rank_file(1))


def test_every_flipped_byte_of_a_manifest_is_found(tmp_path: Path) -> None:
    folder = a_checkpoint(tmp_path, 5)
    manifest, content = files.read_manifest(folder), (folder / files.MANIFEST).read_bytes()
    for place in range(len(content)):
        damaged = content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
        (folder / files.MANIFEST).write_bytes(damaged)
        try:
            assert files.read_manifest(folder) == manifest  # white space, at most
        except CheckpointError:
            continue


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"null", b"{}", b"[" * 100_000, b"\xff\xfe", b"1" * 10_000, b'{"format": 2}'],
)
def test_what_is_no_manifest_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / files.MANIFEST).write_bytes(content)
    with pytest.raises(CheckpointError):
        files.read_manifest(tmp_path)


def test_a_huge_manifest_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / files.MANIFEST).open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(CheckpointError, match="larger than"):
        files.read_manifest(tmp_path)


@pytest.mark.parametrize("number", [1, 3])
def test_another_format_is_refused_with_the_way_out(tmp_path: Path, number: int) -> None:
    content = {**a_manifest(1).model_dump(mode="json"), "format": number, "ggs_version": "0.9"}
    document = {"sha256": files._digest(content), **content}
    folder = files.step_folder(tmp_path, 1)
    folder.mkdir()
    (folder / files.MANIFEST).write_text(json.dumps(document))
    expected = (
        f"{folder} is a checkpoint of format {number}, this version of ggs reads format 2: finish the run "
        "with the ggs that wrote it (0.9), give another --checkpoint-dir, or --resume never with --overwrite "
        "to start over"
    )
    with pytest.raises(ConfigurationError) as caught:
        find.candidates(build(TrainConfig, {"checkpoint_dir": tmp_path}))
    assert str(caught.value) == expected
    over = {"checkpoint_dir": tmp_path, "resume": "never", "overwrite": True}
    assert find.candidates(build(TrainConfig, over)) == ()


@pytest.mark.parametrize("old_size", range(1, 8))
@pytest.mark.parametrize("new_size", range(1, 8))
def test_the_undelivered_update_survives_any_change_of_size(old_size: int, new_size: int) -> None:
    """Exactly: the shares are fractions, and here the residuals are small whole numbers."""
    old = [torch.randint(-999, 999, (50,)).double() for _ in range(old_size)]
    undelivered = [Fraction(int(total), old_size) for total in sum(old)]  # type: ignore[arg-type]
    delivered = [Fraction(0)] * 50
    for rank in range(new_size):
        found = resize.shares(old_size, new_size, rank)
        assert sum(found.values()) == 1
        assert resize.main_source(found) in found
        for place in range(50):
            part = sum(share * int(old[source][place]) for source, share in found.items())
            delivered[place] += Fraction(part) / new_size
        found_sum = resize.weighted_sum([{"w": old[source]} for source in found], [*found.values()])
        expected = [
            float(sum(share * int(old[source][place]) for source, share in found.items()))
            for place in range(50)
        ]
        assert found_sum["w"].tolist() == pytest.approx(expected, rel=1e-14, abs=1e-11)
    assert delivered == undelivered


def test_the_same_size_changes_nothing() -> None:
    for rank in range(5):
        assert resize.shares(5, 5, rank) == {rank: 1}
