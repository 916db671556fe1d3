"""What a person sees while a run goes on, and at its end. Only rank 0 prints."""

import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from ggs import output
from ggs.text import readable_bytes

LINE_EVERY = 15.0
"""Seconds between two lines where the output is no terminal."""
SETTLING = 5.0
"""Seconds of a run that say nothing about its speed: the first steps compile and warm up."""


class _Console(Console):
    """Raises BrokenPipeError, where rich would end the program."""

    def on_broken_pipe(self) -> None:
        raise  # what rich has caught where it calls this


class Reporter:
    """One live line in a terminal; elsewhere a plain line now and then."""

    def __init__(self, total_steps: int, epochs: int, quiet: bool = False) -> None:
        self._console = _Console(quiet=quiet, highlight=False, soft_wrap=True)
        self._total, self._epochs = total_steps, epochs
        self._top1 = "  –  "
        self._started = time.monotonic()
        self._settled: tuple[int, float] | None = None
        """Step and time from which on speed is measured."""
        self._next_line = self._started + LINE_EVERY
        self._bar: Progress | None = None
        if self._console.is_terminal and not quiet:
            self._bar = Progress(
                BarColumn(bar_width=20),
                TextColumn("{task.description}"),
                console=self._console,
            )
            self._task = self._bar.add_task("", total=total_steps)
            self._bar.start()

    def say(self, text: str) -> None:
        """Print one line, above the live one. A training goes on where that cannot be, unseen."""
        try:
            self._console.print(text, markup=False)
        except OSError as error:  # a log on a full disk, a pipe that nobody reads
            self._console.quiet = True
            output.silence(sys.stdout)
            _print(
                f"ggs: warning: standard output takes no more ({error.strerror}): the training goes on "
                "unseen, its results will be in its run folder"
            )

    def step(self, step: int, epoch: int, loss: float, rate: float, bytes_sent: int) -> None:
        """Show the state after ``step`` steps: mean loss, images per second, bytes of the last step."""
        text = (
            f"step {step:,}/{self._total:,}  epoch {min(epoch + 1, self._epochs)}/{self._epochs}  "
            f"loss {loss:.4f}  top-1 {self._top1} %  {rate:,.0f} images/s  {readable_bytes(bytes_sent)}/step"
            f"{self._left(step)}"
        )
        if self._bar is not None:
            self._bar.update(self._task, completed=step, description=text)
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + LINE_EVERY
            self.say(text)

    def _left(self, step: int) -> str:
        """How long the run still takes, in words; nothing while that cannot be told."""
        now = time.monotonic()
        if self._settled is None:
            if now >= self._started + SETTLING:
                self._settled = step, now
            return ""
        first, then = self._settled
        return f"  {duration((self._total - step) * (now - then) / (step - first))} left"

    def evaluation(self, step: int, top1: float, loss: float) -> None:
        """Print the result on the test images."""
        self._top1 = f"{top1:.2f}"
        self.say(f"step {step:,}/{self._total:,}  test top-1 {top1:.2f} %  loss {loss:.4f}")

    def close(self) -> None:
        """Leave the live line."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def summary(self, summary: Mapping[str, Any], folder: str) -> None:
        """Print what the run came to."""
        self.close()
        rows = [("top-1", f"{summary['top1']:.2f} % of {summary['test_images']:,} test images")]
        if summary.get("top1_replicas_mean") is not None:
            rows.append(
                (
                    "replicas",
                    f"{summary['top1_replicas_mean']:.2f} % on average, the worst "
                    f"{summary['top1_replicas_min']:.2f} %, with their own batch-norm layers",
                )
            )
        rows += [
            (
                "steps",
                f"{summary['steps']:,} in {duration(summary['seconds'])}, "
                f"{summary['samples_per_second']:,.0f} images/s{_of_which(summary)}",
            ),
            *_traffic(summary),
        ]
        if summary["skipped_steps"]:
            rows.append(
                ("skipped", f"{summary['skipped_steps']:,} steps with NaN or infinite gradients")
            )
        if summary.get("momentum") is not None and summary["momentum"] != summary["momentum_taken"]:
            rows.append(
                (
                    "momentum",
                    f"{summary['momentum_taken']:.3g} instead of {summary['momentum']:g}: it follows the "
                    "density",
                )
            )
        rows.append(("results", folder))
        optimizer = (
            summary["optimizer"]
            if summary["method"] == "dense"
            else (f"{summary['method'].upper()} around {summary['optimizer']}")
        )
        if (every := summary.get("every") or 1) > 1:
            optimizer += f", {every:,} local steps between exchanges"
        workers = f"{summary['world_size']} worker{'s' if summary['world_size'] > 1 else ''}"
        self.say(
            f"\n{summary['model']} ({summary['parameters']:,} parameters) on {summary['data']}, {workers}, "
            f"{optimizer if summary['method'] != 'dense' else optimizer + ' on dense averaged gradients'}"
        )
        for name, text in rows:
            self.say(f"  {name:10}{text}")


class LogHandler(logging.Handler):
    """Shows what the package logs, by ``say``: a warning as such, anything else as it is."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(logging.INFO)
        self.say = say

    def emit(self, record: logging.LogRecord) -> None:
        """See ``logging.Handler``."""
        warning = "ggs: warning: " if record.levelno >= logging.WARNING else ""
        self.say(warning + record.getMessage())


@contextmanager
def log_shown() -> Iterator[LogHandler]:
    """Inside, a person sees what the package logs: on stderr, until somebody else is to say it."""
    logger, handler = logging.getLogger("ggs"), LogHandler(_print)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield handler
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def _print(text: str) -> None:
    output.say(sys.stderr, text)


def _of_which(summary: Mapping[str, Any]) -> str:
    """Which part of a resumed run the figures are of; nothing where it ran in one go."""
    step = summary.get("resumed_from_step")
    if step is None:
        return ""
    if step == summary["steps"]:
        return " (all figures are of the finished run; nothing was trained now)"
    return f" (all figures are of the whole run, resumed after step {step:,})"


def _traffic(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    if not summary["bytes_sent_total"]:
        return [("sent", "nothing: one worker has nobody to send to")]
    warmed_up = summary["density_warmup_steps"] and summary["settled_steps"]
    when = " after the density warm-up" if warmed_up else ""
    every = summary.get("every") or 1
    exchange = (
        f", {readable_bytes(summary['bytes_sent_per_exchange'])} in each exchange, every {every:,} steps"
        if every > 1
        else ""
    )
    rows = [
        (
            "sent",
            f"{readable_bytes(summary['bytes_sent_per_step'])} per worker and step{when}{exchange} "
            f"(density {summary['density']:.4%})",
        ),
        (
            "dense",
            f"{readable_bytes(summary['dense_bytes_per_step'])} per worker and step: "
            f"{summary['compression_ratio']:,.1f} times as much",
        ),
    ]
    if warmed_up:
        rows.append(
            (
                "whole run",
                f"{readable_bytes(summary['bytes_sent_total'])} per worker, warm-up included: dense sends "
                f"{summary['compression_ratio_total']:,.1f} times as much",
            )
        )
    return rows


def duration(seconds: float) -> str:
    """Seconds for people: ``8.4 s``, ``3:07``, ``2:15:00``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
