"""The invariants of GGS, on 1, 2 and 4 workers."""

import copy
import itertools
from typing import Any

import pytest
import torch
from torch import nn

import ggs
from ggs.dist import lockstep
from ggs.optim.batchnorm import local_parameters
from tests.full import in_full, reduced
from tests.models import MODELS, backward, build
from tests.reference import Reference, assert_equals_twin
from tests.worker_pool import WorkerPool

OPTIMIZERS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "adam": (torch.optim.Adam, {"lr": 0.01}),
    "adam_l2": (torch.optim.Adam, {"lr": 0.01, "weight_decay": 0.1}),
    "adamw": (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
    "amsgrad": (torch.optim.Adam, {"lr": 0.01, "amsgrad": True}),
    "rmsprop": (torch.optim.RMSprop, {"lr": 0.01}),
    "rmsprop_momentum": (torch.optim.RMSprop, {"lr": 0.001, "momentum": 0.9}),
    "adagrad": (torch.optim.Adagrad, {"lr": 0.05}),
    "adadelta": (torch.optim.Adadelta, {}),
    "nadam": (torch.optim.NAdam, {"lr": 0.01}),
    "nadamw": (torch.optim.NAdam, {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    "radam": (torch.optim.RAdam, {"lr": 0.01}),
    "adamax": (torch.optim.Adamax, {"lr": 0.01}),
    "rprop": (torch.optim.Rprop, {}),
    "sgd": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    "sgd_maximize": (torch.optim.SGD, {"lr": 0.01, "weight_decay": 0.01, "maximize": True}),
    "adafactor": (torch.optim.Adafactor, {"lr": 0.01}),
}
# Their last operation is a fused multiply-add onto the weight, which rounds once where we round twice.
ROUNDS_TWICE = {"sgd", "sgd_maximize", "rmsprop_momentum", "nadam", "nadamw", "radam", "adafactor"}


def make_optimizer(name: str, parameters: Any) -> torch.optim.Optimizer:
    kind, options = OPTIMIZERS[name]
    return kind(parameters, **options)


def non_batchnorm(model: nn.Module) -> dict[str, torch.Tensor]:
    local = local_parameters(model, "average")
    return {n: p.detach().clone() for n, p in model.named_parameters() if p not in local}


def _is_implemented(name: str, model_name: str, implementation: str) -> bool:
    """Not all are fused, and torch's fused kernels misread parameters with gaps in their memory."""
    has_fused = "fused" in OPTIMIZERS[name][0].__init__.__code__.co_varnames
    return implementation != "fused" or (has_fused and model_name != "non_contiguous")


@pytest.mark.parametrize(
    ("name", "model_name", "implementation"),
    reduced(
        (
            case
            for case in itertools.product(
                OPTIMIZERS,
                ("plain", "batchnorm", "non_contiguous", "unused"),
                ("forloop", "foreach", "fused"),
            )
            if _is_implemented(*case)
        ),
        # Every optimizer in every implementation on one model, and a few optimizers on every model.
        lambda name, model_name, implementation: (
            model_name == "batchnorm"
            or (name in ("adam_l2", "sgd", "adafactor") and implementation == "foreach")
        ),
    ),
)
def test_one_worker_at_density_1_is_the_plain_optimizer(
    name: str, model_name: str, implementation: str
) -> None:
    kind, options = OPTIMIZERS[name]
    options = {**options, "foreach": implementation == "foreach"}
    if implementation == "fused":
        options = {**options, "foreach": None, "fused": True}
    plain, wrapped = build(model_name), build(model_name)
    reference = kind(plain.parameters(), **options)
    optimizer = ggs.GGS(kind(wrapped.parameters(), **options), wrapped, density=1.0)
    for step in range(20):
        backward(plain, step, 0)
        backward(wrapped, step, 0)
        reference.step()
        optimizer.step()
    tolerance = 1e-6 if name in ROUNDS_TWICE else 0.0
    for expected, found in zip(plain.parameters(), wrapped.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def _train(rank: int, size: int, model_name: str, optimizer_name: str, options: dict[str, Any],
           steps: int, dtype: torch.dtype = torch.float64, group: Any = None) -> dict[str, Any]:  # fmt: skip
    model = build(model_name, dtype, seed=1 + rank)  # rank 0's must win
    if model_name == "unused":
        model.use_side = rank % 2 == 0
    inner = make_optimizer(optimizer_name, model.parameters())
    optimizer = ggs.GGS(inner, model, process_group=group, **options)
    history = []
    for step in range(steps):
        backward(model, step, rank)
        optimizer.step()
        history.append(non_batchnorm(model))
    return {
        "history": history,
        "parameters": {n: p.detach().clone() for n, p in model.named_parameters()},
        "residual": optimizer.state_dict()["ggs"]["residual"],
        "statistics": optimizer.statistics,
    }


TWINS = [
    ("adam", "batchnorm", "global"),
    ("adamw", "plain", "global"),
    ("adam_l2", "tied", "tensor"),
    ("amsgrad", "channels_last", "global"),
    ("sgd", "non_contiguous", "tensor"),
    ("rmsprop", "batchnorm", "tensor"),
    ("radam", "frozen", "global"),
    ("adafactor", "plain", "global"),
]


@pytest.mark.parametrize(
    ("optimizer_name", "model_name", "scope", "size", "steps"),
    reduced(
        [
            (*twin, size, steps)
            for twin in TWINS
            for size, steps in ((1, 100), (2, 100), (3, 40), (4, 100))
        ],
        lambda name, model_name, scope, size, steps: (
            steps < 100 or (name == "adam" and size in (1, 4))
        ),
    ),
)
def test_equals_the_plain_twin(
    optimizer_name: str, model_name: str, scope: str, size: int, steps: int
) -> None:
    density = ggs.exponential_warmup(0.05, 10)
    options = {"density": 0.05, "warmup_steps": 10, "scope": scope, "values": "fp64"}

    def train(worker: lockstep.Worker) -> dict[str, Any]:
        return _train(worker.rank, size, model_name, optimizer_name, options, steps, group=worker)

    results = lockstep.run(size, train)

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
        per_tensor=scope == "tensor",
    )
    if model_name == "frozen":  # the twin has no notion of frozen parameters
        twin.shared = [[p for p in shared if p.requires_grad] for shared in twin.shared]
        twin.residuals = [[torch.zeros_like(p) for p in shared] for shared in twin.shared]
        twin.points = [[p.detach().clone() for p in shared] for shared in twin.shared]
    assert_equals_twin(results, twin, steps)


@pytest.mark.parametrize(
    ("model_name", "dtype", "size"),
    reduced(
        itertools.product(MODELS, (torch.float32, torch.bfloat16, torch.float16), (2, 4)),
        lambda model_name, dtype, size: (
            (dtype == torch.float32 and size == 2) or (model_name == "batchnorm" and size == 4)
        ),
    ),
)
def test_replicas_are_bit_identical_after_every_step(
    workers: WorkerPool, size: int, model_name: str, dtype: torch.dtype
) -> None:
    options = {"density": 0.03, "dense_below": 6, "warmup_steps": 3}
    kind = "sgd" if dtype == torch.float16 else "adamw"  # Adam's eps is zero in float16
    results = workers.run(size, _train, model_name, kind, options, 12, dtype)
    for other in results[1:]:
        for step, (first, second) in enumerate(
            zip(results[0]["history"], other["history"], strict=True)
        ):
            for name in first:
                assert torch.equal(first[name], second[name]), (name, step)
    start, end = results[0]["history"][0], results[0]["history"][-1]
    assert any(not torch.equal(start[name], end[name]) for name in start)


def test_an_update_that_is_not_finite_is_named() -> None:
    model = build("plain", torch.float16)
    optimizer = ggs.GGS(torch.optim.Adam(model.parameters()), model, density=0.1)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 1e-4)  # its square is zero in float16
    with pytest.raises(ggs.errors.NonFiniteError, match=r"Adam's update of 1\.weight is -?inf"):
        optimizer.step()


@pytest.mark.parametrize("values", ["fp64", "fp32", "bf16", "int8", "int4", "sign"])
@pytest.mark.parametrize("size", [1, 2])
def test_nothing_is_lost(size: int, values: str) -> None:
    """Mean of all updates = what arrived in the weights + mean of what the residuals still hold."""
    results = lockstep.run(size, _conserve, values)
    residual = torch.stack([result["residual"] for result in results]).mean(0)
    updates = torch.stack([result["updates"] for result in results]).mean(0)
    torch.testing.assert_close(results[0]["arrived"] + residual, updates, rtol=1e-12, atol=1e-14)
    assert residual.abs().max() > 0


def _conserve(worker: lockstep.Worker, values: str) -> dict[str, torch.Tensor]:
    """Adam on given gradients: its updates do not depend on the weights, so a twin knows their sum."""
    torch.manual_seed(5)
    model, twin = nn.Linear(40, 5, bias=False).double(), nn.Linear(40, 5, bias=False).double()
    optimizer = ggs.GGS(torch.optim.Adam(model.parameters()), model, density=0.02, warmup_steps=5,
                        values=values, process_group=worker)  # fmt: skip
    alone = torch.optim.Adam(twin.parameters())
    schedulers = [torch.optim.lr_scheduler.StepLR(o, 7, 0.5) for o in (optimizer, alone)]
    start, twin_start = model.weight.detach().clone(), twin.weight.detach().clone()
    generator = torch.Generator().manual_seed(worker.rank)
    for _ in range(30):
        gradient = torch.randn(5, 40, generator=generator, dtype=torch.float64)
        model.weight.grad, twin.weight.grad = gradient.clone(), gradient.clone()
        optimizer.step()
        alone.step()
        for scheduler in schedulers:
            scheduler.step()
    return {
        "arrived": model.weight.detach() - start,
        "updates": twin.weight.detach() - twin_start,
        "residual": optimizer.state_dict()["ggs"]["residual"]["weight"].clone(),
    }


def test_conservation_is_exact_where_the_arithmetic_is() -> None:
    """Integer gradients and a power of two as learning rate: no rounding anywhere in float64."""
    for values in ("fp64", "fp32", "bf16", "int8", "int4", "sign"):
        model = nn.Linear(30, 4, bias=False).double()
        nn.init.zeros_(model.weight)
        optimizer = ggs.GGS(
            torch.optim.SGD(model.parameters(), lr=2.0**-5), model, density=0.05, values=values
        )
        total = torch.zeros(4, 30, dtype=torch.float64)
        for step in range(25):
            generator = torch.Generator().manual_seed(step)
            gradient = torch.randint(-8, 9, (4, 30), generator=generator).double()
            model.weight.grad = gradient.clone()
            optimizer.step()
            total -= gradient * 2.0**-5
        residual = optimizer.state_dict()["ggs"]["residual"]["weight"]
        if values in ("fp64", "fp32", "bf16"):
            assert torch.equal(model.weight.detach() + residual, total), values
        else:  # a scale makes the sent values longer numbers, so their sum rounds
            torch.testing.assert_close(model.weight.detach() + residual, total, rtol=0, atol=1e-14)


def _sgd_against_dense(rank: int, size: int) -> list[torch.Tensor]:
    trained = []
    for kind in ("ggs", "dense", "ddp"):
        model = build("plain", torch.float64)
        sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        optimizer: torch.optim.Optimizer = sgd
        network: nn.Module = model
        if kind == "ggs":
            optimizer = ggs.GGS(sgd, model, density=1.0, values="fp64")
        elif kind == "dense":
            optimizer = ggs.Dense(sgd, model)
        else:
            network = nn.parallel.DistributedDataParallel(model)
        for step in range(15):
            backward(network, step, rank)
            optimizer.step()
        trained.append(torch.cat([p.detach().reshape(-1) for p in model.parameters()]))
    return trained


def test_sgd_at_density_1_is_dense_training(workers: WorkerPool) -> None:
    for sparse, dense, ddp in workers.run(4, _sgd_against_dense):
        torch.testing.assert_close(sparse, ddp, rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(dense, ddp, rtol=1e-12, atol=1e-14)


def _resume(rank: int, size: int, optimizer_name: str, method: str) -> bool:
    def fresh() -> tuple[nn.Module, Any, Any]:
        model = build("batchnorm")
        inner = make_optimizer(optimizer_name, model.parameters())
        optimizer = (
            ggs.GGS(inner, model, density=0.05, warmup_steps=10, values="int8")
            if method == "ggs"
            else ggs.Dense(inner, model, batchnorm="average")
        )
        return model, optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)

    def run(model: nn.Module, optimizer: Any, scheduler: Any, start: int, stop: int) -> None:
        for step in range(start, stop):
            backward(model, step, rank)
            optimizer.step()
            scheduler.step()

    model, optimizer, scheduler = fresh()
    run(model, optimizer, scheduler, 0, 9)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict(), scheduler.state_dict()))
    run(model, optimizer, scheduler, 9, 20)

    resumed, optimizer_2, scheduler_2 = fresh()
    resumed.load_state_dict(saved[0])
    optimizer_2.load_state_dict(saved[1])
    scheduler_2.load_state_dict(saved[2])
    run(resumed, optimizer_2, scheduler_2, 9, 20)
    same = all(
        torch.equal(a, b)
        for a, b in zip(model.state_dict().values(), resumed.state_dict().values(), strict=True)
    )
    return same and optimizer.statistics.step == optimizer_2.statistics.step == 20


@pytest.mark.parametrize("method", ["ggs", "dense"])
@pytest.mark.parametrize("optimizer_name", ["adam_l2", "sgd", "adafactor"])
def test_resume_is_the_uninterrupted_run(
    workers: WorkerPool, optimizer_name: str, method: str
) -> None:
    assert all(workers.run(2, _resume, optimizer_name, method))


def test_a_state_of_another_model_is_refused_and_changes_nothing() -> None:
    model, other = build("plain"), nn.Linear(3, 2)
    optimizer = ggs.GGS(torch.optim.Adam(model.parameters()), model, density=0.1)
    backward(model, 0, 0)
    optimizer.step()
    before = copy.deepcopy(optimizer.state_dict())
    foreign = ggs.GGS(torch.optim.Adam(other.parameters()), other).state_dict()
    with pytest.raises(ggs.errors.CheckpointError, match=r"residual of 1\.bias: shape None"):
        optimizer.load_state_dict(foreign)
    after = optimizer.state_dict()
    assert torch.equal(before["state"][0]["exp_avg"], after["state"][0]["exp_avg"])


def _not_finite(rank: int, size: int, method: str) -> dict[str, Any]:
    model = build("plain")
    inner = torch.optim.Adam(model.parameters())
    optimizer: Any = (
        ggs.GGS(inner, model, density=0.1, max_consecutive_skips=3)
        if method == "ggs"
        else ggs.Dense(inner, model, max_consecutive_skips=3)
    )
    backward(model, 0, rank)
    optimizer.step()
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    backward(model, 1, rank)
    if rank == 1:
        model[1].weight.grad[0, 0] = float("nan")
    optimizer.step()
    skipped = optimizer.statistics
    after = (model.state_dict(), optimizer.state_dict())
    message = ""
    try:
        for step in range(5):
            backward(model, step, rank)
            model[3].bias.grad[0] = float("inf")
            optimizer.step()
    except ggs.errors.NonFiniteError as error:
        message = str(error)
    return {
        "skipped": skipped,
        "same": all(
            torch.equal(a, b) for a, b in zip(before[0].values(), after[0].values(), strict=True)
        )
        and torch.equal(before[1]["state"][0]["exp_avg"], after[1]["state"][0]["exp_avg"])
        and before[1]["state"][0]["step"] == after[1]["state"][0]["step"],
        "message": message,
    }


@pytest.mark.parametrize("method", ["ggs", "dense"])
def test_one_nan_gradient_skips_the_step_everywhere(workers: WorkerPool, method: str) -> None:
    for result in workers.run(2, _not_finite, method):
        assert result["skipped"].skipped
        assert result["skipped"].skipped_steps == 1
        assert result["skipped"].step == 1
        assert result["same"]
        assert result["message"].startswith("3 steps in a row had a NaN or infinite gradient")


@pytest.mark.parametrize("size", [1, 4, *in_full(16)])
@pytest.mark.parametrize("density", [1.0, 0.25])
def test_half_precision_weights_lose_nothing(size: int, density: float) -> None:
    """Each worker's part alone is below half a unit in the last place of the weight."""

    def train(worker: Any) -> tuple[torch.Tensor, torch.Tensor]:
        model = nn.Linear(8, 8, bias=False).bfloat16()
        nn.init.constant_(model.weight, 2.0)
        optimizer = ggs.GGS(
            torch.optim.SGD(model.parameters(), lr=1.0), model, density, process_group=worker
        )
        for _ in range(64):
            model.weight.grad = torch.full_like(model.weight, 2.0**-7)
            optimizer.step()
        return model.weight.detach().double().flatten(), optimizer.residual.double()

    results = lockstep.run(size, train)
    weights = results[0][0]
    undelivered = torch.stack([residual for _, residual in results]).mean(0)
    torch.testing.assert_close(weights + undelivered, torch.full_like(weights, 1.5))
    assert (weights < 2.0).all()
    assert all(torch.equal(weights, other) for other, _ in results)


class DecaysByItself(torch.optim.Adam):
    """A subclass whose weight decay is not what its base class makes of it."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            kept, group["weight_decay"] = group["weight_decay"], 0.0
            with torch.no_grad():
                for parameter in group["params"]:
                    parameter.mul_(1 - group["lr"] * kept)
            super().step()
            group["weight_decay"] = kept


def test_a_subclass_keeps_its_own_weight_decay() -> None:
    plain, wrapped = build("plain", torch.float64), build("plain", torch.float64)
    reference = DecaysByItself(plain.parameters(), lr=0.01, weight_decay=0.1)
    inner = DecaysByItself(wrapped.parameters(), lr=0.01, weight_decay=0.1)
    optimizer = ggs.GGS(inner, wrapped, density=1.0, values="fp64")
    for step in range(50):
        backward(plain, step, 0)
        backward(wrapped, step, 0)
        reference.step()
        optimizer.step()
    for expected, found in zip(plain.parameters(), wrapped.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_a_mean_of_large_float16_gradients_does_not_overflow() -> None:
    def train(worker: Any) -> float:
        model = nn.Linear(4, 4, bias=False).half()
        nn.init.zeros_(model.weight)
        optimizer = ggs.Dense(
            torch.optim.SGD(model.parameters(), lr=1e-4), model, process_group=worker
        )
        model.weight.grad = torch.full_like(model.weight, 4e4)
        optimizer.step()
        return model.weight[0, 0].item()

    assert lockstep.run(4, train) == [pytest.approx(-4.0, rel=1e-3)] * 4


@pytest.mark.parametrize("part", ["dense", "batchnorm"])
def test_an_update_that_is_not_finite_is_named_wherever_it_goes(part: str) -> None:
    model: nn.Module = nn.Sequential(nn.Linear(20, 30), nn.BatchNorm1d(30)).half()
    optimizer = ggs.GGS(
        torch.optim.Adam(model.parameters()), model, 0.01, dense_below=100 if part == "dense" else 0
    )
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    (model[0].bias if part == "dense" else model[1].bias).grad.zero_()  # 0 / (0 + eps = 0)
    with pytest.raises(ggs.errors.NonFiniteError, match=r"Adam's update of .* is nan"):
        optimizer.step()


def test_a_schedule_out_of_range_changes_nothing() -> None:
    model = build("plain")
    inner = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
    optimizer = ggs.GGS(inner, model, lambda step: 0.5 - step)
    backward(model, 0, 0)
    optimizer.step()
    before = copy.deepcopy((model.state_dict(), optimizer.residual))
    backward(model, 1, 0)
    with pytest.raises(ggs.errors.ConfigurationError):
        optimizer.step()
    assert torch.equal(before[1], optimizer.residual)
    for name, value in model.state_dict().items():
        assert torch.equal(before[0][name], value)
