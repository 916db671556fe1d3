"""Which files of a folder are images, and of which class."""

import logging
import unicodedata
from pathlib import Path

import pytest

from ggs.errors import ConfigurationError, DataError
from ggs.train.config import TrainConfig
from ggs.train.image_folder import folders, load, spec
from ggs.train.image_index import index
from tests.train.test_data import CPU


def touch(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


def found(root: Path) -> list[tuple[str, int]]:
    return [(Path(path).relative_to(root).as_posix(), label) for path, label in index(root).samples]


def test_images_are_found_at_any_depth_in_a_fixed_order(tmp_path: Path) -> None:
    touch(tmp_path, "b/2.jpg", "b/1.JPG", "b/deep/3.png", "a/9.webp", "loose.png")
    assert index(tmp_path).classes == ("a", "b")
    assert found(tmp_path) == [("a/9.webp", 0), ("b/1.JPG", 1), ("b/2.jpg", 1), ("b/deep/3.png", 1)]


def test_what_is_hidden_is_no_class_and_no_image(tmp_path: Path) -> None:
    for part in ("train", "test"):
        touch(tmp_path / part, "a/1.png", "a/._1.png", "a/.ipynb_checkpoints/1.png")
        touch(tmp_path / part, "b/1.png", ".ipynb_checkpoints/2.png", ".cache/x")
    assert found(tmp_path / "train") == [("a/1.png", 0), ("b/1.png", 1)]
    config = TrainConfig.model_validate({"data": "imagefolder", "data_dir": tmp_path})
    assert spec(config).num_classes == 2


def test_a_folder_with_hidden_folders_only_is_empty(tmp_path: Path) -> None:
    touch(tmp_path, "train/.a/1.png", "test/.a/1.png")
    with pytest.raises(ConfigurationError, match="is missing or empty"):
        folders(tmp_path)


def test_common_suffixes_are_images_and_the_others_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    images = [f"a/{n}.{s}" for n, s in enumerate(["gif", "jfif", "Jpe", "jp2", "avif", "tga"])]
    touch(tmp_path, *images, "a/notes.txt", "a/more.TXT", "a/labels.csv", "a/README", "a/.DS_Store")
    with caplog.at_level(logging.INFO, "ggs"):
        assert [path for path, _ in found(tmp_path)] == images
    (line,) = caplog.messages
    assert line.startswith(f"data_dir: 4 files in {tmp_path} are left out")
    assert "2 x .txt, 1 x " in line
    assert "1 x no suffix" in line


def test_a_class_without_images_is_refused(tmp_path: Path) -> None:
    touch(tmp_path, "a/1.png", "b/1.dcm")
    with pytest.raises(ConfigurationError, match=r"class 'b' in .* has no image.*\.png"):
        index(tmp_path)


def test_a_loop_of_links_gives_every_image_once(tmp_path: Path) -> None:
    touch(tmp_path, *(f"{name}/{number}.png" for name in "ab" for number in range(8)))
    (tmp_path / "a/self").symlink_to(".")
    (tmp_path / "a/up").symlink_to("..")
    (tmp_path / "b/deep").mkdir()
    (tmp_path / "b/deep/back").symlink_to("..")
    assert len(index(tmp_path).samples) == 16


def test_links_that_are_no_loop_are_followed(tmp_path: Path) -> None:
    touch(tmp_path, "elsewhere/x/1.png", "elsewhere/y/2.png", "root/a/0.png")
    (tmp_path / "root/a/more").symlink_to(tmp_path / "elsewhere/x")
    (tmp_path / "root/b").symlink_to(tmp_path / "elsewhere/y")
    (tmp_path / "root/a/copy.png").symlink_to("0.png")
    assert found(tmp_path / "root") == [
        ("a/0.png", 0), ("a/copy.png", 0), ("a/more/1.png", 0), ("b/2.png", 1)
    ]  # fmt: skip


def test_the_two_unicode_forms_of_a_name_are_one_class(tmp_path: Path) -> None:
    """A Mac's file system and its archives spell é as e and an accent."""
    composed, apart = (unicodedata.normalize(form, "café") for form in ("NFC", "NFD"))
    touch(tmp_path, f"train/{composed}/1.png", "train/caff/1.png")
    touch(tmp_path, f"test/{apart}/1.png", "test/caff/1.png")
    config = TrainConfig.model_validate({"data": "imagefolder", "data_dir": tmp_path})
    for images in load(config, spec(config), CPU):
        assert len(images) == 2
    assert index(tmp_path / "test").classes == index(tmp_path / "train").classes
    assert found(tmp_path / "test")[1][1] == found(tmp_path / "train")[1][1] == 1
    touch(tmp_path, f"test/{composed}/2.png")
    with pytest.raises(ConfigurationError, match="two folders called 'café'"):
        index(tmp_path / "test")


def test_a_folder_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot read .*/nowhere: No such file"):
        index(tmp_path / "nowhere")
