"""Image files are read in order, whatever is loaded ahead, and those that are no whole images are named."""

import re
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rococo_jax.data.images import FileImages, Task, batches_by_size, run_tasks, size_in_memory
from rococo_jax.data.pictures import open_image
from rococo_jax.data.preprocessing import Preprocessing
from tests.support.cases import further
from tests.support.refusals import refused
from tests.support.world import drawing


def files_in(folder: Path, count: int) -> FileImages:
    """Write images of different sizes."""
    names = tuple(f"{number:02}.png" for number in range(count))
    for number, name in enumerate(names):
        Image.fromarray(drawing(20 + number, 31, seed=number)).save(folder / name)
    return FileImages(names, tuple(folder / name for name in names))


@pytest.mark.parametrize(("workers", "ahead"), [(1, 1), (1, 64), (2, 3), (2, 11), (7, 1), (7, 11)])
def test_images_come_in_order_for_any_prefetching_and_number_of_workers(tmp_path, workers, ahead, monkeypatch):
    monkeypatch.setattr("rococo_jax.data.images.usable_cores", lambda: workers)
    resize, files = Preprocessing(shortest_edge=16, crop_size=(16, 16)).resize, files_in(tmp_path, 11)
    expected = [resize(open_image(path)) for path in files.paths]
    np.testing.assert_array_equal(list(run_tasks(files.tasks(range(11), resize), ahead=ahead)), expected)
    rows = [2, 0, 9, 9]
    np.testing.assert_array_equal(list(files.read(rows, resize)), [expected[row] for row in rows])
    for row, image in zip(rows, files.read(rows), strict=True):
        np.testing.assert_array_equal(np.asarray(image), np.asarray(open_image(files.paths[row])))
        np.testing.assert_array_equal(np.asarray(files.thumbnail(row)), np.asarray(image))
    assert list(files.read([])) == []


def test_loading_prefetches_no_more_than_requested(tmp_path, monkeypatch):
    monkeypatch.setattr("rococo_jax.data.images.usable_cores", lambda: 4)
    files, opened = files_in(tmp_path, 1), []

    def counted(image):
        opened.append(image)
        return image

    images = run_tasks(files.tasks([0] * 1000, counted), ahead=20)
    next(images)
    assert len(opened) <= 20
    for _ in range(10):
        next(images)
    assert len(opened) <= 31
    images.close()
    assert len(opened) <= 31


RESULTS = {
    "photograph": lambda: Image.new("RGB", (1000, 1000)),
    "pixels": lambda: np.zeros((1000, 1000), np.float32),
    "files": lambda: {"jpg": bytes(3 * 10**6), "txt": bytes(10**6)},
}


@pytest.mark.parametrize("per_task", [1, 7])
@pytest.mark.parametrize("result", further(RESULTS, ("photograph",)))
def test_waiting_results_take_no_more_memory_than_allowed(result, per_task, monkeypatch):
    """Each takes 4 MB; tasks of seven of them do not fit at all, and run one by one."""
    monkeypatch.setattr("rococo_jax.data.images.usable_cores", lambda: 4)
    lock, begun, consumed, most = threading.Lock(), 0, 0, 0

    def make() -> list:
        nonlocal begun, most
        with lock:
            begun += 1
            most = max(most, begun - consumed)
        return [RESULTS[result]() for _ in range(per_task)]

    for number, _ in enumerate(run_tasks([Task(per_task, make)] * 30, most_bytes=20_000_000), 1):
        time.sleep(0.003)
        with lock:
            consumed += number % per_task == 0
    assert begun == consumed == 30 and most <= (6 if per_task == 1 else 2)


def test_images_of_many_sizes_are_read_in_order_within_the_memory_limit(tmp_path, monkeypatch):
    monkeypatch.setattr("rococo_jax.data.images.usable_cores", lambda: 7)
    sizes = [1, 300, 2, 250, 250, 1, 1, 280] * 4
    tasks = [Task(1, lambda size=size: [Image.new("RGB", (size, size))]) for size in sizes]
    assert [image.width for image in run_tasks(tasks, most_bytes=400_000)] == sizes
    reading = run_tasks(tasks, most_bytes=1)
    assert next(reading).width == 1
    reading.close()


def test_large_photographs_are_batched_by_their_memory():
    large, small = Image.new("RGB", (4000, 3000)), Image.new("L", (40, 30))
    assert [size_in_memory(each) for each in (large, small, Image.new("F", (2, 2)))] == [48_000_000, 1200, 16]
    batches = list(batches_by_size([large] * 12 + [small] * 100, 64))
    assert [len(batch) for batch in batches] == [5, 5, 64, 38]
    assert [len(batch) for batch in batches_by_size([large] * 2, 64, most_bytes=1)] == [1, 1]
    assert list(batches_by_size([], 64)) == []


def test_the_first_bad_file_in_order_is_named(tmp_path):
    files = files_in(tmp_path, 11)
    for number in (9, 6):
        files.paths[number].write_bytes(files.paths[number].read_bytes()[:60])
    images = files.read(range(11), Preprocessing(exact_size=(4, 4)).resize)
    assert len([next(images) for _ in range(6)]) == 6
    refused(r"06\.png", next, images)


def damaged_files(folder: Path) -> list[Path]:
    """Write a file for each way in which an image file can be unreadable."""
    whole = {}
    for kind in ("JPEG", "PNG", "GIF", "WEBP", "TIFF", "BMP"):
        Image.fromarray(drawing(64, 64)).save(folder / "whole", kind)
        whole[kind] = (folder / "whole").read_bytes()
    contents = {f"cut short.{kind}": data[: len(data) // 2] for kind, data in whole.items()}
    contents |= {"header only.jpg": whole["JPEG"][:30], "empty.jpg": b"", "text.jpg": b"a photograph of a cat"}
    contents |= {"damaged.png": whole["PNG"][:60] + bytes(20) + whole["PNG"][80:]}
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    (folder / "folder.jpg").mkdir()
    return [folder / name for name in (*contents, "folder.jpg", "missing.jpg")]


def test_every_file_that_is_not_a_complete_image_is_named(tmp_path):
    for path in damaged_files(tmp_path):
        refused(f"{re.escape(str(path))}: image: found", open_image, path)


def test_images_without_pixels_and_those_too_large_for_memory_are_refused_by_name(tmp_path, monkeypatch):
    def read(name: str, size: int) -> list:
        preprocessing = Preprocessing(shortest_edge=size, crop_size=(size, size))
        return list(FileImages(("a",), (tmp_path / name,)).read([0], preprocessing.resize))

    (tmp_path / "empty.ppm").write_bytes(b"P6 0 5 255 ")
    Image.new("L", (1, 60000)).save(tmp_path / "ribbon.png")
    Image.new("L", (1, 900)).save(tmp_path / "line.png")
    Image.new("L", (100, 100)).save(tmp_path / "bomb.png")
    refused(r"empty\.ppm", read, "empty.ppm", 4)
    refused("0 x 5", Preprocessing(exact_size=(4, 4)).resize, Image.new("RGB", (0, 5)))
    refused(r"ribbon\.png: aspect ratio", read, "ribbon.png", 224)
    refused(r"line\.png: aspect ratio: found .* which would become 1000 x 900000", read, "line.png", 1000)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    refused(r"bomb\.png", open_image, tmp_path / "bomb.png")
