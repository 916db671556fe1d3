"""GGS: general gradient sparsification around any torch optimizer.

One step of one worker (after *General Gradient Sparsification*, whose abstract fixes gradient
correction and BN-LG; everything it leaves open is our choice and said so in docs/how-it-works.md):

1. the local gradient, never averaged, goes through the worker's own optimizer;
2. the optimizer's *update*, not the gradient, is added to the worker's residual, so that old and new
   gradients never mix inside the optimizer's moments (gradient correction);
3. the largest elements of the residual are selected, sent to all workers, and leave the residual;
4. every worker adds the mean of what all sent to its weights.
"""

from collections.abc import Iterable
from functools import cached_property

from torch import Tensor

from ggs.exchange.base import Update
from ggs.optim.base import HasGradient
from ggs.optim.capture import UpdateCapture, weight_decay_applied, weight_decay_kind
from ggs.optim.digest import DECAYS, StepDigest
from ggs.optim.rounds import RoundOptimizer


class GGS(RoundOptimizer):
    """A torch optimizer that exchanges only the largest part of its accumulated updates.

    >>> optimizer = ggs.GGS(torch.optim.Adam(model.parameters()), model, density=0.001)

    All workers of the process group construct it together, take rank 0's parameters, and then call
    ``step()`` equally often. Without an initialised process group it works in one process alone
    (and is refused where WORLD_SIZE says that a launcher started several).

    The weights become views of one flat buffer: move or convert the model before, not after. Each
    worker's residual (one float32 number per shared parameter) is part of ``state_dict()``, which
    therefore differs per rank. ``weight_decay`` of torch's optimizers is applied as torch defines it,
    from the true weights; coupled decay is added to ``p.grad`` in place.

    Args:
        optimizer: any ``torch.optim`` optimizer instance over parameters of ``model``.
        model: the plain module, on its final device and dtype.
        density: share of the elements that a worker sends, in (0, 1], or a function from the step
            (0, 1, …) to that share.
        warmup_steps: steps over which the density falls exponentially from 1; only with a number as
            ``density``.
        every: steps from one exchange to the next. Above 1 the optimizer moves each worker's own weights in
            between (local steps), and the sum of these updates is exchanged as one; replicas are equal at
            the exchanges. See ``exchange_now``.
        scope: ``"global"`` selects the largest elements of the whole model, ``"tensor"`` the same share
            of every tensor.
        values: how a selected value travels: "fp32", "bf16", "int8", "int4", "sign", or "fp64" for
            float64 parameters. The rounding error stays in the residual.
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
        with weight_decay_applied(self.inner, self.param_groups, has_gradient):
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
