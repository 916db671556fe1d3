"""Reading a checkpoint back: the newest one that every worker can read, on as many workers as there are."""

import json
import logging
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ggs.dist.collectives import Collectives
from ggs.errors import CheckpointError
from ggs.train.checkpoint import files, resize
from ggs.train.checkpoint import state as state_file
from ggs.train.checkpoint.agreement import first_text, gather_texts
from ggs.train.checkpoint.files import Manifest

_log = logging.getLogger("ggs")


@dataclass(frozen=True)
class Loaded:
    """A verified checkpoint, as one worker sees it."""

    folder: Path
    manifest: Manifest
    state: dict[str, Any]
    """This worker's own: what the writer was given; on another number of workers, its share."""
    sharing: int
    """How many workers shared one residual."""
    replicated: dict[str, Tensor]
    """Rank 0's: the shared parameters. Empty elsewhere."""
    metrics: bytes
    """Rank 0's: the record up to the checkpoint."""


def choose(
    paths: tuple[Path, ...],
    collectives: Collectives,
    device: torch.device,
    sharing: int = 1,
) -> Loaded | None:
    """The first of rank 0's ``paths`` that all workers can read; a collective. None for no paths.

    Args:
        sharing: how many workers share one residual here.

    Rank 0 logs which ones could not be read and why. Raises CheckpointError if that is all of them.
    """
    agreed = json.loads(first_text(collectives, json.dumps([str(path) for path in paths]), device))
    problem = ""
    for path in agreed:
        loaded, own_problem, digest = None, "", ""
        try:
            loaded = load(Path(path), collectives.rank, collectives.size, sharing)
            digest = loaded.manifest.model_dump_json()
        except CheckpointError as error:
            own_problem = str(error)
        problem = _problem(gather_texts(collectives, own_problem, device))
        if not problem and len(set(gather_texts(collectives, digest[-60_000:], device))) > 1:
            problem = f"the workers see different manifests in {path}"
        if not problem:
            return loaded
        if collectives.rank == 0:
            _log.warning("%s is not used: %s", path, problem)
    if agreed:
        raise CheckpointError(
            f"none of the {len(agreed)} checkpoints in {Path(agreed[0]).parent} can be used (the last: "
            f"{problem}); give --resume never with --overwrite to start over"
        )
    return None


def _problem(texts: list[str]) -> str:
    ranks = [rank for rank, text in enumerate(texts) if text]
    if not ranks:
        return ""
    others = f" (and on {len(ranks) - 1} other ranks)" if len(ranks) > 1 else ""
    return f"rank {ranks[0]}: {texts[ranks[0]]}{others}"


def load(folder: Path, rank: int, world_size: int, sharing: int = 1) -> Loaded:
    """Read and verify what worker ``rank`` of ``world_size`` needs. Raises CheckpointError.

    Args:
        sharing: how many workers, one after the other in rank order, share one residual here.
    """
    manifest = files.read_manifest(folder)
    source = resize.main_source(resize.shares(manifest.world_size, world_size, rank))
    state = _read_rank(folder, manifest, source)
    before = _sharing(state, manifest)
    if (manifest.world_size, before) != (world_size, sharing) and "residual" in state["optimizer"][
        "ggs"
    ]:
        units = resize.shares(manifest.world_size // before, world_size // sharing, rank // sharing)
        weights = {
            member: share
            for unit, share in units.items()
            for member in range(unit * before, (unit + 1) * before)
        }
        states = [state if old == source else _read_rank(folder, manifest, old) for old in weights]
        _share_residuals(state, states, list(weights.values()), sharing)
    replicated: dict[str, Tensor] = {}
    metrics = b""
    if rank == 0:
        replicated = state_file.read(files.verified(folder, manifest, files.REPLICATED))
        if files.METRICS in manifest.files:
            metrics = files.verified(folder, manifest, files.METRICS).read_bytes()
    return Loaded(folder, manifest, state, before, replicated, metrics)


def _sharing(state: dict[str, Any], manifest: Manifest) -> int:
    """How many workers shared one residual when ``state`` was saved."""
    try:
        sharing = state["optimizer"]["ggs"].get("residual_weight", 1)
    except (LookupError, TypeError, AttributeError) as error:
        raise CheckpointError(f"the optimizer's state is damaged: {error!r}") from None
    if type(sharing) is not int or sharing < 1 or manifest.world_size % sharing:
        raise CheckpointError(
            f"the optimizer's state is damaged: {sharing!r} of {manifest.world_size} workers share a residual"
        )
    return sharing


def _read_rank(folder: Path, manifest: Manifest, rank: int) -> dict[str, Any]:
    return state_file.read(files.verified(folder, manifest, files.rank_file(rank)))


def _share_residuals(
    state: dict[str, Any], states: list[Any], weights: list[Fraction], sharing: int
) -> None:
    try:
        residuals = [other["optimizer"]["ggs"]["residual"] for other in states]
        ggs = state["optimizer"]["ggs"]
        ggs["residual"] = resize.weighted_sum(residuals, weights)
        ggs["residual_weight"] = sharing
        ggs["exchange"] = {}  # it is about the old ranks and parts
        if "local_steps" in ggs:
            local = [other["optimizer"]["ggs"]["local_steps"] for other in states]
            ggs["local_steps"] = {
                "steps": resize.merged_steps([one["steps"] for one in local]),
                "sum": resize.weighted_sum([one["sum"] for one in local], weights),
            }
    except (LookupError, TypeError, AttributeError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"the optimizer's state is damaged: {error!r}") from None
