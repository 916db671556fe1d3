"""Augmentation of whole batches of small images: random crops of padded images, and mirroring."""

import torch
from torch import Tensor
from torch.nn import functional as F


def crop_and_mirror(images: Tensor, mirror: bool, generator: torch.Generator) -> Tensor:
    """Shift each image by up to an eighth of its side, with black borders, and mirror every second.

    ``images`` is (n, channels, side, side) of any dtype on any device; ``generator`` lives on the CPU.
    """
    count, _, side, _ = images.shape
    padding = side // 8
    device = images.device
    offsets = torch.randint(0, 2 * padding + 1, (2, count, 1), generator=generator).to(device)
    pixels = torch.arange(side, device=device)
    rows, columns = offsets[0] + pixels, offsets[1] + pixels  # (n, side) each
    if mirror:
        mirrored = torch.rand(count, 1, generator=generator).to(device) < 0.5
        columns = torch.where(mirrored, columns.flip(1), columns)
    padded = F.pad(images, (padding,) * 4)
    index = torch.arange(count, device=device)[:, None, None]
    cropped = padded.permute(0, 2, 3, 1)[index, rows[:, :, None], columns[:, None, :]]
    return cropped.permute(0, 3, 1, 2)
