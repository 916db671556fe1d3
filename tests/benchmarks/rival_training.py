"""A small training that every rival is tested on: gradients that are known beforehand."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ggs.dist import lockstep
from ggs.optim.base import DistributedOptimizer

WORKERS = 3
Build = Callable[[nn.Module, lockstep.Worker], DistributedOptimizer]


def model() -> nn.Linear:
    """8 x 6 weights and 8 biases, always the same."""
    torch.manual_seed(0)
    return nn.Linear(6, 8)


def gradients(step: int, rank: int) -> tuple[Tensor, Tensor]:
    """What a worker's loss asks for in a step, of weights and biases."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    common = torch.Generator().manual_seed(7)
    return (
        torch.randn(8, 6, generator=common) + torch.randn(8, 6, generator=generator),
        torch.randn(8, generator=common) + torch.randn(8, generator=generator),
    )


def flat(tensors: tuple[Tensor, ...]) -> Tensor:
    """(n,) their elements, one tensor after another."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def weights(network: nn.Module) -> Tensor:
    """(n,) all parameters."""
    return flat(tuple(network.parameters()))


def train(
    build: Build, steps: int, after: Callable[[DistributedOptimizer], Any] | None = None
) -> list[tuple[list[Tensor], list[Any]]]:
    """Of each worker, the weights before the first and after each step, and what ``after`` then says.

    Without ``after`` that is the bytes sent since construction.
    """

    def work(worker: lockstep.Worker) -> tuple[list[Tensor], list[Any]]:
        network = model()
        optimizer = build(network, worker)
        constructed = optimizer.collectives.bytes_sent
        seen, said = [weights(network)], []
        for step in range(steps):
            for parameter, gradient in zip(
                network.parameters(), gradients(step, worker.rank), strict=True
            ):
                parameter.grad = gradient
            optimizer.step()
            seen.append(weights(network))
            sent = optimizer.collectives.bytes_sent - constructed
            said.append(after(optimizer) if after else sent)
        return seen, said

    return lockstep.run(WORKERS, work)
