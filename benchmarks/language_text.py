"""The text of the language study: every second top-level module of Python 3.11.7's standard library.

It is shipped, in ``texts/``, so that results depend on no machine's Python. The archive holds the modules
unchanged and their licence, the PSF License Agreement, as ``LICENSE.txt``. Every tenth module is held out
for validation; the others, one after another, are the training text.
"""

import functools
import hashlib
import tarfile
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

ARCHIVE = Path(__file__).parent / "texts" / "python-3.11.7-library.tar.xz"
LICENSE = "PSF-2.0"
CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))
"""Each has its place in here as its number; all others share the next one."""
VOCABULARY = len(CHARACTERS) + 1
VALIDATION_SEQUENCES = 256
_HELD_OUT = 10


class Text(NamedTuple):
    """Characters as numbers below VOCABULARY, uint8."""

    training: Tensor
    """(m,)"""
    validation: Tensor
    """(h,)"""
    sha256: str
    """Of the training text and the validation text, UTF-8."""


@functools.lru_cache(maxsize=1)
def load() -> Text:
    """The shipped text."""
    with tarfile.open(ARCHIVE) as archive:
        modules = sorted(name for name in archive.getnames() if name.endswith(".py"))
        contents = [archive.extractfile(name) for name in modules]
        sources = [content.read().decode() for content in contents if content is not None]
    training = "".join(s for place, s in enumerate(sources) if place % _HELD_OUT != _HELD_OUT - 1)
    validation = "".join(sources[_HELD_OUT - 1 :: _HELD_OUT])
    digest = hashlib.sha256(f"{training}\0{validation}".encode()).hexdigest()
    return Text(_numbers(training), _numbers(validation), digest)


def _numbers(text: str) -> Tensor:
    table = {ord(character): place for place, character in enumerate(CHARACTERS)}
    return torch.tensor(
        bytearray(table.get(ord(c), VOCABULARY - 1) for c in text), dtype=torch.uint8
    )


def batch(text: Tensor, sequences: int, context: int, generator: torch.Generator) -> Tensor:
    """(sequences, context + 1) numbers, int64: windows of ``text`` at random places."""
    starts = torch.randint(len(text) - context, (sequences,), generator=generator)
    return _windows(text, starts, context)


def held_out(context: int) -> Tensor:
    """(VALIDATION_SEQUENCES, context + 1) numbers, int64: evenly spread windows of the validation text."""
    text = load().validation
    starts = torch.linspace(0, len(text) - context - 1, VALIDATION_SEQUENCES, dtype=torch.float64)
    return _windows(text, starts.long(), context)


def _windows(text: Tensor, starts: Tensor, context: int) -> Tensor:
    return text[starts.unsqueeze(1) + torch.arange(context + 1)].long()
