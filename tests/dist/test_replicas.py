"""Replicas that differ are found, and named, on every rank."""

from pathlib import Path
from typing import Any

import pytest
import torch

from ggs.dist.process_group import connect
from ggs.errors import DivergenceError
from ggs.dist.replicas import check_replicas, tensor_hash
from ggs.train import loop
from ggs.train.arguments import build
from ggs.train.config import TrainConfig
from ggs.train.worker import train
from tests.worker_pool import WorkerPool


def compare(rank: int, size: int, odd: tuple[int, ...], change: float) -> str:
    named = [("first", torch.arange(7.0)), ("second", torch.ones(3, 4)), ("third", torch.ones(2))]
    if rank in odd:
        named[1][1][2, 1] += change
    try:
        check_replicas(named, connect(), 120)
    except DivergenceError as error:
        return str(error)
    return ""


def test_equal_replicas_pass(workers: WorkerPool) -> None:
    assert workers.run(3, compare, (), 0.0) == ["", "", ""]


@pytest.mark.parametrize(
    ("odd", "ranks"),
    [((2,), "rank 2 from ranks 0, 1"), ((0,), "rank 0 from ranks 1, 2")],
)
def test_one_bit_on_one_rank_is_found_and_named_by_all(
    workers: WorkerPool, odd: tuple[int, ...], ranks: str
) -> None:
    for message in workers.run(3, compare, odd, 1e-7):
        assert message.startswith(
            f"the workers' weights differ at step 120: {ranks}, first in second;"
        )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_hash_tells_every_bit_and_every_place(dtype: torch.dtype) -> None:
    tensor = torch.randn(50, 3, generator=torch.Generator().manual_seed(0)).to(dtype)
    expected = int(tensor_hash(tensor))
    assert int(tensor_hash(tensor.clone())) == expected
    assert int(tensor_hash(tensor.t().contiguous().t())) == expected  # another memory order
    found = {expected}
    for place in range(150):
        changed = tensor.clone()
        changed.view(-1).view(torch.uint8)[place * changed.element_size()] ^= 1
        found.add(int(tensor_hash(changed)))
    assert len(found) == 151
    swapped = tensor.clone()
    swapped[[0, 1]] = swapped[[1, 0]]
    assert int(tensor_hash(swapped)) != expected
    assert int(tensor_hash(-tensor)) != expected


def test_large_tensors_are_hashed_in_blocks_whose_order_matters() -> None:
    tensor = torch.arange(600_000, dtype=torch.float32)
    assert int(tensor_hash(tensor)) != int(tensor_hash(tensor.roll(1 << 18)))


def diverging(rank: int, size: int, folder: str) -> str:
    """A training in which rank 1's memory loses a bit after 5 steps."""

    class Flaky(loop.Trainer):
        def _step(self, batches: Any) -> None:
            super()._step(batches)
            if self.state.step == 5 and rank == 1:
                with torch.no_grad():
                    self.optimizer.shared[2][1].view(-1)[7] *= 1.0000002

    settings = {
        "steps": 20, "batch_size": 4, "device": "cpu", "run_dir": folder, "evaluate_every": 0,
        "check_replicas_every": "4 steps",
    }  # fmt: skip
    original = loop.Trainer
    try:
        import ggs.train.worker as worker

        worker.Trainer = Flaky  # type: ignore[misc]
        train(build(TrainConfig, settings), torch.device("cpu"), None)
    except DivergenceError as error:
        return str(error)
    finally:
        worker.Trainer = original  # type: ignore[misc]
    return ""


def test_a_training_whose_replicas_part_stops(workers: WorkerPool, tmp_path: Path) -> None:
    messages = workers.run(2, diverging, str(tmp_path))
    for message in messages:
        assert message.startswith(
            "the workers' weights differ at step 8: rank 1 from rank 0, first in"
        )
