"""GGS and Dense used as PyTorch users use an optimizer."""

import copy
import pickle
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import ggs
from ggs.dist import lockstep
from ggs.errors import ConfigurationError, UnsupportedError
from tests.models import backward, batch, build
from tests.worker_pool import WorkerPool


def wrap(method: str, model: nn.Module, **options: Any) -> Any:
    inner = torch.optim.Adam(model.parameters(), lr=0.01)
    if method == "ggs":
        return ggs.GGS(inner, model, density=1.0, **options)
    return ggs.Dense(inner, model, **options)


METHODS = pytest.mark.parametrize("method", ["ggs", "dense"])


@METHODS
def test_is_an_optimizer_over_the_inner_ones_groups(method: str) -> None:
    model = build("plain")
    inner = torch.optim.Adam(
        [{"params": model[1].parameters(), "lr": 0.1}, {"params": model[3].parameters()}]
    )
    optimizer = ggs.GGS(inner, model) if method == "ggs" else ggs.Dense(inner, model)
    assert isinstance(optimizer, torch.optim.Optimizer)
    assert optimizer.param_groups is inner.param_groups
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.001]
    backward(model, 0, 0)
    optimizer.step()
    assert optimizer.state is inner.state
    assert set(optimizer.state) == set(model.parameters())


@METHODS
@pytest.mark.parametrize(
    "scheduler",
    [
        lambda o: torch.optim.lr_scheduler.StepLR(o, 2, 0.1),
        lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=10, cycle_momentum=True),
        lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 10),
        lambda o: torch.optim.lr_scheduler.SequentialLR(
            o,
            [torch.optim.lr_scheduler.LinearLR(o), torch.optim.lr_scheduler.ExponentialLR(o, 0.5)],
            [3],
        ),
    ],
)
def test_schedulers_steer_it_as_they_steer_the_plain_optimizer(method: str, scheduler: Any) -> None:
    plain, wrapped = build("plain"), build("plain")
    reference = torch.optim.Adam(plain.parameters(), lr=0.01)
    optimizer = wrap(method, wrapped)
    schedulers = scheduler(reference), scheduler(optimizer)
    for step in range(8):
        backward(plain, step, 0)
        backward(wrapped, step, 0)
        reference.step()
        optimizer.step()
        for one in schedulers:
            one.step()
    for expected, found in zip(plain.parameters(), wrapped.parameters(), strict=True):
        assert torch.equal(expected, found)


@METHODS
def test_a_closure_is_evaluated_once_and_its_loss_returned(method: str) -> None:
    model = build("plain")
    optimizer = wrap(method, model)
    calls = []

    def closure() -> torch.Tensor:
        calls.append(torch.is_grad_enabled())
        optimizer.zero_grad()
        images, classes = batch(0, 0)
        loss = nn.functional.cross_entropy(model(images), classes)
        loss.backward()
        return loss

    with torch.no_grad():
        loss = optimizer.step(closure)
    assert calls == [True]
    assert loss is not None
    assert loss.item() > 0


@METHODS
def test_accumulation_and_clipping_are_local_and_come_before(method: str) -> None:
    plain, wrapped = build("plain"), build("plain")
    reference = torch.optim.Adam(plain.parameters(), lr=0.01)
    optimizer = wrap(method, wrapped)
    for step in range(6):
        for model, one in ((plain, reference), (wrapped, optimizer)):
            one.zero_grad()
            for part in range(3):
                images, classes = batch(step, part)
                (nn.functional.cross_entropy(model(images), classes) / 3).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            one.step()
    for expected, found in zip(plain.parameters(), wrapped.parameters(), strict=True):
        assert torch.equal(expected, found)


def test_zero_grad_leaves_the_residual_alone() -> None:
    model = build("plain")
    optimizer = ggs.GGS(torch.optim.Adam(model.parameters()), model, density=0.01)
    backward(model, 0, 0)
    optimizer.step()
    before = optimizer.residual.clone()
    for set_to_none in (True, False):
        optimizer.zero_grad(set_to_none)
        model.zero_grad()
    assert torch.equal(optimizer.residual, before)
    assert before.count_nonzero() > 0


def test_statistics_count_elements_and_bytes() -> None:
    model = build("plain")
    optimizer = ggs.GGS(
        torch.optim.Adam(model.parameters()), model, density=0.01, dense_below=6, warmup_steps=4
    )
    numel = sum(p.numel() for p in model.parameters())
    sent = []
    for step in range(6):
        backward(model, step, 0)
        optimizer.step()
        sent.append(optimizer.statistics.selected)
    assert optimizer.statistics.step == 6
    assert optimizer.statistics.numel == numel == 293
    assert sent[0] == numel  # density 1, the five elements of the last bias included
    assert sent == sorted(sent, reverse=True)
    assert sent[-1] == 5 + round(0.01 * (numel - 5))
    assert optimizer.statistics.density == sent[-1] / numel
    assert optimizer.statistics.bytes_sent == 0  # nobody to send to


def _bytes(rank: int, size: int) -> tuple[int, int, int]:
    model = build("plain")
    optimizer = wrap("ggs", model)
    dense_model = build("plain")
    dense = wrap("dense", dense_model)
    for network, one in ((model, optimizer), (dense_model, dense)):
        backward(network, 0, rank)
        one.step()
    return optimizer.statistics.bytes_sent, dense.statistics.bytes_sent, dense.dense_bytes_per_step


def test_bytes_are_those_of_the_ring(workers: WorkerPool) -> None:
    flags = 13  # one for non-finite gradients, one for each of four parameters, eight of agreement
    for sparse, dense, claimed in workers.run(4, _bytes):
        assert claimed == 2 * 3 * 293 * 4 // 4
        assert dense == claimed + 2 * 3 * flags // 4
        assert 3 * 293 * 4 < sparse < 3 * (293 * 4 + 64) + 2 * flags


@METHODS
def test_groups_cannot_be_added_later(method: str) -> None:
    model = build("plain")
    optimizer = wrap(method, model)
    with pytest.raises(UnsupportedError, match="add it to the torch optimizer first"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})


def test_a_model_moved_after_wrapping_is_named() -> None:
    model = build("plain")
    optimizer = wrap("ggs", model)
    model[3].weight.data = model[3].weight.data.clone()
    backward(model, 0, 0)
    with pytest.raises(UnsupportedError, match=r"parameter 3\.weight got new storage"):
        optimizer.step()


@METHODS
def test_unfreezing_after_wrapping_is_named(method: str) -> None:
    model = build("frozen")
    optimizer = wrap(method, model)
    model[1].weight.requires_grad_(True)
    backward(model, 0, 0)
    with pytest.raises(UnsupportedError, match=r"1\.weight has a gradient but was frozen"):
        optimizer.step()


@METHODS
def test_copies_and_pickles_are_refused(method: str) -> None:
    optimizer = wrap(method, build("plain"))
    for attempt in (copy.deepcopy, pickle.dumps):
        with pytest.raises(UnsupportedError, match="state_dict"):
            attempt(optimizer)


@METHODS
def test_a_plain_optimizers_state_is_accepted(method: str) -> None:
    model = build("plain")
    plain = torch.optim.Adam(model.parameters(), lr=0.5)
    backward(model, 0, 0)
    plain.step()
    optimizer = wrap(method, model)
    optimizer.load_state_dict(copy.deepcopy(plain.state_dict()))
    assert optimizer.param_groups[0]["lr"] == 0.5
    assert optimizer.state[model[1].weight]["step"] == 1
    backward(model, 1, 0)
    optimizer.step()
    assert optimizer.state[model[1].weight]["step"] == 2


@pytest.mark.parametrize("method", ["ggs", "dense", "gs", "dgc"])
def test_a_plain_state_makes_a_used_optimizer_a_fresh_one(method: str) -> None:
    def make(model: nn.Module, worker: lockstep.Worker) -> Any:
        inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        if method == "dense":
            return ggs.Dense(inner, model, batchnorm="average", process_group=worker)
        kinds = {
            "ggs": ggs.GGS,
            "gs": ggs.GradientSparsification,
            "dgc": ggs.DeepGradientCompression,
        }
        return kinds[method](
            inner, model, 0.05, warmup_steps=3, exchange="split", process_group=worker
        )

    def train(worker: lockstep.Worker) -> dict[str, Any]:
        rank = worker.rank
        alone = build("batchnorm")
        plain = torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.9)
        backward(alone, 50, rank)
        plain.step()
        models = [build("batchnorm"), build("batchnorm")]
        used, fresh = (make(model, worker) for model in models)
        for step in range(6):
            backward(models[0], step, rank)
            used.step()
        before = copy.deepcopy(used.state_dict()["ggs"])
        models[1].load_state_dict(models[0].state_dict())
        for optimizer in (used, fresh):
            optimizer.load_state_dict(copy.deepcopy(plain.state_dict()))
        assert used.statistics == fresh.statistics
        loaded = copy.deepcopy((used.state_dict()["ggs"], fresh.state_dict()["ggs"]))
        for step in range(6, 12):
            for model, optimizer in zip(models, (used, fresh), strict=True):
                backward(model, step, rank)
                optimizer.step()
        after = [
            (m.state_dict(), o.state_dict()) for m, o in zip(models, (used, fresh), strict=True)
        ]
        return {"before": before, "loaded": loaded, "after": copy.deepcopy(after)}

    for result in lockstep.run(2, train):
        for own in (*result["loaded"], *(state["ggs"] for _, state in result["after"])):
            assert own.pop("class") == result["before"]["class"]
        for one, other in (result["loaded"], result["after"]):
            torch.testing.assert_close(one, other, rtol=0, atol=0)
        assert result["before"]["step"] == 6
        if method != "dense":
            assert result["before"]["exchange"]["bounds"] is not None
            assert result["loaded"][0]["exchange"]["bounds"] is None
            assert any(bool(r.any()) for r in result["before"]["residual"].values())


@METHODS
def test_a_step_inside_consolidated_is_refused(method: str) -> None:
    """What it did to batch-norm layers would be taken back when the block ends."""
    model = build("batchnorm")
    optimizer = wrap(method, model)
    backward(model, 0, 0)
    saved = optimizer.state_dict()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with optimizer.consolidated():
        with optimizer.consolidated():
            pass
        attempts = {
            "step": optimizer.step,
            "load_state_dict": lambda: optimizer.load_state_dict(saved),
        }
        for name, attempt in attempts.items():
            with pytest.raises(UnsupportedError, match=rf"^{name}\(\) .*leave the block first$"):
                attempt()
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert optimizer.statistics.step == 0
    with pytest.raises(OSError, match="disk"), optimizer.consolidated():
        raise OSError("disk")
    optimizer.step()
    assert optimizer.statistics.step == 1


@METHODS
def test_hooks_and_repr_reach_the_inner_optimizer(method: str) -> None:
    model = build("plain")
    optimizer = wrap(method, model)
    calls = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("pre"))
    optimizer.register_step_post_hook(lambda *_: calls.append("post"))
    optimizer.inner.register_step_post_hook(lambda *_: calls.append("inner"))
    backward(model, 0, 0)
    optimizer.step()
    assert calls == ["pre", "inner", "post"]
    assert "Adam" in repr(optimizer)
    assert "lr: 0.01" in repr(optimizer)


@pytest.mark.parametrize("every", [1, 2])
def test_a_training_that_begins_without_gradients_is_told_of_once(every: int) -> None:
    model = build("plain")
    inner = torch.optim.Adam(model.parameters())
    optimizer = ggs.GGS(inner, model, density=1.0, every=every)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(10):
            optimizer.step()
    assert len(told) == 1
    assert "no worker has any gradient in the optimizer's first step" in str(told[0].message)
    assert told[0].filename == __file__


@METHODS
def test_steps_without_gradients_after_others_are_not_told_of(method: str) -> None:
    """They deliver what is left."""
    model = build("plain")
    optimizer = wrap(method, model)
    backward(model, 0, 0)
    optimizer.step()
    optimizer.zero_grad()
    optimizer.step()


def test_one_worker_with_gradients_is_enough() -> None:
    def train(worker: Any) -> None:
        model = build("plain")
        optimizer = ggs.Dense(torch.optim.Adam(model.parameters()), model, process_group=worker)
        if worker.rank == 1:
            backward(model, 0, 0)
        optimizer.step()

    lockstep.run(2, train)


@METHODS
def test_hooks_on_the_state_run_as_those_of_any_optimizer(method: str) -> None:
    calls = []

    def saved(optimizer: Any, state: dict[str, Any]) -> dict[str, Any]:
        calls.append("saved")
        assert state["ggs"]["step"] == 1
        return {**state, "epoch": 7}

    def loading(optimizer: Any, state: dict[str, Any]) -> dict[str, Any]:
        calls.append("loading")
        return {key: value for key, value in state.items() if key != "epoch"}

    model = build("plain")
    optimizer = wrap(method, model)
    backward(model, 0, 0)
    optimizer.step()
    optimizer.register_state_dict_pre_hook(lambda _: calls.append("saving"))
    optimizer.register_state_dict_post_hook(saved)
    optimizer.register_load_state_dict_pre_hook(loading)
    optimizer.register_load_state_dict_post_hook(lambda _: calls.append("loaded"))
    state = optimizer.state_dict()
    assert state["epoch"] == 7
    backward(model, 1, 0)
    optimizer.step()
    optimizer.load_state_dict(state)
    assert optimizer.statistics.step == 1
    assert state["epoch"] == 7  # a hook gets a copy
    assert calls == ["saving", "saved", "loading", "loaded"]


def test_repr_and_statistics_show_what_is_sent() -> None:
    model = build("plain")
    adam = torch.optim.Adam(model.parameters())
    optimizer = ggs.GGS(adam, model, density=0.25, warmup_steps=1, values="int8", exchange="split")
    settings = "values='int8', exchange='split', workers=1, optimizer=Adam ("
    assert repr(optimizer).startswith(f"GGS(density=1, {settings}")
    backward(model, 0, 0)
    optimizer.step()
    assert repr(optimizer).startswith(f"GGS(density=0.25, {settings}")
    assert str(optimizer.statistics).endswith("skipped_steps=0, density=1)")
    backward(model, 1, 0)
    optimizer.step()
    assert str(optimizer.statistics).endswith(f"density={optimizer.statistics.density:.4g})")
    assert repr(wrap("dense", build("plain"))).startswith("Dense(workers=1, optimizer=Adam (")


def test_repr_of_a_schedule_that_has_ended_shows_nan() -> None:
    model = build("plain")
    optimizer = ggs.GGS(torch.optim.Adam(model.parameters()), model, [1.0].__getitem__)
    assert repr(optimizer).startswith("GGS(density=1, ")
    backward(model, 0, 0)
    optimizer.step()
    assert repr(optimizer).startswith("GGS(density=nan, ")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"density": 0}, "density is 0"),
        ({"density": -1}, "density is -1"),
        ({"density": 2}, "density is 2"),
        ({"density": float("nan")}, "density is nan"),
        ({"density": "abc"}, "density is 'abc'"),
        ({"warmup_steps": -1}, "warmup_steps is -1"),
        ({"warmup_steps": 1.5}, "warmup_steps is 1.5"),
        ({"density": lambda step: 0.1, "warmup_steps": 3}, "density is a function"),
        ({"scope": "layer"}, "scope is 'layer'"),
        ({"values": "fp8"}, "'fp8'"),
        ({"batchnorm": "sync"}, "batchnorm is 'sync'"),
        ({"max_consecutive_skips": 0}, "max_consecutive_skips is 0"),
        ({"max_consecutive_skips": "a"}, "max_consecutive_skips is 'a'"),
        ({"density": True}, "density is True"),
        ({"dense_below": -1}, "dense_below is -1"),
        ({"dense_below": 2.5}, "dense_below is 2.5"),
        ({"workers_per_node": "2"}, "workers_per_node is '2'"),
        ({"values": "fp64"}, "no parameter is float64"),
    ],
)
def test_settings_out_of_range_are_named(options: dict[str, Any], message: str) -> None:
    model = build("plain")
    with pytest.raises(ConfigurationError, match=message) as caught:
        ggs.GGS(torch.optim.Adam(model.parameters()), model, **options)
    assert "\n" not in str(caught.value)


def test_a_schedule_that_leaves_the_range_is_named() -> None:
    model = build("plain")
    optimizer = ggs.GGS(
        torch.optim.Adam(model.parameters()), model, density=lambda step: 0.5 - step
    )
    backward(model, 0, 0)
    optimizer.step()
    backward(model, 1, 0)
    with pytest.raises(ConfigurationError, match=r"density at step 1 is -0\.5"):
        optimizer.step()


def _half_precision(rank: int, size: int, ours: bool) -> tuple[list[float], list[bool], bool]:
    """Rank 1 overflows once; with our scaler all ranks back off together."""
    model = build("plain")
    optimizer = ggs.GGS(torch.optim.SGD(model.parameters(), lr=0.01), model, density=0.1)
    kind = ggs.GradScaler if ours else torch.amp.GradScaler
    scaler = kind("cpu", init_scale=2.0**10, growth_interval=3)
    scales, skipped = [], []
    for step in range(8):
        optimizer.zero_grad()
        images, classes = batch(step, rank)
        loss = nn.functional.cross_entropy(model(images), classes)
        scaler.scale(loss * (float("inf") if (rank, step) == (1, 4) else 1.0)).backward()
        if step % 2:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        skipped.append(optimizer.statistics.skipped)
    finite = all(bool(p.isfinite().all()) for p in model.parameters())
    return scales, skipped, finite


def test_our_scaler_backs_off_on_every_rank(workers: WorkerPool) -> None:
    (scales, skipped, finite), (scales_1, skipped_1, _) = workers.run(2, _half_precision, True)
    assert skipped == skipped_1 == [step == 4 for step in range(8)]
    assert scales == scales_1
    assert scales[4] == scales[3] / 2
    assert finite


def test_torchs_scaler_works_with_a_local_scale(workers: WorkerPool) -> None:
    (scales, skipped, finite), (scales_1, skipped_1, _) = workers.run(2, _half_precision, False)
    assert skipped == skipped_1 == [step == 4 for step in range(8)]
    assert scales_1[4] == scales[4] / 2
    assert finite


def test_a_worker_without_gradients_keeps_the_common_scale() -> None:
    """Also before its first loss, where torch has no scale yet, and where another worker overflows."""

    def train(worker: lockstep.Worker) -> list[tuple[float, bool]]:
        model = build("plain")
        sgd = torch.optim.SGD(model.parameters(), lr=0.01)
        optimizer = ggs.GGS(sgd, model, density=0.1, process_group=worker)
        scaler = ggs.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)
        found = []
        for step in range(9):
            optimizer.zero_grad()
            images, classes = batch(step, worker.rank)
            if worker.rank == 0 or step not in (0, 3, 5):
                loss = nn.functional.cross_entropy(model(images), classes)
                scaler.scale(loss * (float("inf") if step == 5 else 1.0)).backward()
            if step % 2 == 0:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            found.append((scaler.get_scale(), optimizer.statistics.skipped))
        return found

    first, second = lockstep.run(2, train)
    assert first == second
    assert [skipped for _, skipped in first] == [step == 5 for step in range(9)]
    assert [scale / 2.0**10 for scale, _ in first] == [1, 1, 2, 2, 2, 1, 1, 1, 2]


def test_a_disabled_scaler_steps_as_without_one() -> None:
    models = [build("plain"), build("plain")]
    optimizers = [wrap("ggs", model) for model in models]
    scaler = ggs.GradScaler("cpu", enabled=False)
    for step in range(3):
        for model in models:
            backward(model, step, 0)
        optimizers[0].step()
        scaler.unscale_(optimizers[1])
        scaler.step(optimizers[1])
        scaler.update()
    for expected, found in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(expected, found)


def test_scaled_gradients_are_unscaled_exactly_once() -> None:
    plain, wrapped = build("plain"), build("plain")
    reference = torch.optim.Adam(plain.parameters(), lr=0.01)
    optimizer = wrap("ggs", wrapped)
    scaler = ggs.GradScaler("cpu", init_scale=2.0**8, growth_interval=1000)
    for step in range(5):
        backward(plain, step, 0)
        reference.step()
        optimizer.zero_grad()
        images, classes = batch(step, 0)
        scaler.scale(nn.functional.cross_entropy(wrapped(images), classes)).backward()
        scaler.step(optimizer)
        scaler.update()
    for expected, found in zip(plain.parameters(), wrapped.parameters(), strict=True):
        assert torch.equal(expected, found)


@METHODS
@pytest.mark.parametrize("kind", [ggs.GradScaler, torch.amp.GradScaler])
def test_a_nan_that_comes_after_unscaling_skips_the_step(method: str, kind: Any) -> None:
    """The scaler looked before: clipping or a user's own code may make one later."""

    def train(worker: lockstep.Worker) -> tuple[list[bool], bool]:
        model = build("plain")
        optimizer = wrap(method, model, process_group=worker)
        scaler = kind("cpu", init_scale=4.0)
        skipped = []
        for step in range(3):
            optimizer.zero_grad()
            images, classes = batch(step, worker.rank)
            scaler.scale(nn.functional.cross_entropy(model(images), classes)).backward()
            scaler.unscale_(optimizer)
            if (worker.rank, step) == (1, 1):
                model[1].weight.grad[0, 0] = float("nan")
            scaler.step(optimizer)
            scaler.update()
            skipped.append(optimizer.statistics.skipped)
        return skipped, all(bool(p.isfinite().all()) for p in model.parameters())

    assert lockstep.run(2, train) == [([False, True, False], True)] * 2


def test_freezing_after_wrapping_is_named() -> None:
    model = build("plain")
    optimizer = wrap("ggs", model)
    model[1].weight.requires_grad_(False)
    backward(model, 0, 0)
    with pytest.raises(UnsupportedError, match=r"1\.weight was frozen after"):
        optimizer.step()


@METHODS
def test_a_state_loaded_into_the_inner_optimizer_counts(method: str) -> None:
    model = build("plain")
    inner = torch.optim.Adam(model.parameters(), lr=0.5)
    optimizer = ggs.GGS(inner, model) if method == "ggs" else ggs.Dense(inner, model)
    state = copy.deepcopy(inner.state_dict())
    state["param_groups"][0]["lr"] = 1e-4
    inner.load_state_dict(state)
    backward(model, 0, 0)
    optimizer.step()
    assert optimizer.param_groups[0]["lr"] == inner.param_groups[0]["lr"] == 1e-4
    assert optimizer.state is inner.state


def test_wrapping_twice_is_refused() -> None:
    model = build("plain")
    optimizer = wrap("ggs", model)
    with pytest.raises(UnsupportedError, match="wrapped already"):
        ggs.GGS(optimizer, model)


@pytest.mark.parametrize(
    "broken",
    [
        [],
        {},
        {"step": "x"},
        {"step": 1, "consecutive_skips": 0, "skipped_steps": 0, "residual": {}},
        {"class": "DeepGradientCompression"},
        {"class": None},
    ],
)
def test_a_broken_state_is_named_and_changes_nothing(broken: Any) -> None:
    model = build("plain")
    optimizer = wrap("ggs", model)
    backward(model, 0, 0)
    optimizer.step()
    residual = optimizer.residual.clone()
    with pytest.raises(ggs.errors.CheckpointError):
        optimizer.load_state_dict({**optimizer.inner.state_dict(), "ggs": broken})
    assert torch.equal(residual, optimizer.residual)


def _broken(own: dict[str, Any]) -> list[dict[str, Any]]:
    """``own`` with one thing in it that it cannot be."""
    name = "1.weight"
    strange: list[Any] = [
        None,
        7,
        "x",
        [],
        {name: None},
        {name: torch.zeros(2)},
        {3: torch.zeros(2)},
    ]
    parts = [{key: value} for key in ("residual", "velocity") if key in own for value in strange]
    for key in ("residual", "velocity"):
        if key in own:
            tensor = own[key][name]
            values = [None, 7, tensor.tolist(), tensor.int(), tensor.to_sparse(), tensor.to("meta")]
            parts += [{key: {**own[key], name: value}} for value in values]
    parts += [{"step": value} for value in (-1, True, 1.0, None, torch.tensor(1))]
    parts += [{"skipped_steps": -1}, {"consecutive_skips": -1}]
    if "exchange" in own:
        parts += [{"residual_weight": value} for value in (None, 0, torch.ones(2))]
        parts += [{"exchange": value} for value in (None, [])]
    return [{**own, **part} for part in parts]


KINDS = {
    "ggs": lambda model: ggs.GGS(torch.optim.SGD(model.parameters()), model, 0.1, exchange="split"),
    "gs": lambda model: ggs.GradientSparsification(torch.optim.SGD(model.parameters()), model, 0.1),
    "dgc": lambda model: ggs.DeepGradientCompression(torch.optim.SGD(model.parameters()), model),
    "dense": lambda model: ggs.Dense(torch.optim.SGD(model.parameters()), model),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_state_is_a_checkpoint_error(kind: str) -> None:
    optimizer = KINDS[kind](build("plain"))
    state = optimizer.state_dict()
    for own in _broken(state["ggs"]):
        with pytest.raises(ggs.errors.CheckpointError) as caught:
            optimizer.load_state_dict({**state, "ggs": own})
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("other", KINDS)
def test_the_state_of_another_class_is_refused(kind: str, other: str) -> None:
    """A residual of gradients, added to the weights as one of updates, destroys the model."""
    optimizer = KINDS[kind](build("plain"))
    state = KINDS[other](build("plain")).state_dict()
    assert state["ggs"]["class"] != type(optimizer).__name__ or kind == other
    if kind == other:
        optimizer.load_state_dict(state)
        del state["ggs"]["class"]  # as before states said it
        optimizer.load_state_dict(state)
        return
    with pytest.raises(
        ggs.errors.CheckpointError, match=f"the state is of {state['ggs']['class']} "
    ):
        optimizer.load_state_dict(state)


def test_an_error_in_a_scaled_step_leaves_no_scale_behind() -> None:
    model = build("plain")
    optimizer = ggs.GGS(torch.optim.SGD(model.parameters(), lr=0.1), model, lambda step: 0.5 - step)
    scaler = ggs.GradScaler("cpu", init_scale=4.0)
    images, classes = batch(0, 0)
    scaler.scale(nn.functional.cross_entropy(model(images), classes)).backward()
    scaler.step(optimizer)
    scaler.update()
    scaler.scale(nn.functional.cross_entropy(model(images), classes)).backward()
    with pytest.raises(ConfigurationError):
        scaler.step(optimizer)
    assert not hasattr(optimizer, "grad_scale")
