"""Gradient sparsification and Deep Gradient Compression against plain twins, and under GGS's contract."""

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ggs
from ggs.dist import lockstep
from ggs.errors import CheckpointError, ConfigurationError, MismatchError, UnsupportedError
from ggs.optim.base import DistributedOptimizer
from ggs.optim.batchnorm import local_parameters
from ggs.train.arguments import build as build_config
from ggs.train.config import TrainConfig
from ggs.train.start import parse_and_check
from ggs.train.worker import train
from tests.full import reduced
from tests.models import MODELS, backward, build
from tests.optim.test_ggs import OPTIMIZERS, make_optimizer, non_batchnorm
from tests.reference import assert_equals_twin
from tests.worker_pool import WorkerPool

SGD = {
    "plain": {"lr": 0.05},
    "momentum": {"lr": 0.05, "momentum": 0.9},
    "nesterov": {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    "maximize": {"lr": 0.01, "momentum": 0.5, "weight_decay": 0.1, "maximize": True},
}


def wrap(
    method: str, name: str, model: nn.Module, **options: Any
) -> ggs.GradientSparsification | ggs.DeepGradientCompression:
    if method == "gs":
        return ggs.GradientSparsification(
            make_optimizer(name, model.parameters()), model, **options
        )
    sgd = torch.optim.SGD(model.parameters(), **SGD[name])
    return ggs.DeepGradientCompression(sgd, model, **options)


class Twin:
    """Both methods as plainly as they can be said: N whole models in one process, one at each worker.

    Args:
        clip: None, or the limit of the mean gradient's norm.
        momentum: of Deep Gradient Compression; None for gradient sparsification.
        optimizer: makes the optimizer that steps with the mean of what was sent.
    """

    def __init__(
        self,
        make_model: Callable[[], nn.Module],
        optimizer: Callable[[Any], torch.optim.Optimizer],
        size: int,
        density: Callable[[int], float],
        momentum: float | None = None,
        nesterov: bool = False,
        decay: float = 0.0,
        clip: float | None = None,
    ) -> None:
        self.models = [make_model() for _ in range(size)]
        self.optimizers = [optimizer(model.parameters()) for model in self.models]
        self.shared, self.local = [], []
        for model in self.models:
            own = local_parameters(model, "average")
            self.shared.append([p for p in model.parameters() if p not in own])
            self.local.append([p for p in model.parameters() if p in own])
        self.u = [{p: torch.zeros_like(p) for p in model.parameters()} for model in self.models]
        self.v = [[torch.zeros_like(p) for p in shared] for shared in self.shared]
        self.density, self.clip, self.decay, self.steps = density, clip, decay, 0
        self.momentum, self.nesterov = momentum, nesterov

    @torch.no_grad()
    def step(self) -> None:
        """One step from the gradients that every model holds."""
        for i, model in enumerate(self.models):
            gradients = {
                p: torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()
            }
            if self.clip is not None:
                share = 1 / len(self.models)
                norm = math.sqrt(sum(float((share * g).square().sum()) for g in gradients.values()))
                limit = self.clip / math.sqrt(len(self.models))
                factor = min(1.0, limit / (norm + share * 1e-6))  # torch adds 1e-6 to the norm
                gradients = {p: g * factor for p, g in gradients.items()}
            if self.momentum is not None:
                for p, g in gradients.items():
                    g = g + self.decay * p
                    self.u[i][p] = self.momentum * self.u[i][p] + g
                    gradients[p] = self.u[i][p]
                    if self.nesterov:
                        gradients[p] = g + self.momentum * self.u[i][p]
            for p, v in zip(self.shared[i], self.v[i], strict=True):
                v += gradients[p]
            for p in self.local[i]:
                p.grad = gradients[p]
        sent = [self._select(i) for i in range(len(self.models))]
        for shared in self.shared:
            for j, p in enumerate(shared):
                p.grad = torch.stack([tensors[j] for tensors in sent]).mean(0)
        for optimizer in self.optimizers:
            optimizer.step()
        self.steps += 1

    def _select(self, i: int) -> list[Tensor]:
        flat = torch.cat([v.reshape(-1) for v in self.v[i]])
        count = max(1, round(len(flat) * self.density(self.steps)))
        chosen = torch.zeros(len(flat), dtype=torch.bool)
        chosen[flat.abs().topk(count).indices] = True
        sent = []
        for p, v, mask in zip(
            self.shared[i], self.v[i], chosen.split([v.numel() for v in self.v[i]]), strict=True
        ):
            mask = mask.view_as(v)
            sent.append(v * mask)
            v[mask] = 0.0
            if self.momentum is not None:
                self.u[i][p] = self.u[i][p] * ~mask
        return sent


def _train(
    rank: int,
    size: int,
    method: str,
    name: str,
    model_name: str,
    options: dict[str, Any],
    steps: int,
    dtype: torch.dtype = torch.float64,
    group: Any = None,
) -> dict[str, Any]:
    model = build(model_name, dtype, seed=1 + rank)  # rank 0's must win
    if model_name == "unused":
        model.use_side = rank % 2 == 0
    optimizer = wrap(method, name, model, process_group=group, **options)
    history = []
    for step in range(steps):
        backward(model, step, rank)
        optimizer.step()
        history.append(non_batchnorm(model))
    return {
        "history": history,
        "parameters": {n: p.detach().clone() for n, p in model.named_parameters()},
        "statistics": optimizer.statistics,
    }


TWINS = [
    ("gs", "adam", "batchnorm", None),
    ("gs", "adam_l2", "tied", None),
    ("gs", "adamw", "plain", None),
    ("gs", "sgd", "channels_last", None),
    ("gs", "adafactor", "plain", None),
    ("dgc", "plain", "plain", None),
    ("dgc", "momentum", "batchnorm", 0.5),
    ("dgc", "nesterov", "channels_last", 2.0),
    ("dgc", "maximize", "tied", None),
]


@pytest.mark.parametrize(
    ("method", "name", "model_name", "clip", "size", "steps"),
    reduced(
        [
            (*twin, size, steps)
            for twin in TWINS
            for size, steps in ((1, 100), (2, 100), (3, 40), (4, 100))
        ],
        lambda method, name, model_name, clip, size, steps: (
            steps < 100 or (model_name == "batchnorm" and size in (1, 4))
        ),
    ),
)
def test_equals_the_plain_twin(
    method: str, name: str, model_name: str, clip: float | None, size: int, steps: int
) -> None:
    density = ggs.exponential_warmup(0.05, 10)
    options: dict[str, Any] = {"density": 0.05, "warmup_steps": 10, "values": "fp64"}
    if method == "dgc":
        options["clip_norm"] = clip
        momentum = {k: SGD[name][k] for k in ("momentum", "nesterov") if k in SGD[name]}
        sign = -1 if "maximize" in SGD[name] else 1
        decay = sign * SGD[name].get("weight_decay", 0.0)
        rest = {"lr": SGD[name]["lr"], "maximize": sign < 0}
        twin = Twin(
            lambda: build(model_name, torch.float64),
            lambda parameters: torch.optim.SGD(parameters, **rest),
            size, density, decay=decay, clip=clip, **{"momentum": 0.0, **momentum},
        )  # fmt: skip
    else:
        kind, settings = OPTIMIZERS[name]
        twin = Twin(
            lambda: build(model_name, torch.float64),
            lambda parameters: kind(parameters, **settings),
            size,
            density,
        )

    def train(worker: lockstep.Worker) -> dict[str, Any]:
        return _train(worker.rank, size, method, name, model_name, options, steps, group=worker)

    results = lockstep.run(size, train)
    assert_equals_twin(results, twin, steps)


@pytest.mark.parametrize(
    ("exchange", "scope", "method", "name", "model_name"),
    reduced(
        (
            (*exchange, *method, model_name)
            for exchange in (("allgather", "tensor"), ("split", "global"))
            for method in (("gs", "adam"), ("dgc", "momentum"))
            for model_name in MODELS
        ),
        lambda exchange, scope, method, name, model_name: (
            model_name == "batchnorm" or (exchange == "split") == (method == "gs")
        ),
    ),
)
def test_replicas_are_bit_identical_after_every_step(
    workers: WorkerPool, model_name: str, exchange: str, method: str, name: str, scope: str
) -> None:
    options = {
        "density": 0.03, "dense_below": 6, "warmup_steps": 3, "exchange": exchange, "scope": scope,
        "values": "int8",
    }  # fmt: skip
    results = workers.run(2, _train, method, name, model_name, options, 10, torch.float32)
    for step, (first, second) in enumerate(
        zip(results[0]["history"], results[1]["history"], strict=True)
    ):
        for parameter_name in first:
            assert torch.equal(first[parameter_name], second[parameter_name]), (
                parameter_name,
                step,
            )
    start, end = results[0]["history"][0], results[0]["history"][-1]
    assert any(not torch.equal(start[n], end[n]) for n in start)


@pytest.mark.parametrize("name", ["adam", "adamw", "adagrad", "rmsprop_momentum", "adafactor"])
def test_one_worker_at_density_1_is_the_plain_optimizer(name: str) -> None:
    plain, wrapped = build("batchnorm"), build("batchnorm")
    reference = make_optimizer(name, plain.parameters())
    optimizer = wrap("gs", name, wrapped, density=1.0)
    for step in range(20):
        backward(plain, step, 0)
        backward(wrapped, step, 0)
        reference.step()
        optimizer.step()
    for expected, found in zip(plain.parameters(), wrapped.parameters(), strict=True):
        assert torch.equal(found, expected)


def _whole(rank: int, size: int, method: str, name: str) -> list[Tensor]:
    options: dict[str, Any] = {"density": 1.0, "values": "fp64"}
    if method == "dgc":
        options["momentum_masking"] = False
    trained = []
    for kind in (method, "dense"):
        model = build("batchnorm", torch.float64)
        if kind == "dense":
            inner = (
                torch.optim.SGD(model.parameters(), **SGD[name])
                if method == "dgc"
                else make_optimizer(name, model.parameters())
            )
            optimizer: DistributedOptimizer = ggs.Dense(inner, model, batchnorm="average")
        else:
            optimizer = wrap(method, name, model, **options)
        for step in range(15):
            backward(model, step, rank)
            optimizer.step()
        trained.append(torch.cat([p.detach().reshape(-1) for p in model.parameters()]))
    return trained


@pytest.mark.parametrize(
    ("method", "name"),
    [
        ("gs", "adam"),
        ("gs", "adamw"),
        ("dgc", "momentum"),
        ("dgc", "nesterov"),
        ("dgc", "maximize"),
    ],
)
def test_at_density_1_it_is_dense_training(workers: WorkerPool, method: str, name: str) -> None:
    """Deep Gradient Compression, too, once it does not forget the momentum of what it sends."""
    for sparse, dense in workers.run(4, _whole, method, name):
        torch.testing.assert_close(sparse, dense, rtol=1e-10, atol=1e-12)


def _without_masking(rank: int, size: int) -> list[Tensor]:
    options: dict[str, Any] = {"density": 0.1, "values": "fp64"}
    trained = []
    for method in ("dgc", "ggs"):
        model = build("batchnorm", torch.float64)
        inner = torch.optim.SGD(model.parameters(), **SGD["momentum"])
        optimizer: DistributedOptimizer = (
            ggs.DeepGradientCompression(inner, model, momentum_masking=False, **options)
            if method == "dgc"
            else ggs.GGS(inner, model, **options)
        )
        for step in range(15):
            backward(model, step, rank)
            optimizer.step()
        trained.append(torch.cat([p.detach().reshape(-1) for p in model.parameters()]))
    return trained


def test_without_masking_deep_gradient_compression_is_ggs(workers: WorkerPool) -> None:
    """Around momentum SGD, gradient correction is momentum correction; only rounding differs."""
    for dgc, ours in workers.run(2, _without_masking):
        torch.testing.assert_close(dgc, ours, rtol=1e-10, atol=1e-12)


def test_momentum_of_what_was_sent_is_forgotten() -> None:
    model = nn.Linear(8, 1, bias=False)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    optimizer = ggs.DeepGradientCompression(sgd, model, density=0.25)
    model.weight.grad = torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]])
    optimizer.step()
    assert optimizer.velocity.tolist() == [1, 2, 3, 4, 5, 6, 0, 0]
    assert optimizer.residual.tolist() == [1, 2, 3, 4, 5, 6, 0, 0]
    model.weight.grad = torch.zeros(1, 8)
    optimizer.step()
    assert optimizer.velocity.tolist() == [0.5, 1, 1.5, 2, 0, 0, 0, 0]
    assert optimizer.residual.tolist() == [1.5, 3, 4.5, 6, 0, 0, 0, 0]
    assert sgd.param_groups[0]["momentum"] == 0.5
    assert sgd.state[model.weight].get("momentum_buffer") is None


def _sparse_gradient(rank: int, size: int, method: str) -> dict[str, Any]:
    """Nobody has a gradient of ``unused``; one of two workers has one of ``side``, and only at first."""
    model = build("unused")
    optimizer = wrap(method, "adam" if method == "gs" else "momentum", model, density=0.05)
    start = {n: p.detach().clone() for n, p in model.named_parameters()}
    grads = []
    for step in range(12):
        model.use_side = rank == 0 and step == 0
        backward(model, step, rank)
        optimizer.step()
        grads.append(model.side.weight.grad is not None)
    moved = {n: not torch.equal(p, start[n]) for n, p in model.named_parameters()}
    return {"moved": moved, "grads": grads, "side": model.side.weight.detach().clone()}


@pytest.mark.parametrize("method", ["gs", "dgc"])
def test_parameters_without_a_gradient(workers: WorkerPool, method: str) -> None:
    first, second = workers.run(2, _sparse_gradient, method)
    assert not first["moved"]["unused.weight"]
    assert first["moved"]["used.weight"]
    assert first["grads"] == second["grads"]
    assert first["grads"][0]
    assert torch.equal(first["side"], second["side"])


@pytest.mark.parametrize("method", ["gs", "dgc"])
def test_resume_is_the_uninterrupted_run(workers: WorkerPool, method: str) -> None:
    assert all(workers.run(2, _resume, method))


def _resume(rank: int, size: int, method: str) -> bool:
    def fresh() -> tuple[nn.Module, Any]:
        model = build("batchnorm")
        name = "adam_l2" if method == "gs" else "nesterov"
        return model, wrap(method, name, model, density=0.05, warmup_steps=10, values="int8")

    def run(model: nn.Module, optimizer: Any, start: int, stop: int) -> None:
        for step in range(start, stop):
            backward(model, step, rank)
            optimizer.step()

    model, optimizer = fresh()
    run(model, optimizer, 0, 9)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    run(model, optimizer, 9, 20)
    resumed, again = fresh()
    resumed.load_state_dict(saved[0])
    again.load_state_dict(saved[1])
    run(resumed, again, 9, 20)
    states = zip(model.state_dict().values(), resumed.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in states) and again.statistics.step == 20


def _not_finite(rank: int, size: int, method: str) -> bool:
    model = build("batchnorm")
    name = "adam" if method == "gs" else "momentum"
    optimizer = wrap(method, name, model, density=0.1, max_consecutive_skips=3)
    backward(model, 0, rank)
    optimizer.step()
    before = copy.deepcopy((list(model.parameters()), optimizer.state_dict()))
    backward(model, 1, rank)
    if rank == 1:
        model[0].weight.grad[0, 0] = float("nan")
    optimizer.step()
    after = optimizer.state_dict()
    same = all(torch.equal(a, b) for a, b in zip(before[0], model.parameters(), strict=True))
    for kind in ("residual", "velocity"):
        for key, value in before[1]["ggs"].get(kind, {}).items():
            same &= torch.equal(value, after["ggs"][kind][key])
    return same and optimizer.statistics.skipped


@pytest.mark.parametrize("method", ["gs", "dgc"])
def test_one_nan_gradient_skips_the_step_everywhere(workers: WorkerPool, method: str) -> None:
    assert workers.run(2, _not_finite, method) == [True, True]


def test_deep_gradient_compression_is_for_sgd() -> None:
    model = build("plain")
    with pytest.raises(UnsupportedError, match=r"cannot use Adam: give torch.optim.SGD"):
        ggs.DeepGradientCompression(torch.optim.Adam(model.parameters()), model)
    damped = torch.optim.SGD(model.parameters(), momentum=0.9, dampening=0.5)
    with pytest.raises(UnsupportedError, match="dampening=0"):
        ggs.DeepGradientCompression(damped, model)
    sgd = torch.optim.SGD(model.parameters())
    with pytest.raises(ConfigurationError, match="clip_norm is -1"):
        ggs.DeepGradientCompression(sgd, model, clip_norm=-1)


def test_a_state_without_velocity_is_refused() -> None:
    model = build("plain")
    state = wrap("gs", "sgd", model).state_dict()
    with pytest.raises(CheckpointError, match="load a state of DeepGradientCompression"):
        wrap("dgc", "momentum", build("plain")).load_state_dict(state)


def _mismatch(rank: int, size: int) -> str:
    model = build("plain")
    sgd = torch.optim.SGD(model.parameters(), momentum=0.9)
    try:
        ggs.DeepGradientCompression(sgd, model, clip_norm=1.0 + rank)
    except MismatchError as error:
        return str(error)
    return ""


def test_workers_that_differ_are_told(workers: WorkerPool) -> None:
    for message in workers.run(2, _mismatch):
        assert "rank 1 differs from rank 0 in settings clip_norm: 1.0 on rank 0, 2.0" in message


def _other_rate(rank: int, size: int) -> str:
    model = build("plain")
    sgd = torch.optim.SGD(model.parameters(), lr=0.5)
    optimizer = ggs.GradientSparsification(sgd, model, density=0.25)
    sgd.param_groups[0]["lr"] = 0.5 + rank
    backward(model, 0, rank)
    try:
        optimizer.step()
    except MismatchError as error:
        return str(error)
    return ""


def test_workers_whose_rates_differ_are_told_theirs(workers: WorkerPool) -> None:
    """The one optimizer of all workers must have the same settings everywhere."""
    for rank, message in enumerate(workers.run(2, _other_rate)):
        rates = [0.5 + rank, 0.0]
        assert f"density is 0.25, learning rates and weight decays are {rates}" in message


def _limited(rank: int, size: int, exchange: str) -> float:
    model = nn.Linear(8, 4)
    optimizer = ggs.DeepGradientCompression(
        torch.optim.SGD(model.parameters(), lr=1.0), model, density=1.0, clip_norm=0.5,
        exchange=exchange, workers_per_node=2,
    )  # fmt: skip
    start = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 100.0)
    optimizer.step()
    end = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    return float((end - start).norm())


@pytest.mark.parametrize(("exchange", "residuals"), [("allgather", 4), ("hierarchical", 2)])
def test_a_limit_grows_with_the_root_of_the_residuals(
    workers: WorkerPool, exchange: str, residuals: int
) -> None:
    """A node whose workers average their gradients is one worker of Deep Gradient Compression."""
    for moved in workers.run(4, _limited, exchange):
        assert moved == pytest.approx(0.5 * math.sqrt(residuals), rel=1e-5)


def _dense(
    rank: int, size: int, model_name: str, dtype: torch.dtype, options: dict[str, Any]
) -> dict[str, Tensor]:
    model = build(model_name, dtype)
    if model_name == "unused":
        model.use_side = rank % 2 == 0
    sgd = torch.optim.SGD(model.parameters(), **SGD["nesterov"])
    optimizer = ggs.Dense(sgd, model, **options)
    for step in range(15):
        backward(model, step, rank)
        optimizer.step()
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def _clipped_mean(size: int, model_name: str, dtype: torch.dtype) -> dict[str, Tensor]:
    """As a user of DistributedDataParallel does it, in one process."""
    model = build(model_name, dtype)
    sgd = torch.optim.SGD(model.parameters(), **SGD["nesterov"])
    clipped = 0
    for step in range(15):
        gradients = []
        for rank in range(size):
            model.use_side = rank % 2 == 0
            backward(model, step, rank)
            gradients.append([p.grad for p in model.parameters()])
        for parameter, of_workers in zip(
            model.parameters(), zip(*gradients, strict=True), strict=True
        ):
            found = [g for g in of_workers if g is not None]
            parameter.grad = torch.stack(found).sum(0) / size if found else None
        clipped += nn.utils.clip_grad_norm_(model.parameters(), 0.6) > 0.6
        sgd.step()
    assert clipped
    return {name: p.detach() for name, p in model.named_parameters()}


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("model_name", ["batchnorm", "unused"])
def test_dense_training_clips_the_mean_gradient(
    workers: WorkerPool, model_name: str, size: int
) -> None:
    expected = _clipped_mean(size, model_name, torch.float64)
    options = {"clip_norm": 0.6}
    for found in workers.run(size, _dense, model_name, torch.float64, options):
        for name, value in found.items():
            torch.testing.assert_close(value, expected[name], rtol=1e-10, atol=1e-12)


def test_one_dense_worker_that_clips_is_the_plain_optimizer() -> None:
    expected = _clipped_mean(1, "batchnorm", torch.float32)
    found = _dense(0, 1, "batchnorm", torch.float32, {"clip_norm": 0.6})
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_dense_replicas_that_clip_stay_alike(workers: WorkerPool) -> None:
    """Though the gradients of their batch-norm layers, and so their norms, differ."""
    options = {"clip_norm": 0.1, "batchnorm": "average"}
    first, second = workers.run(2, _dense, "batchnorm", torch.float32, options)
    alike = {name for name in first if torch.equal(first[name], second[name])}
    assert {name for name in first if name not in alike} == {"1.weight", "1.bias"}
    free, _ = workers.run(2, _dense, "batchnorm", torch.float32, {"batchnorm": "average"})
    assert not any(torch.equal(first[name], free[name]) for name in first)


def test_a_norm_to_clip_at_is_above_0() -> None:
    model = build("plain")
    with pytest.raises(ConfigurationError, match="clip_norm is nan: give a norm above 0"):
        ggs.Dense(torch.optim.SGD(model.parameters()), model, clip_norm=math.nan)


def test_the_stairs_of_deep_gradient_compression() -> None:
    schedule = ggs.staircase_warmup(0.001, 40)
    found = [schedule(step) for step in (0, 9, 10, 20, 30, 39, 40, 1000)]
    assert found == [0.25, 0.25, 0.0625, 0.015625, 0.00390625, 0.00390625, 0.001, 0.001]
    assert ggs.staircase_warmup(0.1, 40)(25) == 0.1
    assert ggs.staircase_warmup(0.1, 0)(0) == 0.1
    with pytest.raises(ConfigurationError, match="stairs is 0"):
        ggs.staircase_warmup(0.1, 10, stairs=0)


def _train_in_parts(rank: int, size: int, folder: Path, method: str, parts: list[int]) -> None:
    inner = {"optimizer": "sgd", "momentum": 0.9} if method == "dgc" else {"optimizer": "adam"}
    for steps in parts:
        config = build_config(TrainConfig, {
            "method": method, "steps": steps, "batch_size": 4, "density": 0.01, "device": "cpu",
            "density_warmup": "3 steps", "evaluate_every": 0, "run_dir": folder / "run",
            "checkpoint_dir": folder / "checkpoints", "checkpoint_every": "100 steps", **inner,
        })  # fmt: skip
        train(config, torch.device("cpu"), None)


@pytest.mark.parametrize("method", ["gs", "dgc"])
def test_the_trainer_resumes_it_bit_for_bit(
    tmp_path: Path, workers: WorkerPool, method: str
) -> None:
    workers.run(2, _train_in_parts, tmp_path / "whole", method, [8])
    workers.run(2, _train_in_parts, tmp_path / "parts", method, [5, 8])
    whole, parts = (tmp_path / name / "run" / "model.safetensors" for name in ("whole", "parts"))
    assert whole.read_bytes() == parts.read_bytes()


def test_the_trainer_refuses_another_optimizer_for_it() -> None:
    with pytest.raises(ConfigurationError, match=r"dgc .* cannot use adam; give --optimizer sgd"):
        parse_and_check(["--method", "dgc"])
    assert parse_and_check(["--method", "dgc", "--optimizer", "sgd"]).method == "dgc"
