"""A transformer language model with AdamW under GGS, on the text of Python's own manual.

    torchrun --nproc-per-node 2 examples/language_model.py
    python entrypoint.py --workers 2 --script examples/language_model.py --steps 1000

Characters are predicted one after the other; the text comes with every Python, nothing is downloaded.
"""

import argparse
import math
import os
from pydoc_data.topics import topics

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

import ggs

CONTEXT = 64
"""Characters that the model sees."""


class LanguageModel(nn.Module):
    """A causal transformer: (batch, length) int64 characters to (batch, length, characters) logits."""

    def __init__(self, characters: int, width: int = 128, layers: int = 3) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, width)
        self.position = nn.Parameter(torch.zeros(CONTEXT, width))
        layer = nn.TransformerEncoderLayer(
            width,
            nhead=4,
            dim_feedforward=4 * width,
            dropout=0.0,
            batch_first=True,
            norm_first=True,
        )
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, characters)

    def forward(self, text: Tensor) -> Tensor:
        hidden = self.embedding(text) + self.position
        mask = nn.Transformer.generate_square_subsequent_mask(CONTEXT, device=text.device)
        logits: Tensor = self.head(self.norm(self.layers(hidden, mask=mask, is_causal=True)))
        return logits


def corpus() -> tuple[Tensor, int]:
    """(n,) int64 characters, and how many different ones there are."""
    text = "\n".join(topics[name] for name in sorted(topics))
    characters = {character: number for number, character in enumerate(sorted(set(text)))}
    return torch.tensor([characters[character] for character in text]), len(characters)


def batch(text: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """(size, CONTEXT + 1) pieces of the text from random places."""
    starts = torch.randint(len(text) - CONTEXT, (size, 1), generator=generator)
    return text[starts + torch.arange(CONTEXT + 1)]


def loss_of(model: nn.Module, pieces: Tensor) -> Tensor:
    """Mean cross-entropy, in nats per character."""
    return F.cross_entropy(model(pieces[:, :-1]).flatten(0, 1), pieces[:, 1:].flatten())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--density", type=float, default=0.001)
    parser.add_argument("--batch-size", type=int, default=16, help="pieces per worker")
    options = parser.parse_args()

    gpus = torch.cuda.device_count()
    if "RANK" in os.environ:
        local = int(os.environ["LOCAL_WORLD_SIZE"])
        dist.init_process_group("nccl" if gpus >= local else "gloo")
    rank = dist.get_rank() if dist.is_initialized() else 0
    device = torch.device("cuda", rank % gpus) if gpus else torch.device("cpu")
    if gpus:
        torch.cuda.set_device(device)

    text, characters = corpus()
    training, held_out = text[: -len(text) // 10], text[-len(text) // 10 :]
    torch.manual_seed(0)
    model = LanguageModel(characters).to(device)
    # Weight decay for matrices only, as is usual: parameter groups work as on any optimizer.
    matrices = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    adamw = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.98))
    optimizer = ggs.GGS(adamw, model, options.density, warmup_steps=options.steps // 5)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=options.steps // 10)

    own = torch.Generator().manual_seed(rank)  # every worker reads other pieces
    test = batch(held_out, 256, torch.Generator().manual_seed(0)).to(device)
    for step in range(1, options.steps + 1):
        optimizer.zero_grad()
        loss_of(model, batch(training, options.batch_size, own).to(device)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        warmup.step()
        if rank == 0 and (step % 50 == 0 or step == options.steps):
            with torch.no_grad():
                bits = float(loss_of(model, test)) / math.log(2)
            done = optimizer.statistics
            print(f"step {step}: {bits:.3f} bits per character, sent {done.bytes_sent:,} B of "
                  f"{optimizer.dense_bytes_per_step:,} B dense (density {done.density:.3%})")  # fmt: skip
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
