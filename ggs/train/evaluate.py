"""Top-1 and loss on the test images, over all workers or on one."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ggs.dist.collectives import Collectives
from ggs.train.config import TrainConfig
from ggs.train.image_set import ImageSet
from ggs.train.models import logits

_PRECISION = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(config: TrainConfig, device: torch.device) -> torch.autocast:
    """The context in which the forward pass runs in ``config.precision``."""
    kind = _PRECISION.get(config.precision)
    return torch.autocast(device.type, kind, enabled=kind is not None)


def evaluate(
    model: nn.Module,
    images: ImageSet,
    config: TrainConfig,
    collectives: Collectives,
    device: torch.device,
) -> dict[str, float]:
    """``top1`` in percent and the mean ``loss``; every image counts once, on one worker; a collective."""
    order = torch.arange(len(images))[collectives.rank :: collectives.size]
    sums = collectives.all_reduce_sum_(_sums(model, images, order, config, device))
    correct, loss, count = sums.tolist()
    return {"top1": 100.0 * correct / count, "loss": loss / count}


def evaluate_replicas(
    model: nn.Module,
    images: ImageSet,
    config: TrainConfig,
    collectives: Collectives,
    device: torch.device,
) -> list[float]:
    """Top-1 in percent of every worker's own model, each on all images; a collective."""
    sums = _sums(model, images, torch.arange(len(images)), config, device)
    top1 = torch.zeros(collectives.size, dtype=torch.float64, device=device)
    top1[collectives.rank] = 100.0 * sums[0] / sums[2]
    return collectives.all_reduce_sum_(top1).tolist()


@torch.no_grad()
def _sums(
    model: nn.Module, images: ImageSet, order: Tensor, config: TrainConfig, device: torch.device
) -> Tensor:
    """(3,) float64: correct answers, summed cross-entropy and number of the images at ``order``."""
    sums = torch.zeros(3, dtype=torch.float64, device=device)
    training = model.training
    model.eval()
    for batch, labels in images.batches(order, config.eval_batch_size, epoch=None):
        with autocast(config, device):
            scores = logits(model(batch)).float()
        sums[0] += (scores.argmax(1) == labels).sum()
        sums[1] += F.cross_entropy(scores, labels, reduction="sum")
        sums[2] += len(labels)
    model.train(training)
    return sums
