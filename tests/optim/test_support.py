"""What cannot work is refused at construction, with a way out."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer

import ggs
from ggs.dist import lockstep
from ggs.errors import UnsupportedError
from ggs.exchange import create as exchange
from tests.worker_pool import WorkerPool


class ScheduleFreeAdam(torch.optim.Adam):
    """Named like the schedule-free family."""


def _linear() -> nn.Module:
    return nn.Linear(4, 3)


def _shares_memory() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = nn.Parameter(model[0].weight.data)
    return model


def _expanded() -> nn.Module:
    model = nn.Linear(4, 3)
    model.bias = nn.Parameter(torch.zeros(1).expand(3))
    return model


def _complex() -> nn.Module:
    model = nn.Linear(4, 3)
    model.phase = nn.Parameter(torch.zeros(3, dtype=torch.complex64))
    return model


def _meta() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 3, device="meta"))
    return model


@pytest.mark.parametrize(
    ("make_model", "make_optimizer", "message"),
    [
        (_linear, torch.optim.LBFGS, "LBFGS cannot be wrapped"),
        (_linear, torch.optim.SparseAdam, r"SparseAdam cannot be wrapped.*sparse=False"),
        (_linear, torch.optim.ASGD, "ASGD cannot be wrapped.*use SGD"),
        (_linear, ScheduleFreeAdam, "schedule-free"),
        (_linear, lambda p: list(p), r"is no torch\.optim\.Optimizer"),
        (_linear, lambda p: torch.optim.SGD(p, 0.1, differentiable=True), "differentiable=True"),
        (
            lambda: nn.Embedding(10, 3, sparse=True),
            torch.optim.SGD,
            r"the model has sparse gradients.*sparse=False",
        ),
        (
            lambda: nn.Embedding(10, 3, max_norm=1.0),
            torch.optim.SGD,
            r"changes its weight in the forward pass.*max_norm=None",
        ),
        (_expanded, torch.optim.SGD, "bias is expanded"),
        (
            lambda: nn.Sequential(nn.Linear(4, 3), nn.LazyBatchNorm1d()),
            lambda p: torch.optim.SGD(list(p)[:2]),
            r"1\.(weight|running_mean) is not initialised",
        ),
        (lambda: nn.LazyLinear(3), torch.optim.SGD, "weight is not initialised.*forward pass"),
        (_shares_memory, torch.optim.SGD, r"0\.weight and 1\.weight share memory.*one Parameter"),
        (_complex, torch.optim.SGD, r"phase has dtype torch\.complex64"),
        (_meta, torch.optim.SGD, r"1\.(weight|bias) is on (the )?meta"),
        (lambda: nn.DataParallel(nn.Linear(4, 3)), torch.optim.SGD, "the model is a DataParallel"),
    ],
)
def test_refused_with_a_way_out(
    make_model: Callable[[], nn.Module], make_optimizer: Callable[[Any], Any], message: str
) -> None:
    for method in (ggs.GGS, ggs.Dense):
        model = make_model()
        with pytest.raises(UnsupportedError, match=message) as caught:
            method(make_optimizer(model.parameters()), model)
        assert "\n" not in str(caught.value)


def test_a_model_that_is_none_is_refused() -> None:
    model = _linear()
    with pytest.raises(UnsupportedError, match=r"is no torch\.nn\.Module"):
        ggs.GGS(torch.optim.SGD(model.parameters()), model.forward)  # type: ignore[arg-type]


def test_parameters_of_another_module_are_refused() -> None:
    model, loss = _linear(), nn.Linear(3, 1)
    optimizer = torch.optim.SGD([*model.parameters(), *loss.parameters()])
    with pytest.raises(
        UnsupportedError, match="2 of the optimizer's parameters are not the model's"
    ):
        ggs.GGS(optimizer, model)
    ggs.GGS(optimizer, nn.ModuleList([model, loss]))


def _wrapped_models(rank: int, size: int) -> list[str]:
    from torch.distributed.fsdp import fully_shard

    messages = []

    def attempt(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        try:
            ggs.GGS(optimizer, model)
        except UnsupportedError as error:
            messages.append(str(error))

    ddp = nn.parallel.DistributedDataParallel(_linear())
    attempt(ddp, torch.optim.SGD(ddp.parameters()))
    attempt(nn.Sequential(ddp), torch.optim.SGD(ddp.parameters()))
    plain = _linear()
    attempt(plain, ZeroRedundancyOptimizer(plain.parameters(), torch.optim.SGD))
    sharded = _linear()
    mesh = dist.device_mesh.init_device_mesh("cpu", (size,))
    fully_shard(sharded, mesh=mesh)
    attempt(sharded, torch.optim.SGD(sharded.parameters()))
    return messages


@pytest.mark.filterwarnings("default")
def test_wrappers_that_reduce_or_shard_are_refused(workers: WorkerPool) -> None:
    for messages in workers.run(2, _wrapped_models):
        assert len(messages) == 4
        assert messages[0].startswith("the model is a DistributedDataParallel: it already averages")
        assert messages[1].startswith("module 0 is a DistributedDataParallel")
        assert messages[2].startswith("ZeroRedundancyOptimizer cannot be wrapped")
        assert "FSDPModule" in messages[3]


def _odd_buffers() -> dict[str, Callable[[], torch.Tensor]]:
    def inference() -> torch.Tensor:
        with torch.inference_mode():
            return torch.ones(3)

    return {
        "sparse": lambda: torch.eye(3).to_sparse(),
        "csr": lambda: torch.eye(3).to_sparse_csr(),
        "quantized": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
        "meta": lambda: torch.empty(3, device="meta"),
        "inference": inference,
        "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        "expanded": lambda: torch.ones(3, 1).expand(3, 4),
    }


@pytest.mark.filterwarnings("default")  # torch's own, of kinds that are only prototypes
@pytest.mark.parametrize("kind", _odd_buffers())
def test_buffers_that_cannot_travel_are_named_where_they_would_have_to(kind: str) -> None:
    def construct(worker: lockstep.Worker) -> str:
        model = _linear()
        model.register_buffer("odd", _odd_buffers()[kind]())
        optimizer = ggs.GGS(torch.optim.SGD(model.parameters()), model, process_group=worker)
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        return "trained"

    assert lockstep.run(1, construct) == ["trained"]
    with pytest.raises(UnsupportedError, match=r"^buffer odd (is|was) .*: ") as caught:
        lockstep.run(2, construct)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("every", [True, False])
def test_a_frozen_parameter_that_cannot_be_written_is_named(every: bool) -> None:
    def construct(worker: lockstep.Worker) -> None:
        model = _linear()
        model.odd = nn.Parameter(torch.ones(3, 1).expand(3, 4), requires_grad=False)
        given = [p for p in model.parameters() if p.requires_grad or every]
        ggs.Dense(torch.optim.SGD(given), model, process_group=worker)

    with pytest.raises(UnsupportedError, match=r"^parameter odd is expanded.*contiguous\(\)"):
        lockstep.run(2, construct)


def _not_a_member(rank: int, size: int) -> str:
    group = dist.new_group([0])
    model = _linear()
    try:
        ggs.GGS(torch.optim.SGD(model.parameters()), model, process_group=group)
    except UnsupportedError as error:
        return str(error)
    return "member"


def test_a_process_outside_the_group_is_told(workers: WorkerPool) -> None:
    first, second = workers.run(2, _not_a_member)
    assert first == "member"
    assert second.startswith("this process is not in the process group")


def test_a_group_without_torch_distributed_is_refused() -> None:
    model = _linear()
    with pytest.raises(UnsupportedError, match="not initialised"):
        ggs.GGS(torch.optim.SGD(model.parameters()), model, process_group="x")  # type: ignore[arg-type]


@pytest.mark.parametrize("method", [ggs.GGS, ggs.Dense])
def test_a_launched_worker_without_a_group_is_refused(
    method: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would train a model of its own, and nobody would notice."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    model = _linear()
    with pytest.raises(UnsupportedError) as caught:
        method(torch.optim.SGD(model.parameters()), model)
    assert str(caught.value) == (
        "WORLD_SIZE is 2 but torch.distributed is not initialised, and every worker would train a model "
        "of its own: call torch.distributed.init_process_group() before constructing the optimizer (or "
        "unset WORLD_SIZE)"
    )

    def construct(worker: lockstep.Worker) -> int:
        model = _linear()
        made = method(torch.optim.SGD(model.parameters()), model, process_group=worker)
        return int(made.collectives.size)

    assert lockstep.run(3, construct) == [3, 3, 3]
    for text in ("1", "0", "", "many", "-2", "²", "2" * 5000):
        monkeypatch.setenv("WORLD_SIZE", text)
        method(torch.optim.SGD(model.parameters()), model)


@pytest.mark.parametrize("text", ["2", " 2", "2\n", "+2", "02"])
def test_a_launchers_number_is_read_as_python_reads_one(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", text)
    model = _linear()
    with pytest.raises(UnsupportedError, match="WORLD_SIZE is 2 but"):
        ggs.Dense(torch.optim.SGD(model.parameters()), model)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", text)
    assert exchange.stated_node_size(None) == 2
    for broken in ("0", "-2", "", "two", "2" * 5000):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", broken)
        assert exchange.stated_node_size(None) is None


def _joins_late(rank: int, size: int, folder: str) -> tuple[str, int]:
    dist.barrier()  # nobody may leave while another still connects
    dist.destroy_process_group()
    model = _linear()
    optimizer = ggs.GGS(torch.optim.SGD(model.parameters()), model)
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    store = dist.FileStore(f"{folder}/store", size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    dist.barrier()
    try:
        optimizer.step()
    except UnsupportedError as error:
        return str(error), optimizer.statistics.step
    return "trained alone", optimizer.statistics.step


def test_a_group_that_comes_after_the_optimizer_is_refused(
    workers: WorkerPool, tmp_path: Path
) -> None:
    for message, steps in workers.run(2, _joins_late, str(tmp_path)):
        assert message == (
            "torch.distributed was initialised after the optimizer was constructed, which would go on "
            "alone: call torch.distributed.init_process_group() before constructing the optimizer"
        )
        assert steps == 1
