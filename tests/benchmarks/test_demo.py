"""DeMo against its public description, computed the long way."""

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ggs.errors import UnsupportedError
from ggs.wire import message_size
from tests.benchmarks.rival_training import WORKERS, flat, gradients, model, train, weights

Import = Callable[[str], ModuleType]
LR = 0.01


def _built(rival: Any, **settings: Any) -> Callable[[nn.Module, Any], Any]:
    def build(network: nn.Module, worker: Any) -> Any:
        sgd = torch.optim.SGD(network.parameters(), lr=LR)
        return rival(sgd, network, process_group=worker, **settings)

    return build


def _basis(high: int, wide: int) -> Tensor:
    """(high·wide, high, wide): every two-dimensional cosine of a chunk, of length 1."""

    def cosine(k: int, n: int, size: int) -> float:
        scale = math.sqrt((1 if k == 0 else 2) / size)
        return scale * math.cos(math.pi * k * (2 * n + 1) / (2 * size))

    return torch.tensor([[[cosine(k, a, high) * cosine(m, b, wide) for b in range(wide)]
                          for a in range(high)] for k in range(high) for m in range(wide)])  # fmt: skip


def _expected(steps: int, decay: float, share: float) -> Tensor:
    """The weights after ``steps``: chunks of 4 x 3 of the 8 x 6 matrix and of 4 of the 8 biases."""
    matrix, bias = (p.detach().clone() for p in model().parameters())
    bias = bias.view(1, 8)
    momenta = [(torch.zeros(8, 6), torch.zeros(1, 8)) for _ in range(WORKERS)]
    for step in range(steps):
        for place, (tensor, high, wide) in enumerate(((matrix, 4, 3), (bias, 1, 4))):
            basis = _basis(high, wide)
            count = max(1, round(share * len(basis)))
            for rank in range(WORKERS):
                momentum = momenta[rank][place]
                momentum.mul_(decay).add_(gradients(step, rank)[place].view_as(momentum), alpha=LR)
            for top in range(0, tensor.shape[0], high):
                for left in range(0, tensor.shape[1], wide):
                    arrived = torch.zeros(WORKERS, len(basis))
                    for rank in range(WORKERS):
                        chunk = momenta[rank][place][top : top + high, left : left + wide]
                        coefficients = (basis * chunk).sum((1, 2))
                        chosen = coefficients.abs().topk(count).indices
                        arrived[rank, chosen] = coefficients[chosen]
                        chunk -= torch.einsum("k,kab->ab", arrived[rank], basis)
                    mean = arrived.sum(0) / (arrived != 0).sum(0).clamp(min=1)
                    direction = torch.einsum("k,kab->ab", mean, basis).sign()
                    tensor[top : top + high, left : left + wide] -= LR * direction
    return flat((matrix, bias))


def test_demo_is_what_its_paper_says(benchmark: Import) -> None:
    demo = benchmark("rivals.demo").DeMo
    results = train(_built(demo, density=0.25, decay=0.9, chunk=4), 6)
    for seen, _ in results:
        torch.testing.assert_close(seen[-1], _expected(6, 0.9, 0.25), rtol=0, atol=1e-6)


def test_demo_of_everything_is_sign_sgd(benchmark: Import) -> None:
    demo = benchmark("rivals.demo").DeMo
    results = train(_built(demo, density=1.0), 3, lambda o: float(o.momentum.abs().max()))
    expected = weights(model())
    for step in range(3):
        asked = sum(flat(gradients(step, rank)) for rank in range(WORKERS))
        expected = expected - LR * asked.sign()
    for seen, left in results:
        torch.testing.assert_close(seen[-1], expected)
        assert left[-1] == 0


def test_demo_sends_one_message(benchmark: Import) -> None:
    """48 weights in 4 chunks and 8 biases in 2; a quarter of each."""
    demo = benchmark("rivals.demo").DeMo
    build = _built(demo, density=0.25, chunk=4, values="sign")
    for _, said in train(build, 2, lambda o: (o.statistics.bytes_sent, sum(o.agreement_bytes))):
        for sent, agreement in said:
            message = message_size(56, 4 * 3 + 2, "sign")
            assert sent == (WORKERS - 1) * message + 2 * (WORKERS - 1) * agreement // WORKERS


def test_demo_has_its_own_momentum(benchmark: Import) -> None:
    network = model()
    momentum = torch.optim.SGD(network.parameters(), lr=LR, momentum=0.9)
    with pytest.raises(UnsupportedError, match="give SGD without momentum"):
        benchmark("rivals.demo").DeMo(momentum, network)
