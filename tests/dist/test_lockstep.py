"""Workers in the threads of one process: the same bits as in processes."""

import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from ggs.dist import lockstep
from ggs.dist.collectives import Collectives
from ggs.dist.process_group import connect
from ggs.errors import ConfigurationError
from ggs.train.arguments import build
from ggs.train.config import TrainConfig
from ggs.train.worker import train
from tests.worker_pool import WorkerPool

LENGTHS = (1, 2, 3, 7, 16, 33, 1001, 61_706, 1_500_000)
METHODS = ("ggs", "dense", "gs", "dgc")


def numbers(length: int, rank: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(10 * length + rank)
    return torch.randn(length, generator=generator, dtype=torch.float64).to(dtype)


def _sums(rank: int, size: int, dtype: torch.dtype) -> list[Tensor]:
    found = [numbers(length, rank, dtype) for length in LENGTHS]
    for values in found:
        dist.all_reduce(values)
    return found


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_have_the_bits_that_gloo_gives(
    workers: WorkerPool, size: int, dtype: torch.dtype
) -> None:
    for expected, length in zip(workers.run(size, _sums, dtype)[0], LENGTHS, strict=True):
        terms = [numbers(length, rank, dtype) for rank in range(size)]
        assert torch.equal(lockstep.ring_sum(terms), expected), length


def _collectives(collectives: Collectives) -> dict[str, Any]:
    rank, size = collectives.rank, collectives.size
    mine = torch.arange(3, dtype=torch.float32) + 10 * rank
    maximum = collectives.all_reduce_max_(torch.tensor([rank, -rank]))
    sizes = [0 if other == rank else other + 1 for other in range(size)]
    incoming = [0 if other == rank else rank + 1 for other in range(size)]
    parts = torch.full((sum(sizes),), rank, dtype=torch.uint8)
    return {
        "gathered": collectives.all_gather(mine),
        "sum": collectives.all_reduce_sum_(mine.clone()),
        "maximum": maximum,
        "broadcast": collectives.broadcast_(mine.clone(), size - 1),
        "exchanged": collectives.all_to_all(parts, sizes, incoming),
        "bytes": torch.tensor([collectives.bytes_sent, collectives.bytes_received]),
    }


def _in_process(rank: int, size: int) -> dict[str, Any]:
    return _collectives(connect())


@pytest.mark.parametrize("size", [1, 2, 4])
def test_collectives_are_those_of_processes(workers: WorkerPool, size: int) -> None:
    expected = workers.run(size, _in_process)
    found = lockstep.run(size, lambda worker: _collectives(connect(worker)))
    for theirs, ours in zip(expected, found, strict=True):
        for name, value in theirs.items():
            assert torch.equal(ours[name], value), name


def test_what_a_worker_gets_is_its_own() -> None:
    def work(worker: lockstep.Worker) -> list[float]:
        collectives = connect(worker)
        values = torch.full((2,), float(worker.rank))
        gathered = collectives.all_gather(values)
        gathered += 100
        values += 10
        total = collectives.all_reduce_sum_(values)
        total.zero_()
        return collectives.all_gather(torch.tensor([float(worker.rank)])).view(-1).tolist()

    assert lockstep.run(3, work) == [[0.0, 1.0, 2.0]] * 3


def test_only_one_worker_runs_and_random_numbers_are_its_own() -> None:
    running: list[int] = []

    def work(worker: lockstep.Worker, pause: float) -> list[float]:
        torch.manual_seed(worker.rank)
        drawn = []
        for _ in range(3):
            running.append(worker.rank)
            time.sleep(pause)
            assert running == [worker.rank]
            running.remove(worker.rank)
            drawn.append(float(torch.rand(())))
            connect(worker).all_gather(torch.zeros(1))
        return drawn

    def alone(rank: int) -> list[float]:
        torch.manual_seed(rank)
        return [float(torch.rand(())) for _ in range(3)]

    before = torch.get_rng_state()
    assert lockstep.run(3, work, 0.01) == [alone(rank) for rank in range(3)]
    torch.set_rng_state(before)
    lockstep.run(2, work, 0.0)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_failure_ends_all_workers() -> None:
    reached = []

    def work(worker: lockstep.Worker) -> None:
        collectives = connect(worker)
        collectives.all_gather(torch.zeros(1))
        if worker.rank == 1:
            raise ConfigurationError("of rank 1")
        collectives.all_gather(torch.zeros(1))
        reached.append(worker.rank)

    with pytest.raises(ConfigurationError, match="of rank 1"):
        lockstep.run(3, work)
    assert reached == []


def test_a_collective_that_not_all_call_is_told() -> None:
    def work(worker: lockstep.Worker) -> None:
        if worker.rank:
            connect(worker).all_gather(torch.zeros(1))

    with pytest.raises(RuntimeError, match="rank 1 waits for a collective that not all 3 workers"):
        lockstep.run(3, work)


def noisy(num_classes: int = 10) -> nn.Module:
    """Dropout, batch-norm and a bias."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, stride=2, bias=False),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(6 * 12 * 12, num_classes),
    )


def _train(rank: int, size: int, config: TrainConfig) -> dict[str, Any]:
    return train(config, torch.device("cpu"), None)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("model", ["lenet5", "tests.dist.test_lockstep:noisy"])
def test_a_training_in_one_process_is_the_one_in_four(
    tmp_path: Path, workers: WorkerPool, method: str, model: str
) -> None:
    """Losses, evaluations, bytes and final weights; with dropout, batch-norm and augmentation."""
    settings = {
        "steps": 8, "density": 0.01, "density_warmup": "4 steps", "evaluate_every": "4 steps",
        "log_every": 1, "augment": True, "device": "cpu", "method": method, "batch_size": 4,
        "optimizer": "sgd" if method == "dgc" else "adam", "lr": 0.003, "model": model,
    }  # fmt: skip
    together = build(TrainConfig, {**settings, "run_dir": tmp_path / "together"})
    apart = build(TrainConfig, {**settings, "run_dir": tmp_path / "apart"})
    expected = workers.run(4, _train, apart)[0]
    found = lockstep.run(4, lambda worker: train(together, torch.device("cpu"), worker))[0]
    for name in set(expected) - {"seconds", "samples_per_second"}:
        assert found[name] == expected[name], name
    weights = [tmp_path / folder / "model.safetensors" for folder in ("apart", "together")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
