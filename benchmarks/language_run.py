"""One run of the language study: its workers in one process, and the row of results that it ends in."""

import dataclasses
import math
import time

import language_methods
import language_optimizers
import language_text
import torch
from language_model import CONTEXT, CharacterTransformer, evaluate
from language_settings import Row, Setting

from ggs import __version__
from ggs.dist import lockstep

LR_WARMUP_STEPS = 50
"""The learning rate rises from 0 in so many steps, then falls as a cosine to a tenth."""
_LAST_LR = 0.1
_EVALUATIONS = 5


def lr_factor(step: int, steps: int) -> float:
    """The share of the highest learning rate that step ``step`` (0, 1, …) of ``steps`` has."""
    if step < LR_WARMUP_STEPS:
        return (step + 1) / LR_WARMUP_STEPS
    done = (step - LR_WARMUP_STEPS) / max(1, steps - LR_WARMUP_STEPS)
    return _LAST_LR + (1 - _LAST_LR) * (1 + math.cos(math.pi * done)) / 2


def execute(setting: Setting) -> Row:
    """Train, in this process and on one core; the whole row."""
    torch.set_num_threads(1)
    started = time.perf_counter()
    results = lockstep.run(setting.workers, train, setting)[0]
    return {
        **dataclasses.asdict(setting),
        **results,
        "seconds": round(time.perf_counter() - started, 1),
        "text": language_text.load().sha256[:16],
        "ggs": __version__,
        "torch": torch.__version__,
    }


def train(worker: lockstep.Worker, setting: Setting) -> Row:
    """One worker's training; what it measured. Bytes are what this worker sent, every flag counted."""
    torch.manual_seed(setting.seed)
    model = CharacterTransformer(language_text.VOCABULARY, setting.width)
    inner = language_optimizers.create(setting.optimizer, model, setting.lr, setting.momentum)
    optimizer = language_methods.create(setting, inner, model, worker)
    text, held_out = language_text.load().training, language_text.held_out(CONTEXT)
    windows = torch.Generator().manual_seed(1000 * setting.seed + worker.rank)
    sent = [optimizer.collectives.bytes_sent]
    """Bytes until before each step, and after the last; to construct it the workers agreed on settings."""
    curve = []
    for step in range(setting.steps):
        for group in optimizer.param_groups:
            group["lr"] = setting.lr * lr_factor(step, setting.steps)
        batch = language_text.batch(text, setting.batch_size, CONTEXT, windows)
        optimizer.zero_grad()
        model.loss(batch).backward()
        optimizer.step()
        sent.append(optimizer.collectives.bytes_sent)
        if worker.rank == 0 and (step + 1) % max(1, setting.steps // _EVALUATIONS) == 0:
            curve.append([step + 1, round(evaluate(model, held_out), 4), sent[-1]])
    settled = min(setting.warmup_steps, setting.steps)
    steps_after = setting.steps - settled
    return {
        "loss": curve[-1][1] if curve else None,
        "bytes_per_step": round((sent[-1] - sent[settled]) / steps_after, 1)
        if steps_after
        else None,
        "bytes_total": sent[-1],
        "dense_bytes_per_step": optimizer.dense_bytes_per_step,
        "parameters": sum(p.numel() for p in model.parameters()),
        "curve": curve,
    }
