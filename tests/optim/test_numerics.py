"""The ends of the number line: nothing overflows unseen, and what does not fit a format stays behind."""

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ggs
from ggs import wire
from ggs.dist import lockstep
from ggs.errors import NonFiniteError
from ggs.optim.gradients import all_finite
from ggs.wire import cpu_codec, torch_codec

FP32 = torch.finfo(torch.float32)
LAST, NEXT = FP32.max, 3.3961e38
"""The largest float32, and one that rounds to infinity in bfloat16."""
TINY = [1e-45, -1e-45, 1e-40, -FP32.tiny, FP32.tiny]

EXTREMES = {
    "largest": [LAST, -LAST] * 200,
    "beyond bf16": [NEXT, -NEXT, 3.4e38, -3.4e38] * 100,
    "all of it": [LAST, -LAST, NEXT, 1.0, -1.0, 0.0, -0.0, *TINY] * 40,
    "denormals": TINY * 80,
    "zeros": [0.0] * 400,
    "signed zeros": [0.0, -0.0] * 200,
    "one among zeros": [0.0] * 256 + [1.0] + [0.0] * 143,
    "one huge among zeros": [LAST] + [0.0] * 399,
    "one denormal among zeros": [1e-45] + [0.0] * 399,
    "equal": [0.1] * 400,
    "one alone": [-NEXT],
}


@pytest.mark.parametrize("name", EXTREMES)
@pytest.mark.parametrize("form", wire.VALUES_FORMATS)
@pytest.mark.parametrize("codec", [cpu_codec, torch_codec])
def test_every_format_takes_every_finite_value(
    monkeypatch: pytest.MonkeyPatch, codec: ModuleType, form: str, name: str
) -> None:
    monkeypatch.setattr(wire, "_codec", lambda device: codec)
    values = torch.tensor(EXTREMES[name], dtype=torch.float32)
    message, sent = wire.encode(torch.arange(len(values)), values, 1000, form)
    _, arrived = wire.decode(message, 1000, len(values), form)
    assert torch.equal(arrived, sent)
    assert bool(sent.isfinite().all())
    left = values - sent.float()  # as the exchanges compute it
    assert bool(left.isfinite().all())
    assert torch.equal(left.double() + sent.double(), values.double()) or form in (
        "int8", "int4", "sign"  # in float32, where magnitudes of one block differ by more than 2^24
    )  # fmt: skip
    if not values.any():
        assert not sent.any()
    assert bool((sent.double().abs() <= values.double().abs().max() * 1.01 + 1e-44).all())


@pytest.mark.parametrize("exchange", ["allgather", "split"])
@pytest.mark.parametrize("form", ["fp32", "bf16", "int8", "int4", "sign"])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_updates_near_the_end_of_float32_are_delivered_or_refused(
    exchange: Any, form: str, size: int
) -> None:
    """All workers push the same way: Σ overflows where the mean does not."""

    def train(worker: Any) -> Any:
        model = nn.Linear(20, 20, bias=False)
        nn.init.zeros_(model.weight)
        sgd = torch.optim.SGD(model.parameters(), lr=1.0)
        optimizer = ggs.GGS(sgd, model, 0.1, values=form, exchange=exchange, process_group=worker)
        model.weight.grad = torch.full_like(model.weight, -3.4e38)
        model.weight.grad[0] = 1e-40
        try:
            optimizer.step()
        except NonFiniteError as error:
            return str(error)
        return model.weight.detach().double().flatten(), optimizer.residual.double()

    results = lockstep.run(size, train)
    if isinstance(results[0], str):
        assert all("update of weight is inf" in text for text in results)
        assert size > 1
        assert exchange == "split"  # the owner of a range adds before it divides
        return
    undelivered = torch.stack([residual for _, residual in results]).mean(0)
    expected = torch.full((400,), 3.4e38, dtype=torch.float64)
    expected[:20] = -torch.tensor(1e-40).double()
    torch.testing.assert_close(results[0][0] + undelivered, expected, rtol=1e-6, atol=0.0)
    assert results[0][0].any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("density", [1.0, 0.25])
def test_half_precision_weights_end_at_their_largest_number(
    dtype: torch.dtype, density: float
) -> None:
    """What a weight cannot hold stays in the residual, and comes off again when the gradient turns."""
    largest = torch.finfo(dtype).max

    def train(worker: Any) -> list[Tensor]:
        model = nn.Linear(4, 4, bias=False).to(dtype)
        nn.init.constant_(model.weight, largest)
        optimizer = ggs.GGS(
            torch.optim.SGD(model.parameters(), lr=1.0), model, density, process_group=worker
        )
        found = []
        for sign in (-1, -1, 1, 1, 1, 1, 1, 1):
            model.weight.grad = torch.full_like(model.weight, sign * largest / 8)
            optimizer.step()
            found.append(
                (model.weight.detach().double().flatten() + optimizer.residual.double()) / largest
            )
            assert bool(model.weight.isfinite().all())
        return found

    if dtype == torch.bfloat16:  # what it cannot hold, float32 cannot either
        with pytest.raises(NonFiniteError, match=r"SGD's update of weight is inf"):
            lockstep.run(2, train)
        return
    for found in lockstep.run(2, train):
        ends = [1.125, 1.25, 1.125, 1.0, 0.875, 0.75, 0.625, 0.5]
        if density == 1.0:
            torch.testing.assert_close(
                torch.stack(found), torch.tensor(ends, dtype=torch.float64)[:, None].expand(8, 16)
            )
        assert all(bool(row.isfinite().all()) for row in found)


def test_a_residual_that_overflows_is_refused_before_it_is_sent() -> None:
    """Rank 1 adds up to infinity in its second step, and does not send it."""

    def train(worker: Any) -> None:
        model = nn.Linear(20, 20, bias=False)
        optimizer = ggs.GGS(
            torch.optim.SGD(model.parameters(), lr=1.0), model, 0.01, process_group=worker
        )
        for _ in range(3):
            model.weight.grad = torch.full_like(model.weight, 3e38 if worker.rank == 1 else 1.0)
            optimizer.step()
            assert bool(model.weight.isfinite().all())

    with pytest.raises(NonFiniteError, match=r"SGD's update of weight is -inf at step 1"):
        lockstep.run(2, train)


LARGE = 1 << 20
"""Elements from which a float32 gradient on the CPU is read by a dot product."""


@pytest.mark.parametrize("value", [LAST, math.inf, -math.inf, math.nan])
@pytest.mark.parametrize(
    "view",
    [
        lambda value: torch.full((LARGE,), value),
        lambda value: torch.full((1024, 1024), value).t(),
        lambda value: torch.full((1,), value).expand(LARGE),
        lambda value: torch.view_as_complex(torch.full((9, 2), value)).conj().imag,
    ],
    ids=["large", "transposed", "expanded", "negated"],
)
def test_gradients_of_any_layout_are_finite_or_not(
    view: Callable[[float], Tensor], value: float
) -> None:
    """Also where the layout cannot be written to in place."""
    others = [torch.empty(0), torch.ones(3, dtype=torch.float64), torch.full((2,), 6e4).half()]
    assert all_finite([*others, view(value)]) == math.isfinite(value)
