"""The training loop: one optimizer step after the other, with evaluations and a record of both."""

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ggs.dist.clock import PHASES, Phase
from ggs.dist.collectives import Collectives
from ggs.dist.replicas import check_replicas
from ggs.optim.base import DistributedOptimizer
from ggs.optim.error_feedback import ResidualOptimizer
from ggs.optim.scaler import GradScaler
from ggs.train.config import TrainConfig
from ggs.train.console import Reporter
from ggs.train.evaluate import autocast, evaluate
from ggs.train.image_set import ImageSet
from ggs.train.models import training_loss
from ggs.train.optimizers import local_clip_norm, scheduler
from ggs.train.records import EvaluationRow, TrainingRow
from ggs.train.run_folder import RunFolder
from ggs.train.seeds import epoch_order
from ggs.train.tensorboard import Events

CALIBRATION_BATCHES = 50
"""Training batches per worker with which ``batchnorm: recalibrate`` measures statistics anew."""


@dataclass
class LoopState:
    """Where the loop is, and what it has counted. With the states of model, optimizer, scheduler,
    scaler and torch's random number generator it determines everything that follows."""

    step: int = 0
    """Optimizer steps done, skipped ones included."""
    epoch: int = 0
    """Epochs completed."""
    epoch_step: int = 0
    """Steps done in the current epoch; the epoch's order follows from seed and epoch alone."""
    seconds: float = 0.0
    """Wall time of training and evaluation so far."""
    training_seconds: float = 0.0
    """The same without evaluations."""
    bytes_sent: int = 0
    """Bytes this worker has sent in all steps."""
    dense_bytes: int = 0
    """Bytes that dense training of as many workers would have sent in them."""
    elements: int = 0
    """Elements this worker has sent in all steps."""
    settled_steps: int = 0
    """Steps after the density warm-up, skipped ones not counted."""
    settled_bytes: int = 0
    """Bytes this worker has sent in those."""
    settled_dense_bytes: int = 0
    """Bytes that dense training of as many workers would have sent in those."""
    settled_elements: int = 0
    """Elements this worker has sent in those."""
    exchanges: int = 0
    """Exchanges in all steps; of a checkpoint of before they were counted, those since."""
    settled_exchanges: int = 0
    """Exchanges after the density warm-up."""
    exchange_bytes: int = 0
    """Bytes this worker has sent in the last exchange."""
    exchange_elements: int = 0
    """Elements this worker has sent in it."""
    images: int = 0
    """Training images that all workers have seen, whatever their number was."""


@dataclass(frozen=True)
class RunPlan:
    """How long the run is, in steps."""

    steps: int
    steps_per_epoch: int
    density_warmup: int
    evaluate_every: int
    check_replicas_every: int

    @property
    def epochs(self) -> int:
        """Epochs begun."""
        return -(-self.steps // self.steps_per_epoch)

    @classmethod
    def of(cls, config: TrainConfig, train_images: int, world_size: int) -> "RunPlan":
        """The plan of ``config`` for so many images and workers."""
        per_epoch = train_images // (config.batch_size * config.accumulate * world_size)
        return cls(
            config.steps or config.epochs * per_epoch,
            per_epoch,
            0 if config.method == "dense" else config.density_warmup.steps(per_epoch),
            config.evaluate_every.steps(per_epoch),
            config.check_replicas_every.steps(per_epoch),
        )

    def warning(self, config: TrainConfig) -> str:
        """What is odd about the run's length, in one line; or nothing."""
        if not self.density_warmup or self.density_warmup < self.steps or config.density == 1:
            return ""
        return (
            f"ggs: warning: density_warmup: {config.density_warmup} ({self.density_warmup:,} steps) last to "
            f"the end of the run ({self.steps:,} steps): the density after it is never reached; "
            "give a shorter --density-warmup, 0 for none"
        )


class Trainer:
    """One worker's training run."""

    def __init__(
        self,
        config: TrainConfig,
        plan: RunPlan,
        model: nn.Module,
        optimizer: DistributedOptimizer,
        images: tuple[ImageSet, ImageSet],
        collectives: Collectives,
        device: torch.device,
    ) -> None:
        self.config, self.plan, self.state = config, plan, LoopState()
        self.model, self.optimizer, self.device = model, optimizer, device
        self.train_images, self.test_images = images
        self.collectives = collectives
        self.trained_by = collectives.size
        """How many workers the counters are of."""
        self.resumed_from: int | None = None
        """The step of the checkpoint that this process went on from; None where it began at step 0."""
        self.folder: RunFolder | None = None
        """Where results go: rank 0's, the other workers have none."""
        self.reporter: Reporter | None = None
        """The same for what a person sees."""
        self.events: Events | None = None
        """The same for TensorBoard."""
        self.after_step: Callable[[], None] | None = None
        """Called after every step, on every worker: writes a checkpoint where one is due."""
        self.scheduler = scheduler(config, optimizer, plan.steps, plan.steps_per_epoch)
        self.scaler = GradScaler(device.type, enabled=config.precision == "fp16")
        self._clock = optimizer.collectives.clock
        self._exchanging: Phase = "averaging" if config.method == "dense" else "selecting"
        optimizer.inner.register_step_pre_hook(lambda *_: self._clock.enter("computing"))
        optimizer.inner.register_step_post_hook(lambda *_: self._clock.leave())
        self._loss_sum = torch.zeros((), dtype=torch.float64, device=device)
        self._logged = (0, 0.0)

    def run(self) -> None:
        """Train to the end of the plan; evaluate on the way, not at its end."""
        state, plan = self.state, self.plan
        self.model.train()
        while state.step < plan.steps:
            started = time.perf_counter()
            batches_of_steps = self._steps_of_epoch()
            for _ in range(min(plan.steps - state.step, plan.steps_per_epoch - state.epoch_step)):
                logs = (state.step + 1) % self.config.log_every == 0
                with self._clock.measure(self.device) if logs else nullcontext():
                    with self._clock.phase("loading"):
                        batches = next(batches_of_steps)
                    self._step(batches)
                started = self._charge(started)
                if logs:
                    self._log()
                    started = self._charge(started)
                if (
                    plan.evaluate_every
                    and state.step % plan.evaluate_every == 0 < plan.steps - state.step
                ):
                    self.evaluate()
                started = time.perf_counter()
                if plan.check_replicas_every and state.step % plan.check_replicas_every == 0:
                    shared = self.optimizer.shared_weights()
                    check_replicas(list(shared.items()), self.collectives, state.step)
                if self.after_step:
                    self.after_step()
            self._end_epoch()

    def _charge(self, since: float) -> float:
        """Count the time since then as training, and return the time now."""
        now = time.perf_counter()
        self.state.seconds += now - since
        self.state.training_seconds += now - since
        return now

    def has_ended(self, workers: int, density_warmup: int) -> None:
        """Say that there is nothing to train: what is reported is a run that so many workers did."""
        self.trained_by = workers
        self.plan = replace(self.plan, steps=self.state.step, density_warmup=density_warmup)

    def exchange_rest(self) -> None:
        """After the last step: exchange the local steps that are still each worker's own; a collective."""
        self.optimizer.exchange_now()
        self._count_sent(settled=self.optimizer.statistics.step > self.plan.density_warmup)

    def _end_epoch(self) -> None:
        if self.state.epoch_step == self.plan.steps_per_epoch:
            self.state.epoch += 1
            self.state.epoch_step = 0

    def evaluate(self) -> dict[str, float]:
        """Top-1 (percent) and loss on the test images, recorded and shown; a collective."""
        started = time.perf_counter()
        with self.optimizer.consolidated(self.calibration()):
            result = evaluate(
                self.model, self.test_images, self.config, self.collectives, self.device
            )
        state = self.state
        state.seconds += time.perf_counter() - started
        row = EvaluationRow(
            step=state.step,
            epoch=self.epochs,
            seconds=round(state.seconds, 3),
            bytes_sent_total=state.bytes_sent,
            top1=result["top1"],
            loss=result["loss"],
        )
        if self.folder:
            self.folder.log(row)
        if self.events:
            self.events.evaluation(row)
        if self.reporter:
            self.reporter.evaluation(state.step, result["top1"], result["loss"])
        return result

    def state_dict(self) -> dict[str, Any]:
        """This worker's counters, and the states of optimizer, schedule and scaler."""
        return {
            "loop": asdict(self.state),
            "loss_sum": self._loss_sum,
            "logged": list(self._logged),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "scaler": self.scaler.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what ``state_dict`` gave on the same rank."""
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        if self.scaler.is_enabled():
            self.scaler.load_state_dict(state["scaler"])
        self._loss_sum.copy_(state["loss_sum"])
        step, seconds = state["logged"]
        self._logged = (step, seconds)
        self.state = LoopState(**state["loop"])
        self._end_epoch()

    def calibration(self) -> Iterator[Tensor] | None:
        """This worker's batches to measure batch-norm statistics with, where the mode does so."""
        if self.config.batchnorm != "recalibrate":
            return None
        order = self._order(0)[: CALIBRATION_BATCHES * self.config.batch_size]
        batches = self.train_images.batches(order, self.config.batch_size, epoch=None)
        return (images for images, _ in batches)

    def _order(self, epoch: int) -> Tensor:
        return epoch_order(
            len(self.train_images),
            self.config.seed,
            epoch,
            self.collectives.rank,
            self.collectives.size,
            self.config.batch_size * self.config.accumulate,
        )

    def _steps_of_epoch(self) -> Iterator[list[tuple[Tensor, Tensor]]]:
        """The batches of each step of the current epoch that is still to be done."""
        size, accumulate = self.config.batch_size, self.config.accumulate
        order = self._order(self.state.epoch)[self.state.epoch_step * size * accumulate :]
        batches = iter(self.train_images.batches(order, size, self.state.epoch))
        while step := list(itertools.islice(batches, accumulate)):
            yield step

    def _step(self, batches: list[tuple[Tensor, Tensor]]) -> None:
        self.optimizer.zero_grad()
        for images, labels in batches:
            with autocast(self.config, self.device):
                loss = training_loss(self.model(images), labels) / len(batches)
            torch.autograd.backward(self.scaler.scale(loss))
            self._loss_sum += loss.detach()
        if (limit := local_clip_norm(self.config)) is not None:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), limit)
        with self._clock.phase(self._exchanging):
            self.scaler.step(self.optimizer)
        self.scaler.update()
        self._lr = self.scheduler.get_last_lr()[0]
        self.scheduler.step()
        self._count()

    def _count(self) -> None:
        state, done = self.state, self.optimizer.statistics
        state.step += 1
        state.epoch_step += 1
        state.dense_bytes += self.optimizer.dense_bytes_per_step
        state.images += self.config.batch_size * self.config.accumulate * self.trained_by
        # A local step that this worker left out is one that others took.
        taken = not done.skipped or self.config.every > 1
        settled = taken and done.step > self.plan.density_warmup
        if settled:
            state.settled_steps += 1
            state.settled_dense_bytes += self.optimizer.dense_bytes_per_step
        self._count_sent(settled)

    def _count_sent(self, settled: bool) -> None:
        """Count what the last step, or the last exchange, has sent."""
        state, done = self.state, self.optimizer.statistics
        state.bytes_sent += done.bytes_sent
        state.elements += done.selected
        state.exchanges += done.exchanged
        if settled:
            state.settled_bytes += done.bytes_sent
            state.settled_elements += done.selected
            state.settled_exchanges += done.exchanged
        if done.exchanged:
            state.exchange_bytes, state.exchange_elements = done.bytes_sent, done.selected

    @property
    def epochs(self) -> float:
        """Epochs done, with the part of the current one."""
        return round(self.state.epoch + self.state.epoch_step / self.plan.steps_per_epoch, 4)

    def _log(self) -> None:
        """Record the mean loss of all workers since the last line; a collective."""
        state, done, measured = self.state, self.optimizer.statistics, self._clock.seconds
        step, seconds = self._logged
        steps, elapsed = state.step - step, state.training_seconds - seconds
        self._logged = (state.step, state.training_seconds)
        loss = self.collectives.all_reduce_sum_(self._loss_sum) / (steps * self.collectives.size)
        self._loss_sum = torch.zeros_like(self._loss_sum)
        images = steps * self.config.batch_size * self.config.accumulate * self.collectives.size
        rate = images / elapsed if elapsed else 0.0
        sent, density = done.bytes_sent, done.density
        if self.config.every > 1:  # most steps send nothing
            sent = state.exchange_bytes // self.config.every
            density = min(1.0, state.exchange_elements / max(1, done.numel))
        if self.folder:
            row = TrainingRow(
                step=state.step,
                epoch=self.epochs,
                seconds=round(state.seconds, 3),
                loss=float(loss),
                lr=float(self._lr),
                density=density,
                bytes_sent=sent,
                bytes_sent_total=state.bytes_sent,
                samples_per_second=round(rate, 1),
                skipped_steps=done.skipped_steps,
                residual_norm=self._residual_norm(),
                step_seconds={p: round(measured[p], 6) for p in PHASES if p in measured},
            )
            self.folder.log(row)
            if self.events:
                self.events.train(row)
        if self.reporter:
            self.reporter.step(state.step, state.epoch, float(loss), rate, sent)

    def _residual_norm(self) -> float | None:
        """Norm of what this worker has not sent yet; None where nothing is kept back."""
        if not isinstance(self.optimizer, ResidualOptimizer):
            return None
        return float(torch.linalg.vector_norm(self.optimizer.residual))
