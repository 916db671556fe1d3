"""Workers that do not run the same job all say so, at construction."""

from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import ggs
from ggs.dist import lockstep
from ggs.errors import MismatchError
from tests.models import backward, build
from tests.worker_pool import WorkerPool


def _construct(rank: int, size: int, difference: str) -> str:
    odd = rank == size - 1
    model: nn.Module = nn.Sequential(nn.Linear(4, 6 if odd and difference == "shape" else 5))
    if odd and difference == "parameter":
        model.append(nn.Linear(5, 5))
    if odd and difference == "dtype":
        model = model.double()
    if odd and difference == "frozen":
        model[0].bias.requires_grad_(False)
    kind: Any = torch.optim.SGD if odd and difference == "optimizer" else torch.optim.Adam
    if odd and difference == "learning rate":
        kind = partial(kind, lr=0.5)
    options: dict[str, Any] = {"density": 0.02 if odd and difference == "density" else 0.01}
    if odd and difference == "method":
        make: Any = lambda: ggs.Dense(kind(model.parameters()), model)  # noqa: E731
    else:
        make = lambda: ggs.GGS(kind(model.parameters()), model, **options)  # noqa: E731
    try:
        make()
    except MismatchError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("difference", "words"),
    [
        ("shape", 'parameter 0.bias: "shared float32 (5,)" on rank 0, "shared float32 (6,)" here'),
        ("parameter", "parameter 1.bias: absent on rank 0"),
        ("dtype", "float64"),
        ("frozen", "frozen"),
        ("optimizer", 'inner optimizer: "Adam" on rank 0, "SGD" here'),
        ("learning rate", "parameter group 0 lr: 0.001 on rank 0, 0.5 here"),
        ("density", "settings density: 0.01 on rank 0, 0.02 here"),
        ("method", 'class: "GGS" on rank 0, "Dense" here'),
    ],
)
def test_a_difference_is_named_on_every_rank(
    workers: WorkerPool, difference: str, words: str
) -> None:
    messages = workers.run(3, _construct, difference)
    for message in messages:
        assert message == messages[0]
        assert "rank 2 differs from rank 0" in message
        assert words in message or difference == "parameter"
        assert "\n" not in message


def test_equal_workers_agree(workers: WorkerPool) -> None:
    assert workers.run(3, _construct, "") == ["", "", ""]


class _Custom:
    """No JSON, and each process shows it at another address."""


@pytest.mark.parametrize("method", [ggs.GGS, ggs.Dense])
def test_settings_that_json_does_not_know_are_compared(method: Any) -> None:
    def construct(worker: lockstep.Worker, other: float) -> str:
        model = build("plain")
        second = 0.99 if worker.rank == 0 else other
        betas = (torch.tensor(0.9), torch.tensor(second))
        adam = torch.optim.Adam(model.parameters(), lr=0.01, betas=betas, foreach=False)
        adam.param_groups[0]["own"] = (_Custom(), {"a": 1}, None, 1j, (torch.tensor(1j),))
        optimizer = method(adam, model, process_group=worker)
        for step in range(2):
            backward(model, step, worker.rank)
            optimizer.step()
        return "trained"

    assert lockstep.run(2, construct, 0.99) == ["trained"] * 2
    with pytest.raises(MismatchError, match=r"parameter group 0 betas: \[0\.89.*, 0\.5\] here"):
        lockstep.run(2, construct, 0.5)


class OnAGPU(ggs.GGS):
    """As a worker whose model is on a GPU describes itself."""

    def _description(self, *arguments: Any) -> dict[str, Any]:
        return super()._description(*arguments) | {"class": "GGS", "device": "cuda"}


@pytest.mark.parametrize("gpu", [0, 2])
def test_workers_on_cpus_and_gpus_are_refused(gpu: int) -> None:
    """Padding would give an index another meaning there."""

    def construct(worker: lockstep.Worker) -> str:
        model = build("plain")
        kind = OnAGPU if worker.rank == gpu else ggs.GGS
        with pytest.raises(MismatchError) as caught:
            kind(torch.optim.Adam(model.parameters()), model, process_group=worker)
        return str(caught.value)

    words = (
        'rank 2 differs from rank 0 in device: "cpu" on rank 0, "cuda" here'
        if gpu == 2
        else 'rank 1 differs from rank 0 in device: "cuda" on rank 0, "cpu" here'
    )
    for message in lockstep.run(3, construct):
        assert message.startswith(words)
        assert "\n" not in message


def _start(rank: int, size: int) -> dict[str, torch.Tensor]:
    model = build("batchnorm", seed=rank)
    model[1].running_mean.fill_(rank + 1)
    if rank == 1:
        model = model.to(memory_format=torch.channels_last)
    ggs.GGS(torch.optim.Adam(model.parameters()), model)
    assert model[0].weight.is_contiguous(), "rank 0's memory format holds"
    return {name: value.clone() for name, value in model.state_dict().items()}


def test_everyone_starts_from_rank_0(workers: WorkerPool) -> None:
    first, *others = workers.run(3, _start)
    expected = build("batchnorm", seed=0).state_dict()
    expected["1.running_mean"].fill_(1.0)
    for state in (first, *others):
        for name, value in expected.items():
            assert torch.equal(state[name], value), name


def _in_shared_memory(rank: int, size: int, model: nn.Module) -> dict[str, Any]:
    """Every worker writes its own batch-norm layer and buffers, and sees nobody else's."""
    assert model[1].bias.is_shared()
    parameters = list(model.parameters())
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    strides = model[0].weight.stride()
    dist.barrier()
    optimizer = ggs.Dense(
        torch.optim.SGD(model.parameters(), 0.1), model, batchnorm="local", max_consecutive_skips=1
    )
    same = all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    with torch.no_grad():
        model[1].bias.fill_(rank + 1)
        model[1].running_mean.fill_(rank + 1)
        model.whole.fill_(rank + 1)
    dist.barrier()
    return {
        "same": same and model[0].weight.stride() == strides,
        "objects": all(
            a is b for a, b in zip(parameters, optimizer.model.parameters(), strict=True)
        ),
        "seen": [set(t.tolist()) for t in (model[1].bias, model[1].running_mean, model.whole)],
        "view": set(model.part.tolist()),
    }


def test_workers_leave_the_memory_they_were_started_with(workers: WorkerPool) -> None:
    """``mp.spawn(worker, args=(model,))`` hands every process the same memory."""
    model = build("batchnorm").to(memory_format=torch.channels_last)
    model.register_buffer("whole", torch.zeros(6))
    model.register_buffer("part", model.whole[2:4])
    for rank, found in enumerate(workers.run(2, _in_shared_memory, model.share_memory())):
        own = {rank + 1.0}
        assert found == {"same": True, "objects": True, "seen": [own] * 3, "view": own}


def _odd_buffers(rank: int) -> dict[str, torch.Tensor]:
    """Of every type and memory layout, other values on every rank."""
    numbers = torch.arange(24).view(4, 6) % 7 + rank
    unusual = ("int8", "int16", "uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2")
    usual = ("uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64")
    found = {kind: numbers.to(getattr(torch, kind)) for kind in unusual + usual}
    complexes = torch.complex(numbers.float(), numbers.float() + 0.5)
    return found | {
        "bool": numbers % 2 == 0,
        "complex64": complexes,
        "complex128": complexes.to(torch.complex128).t(),
        "conjugate": complexes.conj(),
        "negative": complexes.conj().imag,
        "gaps": numbers.to(torch.int16)[:, ::2],
        "transposed": numbers.to(torch.int16).t(),
        "number": torch.tensor(rank, dtype=torch.int16),
        "flag": torch.tensor(rank == 0),
        "empty": torch.zeros(0, 3, dtype=torch.uint16),
    }


def _shown(buffers: dict[str, torch.Tensor]) -> dict[str, tuple[torch.dtype, Any]]:
    return {name: (value.dtype, value.tolist()) for name, value in buffers.items()}


def _take_over_buffers(rank: int, size: int) -> dict[str, tuple[torch.dtype, Any]]:
    model = nn.Linear(2, 2)
    for name, value in _odd_buffers(rank).items():
        model.register_buffer(f"of_{name}", value)
    ggs.Dense(torch.optim.SGD(model.parameters()), model)
    return _shown({name[3:]: value for name, value in model.named_buffers()})


def test_buffers_of_every_type_come_from_rank_0(workers: WorkerPool) -> None:
    for found in workers.run(2, _take_over_buffers):
        assert found == _shown(_odd_buffers(0))


@pytest.mark.parametrize(
    ("kind", "drift", "words"),
    [
        ("adamw", "lr", "learning rate times decoupled weight decay"),
        ("adamw", "density", "density is"),
        ("adam", "density", "density is"),
        ("dense", "lr", "learning rates and weight decays"),
    ],
)
def test_settings_that_drift_apart_stop_every_worker(kind: str, drift: str, words: str) -> None:
    def train(worker: lockstep.Worker) -> str:
        model = build("plain")
        odd = worker.rank == 1
        if kind == "dense":
            optimizer: Any = ggs.Dense(
                torch.optim.Adam(model.parameters()), model, process_group=worker
            )
        else:
            inner = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[kind](model.parameters())
            optimizer = ggs.GGS(
                inner,
                model,
                lambda step: 0.2 if odd and step == 2 and drift == "density" else 0.1,
                process_group=worker,
            )
        for step in range(5):
            backward(model, step, worker.rank)
            if odd and step == 2 and drift == "lr":
                optimizer.param_groups[0]["lr"] *= 0.5
            try:
                optimizer.step()
            except MismatchError as error:
                return f"{step}: {error}"
        return "trained"

    for message in lockstep.run(3, train):
        assert message.startswith("2: the workers do not agree on step 2")
        assert words in message


def _one_step_more(rank: int, size: int, method: str, longer: int) -> str:
    """One worker's share of the data has a batch more; the others evaluate."""
    model = build("batchnorm")
    inner = torch.optim.Adam(model.parameters())
    optimizer: Any = ggs.GGS(inner, model, 0.1) if method == "ggs" else ggs.Dense(inner, model)
    try:
        for step in range(3 if rank == longer else 2):
            backward(model, step, rank)
            optimizer.step()
        with optimizer.consolidated():
            return "evaluated"
    except MismatchError as error:
        return str(error)


@pytest.mark.parametrize(("method", "longer"), [("ggs", 0), ("ggs", 2), ("dense", 1)])
def test_a_step_against_an_evaluation_stops_every_worker(
    workers: WorkerPool, method: str, longer: int
) -> None:
    evaluating = 1 if longer == 0 else 0
    for message in workers.run(3, _one_step_more, method, longer):
        assert message == (
            f"rank {evaluating} is in consolidated() while rank {longer} is in step(): "
            "let every worker call step() and consolidated() equally often"
        )


@pytest.mark.parametrize("kind", ["adamw", "dense"])
def test_workers_that_resume_at_different_steps_are_told_the_steps(kind: str) -> None:
    def train(worker: lockstep.Worker) -> str:
        model = build("plain")
        inner = torch.optim.AdamW(model.parameters())
        optimizer: Any = (
            ggs.Dense(inner, model, process_group=worker)
            if kind == "dense"
            else ggs.GGS(inner, model, 0.1, warmup_steps=9, process_group=worker)
        )
        saved = optimizer.state_dict()
        saved["ggs"]["step"] = 300 if worker.rank == 1 else 7
        optimizer.load_state_dict(saved)
        backward(model, 0, worker.rank)
        with pytest.raises(MismatchError) as caught:
            optimizer.step()
        return str(caught.value)

    for message in lockstep.run(3, train):
        assert message == (
            "rank 1 has taken 300 steps and rank 0 has taken 7: load the checkpoint of the same step "
            "on every worker"
        )


def test_learning_rates_may_differ_where_they_are_local() -> None:
    """Each worker's own plateau scheduler: with coupled or no decay the update is local anyway."""

    def train(worker: lockstep.Worker) -> torch.Tensor:
        model = build("plain")
        inner = torch.optim.Adam(model.parameters())
        optimizer = ggs.GGS(inner, model, 0.1, process_group=worker)
        for step in range(5):
            backward(model, step, worker.rank)
            optimizer.param_groups[0]["lr"] = 0.01 * (1 + worker.rank)
            optimizer.step()
        return model[1].weight.detach().clone()

    first, *others = lockstep.run(3, train)
    assert all(torch.equal(first, other) for other in others)
