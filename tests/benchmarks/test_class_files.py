"""Files of the benchmarks of classes: listings, limits, and bad names in one line each."""

import re
import tarfile

import numpy as np
import pytest
from PIL import Image

from rococo_jax.benchmarks.benchmark import find_benchmark
from rococo_jax.benchmarks.classes import with_out_images
from rococo_jax.benchmarks.cue_conflict import CLASSES
from rococo_jax.benchmarks.cue_conflict import read as read_stimuli
from rococo_jax.benchmarks.settings import Settings
from rococo_jax.data.image_files import list_images
from rococo_jax.data.tar_index import read_tar
from tests.support.refusals import refused


def test_what_is_no_image_among_stimuli_is_passed_over(tmp_path):
    for name in CLASSES:
        for file in (f"cue_conflict/{name}/{name}1-dog2.JPG", f"edges/{name}3.png"):
            (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (8, 8)).save(tmp_path / file, "PNG")
    (tmp_path / "cue_conflict" / "readme.txt").touch()
    found = find_benchmark("cue_conflict").open({"images": tmp_path}, Settings(templates=("1",)))
    assert {task.name: len(task.label) for task in found.tasks} == {"cue_conflict": 16, "edges": 16}


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("cue_conflict/cat/cat1.jpg", "SHAPEn-TEXTUREm"),
        ("cue_conflict/cat/1-2.jpg", "SHAPEn-TEXTUREm"),
        ("cue_conflict/yak/yak1-cat2.jpg", "found yak"),
        ("edges/1.png", "CLASSn"),
        ("other/cat1-dog2.jpg", "stimuli: found none"),
    ],
)
def test_stimuli_are_named_by_shape_and_texture(tmp_path, file, said):
    (tmp_path / file).parent.mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(tmp_path / file)
    refused(re.escape(said), find_benchmark("cue_conflict").open, {"images": tmp_path}, Settings(templates=("1",)))


@pytest.mark.parametrize(
    ("names", "said"),
    [(["dog.jpg"], "WORDNETID_name"), (["n00000001_dog.jpg", "n00000002_cat.jpg"], "found 2; wanted 1000")],
)
def test_coarse_classes_need_all_of_imagenets(tmp_path, names, said):
    for name in names:
        Image.new("RGB", (8, 8)).save(tmp_path / name)
    refused(re.escape(said), find_benchmark("imagenet16").open, {"images": tmp_path}, Settings(templates=("1",)))


@pytest.mark.parametrize(("limit", "counts"), [(0, [3, 3, 3]), (3, [1, 1, 1]), (5, [2, 2, 1])])
def test_a_limit_takes_as_many_images_of_every_class(limit, counts, tmp_path):
    for number, label in enumerate(("cat", "dog", "ship")):
        for place in range(3):
            (tmp_path / label).mkdir(exist_ok=True)
            Image.new("RGB", (8, 8), (number, place, 0)).save(tmp_path / label / f"{place}.png")
    found, again = (find_benchmark("cifar10").open({"images": tmp_path}, Settings(limit=limit)) for _ in range(2))
    assert found.images == again.images and np.bincount(found.tasks[0].label).tolist() == counts
    assert found.data["coverage"]["present"] == 9 and found.data["coverage"]["complete"] == (not limit)
    taken = (
        f"limit: {limit} of 9 images were taken, in turns from each class or part: figures are of these images alone"
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
def test_there_is_one_listing_of_image_files(hidden, tmp_path):
    """In classes, stimuli, other images, captioned folders and tars: any case of a suffix, links, nothing hidden."""
    elsewhere = tmp_path / "elsewhere"
    files = {"cat": ["a.png", "deep/b.JPEG", "c.Tif"], "dog": ["a.png"]}
    paths = [tmp_path / "images" / label / file for label, names in files.items() for file in (*names, *hidden)]
    stimuli = [tmp_path / "edges" / name for name in ("cat1.png", "deep/dog2.PNG", *hidden)]
    for path in (*paths, *stimuli, elsewhere / "d.png", *(elsewhere / file for file in hidden)):
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(path, "PNG")
    (tmp_path / "images" / "dog" / "linked").symlink_to(elsewhere)
    (tmp_path / "images" / "dog" / "e.png").symlink_to(elsewhere / "d.png")
    (tmp_path / "images" / "dog" / "up").symlink_to(tmp_path / "images")  # a circle
    (tmp_path / "images" / "bird").symlink_to(elsewhere)
    classes = {"bird/d.png", "cat/a.png", "cat/c.Tif", "cat/deep/b.JPEG", "dog/a.png", "dog/e.png", "dog/linked/d.png"}
    settings = Settings(templates=("1",), out_images=(("other", str(elsewhere)),))
    found = find_benchmark("cifar10").open({"images": tmp_path / "images"}, settings)
    assert set(found.images) == classes == set(list_images(tmp_path / "images"))
    assert found.tasks[0].classes == ("bird", "cat", "dog") and len(found.tasks[0].label) == len(classes)
    assert with_out_images(found, settings.out_images).image_sets["out_other"].names == ("other/d.png",)
    assert [each.image for each in read_stimuli({"images": tmp_path}).images] == [
        "edges/cat1.png",
        "edges/deep/dog2.PNG",
    ]
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for path in sorted(elsewhere.rglob("*.png")):
            (text := path.with_suffix(".txt")).write_text("a caption")
            for member in (path, text):
                tar.add(member, f"./{member.relative_to(elsewhere)}")
    assert read_tar(str(tmp_path / "a.tar"))["name"].to_pylist() == ["./d.png"]
