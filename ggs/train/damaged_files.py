"""Which file of a data set is to blame where torchvision cannot read it, or reads what cannot be."""

import math
from pathlib import Path
from typing import Any


def damaged_file(data_dir: Path, names: tuple[str, ...], dataset: Any) -> Path | None:
    """The first file that is missing or not what it should be; None where all are.

    Args:
        data_dir: the folder of the data set.
        names: its files there; of the IDX format unless ``dataset`` knows checksums.
        dataset: torchvision's class.
    """
    if hasattr(dataset, "train_list"):  # CIFAR: files of pickles, with their MD5
        from torchvision.datasets.utils import check_integrity

        listed = [*dataset.train_list, *dataset.test_list]
        listed.append((dataset.meta["filename"], dataset.meta["md5"]))
        files = [(data_dir / dataset.base_folder / name, md5) for name, md5 in listed]
        return next((path for path, md5 in files if not check_integrity(path, md5)), None)
    paths = [data_dir / name for name in names]
    return next((path for path in paths if not _is_whole_idx(path)), None)


def _is_whole_idx(path: Path) -> bool:
    """Whether a file is as long as its header says: two zeros, 8 for bytes, the number of dimensions, and
    the size of each."""
    try:
        with path.open("rb") as file:
            head = file.read(4)
            if len(head) < 4 or head[:3] != b"\0\0\x08":
                return False
            sizes = [int.from_bytes(file.read(4), "big") for _ in range(head[3])]
        return path.stat().st_size == 4 + 4 * len(sizes) + math.prod(sizes)
    except OSError:
        return False
