"""GGS: general gradient sparsification around any torch optimizer.

One step of one worker (after *General Gradient Sparsification*, whose abstract fixes gradient
correction and BN-LG; everything it leaves open is our choice and said so in docs/how-it-works.md):

1. the local gradient, never averaged, goes through the worker's own optimizer;
2. the optimizer's *update*, not the gradient, is added to the worker's residual, so that old and new
   gradients never mix inside the optimizer's moments (gradient correction);
3. the largest elements of the residual are selected, sent to all workers, and leave the residual;
4. every worker adds the mean of what all sent to its weights.
"""

import logging
from collections.abc import Iterable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from ggs.dist.process_group import Group
from ggs.errors import CheckpointError
from ggs.exchange.base import Update
from ggs.exchange.create import ExchangeName
from ggs.optim.base import HasGradient
from ggs.optim.batchnorm import BatchNormMode
from ggs.optim.capture import UpdateCapture, weight_decay_applied, weight_decay_kind
from ggs.optim.digest import DECAYS, StepDigest
from ggs.optim.error_feedback import Scope
from ggs.optim.momentum import following, momentum_following, momentum_of
from ggs.optim.rounds import RoundOptimizer
from ggs.optim.schedule import DensitySchedule


class GGS(RoundOptimizer):
    """A torch optimizer that exchanges only the largest part of its accumulated updates.

    >>> optimizer = ggs.GGS(torch.optim.Adam(model.parameters()), model, density=0.001)

    All workers of the process group construct it together, take rank 0's parameters, and then call
    ``step()`` equally often. Without an initialised process group it works in one process alone
    (and is refused where WORLD_SIZE says that a launcher started several).

    The weights become views of one flat buffer: move or convert the model before, not after. Each
    worker's residual (one float32 number per shared parameter) is part of ``state_dict()``, which
    therefore differs per rank. ``weight_decay`` of torch's optimizers is applied as torch defines it,
    from the true weights.

    Args:
        optimizer: any ``torch.optim`` optimizer instance over parameters of ``model``.
        model: the plain module, on its final device and dtype.
        density: share of the elements that a worker sends, in (0, 1], or a function from the step
            (0, 1, …) to that share; None for 0.001, or for what ``budget`` allows.
        budget: instead of a density, what a worker may send per step: a number of bytes, "2 kB",
            "0.1 bits" (per parameter) or "0.4 %" (of what dense training sends). Density, and ``values``
            where it is None, are chosen for it, for the number of workers that there is.
        momentum_follows_density: let momentum shrink with the density, which delays updates as momentum
            does; ``docs/theory.md`` says why and how. For torch's own Adam, AdamW, Adamax, NAdam, RAdam,
            SGD, RMSprop and Muon, and without local steps; other optimizers keep theirs. False is the
            paper's algorithm.
        warmup_steps: steps over which the density falls exponentially from 1; only with a number as
            ``density``.
        every: steps from one exchange to the next. Above 1 the optimizer moves each worker's own weights in
            between (local steps), and the sum of these updates is exchanged as one; replicas are equal at
            the exchanges. See ``exchange_now``.
        scope: ``"global"`` selects the largest elements of the whole model, ``"tensor"`` the same share
            of every tensor.
        values: how a selected value travels: "fp32", "bf16", "int8", "int4", "sign", or "fp64" for
            float64 parameters; None for "fp32", or for what suits ``budget``. The rounding error stays in
            the residual.
        batchnorm: how batch-norm layers are kept, see ``ggs.optim.batchnorm``.
        exchange: how the selections reach the other workers, see ``ggs.exchange``: "allgather", "split",
            or "auto" for the cheaper of the two. "hierarchical" averages the gradients of a node's
            workers before their optimizers see them, so that a node trains as one worker.
        workers_per_node: for "hierarchical", and for what "auto" reckons with; None for LOCAL_WORLD_SIZE,
            where the group has equally many processes of each node. Ranks are numbered node by node.
        dense_below: parameters with fewer elements are exchanged whole in every step; 0 for none.
        max_consecutive_skips: so many skipped steps in a row raise NonFiniteError.
        process_group: a ``torch.distributed`` group; None for the default one.

    Raises:
        UnsupportedError: an optimizer, wrapper or parameter that cannot work; names the way out.
        ConfigurationError: a setting out of range.
        MismatchError: the workers differ in model, optimizer or settings; on every rank.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        model: nn.Module,
        density: float | DensitySchedule | None = None,
        *,
        budget: str | float | None = None,
        momentum_follows_density: bool = False,
        warmup_steps: int = 0,
        every: int = 1,
        scope: Scope = "global",
        values: str | None = None,
        exchange: ExchangeName = "auto",
        workers_per_node: int | None = None,
        batchnorm: BatchNormMode = "average",
        dense_below: int = 0,
        max_consecutive_skips: int = 100,
        process_group: Group | None = None,
    ) -> None:
        self.momentum_follows_density = momentum_follows_density
        super().__init__(
            optimizer,
            model,
            density,
            budget=budget,
            warmup_steps=warmup_steps,
            every=every,
            scope=scope,
            values=values,
            exchange=exchange,
            workers_per_node=workers_per_node,
            batchnorm=batchnorm,
            dense_below=dense_below,
            max_consecutive_skips=max_consecutive_skips,
            process_group=process_group,
        )
        for text in (self._budget_in_words(budget), self._momentum_in_words()):
            if text and self.collectives.rank == 0:
                logging.getLogger("ggs").info("%s", text)

    def _budget_in_words(self, budget: str | float | None) -> str:
        """What a budget became, for a person; nothing without one."""
        if budget is None or self.settled_density is None:
            return ""
        return (
            f"a budget of {budget} per step pays for density {self.settled_density:.4g} with values "
            f"{self.values}"
        )

    def _momentum_in_words(self) -> str:
        """What becomes of the momentum, for a person; nothing where there is none or it stays."""
        if not self._momentum_follows or self.settled_density == 1.0:
            return ""
        pairs = dict.fromkeys(self.momentum_at(None))
        if pairs:
            shown = ", ".join(
                f"{set_to:g}" + ("" if self.settled_density is None else f" becomes {taken:.3g}")
                for set_to, taken in pairs
            )
            at = "" if self.settled_density is None else f" {self.settled_density:.4g}"
            return f"momentum follows the density{at}: {shown}; momentum_follows_density=False leaves it"
        if any("betas" in group or group.get("momentum") for group in self.param_groups):
            return (
                f"momentum stays as it is: {type(self.inner).__name__} is none of torch's own optimizers, "
                "whose momentum follows the density; a smaller one may suit it better"
            )
        return ""

    def _description(self, settings: dict[str, Any]) -> dict[str, Any]:
        ours = {"momentum_follows_density": self.momentum_follows_density}
        return super()._description({**settings, **ours})

    def momentum_at(self, step: int | None) -> list[tuple[float, float]]:
        """Of each parameter group with a momentum: what it is set to, and what is taken in step ``step``
        (0, 1, …), None for those after the density warm-up.
        """
        density = 1.0
        if self._momentum_follows:
            density = (self.settled_density or 1.0) if step is None else self.density_at(step)
        set_to = [m for g in self.param_groups if (m := momentum_of(self.inner, g)) is not None]
        return [(float(momentum), float(following(momentum, density))) for momentum in set_to]

    @property
    def _momentum_follows(self) -> bool:
        """Local steps move the weights at once: there the residual adds no delay to the momentum's."""
        return self.momentum_follows_density and self.every == 1

    def _worker_state(self) -> dict[str, Any]:
        return {
            **super()._worker_state(),
            "momentum_follows_density": self.momentum_follows_density,
        }

    def _check_worker_state(self, state: Any) -> None:
        super()._check_worker_state(state)
        then = state.get("momentum_follows_density", False)  # which nothing did in older versions
        if then != self.momentum_follows_density:
            raise CheckpointError(
                f"the state is of momentum_follows_density={then}, and here it is "
                f"{self.momentum_follows_density}: wrap with what it was, or leave out what is under 'ggs' "
                "to start afresh"
            )

    @cached_property
    def _update_capture(self) -> UpdateCapture:
        return UpdateCapture(self.inner, self._flat, self.residual)

    def _digest(self) -> StepDigest:
        """What shrinks the shared weights on every worker alike; all else of a group is local."""
        shrinking = tuple(
            float(group["lr"]) * float(group.get("weight_decay", 0.0))
            for group in self.param_groups
            if weight_decay_kind(self.inner, group) == "decoupled"
        )
        return StepDigest(shrinking, DECAYS, super()._digest().density)

    def _capture(self, has_gradient: HasGradient) -> None:
        self._flat.check_in_place()
        density = self.density_at(self.statistics.step) if self._momentum_follows else 1.0
        with (
            weight_decay_applied(self.inner, self.param_groups, has_gradient),
            momentum_following(self.inner, self.param_groups, density),
        ):
            self._update_capture.step()
        self._check_locals()
        self._check_dense()

    def _apply(
        self, dense_sum: Tensor | None, updates: Iterable[Update], has_gradient: HasGradient
    ) -> None:
        """weights += the mean over the workers of what was sent."""
        if dense_sum is not None:
            whole = [(None, dense_sum)]
            self._flat.add_(whole, 0, 1.0 / self.collectives.size, self.residual)
        scale = 1.0 / self._exchange.sources
        self._flat.add_(updates, self._flat.dense_numel, scale, self.residual)
