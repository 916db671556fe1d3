"""BN-LG: what is local, what is averaged, and that training does not notice an evaluation."""

import copy
import io
from typing import Any

import pytest
import torch
from torch import nn

import ggs
from ggs.dist import lockstep
from ggs.errors import ConfigurationError, MismatchError
from tests.models import backward, batch, build
from tests.worker_pool import WorkerPool


def _train(rank: int, size: int, mode: str, evaluate: bool) -> dict[str, Any]:
    model = build("batchnorm")
    optimizer = ggs.GGS(
        torch.optim.Adam(model.parameters(), lr=0.01), model, density=0.1, batchnorm=mode
    )
    calibration = [batch(100 + i, rank) for i in range(3)]
    inside: dict[str, torch.Tensor] = {}
    for step in range(8):
        backward(model, step, rank)
        optimizer.step()
        if evaluate:
            sent = optimizer.statistics.bytes_sent
            with optimizer.consolidated(calibration):
                inside = {n: v.clone() for n, v in model.state_dict().items()}
            assert optimizer.statistics.bytes_sent == sent
    return {
        "inside": inside,
        "after": {n: v.clone() for n, v in model.state_dict().items()},
        "numel": optimizer.statistics.numel,
    }


@pytest.mark.parametrize("mode", ["local", "average", "dense", "recalibrate"])
def test_evaluation_leaves_the_training_as_it_is(workers: WorkerPool, mode: str) -> None:
    evaluated = workers.run(2, _train, mode, True)
    undisturbed = workers.run(2, _train, mode, False)
    for one, other in zip(evaluated, undisturbed, strict=True):
        for name in one["after"]:
            assert torch.equal(one["after"][name], other["after"][name]), name


def test_local_layers_differ_and_stay_so(workers: WorkerPool) -> None:
    first, second = workers.run(2, _train, "local", True)
    for state in ("inside", "after"):
        assert not torch.equal(first[state]["1.weight"], second[state]["1.weight"])
        assert not torch.equal(first[state]["1.running_var"], second[state]["1.running_var"])
        assert torch.equal(first[state]["0.weight"], second[state]["0.weight"])
    assert first["numel"] == 3 * 8 * 4 + 8 * 5  # 16 batch-norm elements are not shared


def test_average_is_the_mean_and_the_pooled_variance(workers: WorkerPool) -> None:
    results = workers.run(2, _train, "average", True)
    after = [result["after"] for result in results]
    for result in results:
        inside = result["inside"]
        for name in ("1.weight", "1.bias", "1.running_mean", "5.running_mean"):
            expected = (after[0][name] + after[1][name]) / 2
            torch.testing.assert_close(inside[name], expected)
        for layer in ("1", "5"):
            means = torch.stack([state[f"{layer}.running_mean"] for state in after])
            variances = torch.stack([state[f"{layer}.running_var"] for state in after])
            pooled = variances.mean(0) + means.var(0, unbiased=False)
            torch.testing.assert_close(inside[f"{layer}.running_var"], pooled)


def test_dense_shares_the_affine_parameters(workers: WorkerPool) -> None:
    first, second = workers.run(2, _train, "dense", True)
    assert torch.equal(first["after"]["1.weight"], second["after"]["1.weight"])
    assert not torch.equal(first["after"]["1.running_var"], second["after"]["1.running_var"])
    assert torch.equal(first["inside"]["1.running_var"], second["inside"]["1.running_var"])
    assert first["numel"] == 3 * 8 * 4 + 8 * 5 + 16


def test_recalibration_measures_the_averaged_model(workers: WorkerPool) -> None:
    results = workers.run(2, _train, "recalibrate", True)
    averaged = build("batchnorm")
    averaged.load_state_dict(results[0]["inside"])
    statistics = []
    for rank in range(2):
        local = build("batchnorm")
        local.load_state_dict(averaged.state_dict())
        loader = [batch(100 + i, rank) for i in range(3)]
        torch.optim.swa_utils.update_bn(loader, local)
        statistics.append(local[1].running_mean)
    torch.testing.assert_close(averaged[1].running_mean, torch.stack(statistics).mean(0))
    assert torch.equal(results[0]["inside"]["1.running_var"], results[1]["inside"]["1.running_var"])


def test_recalibration_needs_batches() -> None:
    model = build("batchnorm")
    optimizer = ggs.GGS(torch.optim.SGD(model.parameters()), model, batchnorm="recalibrate")
    with (
        pytest.raises(ConfigurationError, match="no calibration batches"),
        optimizer.consolidated(),
    ):
        pass


def test_one_worker_alone_is_not_touched() -> None:
    model = build("batchnorm")
    optimizer = ggs.GGS(torch.optim.SGD(model.parameters(), lr=0.1), model)
    backward(model, 0, 0)
    before = {n: v.clone() for n, v in model.state_dict().items()}
    with optimizer.consolidated():
        for name, value in model.state_dict().items():
            assert torch.equal(value, before[name])


def test_a_model_without_batchnorm_needs_no_collective() -> None:
    model = nn.Linear(2, 2)
    optimizer = ggs.GGS(torch.optim.SGD(model.parameters()), model)
    with optimizer.consolidated():
        assert torch.isfinite(model.weight).all()


def test_recalibration_leaves_modes_and_momenta_and_refuses_nothing_to_measure() -> None:
    model = build("batchnorm")
    optimizer = ggs.GGS(torch.optim.SGD(model.parameters(), lr=0.1), model, batchnorm="recalibrate")
    model[1].eval()  # frozen by hand while the rest trains
    spent = iter([batch(0, 0)])
    next(spent)
    before = model[1].running_mean.clone()
    with (
        pytest.raises(ConfigurationError, match="batches are empty"),
        optimizer.consolidated(spent),
    ):
        pass

    def fails() -> Any:
        yield batch(0, 0)
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"), optimizer.consolidated(fails()):
        pass
    assert torch.equal(model[1].running_mean, before)
    assert model[1].momentum == 0.1
    assert not model[1].training
    assert model[0].training


def _failing(rank: int, size: int, kind: str) -> tuple[list[str], bool, int]:
    """What each worker raises where rank 1 cannot calibrate, and whether it then trains on."""
    model = build("batchnorm")
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = ggs.GGS(inner, model, 0.1, batchnorm="recalibrate")
    good = [batch(9, rank)]
    bad = {"empty": [], "none": None, "forward": [torch.ones(2, 7)]}[kind]
    backward(model, 0, rank)
    optimizer.step()
    before = copy.deepcopy(model.state_dict())
    said = []
    try:
        with optimizer.consolidated(bad if rank == 1 else good):
            said.append("inside")
    except (ConfigurationError, MismatchError, RuntimeError) as error:
        said += [type(error).__name__, str(error)]
    same = all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    backward(model, 1, rank)
    optimizer.step()
    with optimizer.consolidated(good):
        return said, same, optimizer.statistics.step


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        ("empty", "ConfigurationError", "batches are empty"),
        ("none", "ConfigurationError", "no calibration batches"),
        ("forward", "RuntimeError", ""),
    ],
)
def test_a_calibration_that_fails_on_one_worker_is_refused_on_all(
    workers: WorkerPool, kind: str, name: str, message: str
) -> None:
    found = workers.run(3, _failing, kind)
    for said, same, steps in found:
        assert same
        assert steps == 2
        assert len(said) == 2
    assert found[1][0][0] == name
    assert message in found[1][0][1]
    for rank in (0, 2):
        assert found[rank][0] == [
            "MismatchError",
            "batchnorm is 'recalibrate' and the calibration failed on rank 1: see its own error",
        ]


def _one_bad_batch(rank: int, size: int, method: str, bad: float) -> dict[str, Any]:
    """Rank 1 gets one batch that its forward pass cannot take, in the middle and right after a resume."""
    model = build("batchnorm")
    optimizer = make(method, model)
    loss = nn.functional.cross_entropy

    def step(number: int, factor: float = 1.0) -> None:
        images, classes = batch(number, rank)
        optimizer.zero_grad()
        loss(model(images * (factor if rank == 1 else 1.0)), classes).backward()
        optimizer.step()

    for number in range(4):
        step(number)
    before = copy.deepcopy(dict(model.named_buffers()))
    step(4, bad)
    skipped = optimizer.statistics.skipped
    after = copy.deepcopy(dict(model.named_buffers()))
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    model = build("batchnorm")
    optimizer = make(method, model)
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    step(4, bad)
    resumed = dict(model.named_buffers())
    kept = rank == 0 or all(
        torch.equal(before[name], after[name]) and torch.equal(before[name], resumed[name])
        for name in before
    )
    for number in range(5, 12):
        step(number)
    optimizer.zero_grad()
    with optimizer.consolidated():
        finite = all(bool(tensor.isfinite().all()) for tensor in model.state_dict().values())
    return {"skipped": skipped, "kept": kept, "finite": finite, "steps": optimizer.statistics.step}


def make(method: str, model: nn.Module) -> Any:
    inner = torch.optim.Adam(model.parameters())
    return ggs.GGS(inner, model, density=0.1) if method == "ggs" else ggs.Dense(inner, model)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 3e38])
@pytest.mark.parametrize("method", ["ggs", "dense"])
def test_a_batch_that_is_not_finite_does_not_poison_the_running_statistics(
    workers: WorkerPool, method: str, bad: float
) -> None:
    for result in workers.run(2, _one_bad_batch, method, bad):
        assert result == {"skipped": True, "kept": True, "finite": True, "steps": 4 + 7}


@pytest.mark.parametrize("method", ["ggs", "dense"])
def test_statistics_that_were_replaced_are_protected_too(method: str) -> None:
    """As load_state_dict(assign=True) does, before or after a good step."""
    for good_steps in (0, 1):
        model = build("batchnorm")
        optimizer = make(method, model)
        saved = {name: torch.full_like(b, 3) for name, b in model.named_buffers()}
        model.load_state_dict(saved, strict=False, assign=True)
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        loss = nn.functional.cross_entropy
        for number in range(good_steps):
            backward(model, number, 0)
            optimizer.step()
        before = copy.deepcopy(dict(model.named_buffers()))
        images, classes = batch(5, 0)
        optimizer.zero_grad()
        loss(model(images * float("nan")), classes).backward()
        optimizer.step()
        assert optimizer.statistics.skipped
        for name, buffer in model.named_buffers():
            assert torch.equal(buffer, before[name]), name


def _count(worker: lockstep.Worker, mode: str) -> tuple[list[int], list[int], list[int]]:
    """Counts of batches before, inside and after ``consolidated()``; rank 1 has seen fewer."""
    model = build("batchnorm")
    inner = torch.optim.Adam(model.parameters())
    optimizer = ggs.GGS(inner, model, 0.1, batchnorm=mode, process_group=worker)
    for number in range(3 - worker.rank):
        model(batch(number, worker.rank)[0])
    calibration = [batch(number, worker.rank) for number in range(6 + worker.rank)]

    def counts() -> list[int]:
        return [int(b) for name, b in model.named_buffers() if name.endswith("batches_tracked")]

    before = counts()
    with optimizer.consolidated(calibration):
        inside = counts()
    return before, inside, counts()


@pytest.mark.parametrize(("mode", "expected"), [("average", 3), ("dense", 3), ("recalibrate", 7)])
def test_all_workers_count_the_same_batches_inside(mode: str, expected: int) -> None:
    for rank, (before, inside, after) in enumerate(lockstep.run(2, _count, mode)):
        assert before == after == [3 - rank] * len(before)
        assert len(before) == 2
        assert inside == [expected] * 2


@pytest.mark.parametrize("method", ["ggs", "dense"])
@pytest.mark.parametrize("wrap_first", [True, False])
def test_who_wraps_first_and_then_loads_goes_on_bit_for_bit(method: str, wrap_first: bool) -> None:
    """In the other order, wrapping replaces each worker's batch-norm layers by rank 0's."""

    def train(worker: lockstep.Worker) -> tuple[bool, bool]:
        def fresh(saved: Any = None) -> tuple[nn.Module, Any]:
            model = build("batchnorm")
            if saved is not None and not wrap_first:
                model.load_state_dict(saved["model"])
            inner = torch.optim.Adam(model.parameters(), lr=0.01)
            optimizer: Any = (
                ggs.GGS(inner, model, 0.1, warmup_steps=6, process_group=worker)
                if method == "ggs"
                else ggs.Dense(inner, model, batchnorm="average", process_group=worker)
            )
            if saved is not None:
                if wrap_first:
                    model.load_state_dict(saved["model"])
                optimizer.load_state_dict(saved["optimizer"])
            return model, optimizer

        def steps(model: nn.Module, optimizer: Any, start: int, stop: int) -> None:
            for step in range(start, stop):
                backward(model, step, worker.rank)
                optimizer.step()

        def equal(one: nn.Module, other: nn.Module) -> bool:
            pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
            return all(torch.equal(a, b) for a, b in pairs)

        model, optimizer = fresh()
        steps(model, optimizer, 0, 4)
        file = io.BytesIO()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        file.seek(0)
        resumed, resumed_optimizer = fresh(torch.load(file))
        restored = equal(model, resumed)
        steps(model, optimizer, 4, 10)
        steps(resumed, resumed_optimizer, 4, 10)
        return restored, equal(model, resumed)

    first, second = lockstep.run(2, train)
    if wrap_first:
        assert first == second == (True, True)
    else:
        assert first[0]
        assert not second[0]
        assert not second[1]
