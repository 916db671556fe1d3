"""What ``ggs.GGS`` and ``ggs.Dense`` have in common: a torch optimizer over several workers.

The contract: construct it like ``GGS(torch_optimizer, model, …)`` on every worker, then use it wherever
the torch optimizer was used. Learning-rate schedulers, ``zero_grad``, parameter groups, closures, local
gradient clipping and accumulation, and gradient scalers work on it as on any optimizer.
"""

import zlib
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ggs._version import __version__
from ggs.checks import check_whole
from ggs.dist.consistency import require_agreement
from ggs.dist.process_group import Group, connect
from ggs.errors import CheckpointError, MismatchError, NonFiniteError, UnsupportedError
from ggs.optim import batchnorm
from ggs.optim.batchnorm import BatchNormMode
from ggs.optim.flat import layout_strides
from ggs.optim.gradients import all_finite, unscale_
from ggs.optim.state import is_count
from ggs.optim.statistics import StepStatistics
from ggs.optim.support import (
    check_buffers,
    check_initialised,
    check_model,
    check_optimizer,
    check_parameters,
)

_CHECK_BYTES = 8
"""Of the agreement on a step: a checksum of its facts, and the complement."""


class DistributedOptimizer(torch.optim.Optimizer):
    """A torch optimizer whose steps are agreed on and exchanged by all workers of a process group."""

    _step_supports_amp_scaling = True  # GradScaler hands us grad_scale and found_inf

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        model: nn.Module,
        settings: dict[str, Any],
        batchnorm_mode: BatchNormMode,
        max_consecutive_skips: int,
        process_group: Group | None,
    ) -> None:
        check_optimizer(optimizer)
        if isinstance(optimizer, DistributedOptimizer):
            raise UnsupportedError(
                f"a {type(optimizer).__name__} is wrapped already: wrap the torch optimizer inside it once"
            )
        check_model(model)
        check_initialised(model)
        batchnorm.check_mode(batchnorm_mode)
        check_whole("max_consecutive_skips", max_consecutive_skips, least=1)
        self.inner = optimizer
        self.model = model
        self.batchnorm = batchnorm_mode
        self.collectives = connect(process_group)
        self.collectives.check_joined()
        local = batchnorm.local_parameters(model, batchnorm_mode)
        named = _named_parameters(optimizer, model)
        self.shared = [(n, p) for n, p in named if p not in local and p.requires_grad]
        check_parameters(self.shared)
        self._locals = [(n, p) for n, p in named if p in local and p.requires_grad]
        self._frozen = [(n, p) for n, p in named if not p.requires_grad]
        self.device = self.shared[0][1].device if self.shared else torch.device("cpu")
        self._link_to_inner()
        if self.collectives.size > 1:
            check_buffers("parameter", model.named_parameters())
            check_buffers("buffer", model.named_buffers())
            require_agreement(self.collectives, self._description(settings, named), self.device)
        self.strides = self._start_from_rank_0()
        self._running = batchnorm.RunningStatistics(model)
        self._max_consecutive_skips = max_consecutive_skips
        self._is_consolidated = False
        numel = sum(p.numel() for _, p in self.shared)
        self.statistics = StepStatistics(numel=numel)

    def _link_to_inner(self) -> None:
        """Become a torch optimizer over the inner one's own parameter groups and state."""
        state, groups = self.inner.state, self.inner.param_groups
        super().__init__(groups, dict(self.inner.defaults))
        self.inner.state, self.inner.param_groups = state, groups
        self._follow_inner()

    def _follow_inner(self) -> None:
        self._linked = self.inner.param_groups
        self.state, self.param_groups = self.inner.state, self.inner.param_groups

    def _description(
        self, settings: dict[str, Any], named: list[tuple[str, nn.Parameter]]
    ) -> dict[str, Any]:
        kinds = {id(p): "shared" for _, p in self.shared} | {
            id(p): "local" for _, p in self._locals
        }
        return {
            "GGS version": __version__,
            "class": type(self).__name__,
            "settings": settings,
            "device": self.device.type,  # the flat layout depends on it
            "inner optimizer": type(self.inner).__name__,
            "parameter group": {
                str(index): {
                    name: value
                    for name, value in group.items()
                    if isinstance(value, (bool, int, float, str, tuple, Tensor))
                }
                for index, group in enumerate(self.inner.param_groups)
            },
            "parameter count": len(named),
            "parameter": {
                name: f"{kinds.get(id(p), 'frozen')} {str(p.dtype)[6:]} {tuple(p.shape)}"
                for name, p in named
            },
            "buffer": {
                name: f"{str(b.dtype)[6:]} {tuple(b.shape)}"
                for name, b in self.model.named_buffers()
            },
        }

    @torch.no_grad()
    def _start_from_rank_0(self) -> list[tuple[int, ...]]:
        """Take over rank 0's parameters and buffers; return the strides it lays the shared ones out with."""
        tensors = [*self.model.parameters(), *self.model.buffers()]
        if self.collectives.size > 1:
            _leave_shared_memory(tensors)
        for tensor in tensors:
            self.collectives.broadcast_(tensor)
        strides = [layout_strides(p) for _, p in self.shared]
        if not strides:
            return []
        numbers = torch.tensor([n for s in strides for n in s], dtype=torch.int64)
        numbers = self.collectives.broadcast_(numbers.to(self.device)).cpu()
        parts = torch.split(numbers, [len(s) for s in strides])
        return [tuple(part.tolist()) for part in parts]

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take one step on every worker; a collective.

        When any worker has a NaN or an infinite gradient, all skip the step before optimizer state or
        residuals are touched; running statistics of batch-norm that are not finite are taken back.

        Args:
            closure: as for any torch optimizer; evaluated once, on the local minibatch.

        Returns the closure's loss, if there is one.

        Raises NonFiniteError after ``max_consecutive_skips`` skips in a row, on every worker, and
        UnsupportedError inside ``consolidated()``. MismatchError, on every worker, where not all are in
        the same step with the same schedules.
        """
        try:
            return self._step(closure)
        except (
            BaseException
        ):  # a gradient scaler that sees one does not take back what it handed us
            self.__dict__.pop("found_inf", None)
            self.__dict__.pop("grad_scale", None)
            raise

    def _step(self, closure: Callable[[], float] | None) -> float | None:
        self._check_outside("step()")
        self.collectives.check_still_alone()
        loss: float | None = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self.inner.param_groups is not self._linked:  # its own load_state_dict() replaced them
            self._follow_inner()
        self.inner.param_groups = self.param_groups  # whoever replaced ours meant both
        self._check_frozen()
        sent, received = self.collectives.bytes_sent, self.collectives.bytes_received
        finite, has_gradient = self._agree_on_gradients()
        last = self.statistics
        selected = self._take_step(has_gradient) if finite else 0
        (self._running.keep if finite else self._running.take_back)()
        self.statistics = StepStatistics(
            step=last.step + finite,
            bytes_sent=self.collectives.bytes_sent - sent,
            bytes_received=self.collectives.bytes_received - received,
            selected=selected,
            numel=last.numel,
            skipped=not finite,
            consecutive_skips=0 if finite else last.consecutive_skips + 1,
            skipped_steps=last.skipped_steps + (not finite),
        )
        if self.statistics.consecutive_skips >= self._max_consecutive_skips:
            raise NonFiniteError(
                f"{self.statistics.consecutive_skips} steps in a row had a NaN or infinite gradient on "
                "some worker, after step "
                f"{last.step}: lower the learning rate, clip gradients, or check the input data"
            )
        return loss

    @torch.no_grad()
    def _agree_on_gradients(self) -> tuple[bool, list[bool]]:
        """Whether all gradients of all workers are finite, and which parameters have one anywhere."""
        found_inf = getattr(self, "found_inf", None)
        gradients = [
            p.grad for group in self.param_groups for p in group["params"] if p.grad is not None
        ]
        scale = getattr(self, "grad_scale", None)
        finite = found_inf is None or not bool(found_inf)
        if found_inf is None or scale is None:  # else the scaler has looked at them just now
            finite = finite and all_finite(gradients)
        has_gradient = [p.grad is not None for _, p in self.shared]
        facts = [self.statistics.step, *self._facts()]
        skip, *has_gradient = self._agree("step()", facts, [not finite, *has_gradient])
        if scale is not None and not skip:
            unscale_(gradients, scale)
        return not skip, has_gradient

    def _agree_to_consolidate(self) -> None:
        """Meet workers that are in a step in a collective of its shape: in no other can all be told."""
        self._agree("consolidated()", [], [False] * (1 + len(self.shared)))

    def _agree(self, call: str, facts: list[float], own: list[bool]) -> list[bool]:
        """Which of ``own`` hold on any worker. All must be in the same ``call`` with the same ``facts``."""
        check = list(zlib.crc32(repr([call, facts]).encode()).to_bytes(4, "little"))
        # A byte and its complement: both maxima are the worker's own only where all have the same.
        votes = [*own, *check, *(255 - byte for byte in check)]
        flags = self.collectives.all_reduce_max_(
            torch.tensor(votes, dtype=torch.uint8, device=self.device)
        ).tolist()
        if flags[-_CHECK_BYTES:] != votes[-_CHECK_BYTES:]:
            raise MismatchError(self._disagreement(call))
        return [bool(flag) for flag in flags[:-_CHECK_BYTES]]

    def _disagreement(self, call: str) -> str:
        """What the workers do not agree on; a collective, as every worker sees that they do not."""
        step = self.statistics.step
        own = torch.tensor([call == "step()", step], dtype=torch.int64, device=self.device)
        stepping, steps = zip(*self.collectives.all_gather(own).tolist(), strict=True)
        if not all(stepping):
            return (
                f"rank {stepping.index(0)} is in consolidated() while rank {stepping.index(1)} is in "
                "step(): let every worker call step() and consolidated() equally often"
            )
        for rank, found in enumerate(steps):
            if found != steps[0]:
                return (
                    f"rank {rank} has taken {found} steps and rank 0 has taken {steps[0]}: load the "
                    "checkpoint of the same step on every worker"
                )
        return (
            f"the workers do not agree on step {step}: here {self._facts_text()}; schedule learning "
            "rate, weight decay and density alike on every worker"
        )

    def _facts(self) -> list[float]:
        """Numbers that must be equal on all workers for this step, or the replicas would drift apart."""
        return [
            float(group[name])
            for group in self.param_groups
            for name in ("lr", "weight_decay")
            if name in group
        ]

    def _facts_text(self) -> str:
        """``_facts`` for a person."""
        return f"learning rates and weight decays are {self._facts()}"

    def _check_frozen(self) -> None:
        for name, parameter in self.shared:
            if not parameter.requires_grad:
                raise UnsupportedError(
                    f"parameter {name} was frozen after the optimizer was wrapped, and its residual "
                    "would go on moving it: freeze first, then wrap"
                )
        for name, parameter in self._frozen:
            if parameter.grad is not None:
                raise UnsupportedError(
                    f"parameter {name} has a gradient but was frozen when the optimizer was wrapped: "
                    "set requires_grad first, then wrap"
                )

    @abstractmethod
    def _take_step(self, has_gradient: list[bool]) -> int:
        """Do the step that all agreed on; return how many elements this worker sent."""

    @property
    def dense_bytes_per_step(self) -> int:
        """Bytes that a dense ring all-reduce of all gradients sends per worker and step.

        2·(N-1)/N times the size of all trainable parameters in their own dtype: what
        DistributedDataParallel does, batch-norm layers included.
        """
        size = sum(p.numel() * p.element_size() for _, p in [*self.shared, *self._locals])
        return 2 * size * (self.collectives.size - 1) // self.collectives.size

    @contextmanager
    def consolidated(self, calibration: Iterable[Any] | None = None) -> Iterator[None]:
        """Inside ``with optimizer.consolidated():`` the model is the one to evaluate and to save.

        A collective. See ``ggs.optim.batchnorm`` for what each mode does; the local batch-norm layers are
        back when the block ends.

        Args:
            calibration: for ``batchnorm='recalibrate'``, an iterable of local batches.
        """
        with batchnorm.consolidated(
            self.model, self.batchnorm, self.collectives, calibration, self._agree_to_consolidate
        ):
            outside, self._is_consolidated = self._is_consolidated, True
            try:
                yield
            finally:
                self._is_consolidated = outside

    def _check_outside(self, call: str) -> None:
        if self._is_consolidated:
            raise UnsupportedError(
                f"{call} inside `with optimizer.consolidated():`, whose end would take back a part of "
                "it: leave the block first"
            )

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As for any torch optimizer. Residuals are not gradients: they stay."""
        self.inner.zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused once constructed: the exchange's layout is fixed. Add the group before wrapping."""
        if "statistics" in self.__dict__:
            raise UnsupportedError(
                "a parameter group was added after the optimizer was wrapped: add it to the torch "
                "optimizer first, then wrap"
            )
        super().add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """The inner optimizer's state plus this worker's own, under "ggs". It differs per rank."""
        return {**self.inner.state_dict(), "ggs": self._own_state()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take back what ``state_dict`` gave on the same rank.

        Wrap first, then load the model's state, then this one: constructing gives every worker rank 0's
        weights and buffers, and with them rank 0's batch-norm layers.

        A state of the plain inner optimizer, without "ggs", is accepted too: training then starts at step
        0 with an empty residual, as after constructing.
        """
        self._check_outside("load_state_dict()")
        plain = {key: value for key, value in state_dict.items() if key != "ggs"}
        own = state_dict.get("ggs")
        if own is not None:
            self._check_own_state(own)
        self.inner.load_state_dict(plain)
        self._follow_inner()
        if own is not None:
            self._load_own_state(own)
        else:
            self._reset_own_state()
        self._running.keep()

    def _own_state(self) -> dict[str, Any]:
        last = self.statistics
        return {
            "class": type(self).__name__,
            "step": last.step,
            "consecutive_skips": last.consecutive_skips,
            "skipped_steps": last.skipped_steps,
        }

    def _check_own_state(self, own: dict[str, Any]) -> None:
        """Raise before anything is changed if ``own`` does not fit."""
        here = type(self).__name__
        kind = own.get("class", here) if isinstance(own, dict) else here  # older ones do not say
        if kind != here:
            raise CheckpointError(
                f"the state is of {kind} and means something else to {here}: load a state of {here}, or "
                "leave out what is under 'ggs' to start afresh"
            )
        for name in ("step", "consecutive_skips", "skipped_steps"):
            if not isinstance(own, dict) or not is_count(own.get(name)):
                raise CheckpointError(
                    f"the state under 'ggs' has no whole number {name!r}: load what "
                    f"{here}.state_dict() gave"
                )

    def _load_own_state(self, own: dict[str, Any]) -> None:
        self.statistics = StepStatistics(
            numel=self.statistics.numel,
            step=own["step"],
            consecutive_skips=own["consecutive_skips"],
            skipped_steps=own["skipped_steps"],
        )

    def _reset_own_state(self) -> None:
        """Be as constructed."""
        self.statistics = StepStatistics(numel=self.statistics.numel)

    def __repr__(self) -> str:
        settings = {**self._shown(), "workers": str(self.collectives.size)}
        text = ", ".join(f"{name}={value}" for name, value in settings.items())
        return f"{type(self).__name__}({text}, optimizer={self.inner!r})"

    def _shown(self) -> dict[str, str]:
        """Settings for ``repr``."""
        return {}

    def __getstate__(self) -> dict[str, Any]:
        raise UnsupportedError(
            f"{type(self).__name__} cannot be pickled or copied: save optimizer.state_dict() instead"
        )


def agreement_bytes(parameters: int) -> int:
    """What the workers all-reduce to agree on a step: whether gradients are finite, who has one, and where
    in which schedule they are. ``parameters``: how many are shared.
    """
    return 1 + parameters + _CHECK_BYTES


def _leave_shared_memory(tensors: Iterable[Tensor]) -> None:
    """Give this process memory of its own for ``tensors``: what ``mp.spawn`` hands over, all write into.

    Those that are views of one memory remain so.
    """
    own: dict[int, torch.UntypedStorage] = {}
    for tensor in tensors:
        if tensor.device.type != "cpu" or not tensor.untyped_storage().is_shared():
            continue
        if tensor.is_conj() or tensor.is_neg():
            tensor.data = tensor.clone()
            continue
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            own[storage.data_ptr()] = storage.clone()  # type: ignore[no-untyped-call]
        tensor.data = torch.empty(0, dtype=tensor.dtype).set_(
            own[storage.data_ptr()], tensor.storage_offset(), tensor.size(), tensor.stride()
        )


def _named_parameters(
    optimizer: torch.optim.Optimizer, model: nn.Module
) -> list[tuple[str, nn.Parameter]]:
    """The optimizer's parameters with the model's names for them, in the model's order."""
    wanted: dict[Tensor, bool] = {
        p: False for group in optimizer.param_groups for p in group["params"]
    }
    named = [(name, p) for name, p in model.named_parameters() if p in wanted]
    missing = len(wanted) - len(named)
    if missing:
        raise UnsupportedError(
            f"{missing} of the optimizer's parameters are not the model's: pass the module that holds "
            "all of them, e.g. nn.ModuleList([model, loss])"
        )
    return named
