"""Test files of the benchmarks of classes: listings, limits, and bad names in one line each."""

import re
import tarfile

import numpy as np
import pytest

from rococo_jax.benchmarks.benchmark import find_benchmark
from rococo_jax.benchmarks.classes import with_out_images
from rococo_jax.benchmarks.readers.cue_conflict import CLASSES
from rococo_jax.benchmarks.readers.cue_conflict import read as read_stimuli
from rococo_jax.benchmarks.settings import Settings
from rococo_jax.cli.main import main
from rococo_jax.data.image_files import list_images
from rococo_jax.data.tar_index import read_tar
from tests.support.refusals import refused
from tests.support.world import noise, write_pictures

PICTURE = noise(8, 8)


def opened(name, images, **settings):
    return find_benchmark(name).open({"images": images}, Settings(**{"templates": ("1",), **settings}))


def test_files_that_are_not_images_are_skipped_among_stimuli(tmp_path):
    files = [file for name in CLASSES for file in (f"cue_conflict/{name}/{name}1-dog2.JPG", f"edges/{name}3.png")]
    write_pictures(tmp_path, files, PICTURE)
    (tmp_path / "cue_conflict" / "readme.txt").touch()
    tasks = opened("cue_conflict", tmp_path).tasks
    assert {task.name: len(task.label) for task in tasks} == {"cue_conflict": 16, "edges": 16}


@pytest.mark.parametrize(
    ("benchmark", "files", "said"),
    [
        ("cue_conflict", ["cue_conflict/cat/cat1.jpg"], "SHAPEn-TEXTUREm"),
        ("cue_conflict", ["cue_conflict/cat/1-2.jpg"], "SHAPEn-TEXTUREm"),
        ("cue_conflict", ["cue_conflict/yak/yak1-cat2.jpg"], "found yak"),
        ("cue_conflict", ["edges/1.png"], "CLASSn"),
        ("cue_conflict", ["other/cat1-dog2.jpg"], "stimuli: found none"),
    ],
)
def test_bad_names_are_reported_in_one_line(tmp_path, benchmark, files, said):
    write_pictures(tmp_path, files, PICTURE)
    refused(re.escape(said), opened, benchmark, tmp_path)


@pytest.mark.parametrize(("limit", "counts"), [(0, [3, 3, 3]), (3, [1, 1, 1]), (5, [2, 2, 1])])
def test_a_limit_takes_equally_many_images_of_every_class(limit, counts, tmp_path):
    files = [f"{label}/{place}.png" for label in ("cat", "dog", "ship") for place in range(3)]
    write_pictures(tmp_path, files, PICTURE)
    found, again = (opened("cifar10", tmp_path, limit=limit) for _ in range(2))
    assert found.images == again.images and np.bincount(found.tasks[0].label).tolist() == counts
    assert found.data["coverage"]["present"] == 9 and found.data["coverage"]["complete"] == (not limit)
    taken = (
        f"limit: {limit} of 9 images were selected, in turns from each class or part: numbers are of these images only"
    )
    assert found.notes == ((taken,) if limit else ())


# What systems and programs put among images, below any folder of them.
HIDDEN = (
    ".ipynb_checkpoints/a-checkpoint.png",
    "deep/.ipynb_checkpoints/a-checkpoint.png",
    "._a.png",
    ".trash.png",
    "__MACOSX/._a.png",
    "__MACOSX/a.png",
    "@eaDir/a.png/thumb.jpg",
    "Thumbs.db",
    ".DS_Store",
    "report.pdf",
    "features.h5",
)


@pytest.mark.parametrize("hidden", [(), HIDDEN], ids=["visible", "hidden"])
def test_every_reader_lists_the_same_image_files(hidden, tmp_path):
    """Accept any case of a suffix and links in every kind of folder and tar, and no hidden file."""
    elsewhere, at = tmp_path / "elsewhere", tmp_path / "images"
    write_pictures(at, ["cat/a.png", "cat/deep/b.JPEG", "cat/c.Tif", "dog/a.png"], PICTURE)
    write_pictures(tmp_path / "edges", ["cat1.png", "deep/dog2.PNG"], PICTURE)
    (picture,) = write_pictures(elsewhere, ["d.png"], PICTURE)
    for path in (
        folder / name for folder in (at / "cat", at / "dog", tmp_path / "edges", elsewhere) for name in hidden
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture.read_bytes())
    (at / "dog" / "linked").symlink_to(elsewhere)
    (at / "dog" / "e.png").symlink_to(elsewhere / "d.png")
    (at / "dog" / "up").symlink_to(at)  # a circle
    (at / "bird").symlink_to(elsewhere)
    classes = {"bird/d.png", "cat/a.png", "cat/c.Tif", "cat/deep/b.JPEG", "dog/a.png", "dog/e.png", "dog/linked/d.png"}
    others = (("other", str(elsewhere)),)
    found = opened("cifar10", at, out_images=others)
    assert set(found.images) == classes == set(list_images(at))
    assert found.tasks[0].classes == ("bird", "cat", "dog") and len(found.tasks[0].label) == len(classes)
    assert with_out_images(found, others).image_sets["out_other"].names == ("other/d.png",)
    stimuli = [each.image for each in read_stimuli({"images": tmp_path}).images]
    assert stimuli == ["edges/cat1.png", "edges/deep/dog2.PNG"]
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for path in sorted(elsewhere.rglob("*.png")):
            (text := path.with_suffix(".txt")).write_text("a caption")
            for member in (path, text):
                tar.add(member, f"./{member.relative_to(elsewhere)}")
    assert read_tar(str(tmp_path / "a.tar"))["name"].to_pylist() == ["./d.png"]


# Files that people take for images, and Pillow's listing does not.
OTHERS = ("IMG_1.HEIC", "IMG_2.HEIC", "noext", "x.jpg_large", "z.jxl", "z.jpg?w=500")
COMPANIONS = ("cat.txt", "list.json", "labels.csv", "README", "LICENSE.md", "SHA256SUMS", ".hidden", "._a.HEIC")
COUNTED = "6 files of other kinds left out: .HEIC 2, .jpg?w=500 1, .jpg_large 1, .jxl 1, without a suffix 1"


def write_others(folder):
    folder.mkdir(parents=True, exist_ok=True)
    for name in (*OTHERS, *COMPANIONS):
        (folder / name).write_bytes(b"something")


def test_files_of_other_kinds_are_counted_in_the_notes_of_results(tmp_path):
    write_pictures(tmp_path / "images", ["cat/a.png", "dog/b.jfif"], PICTURE)
    write_pictures(tmp_path / "stimuli", [f"edges/{name}1.png" for name in CLASSES], PICTURE)
    write_pictures(tmp_path / "other", ["a.png"], PICTURE)
    assert opened("cifar10", tmp_path / "images").notes == ()
    for folder in ("images/cat", "stimuli/edges", "other"):
        write_others(tmp_path / folder)
    classes = opened("cifar10", tmp_path / "images", out_images=(("other", str(tmp_path / "other")),))
    assert classes.notes == (f"{tmp_path}/images: {COUNTED}",) and len(classes.images) == 2
    assert opened("cue_conflict", tmp_path / "stimuli").notes == (f"{tmp_path}/stimuli/edges: {COUNTED}",)
    with_others = with_out_images(classes, (("other", str(tmp_path / "other")),))
    assert with_others.notes[-1] == f"{tmp_path}/other: {COUNTED}"


def test_commands_count_files_of_other_kinds(tmp_path, capsys):
    photos = tmp_path / "photos"
    write_pictures(photos, ["a.png", "b.png", "c.png"], noise(40, 40))
    for name in "abc":
        (photos / f"{name}.txt").write_text("a dog on a chair")
    commands = {
        "corrupt-images": ["--corruption", "brightness", "--severity", "1", "--out", tmp_path / "corrupted"],
        "make-benchmark": ["--out", tmp_path / "benchmark"],
        "mix-images": ["--out", tmp_path / "mixed"],
        "pack": ["--shards", "1", "--out", tmp_path / "packed"],
        "attention": ["demo:plain", "--count", "1", "--out", tmp_path / "a.html"],
    }
    write_others(photos)
    (photos / "cat.txt").unlink()
    for command, options in commands.items():
        assert main([command, *map(str, options), "--images", str(photos)]) == 0
        assert capsys.readouterr().err.count(f"{photos}: {COUNTED}\n") == 1, command


def test_a_folder_without_images_is_refused_with_counts_of_its_other_files(tmp_path):
    write_others(tmp_path)
    refused(re.escape(f"image folder: found no image files ({COUNTED})"), list_images, tmp_path)
