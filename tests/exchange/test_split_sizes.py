"""A message may be shorter than one of fewer elements or of a smaller range: every owner's must fit."""

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn

import ggs
from ggs.dist import lockstep
from ggs.exchange import split
from ggs.exchange.split import Ranges
from ggs.train import models
from ggs.wire import VALUES_FORMATS, message_size


def test_a_larger_range_may_have_a_shorter_message() -> None:
    """What the sizes below must not rely on."""
    assert message_size(184, 11, "fp32") > message_size(185, 11, "fp32")


def trained(worker: lockstep.Worker, model: nn.Module, shape: tuple[int, ...], values: str) -> int:
    optimizer = ggs.GGS(
        torch.optim.Adam(model.parameters()),
        model,
        density=0.03 if values == "fp32" else 0.01,
        exchange="split",
        values=values,
        process_group=worker,
    )
    torch.manual_seed(worker.rank)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, *shape)).square().sum().backward()
        optimizer.step()
    return optimizer.statistics.step


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(10, 80)


def lenet5() -> nn.Module:
    torch.manual_seed(0)
    return models.build("lenet5", 10, 1, 28, {})


def test_small_ranges_are_exchanged() -> None:
    steps = lockstep.run(4, lambda worker: trained(worker, linear(), (10,), "fp32"))
    assert steps == [3] * 4


def test_sixteen_workers_exchange_signs() -> None:
    steps = lockstep.run(16, lambda worker: trained(worker, lenet5(), (1, 28, 28), "sign"))
    assert steps == [3] * 16


@st.composite
def segments_alike(draw: st.DrawFn) -> list[tuple[int, int]]:
    """(numel, count) of ranges that differ by a few elements, as those of the workers do."""
    numel = draw(st.integers(1, 400))
    count = draw(st.integers(0, numel))
    near = st.tuples(st.integers(0, 8), st.sampled_from([0, 0, 0, -1, 1]))
    others = draw(st.lists(near, min_size=1, max_size=11))
    return [
        (numel, count),
        *((numel + more, min(numel + more, max(0, count + change))) for more, change in others),
    ]


@pytest.mark.parametrize("values_format", VALUES_FORMATS)
@given(segments=segments_alike())
@example(segments=[(184, 11), (185, 11)])
def test_every_owners_message_fits(values_format: str, segments: list[tuple[int, int]]) -> None:
    bounds = [0]
    for numel, _ in segments:
        bounds.append(bounds[-1] + numel)
    counts = [(count,) for _, count in segments]
    offsets = tuple((0, numel) for numel, _ in segments)
    ranges = Ranges(tuple(bounds), offsets, tuple(counts), tuple(counts))
    sizes = [message_size(numel, count, values_format) for numel, count in segments]
    assert split.second_size(ranges, values_format) == max(sizes)
    assert split.largest_first_bytes(ranges, values_format) == sum(sizes) - min(sizes)
