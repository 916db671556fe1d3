"""What ``ggs.GGS`` and ``ggs.Dense`` have in common: a torch optimizer over several workers.

The contract: construct it like ``GGS(torch_optimizer, model, …)`` on every worker, then use it wherever
the torch optimizer was used. Learning-rate schedulers, ``zero_grad``, parameter groups, closures, local
gradient clipping and accumulation, and gradient scalers work on it as on any optimizer.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ggs._version import __version__
from ggs.checks import check_whole
from ggs.dist.consistency import require_agreement
from ggs.dist.process_group import Group, connect
from ggs.dist.replicas import copy_from_rank_0
from ggs.errors import CheckpointError, NonFiniteError, UnsupportedError
from ggs.optim import batchnorm
from ggs.optim.batchnorm import BatchNormMode
from ggs.optim.digest import StepDigest, agree, agreement_bytes
from ggs.optim.flat import strides_of_rank_0
from ggs.optim.gradients import all_finite, unscale_
from ggs.optim.state_checks import check_tensors, is_count
from ggs.optim.statistics import StepStatistics
from ggs.optim.support import (
    check_buffers,
    check_frozen,
    check_initialised,
    check_model,
    check_optimizer,
    check_parameters,
    describe,
    named_parameters,
)

HasGradient = dict[nn.Parameter, bool]
"""Of each shared parameter, whether any worker has a gradient in this step."""

_COUNTS = ("step", "consecutive_skips", "skipped_steps")
"""What of the statistics is part of the state."""


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
        named = named_parameters(optimizer, model)
        self.shared = [(n, p) for n, p in named if p not in local and p.requires_grad]
        check_parameters(self.shared)
        self._locals = [(n, p) for n, p in named if p in local and p.requires_grad]
        self._frozen = [(n, p) for n, p in named if not p.requires_grad]
        self.device = self.shared[0][1].device if self.shared else torch.device("cpu")
        self._link_to_inner()
        if self.collectives.size > 1:
            check_buffers("parameter", model.named_parameters())
            check_buffers("buffer", model.named_buffers())
            require_agreement(self.collectives, self._description(settings), self.device)
        copy_from_rank_0([*model.parameters(), *model.buffers()], self.collectives)
        self.strides = strides_of_rank_0([p for _, p in self.shared], self.collectives)
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

    def _description(self, settings: dict[str, Any]) -> dict[str, Any]:
        """What must be equal on all workers."""
        kinds = {p: "shared" for _, p in self.shared} | {p: "local" for _, p in self._locals}
        return {
            "GGS version": __version__,
            "class": type(self).__name__,
            "settings": settings,
            "device": self.device.type,  # the flat layout depends on it
            **describe(self.inner, self.model, kinds),
        }

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
        except BaseException:
            # A gradient scaler that sees one does not take back what it handed us.
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
        check_frozen(self.shared, self._frozen)

        self._advance()
        return loss

    def _advance(self) -> None:
        """Take or skip the step, as all workers do, and record it."""
        before = self._bytes()
        # Agree: until here nothing has changed on any worker.
        digest = self._digest()
        has_gradient = self._agree_on_gradients(digest)
        if has_gradient is None:
            selected = 0
            self._running.take_back()
        else:  # capture, select, exchange, apply
            selected = self._take_step(has_gradient, digest.density)
            self._running.keep()
        taken = has_gradient is not None
        self._record(before, selected, [not taken], steps=taken, skipped=not taken, exchanged=taken)

    def _bytes(self) -> tuple[int, int]:
        """Sent and received by this worker until now."""
        return self.collectives.bytes_sent, self.collectives.bytes_received

    @torch.no_grad()
    def _agree_on_gradients(self, digest: StepDigest) -> HasGradient | None:
        """Which shared parameters have a gradient on any worker; None where one is not finite anywhere."""
        votes = [not self._finite_here(), *self._gradients_here()]
        step = self.statistics.step
        skip, *has_gradient = agree(self.collectives, self.device, step, digest, votes)
        if skip:
            return None
        self._unscale()
        return {p: has for (_, p), has in zip(self.shared, has_gradient, strict=True)}

    def _gradients_here(self) -> list[bool]:
        """Which shared parameters have a gradient on this worker."""
        return [p.grad is not None for _, p in self.shared]

    def _gradients(self) -> list[Tensor]:
        return [
            p.grad for group in self.param_groups for p in group["params"] if p.grad is not None
        ]

    def _finite_here(self) -> bool:
        """Whether all gradients of this worker are finite, as far as a gradient scaler has not said so."""
        found_inf, scale = getattr(self, "found_inf", None), getattr(self, "grad_scale", None)
        finite = found_inf is None or not bool(found_inf)
        if found_inf is None or scale is None:  # else the scaler has looked at them just now
            finite = finite and all_finite(self._gradients())
        return finite

    def _unscale(self) -> None:
        if (scale := getattr(self, "grad_scale", None)) is not None:
            unscale_(self._gradients(), scale)

    def _agree_to_consolidate(self) -> None:
        votes = [False] * (self._steps_of_a_vote + len(self.shared))
        agree(self.collectives, self.device, self.statistics.step, None, votes)

    @property
    def _steps_of_a_vote(self) -> int:
        """Steps between two meetings of the workers: in each they tell of all."""
        return 1

    def _digest(self) -> StepDigest:
        """What the workers must agree on before this step. Raises where a schedule is out of range."""
        rates = [
            float(group[name])
            for group in self.param_groups
            for name in ("lr", "weight_decay")
            if name in group
        ]
        return StepDigest(tuple(rates), "learning rates and weight decays are")

    @abstractmethod
    def _take_step(self, has_gradient: HasGradient, density: float | None) -> int:
        """Do the step that all agreed on; return how many elements this worker sent.

        ``density`` is the digest's.
        """

    def _record(
        self,
        bytes_before: tuple[int, int],
        selected: int,
        skips: Sequence[bool],
        *,
        steps: int,
        skipped: bool,
        exchanged: bool,
    ) -> None:
        """Note what was done. Raises NonFiniteError where too many steps in a row were skipped.

        Args:
            skips: of each step that the workers have agreed on in this one, whether any skipped it.
            steps: how many are counted.
        """
        last, (sent, received) = self.statistics, bytes_before
        in_a_row = most = last.consecutive_skips
        for skip in skips:
            in_a_row = in_a_row + 1 if skip else 0
            most = max(most, in_a_row)
        self.statistics = StepStatistics(
            step=last.step + steps,
            exchanged=exchanged,
            bytes_sent=self.collectives.bytes_sent - sent,
            bytes_received=self.collectives.bytes_received - received,
            selected=selected,
            numel=last.numel,
            skipped=skipped,
            consecutive_skips=in_a_row,
            skipped_steps=last.skipped_steps + sum(skips),
        )
        if skips and most >= self._max_consecutive_skips:
            raise NonFiniteError(
                f"{most} steps in a row had a NaN or infinite gradient on "
                "some worker, after step "
                f"{last.step}: lower the learning rate, clip gradients, or check the input data"
            )

    @property
    def dense_bytes_per_step(self) -> int:
        """Bytes that a dense ring all-reduce of all gradients sends per worker and step.

        2·(N-1)/N times the size of all trainable parameters in their own dtype: what
        DistributedDataParallel does, batch-norm layers included.
        """
        size = sum(p.numel() * p.element_size() for _, p in [*self.shared, *self._locals])
        return 2 * size * (self.collectives.size - 1) // self.collectives.size

    @property
    def agreement_bytes(self) -> list[int]:
        """Bytes of each message with which the workers agree in a step."""
        return [agreement_bytes(len(self.shared), self._steps_of_a_vote)]

    def shared_weights(self) -> dict[str, Tensor]:
        """What is the same bits on all workers: the shared parameters, by name, as the last exchange left
        them. To read.
        """
        return {name: parameter.detach() for name, parameter in self.shared}

    def exchange_now(self) -> None:
        """Exchange what local steps (``ggs.GGS(..., every=H)``) have gathered since the last exchange; a
        collective. Without local steps, or right after an exchange, there is nothing to do.
        """
        self._check_outside("exchange_now()")
        self._record(self._bytes(), 0, [], steps=0, skipped=False, exchanged=False)

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
        return {**self.inner.state_dict(), "ggs": self._worker_state()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take back what ``state_dict`` gave on the same rank.

        Wrap first, then load the model's state, then this one: constructing gives every worker rank 0's
        weights and buffers, and with them rank 0's batch-norm layers.

        A state of the plain inner optimizer, without "ggs", is accepted too: training then starts at step
        0 with an empty residual, as after constructing.
        """
        self._check_outside("load_state_dict()")
        plain = {key: value for key, value in state_dict.items() if key != "ggs"}
        state = state_dict.get("ggs")
        if state is not None:
            self._check_worker_state(state)
        self.inner.load_state_dict(plain)
        self._follow_inner()
        self._load_worker_state(state)
        self._running.keep()

    def _state_tensors(self) -> dict[str, dict[str, Tensor]]:
        """What of the state is tensors, by kind and name of the parameter: views to read and to write."""
        return {}

    def _worker_state(self) -> dict[str, Any]:
        counts = {name: getattr(self.statistics, name) for name in _COUNTS}
        return {"class": type(self).__name__, **counts, **self._state_tensors()}

    def _check_worker_state(self, state: Any) -> None:
        """Raise CheckpointError before anything is changed if ``state`` does not fit."""
        here = type(self).__name__
        kind = (
            state.get("class", here) if isinstance(state, dict) else here
        )  # older ones do not say
        if kind != here:
            raise CheckpointError(
                f"the state is of {kind} and means something else to {here}: load a state of {here}, or "
                "leave out what is under 'ggs' to start afresh"
            )
        for name in _COUNTS:
            if not isinstance(state, dict) or not is_count(state.get(name)):
                raise CheckpointError(
                    f"the state under 'ggs' has no whole number {name!r}: load what "
                    f"{here}.state_dict() gave"
                )
        for kind, tensors in self._state_tensors().items():
            shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
            check_tensors(kind, state.get(kind), shapes)

    def _load_worker_state(self, state: dict[str, Any] | None) -> None:
        """Take back a checked state; None to be as constructed."""
        counts = {} if state is None else {name: state[name] for name in _COUNTS}
        self.statistics = StepStatistics(numel=self.statistics.numel, **counts)
        for kind, tensors in self._state_tensors().items():
            for name, tensor in tensors.items():
                tensor.zero_() if state is None else tensor.copy_(state[kind][name])

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
