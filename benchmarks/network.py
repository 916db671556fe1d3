"""One training step on four hosts over a network of known speed: GGS and its rivals.

    sudo python benchmarks/network.py [--models alexnet resnet50 densenet121] [--methods ...]
        [--networks unshaped 1gbit 100mbit] [--results docs/results/network.jsonl]

Needs root: the hosts are network namespaces of this machine on one bridge, and `tc` limits what each
sends and receives. Each host runs one worker on one thread; all methods train with the same optimizer
(fused Adam) on the same batches. `none` exchanges nothing: the floor. A step's time is that of the slowest
worker, the median over the steps; `bytes` is what a host's network card sent in a step, TCP included.

Every finished row is appended to the results at once, and rows that are already there are not measured
again, so the benchmark can be interrupted and continued. The last line is JSON with all `rows`.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

HOSTS = 4
IMAGE_SIDE = {"alexnet": 224, "resnet50": 96, "densenet121": 96}
BATCH = 4
METHODS = ("none", "ggs", "ddp", "ddp bf16", "powersgd 1", "powersgd 4")
BURST = {"100mbit": "64kb"}
LEAST_WARM_UP, WARM_UP = 3, 6  # PowerSGD compresses from its third step on
LEAST_STEPS, MOST_STEPS = 2, 15
SECONDS = 8.0
"""How long warm-up and measurement each go on beyond their least number of steps."""
DENSITY = 0.001

Row = dict[str, Any]


# ---- the network -----------------------------------------------------------------------------------


def command(*words: str, check: bool = True) -> None:
    subprocess.run(words, check=check, capture_output=not check)


@contextmanager
def hosts(rate: str) -> Iterator[list[str]]:
    """Names of network namespaces, each with an eth0 of ``rate`` both ways, on one bridge."""
    tag = f"gn{os.getpid() % 10_000}"
    names = [f"{tag}h{i}" for i in range(HOSTS)]
    forwarding = ["DOCKER-USER", "-i", tag, "-o", tag, "-j", "ACCEPT"]
    has_docker = shutil.which("iptables") is not None
    try:
        command("ip", "link", "add", tag, "type", "bridge")
        command("ip", "link", "set", tag, "up")
        if has_docker:  # Docker's rules would otherwise drop what crosses the bridge
            command("iptables", "-I", *forwarding, check=False)
        for i, name in enumerate(names):
            outer = f"{tag}v{i}"
            command("ip", "netns", "add", name)
            command(
                "ip", "link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", name
            )
            command("ip", "link", "set", outer, "master", tag, "up")
            inside = ("ip", "netns", "exec", name)
            command(*inside, "ip", "addr", "add", f"10.211.0.{i + 1}/24", "dev", "eth0")
            command(*inside, "ip", "link", "set", "eth0", "up")
            command(*inside, "ip", "link", "set", "lo", "up")
            if rate != "unshaped":
                burst = BURST.get(rate, "256kb")
                shape = ("root", "tbf", "rate", rate, "burst", burst, "latency", "50ms")
                command("tc", "qdisc", "replace", "dev", outer, *shape)
                command(*inside, "tc", "qdisc", "replace", "dev", "eth0", *shape)
        yield names
    finally:
        for name in names:
            command("ip", "netns", "del", name, check=False)
        if has_docker:
            command("iptables", "-D", *forwarding, check=False)
        command("ip", "link", "del", tag, check=False)


def run_workers(network: str, model: str, methods: list[str], results: Path) -> None:
    """Measure the rows of one model on one network; rank 0 appends them to ``results``."""
    with hosts(network) as names:
        processes = []
        for rank, name in enumerate(names):
            words = ["ip", "netns", "exec", name, sys.executable, __file__, "--rank", str(rank)]
            words += ["--networks", network, "--models", model, "--results", str(results)]
            environment = {**os.environ, "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"}
            processes.append(subprocess.Popen([*words, "--methods", *methods], env=environment))
        try:
            while any(process.poll() is None for process in processes):
                if any(process.poll() for process in processes):
                    raise SystemExit(f"a worker failed on {network}, {model}")
                time.sleep(0.5)
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                process.wait()


# ---- a worker --------------------------------------------------------------------------------------


def trainer(
    method: str, name: str, device: str = "cpu", batch: int = BATCH, side: int | None = None
) -> Callable[[int], None]:
    """A function that does step 0, 1, ... of a method, on images of ``side`` pixels a side."""
    import torch
    import torchvision
    from torch import nn
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    import ggs

    torch.manual_seed(0)
    model: nn.Module = torchvision.models.get_model(name, num_classes=1000).to(device)
    optimizer: torch.optim.Optimizer = torch.optim.Adam(model.parameters(), fused=True)
    network = model
    if method == "ggs":
        optimizer = ggs.GGS(optimizer, model, density=DENSITY)
    elif method != "none":
        whole = method.startswith("powersgd")  # with several buckets the hook fails on gloo
        network = nn.parallel.DistributedDataParallel(
            model,
            broadcast_buffers=False,  # GGS sends no batch-norm statistics in a step either
            bucket_cap_mb=4096 if whole else None,
        )
        if method == "ddp bf16":  # wrapped, since DDP refuses the hook itself on gloo

            def compress(state, bucket):  # type: ignore[no-untyped-def]  # DDP checks annotations
                return default_hooks.bf16_compress_hook(state, bucket)

            network.register_comm_hook(None, compress)
        elif whole:
            rank = int(method.split()[1])
            state = powerSGD_hook.PowerSGDState(None, rank, start_powerSGD_iter=2)
            network.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    side = side or IMAGE_SIDE[name]
    own = torch.Generator(device).manual_seed(1 + torch.distributed.get_rank())

    def step(number: int) -> None:
        images = torch.randn(batch, 3, side, side, generator=own, device=device)
        classes = torch.randint(0, 1000, (batch,), generator=own, device=device)
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(images), classes).backward()
        optimizer.step()

    return step


def transmitted() -> int:
    return int(Path("/sys/class/net/eth0/statistics/tx_bytes").read_text())


def measure(method: str, name: str) -> tuple[list[float], float]:
    """(seconds of the slowest worker in each step, bytes that this host sent in a step)."""
    import torch
    import torch.distributed as dist

    step = trainer(method, name)

    def enough(done: int, least: int, most: int, started: float) -> bool:
        late = torch.tensor([time.monotonic() - started > SECONDS], dtype=torch.int64)
        dist.broadcast(late, 0)
        return done >= most or (done >= least and bool(late))

    number, started = 0, time.monotonic()
    while not enough(number, LEAST_WARM_UP, WARM_UP, started):
        step(number)
        number += 1
    seconds: list[float] = []
    bytes_sent: list[int] = []
    started = time.monotonic()
    while not enough(len(seconds), LEAST_STEPS, MOST_STEPS, started):
        dist.barrier()
        before, sent = time.perf_counter(), transmitted()
        step(number + len(seconds))
        took = torch.tensor([time.perf_counter() - before], dtype=torch.float64)
        bytes_sent.append(transmitted() - sent)
        dist.all_reduce(took, op=dist.ReduceOp.MAX)
        seconds.append(float(took))
    return seconds, statistics.median(bytes_sent)


def work(rank: int, network: str, name: str, methods: list[str], results: Path) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method="tcp://10.211.0.1:29500", rank=rank, world_size=HOSTS,
        timeout=timedelta(minutes=15),
    )  # fmt: skip
    for method in methods:
        seconds, sent = measure(method, name)
        if rank == 0:
            row = {
                "model": name,
                "network": network,
                "method": method,
                "step_ms": round(statistics.median(seconds) * 1e3, 1),
                "least_ms": round(min(seconds) * 1e3, 1),
                "bytes": round(sent),
                "steps": len(seconds),
                "hosts": HOSTS,
            }
            with results.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(
                f"  {method:12}{row['step_ms']:10.1f} ms{row['bytes'] / 1e6:10.2f} MB", flush=True
            )
    dist.barrier()
    dist.destroy_process_group()


# ---- the table -------------------------------------------------------------------------------------


def read(results: Path) -> list[Row]:
    if not results.exists():
        return []
    return [json.loads(line) for line in results.read_text().splitlines() if line]


def table(rows: list[Row]) -> str:
    """Per model and network: each method's time as a multiple of the floor, and its bytes."""
    lines = []
    for model, network in dict.fromkeys((row["model"], row["network"]) for row in rows):
        found = {r["method"]: r for r in rows if (r["model"], r["network"]) == (model, network)}
        floor = found.get("none", {}).get("step_ms")
        lines.append(f"{model}, {network}")
        for method, row in found.items():
            over = f"{row['step_ms'] / floor:8.2f} x floor" if floor else ""
            lines.append(
                f"  {method:12}{row['step_ms']:10.1f} ms{over}{row['bytes'] / 1e6:10.2f} MB"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=list(IMAGE_SIDE), choices=list(IMAGE_SIDE))
    parser.add_argument("--networks", nargs="+", default=["unshaped", "1gbit", "100mbit"])
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--results", type=Path, default=Path("docs/results/network.jsonl"))
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        work(options.rank, options.networks[0], options.models[0], options.methods, options.results)
        return
    if os.geteuid():
        raise SystemExit("network namespaces need root: run with sudo")
    options.results.parent.mkdir(parents=True, exist_ok=True)
    for network in options.networks:
        for model in options.models:
            done = {
                r["method"]
                for r in read(options.results)
                if (r["model"], r["network"]) == (model, network)
            }
            missing = [method for method in options.methods if method not in done]
            if missing:
                print(f"{model}, {network}: load {os.getloadavg()[0]:.1f}", flush=True)
                run_workers(network, model, missing, options.results)
    rows = read(options.results)
    print(table(rows))
    print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
