"""Captions files are read whole or refused by name, and image files are found where users keep them."""

import json
from pathlib import Path

import pytest

from rococo_jax.data.captioned_images import read_captioned_images, read_captions
from rococo_jax.data.captions import CaptionedImage
from rococo_jax.data.image_files import find_images
from rococo_jax.errors import InputError
from tests.support.refusals import refused

GOOD = [
    {"image": "val2014/a.jpg", "caption": ["A cat.", "Two cats sit.", " 猫 "]},
    {"image": "val2014/b.jpg", "caption": [""], "id": 7},
]


def written(folder: Path, content) -> Path:
    path = folder / "captions.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def test_captions_are_read_as_they_are_written(tmp_path):
    assert list(read_captions(written(tmp_path, GOOD)).items) == [
        CaptionedImage("val2014/a.jpg", ("A cat.", "Two cats sit.", " 猫 ")),
        CaptionedImage("val2014/b.jpg", ("",)),
    ]


@pytest.mark.real_data
def test_every_real_captions_file_is_read(real_data):
    counts = {
        path.name: (len(items), sum(len(item.captions) for item in items))
        for path in [
            *real_data.glob("coco/captions_*.json"),
            *real_data.glob("flickr8k/captions.json"),
            *real_data.glob("rococo/annotations/coco_karpathy_*.json"),
        ]
        for items in [read_captions(path).items]
    }
    assert counts["captions_test.json"] == (281, 1405) and counts["captions_train.json"] == (2570, 12857)
    assert counts["coco_karpathy_test.json"] == counts["coco_karpathy_val.json"] == (5000, 25010)
    assert counts["captions.json"] == (1000, 5000)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (json.dumps(GOOD)[:70], "JSON: found .* at line 1, column"),
        ("", "JSON: found"),
        ({"images": GOOD}, "captions: found an object"),
        ([], "captions: found an empty list"),
        (["a.jpg"], "item 0: found a string"),
        ([GOOD[0], {"caption": ["A."]}], r"item 1: found the keys \['caption'\]; wanted the key \"image\""),
        ([{"image": "a.jpg"}], r"item 0 \('a.jpg'\): found the keys \['image'\]; wanted the key \"caption\""),
        ([{"image": "a.jpg", "caption": []}], r"captions of item 0 \('a.jpg'\): found an empty list"),
        ([{"image": "a.jpg", "caption": ["A.", 3]}], r"caption 1 of item 0 \('a.jpg'\): found a number"),
        ([{"image": "a.jpg", "caption": [None]}], "caption 0 of item 0 .*: found null"),
        ('[{"image": "a.jpg", "caption": ["a dog \\ud83d"]}]', "found half of a surrogate pair"),
        ([{"image": 5, "caption": ["A."]}], "image of item 0: found a number"),
        ([{"image": "", "caption": ["A."]}], "image of item 0: found an empty string"),
        ([GOOD[0], GOOD[1], GOOD[0]], "image of item 2: found 'val2014/a.jpg', which is also item 0"),
        ([{"image": "../a.jpg", "caption": ["A."]}], r"image of item 0: found '\.\./a\.jpg'; wanted a path inside"),
        ([{"image": "x/../../a.jpg", "caption": ["A."]}], "wanted a path inside"),
        ([{"image": "..\\a.jpg", "caption": ["A."]}], "wanted a path inside"),
        ([{"image": "/etc/a.jpg", "caption": ["A."]}], "wanted a path inside"),
        ([{"image": "C:\\a.jpg", "caption": ["A."]}], "wanted a path inside"),
        ([{"image": "a\0.jpg", "caption": ["A."]}], "wanted a path inside"),
    ],
)
def test_what_is_wrong_is_named_by_file_item_and_field(content, said, tmp_path):
    path = written(tmp_path, content)
    with pytest.raises(InputError, match=said) as caught:
        read_captions(path)
    assert caught.value.source == str(path)


def test_a_missing_file_and_a_file_that_is_not_text_are_named(tmp_path):
    refused("nothing there", read_captions, tmp_path / "none.json")
    (tmp_path / "photo.json").write_bytes(b"\xff\xd8\xff\xe0")
    refused("not UTF-8 at offset 0", read_captions, tmp_path / "photo.json")


NAMES = ["val2014/a.jpg", "val2014/b.jpg", "val2014/c.jpg"]


@pytest.fixture
def images(tmp_path) -> Path:
    folder = tmp_path / "images"
    (folder / "val2014").mkdir(parents=True)
    for name in NAMES[:2]:
        (folder / name).write_bytes(b"")
    (folder / "val2014" / "c.jpg").mkdir()
    return folder


def test_images_are_found_under_the_folder_and_under_the_folder_that_their_names_begin_with(images):
    expected = {name: images / name for name in NAMES[:2]}
    assert find_images(NAMES, images) == (expected, ["val2014/c.jpg"])
    assert find_images(NAMES, images / "val2014") == (expected, ["val2014/c.jpg"])


def test_images_of_another_folder_are_not_taken_for_those_named(images):
    (images / "val2014").rename(images / "train2014")
    assert find_images(NAMES, images / "train2014") == ({}, NAMES)


def test_images_of_coco_are_found_under_their_other_names(tmp_path):
    for name in ("val2014/COCO_val2014_000000391895.jpg", "train2014/COCO_train2014_000000000009.jpg",
                 "val2017/000000000139.jpg", "COCO_val2014_000000000042.jpg", "val2014/x000000000139.jpg"):  # fmt: skip
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    found = {
        "000000391895.jpg": "val2014/COCO_val2014_000000391895.jpg",
        "train2017/000000000009.jpg": "train2014/COCO_train2014_000000000009.jpg",
        "val2014/COCO_val2014_000000000139.jpg": "val2017/000000000139.jpg",
        "000000000042.jpg": "COCO_val2014_000000000042.jpg",
        "val2014/COCO_val2014_000000391895.jpg": "val2014/COCO_val2014_000000391895.jpg",
    }
    missing = ["000000000007.jpg", "0000391895.jpg", "a000000391895.jpg"]
    assert find_images([*found, *missing], tmp_path) == ({name: tmp_path / found[name] for name in found}, missing)
    assert find_images(["000000391895.jpg"], tmp_path / "train2014") == ({}, ["000000391895.jpg"])
    (tmp_path / "000000391895.jpg").write_bytes(b"")
    assert find_images(["000000391895.jpg"], tmp_path)[0]["000000391895.jpg"] == tmp_path / "000000391895.jpg"


def test_a_missing_image_folder_is_named(tmp_path):
    refused("image folder: found nothing there", find_images, NAMES, tmp_path / "none")
    (tmp_path / "file").write_text("")
    refused("image folder: found a file", find_images, NAMES, tmp_path / "file")


def test_every_folder_is_listed_once(images, monkeypatch):
    import os

    listed, scandir = [], os.scandir
    monkeypatch.setattr("rococo_jax.data.image_files.os.scandir", lambda path: listed.append(path) or scandir(path))
    find_images([f"val2014/{number}.jpg" for number in range(1000)] + NAMES, images)
    assert listed == [images / "val2014"]


@pytest.mark.real_data
def test_the_real_images_are_found_in_both_ways(real_data):
    names = [item.image for item in read_captions(real_data / "rococo/annotations/coco_karpathy_test.json").items]
    for folder in ("coco/images", "coco/images/val2014"):
        present, missing = find_images(names, real_data / folder)
        assert len(present) == 281 and len(missing) == 4719
        assert all(path.is_file() for path in present.values())


def test_each_captions_file_reads_its_own_folder_first_and_then_the_others(tmp_path):
    for name in ("a/1.jpg", "b/1.jpg", "b/2.jpg", "lines/3.jpg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "a.json").write_text(json.dumps([{"image": name, "caption": [name]} for name in ("1.jpg", "2.jpg")]))
    (tmp_path / "b.json").write_text(json.dumps([{"image": "2.jpg", "caption": ["x", "2.jpg"]}]))
    (tmp_path / "lines/c.jsonl").write_text(
        '{"image": "3.jpg", "caption": "three"}\n{"image": "4.jpg", "caption": "four"}\n'
    )
    data = read_captioned_images(f"{tmp_path}/b,{tmp_path}/a", f"{tmp_path}/a.json,{tmp_path}/b.json")
    assert data.paths == (tmp_path / "b/1.jpg", tmp_path / "b/2.jpg") and data.missing == ()
    assert data.captions == ("1.jpg", "2.jpg", "x") and data.caption_image.tolist() == [0, 1, 1]
    data = read_captioned_images("", f"{tmp_path}/lines/c.jsonl", allow_missing=True)
    assert (data.names, data.missing) == (("3.jpg",), ("4.jpg",))
    with pytest.raises(InputError, match=r"1 of 2 images in none of .*lines; the first is '4.jpg'"):
        read_captioned_images("", f"{tmp_path}/lines/c.jsonl")
    refused("captions: files: found ''", read_captioned_images, "", "")
