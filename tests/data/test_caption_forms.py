"""Captions are read in every form that people have them, alike; what cannot be read is named by column and row."""

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas
import pytest
from PIL import Image
from pyarrow.parquet import ParquetFile

from rococo_jax.data.caption_tables import parse_columns
from rococo_jax.data.captioned_images import open_pairs, read_captioned_images, read_captions
from rococo_jax.data.image_files import hash_image
from rococo_jax.data.images import FileImages
from rococo_jax.data.pictures import open_image
from rococo_jax.errors import InputError
from tests.support.refusals import refused

# Blanks and line ends belong to a caption as much as its words.
CAPTIONS = {
    "b/2.png": ['two, "quoted" dogs', "a line\nbroken"],
    "1.png": ["Ein Bär — 熊 \n"],
    "3.png": ["one; two|three", "[not a list", " kept spaces "],
}
ITEMS = [{"image": image, "caption": texts} for image, texts in CAPTIONS.items()]
ROWS = [(image, text) for image, texts in CAPTIONS.items() for text in texts]
LISTS = pandas.DataFrame({"image": list(CAPTIONS), "captions": list(CAPTIONS.values())})
COCO = {
    "images": [{"id": number, "file_name": name} for number, name in enumerate(CAPTIONS)],
    "annotations": [{"image_id": list(CAPTIONS).index(image), "caption": text} for image, text in ROWS],
}


def png(shade: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((4, 5, 3), shade, np.uint8)).save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def photos(tmp_path) -> Path:
    folder = tmp_path / "photos"
    (folder / "b").mkdir(parents=True)
    for shade, name in enumerate(CAPTIONS):
        (folder / name).write_bytes(png(shade))
    return folder


def table(image: str = "image", caption: str = "caption") -> pandas.DataFrame:
    return pandas.DataFrame(ROWS, columns=[image, caption])


def embedded(**names: list) -> dict:
    """Rows with images inside, beside other fields of the image column."""
    images = [{"bytes": png(n), **{key: values[n] for key, values in names.items()}} for n in range(len(CAPTIONS))]
    return {"image": images, "captions": list(CAPTIONS.values())}


def in_json(value: object, name: str = "c.json") -> Callable[[Path], object]:
    return lambda at: (at / name).write_text(json.dumps(value))


def in_csv(frame: pandas.DataFrame, name: str = "c.csv", **choices) -> Callable[[Path], object]:
    return lambda at: frame.to_csv(at / name, index=False, **choices)


def in_lines(frame: pandas.DataFrame, name: str) -> Callable[[Path], object]:
    text = "".join(json.dumps(row) + "\n" for row in frame.to_dict("records"))
    return lambda at: (at / name).write_text(text)


def in_parquet(frame: dict | pandas.DataFrame, name: str = "c.parquet", **choices) -> Callable[[Path], object]:
    def write(at: Path) -> None:
        (at / name).parent.mkdir(exist_ok=True)
        pandas.DataFrame(frame).to_parquet(at / name, **choices)

    return write


def saved(frame: dict, split: str | None = None) -> Callable[[Path], object]:
    def write(at: Path) -> None:
        datasets = pytest.importorskip("datasets")
        data = datasets.Dataset.from_dict(frame)
        if isinstance(frame["image"][0], dict):
            data = data.cast_column("image", datasets.Image())
        (datasets.DatasetDict({split: data}) if split else data).save_to_disk(at / "d")

    return write


def in_tar(at: Path) -> None:
    """As img2dataset and WebDataset write it: captions in JSON, and in a text where each is a line."""
    with tarfile.open(at / "t.tar", "w") as tar:
        for name, texts in CAPTIONS.items():
            stem = name.removesuffix(".png")
            several = (f"{stem}.json", json.dumps({"captions": texts}).encode())
            lines = (f"{stem}.txt", "\r\n".join(texts).encode())
            about = several if any("\n" in text for text in texts) else lines
            for called, data in ((name, (at / "photos" / name).read_bytes()), about):
                member = tarfile.TarInfo(called)
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))


NAMED = {"image": [png(n) for n in range(3)], "file": list(CAPTIONS), "text": list(CAPTIONS.values())}
# Form -> what writes it beside the folder `photos`, and the arguments of the reader below that folder's parent.
FORMS = {
    "Karpathy": (in_json(ITEMS), "photos", "c.json"),
    "COCO": (in_json(COCO), "photos", "c.json"),
    "a JSON list": (in_json(table("path", "text").to_dict("records")), "photos", "c.json"),
    "CSV": (in_csv(table("file_name", "text")), "photos", "c.csv"),
    "CSV with lists": (in_csv(LISTS), "photos", "c.csv"),
    "semicolons": (in_csv(table("Image", "Caption"), sep=";"), "photos", "c.csv"),
    "bars": (in_csv(table("image_name", "comment"), "c.txt", sep="|"), "photos", "c.txt"),
    "BOM and CRLF": (in_csv(table(), lineterminator="\r\n", encoding="utf-8-sig"), "photos", "c.csv"),
    "a blank line": (lambda at: (at / "c.csv").write_text(table().to_csv(index=False) + "\n\n"), "photos", "c.csv"),
    "TSV": (in_csv(table("filepath", "title"), "c.tsv", sep="\t"), "photos", "c.tsv"),
    "tabs called CSV": (in_csv(table(), sep="\t"), "photos", "c.csv"),
    "other columns": (in_csv(table("photo", "words")), "photos", "c.csv?image=photo&caption=words"),
    "absolute paths": (
        lambda at: in_csv(table().assign(image=[f"{at}/photos/{name}" for name, _ in ROWS]))(at), "photos", "c.csv",
    ),
    "JSON lines": (in_lines(LISTS, "c.jsonl"), "photos", "c.jsonl"),
    "Parquet": (in_parquet(table()), "photos", "c.parquet"),
    "images in Parquet": (in_parquet(embedded(path=list(CAPTIONS)), row_group_size=2), "c.parquet", ""),
    "named in a column": (in_parquet(NAMED), "c.parquet?name=file", ""),
    "metadata.csv": (in_csv(table("file_name", "text"), "photos/metadata.csv"), "photos", ""),
    "metadata.jsonl": (in_lines(table("file_name", "text"), "photos/metadata.jsonl"), "photos", ""),
    "metadata.parquet": (in_parquet(table("file_name", "text"), "photos/metadata.parquet"), "photos", ""),
    "a folder of Parquet": (
        lambda at: [in_parquet(table()[part], f"p/{place}.parquet")(at)
                    for place, part in enumerate((slice(3), slice(3, None)))], "photos", "p",
    ),
    "save_to_disk": (saved(table().to_dict("list")), "photos", "d"),
    "save_to_disk, images inside": (
        saved(embedded() | {"file": list(CAPTIONS)}, "test"), "hf:{at}/d?split=test&name=file", "",
    ),
    "a tar": (in_tar, "t.tar", ""),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_the_same_data(form, photos, tmp_path, capsys):
    write, images, captions = FORMS[form]
    write(tmp_path)
    capsys.readouterr()
    at = (images if images.startswith("hf:") else "{at}/" + images).format(at=tmp_path)
    read = read_captioned_images(at, captions and f"{tmp_path}/{captions}")
    names = [name.removeprefix("t.tar/") for name in read.names]
    assert dict(zip(names, (list(item.captions) for item in read.items), strict=True)) == CAPTIONS
    assert names == list(CAPTIONS)
    expected = [hash_image(photos / name) for name in CAPTIONS]
    assert list(FileImages(read.names, read.paths).hashes) == expected
    assert "3 images, 6 captions" in capsys.readouterr().err
    # Training reads the same.
    pairs = open_pairs(at, captions and f"{tmp_path}/{captions}")
    assert [pairs[n].name.removeprefix(f"{tmp_path}/t.tar/") for n in range(3)] == list(CAPTIONS)
    assert [list(pairs[n].captions) for n in range(3)] == list(CAPTIONS.values())
    assert [np.asarray(pairs[n].open())[0, 0, 0] for n in range(3)] == [0, 1, 2]


def test_a_text_beside_an_image_has_a_caption_a_line(photos, capsys):
    for name in CAPTIONS:
        (photos / name).with_suffix(".txt").write_text(f"{name} one\r\n\n{name} two\n", newline="")
    read = read_captioned_images(str(photos))
    assert {item.image: item.captions for item in read.items} == {n: (f"{n} one", f"{n} two") for n in CAPTIONS}
    (photos / "3.txt").unlink()
    with pytest.raises(InputError, match=r"1 of 3 images without a text; the first is '3.png'; wanted metadata.csv"):
        read_captioned_images(str(photos))


def test_images_without_names_are_called_by_their_contents(photos, tmp_path):
    rows = [{"photo": (photos / image).read_bytes(), "text": text} for image, text in ROWS]
    pandas.DataFrame(rows).to_parquet(tmp_path / "a.parquet")
    pandas.DataFrame(rows[::-1]).to_parquet(tmp_path / "b.parquet", row_group_size=2)
    one, turned = (read_captioned_images(f"{tmp_path}/{name}.parquet") for name in "ab")
    assert [list(item.captions) for item in one.items] == list(CAPTIONS.values())
    assert sorted(one.names) == sorted(turned.names) and all(name.endswith(".png") for name in one.names)
    # Two images of one name are not taken for one.
    in_parquet(embedded(path=["0.png"] * 3))(tmp_path)
    assert read_captioned_images(f"{tmp_path}/c.parquet").names == one.names


@pytest.mark.parametrize("has_copy", [True, False])
def test_images_in_parquet_are_decoded_once_in_any_order(has_copy, tmp_path, monkeypatch, capsys):
    (tmp_path / "file").touch()  # no folder can be made in it
    monkeypatch.setenv("ROCOCO_CACHE", str(tmp_path / ("cache" if has_copy else "file")))
    images = [{"bytes": bytes([255, 216, n]), "path": f"{n}.jpg"} for n in range(60)]
    pandas.DataFrame({"image": images, "text": "a"}).to_parquet(tmp_path / "c.parquet", row_group_size=5)
    pairs, decoded, read = open_pairs(f"{tmp_path}/c.parquet"), [], ParquetFile.read_row_group

    def count(*args, **kwargs):
        group = read(*args, **kwargs)
        decoded.append(len(group))
        return group

    monkeypatch.setattr(ParquetFile, "read_row_group", count)
    for n in np.random.default_rng(0).permutation(120).tolist():
        assert pairs[n % 60].image == bytes([255, 216, n % 60])
    assert sum(decoded) == 60 if has_copy else sum(decoded) > 240
    told = capsys.readouterr().err
    assert told.count("no copy of its images") == (not has_copy)


def test_a_parquet_file_that_is_written_again_is_copied_again(tmp_path):
    for shades in ([1, 2, 3], [3, 2, 1]):
        images = [{"bytes": png(shade), "path": f"{n}.png"} for n, shade in enumerate(shades)]
        pandas.DataFrame({"image": images, "text": "a"}).to_parquet(tmp_path / "c.parquet")
        assert [pair.image for pair in open_pairs(f"{tmp_path}/c.parquet")] == [png(shade) for shade in shades]


A, B = "image,caption\n1.png,one\n", "image,caption\n"
# What is wrong -> the file's name, its contents, and what is said; `columns=` in the name are the user's.
BAD = {
    "an empty file": ("c.csv", "", "header: found an empty file"),
    "no row": ("c.csv", B, "rows: found none"),
    "no header": (
        "c.csv",
        "1.png,one\n",
        "columns for the image: found '1.png', 'one'; wanted one of image, file_name",
    ),
    "one column": ("c.csv", "image\n1.png\n", "columns for the caption: found 'image'"),
    "a strange delimiter": ("c.csv", "image:caption\n1.png:one\n", "columns for the image: found 'image:caption'"),
    "two columns for captions": ("c.csv", "image,text,title\n1.png,a,b\n", "'text' and 'title', any of which may be"),
    "a column twice": ("c.csv", "image,caption,caption\n1.png,a,b\n", "column 'caption': found 2 of that name"),
    "a column that is not there": (
        "c.csv?caption=words",
        A,
        "caption column 'words': found the columns 'image', 'caption'",
    ),
    "an unknown role": ("c.csv?text=words", A, "columns: entry: found 'text=words'"),
    "links alone": ("c.csv", "url,caption\nhttp://a/1.png,one\n", "column 'url': found links; wanted files of images"),
    "links as images": ("c.csv", B + "https://a/1.png,one\n", "image of row 1: found the link 'https://a/1.png'"),
    "too few cells": ("c.csv", A + "3.png\n", r"row 2 \(to line 3\): found 1 cells; wanted 2 between commas"),
    "an unquoted comma": ("c.csv", A + "3.png,one, two\n", r"row 2 \(to line 3\): found 3 cells"),
    "an open quote": ("c.csv", A + '3.png,"one\nand more\n', "row 2: found unexpected end of data"),
    "a quote inside": ("c.csv", A + '3.png,"one" two\n', "row 2: found ',' expected after '\"'"),
    "an absolute path": ("c.csv", A + "/etc/3.png,x\n", "image of row 2: found '/etc/3.png'; wanted a path inside"),
    "a way out": ("c.csv", A + "../3.png,x\n", r"image of row 2: found '\.\./3.png'; wanted a path inside"),
    "no image": ("c.csv", A + ",x\n", "image of row 2: found an empty string"),
    "an empty caption": ("c.csv", A + "3.png,  \n", r"caption of row 2 \('3.png'\): found an empty text"),
    "a missing image": ("c.csv", A + "9.png,x\n", "images: found 1 of 2 images in none of .*; the first is '9.png'"),
    "Latin-1": ("c.csv", (A + "3.png,B\u00e4r\n").encode("latin-1"), "bytes that are not UTF-8 at offset"),
    "UTF-16 without a mark": ("c.csv", A.encode("utf-16-le"), "encoding: found a zero byte at character 1"),
    "mixed types": (
        "c.jsonl",
        '{"image": "1.png", "text": "a"}\n{"image": "3.png", "text": 3}\n',
        r"text of line 2 \('3.png'\): found a number",
    ),
    "another type in a list": (
        "c.jsonl",
        '{"image": "1.png", "captions": ["a", null]}\n',
        r"captions 1 of line 1 .*: found null",
    ),
    "an empty list": ("c.jsonl", '{"image": "1.png", "captions": []}\n', "captions of line 1 .*: found an empty list"),
    "blank lines alone": ("c.jsonl", "\n\n", "rows: found none"),
    "another key in a line": (
        "c.jsonl",
        '{"image": "1.png", "text": "a"}\n{"image": "3.png"}\n',
        "line 2 for the caption: found 'image'",
    ),
    "a line that is no object": ("c.jsonl", '["1.png", "a"]\n', "line 1: found a list"),
    "a line cut short": ("c.jsonl", '{"image": "1.png", "text": "a"}\n{"image": "3', "line 2: found Unterminated"),
    "COCO without a list": ("c.json", '{"images": null, "annotations": []}', "images: found null; wanted a list"),
    "a COCO image that is no object": ("c.json", '{"images": [1], "annotations": []}', "images 0: found a number"),
    "a COCO annotation that is no object": (
        "c.json",
        '{"images": [{"id": 1, "file_name": "1.png"}], "annotations": [3]}',
        "annotations 0: found a number",
    ),
    "a COCO id that is a list": (
        "c.json",
        '{"images": [{"id": [1]}], "annotations": []}',
        "id of images 0: found a list",
    ),
    "no Parquet": ("c.parquet", A, "found .*[Pp]arquet"),
    "a file that is not there": ("no.csv", None, "no.csv: file: found nothing there"),
    "no such data set": ("hf:nobody/nothing?split=test", None, "data set: found .*nobody/nothing"),
    "an unknown option": ("hf:nobody/nothing?splits=test", None, "option: found splits"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_input_is_named_by_column_and_row(kind, photos, tmp_path, monkeypatch):
    name, content, said = BAD[kind]
    path = name if name.startswith("hf:") else f"{tmp_path}/{name}"
    if content is not None:
        Path(path.partition("?")[0]).write_bytes(content if isinstance(content, bytes) else content.encode())
    if name.startswith("hf:"):
        pytest.importorskip("datasets").config.HF_HUB_OFFLINE = True
    refused(said, read_captioned_images, str(photos), path)


def test_columns_that_the_user_names():
    assert parse_columns("image=a, caption=b c") == {"image": "a", "caption": "b c"} and parse_columns("") == {}
    for text in ("image", "image=", "image=a,image=b", "photo=a"):
        refused("wanted image=COLUMN,caption=COLUMN", parse_columns, text)


def test_a_repeated_row_is_kept_and_said(tmp_path):
    (tmp_path / "c.csv").write_text(A + "1.png,one\n")
    found = read_captions(f"{tmp_path}/c.csv", {})
    assert found.items[0].captions == ("one", "one")
    assert found.summary() == "c.csv: 1 images, 2 captions, 1 of them twice for one image, columns image and caption"


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_images_of_16_bits_are_scaled_and_not_clipped(suffix, tmp_path, capsys):
    shades = np.linspace(0, 65535, 24 * 30).reshape(24, 30).astype(np.uint16)
    Image.fromarray(shades).save(tmp_path / f"deep.{suffix}")
    deep = np.asarray(open_image(tmp_path / f"deep.{suffix}").convert("RGB")).astype(float)
    np.testing.assert_allclose(deep, np.repeat(shades[..., None] / 257, 3, 2), atol=0.5 + 1e-6)
    capsys.readouterr()
    assert open_image(tmp_path / f"deep.{suffix}").mode == "L" and not capsys.readouterr().err


def test_images_whose_range_is_unknown_are_refused(tmp_path):
    Image.fromarray(np.linspace(0, 1, 20, dtype=np.float32).reshape(4, 5)).save(tmp_path / "deep.tif")
    refused(r"deep.tif: image: found values from 0 to 1; wanted 8 or 16 bits", open_image, tmp_path / "deep.tif")
