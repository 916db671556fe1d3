"""Bytes that a worker sends and receives in a step, against the number of workers.

    python benchmarks/scaling.py [--full] [--real 2 4] [--counted 2 4 8 16 64 256] [--values fp32]

Real processes exchange a small vector over gloo and must agree, bit for bit; for large numbers of
workers the same code runs on a vector of the size of ResNet-50 with a network that only counts: what one
worker sends is exact, and what it receives is made up of valid messages. `kb` is the number of bytes of a
worker's whole selection as one message, k·b bits of the text. Last comes what waiting for the slowest of 64
and 256 workers costs, by a model (`stragglers.py`). It takes a minute; `--full` takes several, for up to 16
real and 1024 counted workers. The last line is JSON: `split_max_over_kb` is the largest of split's bytes sent
over `kb`, over all numbers of workers in the table, and `stragglers` are the model's rows.
"""

import argparse
import json
import multiprocessing
import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import stragglers
import torch
import torch.distributed as dist
from torch import Tensor

from ggs.dist.collectives import Collectives
from ggs.dist.process_group import connect
from ggs.exchange.base import Exchange, ExchangeTask
from ggs.exchange.create import ExchangeName, create
from ggs.exchange.split import Ranges, Split, second_size
from ggs.wire import encode, message_size

REAL_NUMEL, COUNTED_NUMEL, DENSITY, STEPS = 1_000_000, 25_557_032, 0.001, 3
EXCHANGES: tuple[ExchangeName, ...] = ("allgather", "split")
REAL, COUNTED = [2, 4], [2, 4, 8, 16, 64, 256]
FULL_REAL = [2, 3, 4, 8, 16]
FULL_COUNTED = [2, 3, 4, 5, 6, 7, 8, 12, 16, 32, 64, 100, 128, 256, 512, 1000, 1024]
STRAGGLING = [64, 256]


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


def work(rank: int, size: int, folder: str, values: str) -> list[tuple[int, int, int]]:
    """One real worker: per exchange its bytes in the last step, and the sum of the bits of what arrived."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = dist.FileStore(os.path.join(folder, "store"), size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    count = round(REAL_NUMEL * DENSITY)
    traffic = []
    for name in EXCHANGES:
        exchange = create(name, connect(), task(REAL_NUMEL, values, rank))
        for number in range(1, 1 + STEPS):  # the last, step 3, moves no ranges
            sent, received, weights = step(exchange, number, count)
        traffic.append((sent, received, int(weights.view(torch.int32).long().sum())))
    dist.destroy_process_group()
    return traffic


def real(size: int, values: str) -> list[Row]:
    """Run both exchanges in ``size`` processes."""
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(size, multiprocessing.get_context("spawn")) as pool,
    ):
        calls = [pool.submit(work, rank, size, folder, values) for rank in range(size)]
        workers = [call.result() for call in calls]
    whole = message_size(REAL_NUMEL, round(REAL_NUMEL * DENSITY), values)
    rows = []
    for name, traffic in zip(EXCHANGES, zip(*workers, strict=True), strict=True):
        assert len({bits for _, _, bits in traffic}) == 1, "the replicas differ"
        sent, received, _ = max(traffic)
        rows.append(Row("gloo", name, size, sent, received, sent / whole))
    return rows


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
    parser.add_argument("--full", action="store_true", help="the full table: takes minutes")
    parser.add_argument("--real", type=int, nargs="*", help="numbers of real workers")
    parser.add_argument("--counted", type=int, nargs="*", help="numbers of counted workers")
    parser.add_argument("--values", default="fp32")
    options = parser.parse_args()
    default_real, default_counted = (FULL_REAL, FULL_COUNTED) if options.full else (REAL, COUNTED)
    real_sizes = default_real if options.real is None else options.real
    counted_sizes = default_counted if options.counted is None else options.counted
    print(
        f"{'network':9}{'exchange':11}{'workers':>8}{'bytes sent':>13}{'received':>13}{'sent / kb':>11}"
    )
    rows = []
    for size in real_sizes:
        rows += real(size, options.values)
        show(rows[-2])
        show(rows[-1])
    shared = task(COUNTED_NUMEL, options.values, 0) if counted_sizes else None
    for name in EXCHANGES:
        for size in counted_sizes:
            assert shared is not None
            rows.append(counted(name, size, options.values, shared))
            show(rows[-1])
    largest = max((row.over_kb for row in rows if row.exchange == "split"), default=0.0)
    print(json.dumps({
        "numel": COUNTED_NUMEL, "density": DENSITY, "values": options.values,
        "split_max_over_kb": round(largest, 3), "stragglers": stragglers.table(STRAGGLING),
    }))  # fmt: skip


def show(row: Row) -> None:
    print(
        f"{row.network:9}{row.exchange:11}{row.workers:8}{row.sent:13,}{row.received:13,}"
        f"{row.over_kb:11.2f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
