"""What momentum does to a residual: how much of it a message carries, and how old that is.

    python benchmarks/residual_age.py [--densities 0.001,0.01,0.1] [--momenta 0,0.5,0.9] [--steps 300]

The transformer of the language study (AdamW, 4 workers in one process, signs), after its first 100 steps. A
row has, for a density and a beta1: the share of the residual's squared norm that a message carries; how many
steps ago its elements were sent before, on average (1 / density, if all took turns); and the share of them
that was sent within the last 10 steps already. docs/theory.md shows the table.
"""

import argparse
import dataclasses
from collections.abc import Sequence

import language_optimizers
import language_text
import torch
from language_model import CONTEXT, CharacterTransformer
from language_run import lr_factor
from language_settings import Setting
from torch import Tensor

import ggs
from ggs.dist import lockstep

FIRST = 100
"""Steps after which the residual is taken for stationary."""
RECENT = 10


@dataclasses.dataclass
class _Totals:
    """Sums over the messages of one worker."""

    messages: int = 0
    share: float = 0.0
    elements: int = 0
    interval: float = 0.0
    recent: int = 0


class _Observed(ggs.GGS):
    """GGS that looks at what it sends."""

    def observe(self, steps: int) -> _Totals:
        """Begin; ``steps`` is more than any interval."""
        self._totals = _Totals()
        self._sent_at = torch.full((self.flat.numel,), -steps, dtype=torch.int64)
        self._norm = 0.0
        return self._totals

    def _send(self, *arguments: object) -> int:
        self._norm = float(self.residual.double().square().sum())
        return super()._send(*arguments)  # type: ignore[arg-type]

    def _on_selected(self, indices: Tensor, values: Tensor) -> None:
        super()._on_selected(indices, values)
        step, totals = self.statistics.step, self._totals
        ages = step - self._sent_at[indices]
        self._sent_at[indices] = step
        ages = ages[ages <= step]  # the others have not been sent before
        if step >= FIRST:
            totals.messages += 1
            totals.share += float(values.double().square().sum()) / self._norm
            totals.elements += len(ages)
            totals.interval += float(ages.sum())
            totals.recent += int((ages <= RECENT).sum())


def train(worker: lockstep.Worker, setting: Setting) -> _Totals:
    """One worker's training, and what was seen in it."""
    torch.manual_seed(setting.seed)
    model = CharacterTransformer(language_text.VOCABULARY, setting.width)
    inner = language_optimizers.create(setting.optimizer, model, setting.lr, setting.momentum)
    optimizer = _Observed(
        inner,
        model,
        setting.density,
        values=setting.values,
        exchange="allgather",
        process_group=worker,
    )
    totals = optimizer.observe(setting.steps)
    text = language_text.load().training
    windows = torch.Generator().manual_seed(1000 * setting.seed + worker.rank)
    for step in range(setting.steps):
        for group in optimizer.param_groups:
            group["lr"] = setting.lr * lr_factor(step, setting.steps)
        batch = language_text.batch(text, setting.batch_size, CONTEXT, windows)
        optimizer.zero_grad()
        model.loss(batch).backward()
        optimizer.step()
    return totals


def main(argv: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--densities", default="0.001,0.01,0.1", help="with commas")
    parser.add_argument("--momenta", default="0,0.5,0.9", help="beta1, with commas")
    parser.add_argument("--steps", type=int, default=300, help=f"more than {FIRST}")
    arguments = parser.parse_args(argv)
    if arguments.steps <= FIRST:
        parser.error(f"--steps {arguments.steps}: give more than {FIRST}")
    torch.set_num_threads(1)
    print(
        "| density | beta1 | share of the residual sent | steps since the last time | sent within 10 steps |"
    )
    print("|---|---|---|---|---|")
    for density in map(float, arguments.densities.split(",")):
        for momentum in map(float, arguments.momenta.split(",")):
            setting = Setting(method="ggs", lr=6e-3, density=density, values="sign", momentum=momentum,
                              steps=arguments.steps)  # fmt: skip
            seen = lockstep.run(setting.workers, train, setting)
            elements = max(1, sum(t.elements for t in seen))
            share = sum(t.share for t in seen) / sum(t.messages for t in seen)
            interval = sum(t.interval for t in seen) / elements
            recent = sum(t.recent for t in seen) / elements
            print(
                f"| {density:g} | {momentum:g} | {share:.1%} | {interval:.1f} | {recent:.1%} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
