"""What GGS works with. Everything else is refused at construction, by name, with the way out."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ggs.errors import UnsupportedError

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)

_OPTIMIZERS = {
    "LBFGS": "its update needs the loss of the whole batch several times a step; use Adam or SGD",
    "SparseAdam": "its sparse gradients leave no dense update to accumulate; use Adam and "
    "nn.Embedding(sparse=False)",
    "ASGD": "it averages the weights themselves; use SGD",
    "ZeroRedundancyOptimizer": "it shards the optimizer over the workers; wrap the plain optimizer",
}

_WRAPPERS = {
    "DistributedDataParallel": "it already averages the gradients; pass the plain model (ddp.module)",
    "FullyShardedDataParallel": "it shards the parameters; GGS needs them whole on every worker",
    "FSDPModule": "fully_shard() shards the parameters; GGS needs them whole on every worker",
    "DataParallel": "it splits one worker over several GPUs; start one worker per GPU instead",
}


def check_optimizer(optimizer: object) -> None:
    """Raise UnsupportedError for an optimizer that cannot be wrapped."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise UnsupportedError(
            f"a {type(optimizer).__name__} is no torch.optim.Optimizer: pass an instance, e.g. "
            "torch.optim.Adam(model.parameters())"
        )
    for base in type(optimizer).__mro__:
        if base.__name__ in _OPTIMIZERS:
            raise UnsupportedError(
                f"{type(optimizer).__name__} cannot be wrapped: {_OPTIMIZERS[base.__name__]}"
            )
    if (
        "schedulefree" in type(optimizer).__module__.lower()
        or "ScheduleFree" in type(optimizer).__name__
    ):
        raise UnsupportedError(
            f"{type(optimizer).__name__} cannot be wrapped: schedule-free optimizers keep the weights "
            "at another point than the one they update; use AdamW or SGD with a schedule"
        )
    for group in optimizer.param_groups:
        if group.get("differentiable"):
            raise UnsupportedError("differentiable=True cannot be wrapped: set it to False")


def named_parameters(
    optimizer: torch.optim.Optimizer, model: nn.Module
) -> list[tuple[str, nn.Parameter]]:
    """The optimizer's parameters with the model's names for them, in the model's order.

    Raises UnsupportedError where some are not the model's.
    """
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


def describe(
    optimizer: torch.optim.Optimizer, model: nn.Module, kinds: dict[nn.Parameter, str]
) -> dict[str, Any]:
    """What workers compare of their optimizers and models. ``kinds``: "shared" or "local", else frozen."""
    named = named_parameters(optimizer, model)
    return {
        "inner optimizer": type(optimizer).__name__,
        "parameter group": {
            str(index): {
                name: value
                for name, value in group.items()
                if isinstance(value, (bool, int, float, str, tuple, Tensor))
            }
            for index, group in enumerate(optimizer.param_groups)
        },
        "parameter count": len(named),
        "parameter": {
            name: f"{kinds.get(p, 'frozen')} {str(p.dtype)[6:]} {tuple(p.shape)}"
            for name, p in named
        },
        "buffer": {
            name: f"{str(b.dtype)[6:]} {tuple(b.shape)}" for name, b in model.named_buffers()
        },
    }


def check_model(model: nn.Module) -> None:
    """Raise UnsupportedError for a wrapper or layer that reduces, shards or sparsifies by itself."""
    if not isinstance(model, nn.Module):
        raise UnsupportedError(
            f"a {type(model).__name__} is no torch.nn.Module: pass the model itself"
        )
    for name, module in model.named_modules():
        place = f"module {name}" if name else "the model"
        for base in type(module).__mro__:
            if base.__name__ in _WRAPPERS:
                raise UnsupportedError(f"{place} is a {base.__name__}: {_WRAPPERS[base.__name__]}")
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.max_norm is not None:
            raise UnsupportedError(
                f"{place} changes its weight in the forward pass, for the local batch only "
                "(max_norm): the workers would drift apart; create it with max_norm=None"
            )
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.sparse:
            raise UnsupportedError(f"{place} has sparse gradients: create it with sparse=False")


def check_initialised(model: nn.Module) -> None:
    """Raise UnsupportedError for a lazy layer that has not seen its first batch."""
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if nn.parameter.is_lazy(tensor):
            raise UnsupportedError(
                f"{name} is not initialised yet: run one forward pass before wrapping"
            )


def check_parameters(named: Sequence[tuple[str, nn.Parameter]]) -> None:
    """Raise UnsupportedError for parameters that have no place in one flat buffer."""
    spans: list[tuple[int, int, str]] = []
    for name, parameter in named:
        if any(n > 1 and s == 0 for n, s in zip(parameter.shape, parameter.stride(), strict=True)):
            raise UnsupportedError(
                f"parameter {name} is expanded, its elements share memory: use parameter.contiguous()"
            )
        if type(parameter.data).__name__ == "DTensor":
            raise UnsupportedError(
                f"parameter {name} is a DTensor, sharded over workers: GGS needs it whole on each"
            )
        if parameter.dtype not in DTYPES:
            raise UnsupportedError(
                f"parameter {name} has dtype {parameter.dtype}: GGS works with float32, float64, "
                "bfloat16 and float16"
            )
        if parameter.device.type == "meta":
            raise UnsupportedError(f"parameter {name} is on the meta device: materialise it first")
        if parameter.device != named[0][1].device:
            raise UnsupportedError(
                f"parameter {name} is on {parameter.device}, {named[0][0]} on {named[0][1].device}: "
                "GGS needs the whole model on one device per worker"
            )
        if parameter.numel():
            extent = sum(
                (s - 1) * t for s, t in zip(parameter.shape, parameter.stride(), strict=True)
            )
            start = parameter.data_ptr()
            spans.append((start, start + (extent + 1) * parameter.element_size(), name))
    _check_shared_memory(spans)


def check_buffers(kind: str, named: Iterable[tuple[str, Tensor]]) -> None:
    """Raise UnsupportedError for what cannot take over rank 0's numbers: torch would, or would hang.

    Args:
        kind: what they are, in the message.
    """
    for name, tensor in named:
        if reason := _no_copy_into(tensor):
            raise UnsupportedError(f"{kind} {name} {reason}")


def _no_copy_into(tensor: Tensor) -> str:
    if tensor.is_nested:
        return (
            "is a nested tensor, which cannot travel: keep a padded one, or none that is a buffer"
        )
    if tensor.layout != torch.strided:
        return "is sparse and cannot travel: keep it dense, with to_dense()"
    if tensor.is_quantized:
        return "is quantized and cannot travel: train first, then quantize"
    if type(tensor.data).__name__ == "DTensor":
        return "is a DTensor, sharded over workers: GGS needs it whole on each"
    if tensor.device.type == "meta":
        return "is on the meta device: materialise it first"
    if tensor.is_inference() and not torch.is_inference_mode_enabled():
        return "was made in inference mode and cannot be written: use clone(), outside of it"
    if any(n > 1 and s == 0 for n, s in zip(tensor.shape, tensor.stride(), strict=True)):
        return "is expanded, its elements share memory: use contiguous()"
    return ""


def _check_shared_memory(spans: list[tuple[int, int, str]]) -> None:
    spans = sorted(spans)
    for (_, stop, name), (start, _, other) in itertools.pairwise(spans):
        if start < stop:
            raise UnsupportedError(
                f"parameters {name} and {other} share memory but are different objects: tie them by "
                "assigning one Parameter to both modules"
            )
