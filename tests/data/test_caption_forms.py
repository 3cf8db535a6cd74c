"""Captions are read in every form that people have them, alike; images inside tables are decoded once."""

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas
import pytest
from pyarrow.parquet import ParquetFile

from rococo_jax.data.captioned_images import open_pairs, read_captioned_images
from rococo_jax.data.image_files import hash_image
from rococo_jax.data.images import FileImages
from tests.support.training_pairs import all_of, grey_of, png
from tests.support.world import write_pictures

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
PNGS = [png(number) for number in range(3)]
Write = Callable[[Path], object]


@pytest.fixture
def photos(tmp_path) -> Path:
    write_pictures(tmp_path / "photos", CAPTIONS, grey_of)
    return tmp_path / "photos"


def table(image: str = "image", caption: str = "caption") -> pandas.DataFrame:
    return pandas.DataFrame(ROWS, columns=[image, caption])


def embedded(**names: list) -> dict:
    """Rows with images inside, beside other fields of the image column."""
    images = [{"bytes": data, **{key: values[n] for key, values in names.items()}} for n, data in enumerate(PNGS)]
    return {"image": images, "captions": list(CAPTIONS.values())}


def in_json(value: object) -> Write:
    return lambda at: (at / "c.json").write_text(json.dumps(value))


def in_csv(frame: pandas.DataFrame, name: str = "c.csv", **choices) -> Write:
    return lambda at: frame.to_csv(at / name, index=False, **choices)


def in_lines(frame: pandas.DataFrame, name: str) -> Write:
    return lambda at: frame.to_json(at / name, orient="records", lines=True)


def in_parquet(frame: dict | pandas.DataFrame, name: str = "c.parquet", **choices) -> Write:
    return lambda at: pandas.DataFrame(frame).to_parquet(at / name, **choices)


def in_folder(at: Path) -> None:
    (at / "p").mkdir()
    for number, part in enumerate((slice(3), slice(3, None))):
        in_parquet(table()[part], f"p/{number}.parquet")(at)


def saved(frame: dict, split: str | None = None) -> Write:
    def write(at: Path) -> None:
        datasets = pytest.importorskip("datasets")
        data = datasets.Dataset.from_dict(frame)
        if isinstance(frame["image"][0], dict):
            data = data.cast_column("image", datasets.Image())
        (datasets.DatasetDict({split: data}) if split else data).save_to_disk(at / "d")

    return write


def in_tar(at: Path) -> None:
    """Write captions like img2dataset and WebDataset: in JSON, and in a text with one caption per line."""
    with tarfile.open(at / "t.tar", "w") as tar:
        for name, texts in CAPTIONS.items():
            several = any("\n" in text for text in texts)
            about = name.replace(".png", ".json" if several else ".txt")
            text = json.dumps({"captions": texts}) if several else "\r\n".join(texts)
            for called, data in ((name, (at / "photos" / name).read_bytes()), (about, text.encode())):
                member = tarfile.TarInfo(called)
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))


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
    "named in a column": (
        in_parquet({"image": PNGS, "file": list(CAPTIONS), "text": list(CAPTIONS.values())}), "c.parquet?name=file", "",
    ),
    "metadata.csv": (in_csv(table("file_name", "text"), "photos/metadata.csv"), "photos", ""),
    "metadata.jsonl": (in_lines(table("file_name", "text"), "photos/metadata.jsonl"), "photos", ""),
    "metadata.parquet": (in_parquet(table("file_name", "text"), "photos/metadata.parquet"), "photos", ""),
    "a folder of Parquet": (in_folder, "photos", "p"),
    "save_to_disk": (saved(table().to_dict("list")), "photos", "d"),
    "save_to_disk, images inside": (
        saved(embedded() | {"file": list(CAPTIONS)}, "test"), "hf:{at}/d?split=test&name=file", "",
    ),
    "a tar": (in_tar, "t.tar", ""),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_captions_gives_the_same_data(form, photos, tmp_path, capsys):
    write, images, captions = FORMS[form]
    write(tmp_path)
    capsys.readouterr()
    at = (images if images.startswith("hf:") else "{at}/" + images).format(at=tmp_path)
    read = read_captioned_images(at, captions and f"{tmp_path}/{captions}")
    assert "3 images, 6 captions" in capsys.readouterr().err
    assert [name.removeprefix("t.tar/") for name in read.names] == list(CAPTIONS)
    assert [list(item.captions) for item in read.items] == list(CAPTIONS.values())
    assert list(FileImages(read.names, read.paths).hashes) == [hash_image(photos / name) for name in CAPTIONS]
    # Training reads the same.
    pairs = all_of(open_pairs(at, captions and f"{tmp_path}/{captions}"))
    assert [pair.name.removeprefix(f"{tmp_path}/t.tar/") for pair in pairs] == list(CAPTIONS)
    assert [list(pair.captions) for pair in pairs] == list(CAPTIONS.values())
    assert [np.asarray(pair.open())[0, 0, 0] for pair in pairs] == [1, 3, 5]


def test_images_without_names_are_named_by_their_contents(photos, tmp_path):
    rows = [{"photo": (photos / image).read_bytes(), "text": text} for image, text in ROWS]
    in_parquet(rows, "a.parquet")(tmp_path)
    in_parquet(rows[::-1], "b.parquet", row_group_size=2)(tmp_path)
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
    in_parquet({"image": images, "text": "a"}, row_group_size=5)(tmp_path)
    pairs, decoded, read = open_pairs(f"{tmp_path}/c.parquet"), [], ParquetFile.read_row_group

    def count(*args, **kwargs):
        group = read(*args, **kwargs)
        decoded.append(len(group))
        return group

    monkeypatch.setattr(ParquetFile, "read_row_group", count)
    for n in np.random.default_rng(0).permutation(120).tolist():
        assert pairs[n % 60].image == bytes([255, 216, n % 60])
    assert sum(decoded) == 60 if has_copy else sum(decoded) > 240
    assert capsys.readouterr().err.count("no copy of its images") == (not has_copy)


def test_a_parquet_file_that_has_changed_is_copied_again(tmp_path):
    for images in (PNGS, PNGS[::-1]):
        rows = [{"bytes": data, "path": f"{number}.png"} for number, data in enumerate(images)]
        in_parquet({"image": rows, "text": "a"})(tmp_path)
        assert [pair.image for pair in all_of(open_pairs(f"{tmp_path}/c.parquet"))] == images
