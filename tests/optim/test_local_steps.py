"""Local steps: what a worker does by itself between two exchanges, and what all have after one."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ggs
from ggs.dist import lockstep
from ggs.errors import CheckpointError, MismatchError, NonFiniteError, UnsupportedError
from tests.full import reduced
from tests.models import backward, build
from tests.optim.test_ggs import OPTIMIZERS, make_optimizer, non_batchnorm
from tests.reference import Reference, assert_equals_twin
from tests.worker_pool import WorkerPool


def _train(
    rank: int, size: int, model_name: str, optimizer_name: str, options: dict[str, Any], steps: int,
    dtype: torch.dtype = torch.float32, group: Any = None,
) -> dict[str, Any]:  # fmt: skip
    model = build(model_name, dtype, seed=1 + rank)  # rank 0's must win
    if model_name == "unused":
        model.use_side = rank % 2 == 0
    inner = make_optimizer(optimizer_name, model.parameters())
    optimizer = ggs.GGS(inner, model, process_group=group, **options)
    history, statistics = [], []
    for step in range(steps):
        backward(model, step, rank)
        optimizer.step()
        history.append(non_batchnorm(model))
        statistics.append(optimizer.statistics)
    return {
        "history": history,
        "statistics": statistics,
        "parameters": {n: p.detach().clone() for n, p in model.named_parameters()},
        "residual": optimizer.residual.clone(),
    }


def _in_lockstep(size: int, *arguments: Any) -> list[dict[str, Any]]:
    return lockstep.run(size, lambda worker: _train(worker.rank, size, *arguments, group=worker))


@pytest.mark.parametrize(
    ("optimizer_name", "model_name", "size", "steps"),
    reduced(
        [
            (name, model, size, steps)
            for name, model in (
                ("adam", "batchnorm"), ("adamw", "plain"), ("adam_l2", "channels_last"),
                ("sgd", "non_contiguous"), ("adafactor", "plain"),
            )
            for size in (1, 2, 4)
            for steps in (24, 26)  # at an exchange, and between two
        ],
        lambda name, model, size, steps: size == 2,
    ),
)  # fmt: skip
def test_equals_the_plain_twin(optimizer_name: str, model_name: str, size: int, steps: int) -> None:
    density = ggs.exponential_warmup(0.05, 10)
    options = {"density": 0.05, "warmup_steps": 10, "values": "fp64", "every": 4}
    results = _in_lockstep(size, model_name, optimizer_name, options, steps, torch.float64)
    kind, settings = OPTIMIZERS[optimizer_name]
    decay = 0.0
    if optimizer_name == "adamw":
        decay, settings = settings["weight_decay"], {**settings, "weight_decay": 0.0}
    twin = Reference(
        lambda: build(model_name, torch.float64),
        lambda parameters: kind(parameters, **settings),
        size,
        density,
        decoupled_decay=decay,
        every=4,
    )
    assert_equals_twin(results, twin, steps)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_one_worker_at_density_1_is_the_plain_optimizer(name: str) -> None:
    kind, options = OPTIMIZERS[name]
    plain, wrapped = build("batchnorm", torch.float64), build("batchnorm", torch.float64)
    reference = kind(plain.parameters(), **options)
    inner = kind(wrapped.parameters(), **options)
    optimizer = ggs.GGS(inner, wrapped, 1.0, values="fp64", every=3)
    for step in range(20):
        backward(plain, step, 0)
        backward(wrapped, step, 0)
        reference.step()
        optimizer.step()
        for expected, found in zip(plain.parameters(), wrapped.parameters(), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(
    ("model_name", "optimizer_name", "dtype", "options"),
    [
        ("batchnorm", "adamw", torch.float32, {"values": "int8"}),
        ("unused", "adamw", torch.float32, {"dense_below": 8}),
        ("plain", "adafactor", torch.float32, {"exchange": "split"}),
        ("channels_last", "sgd", torch.bfloat16, {"dense_below": 6}),
    ],
)
def test_replicas_are_equal_at_exchanges_in_processes_and_in_lockstep(
    workers: WorkerPool, model_name: str, optimizer_name: str, dtype: torch.dtype,
    options: dict[str, Any],
) -> None:  # fmt: skip
    options = {"density": 0.05, "warmup_steps": 3, "every": 4, **options}
    arguments = (model_name, optimizer_name, options, 14, dtype)
    processes = workers.run(4, _train, *arguments)
    threads = _in_lockstep(4, *arguments)
    for step in range(14):
        exchanged = step % 4 == 3
        rows = [result["history"][step] for result in processes]
        for name in rows[0]:
            for row, thread in zip(rows, threads, strict=True):
                assert torch.equal(row[name], thread["history"][step][name]), (name, step)
            if exchanged:
                assert all(torch.equal(rows[0][name], row[name]) for row in rows), (name, step)
        if not exchanged:
            assert any(not torch.equal(rows[0][name], rows[1][name]) for name in rows[0])
        for result, thread in zip(processes, threads, strict=True):
            done = result["statistics"][step]
            assert done == thread["statistics"][step]
            assert (done.step, done.exchanged) == (step + 1, exchanged)
            assert (done.bytes_sent > 0) == (done.selected > 0) == exchanged


def _conserve(worker: Any, values: str, steps: int) -> dict[str, Tensor]:
    """Adam on given gradients: its updates do not depend on the weights, so a twin knows their sum."""
    torch.manual_seed(5)
    model, twin = nn.Linear(40, 5, bias=False).double(), nn.Linear(40, 5, bias=False).double()
    optimizer = ggs.GGS(torch.optim.Adam(model.parameters()), model, 0.02, warmup_steps=5,
                        values=values, every=4, process_group=worker)  # fmt: skip
    alone = torch.optim.Adam(twin.parameters())
    schedulers = [torch.optim.lr_scheduler.StepLR(o, 7, 0.5) for o in (optimizer, alone)]
    start, twin_start = model.weight.detach().clone(), twin.weight.detach().clone()
    generator = torch.Generator().manual_seed(worker.rank)
    for _ in range(steps):
        gradient = torch.randn(5, 40, generator=generator, dtype=torch.float64)
        model.weight.grad, twin.weight.grad = gradient.clone(), gradient.clone()
        optimizer.step()
        alone.step()
        for scheduler in schedulers:
            scheduler.step()
    state = optimizer.state_dict()["ggs"]
    pending = state["local_steps"]["sum"]["weight"] if steps % 4 else torch.zeros(5, 40)
    return {
        "arrived": optimizer.shared_weights()["weight"] - start,
        "updates": twin.weight.detach() - twin_start,
        "kept": state["residual"]["weight"] + pending,
        "own": model.weight.detach() - optimizer.shared_weights()["weight"] - pending,
    }


@pytest.mark.parametrize("values", ["fp64", "int8", "sign"])
@pytest.mark.parametrize("steps", [28, 30])
def test_nothing_is_lost(values: str, steps: int) -> None:
    """Mean of all updates = what arrived + mean of the residuals and of the local steps not exchanged."""
    results = lockstep.run(2, _conserve, values, steps)
    kept = torch.stack([result["kept"] for result in results]).mean(0)
    updates = torch.stack([result["updates"] for result in results]).mean(0)
    torch.testing.assert_close(results[0]["arrived"] + kept, updates, rtol=1e-12, atol=1e-14)
    assert torch.equal(results[0]["arrived"], results[1]["arrived"])
    assert all(result["own"].abs().max() < 1e-14 for result in results)


@pytest.mark.parametrize("size", [1, 4])
def test_half_precision_weights_lose_nothing(size: int) -> None:
    """Each step alone is below half a unit in the last place of the weight."""

    def train(worker: Any) -> tuple[Tensor, Tensor]:
        model = nn.Linear(8, 8, bias=False).bfloat16()
        nn.init.constant_(model.weight, 2.0)
        sgd = torch.optim.SGD(model.parameters(), lr=1.0)
        optimizer = ggs.GGS(sgd, model, 1.0, every=4, process_group=worker)
        for _ in range(64):
            model.weight.grad = torch.full_like(model.weight, 2.0**-9)
            optimizer.step()
        return model.weight.detach().double().flatten(), optimizer.residual.double()

    results = lockstep.run(size, train)
    undelivered = torch.stack([residual for _, residual in results]).mean(0)
    torch.testing.assert_close(results[0][0] + undelivered, torch.full_like(results[0][0], 1.875))


def _decay(worker: Any, gradients: list[list[bool]]) -> Tensor:
    """AdamW with zero gradients: only decay moves the weights."""
    model = nn.Linear(4, 1, bias=False).double()
    nn.init.ones_(model.weight)
    inner = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
    optimizer = ggs.GGS(inner, model, 1.0, values="fp64", every=2, process_group=worker)
    for present in gradients[worker.rank]:
        model.weight.grad = torch.zeros(1, 4, dtype=torch.float64) if present else None
        optimizer.step()
    assert not optimizer.residual.any()
    return model.weight.detach()[0, 0]


@pytest.mark.parametrize(
    ("gradients", "remains"),
    [
        ([[True] * 4, [True] * 4], 0.95**4),
        ([[True] * 4, [False] * 4], 0.95**4),
        ([[True, False, False, False], [False] * 4], 0.95**2),
        ([[False] * 4, [False] * 4], 1.0),
    ],
)
def test_decoupled_decay_is_the_same_everywhere_and_never_travels(
    gradients: list[list[bool]], remains: float
) -> None:
    for weight in lockstep.run(2, _decay, gradients):
        assert float(weight) == pytest.approx(remains, rel=1e-14)


def _one_nan(rank: int, size: int, at: int, most: int = 100) -> dict[str, Any]:
    model = build("batchnorm")
    optimizer = ggs.GGS(torch.optim.Adam(model.parameters()), model, 0.1, every=4,
                        max_consecutive_skips=most)  # fmt: skip
    skipped, message = [], ""
    try:
        for step in range(12):
            before = copy.deepcopy((non_batchnorm(model), optimizer.state_dict()["state"]))
            backward(model, step, rank)
            if rank == 1 and (step == at or (most < 100 and step >= at)):
                model[0].weight.grad.fill_(float("nan"))
                optimizer.step()
                if (step + 1) % 4:  # else the exchange has moved the weights
                    assert all(map(torch.equal, before[0].values(), non_batchnorm(model).values()))
                after = optimizer.state_dict()["state"]
                assert all(torch.equal(before[1][i]["exp_avg"], after[i]["exp_avg"]) for i in after)
            else:
                optimizer.step()
            skipped.append(optimizer.statistics.skipped)
    except NonFiniteError as error:
        message = str(error)
    return {
        "skipped": skipped,
        "statistics": optimizer.statistics,
        "weights": non_batchnorm(model),
        "message": message,
    }


@pytest.mark.parametrize("at", [5, 7])
def test_a_gradient_that_is_not_finite_leaves_out_one_step_of_one_worker(
    workers: WorkerPool, at: int
) -> None:
    results = workers.run(2, _one_nan, at)
    assert results[0]["skipped"] == [False] * 12
    assert results[1]["skipped"] == [step == at for step in range(12)]
    for name, value in results[0]["weights"].items():
        assert torch.equal(value, results[1]["weights"][name])
        assert value.isfinite().all()
    for result in results:  # at the exchange all have learned of it
        assert (result["statistics"].step, result["statistics"].skipped_steps) == (12, 1)


def test_too_many_in_a_row_stop_all_workers_at_an_exchange(workers: WorkerPool) -> None:
    for result in workers.run(2, _one_nan, 3, 4):
        assert result["message"].startswith("5 steps in a row had a NaN or infinite gradient")
        assert len(result["skipped"]) == 7  # the exchange of the eighth told all


def _scaled(rank: int, size: int) -> tuple[list[float], list[float], bool]:
    model = build("plain")
    optimizer = ggs.GGS(torch.optim.SGD(model.parameters(), lr=0.01), model, 0.2, every=4)
    scaler = ggs.GradScaler("cpu", init_scale=1024.0, growth_interval=100)
    scales = []
    for step in range(8):
        optimizer.zero_grad()
        images = torch.randn(8, 3, 2, 2)
        scaler.scale(model(images).square().mean()).backward()
        if rank == 1 and step == 5:
            model[1].weight.grad[0, 0] = float("inf")
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    weights = [float(value.double().sum()) for value in non_batchnorm(model).values()]
    return scales, weights, all(p.isfinite().all() for p in model.parameters())


def test_a_scale_backs_off_where_the_overflow_was(workers: WorkerPool) -> None:
    (first, weights, finite), (second, weights_1, finite_1) = workers.run(2, _scaled)
    assert first == [1024.0] * 8
    assert second == [1024.0] * 5 + [512.0] * 3
    assert finite
    assert finite_1
    assert weights == weights_1


def test_inside_consolidated_the_weights_are_those_of_the_last_exchange() -> None:
    def train(worker: Any) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
        model = build("batchnorm")
        optimizer = ggs.GGS(
            torch.optim.AdamW(model.parameters()), model, 0.1, every=4, process_group=worker
        )
        shared = {}
        for step in range(6):
            backward(model, step, worker.rank)
            optimizer.step()
            if step == 3:
                shared = non_batchnorm(model)
        before = copy.deepcopy(model.state_dict())
        with optimizer.consolidated():
            inside = copy.deepcopy(model.state_dict())
            with optimizer.consolidated():
                assert all(map(torch.equal, inside.values(), model.state_dict().values()))
            for call in (optimizer.exchange_now, optimizer.drain, optimizer.drop_residual):
                with pytest.raises(UnsupportedError, match="consolidated"):
                    call()
        assert all(map(torch.equal, before.values(), model.state_dict().values()))
        backward(model, 6, worker.rank)
        optimizer.step()
        return shared, inside, before

    results = lockstep.run(2, train)
    for name, value in results[0][0].items():
        for shared, inside, before in results:
            assert torch.equal(shared[name], value)
            assert torch.equal(inside[name], value)
            assert not torch.equal(before[name], value)


def _resume(rank: int, size: int, optimizer_name: str, whole: bool) -> bool:
    def fresh() -> tuple[nn.Module, Any, Any]:
        model = build("batchnorm")
        inner = make_optimizer(optimizer_name, model.parameters())
        optimizer = ggs.GGS(inner, model, 0.05, warmup_steps=10, values="int8", every=5)
        return model, optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)

    def run(model: nn.Module, optimizer: Any, scheduler: Any, start: int, stop: int) -> None:
        for step in range(start, stop):
            backward(model, step, rank)
            if step == 7 and rank == 1:
                model[0].weight.grad.fill_(float("inf"))
            optimizer.step()
            scheduler.step()

    model, optimizer, scheduler = fresh()
    run(model, optimizer, scheduler, 0, 9)
    state = {"optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}
    saved = copy.deepcopy({**state, "model": model.state_dict()})
    if not whole:  # the point with the model, not in every worker's state
        saved["model"].update(copy.deepcopy(optimizer.shared_weights()))
        del saved["optimizer"]["ggs"]["local_steps"]["point"]
    run(model, optimizer, scheduler, 9, 20)

    resumed, optimizer_2, scheduler_2 = fresh()
    backward(resumed, 3, rank)
    optimizer_2.step()  # whatever it was in is over
    resumed.load_state_dict(saved["model"])
    optimizer_2.load_state_dict(saved["optimizer"])
    scheduler_2.load_state_dict(saved["scheduler"])
    run(resumed, optimizer_2, scheduler_2, 9, 20)
    return (
        all(map(torch.equal, model.state_dict().values(), resumed.state_dict().values()))
        and torch.equal(optimizer.residual, optimizer_2.residual)
        and optimizer.statistics == optimizer_2.statistics
    )


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("optimizer_name", ["adamw", "sgd", "adafactor"])
def test_resume_between_two_exchanges_is_the_uninterrupted_run(
    workers: WorkerPool, optimizer_name: str, whole: bool
) -> None:
    assert all(workers.run(2, _resume, optimizer_name, whole))


def _local(every: int, steps: int, **options: Any) -> tuple[nn.Module, ggs.GGS]:
    model = build("plain")
    optimizer = ggs.GGS(torch.optim.AdamW(model.parameters()), model, 0.1, every=every, **options)
    for step in range(steps):
        backward(model, step, 0)
        optimizer.step()
    return model, optimizer


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda local: local.clear(), "no local steps of this model"),
        (lambda local: local["steps"].append({}), "no local steps of this model"),
        (lambda local: local["steps"][0].update(decays=[0.1, 0.1]), "no local steps"),
        (lambda local: local["steps"][0].update(decays=["a"]), "no local steps"),
        (lambda local: local["steps"][0].update(gradients=[1] * 4), "no local steps"),
        (lambda local: local["steps"][0].update(skipped=None), "no local steps"),
        (lambda local: local["steps"].extend(local["steps"] * 4), "here every is 4"),
        (lambda local: local.pop("sum"), "no sum of local steps"),
        (lambda local: local["sum"].pop("1.bias"), r"sum of local steps of 1\.bias"),
        (lambda local: local["point"].update({"1.bias": torch.zeros(3)}), r"shared point of 1\.b"),
        (lambda local: local.update(point=None), "no shared point"),
    ],
)
def test_a_damaged_state_is_a_checkpoint_error(damage: Any, message: str) -> None:
    _, optimizer = _local(4, 2)
    state = copy.deepcopy(optimizer.state_dict())
    damage(state["ggs"]["local_steps"])
    with pytest.raises(CheckpointError, match=message):
        optimizer.load_state_dict(state)
    assert len(optimizer.state_dict()["ggs"]["local_steps"]["steps"]) == 2


def test_a_state_between_two_exchanges_needs_as_long_a_way_to_the_next() -> None:
    _, optimizer = _local(4, 2)
    for every in (1, 2):
        with pytest.raises(CheckpointError, match=f"here every is {every}"):
            _local(every, 0)[1].load_state_dict(optimizer.state_dict())
    _, longer = _local(3, 0)
    longer.load_state_dict(optimizer.state_dict())
    optimizer.exchange_now()
    _local(1, 0)[1].load_state_dict(optimizer.state_dict())


def test_what_makes_no_sense_with_local_steps_is_refused_by_name() -> None:
    model = build("plain")
    adam = torch.optim.Adam(model.parameters())
    with pytest.raises(UnsupportedError, match="GradientSparsification cannot take local steps"):
        ggs.GradientSparsification(adam, model, every=2)
    with pytest.raises(UnsupportedError, match="exchange is 'hierarchical'"):
        ggs.GGS(adam, model, every=2, exchange="hierarchical")
    with pytest.raises(ggs.errors.ConfigurationError, match="every is 0"):
        ggs.GGS(adam, model, every=0)
    assert "every=3" in repr(ggs.GGS(adam, model, every=3))


def test_weights_written_to_between_two_exchanges_are_named() -> None:
    model, optimizer = _local(4, 2)
    with torch.no_grad():
        model[1].weight.clamp_(-0.1, 0.1)
    backward(model, 2, 0)
    with pytest.raises(UnsupportedError, match="written to between two local steps"):
        optimizer.step()
    model, optimizer = _local(4, 2)
    optimizer.exchange_now()
    with torch.no_grad():
        model[1].weight.fill_(3.0)
    model[1].weight.grad = None
    optimizer.step()
    assert (model[1].weight == 3.0).all()


@pytest.mark.parametrize("kind", ["decay", "call"])
def test_workers_that_differ_between_two_exchanges_are_told_at_the_next(kind: str) -> None:
    def train(worker: Any) -> None:
        model = build("plain")
        inner = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
        optimizer = ggs.GGS(inner, model, 0.1, every=4, process_group=worker)
        for step in range(8):
            backward(model, step, worker.rank)
            inner.param_groups[0]["lr"] = (
                0.02 if kind == "decay" and worker.rank == step == 1 else 0.01
            )
            optimizer.step()
            if kind == "call" and worker.rank == step == 1:
                optimizer.exchange_now()

    message = "4 local steps" if kind == "decay" else "rank 1 has taken 2 steps|has taken 3 steps"
    with pytest.raises(MismatchError, match=message):
        lockstep.run(2, train)


def test_a_model_of_local_batch_norm_layers_only() -> None:
    model = nn.Sequential(nn.BatchNorm2d(3))
    optimizer = ggs.GGS(torch.optim.Adam(model.parameters()), model, every=2)
    for _ in range(3):
        model(torch.randn(4, 3, 2, 2)).square().mean().backward()
        optimizer.step()
    assert optimizer.statistics.step == 3
