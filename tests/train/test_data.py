"""Images: the embedded ones, torchvision's, folders; order and augmentation."""

import gzip
import hashlib
import os
import shutil
import struct
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from ggs.errors import ConfigurationError, DataError
from ggs.train import data
from ggs.train import image_folder as folder_module
from ggs.train.augment import crop_and_mirror
from ggs.train.config import TrainConfig
from ggs.train.image_set import ImageSet
from ggs.train.seeds import AUGMENTATION, ORDER, derive, epoch_order, generator

CPU = torch.device("cpu")
SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"


def load(channels: int = 1, **settings: object) -> tuple[ImageSet, ImageSet]:
    config = TrainConfig.model_validate(settings)
    return data.load(config, replace(data.spec(config), channels=channels), CPU)


def collect(
    images: ImageSet, order: torch.Tensor, batch_size: int = 8, epoch: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    parts = list(images.batches(order, batch_size, epoch))
    return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])


def test_the_embedded_images_are_balanced_distinct_and_apart() -> None:
    with np.load(Path(data.__file__).with_name("mnist5k.npz")) as file:
        train, test = file["train_images"], file["test_images"]
        assert train.shape == (4000, 28, 28)
        assert test.shape == (1000, 28, 28)
        assert np.bincount(file["train_labels"]).tolist() == [400] * 10
        assert np.bincount(file["test_labels"]).tolist() == [100] * 10
        assert len({image.tobytes() for image in (*train, *test)}) == 5000
        assert len(set(file["train_labels"][:40].tolist())) > 5  # shuffled


def test_embedded_images_are_normalised_and_scaled() -> None:
    train, test = load()
    assert (len(train), len(test)) == (4000, 1000)
    images, labels = collect(train, torch.arange(4000), 500)
    assert images.shape == (4000, 1, 28, 28)
    assert abs(float(images.mean())) < 0.05
    assert abs(float(images.std()) - 1) < 0.05
    assert labels.dtype == torch.int64
    larger, _ = collect(load(channels=3, image_size=32)[0], torch.arange(10))
    assert larger.shape == (10, 3, 32, 32)
    assert torch.equal(larger[:, 0], larger[:, 2])


def test_channels_last_reaches_the_batches() -> None:
    images, _ = next(iter(load(3, channels_last=True)[0].batches(torch.arange(4), 4, None)))
    assert images.is_contiguous(memory_format=torch.channels_last)


def test_missing_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "MNIST/raw").mkdir(parents=True)
    (tmp_path / "MNIST/raw/train-images-idx3-ubyte").touch()
    with pytest.raises(ConfigurationError, match="train-labels-idx1-ubyte is missing"):
        load(data="mnist", data_dir=tmp_path)


def test_a_damaged_file_is_one_line(tmp_path: Path) -> None:
    folder = tmp_path / "MNIST/raw"
    folder.mkdir(parents=True)
    for name in data._SPECS["mnist"].files:
        (tmp_path / name).write_bytes(b"no images")
    with pytest.raises(DataError, match=r"cannot read mnist: .*ubyte is damaged.*") as caught:
        load(data="mnist", data_dir=tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("number", range(4))
def test_the_damaged_one_of_mnists_files_is_named(tmp_path: Path, number: int) -> None:
    for name, archive in small_mnist().items():
        path = tmp_path / "MNIST/raw" / name.removesuffix(".gz")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.decompress(archive))
    assert len(load(data="mnist", data_dir=tmp_path)[0]) == 5
    bad = tmp_path / data._SPECS["mnist"].files[number]
    bad.write_bytes(bad.read_bytes()[:-1])
    with pytest.raises(DataError, match=rf"{bad.name} is damaged or missing; give --download"):
        load(data="mnist", data_dir=tmp_path)


def test_the_damaged_one_of_cifars_files_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    (folder / "batches.meta").touch()
    with pytest.raises(DataError, match=r"batches-py/data_batch_1 is damaged or missing"):
        load(data="cifar10", data_dir=tmp_path)


@pytest.mark.skipif(
    not (SHARED / "unpack").exists(), reason="needs the full MNIST in ../shared/data"
)
def test_full_mnist_holds_the_embedded_images_in_its_training_part(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    import tarfile

    folder = tmp_path_factory.mktemp("mnist")
    with tarfile.open(SHARED / "mnist.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    train, test = load(data="mnist", data_dir=folder)
    assert (len(train), len(test)) == (60_000, 10_000)
    raw = {
        name: np.fromfile(folder / f"MNIST/raw/{name}-images-idx3-ubyte", np.uint8)[16:]
        for name in ("train", "t10k")
    }
    parts = {
        name: {row.tobytes() for row in pixels.reshape(-1, 784)} for name, pixels in raw.items()
    }
    with np.load(Path(data.__file__).with_name("mnist5k.npz")) as file:
        ours = {image.tobytes() for key in ("train", "test") for image in file[f"{key}_images"]}
    assert ours <= parts["train"]
    assert not ours & parts["t10k"]


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_workers_share_an_epoch_evenly_and_without_overlap(world_size: int) -> None:
    orders = [epoch_order(1000, 0, 5, rank, world_size, 32) for rank in range(world_size)]
    assert {len(order) for order in orders} == {1000 // (32 * world_size) * 32}
    together = torch.cat(orders)
    assert len(together.unique()) == len(together)
    assert not torch.equal(orders[0], epoch_order(1000, 0, 6, 0, world_size, 32))
    assert not torch.equal(orders[0], epoch_order(1000, 1, 5, 0, world_size, 32))
    assert torch.equal(orders[0], epoch_order(1000, 0, 5, 0, world_size, 32))


def test_seeds_of_different_purposes_differ() -> None:
    seeds = {derive(s, p, e) for s in range(3) for p in (ORDER, AUGMENTATION) for e in range(3)}
    assert len(seeds) == 18


def test_crops_and_mirrors_are_those_of_plain_indexing() -> None:
    images = torch.arange(6 * 2 * 16 * 16).reshape(6, 2, 16, 16)
    numbers = generator(0, AUGMENTATION)
    offsets = torch.randint(0, 5, (2, 6, 1), generator=numbers)[..., 0]
    mirrored = torch.rand(6, 1, generator=numbers)[:, 0] < 0.5
    assert 0 < int(mirrored.sum()) < 6
    result = crop_and_mirror(images, True, generator(0, AUGMENTATION))
    for i in range(6):
        padded = torch.zeros(2, 20, 20, dtype=images.dtype)
        padded[:, 2:18, 2:18] = images[i]
        y, x = int(offsets[0, i]), int(offsets[1, i])
        expected = padded[:, y : y + 16, x : x + 16]
        assert torch.equal(result[i], expected.flip(-1) if mirrored[i] else expected)


def test_augmentation_belongs_to_training_epochs_and_survives_a_restart() -> None:
    train, _ = load(augment=True)
    order = torch.randperm(4000, generator=generator(0, ORDER))[:64]
    plain, _ = collect(train, order)
    first, _ = collect(train, order, epoch=0)
    assert not torch.equal(plain, first)
    assert not torch.equal(first, collect(train, order, epoch=1)[0])
    assert torch.equal(first[32:], collect(train, order[32:], epoch=0)[0])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """12 training and 6 test images of three classes, of different sizes and modes."""
    numbers = np.random.default_rng(0)
    for part, count in (("train", 4), ("val", 2)):
        for label in ("ant", "bee", "cat"):
            (tmp_path / part / label).mkdir(parents=True)
            for i in range(count):
                pixels = numbers.integers(0, 256, (40 + i, 30 + 2 * i, 3), dtype=np.uint8)
                image = Image.fromarray(pixels).convert("L" if i % 2 else "RGB")
                image.save(tmp_path / part / label / f"{i} ä.png")
    return tmp_path


@pytest.mark.parametrize("size", [16, 72])
def test_a_folder_reads_the_same_from_disk_and_memory(folder: Path, size: int) -> None:
    settings = {"data": "imagefolder", "data_dir": folder, "image_size": size}
    train, test = load(3, **settings)
    assert (len(train), len(test)) == (12, 6)
    images, labels = collect(train, torch.arange(12))
    assert images.shape == (12, 3, size, size)
    assert labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    kept, _ = load(3, in_memory=True, **settings)
    again, same = collect(kept, torch.arange(12))
    assert torch.equal(images, again)
    assert torch.equal(labels, same)


# PyTorch advises against more processes than processors; a machine may have one.
@pytest.mark.filterwarnings("ignore:This DataLoader will create 2 worker processes:UserWarning")
@pytest.mark.parametrize("size", [16, 72])
def test_augmented_folders_do_not_depend_on_processes_and_restarts(folder: Path, size: int) -> None:
    settings = {"data": "imagefolder", "data_dir": folder, "image_size": size, "augment": True}
    order = torch.tensor([3, 1, 7, 5, 11, 0, 2, 9])
    state = torch.get_rng_state()
    train, _ = load(3, **settings)
    first, _ = collect(train, order, 2, epoch=1)
    assert torch.equal(state, torch.get_rng_state())
    assert not torch.equal(first, collect(train, order, 2, epoch=2)[0])
    assert torch.equal(first[4:], collect(train, order[4:], 2, epoch=1)[0])
    parallel, _ = load(3, data_workers=2, **settings)
    assert torch.equal(first, collect(parallel, order, 2, epoch=1)[0])


def test_processes_decode_where_the_temporary_folder_is_far_down(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A socket's path ends after 107 bytes, and PyTorch's processes pass images on through sockets."""
    far = folder / ("far" * 40)
    far.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(far))
    settings = {"data": "imagefolder", "data_dir": folder, "image_size": 16}
    train, _ = load(3, data_workers=1, collective_timeout=120, **settings)
    images, labels = collect(train, torch.arange(12))
    assert images.shape == (12, 3, 16, 16)
    assert labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4


def test_a_corrupt_image_is_named(folder: Path) -> None:
    bad = folder / "train/bee/1 ä.png"
    bad.write_bytes(bad.read_bytes()[:100])
    train, _ = load(3, data="imagefolder", data_dir=folder, image_size=16)
    with pytest.raises(DataError, match=r"cannot decode .*bee/1 ä\.png") as caught:
        collect(train, torch.arange(12))
    assert "\n" not in str(caught.value)
    with pytest.raises(DataError, match=r"cannot decode .*bee/1 ä\.png"):
        load(3, data="imagefolder", data_dir=folder, image_size=16, in_memory=True)


@pytest.mark.parametrize("in_memory", [False, True])
def test_a_worker_without_images_has_no_batches(folder: Path, in_memory: bool) -> None:
    """As in an evaluation with fewer test images than workers."""
    _, test = load(3, data="imagefolder", data_dir=folder, image_size=16, in_memory=in_memory)
    assert list(test.batches(torch.arange(6)[7::8], 4, None)) == []
    assert list(load()[1].batches(torch.arange(0), 4, None)) == []


@pytest.mark.parametrize("suffix", ["png", "tiff", "pgm"])
def test_sixteen_bits_are_scaled_to_eight(tmp_path: Path, suffix: str) -> None:
    ramp = np.linspace(0, 65535, 256 * 256).astype(np.uint16).reshape(256, 256)
    path = tmp_path / f"ramp.{suffix}"
    Image.fromarray(ramp).save(path)
    found = np.asarray(folder_module._open(path))
    assert found.shape == (256, 256, 3)
    assert np.array_equal(found[..., 0], np.round(ramp / 257))


def test_pixels_of_an_unknown_range_are_refused(tmp_path: Path) -> None:
    Image.fromarray(np.ones((8, 8), np.float32)).save(tmp_path / "a.tiff")
    with pytest.raises(DataError, match=r"a\.tiff has 32-bit pixels"):
        folder_module._open(tmp_path / "a.tiff")


@pytest.mark.parametrize("shape", [(1, 30_000), (30_000, 1)])
def test_a_very_long_image_is_cut_before_it_is_scaled(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int]
) -> None:
    largest = 0
    resize = Image.Image.resize

    def watched(image: Image.Image, size: tuple[int, int], *rest: object) -> Image.Image:
        nonlocal largest
        largest = max(largest, size[0] * size[1])
        assert largest < 10_000_000
        return resize(image, size, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Image.Image, "resize", watched)
    pixels = np.zeros(shape, np.uint8)
    pixels[shape[0] // 2 :, shape[1] // 2 :] = 200
    found = np.asarray(folder_module._plain(Image.fromarray(pixels).convert("RGB"), 224))
    assert found.shape == (224, 224, 3)
    assert found.min() < 50 < 150 < found.max()  # it is the middle that is kept
    assert largest > 0


def test_labels_beyond_the_classes_are_a_damaged_file(tmp_path: Path) -> None:
    raw = tmp_path / "MNIST/raw"
    raw.mkdir(parents=True)
    for part in ("train", "t10k"):
        images = np.array([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 28, 0, 0, 0, 28], np.uint8).tobytes()
        (raw / f"{part}-images-idx3-ubyte").write_bytes(images + bytes(2 * 784))
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 2, 3, 11]))
    with pytest.raises(DataError, match=r"training part of mnist .* 2 images and 2 .*train-lab"):
        load(data="mnist", data_dir=tmp_path)


def test_folders_must_agree_on_their_classes(folder: Path) -> None:
    (folder / "val/cat").rename(folder / "val/dog")
    with pytest.raises(ConfigurationError, match="class 'cat' is not in both"):
        load(3, data="imagefolder", data_dir=folder)


def test_an_image_is_fed_upright_however_the_camera_was_held(tmp_path: Path) -> None:
    """As Pillow's own function turns it."""
    picture = Image.fromarray(np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3))
    for orientation in range(10):
        exif = Image.Exif()
        exif[0x0112] = orientation
        for suffix in ("png", "tiff"):
            path = tmp_path / f"{orientation}.{suffix}"
            picture.save(path, exif=exif)
            with Image.open(path) as image:
                image.load()
                expected = ImageOps.exif_transpose(image)
            assert np.array_equal(folder_module._open(path), expected), path


def test_a_damaged_exif_header_does_not_cost_the_image(tmp_path: Path) -> None:
    picture = Image.fromarray(np.zeros((4, 6, 3), np.uint8))
    picture.save(tmp_path / "a.png", exif=b"Exif\0\0no header at all")
    assert folder_module._open(tmp_path / "a.png").size == (6, 4)


def test_the_embedded_file_is_the_one_described() -> None:
    """Its notice tells where the images come from; another file needs another notice."""
    content = Path(data.__file__).with_name("mnist5k.npz").read_bytes()
    assert hashlib.sha256(content).hexdigest() == (
        "578deafb6a05191584217ec0d2f04ef102f302422e630a5d66b10a110e2d92f3"
    )


def small_mnist() -> dict[str, bytes]:
    """MNIST's four archives with five images each."""
    archives = {}
    for part in ("train", "t10k"):
        images = struct.pack(">4i", 0x803, 5, 28, 28) + bytes(5 * 28 * 28)
        labels = struct.pack(">2i", 0x801, 5) + bytes(range(5))
        archives[f"{part}-images-idx3-ubyte.gz"] = gzip.compress(images, mtime=0)
        archives[f"{part}-labels-idx1-ubyte.gz"] = gzip.compress(labels, mtime=0)
    return archives


class Home:
    """MNIST's home on this machine; it stops in the middle of every archive."""

    def __init__(self, data_dir: Path) -> None:
        self.archives = small_mnist()
        unpacked = {n.removesuffix(".gz"): gzip.decompress(c) for n, c in self.archives.items()}
        self.files = self.archives | unpacked
        self.requests = 0
        self.seen_halfway: set[str] = set()
        """Files below ``data_dir`` that were not whole while an archive was under way."""
        home = self

        class Handler(BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                self.send_response(200)
                self.end_headers()

            def do_GET(self) -> None:
                content = home.archives[self.path.rpartition("/")[2]]
                home.requests += 1
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content[:9])
                self.wfile.flush()
                threading.Event().wait(0.2)  # long enough for a careless client to open its file
                for path in (data_dir / "MNIST" / "raw").glob("*"):  # the other client may be done
                    if path.read_bytes() != home.files[path.name]:
                        home.seen_halfway.add(path.name)
                self.wfile.write(content[9:])

            def log_message(self, *arguments: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    """torchvision fetches MNIST from a server of our own."""
    from torchvision import datasets

    home = Home(tmp_path)
    checksums = [(n, hashlib.md5(c).hexdigest()) for n, c in home.archives.items()]
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(datasets.MNIST, "mirrors", [home.url])
    monkeypatch.setattr(datasets.MNIST, "resources", checksums)
    thread = threading.Thread(target=home.server.serve_forever)
    thread.start()
    yield home
    home.server.shutdown()
    home.server.server_close()
    thread.join()


def downloading(data_dir: Path) -> TrainConfig:
    return TrainConfig.model_validate({"data": "mnist", "data_dir": data_dir, "download": True})


def test_machines_that_share_a_folder_may_download_at_once(tmp_path: Path, home: Home) -> None:
    config = downloading(tmp_path)
    with ThreadPoolExecutor(2) as both:
        for done in [both.submit(data.download, config) for _ in range(2)]:
            done.result()
    assert home.seen_halfway == set()  # nothing has its name before it is whole
    assert [path.name for path in tmp_path.iterdir()] == ["MNIST"]
    assert len(load(data="mnist", data_dir=tmp_path)[0]) == 5
    before = home.requests
    data.download(config)
    assert home.requests == before


def test_a_damaged_data_set_is_downloaded_anew(tmp_path: Path, home: Home) -> None:
    config = downloading(tmp_path)
    data.download(config)
    file = tmp_path / "MNIST" / "raw" / "t10k-images-idx3-ubyte"
    file.write_bytes(file.read_bytes()[:1000])
    data.download(config)
    assert len(load(data="mnist", data_dir=tmp_path)[1]) == 5


def test_a_data_set_may_be_a_link_to_another_file_system(tmp_path: Path, home: Home) -> None:
    elsewhere = Path("/dev/shm") / f"ggs-{tmp_path.name}-{os.getpid()}"
    if not elsewhere.parent.is_dir() or os.stat("/dev/shm").st_dev == os.stat(tmp_path).st_dev:
        pytest.skip("one file system only")
    elsewhere.mkdir()
    try:
        (tmp_path / "MNIST").symlink_to(elsewhere)
        data.download(downloading(tmp_path))
        assert len(load(data="mnist", data_dir=tmp_path)[0]) == 5
        assert not list(elsewhere.rglob(".download-*"))
    finally:
        shutil.rmtree(elsewhere)


def test_a_download_that_cannot_be_is_one_line(tmp_path: Path, home: Home) -> None:
    config = downloading(tmp_path / "file" / "data")
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"data_dir: cannot write to .*/file/data: Not a directory"):
        data.download(config)
    home.archives = dict.fromkeys(home.archives, b"not what it should be")
    with pytest.raises(DataError, match=r"cannot download mnist in .*corrupted"):
        data.download(downloading(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]
