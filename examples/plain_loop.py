"""GGS in a plain PyTorch loop: a small network on 4,000 MNIST images that come with ggs.

    torchrun --nproc-per-node 2 examples/plain_loop.py
    python entrypoint.py --workers 2 --script examples/plain_loop.py     the same, on OpenPAI too
    python examples/plain_loop.py                                        one process, without a group

What GGS adds to a loop stands between the lines of dashes.
"""

import argparse
import os
from importlib import resources

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

import ggs


def images(part: str) -> tuple[Tensor, Tensor]:
    """(n, 1, 28, 28) float32 images and (n,) int64 labels; ``part`` is train or test."""
    with (
        resources.as_file(resources.files("ggs.train") / "mnist5k.npz") as path,
        np.load(path) as file,
    ):
        pixels = torch.from_numpy(file[f"{part}_images"]).float().unsqueeze(1) / 255
        return pixels, torch.from_numpy(file[f"{part}_labels"]).long()


def network() -> nn.Module:
    """Two convolutions with a batch-norm layer each."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, stride=2), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 5, stride=2), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Flatten(), nn.Linear(32 * 4 * 4, 10),
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--density", type=float, default=0.001)
    options = parser.parse_args()

    # -----------------------------------------------------------------------------------------------
    gpus = torch.cuda.device_count()
    if "RANK" in os.environ:  # torchrun and ggs's launcher set it
        local = int(os.environ["LOCAL_WORLD_SIZE"])
        dist.init_process_group("nccl" if gpus >= local else "gloo")
    rank = dist.get_rank() if dist.is_initialized() else 0
    workers = dist.get_world_size() if dist.is_initialized() else 1
    # -----------------------------------------------------------------------------------------------

    device = torch.device("cuda", rank % gpus) if gpus else torch.device("cpu")
    if gpus:
        torch.cuda.set_device(device)
    torch.manual_seed(0)
    pixels, labels = images("train")
    batch, steps_per_epoch = 16, len(labels) // (16 * workers)
    model = network().to(device)
    adam = torch.optim.Adam(model.parameters(), lr=0.003)

    # -----------------------------------------------------------------------------------------------
    optimizer = ggs.GGS(adam, model, options.density, warmup_steps=steps_per_epoch)
    # -----------------------------------------------------------------------------------------------

    steps = options.epochs * steps_per_epoch
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for epoch in range(options.epochs):
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(epoch))
        for indices in order[rank::workers].split(batch)[:steps_per_epoch]:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(pixels[indices].to(device)), labels[indices].to(device))
            loss.backward()
            optimizer.step()
            scheduler.step()

        # -------------------------------------------------------------------------------------------
        with optimizer.consolidated():  # batch-norm layers averaged over the workers; all enter
            accuracy = evaluate(model, device)
        # -------------------------------------------------------------------------------------------

        if rank == 0:
            print(
                f"epoch {epoch + 1}: top-1 {accuracy:.1%}, loss {loss:.3f}, last step sent "
                f"{optimizer.statistics.bytes_sent:,} B, dense {optimizer.dense_bytes_per_step:,} B"
            )
    if dist.is_initialized():
        dist.destroy_process_group()


@torch.no_grad()
def evaluate(model: nn.Module, device: torch.device) -> float:
    """Share of the test images that the model names rightly."""
    pixels, labels = images("test")
    model.eval()
    correct = model(pixels.to(device)).argmax(1).cpu() == labels
    model.train()
    return float(correct.float().mean())


if __name__ == "__main__":
    main()
