"""When updates are exchanged: after every step, after several local ones, now, and for the last time."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ggs.checks import check_whole
from ggs.errors import CheckpointError, NonFiniteError
from ggs.optim.base import HasGradient
from ggs.optim.digest import DECAYS, StepDigest, agree
from ggs.optim.error_feedback import ResidualOptimizer
from ggs.optim.gradients import all_finite
from ggs.optim.local_steps import LocalSteps


class RoundOptimizer(ResidualOptimizer):
    """A residual of updates: the optimizers that fill it are the workers' own, and may go ahead alone."""

    _takes_local_steps = True

    @cached_property
    def local_steps(self) -> LocalSteps | None:
        """This worker's steps since the last exchange; None where every step is exchanged."""
        if self.every == 1:
            return None
        return LocalSteps(self.inner, self.shared, self._flat, self.every)

    @property
    def _steps_of_a_vote(self) -> int:
        return self.every

    def _advance(self) -> None:
        """See ``DistributedOptimizer._advance``. A local step is this worker's alone: where its gradient is
        not finite it is left out here and taken by the others, who learn of it at the exchange.
        """
        local = self.local_steps
        if local is None:
            super()._advance()
            return
        before = self._bytes()
        self._flat.check_in_place()
        if skipped := not self._finite_here():
            local.skip()
            self._running.take_back()
        else:
            self._unscale()
            local.step()
            self._check_locals()
            self._running.keep()
        selected, skips = 0, list[bool]()
        if exchanged := len(local.steps) == self.every:
            density = self.density_at(self.statistics.step)
            skips, has_gradient = self._meet(density, "step()")
            selected = self._send(has_gradient, density)
        self._record(before, selected, skips, steps=1, skipped=skipped, exchanged=exchanged)

    @torch.no_grad()
    def _meet(self, density: float, call: str) -> tuple[list[bool], HasGradient]:
        """Agree, and end the local steps: what they have gathered is in the residual afterwards.

        Args:
            density: of what is to be exchanged.
            call: what the workers are in.

        Returns of each of the local steps whether any worker left it out, and of each shared parameter
        whether any had a gradient in them.
        """
        local = self.local_steps
        steps = local.steps if local else []
        decays = tuple(decay for step in steps for decay in step.decays)
        digest = StepDigest(decays, DECAYS, density, call, len(steps))
        left_out = [step.skipped for step in steps] + [False] * (self.every - len(steps))
        had = [any(step.gradients[i] for step in steps) for i in range(len(self.shared))]
        position = self.statistics.step
        votes = agree(self.collectives, self.device, position, digest, left_out + had)
        any_had = votes[self.every :]
        if local and steps:
            local.hand_over(self.residual, any_had)
            self._check_dense()
        has_gradient = {p: has for (_, p), has in zip(self.shared, any_had, strict=True)}
        return votes[: len(steps)], has_gradient

    def _check_locals(self) -> None:
        """Raise NonFiniteError where the optimizer made a local parameter infinite or NaN."""
        if not all_finite([parameter for _, parameter in self._locals]):
            for name, parameter in self._locals:
                self._require_finite(name, parameter)

    def _check_dense(self) -> None:
        """The same of what is exchanged whole; of all else, selection looks at the largest."""
        if len(self._dense):
            self._require_finite("the whole tensors below dense_below", self._dense)

    def _last_density(self) -> float:
        """The density of the last step; before any, of the first."""
        return self.density_at(max(0, self.statistics.step - 1))

    def exchange_now(self) -> None:
        """Exchange what the local steps since the last exchange have gathered, before their time; a
        collective.

        For the end of a training, and wherever the weights are written to, or read without
        ``consolidated()``. Right after an exchange there is nothing to do. The next one comes ``every``
        steps later; ``statistics`` tells what this call sent.
        """
        if not self.local_steps or not self.local_steps.steps:
            super().exchange_now()
            return
        self._check_outside("exchange_now()")
        before, density = self._bytes(), self._last_density()
        skips, has_gradient = self._meet(density, "exchange_now()")
        selected = self._send(has_gradient, density)
        self._record(before, selected, skips, steps=0, skipped=False, exchanged=True)

    def drain(self, steps: int | None = None) -> None:
        """Deliver what the workers have not sent yet, without a step of the optimizer; a collective.

        The end of a training that is to lose nothing: afterwards the weights are the same on every worker
        and move no more by themselves. Local steps since the last exchange are delivered as well.
        ``statistics`` tells what the call sent.

        Args:
            steps: None for everything at once, in full precision, as one all-reduce of as many bytes as a
                step of dense training. A number: at most so many exchanges, each as the last step's
                (density, value format), the largest elements first, until nothing is left; what is left
                after them stays in the residual.

        What half-precision weights cannot hold stays in the residual in any case. Raises
        ConfigurationError for steps below 1, and as ``step``.
        """
        self._check_outside("drain()")
        if steps is not None:
            check_whole("steps", steps, least=1)
        before, density = self._bytes(), 1.0 if steps is None else self._last_density()
        skips, has_gradient = self._meet(density, f"drain({steps})")
        selected = 0
        if steps is None:
            selected = self._send_all()
        else:
            for _ in range(steps):
                if not self._anything_left():
                    break
                selected += self._send(has_gradient, density)
        self._record(before, selected, skips, steps=0, skipped=False, exchanged=True)

    def drop_residual(self) -> None:
        """Forget what this worker has not sent yet; call it on every worker. Nothing is exchanged.

        The end of a training whose last weights are good: afterwards they move no more by themselves, and
        the share of the updates that was still waiting is lost. Local steps since the last exchange are
        not touched: ``exchange_now()`` first.
        """
        self._check_outside("drop_residual()")
        self.residual.zero_()

    @torch.no_grad()
    def _send_all(self) -> int:
        """Every residual whole, summed in full precision, onto the weights."""
        self._exchange.forget_others()
        total = self.collectives.all_reduce_sum_(self.residual).clone()
        if not all_finite([total]):  # alike on all workers
            raise NonFiniteError("a worker's residual is not finite: load a checkpoint of before")
        self.residual.zero_()
        parts = ((0, self._flat.dense_numel, self.collectives.size),
                 (self._flat.dense_numel, self._flat.numel, self._exchange.sources))  # fmt: skip
        for start, stop, sources in parts:
            if start < stop:
                self._flat.add_([(None, total[start:stop])], start, 1.0 / sources, self.residual)
        return self.statistics.numel

    def _anything_left(self) -> bool:
        """Whether any worker's residual holds anything; a collective."""
        left = self.residual.any().to(torch.uint8).view(1)
        return bool(self.collectives.all_reduce_max_(left))

    def shared_weights(self) -> dict[str, Tensor]:
        """See ``DistributedOptimizer.shared_weights``."""
        return self.local_steps.point() if self.local_steps else super().shared_weights()

    @contextmanager
    def consolidated(self, calibration: Iterable[Any] | None = None) -> Iterator[None]:
        """See ``DistributedOptimizer.consolidated``. Between two exchanges the weights inside are those of
        the last one, which are the same on all workers.
        """
        local = self.local_steps
        inside = local is None or not local.steps or self._is_consolidated
        if local and not inside:
            local.back_to_point()
        try:
            with super().consolidated(calibration):
                yield
        finally:
            if local and not inside:
                local.place()

    def _worker_state(self) -> dict[str, Any]:
        local = self.local_steps.state() if self.local_steps else None
        return {**super()._worker_state(), **({"local_steps": local} if local else {})}

    def _check_worker_state(self, state: Any) -> None:
        super()._check_worker_state(state)
        local = state.get("local_steps")
        if self.local_steps:
            self.local_steps.check(local)
        elif local is not None:
            raise CheckpointError(
                "the state is of local steps since the last exchange, here every is 1: wrap with the every "
                "of then, or save after exchange_now()"
            )

    def _load_worker_state(self, state: dict[str, Any] | None) -> None:
        super()._load_worker_state(state)
        if self.local_steps:
            self.local_steps.load(None if state is None else state.get("local_steps"))
