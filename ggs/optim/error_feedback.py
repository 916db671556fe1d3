"""What GGS and its rivals share: a residual, and the exchange of its largest elements."""

import copy
import dataclasses
from abc import abstractmethod
from collections.abc import Iterable
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from ggs.checks import check_whole
from ggs.dist.process_group import Group
from ggs.errors import CheckpointError, ConfigurationError, NonFiniteError, UnsupportedError
from ggs.exchange import create, forecast
from ggs.exchange.base import ExchangeTask, Update
from ggs.exchange.cost import ring_bytes
from ggs.exchange.create import ExchangeName
from ggs.optim.base import DistributedOptimizer, HasGradient
from ggs.optim.batchnorm import BatchNormMode
from ggs.optim.budget import Budget, fit
from ggs.optim.digest import StepDigest
from ggs.optim.flat import FlatParameters
from ggs.optim.gradients import average_gradients
from ggs.optim.schedule import DensitySchedule, check_density, exponential_warmup, selected_count
from ggs.wire.layout import FORMATS, check_format

Scope = Literal["global", "tensor"]
DEFAULT_DENSITY = 0.001
DEFAULT_VALUES = "fp32"


class ResidualOptimizer(DistributedOptimizer):
    """A torch optimizer that sends the largest elements of a residual and keeps the rest for later.

    Children say what goes into the residual and what becomes of what arrives. Arguments and errors: as
    documented for ``ggs.GGS``.
    """

    _takes_local_steps = False

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        model: nn.Module,
        density: float | DensitySchedule | None = None,
        *,
        budget: str | float | None = None,
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
        limit = None if budget is None else Budget.parse(budget)
        if limit is not None and density is not None:
            raise ConfigurationError(
                f"density is {density} and budget is {budget!r}: give one of them, the other follows"
            )
        density = DEFAULT_DENSITY if density is None else density
        self._schedule = _schedule(density, warmup_steps)
        if scope not in get_args(Scope):
            raise ConfigurationError(f"scope is {scope!r}: choose 'global' or 'tensor'")
        if values is not None:
            check_format(values)
        self._check_every(every, exchange)
        check_whole("dense_below", dense_below, least=0)
        create.check(exchange, workers_per_node)
        settings = {
            "density": "a schedule" if callable(density) else float(density),
            "budget": budget,
            "warmup_steps": warmup_steps,
            "every": every,
            "scope": scope,
            "values": values or DEFAULT_VALUES,
            "exchange": exchange,
            "workers_per_node": (
                create.stated_node_size(workers_per_node) if exchange == "hierarchical" else None
            ),
            "batchnorm": batchnorm,
            "dense_below": dense_below,
        }
        super().__init__(
            optimizer, model, settings, batchnorm, max_consecutive_skips, process_group
        )
        self._exchange_name, self._scope = exchange, scope
        self._flat = FlatParameters(self.shared, self.strides, dense_below)
        self._segments = self._flat.segments(per_tensor=scope == "tensor")
        if limit is not None:
            local = create.stated_node_size(workers_per_node) or 1
            values, density = self.fit_budget(limit, values, max(2, self.collectives.size), local)
            values, density = self._as_on_rank_0(values, density)
            self._schedule = _schedule(density, warmup_steps)
        self.settled_density = None if callable(density) else float(density)
        """The density after the warm-up; None where a function says which."""
        self._values = values = values or DEFAULT_VALUES
        if values == "fp64" and self._flat.dtype != torch.float64:
            raise ConfigurationError(
                "values is 'fp64' but no parameter is float64: choose 'fp32', which loses nothing"
            )
        self.residual = torch.zeros(self._flat.numel, dtype=self._flat.dtype, device=self.device)
        """(n,) what of this worker the others have not got yet, in flat order."""
        self._dense = self.residual[: self._flat.dense_numel]
        self._sparse = self.residual[self._flat.dense_numel :]
        offsets = (*(start for start, _ in self._segments), len(self._sparse))
        task = ExchangeTask(self._sparse, offsets, values, self._on_selected)
        self._exchange = create.create(exchange, self.collectives, task, workers_per_node)
        self._first_exchange_state = copy.deepcopy(self._exchange.state)

    def _check_every(self, every: int, exchange: str) -> None:
        check_whole("every", every, least=1)
        if every > 1 and not self._takes_local_steps:
            raise UnsupportedError(
                f"{type(self).__name__} cannot take local steps, every is {every}: one optimizer, the same "
                "on all workers, steps on what was exchanged; use GGS, or every=1"
            )
        if every > 1 and exchange == "hierarchical":
            raise UnsupportedError(
                f"every is {every} and exchange is 'hierarchical', which averages the gradients of a node "
                "in every step: choose 'auto', 'allgather' or 'split', or every=1"
            )
        self.every = every
        """Steps from one exchange to the next."""

    @property
    def flat(self) -> FlatParameters:
        """The shared parameters as one index space."""
        return self._flat

    @property
    def segments(self) -> list[tuple[int, int]]:
        """(start, length) of each range of the sparse elements from which a share is selected."""
        return self._segments

    @property
    def values(self) -> str:
        """The format in which selected values travel."""
        return self._values

    def bytes_of_exchange(
        self, density: float, values: str, workers: int, local: int
    ) -> tuple[str, int]:
        """The exchange that ``workers`` would have, ``local`` of them on each node, and the bytes that the
        one that sends most sends in it, agreement and headers counted.

        Raises ConfigurationError for an exchange that is impossible with these workers.
        """
        offsets = (
            *(start for start, _ in self._segments),
            self._flat.numel - self._flat.dense_numel,
        )
        counts = [selected_count(numel, density) for _, numel in self._segments]
        name, sent = forecast.bytes_sent(
            self._exchange_name, offsets, counts, workers, local, values, self.device.type
        )
        whole = self._flat.dense_numel * self._flat.dtype.itemsize
        others = sum(int(ring_bytes(size, workers)) for size in [whole, *self.agreement_bytes])
        return name, sent + others

    def fit_budget(
        self, budget: Budget, values: str | None, workers: int, local: int
    ) -> tuple[str, float]:
        """The format of values and the density with which each of ``workers`` keeps to ``budget`` a step.

        Raises ConfigurationError where even one element is too much.
        """
        trained = [p for _, p in [*self.shared, *self._locals]]
        size = sum(p.numel() * p.element_size() for p in trained)
        limit = budget.bytes_per_step(sum(p.numel() for p in trained), ring_bytes(size, workers))
        return fit(
            limit * self.every,
            lambda form, density: self.bytes_of_exchange(density, form, workers, local)[1],
            self._flat.numel - self._flat.dense_numel,
            values,
        )

    def _as_on_rank_0(self, values: str, density: float) -> tuple[str, float]:
        """What LOCAL_WORLD_SIZE and other surroundings of the workers must not decide; a collective."""
        names = list(FORMATS)
        chosen = torch.tensor(
            [density, names.index(values)], dtype=torch.float64, device=self.device
        )
        self.collectives.broadcast_(chosen)
        return names[int(chosen[1])], float(chosen[0])

    def density_at(self, step: int) -> float:
        """The share of elements that step ``step`` (0, 1, …) sends."""
        return check_density(self._schedule(step), f"density at step {step}")

    def _digest(self) -> StepDigest:
        density = self.density_at(self.statistics.step)
        return dataclasses.replace(super()._digest(), density=density)

    @torch.no_grad()
    def _take_step(self, has_gradient: HasGradient, density: float | None) -> int:
        assert density is not None
        if self._exchange.node is not None:
            average_gradients([p for p, has in has_gradient.items() if has], self._exchange.node)
        self._capture(has_gradient)
        return self._send(has_gradient, density)

    def _send(self, has_gradient: HasGradient, density: float) -> int:
        """Exchange that share of the residual and apply it; return how many elements this worker sent.

        Tensors below dense_below whole, of the others the largest elements, which are sent and received
        while they are applied.
        """
        dense_sum = self._sum_dense()
        counts = [selected_count(numel, density) for _, numel in self._segments]
        updates = self._exchange.run(counts, self.statistics.step // self.every)
        self._apply(dense_sum, updates, has_gradient)
        return self._exchange.selected + len(self._dense)

    @abstractmethod
    def _capture(self, has_gradient: HasGradient) -> None:
        """Add to the residual what this worker's gradients ask for."""

    @abstractmethod
    def _apply(
        self, dense_sum: Tensor | None, updates: Iterable[Update], has_gradient: HasGradient
    ) -> None:
        """Move the weights by what arrived.

        Args:
            dense_sum: (dense_numel,) sum over the workers of the elements that always travel; None for none.
            updates: of the sparse elements, indices from the end of the dense ones; their sum over
                ``self._exchange.sources`` is the mean. What is not consumed is not exchanged.
        """

    def _sum_dense(self) -> Tensor | None:
        """Take the elements that always travel out of the residual, and sum them over the workers."""
        if not len(self._dense):
            return None
        total = self.collectives.all_reduce_sum_(self._dense).clone()
        self._dense.zero_()
        return total

    def _shown(self) -> dict[str, str]:
        try:
            density = self.density_at(self.statistics.step)
        except Exception:  # someone's schedule may end with the training
            density = float("nan")
        return {
            "density": f"{density:.4g}",
            **({"every": str(self.every)} if self.every > 1 else {}),
            "values": repr(self._values),
            "exchange": repr(self._exchange_name),
        }

    def _on_selected(self, indices: Tensor, values: Tensor) -> None:
        """Called with what is about to be sent, indices from the end of the dense elements.

        Raises NonFiniteError if the update is not finite though the gradients were. NaN and infinity are
        the largest magnitudes, so those selected tell about all.
        """
        if bool(values.sum().isfinite()):
            return
        bad = ~values.isfinite()
        if bool(bad.any()):  # else only their sum overflows
            index = int(indices[bad][0]) + self._flat.dense_numel
            slot = next(s for s in self._flat.slots if index < s.offset + s.numel)
            self._require_finite(slot.name, values)

    def _require_finite(self, name: str, values: Tensor) -> None:
        if bool(values.sum().isfinite()) or bool(values.isfinite().all()):
            return
        raise NonFiniteError(
            f"{type(self.inner).__name__}'s update of {name} is {float(values[~values.isfinite()][0])} "
            f"at step {self.statistics.step} though all gradients are finite: in float16 raise eps "
            "(Adam's 1e-8 is 0 there) or keep the weights in float32, else lower the learning rate"
        )

    def _state_tensors(self) -> dict[str, dict[str, Tensor]]:
        return {"residual": {slot.name: slot.view(self.residual) for slot in self._flat.slots}}

    def _worker_state(self) -> dict[str, Any]:
        self._exchange.forget_others()  # which the next step would do first
        return {
            **super()._worker_state(),
            "residual_weight": self._exchange.weight,
            "exchange": dict(self._exchange.state),
        }

    def _check_worker_state(self, state: Any) -> None:
        super()._check_worker_state(state)
        if not isinstance(state.get("exchange"), dict):
            raise CheckpointError(
                "the state under 'ggs' has no 'exchange': it is of another class or an older version, "
                f"load what {type(self).__name__}.state_dict() gave"
            )
        weight = state.get("residual_weight")
        if not isinstance(weight, int) or weight != self._exchange.weight:
            raise CheckpointError(
                f"the residual was saved by {weight} workers that share one, here they are "
                f"{self._exchange.weight}: resume with the exchange and the workers per node of then"
            )

    def _load_worker_state(self, state: dict[str, Any] | None) -> None:
        super()._load_worker_state(state)
        self._exchange.forget_others()
        self._exchange.state.clear()  # in place: an exchange shares it with those it is made of
        self._exchange.state.update(copy.deepcopy(self._first_exchange_state))
        if state is not None:
            self._exchange.load(state["exchange"])


def _schedule(density: float | DensitySchedule, warmup_steps: int) -> DensitySchedule:
    if not callable(density):
        return exponential_warmup(density, warmup_steps)
    if warmup_steps:
        raise ConfigurationError(
            f"warmup_steps is {warmup_steps} and density is a function: build the warm-up into it"
        )
    return density
