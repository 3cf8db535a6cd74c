"""Bad input of the benchmarks of classes and of judged pairs whose files have a form of their own: one line each."""

import gzip
import json
import re
import tarfile
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from rococo_jax.benchmarks.benchmark import find_benchmark
from rococo_jax.benchmarks.classes import with_out_images
from rococo_jax.benchmarks.coco import IDS as IDS_FILE
from rococo_jax.benchmarks.coco import package_file
from rococo_jax.benchmarks.cue_conflict import CLASSES
from rococo_jax.benchmarks.cue_conflict import read as read_stimuli
from rococo_jax.benchmarks.settings import Settings
from rococo_jax.data.image_files import list_images
from rococo_jax.data.tar_index import read_tar
from tests.benchmarks.judged_forms import IDS, NAMES, write_judged
from tests.support.refusals import refused


@pytest.fixture
def folder(tmp_path):
    write_judged(tmp_path)
    return tmp_path


def opened(name, folder):
    places = {role: folder / "images" if role == "images" else folder for role in find_benchmark(name).folders}
    return find_benchmark(name).open(places, Settings(templates=("1",)))


def test_a_caption_is_asked_about_images_that_are_not_its_own(folder):
    (folder / "images" / NAMES[0]).unlink()
    places = {role: folder / "images" if role == "images" else folder for role in find_benchmark("cxc").folders}
    benchmark = find_benchmark("cxc").open(places, Settings(allow_missing_images=True))
    (task,) = benchmark.tasks  # one pair of images alone is left, which has no correlation
    assert benchmark.texts == (f"{NAMES[0]} 0", f"{NAMES[1]} 0") and task.rating.tolist() == [2.5, 0.0]
    assert [benchmark.images[row] for row in task.image] == NAMES[1:]


def text(name, content):
    return lambda folder: (folder / name).write_text(content.format(*NAMES))


def value(name, content):
    return text(name, json.dumps(content).replace("{", "{{").replace("}", "}}"))


def packed(content):
    def change(folder):
        (folder / "sits_test.csv").unlink()
        (folder / "sits_test.csv.gz").write_bytes(content)

    return change


def test_the_ids_of_captions_are_those_of_the_package_where_the_folder_has_none(tmp_path, monkeypatch):
    (tmp_path / "package/data").mkdir(parents=True)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: SimpleNamespace(origin=tmp_path / "package/i.py"))
    ours, theirs = tmp_path / IDS_FILE, tmp_path / "package/data" / IDS_FILE
    refused("pip install eccv-caption", package_file, IDS_FILE, tmp_path)
    theirs.write_text("{}")
    assert package_file(IDS_FILE, tmp_path) == theirs
    ours.write_text("{}")
    assert package_file(IDS_FILE, tmp_path) == ours
    ours.unlink()
    for missing in (None, SimpleNamespace(origin=None)):
        monkeypatch.setattr("importlib.util.find_spec", lambda name, missing=missing: missing)
        refused("pip install eccv-caption", package_file, IDS_FILE, tmp_path)


HEAD, LINE = "caption,image,agg_score\n", "COCO_val2014:sentid:1,{1},"
CASES = {
    "cxc: a column is missing": ("cxc", text("sits_test.csv", "caption,image\na:1,{1}\n"), "agg_score from 0 to 5"),
    "cxc: a short line": ("cxc", text("sits_test.csv", HEAD + "COCO_val2014:sentid:1\n"), "line 2"),
    "cxc: no rating": ("cxc", text("sits_test.csv", HEAD + LINE + "high\n"), "line 2"),
    "cxc: NaN": ("cxc", text("sits_test.csv", HEAD + LINE + "nan\n"), "line 2"),
    "cxc: above 5": ("cxc", text("sits_test.csv", HEAD + LINE + "5.5\n"), "line 2"),
    "cxc: no caption id": ("cxc", text("sits_test.csv", HEAD + "sentid:one,{1},2\n"), "line 2"),
    "cxc: no image of COCO": ("cxc", text("sits_test.csv", HEAD + "sentid:1,dog.jpg,2\n"), "a name of COCO"),
    "cxc: no table": ("cxc", packed(b"text"), "a table of ratings, whole"),
    "cxc: a cut table": ("cxc", packed(gzip.compress(b"caption,image,agg_score\n")[:-9]), "a table of ratings, whole"),
    "ids: of another image": ("cxc", value("original_image_to_caption.json", {"11": [1]}), f"nothing of {NAMES[1]}"),
    "ids: no list": ("cxc", value("original_image_to_caption.json", IDS | {"11": 3}), "one a caption"),
    "ids: no numbers": ("cxc", value("original_image_to_caption.json", IDS | {"11": ["a"]}), "one a caption"),
    "ids: too many": ("cxc", value("original_image_to_caption.json", IDS | {"11": [1, 2, 5]}), "at most 2"),
    "eccv: a list": ("eccv_caption", value("eccv_image_to_caption.json", [1]), "an object of positives by id"),
    "eccv: no list of positives": ("eccv_caption", value("eccv_image_to_caption.json", {"11": 3}), "whole numbers"),
    "eccv: positives by name": ("eccv_caption", value("eccv_caption_to_image.json", {"4": ["a"]}), "whole numbers"),
    "eccv: a query by name": ("eccv_caption", value("eccv_caption_to_image.json", {"a": [33]}), "whole number"),
    "eccv: an empty file": ("eccv_caption", text("eccv_caption_to_image.json", ""), "eccv_caption_to_image.json"),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_one_line(folder, case):
    name, change, said = CASES[case]
    assert opened(name, folder).tasks
    change(folder)
    refused(re.escape(said), opened, name, folder)


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
