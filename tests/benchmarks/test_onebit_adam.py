"""1-bit Adam against its public description."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ggs
from ggs.errors import UnsupportedError
from tests.benchmarks.rival_training import WORKERS, flat, gradients, model, train, weights

Import = Callable[[str], ModuleType]
WARMUP, NUMEL, PART = 3, 56, 24
"""The 56 elements become 72, 24 for each of three owners: whole bytes of signs."""


def _adamw(network: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(network.parameters(), lr=0.01, betas=(0.9, 0.99), weight_decay=0.1)


def _built(benchmark: Import) -> Callable[[nn.Module, Any], Any]:
    rival = benchmark("rivals.onebit_adam").OneBitAdam

    def build(network: nn.Module, worker: Any) -> Any:
        return rival(_adamw(network), network, warmup_steps=WARMUP, process_group=worker)

    return build


def _compressed(values: Tensor) -> Tensor:
    return values.square().mean().sqrt() * torch.where(values >= 0, 1.0, -1.0)


def test_the_warm_up_is_dense_adam(benchmark: Import) -> None:
    def dense(network: nn.Module, worker: Any) -> Any:
        return ggs.Dense(_adamw(network), network, process_group=worker)

    for ours, theirs in zip(train(_built(benchmark), WARMUP), train(dense, WARMUP), strict=True):
        assert torch.equal(ours[0][-1], theirs[0][-1])


def test_after_the_warm_up_it_is_what_its_paper_says(benchmark: Import) -> None:
    results = train(_built(benchmark), 8)
    momentum, variance, expected = torch.zeros(NUMEL), torch.zeros(NUMEL), weights(model())
    worker_errors = [torch.zeros(WORKERS * PART) for _ in range(WORKERS)]
    owner_errors = [torch.zeros(PART) for _ in range(WORKERS)]
    for step in range(8):
        asked = [flat(gradients(step, rank)) for rank in range(WORKERS)]
        expected = expected * (1 - 0.01 * 0.1)
        if step < WARMUP:
            mean = torch.stack(asked).mean(0)
            momentum = 0.9 * momentum + 0.1 * mean
            variance = 0.99 * variance + 0.01 * mean.square()
            corrected = momentum / (1 - 0.9 ** (step + 1))
            root = (variance / (1 - 0.99 ** (step + 1))).sqrt() + 1e-8
            expected = expected - 0.01 * corrected / root
        else:
            arrived = []
            for rank in range(WORKERS):
                own = torch.zeros(WORKERS * PART)
                own[:NUMEL] = 0.9 * momentum + 0.1 * asked[rank]
                own += worker_errors[rank]
                arrived.append(_compressed(own))
                worker_errors[rank] = own - arrived[-1]
            parts = []
            for owner, mean in enumerate(torch.stack(arrived).mean(0).split(PART)):
                mean = mean + owner_errors[owner]
                parts.append(_compressed(mean))
                owner_errors[owner] = mean - parts[-1]
            momentum = torch.cat(parts)[:NUMEL]
            expected = expected - 0.01 * momentum / root
        for seen, _ in results:
            torch.testing.assert_close(seen[step + 1], expected, rtol=1e-4, atol=1e-5)


def test_signs_and_two_scales_travel(benchmark: Import) -> None:
    def said(optimizer: Any) -> tuple[int, int]:
        return optimizer.statistics.bytes_sent, sum(optimizer.agreement_bytes)

    for _, sent in train(_built(benchmark), WARMUP + 1, said):
        agreement = 2 * (WORKERS - 1) * sent[0][1] // WORKERS
        assert sent[WARMUP - 1][0] == 2 * (WORKERS - 1) * 4 * NUMEL // WORKERS + agreement
        assert sent[WARMUP][0] == 2 * (WORKERS - 1) * (PART // 8 + 4) + agreement


def test_it_needs_adam(benchmark: Import) -> None:
    network = model()
    with pytest.raises(UnsupportedError, match="cannot use SGD: give Adam or AdamW"):
        benchmark("rivals.onebit_adam").OneBitAdam(
            torch.optim.SGD(network.parameters(), lr=0.1), network
        )
