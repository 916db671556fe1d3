"""Messages: what is decoded is what was sent, in few bits, and damage is never decoded."""

import math
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ggs import wire
from ggs.errors import ConfigurationError, WireError
from ggs.wire import cpu_codec, torch_codec
from ggs.wire.layout import CHECKSUM_AT, FORMATS, HEADER_BYTES, layout_of
from tests.fuzz import EDITS, Edits, bounded, cases, damaged

FORMAT = st.sampled_from(wire.VALUES_FORMATS)
SIZES = st.sampled_from([0, 1, 2, 3, 31, 32, 33, 255, 256, 257, 1000, 65_537])
SCALES = st.sampled_from([0.0, 1e-45, 1e-40, 1e-30, 1e-12, 1.0, 1e12, 3e38])
BOTH = pytest.mark.parametrize("codec", [cpu_codec, torch_codec], ids=["compiled", "torch"])


def selection(
    numel: int, k: int, seed: int, scale: float, dtype: torch.dtype
) -> tuple[Tensor, ...]:
    """Ascending indices and heavy-tailed values of both signs."""
    generator = torch.Generator().manual_seed(seed)
    indices = torch.randperm(numel, generator=generator)[:k].sort().values
    values = torch.randn(k, generator=generator, dtype=torch.float64)
    limit = 1.0 if scale == 3e38 else 50.0
    return indices, ((values**3).clamp(-limit, limit) * scale).to(dtype)


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Several threads on small messages."""
    monkeypatch.setattr(cpu_codec, "GRAIN", 64)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    return monkeypatch


@BOTH
@cases(0.6)
@given(SIZES, st.floats(0, 1), FORMAT, SCALES, st.booleans(), st.integers(0, 10**6))
def test_round_trip(
    codec: ModuleType,
    use: pytest.MonkeyPatch,
    numel: int,
    density: float,
    form: str,
    scale: float,
    double: bool,
    seed: int,
) -> None:
    use.setattr(wire, "_codec", lambda device: codec)
    k = round(numel * density)
    dtype = torch.float64 if double else torch.float32
    indices, values = selection(numel, k, seed, scale, dtype)
    message, sent = wire.encode(indices, values, numel, form)
    assert message.numel() == wire.message_size(numel, k, form)
    assert sent.dtype == FORMATS[form].dtype
    got_indices, got_values = wire.decode(message, numel, k, form)
    assert got_indices.dtype == torch.int64
    assert torch.equal(got_indices, indices)
    assert torch.equal(got_values, sent)
    assert got_values.dtype == sent.dtype
    assert bool(sent.isfinite().all())


@cases(0.8)
@given(SIZES, st.floats(0, 1), FORMAT, SCALES, st.booleans(), st.integers(0, 10**6))
def test_both_codecs_write_the_same_bytes(
    use: pytest.MonkeyPatch,
    numel: int,
    density: float,
    form: str,
    scale: float,
    double: bool,
    seed: int,
) -> None:
    dtype = torch.float64 if double else torch.float32
    indices, values = selection(numel, round(numel * density**2), seed, scale, dtype)
    messages, sents = [], []
    for codec in (cpu_codec, torch_codec):
        use.setattr(wire, "_codec", lambda device, codec=codec: codec)
        message, sent = wire.encode(indices, values, numel, form)
        messages.append(message)
        sents.append(sent)
    assert torch.equal(*messages)
    assert torch.equal(*sents)


class _DividesAsCUDA(TorchDispatchMode):
    """CUDA's division by a number that is not a tensor there multiplies by its reciprocal."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._overloadpacket in (torch.ops.aten.div, torch.ops.aten.div_):
            assert not kwargs
            dividend, divisor = args
            if not isinstance(divisor, Tensor):
                return dividend * (torch.ones((), dtype=dividend.dtype) / divisor)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("form", wire.VALUES_FORMATS)
def test_the_bytes_do_not_depend_on_how_a_device_divides(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    indices, values = selection(40_000, 20_000, 3, 1.0, torch.float32)
    message, sent = wire.encode(indices, values, 40_000, form)
    monkeypatch.setattr(wire, "_codec", lambda device: torch_codec)
    with _DividesAsCUDA():
        other, other_sent = wire.encode(indices, values, 40_000, form)
        _, decoded = wire.decode(message, 40_000, 20_000, form)
    assert torch.equal(other, message)
    assert torch.equal(other_sent, sent)
    assert torch.equal(decoded, sent)


@BOTH
def test_indices_beyond_32_bits(codec: ModuleType, use: pytest.MonkeyPatch) -> None:
    use.setattr(wire, "_codec", lambda device: codec)
    numel = 2**40 + 3
    indices = torch.tensor([0, 5, 2**31, 2**32 + 1, 2**40 + 2])
    message, _ = wire.encode(indices, torch.ones(5), numel, "sign")
    assert torch.equal(wire.decode(message, numel, 5, "sign")[0], indices)


def test_finest_formats_lose_nothing() -> None:
    indices, values = selection(5000, 700, 0, 1.0, torch.float64)
    assert torch.equal(wire.encode(indices, values, 5000, "fp64")[1], values)
    assert torch.equal(wire.encode(indices, values.float(), 5000, "fp32")[1], values.float())


@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1.0, 1e30])
def test_error_of_each_format(scale: float) -> None:
    """Relative error on a normal distribution's tail, of which 0.1 % is selected."""
    field = torch.randn(2_000_000, generator=torch.Generator().manual_seed(0))
    indices = torch.topk(field.abs(), 2000).indices.sort().values
    values = field[indices] * scale
    for form, limit in {"bf16": 0.002, "int8": 0.002, "int4": 0.02, "sign": 0.15}.items():
        sent = wire.encode(indices, values, field.numel(), form)[1].double()
        assert (sent - values).norm() <= limit * values.double().norm()
        assert bool((sent.sign() == values.sign()).all())


@BOTH
def test_an_outlier_does_not_speak_for_the_others(
    codec: ModuleType, use: pytest.MonkeyPatch
) -> None:
    use.setattr(wire, "_codec", lambda device: codec)
    for outliers in (1, 100):
        values = torch.linspace(1.0, 1.5, 300)
        values[:outliers] = -1e6
        sent = wire.encode(torch.arange(300), values, 300, "sign")[1]
        assert bool((sent[:outliers] < 0).all())
        assert bool((sent[outliers:256] > 0).all())
        assert float(sent.abs().max()) <= 3.0
    sparse = torch.zeros(256)
    sparse[[3, 7]] = torch.tensor([2.0, -4.0])  # the mean of all is far below the median
    assert float(wire.encode(torch.arange(256), sparse, 256, "sign")[1][3]) == 6 / 256
    assert not wire.encode(torch.arange(4), torch.zeros(4), 4, "sign")[1].any()


@pytest.mark.parametrize("form", wire.VALUES_FORMATS)
@cases(0.2)
@given(SCALES, st.integers(0, 10**6))
def test_the_error_is_exact_in_float64(form: str, scale: float, seed: int) -> None:
    """value - sent + sent is the value again, so that nothing is lost from the residual."""
    indices, values = selection(3000, 300, seed, 1.0, torch.float64)
    values = ((values + values.sign() / 100) * min(scale, 1e36)).float()
    sent = wire.encode(indices, values, 3000, form)[1].double()
    left = values.double() - sent
    assert torch.equal(left + sent, values.double())
    if form in ("bf16", "fp32", "fp64"):
        assert torch.equal((values - sent.float()).double(), left)


def test_bf16_is_torchs() -> None:
    values = selection(70_000, 70_000, 1, 1e-3, torch.float32)[1]
    sent = wire.encode(torch.arange(70_000), values, 70_000, "bf16")[1]
    assert torch.equal(sent, values.bfloat16().float())


def test_numbers_beyond_a_format_are_limited_and_the_rest_stays() -> None:
    values = torch.tensor([3.4e38, -3.4e38, 1.0, 1e-45])
    for form in ("bf16", "int8", "int4", "sign"):
        sent = wire.encode(torch.arange(4), values, 4, form)[1]
        assert bool(sent.isfinite().all()), form
    huge = torch.tensor([1e300, -1e300], dtype=torch.float64)
    sent = wire.encode(torch.arange(2), huge, 2, "fp32")[1]
    assert sent.tolist() == [torch.finfo(torch.float32).max, -torch.finfo(torch.float32).max]


def entropy(numel: int, k: int) -> float:
    """log2 C(numel, k)."""
    log = math.lgamma(numel + 1) - math.lgamma(k + 1) - math.lgamma(numel - k + 1)
    return log / math.log(2)


@pytest.mark.parametrize("numel", [1_000_000, 25_600_000])
def test_index_bits_are_near_the_entropy(numel: int) -> None:
    for exponent in range(100, 501):
        density = 10 ** (-exponent / 100)
        k = round(numel * density)
        layout = layout_of(numel, k, "fp32")
        excess = 8 * (layout.size - layout.lows) / entropy(numel, k) - 1
        # The three paddings of a message to whole words, at most 20 bytes, are not the code's.
        allowed = (0.05 if density <= 1e-3 else 0.12) + 160 / entropy(numel, k)
        assert excess <= allowed, (density, excess)


def test_bits_of_a_resnet_50() -> None:
    numel, k = 25_600_000, 25_600
    for form, limit in {"fp32": 44.2, "bf16": 28.2, "int4": 16.4, "sign": 13.3}.items():
        assert 8 * wire.message_size(numel, k, form) / k <= limit


@BOTH
def test_any_changed_byte_is_noticed(codec: ModuleType, use: pytest.MonkeyPatch) -> None:
    use.setattr(wire, "_codec", lambda device: codec)
    for form in wire.VALUES_FORMATS:
        indices, values = selection(500, 40, 2, 1.0, torch.float32)
        message, _ = wire.encode(indices, values, 500, form)
        for at in range(message.numel()):
            for flip in (1, 128, 255):
                damaged = message.clone()
                damaged[at] ^= flip
                with pytest.raises(WireError):
                    wire.decode(damaged, 500, 40, form)


def seal(message: Tensor) -> Tensor:
    """The message with the checksum that its bytes should have."""
    message[CHECKSUM_AT:HEADER_BYTES] = torch_codec.checksum(message).view(torch.uint8)
    return message


@pytest.mark.fuzz
@given(FORMAT, st.data())
def test_forged_messages_decode_as_written_or_not_at_all(
    use: pytest.MonkeyPatch, form: str, data: st.DataObject
) -> None:
    """Damage under a right checksum: only what an encoder could have written is accepted."""
    numel = data.draw(st.sampled_from([40, 300, 3000]))
    k = data.draw(st.sampled_from([0, 1, 9, 20, 40]))
    indices, values = selection(numel, k, 3, 1.0, torch.float32)
    message, _ = wire.encode(indices, values, numel, form)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, message.numel() - 1))
        message[at] = data.draw(st.integers(0, 255))
    read, refused = [], []
    for reader in (cpu_codec, torch_codec):
        use.setattr(wire, "_codec", lambda device, reader=reader: reader)
        try:
            read.append(wire.decode(seal(message.clone()), numel, k, form))
        except WireError as error:
            refused.append(str(error))
    assert len(refused) in (0, 2)
    assert all("\n" not in text for text in refused)
    if refused:
        return
    got, decoded = read[0]
    assert torch.equal(got, read[1][0])
    assert torch.equal(decoded, read[1][1])
    assert bool(decoded.isfinite().all())
    assert bool((got[1:] > got[:-1]).all())
    assert len(got) == 0 or (got[0] >= 0 and got[-1] < numel)


@pytest.mark.fuzz
@given(st.binary(max_size=400), st.integers(0, 100), st.integers(0, 100), FORMAT)
def test_noise_is_rejected(noise: bytes, numel: int, k: int, form: str) -> None:
    k = min(k, numel)
    size = wire.message_size(numel, k, form)
    whole = (noise + bytes(size))[:size]
    for raw in (noise, whole):
        with pytest.raises(WireError):
            wire.decode(torch.tensor(list(raw), dtype=torch.uint8), numel, k, form)


@pytest.mark.fuzz
@given(EDITS, FORMAT)
def test_damaged_messages_are_rejected(edits: Edits, form: str) -> None:
    """Bytes changed, lost or added, without a right checksum."""
    indices, values = selection(300, 20, 3, 1.0, torch.float32)
    message, _ = wire.encode(indices, values, 300, form)
    content = bytes(message.tolist())
    changed = damaged(content, edits)
    assume(changed != content)
    with pytest.raises(WireError):
        wire.decode(torch.tensor(list(changed), dtype=torch.uint8), 300, 20, form)


@BOTH
@pytest.mark.parametrize("place", [4, 10], ids=["numel", "count"])
@pytest.mark.parametrize("claim", [0, 19, 301, 2**30, 2**48 - 1])
def test_a_header_that_claims_another_length(
    codec: ModuleType, use: pytest.MonkeyPatch, place: int, claim: int
) -> None:
    """Nothing is allocated for what a header claims: the receiver knows what must come."""
    use.setattr(wire, "_codec", lambda device: codec)
    indices, values = selection(300, 20, 3, 1.0, torch.float32)
    message, _ = wire.encode(indices, values, 300, "fp32")
    message[place : place + 6] = torch.tensor(list(claim.to_bytes(6, "little")))
    with bounded(), pytest.raises(WireError, match=f"holds .*{claim}.*, not 20 of 300"):
        wire.decode(seal(message), 300, 20, "fp32")


def test_foreign_messages_say_what_is_wrong() -> None:
    indices, values = selection(1000, 10, 0, 1.0, torch.float32)
    message, _ = wire.encode(indices, values, 1000, "fp32")
    other = message.clone()
    other[2] = 9
    with pytest.raises(WireError, match="version 9"):
        wire.decode(other, 1000, 10, "fp32")
    other[0] = 0
    with pytest.raises(WireError, match="not a GGS message"):
        wire.decode(other, 1000, 10, "fp32")
    with pytest.raises(WireError, match="10 of 1000 elements as fp32, not 10 of 999 as fp32"):
        wire.decode(message, 999, 10, "fp32")
    with pytest.raises(WireError, match="bytes"):
        wire.decode(message[:-8], 1000, 10, "fp32")
    with pytest.raises(WireError, match="float32"):
        wire.decode(message.float(), 1000, 10, "fp32")


def test_buffers_of_the_caller() -> None:
    """A message can be written into, and read from, the middle of a larger buffer."""
    indices, values = selection(1000, 10, 0, 1.0, torch.float32)
    size = wire.message_size(1000, 10, "int4")
    large = torch.full((size + 32,), 255, dtype=torch.uint8)
    message, sent = wire.encode(indices, values, 1000, "int4", out=large[16 : 16 + size])
    assert message.data_ptr() == large[16:].data_ptr()
    assert bool((large[:16] == 255).all())
    assert bool((large[16 + size :] == 255).all())
    shifted = torch.cat([large[:1], message])[1:]
    assert torch.equal(wire.decode(shifted, 1000, 10, "int4")[1], sent)


def test_unknown_format() -> None:
    with pytest.raises(ConfigurationError, match="'fp16' is unknown: use one of fp64, fp32"):
        wire.message_size(10, 1, "fp16")
    with pytest.raises(ConfigurationError, match="11 of 10"):
        wire.message_size(10, 11, "fp32")


def test_a_message_bit_by_bit() -> None:
    """The format of version 1 must never change: 2 of 16 elements, and one block of scales."""
    message, sent = wire.encode(torch.tensor([1, 13]), torch.tensor([1.0, -3.0]), 16, "int4")
    assert sent.tolist() == [1.0, -3.0]
    assert bytes(message[:16]) == b"GS\x01\x05" + bytes([16, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0])
    values, scales, lows, highs = message[HEADER_BYTES:].view(-1, 4)[:4].tolist()
    assert values == [0xF0, 0, 0, 0]  # level 0, then level 7 and negative
    assert scales == [0x80, 0x3F, 0x40, 0x40]  # bfloat16 1.0 and 3.0
    assert layout_of(16, 2, "int4").low_bits == 2
    assert lows == [0b0101, 0, 0, 0]  # 1 is 4 * 0 + 1, 13 is 4 * 3 + 1
    assert highs == [0b10001, 0, 0, 0]  # bits 0 + 0 and 3 + 1
    weights = [((i + 1) * 0x9E3779B97F4A7C15) % 2**64 for i in range(message.numel() // 4)]
    weights = [((x ^ x >> 32) * 0xBF58476D1CE4E5B9) % 2**64 for x in weights]
    weights = [(x ^ x >> 32) | 1 for x in weights]
    weights[4:6] = [0, 0]
    words = [int.from_bytes(bytes(message[i : i + 4]), "little") for i in range(0, len(message), 4)]
    total = sum(a * b for a, b in zip(weights, words, strict=True)) % 2**64
    assert bytes(message[16:24]) == total.to_bytes(8, "little")
