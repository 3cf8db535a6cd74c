"""Data sets of the hub, Parquet files and what img2dataset writes: no other rows, images or copies than those named."""

import base64
import hashlib
import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas
import pyarrow
import pytest
from pyarrow import feather

from rococo_jax.cli.main import main
from rococo_jax.data import remember, tables
from rococo_jax.data.caption_forms import read_captions
from rococo_jax.data.captioned_images import open_pairs, read_captioned_images
from tests.data.test_tar_contents import write
from tests.support.cases import further
from tests.support.refusals import refused
from tests.support.tar_pairs import image_of
from tests.support.training_pairs import all_of

PARTS = ("train", "train", "train", "val", "test", "test")
IMAGES = [image_of(number + 20) for number in range(len(PARTS))]
OF_SPLIT = {part: tuple(f"{n}.png" for n, each in enumerate(PARTS) if each == part) for part in PARTS}
ALL = tuple(f"{number}.png" for number in range(len(PARTS)))


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("ROCOCO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def rows(split: bool = True, numbers: range | None = None, **columns: list) -> pandas.DataFrame:
    """The rows of nlphuji/flickr30k, with the split of each row in a column."""
    numbers = range(len(PARTS)) if numbers is None else numbers
    frame = {"image": [{"bytes": IMAGES[n], "path": f"{n}.png"} for n in numbers]}
    frame |= {"caption": [f"a dog {n}" for n in numbers], **columns}
    return pandas.DataFrame(frame | ({"split": [PARTS[n] for n in numbers]} if split else {}))


def parquet(name: str, frame: pandas.DataFrame) -> Callable[[Path], None]:
    def put(at: Path) -> None:
        (at / name).parent.mkdir(parents=True, exist_ok=True)
        frame.to_parquet(at / name)

    return put


def saved(**frames: pandas.DataFrame) -> Callable[[Path], None]:
    def put(at: Path) -> None:
        datasets = pytest.importorskip("datasets")
        sets = {name: datasets.Dataset.from_dict(frame.to_dict("list")) for name, frame in frames.items()}
        sets = {name: each.cast_column("image", datasets.Image()) for name, each in sets.items()}
        datasets.DatasetDict(sets).save_to_disk(at / "d")

    return put


# One split of the data set, whose rows a column divides into three.
FLICKR30K = {
    "hf:": (saved(test=rows()), "hf:{at}/d"),
    "a saved folder": (saved(test=rows()), "{at}/d"),
    "a folder of Parquet": (parquet("p/test-00000-of-00001.parquet", rows()), "{at}/p"),
    "a Parquet file": (parquet("test-00000-of-00001.parquet", rows()), "{at}/test-00000-of-00001.parquet"),
    "a file called by its split": (parquet("p/test.parquet", rows()), "{at}/p"),
    "a snapshot of the hub": (parquet("s/data/test-00000-of-00001-0a1b2c.parquet", rows()), "{at}/s"),
}  # fmt: skip


@pytest.mark.parametrize("form", FLICKR30K)
def test_a_split_is_selected_by_column_and_must_be_named_if_there_are_several(form, tmp_path, capsys):
    put, source = FLICKR30K[form]
    put(tmp_path)
    source = source.format(at=tmp_path)
    for split, names in {**OF_SPLIT, "train+val": OF_SPLIT["train"] + OF_SPLIT["val"], "all": ALL}.items():
        for data in (
            read_captioned_images(source, split=split),
            read_captioned_images(f"{source}?split={split}"),
        ):
            assert data.names == names
            assert [place.read_bytes() for place in data.paths] == [IMAGES[ALL.index(name)] for name in names]
        assert capsys.readouterr().err.count(f"splits train (3), val (1), test (2): read: {split}") == 2
    counts = r"train \(3\), val \(1\), test \(2\)"
    refused(f"split: found none named, of several; wanted {counts}", read_captioned_images, source)
    for wrong in ({"split": "dev"}, {"split": "test+dev"}):
        refused(rf"split: found 'dev'; wanted {counts}", open_pairs, source, **wrong)


SEVERAL = {
    "hf:": (saved(train=rows(False, range(4)), test=rows(False, range(4, 6))), "hf:{at}/d"),
    "a saved folder": (saved(train=rows(False, range(4)), test=rows(False, range(4, 6))), "{at}/d"),
    **{
        form: (
            lambda at, train=train, test=test: [
                parquet(train, rows(False, range(4)))(at),
                parquet(test, rows(False, range(4, 6)))(at),
            ],
            f"{{at}}/{train.split('/')[0]}",
        )
        for form, (train, test) in {
            "Parquet": ("p/train-00000-of-00001.parquet", "p/test-00000-of-00001.parquet"),
            "Parquet by usual names": ("p/train.parquet", "p/test.parquet"),
            "folders by split": ("s/default/train/0000.parquet", "s/default/test/0000.parquet"),
            "a snapshot": ("s/data/train-00000-of-00001.parquet", "s/data/test-00000-of-00001.parquet"),
        }.items()
    },
}


@pytest.mark.parametrize("form", SEVERAL)
def test_one_of_several_splits_must_be_selected(form, tmp_path, capsys):
    put, source = SEVERAL[form]
    put(tmp_path)
    source = source.format(at=tmp_path)
    refused("split: found none named, of several; wanted .*train", read_captioned_images, source)
    for split, names in (("train", ALL[:4]), ("test", ALL[4:]), ("train+test", ALL), ("all", ALL)):
        for data in (read_captioned_images(source, split=split), read_captioned_images(f"{source}?split={split}")):
            assert sorted(data.names) == list(names)
    assert "test (2), train (4): read: test" in capsys.readouterr().err.replace(
        "train (4), test (2)", "test (2), train (4)"
    )
    refused("split: found 'val'; wanted .*one or several", read_captioned_images, source, split="val")


def test_the_only_split_can_be_named(tmp_path):
    parquet("p/test-00000-of-00001.parquet", rows(split=False))(tmp_path)
    for split in ("", "test", "all"):
        assert read_captions(tmp_path / "p", split=split).image_files.keys() == {*ALL}
    refused(r"split: found 'train'; wanted test \(6\)", read_captions, tmp_path / "p", split="train")


def test_a_split_is_ambiguous_if_a_column_divides_its_rows_differently(tmp_path):
    """Neither the 2 rows nor all 6 are what `validation` means without a doubt."""
    parquet("validation-00000-of-00001.parquet", rows())(tmp_path)
    source = str(tmp_path / "validation-00000-of-00001.parquet")
    divided = r"found 'validation'; wanted train \(3\), val \(1\), test \(2\)"
    refused(divided, read_captioned_images, source, split="validation")
    assert read_captioned_images(source, split="val").names == OF_SPLIT["val"]
    assert read_captioned_images(source, split="all").names == ALL


def test_a_split_column_with_one_value_is_ignored(tmp_path):
    frame = rows(split=False).assign(split="restval")
    parquet("train-00000-of-00001.parquet", frame)(tmp_path)
    source = str(tmp_path / "train-00000-of-00001.parquet")
    for split in ("", "train", "all"):
        assert read_captioned_images(source, split=split).names == ALL
    refused(r"split: found 'restval'; wanted train \(6\)", read_captioned_images, source, split="restval")


def test_the_error_for_a_snapshot_with_several_configurations_names_them(tmp_path):
    for name in ("en", "de"):
        parquet(f"s/{name}/test-00000-of-00001.parquet", rows(split=False))(tmp_path)
    several = "found Parquet files in 2 folders: de, en; wanted one of them, as .*s/de"
    refused(several, read_captioned_images, str(tmp_path / "s"))
    assert read_captioned_images(str(tmp_path / "s" / "en")).names == ALL


# img2dataset

KEYS = [f"{number:09d}" for number in range(len(PARTS))]
STATUS = ["success", "success", "failed_to_download", "success", "failed_to_resize", "success"]
WRITTEN = [number for number, status in enumerate(STATUS) if status == "success"]


def downloads(at: Path, *, images: bool = False, suffix: str = ".jpg") -> None:
    """Write the output of img2dataset: files (its default), or Parquet with the images."""
    frame = {"url": [f"https://x.org/{key}" for key in KEYS], "key": KEYS, "status": STATUS,
             "caption": [f"a dog {number}" for number in range(len(KEYS))]}  # fmt: skip
    if images:
        frame["jpg"] = [IMAGES[number] if number in WRITTEN else None for number in range(len(KEYS))]
    (at / "out").mkdir(exist_ok=True)
    pandas.DataFrame(frame).to_parquet(at / "out" / "00000.parquet")
    write(at / "out" / "00000_stats.json", b"{}")
    for number in WRITTEN if not images else []:
        write(at / "out" / "00000" / f"{KEYS[number]}{suffix}", IMAGES[number])
        write(at / "out" / "00000" / f"{KEYS[number]}.txt", frame["caption"][number].encode())


def test_files_of_img2dataset_are_read_and_its_table_of_links_is_refused(tmp_path):
    downloads(tmp_path)
    data = read_captioned_images(f"{tmp_path}/out/00000")
    assert data.captions == tuple(f"a dog {number}" for number in WRITTEN)
    assert [place.read_bytes() for place in data.paths] == [IMAGES[number] for number in WRITTEN]
    refused("column 'url': found links; wanted .*folders of img2dataset", read_captioned_images, f"{tmp_path}/out")


def test_parquet_of_img2dataset_is_read_without_failed_downloads(tmp_path, capsys):
    downloads(tmp_path, images=True)
    for images in ("out", "out/00000.parquet"):
        data = read_captioned_images(f"{tmp_path}/{images}")
        assert data.captions == tuple(f"a dog {number}" for number in WRITTEN)
        assert [pair.image for pair in all_of(data)] == [IMAGES[number] for number in WRITTEN]
    assert capsys.readouterr().err.count("2 failed downloads left out") == 2


def test_a_table_in_which_every_download_failed_is_refused(tmp_path):
    downloads(tmp_path, images=True)
    table = pandas.read_parquet(tmp_path / "out" / "00000.parquet").assign(status="failed_to_download")
    table.to_parquet(tmp_path / "out" / "00000.parquet")
    refused("rows: found none; wanted at least one image", read_captioned_images, f"{tmp_path}/out")


# Cells that hold no image

PIXELS = np.arange(300, dtype=np.uint8).reshape(10, 10, 3).tobytes()


@pytest.mark.parametrize(
    ("cell", "found"),
    [
        (PIXELS, "300 bytes that are no image file"),
        ({"bytes": PIXELS, "path": "a.png"}, "300 bytes that are no image file"),
        ({"bytes": PIXELS, "path": None}, "300 bytes that are no image file"),
        (base64.b64encode(IMAGES[0]), r"\d+ bytes of base64 text"),
        (b"x" * 16, "16 bytes that are no image file"),
    ],
)
def test_cells_without_an_image_file_are_refused_with_row_and_column(cell, found, tmp_path, refusal):
    pandas.DataFrame({"photo": [cell] * 3, "caption": ["a dog"] * 3}).to_parquet(tmp_path / "t.parquet")
    message = f"t.parquet: row 1, column 'photo': found {found}"
    refused(message, read_captioned_images, f"{tmp_path}/t.parquet")
    assert refusal("pack", "--images", tmp_path / "t.parquet", "--out", tmp_path / "o").count("\n") == 1


@pytest.mark.parametrize("cell", [None, b"", {"bytes": None, "path": "4.png"}])
def test_empty_image_cells_are_refused_with_row_and_column(cell, tmp_path):
    inside = isinstance(cell, dict)
    cells = [{"bytes": image, "path": f"{n}.png"} if inside else image for n, image in enumerate(IMAGES)]
    cells[4] = cell
    pandas.DataFrame({"image": cells, "caption": "a dog"}).to_parquet(tmp_path / "t.parquet")
    message = "found no bytes; wanted an image file inside the table, in row 5 of the column 'image'"
    refused(message, lambda: all_of(open_pairs(f"{tmp_path}/t.parquet")))


# Copies in the cache folder


def copies(cache: Path) -> list[Path]:
    return sorted((cache / "tables").glob("*.arrow"))


def as_in_another_process() -> None:
    remember._remove_leftovers.cache_clear()
    remember._remove_useless_files.cache_clear()


def again(source: Path) -> list[bytes]:
    tables._open_copy.cache_clear()  # as in another process
    return [pair.image for pair in all_of(open_pairs(str(source)))]


def flip(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 0x40]) + data[place + 1 :]


@pytest.mark.parametrize(
    "damage",
    [
        0,
        54,
        "cut",
        "another table",
        *further([*range(9, 54, 9), *range(63, 100, 9), "empty"], (), pytest.mark.thorough),
    ],
)
def test_a_damaged_copy_is_written_again_without_blaming_an_image(damage, cache, tmp_path, capsys):
    parquet("t.parquet", rows(split=False))(tmp_path)
    assert again(tmp_path / "t.parquet") == IMAGES
    (copy,) = copies(cache)
    data = copy.read_bytes()
    if damage == "another table":
        parquet("u.parquet", rows(split=False, numbers=range(5, -1, -1)))(tmp_path)
        again(tmp_path / "u.parquet")
        (other,) = {*copies(cache)} - {copy}
        assert again(tmp_path / "u.parquet") == IMAGES[::-1]
        other.unlink()
    damaged = {"cut": data[: len(data) // 2], "empty": b""}
    copy.write_bytes(damaged[damage] if damage in damaged else flip(data, len(data) * damage // 100)
                     if isinstance(damage, int) else data)  # fmt: skip
    capsys.readouterr()
    assert again(tmp_path / "t.parquet") == IMAGES
    assert "damaged file" not in capsys.readouterr().err


def test_every_image_is_correct_after_its_copy_was_damaged(cache, tmp_path):
    parquet("t.parquet", rows(split=False))(tmp_path)
    again(tmp_path / "t.parquet")
    (copy,) = copies(cache)
    data = copy.read_bytes()
    for image in IMAGES:
        copy.write_bytes(flip(data, data.index(image) + len(image) // 2))
        assert again(tmp_path / "t.parquet") == IMAGES
        assert copy.read_bytes() == data
        digest = hashlib.sha256(image).digest()
        copy.write_bytes(flip(data, data.index(digest) + 7))
        tables._open_copy.cache_clear()
        assert digest.hex() in open_pairs(f"{tmp_path}/t.parquet").image_hashes()
        again(tmp_path / "t.parquet")
        assert copy.read_bytes() == data


def test_a_changed_table_of_the_same_size_and_time_has_its_new_images(cache, tmp_path):
    path = tmp_path / "t.parquet"
    for numbers in (range(6), range(5, -1, -1)):
        before = path.stat() if path.exists() else None
        parquet("t.parquet", rows(split=False, numbers=numbers))(tmp_path)
        if before is not None:
            assert path.stat().st_size == before.st_size
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert again(path) == [IMAGES[number] for number in numbers]


def test_a_changed_local_folder_of_the_datasets_library_has_its_new_rows(cache, tmp_path, monkeypatch):
    """The cache of `datasets` knows files by path and time."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "library")
    path = tmp_path / "p" / "test-00000-of-00001.parquet"
    for numbers in (range(6), range(5, -1, -1)):
        before = path.stat() if path.exists() else None
        parquet("p/test-00000-of-00001.parquet", rows(split=False, numbers=numbers))(tmp_path)
        if before is not None:
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        for _ in range(2):
            pairs = all_of(open_pairs(f"hf:{tmp_path}/p"))
            assert [pair.image for pair in pairs] == [IMAGES[number] for number in numbers]
        (place,) = (cache / "datasets").iterdir()
        assert len(list(place.iterdir())) == 1


def test_copies_of_deleted_or_changed_tables_are_removed(cache, tmp_path, monkeypatch):
    for name in ("a.parquet", "b.parquet", "d.parquet"):
        parquet(name, rows(split=False))(tmp_path)
        again(tmp_path / name)
    old = [write(cache / "tables" / name, b"half") for name in ("old.arrow", ".a-b.arrow.0123abcd.part")]
    new = [write(cache / "tables" / name, b"half") for name in ("new.arrow", ".c-d.arrow.0123abcd.part", "notes.part")]
    for path in [*old, new[-1]]:
        os.utime(path, (1, 1))
    kept = {*copies(cache)}
    for name in ("a.parquet", "d.parquet"):
        (tmp_path / name).unlink()
    parquet("b.parquet", rows(split=False, numbers=range(3)))(tmp_path)
    with monkeypatch.context() as other:  # tables that another machine mounted elsewhere, and one of the same path
        other.setattr(socket, "gethostname", lambda: "another machine")
        as_in_another_process()
        assert again(tmp_path / "b.parquet") == IMAGES[:3] and {*copies(cache)} > kept - {*old}
    (of_other,) = {*copies(cache)} - kept
    parquet("b.parquet", rows(split=False, numbers=range(2)))(tmp_path)
    as_in_another_process()
    assert again(tmp_path / "b.parquet") == IMAGES[:2]
    (copy,) = {*copies(cache)} - {of_other, new[0]}
    assert copy not in kept and not any(path.exists() for path in old) and all(path.exists() for path in new)
    shutil.move(tmp_path / "b.parquet", tmp_path / "c.parquet")
    as_in_another_process()
    assert again(tmp_path / "c.parquet") == IMAGES[:2] and {*copies(cache)} & {copy, of_other} == {of_other}


def test_only_the_first_copy_of_a_process_opens_the_others(cache, tmp_path, monkeypatch):
    opened, read_record = [], remember._read_record
    monkeypatch.setattr(remember, "_read_record", lambda copy: opened.append(copy) or read_record(copy))
    for number in range(6):
        parquet(f"{number}.parquet", rows(split=False, numbers=[number]))(tmp_path)
        if number == 5:
            opened.clear()
        again(tmp_path / f"{number}.parquet")
    assert len(copies(cache)) == 6 and not {*opened} & {*copies(cache)[:5]} - {opened[0]}


@pytest.mark.parametrize("compression", ["lz4", "uncompressed"])
def test_images_of_arrow_files_stay_on_disk_and_compressed_files_are_refused(compression, tmp_path):
    path, rng = tmp_path / "t.arrow", np.random.default_rng(0)
    for number in range(2):  # a second time with the same size and time of modification
        images = [IMAGES[number], *(b"\xff\xd8" + rng.bytes(50_000) for _ in range(40))]
        images = [{"bytes": image, "path": f"{row}.jpg"} for row, image in enumerate(images)]
        table = pyarrow.table({"image": images, "caption": ["a dog"] * 41})
        feather.write_feather(table, path, compression=compression, chunksize=30)
        os.utime(path, (1, 1))
        wanted = [image["bytes"] for image in images]
        del images, table
        if compression != "uncompressed":
            refused("table: found a compressed Arrow or Feather file; wanted .*Parquet", open_pairs, str(path))
            return
        before = pyarrow.total_allocated_bytes()
        pairs = open_pairs(str(path))
        assert [pairs[row].image for row in (40, 0, 12)] == [wanted[row] for row in (40, 0, 12)]
        assert pyarrow.total_allocated_bytes() - before < 10**6
        assert [pair.captions for pair in all_of(pairs)] == [("a dog",)] * 41


def test_images_are_read_without_a_cache_folder_and_the_variable_is_named(tmp_path, monkeypatch, capsys):
    parquet("t.parquet", rows(split=False))(tmp_path)
    monkeypatch.setenv("ROCOCO_CACHE", str(write(tmp_path / "file", b"")))
    assert again(tmp_path / "t.parquet") == IMAGES
    assert capsys.readouterr().err.count("set ROCOCO_CACHE to a folder that can be written") == 1


def test_the_example_of_the_help_reads_the_split_of_the_column(tmp_path):
    """`rococo make-benchmark --images hf:nlphuji/flickr30k?split=test`, of its 1,000 of 31,014 images."""
    saved(test=rows())(tmp_path)
    command = ["make-benchmark", "--images", f"hf:{tmp_path}/d?split=test", "--out", str(tmp_path / "out")]
    assert main(command) == 0
    made = json.loads((tmp_path / "out" / "mine" / "annotations" / "captions.json").read_text())
    assert [item["image"] for item in made] == list(OF_SPLIT["test"])
