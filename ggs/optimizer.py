"""GGS: general gradient sparsification around any torch optimizer.

One step of one worker (after *General Gradient Sparsification*, whose abstract fixes gradient
correction and BN-LG; everything it leaves open is our choice and said so in docs/how-it-works.md):

1. the local gradient, never averaged, goes through the worker's own optimizer;
2. the optimizer's *update*, not the gradient, is added to the worker's residual, so that old and new
   gradients never mix inside the optimizer's moments (gradient correction);
3. the largest elements of the residual are selected, sent to all workers, and leave the residual;
4. every worker adds the mean of what all sent to its weights.
"""

from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from ggs import exchange as exchanges
from ggs.batchnorm import BatchNormMode
from ggs.capture import UpdateCapture, weight_decay_applied, weight_decay_kind
from ggs.collectives import ProcessGroup
from ggs.dense import average_gradients
from ggs.errors import CheckpointError, ConfigurationError, NonFiniteError
from ggs.exchange import ExchangeName, Task
from ggs.flat import FlatParameters
from ggs.gradients import all_finite
from ggs.schedule import DensitySchedule, check_density, exponential_warmup, selected_count
from ggs.support import check_whole
from ggs.wire_layout import check_format
from ggs.wrapper import DistributedOptimizer

Scope = Literal["global", "tensor"]


class GGS(DistributedOptimizer):
    """A torch optimizer that exchanges only the largest part of its accumulated updates.

    >>> optimizer = ggs.GGS(torch.optim.Adam(model.parameters()), model, density=0.001)

    All workers of the process group construct it together, take rank 0's parameters, and then call
    ``step()`` equally often. Without an initialised process group it works in one process alone.

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
        scope: ``"global"`` selects the largest elements of the whole model, ``"tensor"`` the same share
            of every tensor.
        values: how a selected value travels: "fp32", "bf16", "int8", "int4", "sign", or "fp64" for
            float64 parameters. The rounding error stays in the residual.
        batchnorm: how batch-norm layers are kept, see ``ggs.batchnorm``.
        exchange: how the selections reach the other workers, see ``ggs.exchange``.
        workers_per_node: for "auto" and "hierarchical"; None for LOCAL_WORLD_SIZE. Ranks are numbered
            node by node.
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
        density: float | DensitySchedule = 0.001,
        *,
        warmup_steps: int = 0,
        scope: Scope = "global",
        values: str = "fp32",
        exchange: ExchangeName = "auto",
        workers_per_node: int | None = None,
        batchnorm: BatchNormMode = "average",
        dense_below: int = 0,
        max_consecutive_skips: int = 100,
        process_group: ProcessGroup | None = None,
    ) -> None:
        self._schedule = _schedule(density, warmup_steps)
        if scope not in get_args(Scope):
            raise ConfigurationError(f"scope is {scope!r}: choose 'global' or 'tensor'")
        check_format(values)
        check_whole("dense_below", dense_below, least=0)
        exchanges.check(exchange, workers_per_node)
        settings = {
            "density": "a schedule" if callable(density) else float(density),
            "warmup_steps": warmup_steps,
            "scope": scope,
            "values": values,
            "exchange": exchange,
            "workers_per_node": (
                exchanges.node_size(workers_per_node) if exchange == "hierarchical" else None
            ),
            "batchnorm": batchnorm,
            "dense_below": dense_below,
        }
        super().__init__(
            optimizer, model, settings, batchnorm, max_consecutive_skips, process_group
        )
        self._flat = FlatParameters(self.shared, self.strides, dense_below)
        if values == "fp64" and self._flat.dtype != torch.float64:
            raise ConfigurationError(
                "values is 'fp64' but no parameter is float64: choose 'fp32', which loses nothing"
            )
        self.residual = torch.zeros(self._flat.numel, dtype=self._flat.dtype, device=self.device)
        """(n,) updates of this worker that the others have not got yet, in flat order."""
        self._capture = UpdateCapture(optimizer, self._flat, self.residual)
        self._dense = self.residual[: self._flat.dense_numel]
        self._sparse = self.residual[self._flat.dense_numel :]
        self._segments = self._flat.segments(per_tensor=scope == "tensor")
        offsets = (*(start for start, _ in self._segments), len(self._sparse))
        task = Task(self._sparse, offsets, values, self._check_finite)
        usual = self.density_at(0) if callable(density) else density
        count = selected_count(len(self._sparse), usual)
        self._exchange = exchanges.create(exchange, self.collectives, task, count, workers_per_node)

    def density_at(self, step: int) -> float:
        """The share of elements that step ``step`` (0, 1, …) sends."""
        return check_density(self._schedule(step), f"density at step {step}")

    @torch.no_grad()
    def _take_step(self, has_gradient: list[bool]) -> int:
        self._flat.check_in_place()
        if self._exchange.node is not None:
            reduced = [p for (_, p), has in zip(self.shared, has_gradient, strict=True) if has]
            average_gradients(reduced, self._exchange.node)
        known = {p: has for (_, p), has in zip(self.shared, has_gradient, strict=True)}
        with weight_decay_applied(self.inner, self.param_groups, known):
            self._capture.step()
        self._check_locals()
        self._add_dense()
        updates = self._exchange.run(self._counts, self.statistics.step)
        parts = ((update.indices, update.values) for update in updates)
        scale = 1.0 / self._exchange.sources
        self._flat.add_(parts, self._flat.dense_numel, scale, self.residual)
        return self._exchange.selected + len(self._dense)

    def _facts(self) -> list[float]:
        density = self.density_at(self.statistics.step)
        self._counts = [selected_count(numel, density) for _, numel in self._segments]
        return [density, *self._decays()]

    def _facts_text(self) -> str:
        density, *decays = self._facts()
        shrinking = f" and learning rate times decoupled weight decay {decays}" if decays else ""
        return f"density is {density}{shrinking}"

    def _decays(self) -> list[float]:
        """What shrinks the shared weights on every worker alike; all else of a group is local."""
        return [
            float(group["lr"]) * float(group.get("weight_decay", 0.0))
            for group in self.param_groups
            if weight_decay_kind(self.inner, group) == "decoupled"
        ]

    def _add_dense(self) -> None:
        """weights += mean over the workers of the elements that always travel."""
        if len(self._dense):
            self._require_finite("the whole tensors below dense_below", self._dense)
            total = self.collectives.all_reduce_sum_(self._dense).clone()
            self._dense.zero_()
            self._flat.add_([(None, total)], 0, 1.0 / self.collectives.size, self.residual)

    def _check_locals(self) -> None:
        if not all_finite([parameter for _, parameter in self._locals]):
            for name, parameter in self._locals:
                self._require_finite(name, parameter)

    def _check_finite(self, indices: Tensor, values: Tensor) -> None:
        """Raise NonFiniteError if the update is not finite though the gradients were.

        NaN and infinity are the largest magnitudes, so those selected tell about all.
        """
        if bool(values.sum().isfinite()):
            return
        bad = ~values.isfinite()
        if bool(bad.any()):  # else only their sum overflows
            place = int(indices[bad][0]) + self._flat.dense_numel
            slot = next(s for s in self._flat.slots if place < s.offset + s.numel)
            self._require_finite(slot.name, values)

    def _require_finite(self, name: str, values: Tensor) -> None:
        if bool(values.sum().isfinite()) or bool(values.isfinite().all()):
            return
        raise NonFiniteError(
            f"{type(self.inner).__name__}'s update of {name} is {float(values[~values.isfinite()][0])} "
            f"at step {self.statistics.step} though all gradients are finite: in float16 raise eps "
            "(Adam's 1e-8 is 0 there) or keep the weights in float32, else lower the learning rate"
        )

    def _own_state(self) -> dict[str, Any]:
        self._exchange.forget_others()
        residual = {slot.name: slot.view(self.residual) for slot in self._flat.slots}
        return {
            **super()._own_state(),
            "residual": residual,
            "residual_weight": self._exchange.weight,
            "exchange": dict(self._exchange.state),
        }

    def _check_own_state(self, own: dict[str, Any]) -> None:
        super()._check_own_state(own)
        if not isinstance(own.get("exchange"), dict):
            raise CheckpointError(
                "the state under 'ggs' has no 'exchange': it is of an older version"
            )
        found = {name: tuple(tensor.shape) for name, tensor in own.get("residual", {}).items()}
        expected = {slot.name: tuple(slot.parameter.shape) for slot in self._flat.slots}
        for name in sorted(found.keys() | expected.keys()):
            if found.get(name) != expected.get(name):
                raise CheckpointError(
                    f"residual of {name}: shape {found.get(name)} in the state, "
                    f"{expected.get(name)} in this model: load the state of the same model"
                )

        weight = own.get("residual_weight")
        if weight != self._exchange.weight:
            raise CheckpointError(
                f"the residual was saved by {weight} workers that share one, here they are "
                f"{self._exchange.weight}: resume with the exchange and the workers per node of then"
            )

    def _load_own_state(self, own: dict[str, Any]) -> None:
        super()._load_own_state(own)
        for slot in self._flat.slots:
            slot.view(self.residual).copy_(own["residual"][slot.name])
        self._exchange.forget_others()
        self._exchange.state.update(own["exchange"])


def _schedule(density: float | DensitySchedule, warmup_steps: int) -> DensitySchedule:
    if not callable(density):
        return exponential_warmup(density, warmup_steps)
    if warmup_steps:
        raise ConfigurationError(
            f"warmup_steps is {warmup_steps} and density is a function: build the warm-up into it"
        )
    return density
