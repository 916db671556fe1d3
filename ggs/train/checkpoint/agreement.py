"""Texts of all workers, gathered on each."""

import torch

from ggs.dist.collectives import Collectives

TEXT_LIMIT = 64 << 10
"""Bytes of one worker's text that travel at most."""


def gather_texts(collectives: Collectives, text: str, device: torch.device) -> list[str]:
    """The texts of all workers, in rank order; a collective. Texts over 64 KiB are cut."""
    data = text.encode()[:TEXT_LIMIT]
    size = torch.tensor([len(data)], dtype=torch.int64, device=device)
    longest = int(collectives.all_reduce_max_(size))
    if longest == 0:
        return [""] * collectives.size
    padded = bytearray(data.ljust(longest, b"\0"))
    rows = collectives.all_gather(torch.frombuffer(padded, dtype=torch.uint8).to(device))
    return [row.cpu().numpy().tobytes().rstrip(b"\0").decode(errors="replace") for row in rows]


def first_text(collectives: Collectives, text: str, device: torch.device) -> str:
    """Rank 0's text, on every worker; a collective."""
    return gather_texts(collectives, text if collectives.rank == 0 else "", device)[0]
