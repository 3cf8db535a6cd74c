"""Captions files are read whole, and image files are found where users keep them."""

import json
import os
from pathlib import Path

import pytest

from rococo_jax.data.caption_forms import read_captions
from rococo_jax.data.captioned_images import read_captioned_images
from rococo_jax.data.captions import CaptionedImage
from rococo_jax.data.image_files import find_images
from tests.support.refusals import refused


def touch(folder: Path, *names: str) -> list[Path]:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return [folder / name for name in names]


def test_captions_are_read_unchanged(tmp_path):
    items = [CaptionedImage("a.jpg", ("A cat.", "Two cats sit.", " 猫 ")), CaptionedImage("b.jpg", ("",))]
    (tmp_path / "c.json").write_text(json.dumps([{"image": i.image, "caption": i.captions, "id": 7} for i in items]))
    assert list(read_captions(tmp_path / "c.json").items) == items


@pytest.mark.real_data
def test_every_real_captions_file_is_read(real_data):
    counts = {}
    for pattern in ("coco/captions_*.json", "flickr8k/captions.json", "rococo/annotations/coco_karpathy_*.json"):
        for path in real_data.glob(pattern):
            items = read_captions(path).items
            counts[path.name] = len(items), sum(len(item.captions) for item in items)
    assert counts["captions_test.json"] == (281, 1405) and counts["captions_train.json"] == (2570, 12857)
    assert counts["coco_karpathy_test.json"] == counts["coco_karpathy_val.json"] == (5000, 25010)
    assert counts["captions.json"] == (1000, 5000)


NAMES = ["val2014/a.jpg", "val2014/b.jpg", "val2014/c.jpg"]


@pytest.fixture
def images(tmp_path) -> Path:
    touch(tmp_path / "images", *NAMES[:2])
    (tmp_path / "images" / NAMES[2]).mkdir()
    return tmp_path / "images"


def test_images_are_found_with_and_without_the_folder_at_the_start_of_their_names(images):
    expected = {name: images / name for name in NAMES[:2]}
    assert find_images(NAMES, images) == (expected, ["val2014/c.jpg"])
    assert find_images(NAMES, images / "val2014") == (expected, ["val2014/c.jpg"])
    # Images of another folder are not taken for those named.
    (images / "val2014").rename(images / "train2014")
    assert find_images(NAMES, images / "train2014") == ({}, NAMES)


def test_images_of_coco_are_found_under_their_other_names(tmp_path):
    found = {
        "000000391895.jpg": "val2014/COCO_val2014_000000391895.jpg",
        "train2017/000000000009.jpg": "train2014/COCO_train2014_000000000009.jpg",
        "val2014/COCO_val2014_000000000139.jpg": "val2017/000000000139.jpg",
        "000000000042.jpg": "COCO_val2014_000000000042.jpg",
        "val2014/COCO_val2014_000000391895.jpg": "val2014/COCO_val2014_000000391895.jpg",
    }
    touch(tmp_path, *found.values(), "val2014/x000000000139.jpg")
    missing = ["000000000007.jpg", "0000391895.jpg", "a000000391895.jpg"]
    assert find_images([*found, *missing], tmp_path) == ({name: tmp_path / found[name] for name in found}, missing)
    assert find_images(["000000391895.jpg"], tmp_path / "train2014") == ({}, ["000000391895.jpg"])
    (own,) = touch(tmp_path, "000000391895.jpg")
    assert find_images([own.name], tmp_path) == ({own.name: own}, [])


@pytest.mark.parametrize("folder", ["data", "linked"])
def test_names_with_and_without_the_folder_are_found_in_one_list(folder, tmp_path):
    """The names in What'sUp's repository: `data/controlled_images/` in its JSON, COCO images by number."""
    stored = ["controlled_images/mug.jpeg", "val2017/000000000139.jpg", "vg_images/7.jpg", "data/deep/a.jpg"]
    touch(tmp_path / "data", *stored)
    (tmp_path / "linked").symlink_to("data")
    names = {f"data/{stored[0]}": stored[0], stored[1]: stored[1], stored[2]: stored[2], "data/deep/a.jpg": stored[3],
             f"data/{stored[2]}": stored[2]}  # fmt: skip
    present, missing = find_images([*names, "data/none.jpg"], tmp_path / folder)
    assert present == {name: tmp_path / folder / file for name, file in names.items()} and missing == ["data/none.jpg"]
    if folder == "linked":
        assert find_images([f"linked/{stored[0]}"], tmp_path / folder)[1] == []


def test_images_of_visual_genome_are_found_in_its_two_folders(tmp_path):
    found = {"7.jpg": "VG_100K/7.jpg", "8.jpg": "data/VG_100K_2/8.jpg"}
    touch(tmp_path, *found.values(), "VG_100K_2/7.jpg", "other/9.jpg")
    assert find_images([*found, "9.jpg"], tmp_path) == ({name: tmp_path / found[name] for name in found}, ["9.jpg"])


def test_every_folder_is_listed_once(images, monkeypatch):
    listed, scandir = [], os.scandir
    monkeypatch.setattr("rococo_jax.data.image_files.os.scandir", lambda path: listed.append(path) or scandir(path))
    find_images([f"val2014/{number}.jpg" for number in range(1000)] + NAMES, images)
    assert listed == [images / "val2014"]


@pytest.mark.real_data
def test_real_images_are_found_with_and_without_their_folder(real_data):
    names = [item.image for item in read_captions(real_data / "rococo/annotations/coco_karpathy_test.json").items]
    for folder in ("coco/images", "coco/images/val2014"):
        present, missing = find_images(names, real_data / folder)
        assert len(present) == 281 and len(missing) == 4719
        assert all(path.is_file() for path in present.values())


def test_images_of_a_captions_file_are_searched_in_its_folder_before_the_others(tmp_path):
    touch(tmp_path, "a/1.jpg", "b/1.jpg", "b/2.jpg", "lines/3.jpg")
    (tmp_path / "a.json").write_text(json.dumps([{"image": name, "caption": [name]} for name in ("1.jpg", "2.jpg")]))
    (tmp_path / "b.json").write_text(json.dumps([{"image": "2.jpg", "caption": ["x", "2.jpg"]}]))
    lines = tmp_path / "lines/c.jsonl"
    lines.write_text('{"image": "3.jpg", "caption": "three"}\n{"image": "4.jpg", "caption": "four"}\n')
    data = read_captioned_images(f"{tmp_path}/b,{tmp_path}/a", f"{tmp_path}/a.json,{tmp_path}/b.json")
    assert data.paths == (tmp_path / "b/1.jpg", tmp_path / "b/2.jpg") and data.missing == ()
    assert data.captions == ("1.jpg", "2.jpg", "x") and data.caption_image.tolist() == [0, 1, 1]
    data = read_captioned_images("", str(lines), allow_missing=True)
    assert (data.names, data.missing) == (("3.jpg",), ("4.jpg",))
    refused(r"1 of 2 images in none of .*lines; the first is '4.jpg'", read_captioned_images, "", str(lines))
    refused("captions: files: found ''", read_captioned_images, "", "")
