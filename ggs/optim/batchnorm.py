"""BN-LG: batch-norm layers learn from local gradients only.

The paper's rule fixes the training: a batch-norm layer's affine parameters follow the worker's own
optimizer and are never exchanged. What becomes of the N different sets when the model is evaluated or
saved is our choice, and the mode's:

======================  ===================================  =====================================
mode                    during training                      evaluated and saved
======================  ===================================  =====================================
``local``               local (the paper)                    each worker its own
``average`` (default)   local                                mean of weight, bias and running mean,
                                                             pooled running variance, largest count
``recalibrate``         local                                mean of weight and bias; statistics
                                                             measured anew on calibration batches
``dense``               exchanged like all others            running statistics pooled as above
======================  ===================================  =====================================

``average`` is the default because it gives one deployable model for a few kilobytes, and only when
someone looks at it; training is the same as with ``local``, bit for bit.
"""

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ggs.dist.collectives import Collectives
from ggs.errors import ConfigurationError, MismatchError
from ggs.optim.gradients import all_finite

BatchNormMode = Literal["average", "local", "dense", "recalibrate"]


def check_mode(mode: str) -> None:
    """Raise ConfigurationError for an unknown batch-norm mode."""
    if mode not in get_args(BatchNormMode):
        raise ConfigurationError(
            f"batchnorm is {mode!r}: choose one of {', '.join(get_args(BatchNormMode))}"
        )


def batchnorm_modules(model: nn.Module) -> list[_BatchNorm]:
    """Every batch-norm layer of ``model``, in order, each once."""
    return [module for module in model.modules() if isinstance(module, _BatchNorm)]


def local_parameters(model: nn.Module, mode: BatchNormMode) -> set[nn.Parameter]:
    """The parameters that are never exchanged: batch-norm weights and biases, unless ``dense``."""
    if mode == "dense":
        return set()
    return {
        parameter
        for module in batchnorm_modules(model)
        for parameter in module.parameters(recurse=False)
    }


class RunningStatistics:
    """The running statistics after the last step that was taken.

    A forward pass updates them before anybody knows that the batch was not finite, and a NaN in them
    never leaves: a step that is skipped must take it back.

    A finite batch so large that only its variance overflows, while all gradients stay finite, goes
    unnoticed: to look for it would be a synchronisation in every step.
    """

    def __init__(self, model: nn.Module) -> None:
        # Not the tensors, which load_state_dict(assign=True) replaces.
        self._modules = batchnorm_modules(model)
        self._copied: list[Tensor] = []
        self._kept: list[Tensor] = []
        self.keep()

    def _tensors(self) -> list[Tensor]:
        return [
            tensor
            for module in self._modules
            for tensor in (module.running_mean, module.running_var, module.num_batches_tracked)
            if tensor is not None
        ]

    @torch.no_grad()
    def keep(self) -> None:
        """Those of now are good: to be called after each step that was taken."""
        tensors = self._tensors()
        if len(tensors) != len(self._copied) or any(map(operator.is_not, tensors, self._copied)):
            self._copied, self._kept = tensors, [tensor.clone() for tensor in tensors]
        elif tensors:
            torch._foreach_copy_(self._kept, tensors)

    @torch.no_grad()
    def take_back(self) -> None:
        """Where a number of this worker's is not finite, all are those of the last good step again."""
        tensors = self._tensors()
        if not all_finite([tensor for tensor in tensors if tensor.is_floating_point()]):
            torch._foreach_copy_(tensors, self._kept)


@contextmanager
def consolidated(
    model: nn.Module,
    mode: BatchNormMode,
    collectives: Collectives,
    calibration: Iterable[Any] | None,
    meet: Callable[[], None],
) -> Iterator[None]:
    """Inside, the batch-norm layers are the ones to evaluate and save; afterwards the local ones again.

    A collective: every worker enters. The bytes it exchanges are not part of any step's.

    Args:
        calibration: for ``recalibrate``, local batches as the model takes them, or (input, ...) tuples.
        meet: called before anything else is exchanged, to see that every worker is here.

    For ``recalibrate`` without calibration batches it raises ConfigurationError, and where measuring fails
    on some workers, what failed on these and MismatchError on the others.
    """
    modules = batchnorm_modules(model)
    tensors = [tensor for module in modules for tensor in _tensors(module)]
    if not tensors or mode == "local" or (collectives.size == 1 and mode != "recalibrate"):
        yield
        return
    meet()
    kept = [tensor.detach().clone() for tensor in tensors]
    try:
        with torch.no_grad():
            _average_affine(modules, collectives)
            if mode == "recalibrate":
                _measure_together(model, modules, calibration, tensors[0].device, collectives)
            _pool_statistics(modules, collectives)
        yield
    finally:
        with torch.no_grad():
            for tensor, value in zip(tensors, kept, strict=True):
                tensor.copy_(value)


def _tensors(module: _BatchNorm) -> list[Tensor]:
    affine, moments = (module.weight, module.bias), (module.running_mean, module.running_var)
    tensors = (*affine, *moments, module.num_batches_tracked)
    return [tensor for tensor in tensors if tensor is not None]


def _measure_together(
    model: nn.Module,
    modules: list[_BatchNorm],
    calibration: Iterable[Any] | None,
    device: torch.device,
    collectives: Collectives,
) -> None:
    """``_measure_anew`` on every worker. Where it fails on one all raise: no collective may wait for it."""
    failure: Exception | None = None
    try:
        _measure_anew(model, modules, calibration, device)
    except Exception as error:
        failure = error
    failed = torch.tensor([-1 if failure is None else collectives.rank], device=device)
    rank = int(collectives.all_reduce_max_(failed))
    if failure is not None:
        raise failure
    if rank >= 0:
        raise MismatchError(
            f"batchnorm is 'recalibrate' and the calibration failed on rank {rank}: see its own error"
        )


def _measure_anew(
    model: nn.Module,
    modules: list[_BatchNorm],
    calibration: Iterable[Any] | None,
    device: torch.device,
) -> None:
    """Running statistics from the calibration batches; modes and momenta stay as they are."""
    if calibration is None:
        raise ConfigurationError(
            "batchnorm is 'recalibrate' but no calibration batches were given: "
            "use optimizer.consolidated(calibration=batches)"
        )
    modes = [(module, module.training) for module in model.modules()]
    momenta = [(module, module.momentum) for module in modules]
    batches = 0

    def counted() -> Iterator[Any]:
        nonlocal batches
        for batch in calibration:
            batches += 1
            yield batch

    try:
        torch.optim.swa_utils.update_bn(counted(), model, device)
    finally:
        for module, training in modes:
            module.training = training
        for layer, momentum in momenta:
            layer.momentum = momentum
    if not batches:
        raise ConfigurationError(
            "the calibration batches are empty: give an iterable that starts anew each time, "
            "such as a DataLoader or a list"
        )


def _average_affine(modules: list[_BatchNorm], collectives: Collectives) -> None:
    affine = [p for module in modules for p in (module.weight, module.bias) if p is not None]
    for parameter, mean in zip(affine, _means(affine, collectives), strict=True):
        parameter.copy_(mean)


def _pool_statistics(modules: list[_BatchNorm], collectives: Collectives) -> None:
    """Mean of the means; variance of the N workers' batches taken as one population; largest count."""
    pairs = [(m.running_mean, m.running_var) for m in modules]
    tracked = [(mean, var) for mean, var in pairs if mean is not None and var is not None]
    firsts = [mean.double() for mean, _ in tracked]
    seconds = [var.double() + mean.double().square() for mean, var in tracked]
    means = _means(firsts + seconds, collectives)
    for (mean, var), first, second in zip(
        tracked, means[: len(tracked)], means[len(tracked) :], strict=True
    ):
        mean.copy_(first)
        var.copy_((second - first.square()).clamp_min_(0.0))
    counts = [m.num_batches_tracked for m in modules if m.num_batches_tracked is not None]
    if counts:  # a worker whose batch was taken back has seen fewer than the others
        largest = collectives.all_reduce_max_(torch.stack(counts))
        torch._foreach_copy_(counts, list(largest.unbind()))


def _means(tensors: Sequence[Tensor], collectives: Collectives) -> list[Tensor]:
    """The tensors' means over the workers, by one all-reduce in float64."""
    if not tensors:
        return []
    flat = torch.cat([tensor.detach().reshape(-1).double() for tensor in tensors])
    collectives.all_reduce_sum_(flat).div_(collectives.size)
    parts = torch.split(flat, [tensor.numel() for tensor in tensors])
    return [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)]
