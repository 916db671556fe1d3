"""Bits per selected element and time to encode and decode, beside what peers send.

    python benchmarks/wire.py [--numel 25600000] [--density 0.001] [--device cpu|cuda]

Everything counts: header, checksum, scales and padding. The residual is synthetic (normally
distributed within layers of different scale); `error` is how much of the selected values' norm a
format keeps back in the residual. Peers' bits are those of their published codes. The last line is
JSON: `bits` by format, `index_bits` of all formats and their `entropy_bits`, log2 C(n, k) / k.
"""

import argparse
import json
import math
import os
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from ggs import wire
from ggs.select import select_reference
from ggs.wire.layout import layout_of

PEERS = {
    "DGC: float32 + int64": 96,
    "DeMo: chunked DCT": 88,
    "GRACE, Ok-Topk, gTop-k, SIDCo, BytePS: float32 + int32": 64,
    "templar": 20,
    "STC: Golomb + sign": 12.4,
}


def selection(numel: int, k: int, device: str) -> tuple[Tensor, Tensor]:
    """Indices and values of the k largest of a synthetic residual."""
    generator = torch.Generator(device).manual_seed(0)
    residual = torch.empty(numel, device=device).normal_(generator=generator)
    for layer in range(16):
        residual[numel * layer // 16 : numel * (layer + 1) // 16] *= 1e-4 * (1 + layer % 5)
    return select_reference(residual, k)


def entropy(numel: int, k: int) -> float:
    """log2 C(numel, k) / k."""
    if k in (0, numel):
        return 0.0
    log = math.lgamma(numel + 1) - math.lgamma(k + 1) - math.lgamma(numel - k + 1)
    return log / math.log(2) / k


def milliseconds(call: Callable[[], object], device: str) -> float:
    """Of one call, after the one before it."""
    call()
    if device == "cuda":
        torch.cuda.synchronize()
    before = time.perf_counter()
    call()
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - before) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--numel", type=int, default=25_600_000)
    parser.add_argument("--density", type=float, default=0.001)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    numel, device = options.numel, options.device
    k = round(numel * options.density)
    indices, values = selection(numel, k, device)
    messages = {form: wire.encode(indices, values, numel, form) for form in wire.VALUES_FORMATS}
    times: dict[tuple[str, str], list[float]] = {}
    for _ in range(options.rounds):
        for form, (message, _) in messages.items():
            spent = {
                "encode": lambda f=form, m=message: wire.encode(indices, values, numel, f, out=m),
                "decode": lambda f=form, m=message: wire.decode(m, numel, k, f),
            }
            for what, call in spent.items():
                times.setdefault((form, what), []).append(milliseconds(call, device))
    bits = {form: 8 * message.numel() / k for form, (message, _) in messages.items()}
    layout = layout_of(numel, k, "fp32")
    index_bits = 8 * (layout.size - layout.lows) / k
    print(
        f"n = {numel:,}, k = {k:,}, {device}, {torch.get_num_threads()} threads, "
        f"load {os.getloadavg()[0]:.1f}"
    )
    print(f"{'':56}{'bits':>8}{'encode ms':>11}{'decode ms':>11}{'error':>9}")
    for form, (_, sent) in messages.items():
        error = ((sent.double() - values).norm() / values.double().norm()).item()
        spent_ms = [statistics.median(times[form, what]) for what in ("encode", "decode")]
        print(f"{form:56}{bits[form]:8.2f}{spent_ms[0]:11.3f}{spent_ms[1]:11.3f}{error:9.4f}")
    for peer, peer_bits in PEERS.items():
        print(f"{peer:56}{peer_bits:8.2f}")
    print(f"index alone: {index_bits:.3f} bits; entropy: {entropy(numel, k):.3f}")
    result = {
        "numel": numel,
        "count": k,
        "device": device,
        "bits": {form: round(number, 3) for form, number in bits.items()},
        "index_bits": round(index_bits, 3),
        "entropy_bits": round(entropy(numel, k), 3),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
