"""Bytes that a worker sends and receives in a step, against the number of workers.

    python benchmarks/scaling.py [--real 2 3 4 8 16] [--counted 2 ... 1024] [--values fp32]

Real processes exchange a small vector over gloo and must agree, bit for bit; for large numbers of
workers the same code runs on a vector of the size of ResNet-50 with a network that only counts: what one
worker sends is exact, and what it receives is made up of valid messages. `kb` is the number of bytes of a
worker's whole selection as one message, k·b bits of the text. The last line is JSON: `split_max_over_kb`
is the largest of split's bytes sent over `kb`, over all numbers of workers in the table.
"""

import argparse
import json
import multiprocessing
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from ggs.dist.collectives import Collectives
from ggs.dist.process_group import connect
from ggs.exchange.base import Exchange, ExchangeTask
from ggs.exchange.create import create
from ggs.exchange.split import Ranges, Split, second_size
from ggs.wire import encode, message_size

REAL_NUMEL, COUNTED_NUMEL, DENSITY, STEPS = 1_000_000, 25_557_032, 0.001, 3


@dataclass(frozen=True)
class Row:
    """One line of the table; bytes are those of the worker that sent most in its last step."""

    network: str
    exchange: str
    workers: int
    sent: int
    received: int
    over_kb: float


def task(numel: int, values: str, rank: int) -> ExchangeTask:
    """A residual with tails, differently scaled along its length, half of it common to all workers."""
    common, own = (torch.Generator().manual_seed(seed) for seed in (0, 1 + rank))
    residual = torch.randn(numel, generator=common) + torch.randn(numel, generator=own)
    residual *= residual.abs() * torch.linspace(0.5, 2.0, numel)
    return ExchangeTask(residual, (0, numel), values, lambda indices, values: None)


class CountingCollectives(Collectives):
    """Rank 0 of N workers that are not there: counts as the real one, and receives valid messages."""

    def __init__(self, size: int) -> None:
        super().__init__(0, size)
        self.to_rank_0 = torch.empty(0, dtype=torch.uint8)
        self.to_all: Tensor | None = None

    def _gather(self, message: Tensor) -> Callable[[], Tensor]:
        rows = message.expand(self.size, -1) if self.to_all is None else self.to_all
        assert rows.shape == (self.size, message.numel())
        return lambda: rows

    def _scatter(self, messages: Tensor, sent_sizes: object, received_sizes: object) -> Tensor:
        return self.to_rank_0.repeat(self.size - 1)

    def _sum(self, values: Tensor) -> Tensor:
        return values.mul_(self.size)

    def _maximum(self, values: Tensor) -> Tensor:
        return values

    def _broadcast(self, values: Tensor, source: int) -> Tensor:
        return values


class CountedSplit(Split):
    """Split that tells the counting network which messages the other workers would send."""

    def _to_owners(self, ranges: Ranges) -> None:
        collectives, values = self.collectives, self.task.values_format
        assert isinstance(collectives, CountingCollectives)
        collectives.to_rank_0 = blank(ranges.numel(0), sum(ranges.first[0]), values)
        length = second_size(ranges, values)
        collectives.to_all = torch.zeros(collectives.size, length, dtype=torch.uint8)
        for owner, parts in enumerate(ranges.second):
            message = blank(ranges.numel(owner), sum(parts), values)
            collectives.to_all[owner, : len(message)] = message
        super()._to_owners(ranges)


def blank(numel: int, count: int, values: str) -> Tensor:
    """A valid message that says nothing."""
    return encode(torch.arange(count), torch.zeros(count), numel, values)[0]


def step(exchange: Exchange, number: int, count: int) -> tuple[int, int, Tensor]:
    """(bytes sent, bytes received, sum of what arrived) of one step."""
    collectives = exchange.collectives
    before = collectives.bytes_sent, collectives.bytes_received
    weights = torch.zeros(exchange.task.numel)
    for update in exchange.run([count], number):
        assert update.indices is not None
        weights.index_add_(0, update.indices, update.values)
    return collectives.bytes_sent - before[0], collectives.bytes_received - before[1], weights


def work(rank: int, size: int, folder: str, name: str, values: str) -> tuple[int, int, int]:
    """One real worker: its bytes in the last step, and the sum of the bits of what arrived."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = dist.FileStore(os.path.join(folder, "store"), size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    count = round(REAL_NUMEL * DENSITY)
    exchange = create(name, connect(), task(REAL_NUMEL, values, rank))  # type: ignore[arg-type]
    for number in range(1, 1 + STEPS):  # the last, step 3, moves no ranges
        sent, received, weights = step(exchange, number, count)
    dist.destroy_process_group()
    return sent, received, int(weights.view(torch.int32).long().sum())


def real(name: str, size: int, values: str) -> Row:
    """Run ``size`` processes."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder, context.Pool(size) as pool:
        calls = [(rank, size, folder, name, values) for rank in range(size)]
        found = pool.starmap(work, calls, chunksize=1)
    assert len({bits for _, _, bits in found}) == 1, "the replicas differ"
    sent, received, _ = max(found)
    whole = message_size(REAL_NUMEL, round(REAL_NUMEL * DENSITY), values)
    return Row("gloo", name, size, sent, received, sent / whole)


def counted(name: str, size: int, values: str, shared: ExchangeTask) -> Row:
    """Run rank 0 of ``size`` workers."""
    count = round(COUNTED_NUMEL * DENSITY)
    collectives = CountingCollectives(size)
    exchange: Exchange
    if name == "split":
        exchange = CountedSplit(collectives, shared)
    else:
        exchange = create("allgather", collectives, shared)
    step(exchange, 2, count)  # moves the ranges; they stay for step 3
    sent, received, _ = step(exchange, 3, count)
    whole = message_size(COUNTED_NUMEL, count, values)
    return Row("counted", name, size, sent, received, sent / whole)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--real", type=int, nargs="*", default=[2, 3, 4, 8, 16])
    parser.add_argument(
        "--counted", type=int, nargs="*",
        default=[2, 3, 4, 5, 6, 7, 8, 12, 16, 32, 64, 100, 128, 256, 512, 1000, 1024],
    )  # fmt: skip
    parser.add_argument("--values", default="fp32")
    options = parser.parse_args()
    print(
        f"{'network':9}{'exchange':11}{'workers':>8}{'bytes sent':>13}{'received':>13}{'sent / kb':>11}"
    )
    rows = []
    for name in ("allgather", "split"):
        for size in options.real:
            rows.append(real(name, size, options.values))
            show(rows[-1])
    shared = task(COUNTED_NUMEL, options.values, 0) if options.counted else None
    for name in ("allgather", "split"):
        for size in options.counted:
            assert shared is not None
            rows.append(counted(name, size, options.values, shared))
            show(rows[-1])
    largest = max((row.over_kb for row in rows if row.exchange == "split"), default=0.0)
    print(json.dumps({
        "numel": COUNTED_NUMEL, "density": DENSITY, "values": options.values,
        "split_max_over_kb": round(largest, 3),
    }))  # fmt: skip


def show(row: Row) -> None:
    print(
        f"{row.network:9}{row.exchange:11}{row.workers:8}{row.sent:13,}{row.received:13,}"
        f"{row.over_kb:11.2f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
