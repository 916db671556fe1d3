"""Periodic averaging, DiLoCo and SparseLoCo against their public descriptions."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ggs
from ggs.optim.digest import agreement_bytes
from ggs.wire import message_size
from tests.benchmarks.rival_training import WORKERS, flat, gradients, model, train, weights

Import = Callable[[str], ModuleType]
NUMEL = 56


def _local_drift(steps: range, rank: int) -> Tensor:
    """What plain SGD with a learning rate of 0.1 takes off the weights; it does not depend on them."""
    return 0.1 * sum(flat(gradients(step, rank)) for step in steps)


def _built(rival: Any, **settings: Any) -> Callable[[nn.Module, Any], Any]:
    def build(network: nn.Module, worker: Any) -> Any:
        sgd = torch.optim.SGD(network.parameters(), lr=0.1)
        return rival(sgd, network, process_group=worker, **settings)

    return build


def test_averaging_after_every_step_is_dense_training(benchmark: Import) -> None:
    averaging = benchmark("rivals.averaging").PeriodicAveraging
    for ours, theirs in zip(train(_built(averaging), 4), train(_built(ggs.Dense), 4), strict=True):
        torch.testing.assert_close(ours[0][-1], theirs[0][-1])


def test_between_exchanges_workers_train_alone_and_send_nothing(benchmark: Import) -> None:
    averaging = benchmark("rivals.averaging").PeriodicAveraging
    results = train(_built(averaging, every=3), 6)
    for rank, (seen, sent) in enumerate(results):
        torch.testing.assert_close(seen[2], seen[0] - _local_drift(range(2), rank))
        assert torch.equal(seen[3], results[0][0][3])
        assert torch.equal(seen[6], results[0][0][6])
        assert sent[:2] == [0, 0]
        assert sent[2] == sent[4] > 2 * (WORKERS - 1) * 4 * NUMEL // WORKERS
        assert sent[5] == 2 * sent[2]


def test_diloco_is_nesterov_sgd_on_the_mean_drift(benchmark: Import) -> None:
    averaging = benchmark("rivals.averaging").PeriodicAveraging
    every, lr, momentum = 2, 0.7, 0.9
    results = train(_built(averaging, every=every, outer_lr=lr, outer_momentum=momentum), 8)
    expected = nn.Parameter(weights(model()))
    outer = torch.optim.SGD([expected], lr=lr, momentum=momentum, nesterov=True)
    for start in range(0, 8, every):
        drifts = [_local_drift(range(start, start + every), rank) for rank in range(WORKERS)]
        expected.grad = torch.stack(drifts).mean(0)
        outer.step()
        for seen, _ in results:
            torch.testing.assert_close(seen[start + every], expected.detach())


def test_sparseloco_at_density_1_is_averaging(benchmark: Import) -> None:
    sparseloco = benchmark("rivals.sparseloco").SparseLoCo
    averaging = benchmark("rivals.averaging").PeriodicAveraging
    whole = _built(sparseloco, every=2, density=1.0, values="fp32")
    for ours, theirs in zip(train(whole, 6), train(_built(averaging, every=2), 6), strict=True):
        torch.testing.assert_close(ours[0][-1], theirs[0][-1])


def test_sparseloco_is_what_its_paper_says(benchmark: Import) -> None:
    """Chunks of 20, of which the last has 16; 25 % of each travels."""
    sparseloco = benchmark("rivals.sparseloco").SparseLoCo
    every, decay, outer_lr = 2, 0.95, 0.8
    results = train(
        _built(sparseloco, every=every, density=0.25, values="fp32", decay=decay,
               outer_lr=outer_lr, chunk=20), 10)  # fmt: skip
    common, errors = weights(model()), [torch.zeros(NUMEL) for _ in range(WORKERS)]
    for start in range(0, 10, every):
        total = torch.zeros(NUMEL)
        for rank, error in enumerate(errors):
            error.mul_(decay).add_(_local_drift(range(start, start + every), rank))
            for chunk in error.split(20):
                chosen = chunk.abs().topk(round(len(chunk) / 4)).indices
                offset = chunk.storage_offset()
                total[chosen + offset] += chunk[chosen]
                chunk[chosen] = 0
        common = common - outer_lr * total / WORKERS
        for seen, _ in results:
            torch.testing.assert_close(seen[start + every], common)


@pytest.mark.parametrize("values", ["sign", "int4", "fp32"])
def test_sparseloco_keeps_what_it_does_not_send(benchmark: Import, values: str) -> None:
    """Without decay, what the weights have got and what is left are what all workers asked for."""
    sparseloco = benchmark("rivals.sparseloco").SparseLoCo
    build = _built(sparseloco, every=2, density=0.1, values=values, decay=1.0)
    results = train(build, 8, lambda optimizer: optimizer.residual.clone())
    left = sum(result[1][-1] for result in results)
    asked = sum(_local_drift(range(8), rank) for rank in range(WORKERS))
    got = WORKERS * (results[0][0][0] - results[0][0][-1])
    torch.testing.assert_close(got + left, asked, rtol=1e-4, atol=1e-5)


def test_sparseloco_sends_one_message_in_every_exchange(benchmark: Import) -> None:
    sparseloco = benchmark("rivals.sparseloco").SparseLoCo
    build = _built(sparseloco, every=4, density=0.1, values="sign")
    for _, sent in train(build, 8):
        agreement = 2 * (WORKERS - 1) * agreement_bytes(2) // WORKERS
        message = message_size(NUMEL, round(0.1 * NUMEL), "sign")
        assert sent[:3] == [0, 0, 0]
        assert sent[3] == sent[6] == (WORKERS - 1) * message + agreement
        assert sent[7] == 2 * sent[3]
