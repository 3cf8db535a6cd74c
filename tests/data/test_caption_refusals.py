"""Unreadable captions are refused in one line that names the file, and the item, column or row."""

import base64
import io
import json
from pathlib import Path

import pandas
import pytest
from PIL import Image

from rococo_jax.data.caption_tables import parse_columns
from rococo_jax.data.captioned_images import read_captioned_images
from rococo_jax.errors import InputError
from tests.support.refusals import refused
from tests.support.world import write_pictures

A, B = "image,caption\n1.png,one\n", "image,caption\n"
LINE = '{"image": "1.png", "text": "a"}\n'
GOOD = [{"image": "1.png", "caption": ["A cat."]}, {"image": "b/2.png", "caption": [""]}]


def item(image: object = "1.png", caption: object = ("A.",)) -> list[dict]:
    return [{"image": image, "caption": caption}]


# What is wrong -> the file's name, where a query names columns; its contents; the message.
BAD = {
    "empty": ("c.csv", "", "header: found an empty file"),
    "no row": ("c.csv", B, "rows: found none"),
    "no header": ("c.csv", "1.png,one\n", "columns for the image: found '1.png', 'one'; wanted one of image, file"),
    "one column": ("c.csv", "image\n1.png\n", "columns for the caption: found 'image'"),
    "strange delimiter": ("c.csv", "image:caption\n1.png:one\n", "columns for the image: found 'image:caption'"),
    "two captions": ("c.csv", "image,text,title\n1.png,a,b\n", "'text' and 'title', any of which may be"),
    "a column twice": ("c.csv", "image,caption,caption\n1.png,a,b\n", "column 'caption': found 2 columns of that name"),
    "no such column": ("c.csv?caption=words", A, "caption column 'words': found the columns 'image', 'caption'"),
    "an unknown role": ("c.csv?text=words", A, "columns: entry: found 'text=words'"),
    "links alone": ("c.csv", "url,caption\nhttp://a/1.png,one\n", "column 'url': found links; wanted image files"),
    "links as images": ("c.csv", B + "https://a/1.png,one\n", "image of row 1: found the link 'https://a/1.png'"),
    "too few cells": ("c.csv", A + "3.png\n", r"row 2 \(to line 3\): found 1 cells; wanted 2 between commas"),
    "an unquoted comma": ("c.csv", A + "3.png,one, two\n", r"row 2 \(to line 3\): found 3 cells"),
    "an open quote": ("c.csv", A + '3.png,"one\nand more\n', "row 2: found unexpected end of data"),
    "a quote inside": ("c.csv", A + '3.png,"one" two\n', "row 2: found ',' expected after '\"'"),
    "absolute": ("c.csv", A + "/etc/3.png,x\n", "image of row 2: found '/etc/3.png'; wanted a path inside"),
    "a way out": ("c.csv", A + "../3.png,x\n", r"image of row 2: found '\.\./3.png'; wanted a path inside"),
    "the folder": ("c.csv", A + ".,x\n", r"image of row 2: found '\.'; wanted a path inside"),
    "the folder with a slash": ("c.csv", A + "./,x\n", r"image of row 2: found '\./'; wanted a path inside"),
    "a file as a folder": ("c.csv", A + "1.png/,x\n", r"image of row 2: found '1.png/'; wanted a path inside"),
    "a file as a folder, too": ("c.csv", A + "1.png/.,x\n", r"image of row 2: found '1.png/\.'; wanted a path inside"),
    "no image": ("c.csv", A + ",x\n", "image of row 2: found an empty string"),
    "an empty caption": ("c.csv", A + "3.png,  \n", r"caption of row 2 \('3.png'\): found an empty text"),
    "a missing image": ("c.csv", A + "9.png,x\n", "images: found 1 of 2 images in none of .*; the first is '9.png'"),
    "Latin-1": ("c.csv", (A + "3.png,B\u00e4r\n").encode("latin-1"), "bytes that are not UTF-8 at offset"),
    "UTF-16 without a mark": ("c.csv", A.encode("utf-16-le"), "encoding: found a zero byte at character 1"),
    "mixed types": ("c.jsonl", LINE + '{"image": "3.png", "text": 3}', r"text of line 2 \('3.png'\): found a number"),
    "null in a list": ("c.jsonl", '{"image": "1.png", "captions": ["a", null]}', "captions 1 of line 1 .*: found null"),
    "an empty list": ("c.jsonl", '{"image": "1.png", "captions": []}\n', "captions of line 1 .*: found an empty list"),
    "blank lines alone": ("c.jsonl", "\n\n", "rows: found none"),
    "another key": ("c.jsonl", LINE + '{"image": "3.png"}', "line 2 for the caption: found 'image'"),
    "a line that is no object": ("c.jsonl", '["1.png", "a"]\n', "line 1: found a list"),
    "a line cut short": ("c.jsonl", LINE + '{"image": "3', "line 2: found Unterminated"),
    "COCO without a list": ("c.json", {"images": None, "annotations": []}, "images: found null; wanted a list"),
    "no image object": ("c.json", {"images": [1], "annotations": []}, "images 0: found a number"),
    "no annotation object": (
        "c.json", {"images": [{"id": 1, "file_name": "1.png"}], "annotations": [3]}, "annotations 0: found a number",
    ),
    "an annotation of no image": (
        "c.json", {"images": [{"id": 1, "file_name": "1.png"}], "annotations": [{"image_id": 7, "caption": "x"}]},
        "image_id of annotations 0: found 7, the id of no image; wanted one of the 1",
    ),
    "a list as id": ("c.json", {"images": [{"id": [1]}], "annotations": []}, "id of images 0: found a list"),
    "JSON cut short": ("c.json", json.dumps(GOOD)[:50], "JSON: found .* at line 1, column"),
    "empty JSON": ("c.json", "", "JSON: found"),
    "another object": ("c.json", {"images": GOOD}, "captions: found an object"),
    "no items": ("c.json", [], "captions: found an empty list"),
    "a name alone": ("c.json", ["1.png"], "item 0: found a string"),
    "no image key": (
        "c.json", [GOOD[0], {"caption": ["A."]}], r"item 1: found the keys \['caption'\]; wanted the key \"image\"",
    ),
    "no caption key": (
        "c.json", [{"image": "1.png"}], r"item 0 \('1.png'\): found the keys \['image'\]; wanted the key \"caption\"",
    ),
    "no captions": ("c.json", item(caption=[]), r"captions of item 0 \('1.png'\): found an empty list"),
    "a number": ("c.json", item(caption=["A.", 3]), r"caption 1 of item 0 \('1.png'\): found a number"),
    "null": ("c.json", item(caption=[None]), "caption 0 of item 0 .*: found null"),
    "half a character": ("c.json", item(caption=["a dog \ud83d"]), "found half of a Unicode surrogate pair"),
    "a number as image": ("c.json", item(5), "image of item 0: found a number"),
    "an empty name": ("c.json", item(""), "image of item 0: found an empty string"),
    "an image twice": ("c.json", [*GOOD, GOOD[0]], "image of item 2: found '1.png', which is also item 0"),
    "up": ("c.json", item("../1.png"), r"image of item 0: found '\.\./1\.png'; wanted a path inside"),
    "down and up": ("c.json", item("x/../../1.png"), "wanted a path inside"),
    "up in Windows": ("c.json", item("..\\1.png"), "wanted a path inside"),
    "absolute in JSON": ("c.json", item("/etc/1.png"), "wanted a path inside"),
    "a drive": ("c.json", item("C:\\1.png"), "wanted a path inside"),
    "a zero byte": ("c.json", item("a\0.png"), "wanted a path inside"),
    "a photo": ("c.json", b"\xff\xd8\xff\xe0", "not UTF-8 at offset 0"),
    "no captions in COCO's": (
        "image_info_test2017.json", {"info": {}, "images": [{"id": 1, "file_name": "1.png"}]},
        "captions: found an object with the keys 'info', 'images', and no annotations: COCO's image_info",
    ),
    "boxes": (
        "instances_val2017.json",
        {"images": [{"id": 1, "file_name": "1.png"}], "annotations": [{"image_id": 1, "bbox": [1], "category_id": 3}]},
        "annotations: found no captions, but bbox, category_id, image_id; wanted .* COCO's captions_",
    ),
    "COCO's results": ("c.json", [{"image_id": 1, "caption": "A."}], "item 0 for the image: found 'image_id', ids"),
    "ids of images": ("c.csv", "image_id,caption\n1,x\n", "columns for the image: found 'image_id', ids"),
    "columns of pandas": (
        "c.json", {"image": {"0": "1.png"}, "caption": {"0": "A."}}, "found an object of columns; wanted .*records",
    ),
    "lists as columns": ("c.json", {"image": ["1.png"], "caption": ["A."]}, "captions: found an object of columns"),
    "rows under a key": ("c.json", {"data": GOOD}, "captions: found an object with the keys 'data'; wanted a list of"),
    "lists under keys": ("c.json", {"train": ["A."], "val": ["B."]}, "found an object with the keys 'train', 'val'"),
    "an empty object": ("c.json", {}, "captions: found an object without a key"),
    "images that are a number": ("c.json", {"images": 5}, "captions: found an object with the keys 'images'"),
    "null by name": ("c.json", {"1.png": ["A."], "3.png": None}, "captions: found an object with the keys '1.png'"),
    "null in a list by name": ("c.json", {"1.png": ["A.", None]}, "caption 1 of item 0 .'1.png'.: found null"),
    "half a list by name": ("c.json", '{"1.png": ["A."], "3.p', "JSON: found Unterminated string"),
    "a bad line called JSON": ("c.json", LINE + "{\n", "line 2: found Expecting"),
    "half a list called lines": ("c.jsonl", '[{"image": "1.png",\n', "JSON: found .* at line 2, column 1"),
    "a spreadsheet": ("c.xlsx", b"PK\x03\x04", "file: found a spreadsheet .*; wanted .*: save it as CSV in UTF-8"),
    "half an Arrow file": ("c.arrow", b"ARROW1\0\0", "contents: found something else .*; wanted a table of images"),
    "text called Feather": ("c.feather", A, "contents: found something else .*; wanted a table of images"),
    "no Parquet": ("c.parquet", A, "found .*[Pp]arquet"),
    "no file": ("no.csv", None, "no.csv: file: found nothing there"),
    "no such data set": ("hf:nobody/nothing?split=test", None, "data set: found .*nobody/nothing"),
    "an unknown option": ("hf:nobody/nothing?splits=test", None, "option: found splits"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD)
def test_errors_name_the_file_and_the_place(kind, tmp_path):
    name, content, message = BAD[kind]
    write_pictures(tmp_path / "photos", ["1.png", "b/2.png", "3.png"])
    path = name if name.startswith("hf:") else f"{tmp_path}/{name}"
    if name.startswith("hf:"):
        pytest.importorskip("datasets").config.HF_HUB_OFFLINE = True
    elif content is not None:
        text = content if isinstance(content, str | bytes) else json.dumps(content)
        Path(path.partition("?")[0]).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InputError, match=message) as error:
        read_captioned_images(str(tmp_path / "photos"), path)
    assert "\n" not in str(error.value)
    assert error.value.source in (path, path.partition("?")[0], "columns")


KINDS = {"JPEG": {"quality": 95}, "PNG": {}, "WEBP": {}, "GIF": {}, "BMP": {}, "TIFF": {}}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [8, 400])
def test_images_as_base64_text_are_refused_in_a_short_line(kind, width, tmp_path):
    file = io.BytesIO()
    Image.effect_noise((width, width), 50).convert("RGB").save(file, kind, **KINDS[kind])
    text = base64.b64encode(file.getvalue()).decode()
    spellings = [text, base64.urlsafe_b64encode(file.getvalue()).decode(), f"data:image/{kind.lower()};base64,{text}"]
    assert width == 8 or len(text) > 131_072 or kind in ("JPEG", "WEBP", "GIF")
    message = r"image of (row|line|item) \d: found an image as base64 text .* characters.; wanted names of image files"
    for spelling in spellings:
        frame = pandas.DataFrame({"image": [spelling], "caption": ["a dog"]})
        frame.to_csv(tmp_path / "c.tsv", sep="\t", index_label="index")
        frame.to_csv(tmp_path / "c.csv", index=False)
        frame.to_parquet(tmp_path / "c.parquet")
        frame.to_json(tmp_path / "c.jsonl", orient="records", lines=True)
        frame.to_json(tmp_path / "c.json", orient="records")
        for suffix in ("tsv", "csv", "parquet", "jsonl", "json"):
            with pytest.raises(InputError, match=message) as error:
                read_captioned_images(str(tmp_path), f"{tmp_path}/c.{suffix}")
            assert len(str(error.value)) < 300
    frame.to_csv(tmp_path / "no-header.tsv", sep="\t", index=False, header=False)
    with pytest.raises(InputError, match="columns for the image: found") as error:
        read_captioned_images(str(tmp_path), f"{tmp_path}/no-header.tsv")
    assert len(str(error.value)) < 400


def test_a_name_that_no_file_can_have_is_refused(tmp_path):
    (tmp_path / "c.csv").write_text(f"image,caption\na/{'x' * 300}.jpg,a dog\n")
    refused(
        "image of row 1: found 306 characters: 'a/xxx.*; wanted the name of",
        read_captioned_images,
        str(tmp_path),
        f"{tmp_path}/c.csv",
    )


def test_names_of_columns_from_the_user_are_parsed_or_refused():
    assert parse_columns("image=a, caption=b c") == {"image": "a", "caption": "b c"} and parse_columns("") == {}
    for text in ("image", "image=", "image=a,image=b", "photo=a"):
        refused("wanted image=COLUMN,caption=COLUMN", parse_columns, text)


def test_unused_files_of_an_image_folder_are_reported(tmp_path, capsys):
    """A table with another name, a second table, images that the table does not name, texts of two images."""
    write_pictures(tmp_path / "photos", ["a.png", "b.png"])
    (tmp_path / "photos" / "Metadata1.csv").write_text("file_name,text\na.png,x\n")
    refused("no texts beside its 2 images, but Metadata1.csv", read_captioned_images, str(tmp_path / "photos"))
    (tmp_path / "photos" / "metadata.csv").write_text("file_name,text\na.png,x\n")
    (tmp_path / "photos" / "metadata.jsonl").write_text('{"file_name": "b.png", "text": "x"}\n')
    read_captioned_images(str(tmp_path / "photos"))
    said = capsys.readouterr().err
    assert "metadata.jsonl beside it not read" in said
    assert "1 images of the folder that it does not name left out; the first is 'b.png'" in said
    write_pictures(tmp_path / "texts", ["a.png", "a.bmp"])
    (tmp_path / "texts" / "a.txt").write_text("x")
    read_captioned_images(str(tmp_path / "texts"))
    assert "2 images that share a text, such as a.bmp and a.png" in capsys.readouterr().err


def test_missing_texts_of_pandas_are_counted(tmp_path, capsys):
    write_pictures(tmp_path / "photos", ["a.png", "b.png"])
    frame = pandas.DataFrame({"image": ["a.png", "b.png"], "caption": map(str, ["a dog", float("nan")])})
    frame.to_csv(tmp_path / "c.csv", index=False)
    read_captioned_images(str(tmp_path / "photos"), str(tmp_path / "c.csv"))
    assert "1 captions are 'nan', as pandas writes missing texts" in capsys.readouterr().err
