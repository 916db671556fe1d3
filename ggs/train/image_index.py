"""Which images a folder with one sub-folder per class holds, and which class each is of."""

import logging
import os
import unicodedata
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from ggs.errors import ConfigurationError, DataError

_log = logging.getLogger("ggs")
SUFFIXES = (
    *(".apng", ".avif", ".bmp", ".dib", ".gif", ".j2k", ".jfif", ".jp2", ".jpe", ".jpeg", ".jpg"),
    *(".pbm", ".pgm", ".png", ".pnm", ".ppm", ".tga", ".tif", ".tiff", ".webp"),
)
"""Of files that are taken for images, in any case."""
_MOST_SUFFIXES = 5
"""Kinds of files that are left out which one line names."""


@dataclass(frozen=True)
class ImageIndex:
    """The images of one part of a data set."""

    root: Path
    classes: tuple[str, ...]
    """Names of the classes in order, in Unicode's composed form."""
    samples: tuple[tuple[str, int], ...]
    """Path and class of each image, in an order that is the same on every machine."""


def class_folders(root: Path) -> dict[str, Path]:
    """The folders of the classes by name, in order; hidden ones (``.ipynb_checkpoints``) are none.

    Names are in Unicode's composed form: a folder copied from a Mac has the same name in another one.
    Raises DataError and ConfigurationError.
    """
    try:
        with os.scandir(root) as entries:
            names = [e.name for e in entries if e.is_dir() and not e.name.startswith(".")]
    except OSError as error:
        raise DataError(f"data_dir: cannot read {root}: {error.strerror}") from None
    folders: dict[str, Path] = {}
    for name in sorted(names):
        composed = unicodedata.normalize("NFC", name)
        if composed in folders:
            raise ConfigurationError(
                f"data_dir: {root} has two folders called {composed!r}, in two forms of Unicode: make one "
                "of them"
            )
        folders[composed] = root / name
    return dict(sorted(folders.items()))


def index(root: Path) -> ImageIndex:
    """The images in ``root/CLASS/``, at any depth. Says once what is left out.

    Raises ConfigurationError for a class without images, DataError for a folder that cannot be read.
    """
    folders = class_folders(root)
    samples: list[tuple[str, int]] = []
    left_out: Counter[str] = Counter()
    for label, (name, folder) in enumerate(folders.items()):
        before = len(samples)
        for path in _files(root, folder):
            suffix = os.path.splitext(path)[1].lower()
            if suffix in SUFFIXES:
                samples.append((path, label))
            else:
                left_out[suffix or "no suffix"] += 1
        if len(samples) == before:
            raise ConfigurationError(
                f"data_dir: class {name!r} in {root} has no image, by the names of its files; images end in "
                f"{', '.join(SUFFIXES)}"
            )
    if left_out:
        kinds = [f"{count:,} x {suffix}" for suffix, count in left_out.most_common(_MOST_SUFFIXES)]
        more = ", ..." if len(left_out) > _MOST_SUFFIXES else ""
        _log.info(
            "data_dir: %s files in %s are left out, by their names they are no images: %s%s",
            f"{left_out.total():,}",
            root,
            ", ".join(kinds),
            more,
        )
    return ImageIndex(root, tuple(folders), tuple(samples))


def _files(root: Path, folder: Path) -> list[str]:
    """The files below ``folder`` that are not hidden, folder by folder. Links are followed, but not back to
    a folder that holds the link: below that come the same files again, and other classes'."""

    def unreadable(error: OSError) -> None:
        raise DataError(f"data_dir: cannot read {error.filename}: {error.strerror}") from None

    found: list[tuple[str, list[str]]] = []
    above = {str(folder): {_identity(root), _identity(folder)}}
    for path, folders, files in os.walk(folder, onerror=unreadable, followlinks=True):
        here = above.pop(path)
        kept = []
        for name in folders:
            below = os.path.join(path, name)
            if not name.startswith(".") and _identity(below) not in here:
                above[below] = here | {_identity(below)}
                kept.append(name)
        folders[:] = kept
        found.append((path, [name for name in files if not name.startswith(".")]))
    return [os.path.join(path, name) for path, names in sorted(found) for name in sorted(names)]


def _identity(path: str | Path) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except OSError as error:
        raise DataError(f"data_dir: cannot read {path}: {error.strerror}") from None
    return found.st_dev, found.st_ino
