"""1-bit Adam: Adam with whole gradients first, then with a momentum that travels as signs."""

import numpy as np
import torch
from torch import Tensor, nn

from ggs.checks import check_whole
from ggs.dist.lockstep import Worker
from ggs.errors import UnsupportedError
from ggs.optim.base import DistributedOptimizer, HasGradient
from ggs.optim.gradients import average_gradients


class OneBitAdam(DistributedOptimizer):
    """Adam whose second moments are frozen after a warm-up, and whose momentum is then compressed.

    After ``warmup_steps`` of Adam on averaged gradients, with its second moments v, one step is

        m_i = beta1·m + (1 - beta1)·g_i                                 (each worker's own gradient)
        m = compressed mean of the workers' compressed m_i;   w = w - lr·m / (sqrt(v) + eps)

    H. Tang et al., "1-bit Adam", ICML 2021. To compress is to keep signs and one scale, the root of the
    mean square; the error is added to what is compressed next, by each worker to its m_i and by each
    owner of an Nth of m to its mean. v has the bias correction of the last warm-up step, m none.

    Args:
        optimizer: ``torch.optim.Adam`` or AdamW; weight decay must be decoupled.
        model, process_group: as in ``ggs.GGS``.
        warmup_steps: at least 1.

    Raises UnsupportedError for another optimizer.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        model: nn.Module,
        *,
        warmup_steps: int = 100,
        process_group: Worker | None = None,
    ) -> None:
        if not isinstance(optimizer, torch.optim.Adam):
            raise UnsupportedError(
                f"1-bit Adam cannot use {type(optimizer).__name__}: give Adam or AdamW"
            )
        check_whole("warmup_steps", warmup_steps, least=1)
        super().__init__(
            optimizer, model, {"warmup_steps": warmup_steps}, "dense", 100, process_group
        )
        self._warmup_steps = warmup_steps
        size, numel = self.collectives.size, self.statistics.numel
        self._part = -(-numel // (8 * size)) * 8
        """Elements of m that one worker owns; whole bytes of signs."""
        self.worker_error = torch.zeros(size * self._part)
        self.owner_error = torch.zeros(self._part)

    @torch.no_grad()
    def _take_step(self, has_gradient: HasGradient, density: float | None) -> int:
        if self.statistics.step < self._warmup_steps:
            average_gradients([p for p, has in has_gradient.items() if has], self.collectives)
            self.inner.step()
        else:
            self._compressed_step()
        return self.statistics.numel

    def _compressed_step(self) -> None:
        trained = [(p, group) for group in self.param_groups for p in group["params"]
                   if "exp_avg" in self.state[p]]  # fmt: skip
        momenta = [self.state[p]["exp_avg"] for p, _ in trained]
        for (p, group), momentum in zip(trained, momenta, strict=True):
            momentum.mul_(group["betas"][0])
            if p.grad is not None:
                momentum.add_(p.grad, alpha=1 - group["betas"][0])
        flat = torch.zeros_like(self.worker_error)
        numel = sum(m.numel() for m in momenta)
        flat[:numel] = torch.cat([m.view(-1) for m in momenta])
        common = self._compressed_mean(flat)[:numel].split([m.numel() for m in momenta])
        for (p, group), momentum, mean in zip(trained, momenta, common, strict=True):
            momentum.copy_(mean.view_as(momentum))
            variance = self.state[p]["exp_avg_sq"] / (1 - group["betas"][1] ** self._warmup_steps)
            p.mul_(1 - group["lr"] * group["weight_decay"])
            p.addcdiv_(momentum, variance.sqrt_().add_(group["eps"]), value=-group["lr"])

    def _compressed_mean(self, values: Tensor) -> Tensor:
        """The mean over the workers of (N·part,) ``values``, with both errors fed back; a collective."""
        size = self.collectives.size
        values = values + self.worker_error
        scale, bits = _signs(values)
        self.worker_error = values - _values(scale, bits)
        rows = torch.cat([scale.expand(size, 4), bits.view(size, -1)], 1)
        lengths = [rows.shape[1]] * size
        arrived = self.collectives.all_to_all(rows.view(-1), lengths, lengths).view(size, -1)
        mean = torch.stack([_values(row[:4], row[4:]) for row in arrived]).mean(0)
        mean += self.owner_error
        scale, bits = _signs(mean)
        self.owner_error = mean - _values(scale, bits)
        gathered = self.collectives.all_gather(torch.cat([scale, bits]))
        return torch.cat([_values(row[:4], row[4:]) for row in gathered])


def _signs(values: Tensor) -> tuple[Tensor, Tensor]:
    """The root of the mean square as 4 bytes, and (n / 8,) bytes of signs of (n,) ``values``."""
    scale = values.square().mean().sqrt().view(1).view(torch.uint8)
    return scale, torch.from_numpy(np.packbits(values.numpy() >= 0))


def _values(scale: Tensor, bits: Tensor) -> Tensor:
    signs = torch.from_numpy(np.unpackbits(bits.numpy())).float()
    return signs.mul_(2).sub_(1).mul_(scale.clone().view(torch.float32))
