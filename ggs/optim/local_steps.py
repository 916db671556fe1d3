"""Local steps: the optimizer moves this worker's own weights, and adds up what is to be exchanged later.

Between two exchanges the weights of worker i are

    D·w + s_i

where w is the shared point, which the last exchange left the same on all workers, s_i the sum of the
worker's updates since, and D what the decoupled weight decay of these steps has left of w. (Local SGD,
Stich, ICLR 2019; with sparse exchanges as in SparseLoCo, Sarfi et al., 2025.) At the exchange the weights
go back to the shared point, s_i goes into the residual, and from there on all is as without local steps.

s_i is kept beside the weights, not read off them: small updates add up in it at full precision, over
half-precision weights too, and what optimizers read of the weights does not matter. Decay shrinks s_i as
it shrinks the weights. The shared point must shrink alike on all workers, who do not know of each other's
gradients before the exchange: there it shrinks, by all of the steps, where any worker had a gradient.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ggs.errors import CheckpointError, UnsupportedError
from ggs.optim.capture import UpdateCapture, weight_decay_applied, weight_decay_kind
from ggs.optim.flat import FlatParameters
from ggs.optim.state_checks import check_tensors


@dataclass(frozen=True)
class LocalStep:
    """What the exchange has to know of a local step.

    Attributes:
        skipped: whether this worker left it out, for a NaN or an infinite gradient.
        decays: of each parameter group, the share by which decoupled decay shrinks the weights.
        gradients: of each shared parameter, whether this worker had a gradient.
    """

    skipped: bool
    decays: tuple[float, ...]
    gradients: tuple[bool, ...]


class LocalSteps:
    """One worker's steps since the last exchange.

    Args:
        optimizer: the inner optimizer.
        shared: (name, parameter) of all parameters that are exchanged.
        flat: the same, flattened.
        every: steps from one exchange to the next.

    Attributes:
        steps: those since the last exchange.
        sum: (n,) of their updates, in ``flat``'s index space and the residual's dtype.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        shared: Sequence[tuple[str, nn.Parameter]],
        flat: FlatParameters,
        every: int,
    ) -> None:
        self._optimizer, self._every = optimizer, every
        self._names = [name for name, _ in shared]
        self._parameters = [parameter for _, parameter in shared]
        self.steps: list[LocalStep] = []
        device = flat.chunks[0].weights.device if flat.chunks else torch.device("cpu")
        self.sum = torch.zeros(flat.numel, dtype=flat.dtype, device=device)
        points = [torch.zeros_like(chunk.weights) for chunk in flat.chunks]
        self._chunks = [
            (chunk.weights, point) for chunk, point in zip(flat.chunks, points, strict=True)
        ]
        self._capture = UpdateCapture(optimizer, flat, self.sum)
        slots = {slot.name: (slot, chunk, point) for chunk, point in zip(flat.chunks, points, strict=True)
                 for slot in chunk.slots}  # fmt: skip
        order = [slots[name] for name in self._names]
        self._weights = [slot.view(chunk.weights, chunk.start) for slot, chunk, _ in order]
        self._points = [slot.view(point, chunk.start) for slot, chunk, point in order]
        self._sums = [slot.view(self.sum) for slot, _, _ in order]
        self._versions: list[int] = []

    @property
    def nbytes(self) -> int:
        """Memory that local steps take."""
        return self.sum.nbytes + sum(point.nbytes for _, point in self._chunks)

    def point(self) -> dict[str, Tensor]:
        """The shared point, by parameter; the weights themselves where no step has left it."""
        return dict(zip(self._names, self._points if self.steps else self._weights, strict=True))

    def decays(self) -> tuple[float, ...]:
        """Of each parameter group, the share by which decoupled decay shrinks the weights in this step."""
        return tuple(
            float(group["lr"]) * float(group.get("weight_decay", 0.0))
            if weight_decay_kind(self._optimizer, group) == "decoupled"
            else 0.0
            for group in self._optimizer.param_groups
        )

    @torch.no_grad()
    def step(self) -> None:
        """Let the optimizer move this worker's weights."""
        self._begin()
        gradients = tuple(parameter.grad is not None for parameter in self._parameters)
        step = LocalStep(False, self.decays(), gradients)
        self.steps.append(step)
        self._shrink(self._sums, [step])
        groups = self._optimizer.param_groups
        with weight_decay_applied(self._optimizer, groups, {}):
            self._capture.step()
        self.place()

    def skip(self) -> None:
        """Leave this step out: the others have taken theirs."""
        self._begin()
        gradients = tuple(parameter.grad is not None for parameter in self._parameters)
        self.steps.append(LocalStep(True, self.decays(), gradients))

    @torch.no_grad()
    def _begin(self) -> None:
        if not self.steps:
            for weights, point in self._chunks:
                point.copy_(weights)
        elif self._versions != [parameter._version for parameter in self._parameters]:
            raise UnsupportedError(
                "the weights were written to between two local steps, which would undo it: write them "
                "after optimizer.exchange_now(), alike on every worker, or in every=1"
            )

    @torch.no_grad()
    def place(self) -> None:
        """Have the weights where the local steps have led."""
        taken = [step for step in self.steps if not step.skipped]
        for factor, members in self._by_factor(taken).items():
            weights = [self._weights[i] for i in members]
            torch._foreach_copy_(weights, [self._sums[i] for i in members])
            torch._foreach_add_(weights, [self._points[i] for i in members], alpha=factor)
        self._versions = [parameter._version for parameter in self._parameters]

    @torch.no_grad()
    def back_to_point(self) -> None:
        """Have the weights at the shared point, until ``place``."""
        for weights, point in self._chunks:
            weights.copy_(point)

    @torch.no_grad()
    def hand_over(self, residual: Tensor, has_gradient: Sequence[bool]) -> None:
        """End the phase: the weights back to the shared point and decayed, the sum into the residual.

        Args:
            has_gradient: of each shared parameter, whether any worker had a gradient in any of the steps.
        """
        self.back_to_point()
        everywhere = [LocalStep(False, step.decays, tuple(has_gradient)) for step in self.steps]
        self._shrink(self._weights, everywhere)
        residual += self.sum
        self.forget()

    def forget(self) -> None:
        """Be at the shared point, which is where the weights are."""
        self.sum.zero_()
        self.steps = []

    def _shrink(self, tensors: list[Tensor], steps: Sequence[LocalStep]) -> None:
        for factor, members in self._by_factor(steps).items():
            if factor != 1.0:
                torch._foreach_mul_([tensors[i] for i in members], factor)

    def _by_factor(self, steps: Sequence[LocalStep]) -> dict[float, list[int]]:
        """What the steps' decay leaves of a weight, to the shared parameters of which it leaves that."""
        groups = enumerate(self._optimizer.param_groups)
        group_of = {p: number for number, group in groups for p in group["params"]}
        alike: dict[float, list[int]] = {}
        for i, parameter in enumerate(self._parameters):
            factor = 1.0
            for step in steps:
                if step.gradients[i]:
                    factor *= 1.0 - step.decays[group_of[parameter]]
            alike.setdefault(factor, []).append(i)
        return alike

    def state(self) -> dict[str, Any] | None:
        """What ``load`` takes back; None at the shared point, where there is nothing to keep."""
        if not self.steps:
            return None
        return {
            "steps": [
                {"skipped": s.skipped, "decays": list(s.decays), "gradients": list(s.gradients)}
                for s in self.steps
            ],
            "sum": dict(zip(self._names, self._sums, strict=True)),
            "point": self.point(),
        }

    def check(self, state: Any) -> None:
        """Raise CheckpointError unless ``load`` can take ``state``; None is one too."""
        if state is None:
            return
        steps = state.get("steps") if isinstance(state, dict) else None
        if not isinstance(steps, list) or not steps or not all(map(self._is_step, steps)):
            raise CheckpointError(
                "the state under 'ggs' has no local steps of this model and optimizer: load what "
                "state_dict() gave"
            )
        if len(steps) >= self._every:
            raise CheckpointError(
                f"the state is of {len(steps)} steps since the last exchange, here every is {self._every}: "
                "wrap with the every of then, or save after exchange_now()"
            )
        shapes = {n: tuple(p.shape) for n, p in zip(self._names, self._parameters, strict=True)}
        check_tensors("sum of local steps", state.get("sum"), shapes)
        if "point" in state:
            check_tensors("shared point", state["point"], shapes)

    def _is_step(self, step: Any) -> bool:
        if not isinstance(step, dict):
            return False
        decays, gradients = step.get("decays"), step.get("gradients")
        return (
            isinstance(step.get("skipped"), bool)
            and isinstance(decays, list)
            and len(decays) == len(self._optimizer.param_groups)
            and all(isinstance(decay, float) for decay in decays)
            and isinstance(gradients, list)
            and len(gradients) == len(self._names)
            and all(isinstance(has, bool) for has in gradients)
        )

    @torch.no_grad()
    def load(self, state: dict[str, Any] | None) -> None:
        """Take back a checked ``state``. Without a point in it, the weights are at it now."""
        self.forget()
        if state is None:
            return
        self._begin()
        for name, point, total in zip(self._names, self._points, self._sums, strict=True):
            if "point" in state:
                point.copy_(state["point"][name])
            total.copy_(state["sum"][name])
        self.steps = [
            LocalStep(s["skipped"], tuple(s["decays"]), tuple(s["gradients"]))
            for s in state["steps"]
        ]
        self.place()
