"""`rococo corrupt-images`: every image below a folder, resumable, the same bytes in any company."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from PIL import Image

from rococo_jax.cli import corrupt_images
from rococo_jax.errors import InputError
from rococo_jax.perturb.images import image_folders
from rococo_jax.perturb.images.corruptions import CORRUPTIONS
from rococo_jax.perturb.images.image_folders import image_id
from tests.support.commands import run_command
from tests.support.world import noise, write_pictures


@pytest.fixture
def folder(tmp_path) -> Path:
    """Write images of two sizes and three modes into two folders, with files that are not images."""
    images = tmp_path / "images"
    write_pictures(images, ("a.png", "b.jpg"), noise(40, 36))
    write_pictures(images / "deep", ("a.png", "g.png"), noise(33, 50))
    Image.open(images / "deep" / "g.png").convert("L").save(images / "deep" / "g.png")
    for name in ("notes.txt", ".hidden.png"):
        (images / name).write_text("not an image")
    return tmp_path


def run(folder: Path, *more: str, out: str = "out") -> Path:
    assert run_command(corrupt_images, "--images", folder / "images", "--out", folder / out, *more) == 0
    return folder / out


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


NOISE = ("--corruption", "impulse_noise", "--severity", "3", "--seed", "5")


def test_every_image_in_the_folder_is_corrupted_and_stored_without_loss(folder):
    out = run(folder, *NOISE)
    names = ["a.png", "b.jpg", "deep/a.png", "deep/g.png"]
    assert set(contents(out)) == {"a.png", "b.png", "deep/a.png", "deep/g.png", "manifest.json"}
    for name in names:
        image = np.asarray(Image.open(folder / "images" / name).convert("RGB"))[None]
        ids = np.array([image_id(name)], np.uint32)
        expected = CORRUPTIONS["impulse_noise"](image, 3, jax.random.key(5), ids=ids)[0]
        np.testing.assert_array_equal(np.asarray(Image.open((out / name).with_suffix(".png"))), expected)
    manifest = json.loads((out / "manifest.json").read_text())
    assert [entry["image"] for entry in manifest["images"]] == names
    assert (manifest["corruption"], manifest["severity"], manifest["seed"]) == ("impulse_noise", 3, 5)


def test_the_corruption_of_an_image_does_not_depend_on_other_files_of_its_folder(folder):
    whole = contents(run(folder, *NOISE))
    (folder / "images" / "a.png").unlink()
    fewer = contents(run(folder, *NOISE, out="fewer"))
    assert all(whole[name] == content for name, content in fewer.items() if name.endswith(".png"))


def test_a_stopped_run_resumes_and_a_run_with_other_settings_is_refused(folder, monkeypatch):
    whole = contents(run(folder, *NOISE, out="whole"))

    write, count = image_folders.ResumableFolder.write, iter(range(10))

    def stopped(self, name, content):
        if next(count) == 2:
            raise KeyboardInterrupt
        write(self, name, content)

    monkeypatch.setattr(image_folders.ResumableFolder, "write", stopped)
    with pytest.raises(KeyboardInterrupt):
        run(folder, *NOISE)
    assert "manifest.json" not in contents(folder / "out")
    with pytest.raises(InputError, match="severity: found 3; wanted 4"):
        run(folder, "--corruption", "impulse_noise", "--severity", "4", "--seed", "5")
    monkeypatch.undo()
    assert contents(run(folder, *NOISE)) == whole


def test_an_image_too_small_to_corrupt_is_named(folder):
    Image.new("RGB", (9, 7)).save(folder / "images" / "small.png")
    with pytest.raises(InputError, match=r"small\.png: image size: found 7 x 9; wanted at least 32"):
        run(folder, "--corruption", "contrast", "--severity", "1")


def test_jpeg_and_size_are_options_and_files_with_equal_stems_do_not_overwrite_each_other(folder):
    Image.new("RGB", (40, 36)).save(folder / "images" / "a.jpg")
    out = run(folder, "--corruption", "contrast", "--severity", "1", "--format", "jpeg", "--size", "32")
    assert {path.name for path in out.glob("*.jpg")} == {"a.png.jpg", "a.jpg.jpg", "b.jpg"}
    images = list(out.rglob("*.jpg"))
    assert len(images) == 5 and {Image.open(path).size for path in images} == {(32, 32)}


def test_a_run_does_not_resume_with_another_definition_of_corruptions(folder, monkeypatch):

    run(folder, *NOISE)
    monkeypatch.setattr(image_folders, "DEFINITION_VERSION", 0)
    with pytest.raises(InputError, match="definition"):
        run(folder, *NOISE)


def test_photographs_waiting_for_others_of_their_size_take_bounded_memory(monkeypatch):
    monkeypatch.setattr(image_folders, "_MOST_BYTES", 40_000)
    shapes = [(100, 50 + number % 20, 3) for number in range(60)]
    held = most = 0

    def items():
        nonlocal held, most
        for number, shape in enumerate(shapes):
            held += 1
            most = max(most, held)
            yield number, np.zeros(shape, np.uint8)

    numbers = []
    for batch in image_folders._batches_of_one_size(items(), 8):
        held -= len(batch)
        assert len({image.shape for _, image in batch}) == 1
        numbers += [number for number, _ in batch]
    assert sorted(numbers) == list(range(60)) and most <= 4
