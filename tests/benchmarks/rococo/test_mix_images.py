"""`rococo mix-images`: files and manifest, resuming, seeds that never collide, and bad input in one line."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rococo_jax.benchmarks.rococo.published_mixing import make_plan, mix_place, resize_to_square
from rococo_jax.cli import mix_images
from rococo_jax.perturb.images import image_folders
from tests.support.commands import run_command
from tests.support.refusals import refused
from tests.support.world import write_pictures


@pytest.fixture
def gallery(tmp_path) -> Path:
    """Five drawn images of different sizes and modes, and their captions."""
    shapes = [((40, 30), "RGB"), ((25, 60), "L"), ((50, 50), "RGB"), ((33, 20), "RGBA"), ((10, 10), "RGB")]
    names = ["set/0.png", "set/1.png", "set/2.png", "set/3.png", "set/0.jpg"]  # the last has the stem of another image

    def picture(number, random):
        (width, height), mode = shapes[number]
        return Image.fromarray(random.integers(0, 256, (height, width, 4), np.uint8)).convert(mode)

    write_pictures(tmp_path / "images", names, picture)
    (tmp_path / "captions.json").write_text(json.dumps([{"image": name, "caption": ["a drawing"]} for name in names]))
    return tmp_path


def mix(gallery: Path, *more: str, out: str = "out") -> Path:
    arguments = ["--images", gallery / "images", "--captions", gallery / "captions.json", "--out", gallery / out, *more]
    assert run_command(mix_images, *arguments) == 0
    return gallery / out


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("protocol", ["paper", "strict", "control"])
def test_saved_images_equal_those_that_an_evaluation_mixes_in_memory(gallery, protocol):
    out = mix(gallery, "--method", "patch", "--ratio", "0.6", "--seed", "10", "--protocol", protocol)
    names = [item["image"] for item in json.loads((gallery / "captions.json").read_text())]
    plan = make_plan(names, "patch", 0.6, 10, protocol)
    squashed = [resize_to_square(Image.open(gallery / "images" / name), plan.alpha) for name in names]
    manifest = json.loads((out / "manifest.json").read_text())
    for place, entry in enumerate(manifest["pairs"]):
        mixed = mix_place(plan, place, squashed.__getitem__)
        np.testing.assert_array_equal(np.asarray(Image.open(out / entry["file"])), mixed)
        assert (entry["image"], entry["partner"]) == (names[plan.first[place]], names[plan.partner[place]])
        assert entry["true_ratio"] == plan.true_ratio[place]
    assert manifest["protocol"] == protocol and manifest["boxes"] == plan.boxes.tolist()
    assert set(contents(out)) == {"manifest.json", *(entry["file"] for entry in manifest["pairs"])}
    assert {"rococo_jax", "pillow"} <= set(manifest["versions"])


def test_names_of_files_differ_between_seeds_ratios_methods_and_protocols(gallery):
    runs = [("--seed", "1"), ("--seed", "10"), ("--ratio", "0.8"), ("--method", "patch"), ("--protocol", "strict"),
            ("--protocol", "control")]  # fmt: skip
    names = [set(contents(mix(gallery, *run, out=f"out{number}"))) for number, run in enumerate(runs)]
    assert all(len(found) == 6 for found in names)
    assert len(set.union(*names)) == 5 * len(runs) + 1  # manifest.json is the one name they share


def test_a_stopped_run_resumes_to_the_same_files(gallery, monkeypatch):
    whole = contents(mix(gallery, out="whole"))
    finished, count = image_folders.atomic_write, iter(range(100))

    def stopped(path):
        if next(count) == 3:
            raise KeyboardInterrupt
        return finished(path)

    monkeypatch.setattr(image_folders, "atomic_write", stopped)
    with pytest.raises(KeyboardInterrupt):
        mix(gallery)
    partial = contents(gallery / "out")
    assert "manifest.json" not in partial and len(partial) == 5  # three images, the plan, and their hashes
    assert all(whole[name] == content for name, content in partial.items() if not name.startswith("."))
    refused("seed", mix, gallery, "--seed", "2")
    monkeypatch.undo()
    assert contents(mix(gallery)) == whole


def test_a_folder_contains_one_run_and_is_written_once(gallery):
    out = mix(gallery, "--seed", "1")
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.jpg")}
    assert mix(gallery, "--seed", "1") == out
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*.jpg")} == before
    refused("seed: found 1; wanted 10", mix, gallery, "--seed", "10")


def test_a_file_that_is_not_an_image_is_named_and_no_manifest_is_written(gallery):
    (gallery / "images" / "set" / "2.png").write_text("not an image")
    refused(r"2\.png", mix, gallery)
    assert not (gallery / "out" / "manifest.json").exists()


def test_missing_images_one_image_and_bad_ratios_are_refused_before_anything_is_written(gallery):
    refused(r"ratio: found 1\.2", mix, gallery, "--ratio", "1.2")
    (gallery / "images" / "set" / "1.png").unlink()
    refused(r"1 of 5 images in none of .*; the first is 'set/1\.png'", mix, gallery)
    (gallery / "captions.json").write_text('[{"image": "set/0.png", "caption": ["a"]}]')
    refused("images: found 1; wanted at least two", mix, gallery)
    assert not (gallery / "out").exists()
