"""Every exchange: bit-identical replicas, nothing lost, exact resume, every byte counted."""

import copy
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, TypeVar

import pytest
import torch
import torch.distributed as dist
from torch import nn

import ggs
from ggs.dist import lockstep
from ggs.errors import ConfigurationError
from ggs.exchange import allgather, auto, forecast, split
from ggs.exchange import create as exchange_module
from ggs.text import readable_bytes
from tests.full import reduced
from tests.models import backward, build
from tests.optim.test_ggs import non_batchnorm
from tests.worker_pool import WorkerPool

T = TypeVar("T")

CASES = [
    *(("allgather", size) for size in (2, 3, 4, 5)),
    *(("split", size) for size in (2, 3, 4, 5)),
    ("auto", 4),
    ("hierarchical 2", 2),
    ("hierarchical 2", 4),
    ("hierarchical 2 split", 4),
    ("hierarchical 3", 6),
    ("hierarchical 2 split", 6),
]
"""Exchange, workers per node and, for tests, the exchange between the nodes; number of workers."""
every_exchange = pytest.mark.parametrize(
    ("exchange", "size"), reduced(CASES, lambda exchange, size: size < 6)
)


def on_workers(
    pool: WorkerPool, exchange: str, size: int, function: Callable[..., T], *arguments: Any
) -> list[T]:
    """``function(group, rank, exchange, *arguments)`` on every worker: in one process, but for nodes."""
    if exchange.startswith("hierarchical"):
        return pool.run(size, _in_process, function, exchange, *arguments)
    with in_small_pieces():
        return lockstep.run(
            size, lambda worker: function(worker, worker.rank, exchange, *arguments)
        )


def _in_process(
    rank: int, size: int, function: Callable[..., T], exchange: str, *arguments: Any
) -> T:
    with in_small_pieces():
        return function(None, rank, exchange, *arguments)


@contextmanager
def in_small_pieces() -> Iterator[None]:
    """Exchange even what is small in several pieces. The worker processes serve other tests after."""
    kept, allgather.PIECE_BYTES = allgather.PIECE_BYTES, 150
    try:
        yield
    finally:
        allgather.PIECE_BYTES, forecast.cheapest_flat = kept, _original


def make(
    optimizer: torch.optim.Optimizer, model: nn.Module, group: Any, exchange: str, **options: Any
) -> ggs.GGS:
    """A GGS that exchanges between nodes as ``exchange`` says; call ``in_small_pieces``."""
    name, *rest = exchange.split()
    if rest:
        options["workers_per_node"] = int(rest[0])
    forecast.cheapest_flat = _original if rest[1:] != ["split"] else _always_split
    return ggs.GGS(optimizer, model, exchange=name, process_group=group, **options)


_original = forecast.cheapest_flat


def _always_split(numel: int, count: int, size: int, values_format: str, *rest: Any) -> Any:
    return "split", forecast.split_cost(numel, count, size, values_format)


def adamw(model: nn.Module, group: Any, exchange: str, **options: Any) -> ggs.GGS:
    options = {"density": 0.05, "warmup_steps": 6, **options}
    return make(torch.optim.AdamW(model.parameters(), lr=0.01), model, group, exchange, **options)


def _replicas(group: Any, rank: int, exchange: str, case: dict[str, Any]) -> list[Any]:
    options = dict(case)
    model = build(options.pop("model"), options.pop("dtype", torch.float32), seed=1 + rank)
    optimizer = adamw(model, group, exchange, **options)
    history = []
    for step in range(12):
        backward(model, step, rank)
        optimizer.step()
        history.append(non_batchnorm(model))
    return history


REPLICAS: list[dict[str, Any]] = [
    {"model": "plain", "dense_below": 6},
    {"model": "batchnorm", "values": "int4"},
    {"model": "plain", "scope": "tensor", "values": "bf16"},
    {"model": "non_contiguous", "dtype": torch.float64, "values": "fp64"},
    {"model": "channels_last", "dtype": torch.bfloat16},
    {"model": "tied", "values": "sign", "density": 0.001},
]


@pytest.mark.parametrize(
    ("exchange", "size", "case"),
    reduced(
        ((*pair, case) for pair in CASES for case in range(len(REPLICAS))),
        # All on four workers, on the others by turns.
        lambda exchange, size, case: size == 4 or (size < 6 and case % 2 == size % 2),
    ),
)
def test_replicas_are_bit_identical(
    workers: WorkerPool, exchange: str, size: int, case: int
) -> None:
    histories = on_workers(workers, exchange, size, _replicas, REPLICAS[case])
    for other in histories[1:]:
        for step, (first, second) in enumerate(zip(histories[0], other, strict=True)):
            for name in first:
                assert torch.equal(first[name], second[name]), (step, name)
    start, end = histories[0][0], histories[0][-1]
    assert any(not torch.equal(start[name], end[name]) for name in start)


def _conserve(
    group: Any, rank: int, exchange: str, values: str, scope: str
) -> dict[str, torch.Tensor]:
    """SGD on given integer gradients: its updates do not depend on the weights, and sum exactly."""
    model = nn.Sequential(nn.Linear(40, 9, bias=False), nn.Linear(9, 7)).double()
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    sgd = torch.optim.SGD(model.parameters(), lr=2.0**-5)
    optimizer = make(sgd, model, group, exchange, density=0.03, warmup_steps=8,
                     values=values, scope=scope, dense_below=8)  # fmt: skip
    total = [torch.zeros_like(p) for p in model.parameters()]
    generator = torch.Generator().manual_seed(rank)
    for _ in range(40):
        for parameter, updates in zip(model.parameters(), total, strict=True):
            gradient = torch.randint(-8, 9, parameter.shape, generator=generator).double()
            parameter.grad = gradient
            updates -= gradient * 2.0**-5
        optimizer.step()
    state = optimizer.state_dict()["ggs"]
    residual = [state["residual"][name].reshape(-1) for name, _ in model.named_parameters()]
    return {
        "arrived": torch.cat([p.detach().reshape(-1) for p in model.parameters()]),
        "updates": torch.cat([t.reshape(-1) for t in total]),
        "residual": state["residual_weight"] * torch.cat(residual),
    }


CONSERVED = [("fp64", "global"), ("fp32", "tensor"), ("int8", "global")]


@pytest.mark.parametrize(
    ("exchange", "size", "values", "scope"),
    reduced(
        ((*pair, *kind) for pair in CASES for kind in CONSERVED),
        lambda exchange, size, values, scope: size < 6 and (size > 2 or values == "int8"),
    ),
)
def test_nothing_is_lost(
    workers: WorkerPool, exchange: str, size: int, values: str, scope: str
) -> None:
    """Mean of all updates = what arrived in the weights + mean of what the residuals still hold."""
    results = on_workers(workers, exchange, size, _conserve, values, scope)
    residual = torch.stack([result["residual"] for result in results]).mean(0)
    updates = torch.stack([result["updates"] for result in results]).mean(0)
    torch.testing.assert_close(results[0]["arrived"] + residual, updates, rtol=1e-12, atol=1e-13)
    assert residual.abs().max() > 0


def _at_density_1(group: Any, rank: int, exchange: str, method: str) -> torch.Tensor:
    model = build("plain", torch.float64)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if method == "dense":
        optimizer: torch.optim.Optimizer = ggs.Dense(sgd, model, process_group=group)
    else:
        optimizer = make(sgd, model, group, exchange, density=1.0, values="fp64")
    for step in range(8):
        backward(model, step, rank)
        optimizer.step()
        if method != "dense":
            assert not optimizer.residual.any()
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


@every_exchange
def test_sgd_at_density_1_is_dense_training(workers: WorkerPool, exchange: str, size: int) -> None:
    dense = on_workers(workers, "allgather", size, _at_density_1, "dense")[0]
    for found in on_workers(workers, exchange, size, _at_density_1, "ggs"):
        torch.testing.assert_close(found, dense, rtol=1e-12, atol=1e-14)


def _resume(group: Any, rank: int, exchange: str) -> bool:
    def run(model: nn.Module, optimizer: ggs.GGS, start: int, stop: int) -> None:
        for step in range(start, stop):
            backward(model, step, rank)
            if step == 6 and rank == 1:
                next(p for p in model.parameters() if p.grad is not None).grad.fill_(float("nan"))
            optimizer.step()
            assert optimizer.statistics.skipped == (step == 6)

    model = build("batchnorm")
    optimizer = adamw(model, group, exchange, values="int8")
    run(model, optimizer, 0, 9)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    run(model, optimizer, 9, 20)
    resumed = build("batchnorm")
    second = adamw(resumed, group, exchange, values="int8")
    resumed.load_state_dict(saved[0])
    second.load_state_dict(saved[1])
    run(resumed, second, 9, 20)
    return torch.equal(optimizer.residual, second.residual) and all(
        torch.equal(a, b)
        for a, b in zip(model.state_dict().values(), resumed.state_dict().values(), strict=True)
    )


@every_exchange
def test_resume_is_the_uninterrupted_run(workers: WorkerPool, exchange: str, size: int) -> None:
    assert all(on_workers(workers, exchange, size, _resume))


def _loaded(
    worker: lockstep.Worker, saved: list[Any] | None, scope: str, steps: int
) -> tuple[Any, Any, list[int], int]:
    """State, weights, elements that the first step changed in each tensor, and those sent in the last."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 40, bias=False))
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = ggs.GGS(inner, model, 0.05, scope=scope, exchange="split", process_group=worker)
    if saved is not None:
        optimizer.load_state_dict(saved[worker.rank])
    changed: list[int] = []
    for _ in range(steps):
        before = [parameter.detach().clone() for parameter in model.parameters()]
        optimizer.zero_grad()
        model(torch.randn(8, 40) * (1 + worker.rank)).square().mean().backward()
        optimizer.step()
        changed = changed or [
            int((a != b).sum()) for a, b in zip(before, model.parameters(), strict=True)
        ]
    weights = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
    state = copy.deepcopy(optimizer.state_dict())
    return state, weights, changed, optimizer.statistics.selected


def _given(state: Any, exchange: dict[str, Any]) -> Any:
    return {**state, "ggs": {**state["ggs"], "exchange": exchange}}


def test_ranges_of_a_global_selection_are_not_used_for_one_per_tensor() -> None:
    states = [state for state, *_ in lockstep.run(4, _loaded, None, "global", 5)]
    assert states[0]["ggs"]["exchange"]["bounds"] is not None
    found = lockstep.run(4, _loaded, states, "tensor", 3)
    without = [_given(state, {}) for state in states]
    expected = lockstep.run(4, _loaded, without, "tensor", 3)
    for (state, weights, changed, _), (_, other, others, _) in zip(found, expected, strict=True):
        assert torch.equal(weights, other)
        assert changed == others
        assert state["ggs"]["exchange"]["bounds"] is None


@pytest.mark.parametrize(
    "bounds",
    [
        None, "abcde", 5, [0, 1, 2], [0, 900, 800, 2000, 3240], [0, 1, 2, 3, 4.0], [-8, 1, 2, 3, 3240],
        [0, 800, 1600, 2400, 10**30], [0, 800, 1600, 2400, 3000],
    ],
)  # fmt: skip
@pytest.mark.parametrize("where", ["all", "rank 1"])
def test_loaded_ranges_that_do_not_fit_on_all_workers_are_measured_anew(
    bounds: object, where: str
) -> None:
    states = [state for state, *_ in lockstep.run(4, _loaded, None, "global", 6)]
    assert states[0]["ggs"]["exchange"]["bounds"][-1] == 3240
    changed = [
        _given(state, {"bounds": bounds}) if where == "all" or rank == 1 else state
        for rank, state in enumerate(states)
    ]
    found = lockstep.run(4, _loaded, changed, "global", 3)
    for state, weights, *_ in found:
        assert torch.equal(weights, found[0][1])
        assert state["ggs"]["exchange"] == found[0][0]["ggs"]["exchange"]
        assert state["ggs"]["exchange"]["bounds"] is not None


def test_ranges_of_other_numbers_of_workers_are_measured_anew() -> None:
    states = [state for state, *_ in lockstep.run(4, _loaded, None, "global", 6)]
    for scope in ("global", "tensor"):
        found = lockstep.run(2, _loaded, states, scope, 3)
        assert torch.equal(found[0][1], found[1][1])


@pytest.mark.parametrize("values", ["fp32", "int4"])
@pytest.mark.parametrize("size", [2, 3, 7, 16, 100, 1024])
@pytest.mark.parametrize("count", [1, 25_557, 255_570, 25_557_032])
def test_ranges_cover_everything_within_the_budget(size: int, count: int, values: str) -> None:
    numel = 25_557_032
    found = split.ranges_of((0, numel), (count,), size, values, None)
    assert found.bounds[0] == 0
    assert found.bounds[-1] == numel
    assert sum(sum(parts) for parts in found.first) == count
    for rank, (a, b) in enumerate(pairwise(found.bounds)):
        assert sum(found.first[rank]) <= b - a
        assert sum(found.first[rank]) <= 2 * sum(found.second[rank]) <= 2 * (b - a)
        assert found.offsets[rank][-1] == b - a
    if count == numel:
        assert sum(sum(parts) for parts in found.second) == numel
    if count > size:  # else the messages are hardly more than their headers
        whole = split.message_size(numel, count, values)
        assert forecast.split_bytes(found, values) <= 3.2 * whole


@contextmanager
def _said() -> Iterator[list[str]]:
    """What is logged inside."""
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("ggs")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield messages
    finally:
        logger.removeHandler(handler)


@contextmanager
def _nodes_of(local: str) -> Iterator[None]:
    """As a launcher that starts ``local`` workers on a node."""
    kept = os.environ.get("LOCAL_WORLD_SIZE")
    os.environ["LOCAL_WORLD_SIZE"] = local
    try:
        yield
    finally:
        del os.environ["LOCAL_WORLD_SIZE"]
        if kept is not None:
            os.environ["LOCAL_WORLD_SIZE"] = kept


def _bytes(rank: int, size: int, exchange: str) -> tuple[int, int, list[str]]:
    with _said() as messages:
        model = nn.Linear(200, 100, bias=False)
        optimizer = ggs.GGS(torch.optim.SGD(model.parameters()), model, 0.01, exchange=exchange)
        for step in range(4):  # the last one, step 3, moves no ranges
            model.weight.grad = torch.randn(100, 200) / (1 + step)
            optimizer.step()
    return optimizer.statistics.bytes_sent, optimizer.statistics.bytes_received, messages


@pytest.mark.parametrize("size", [3, 4])
@pytest.mark.parametrize("exchange", ["allgather", "split", "auto"])
def test_every_byte_is_counted(workers: WorkerPool, exchange: str, size: int) -> None:
    numel, count = 20_000, 200
    # One byte for finite gradients, one for the only tensor, eight for equal settings.
    vote = 2 * 10 * (size - 1) // size
    results = workers.run(size, _bytes, exchange)
    sent, received = ([result[i] - vote for result in results] for i in (0, 1))
    assert sum(sent) == sum(received)
    if exchange == "split":
        message = split.message_size(numel, count, "fp32")
        assert max(sent) <= 3.2 * message
        assert min(sent) > (size - 1) / size * message
    else:
        assert sent == [(size - 1) * split.message_size(numel, count, "fp32")] * size
    logs = [result[2] for result in results]
    assert logs[1:] == [[]] * (size - 1)
    if exchange == "auto":
        assert logs[0] == [
            f"exchange: allgather, for 200 of 20,000 elements on {size} workers; "
            f"sends {readable_bytes(sent[0])} a worker and exchange now"
        ]


def test_gathered_pieces_stay_within_their_memory_for_any_number_of_workers() -> None:
    for size in (2, 4, 100, 1024, 10_000):
        for count in (61_101, 6_110_084, 61_100_840):
            cuts = allgather.cuts(61_100_840, count, size, "fp32")
            assert cuts[0] == 0
            assert cuts[-1] == count
            longest = max(b - a for a, b in pairwise(cuts))
            numel = allgather.piece_numel(61_100_840, count, longest)
            gathered = size * allgather.message_size(numel, longest, "fp32")
            assert gathered <= 1.5 * allgather.GATHERED_BYTES


def _placed(
    rank: int, size: int, ranks: list[int], local: str, settings: dict[str, Any]
) -> tuple[int, list[int]] | str | None:
    """Members' share of the residual and the ranks that share a node, in a group of some processes."""
    group = dist.new_group(ranks)
    if rank not in ranks:
        return None
    model = nn.Linear(200, 100, bias=False)
    sgd = torch.optim.SGD(model.parameters())
    try:
        with _nodes_of(local):
            optimizer = ggs.GGS(sgd, model, process_group=group, **settings)
    except ConfigurationError as error:
        return str(error)
    exchange = optimizer._exchange
    node = [] if exchange.node is None else dist.get_process_group_ranks(exchange.node.group)
    return exchange.weight, node


@pytest.mark.parametrize(
    ("ranks", "local", "nodes"),
    [
        ([0, 1, 2, 3], "2", [[0, 1], [0, 1], [2, 3], [2, 3]]),
        ([2, 3], "2", [[2, 3], [2, 3]]),
        ([1, 2], "2", [[], []]),  # neighbours, of two nodes
        ([0, 2], "2", [[], []]),
        ([0, 3], "4", [[0, 3], [0, 3]]),
        ([0, 1, 2], "2", None),
        ([0, 1], "3", None),  # four processes are not nodes of three each
    ],
)
def test_hierarchical_in_a_group_of_some_processes_averages_inside_nodes_only(
    workers: WorkerPool, ranks: list[int], local: str, nodes: list[list[int]] | None
) -> None:
    found = workers.run(4, _placed, ranks, local, {"exchange": "hierarchical"})
    answers = [found[rank] for rank in ranks]
    if nodes is None:
        assert (
            "process_group has not equally many of each node: give workers_per_node" in answers[0]
        )
        assert "\n" not in answers[0]
        assert answers == [answers[0]] * len(ranks)
    else:
        assert answers == [(max(1, len(node)), node) for node in nodes]


def test_workers_per_node_given_holds_in_any_group(workers: WorkerPool) -> None:
    settings = {"exchange": "hierarchical", "workers_per_node": 3}
    found = workers.run(4, _placed, [0, 1, 2], "2", settings)
    assert found[:3] == [(3, [0, 1, 2])] * 3
    found = workers.run(4, _placed, [0, 1, 2], "2", {"exchange": "auto"})
    assert found[:3] == [(1, [])] * 3


class _AsOnGpus(auto.Auto):
    """Chooses and hints as where the residual is on a GPU."""

    def _sizes(self, count: int) -> tuple[int, int, int, int, str, str]:
        return (*super()._sizes(count)[:-1], "cuda")


def _hinted(rank: int, size: int, density: float) -> tuple[str, list[str]]:
    """What four workers on two nodes say in a run whose third step is the first after the warm-up."""
    exchange_module.Auto = _AsOnGpus
    try:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        model = nn.Linear(1000, 100, bias=False, device=device)
        sgd = torch.optim.SGD(model.parameters())
        with _said() as messages, _nodes_of("2"):
            optimizer = ggs.GGS(sgd, model, density, warmup_steps=2)
            for step in range(6):
                model.weight.grad = torch.randn_like(model.weight)
                optimizer.step()
                assert step >= 3 or not any("hint" in text for text in messages)
    finally:
        exchange_module.Auto = auto.Auto
    return type(optimizer._exchange).__name__, [text for text in messages if "hint" in text]


@pytest.mark.parametrize(("density", "hints"), [(0.2, 1), (0.001, 0)])
def test_auto_on_gpus_that_share_nodes_hints_once_and_keeps_the_algorithm(
    workers: WorkerPool, density: float, hints: int
) -> None:
    found = workers.run(4, _hinted, density)
    assert [name for name, _ in found] == ["_AsOnGpus"] * 4
    assert [len(told) for _, told in found] == [hints, 0, 0, 0]
    for text in found[0][1]:
        assert text.startswith("hint: exchange=hierarchical would send ")
