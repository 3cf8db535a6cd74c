"""The hash of a source, by which a run resumes, is that of its captions and images, of every kind of source."""

import hashlib
import io
import os
import shutil
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas
import pytest

from rococo_jax.data import content_hashes, images
from rococo_jax.data.captioned_images import open_pairs
from rococo_jax.data.image_files import hash_image
from rococo_jax.data.images import FileImages
from rococo_jax.data.pair_source import JoinedPairs
from rococo_jax.data.sample_order import SampleOrder
from rococo_jax.data.tables import ParquetTable
from rococo_jax.data.tfds_pairs import TfdsPairs
from rococo_jax.data.training_samples import DrawSample
from rococo_jax.training.inputs.feature_pool import ChosenPairs
from tests.data.test_tar_contents import write
from tests.support.cases import further
from tests.support.refusals import refused
from tests.support.tar_pairs import image_of
from tests.support.training_pairs import all_of, tiny_input

COUNT = 5
IMAGES = tuple(image_of(number) for number in range(7, 7 + COUNT))
CAPTIONS = tuple(f"a dog and {number} cats" for number in range(COUNT))
Writer = Callable[[Path, Sequence[bytes], Sequence[str]], str]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("ROCOCO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(content_hashes, "_BYTES_WORTH_SAVING", 0)


def files(at: Path, images: Sequence[bytes]) -> list[str]:
    return [write(at / "photos" / f"{number}.png", image).name for number, image in enumerate(images)]


def texts_beside(at: Path, images: Sequence[bytes], captions: Sequence[str]) -> str:
    for name, caption in zip(files(at, images), captions, strict=True):
        write(at / "photos" / name.replace(".png", ".txt"), caption.encode())
    return f"{at}/photos"


def in_metadata(at: Path, images: Sequence[bytes], captions: Sequence[str]) -> str:
    pandas.DataFrame({"file_name": files(at, images), "text": captions}).to_csv(
        at / "photos" / "metadata.csv", index=False
    )
    return f"{at}/photos"


def in_parquet(at: Path, images: Sequence[bytes], captions: Sequence[str]) -> str:
    rows = [{"bytes": image, "path": f"{number}.png"} for number, image in enumerate(images)]
    pandas.DataFrame({"image": rows, "caption": captions}).to_parquet(at / "c.parquet", row_group_size=2)
    return f"{at}/c.parquet"


def in_bytes(at: Path, images: Sequence[bytes], captions: Sequence[str]) -> str:
    pandas.DataFrame({"image": images, "caption": captions}).to_parquet(at / "c.parquet")
    return f"{at}/c.parquet"


def saved(at: Path, images: Sequence[bytes], captions: Sequence[str]) -> str:
    datasets = pytest.importorskip("datasets")
    rows = {"image": [{"bytes": image, "path": None} for image in images], "caption": captions}
    datasets.Dataset.from_dict(rows).cast_column("image", datasets.Image()).save_to_disk(at / "d")
    return f"hf:{at}/d"


def in_tar(at: Path, images: Sequence[bytes], captions: Sequence[str]) -> str:
    with tarfile.open(at / "s.tar", "w") as tar:
        for number, (image, caption) in enumerate(zip(images, captions, strict=True)):
            for suffix, data in (("png", image), ("txt", caption.encode())):
                member = tarfile.TarInfo(f"{number}.{suffix}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    return f"{at}/s.tar"


KINDS: dict[str, Writer] = {
    "NAME.txt": texts_beside,
    "metadata.csv": in_metadata,
    "images and paths in Parquet": in_parquet,
    "bytes in Parquet": in_bytes,
    "save_to_disk": saved,
    "a tar": in_tar,
}


def changed(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def new_folder(at: Path) -> Path:
    shutil.rmtree(at, ignore_errors=True)
    at.mkdir()
    return at


@pytest.mark.parametrize(
    "kind", further(KINDS, ("a tar", "save_to_disk", "images and paths in Parquet"), pytest.mark.thorough)
)
def test_only_changes_of_the_data_change_the_hash(kind, tmp_path):
    at, write_data = tmp_path / "data", KINDS[kind]
    source = open_pairs(write_data(new_folder(at), IMAGES, CAPTIONS))
    samples, first = all_of(source), source.hash()
    for path in at.rglob("*"):
        os.utime(path, (1, 1))
    assert open_pairs(write_data(new_folder(tmp_path / "moved"), IMAGES, CAPTIONS)).hash() == first == source.hash()
    hashes = {first}
    for number, place in ((0, 40), (COUNT // 2, -1), (COUNT - 1, -9)):
        images = list(IMAGES)
        images[number] = changed(IMAGES[number], place % len(IMAGES[number]))
        hashes.add(open_pairs(write_data(new_folder(at), images, CAPTIONS)).hash())
    for number, place in ((0, 0), (COUNT // 2, 3), (COUNT - 1, -1)):
        captions = list(CAPTIONS)
        captions[number] = changed(CAPTIONS[number].encode(), place % len(CAPTIONS[number])).decode()
        hashes.add(open_pairs(write_data(new_folder(at), IMAGES, captions)).hash())
    hashes.add(open_pairs(write_data(new_folder(at), IMAGES[::-1], CAPTIONS)).hash())
    hashes.add(open_pairs(write_data(new_folder(at), IMAGES, [*CAPTIONS[:-1], f"{CAPTIONS[-1]} "])).hash())
    assert len(hashes) == 9
    # What is made of sources has hashes of theirs.
    again = open_pairs(write_data(new_folder(at), IMAGES, CAPTIONS))
    other = open_pairs(write_data(new_folder(tmp_path / "moved"), [*IMAGES[1:], IMAGES[0]], CAPTIONS))
    assert JoinedPairs([again, other]).hash() != JoinedPairs([again, again]).hash()
    assert ChosenPairs(again, [0, 1]).hash() != ChosenPairs(other, [0, 1]).hash()
    draws = [
        DrawSample(each, SampleOrder(COUNT, size, 0), None).identity["data"] for each, size in ((again, 2), (again, 4))
    ]
    assert (draws == [first, first] and all_of(again) == samples) or kind in ("NAME.txt", "metadata.csv")


def test_images_of_an_evaluation_are_hashed_again_only_after_a_change(tmp_path, monkeypatch):
    texts_beside(new_folder(tmp_path / "data"), IMAGES, CAPTIONS)
    paths = tuple(sorted((tmp_path / "data" / "photos").glob("*.png")))
    wanted, read, hash_file = [hashlib.sha256(image).hexdigest() for image in IMAGES], [], content_hashes.hash_file
    monkeypatch.setattr(content_hashes, "hash_file", lambda path: read.append(path) or hash_file(path))
    monkeypatch.setattr(images, "hash_image", lambda path: read.append(path) or hash_image(path))
    for reads in (COUNT, 0):
        assert list(FileImages(tuple(map(str, paths)), paths).hashes) == wanted and len(read) == reads
        read.clear()
    time_before = paths[1].stat()
    paths[1].write_bytes(IMAGES[2].ljust(len(IMAGES[1]))[: len(IMAGES[1])])
    os.utime(paths[1], ns=(time_before.st_atime_ns, time_before.st_mtime_ns))
    assert FileImages(("a",), paths[1:2]).hashes == (hashlib.sha256(paths[1].read_bytes()).hexdigest(),)
    assert FileImages(tuple(map(str, paths)), paths).hashes[2:] == tuple(wanted[2:]) and read.count(str(paths[1])) == 2
    paths[3].unlink()
    with pytest.raises(FileNotFoundError, match=r"3\.png"):
        _ = FileImages(("a",), paths[3:4]).hashes


def test_images_in_parquet_without_names_are_read_once_to_name_them(tmp_path, monkeypatch):
    source, rows, image = in_bytes(tmp_path, IMAGES, CAPTIONS), [], ParquetTable.image
    monkeypatch.setattr(ParquetTable, "image", lambda self, row, column: rows.append(row) or image(self, row, column))
    pairs = open_pairs(source)
    assert sorted(rows) == list(range(COUNT))
    names = [f"{hashlib.sha256(each).hexdigest()[:16]}.png" for each in IMAGES]
    assert [pair.name for pair in all_of(pairs)] == names
    rows.clear()
    assert pairs.image_hashes() == [hashlib.sha256(each).hexdigest() for each in IMAGES] and not rows


def test_a_file_is_hashed_again_only_if_it_may_have_changed(tmp_path, monkeypatch):
    photos, read, hash_file = (
        texts_beside(new_folder(tmp_path / "data"), IMAGES, CAPTIONS),
        [],
        content_hashes.hash_file,
    )
    monkeypatch.setattr(content_hashes, "hash_file", lambda path: read.append(Path(path).name) or hash_file(path))
    first = open_pairs(photos).hash()
    assert open_pairs(photos).hash() == first and sorted(read) == [f"{number}.png" for number in range(COUNT)]
    path = Path(photos) / "3.png"
    before = path.stat()
    path.write_bytes(changed(IMAGES[3], 50))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # as rsync sets it
    assert open_pairs(photos).hash() != first and read[COUNT:] == ["3.png"]
    path.write_bytes(IMAGES[3])
    (kept,) = (tmp_path / "cache" / "content_hashes").iterdir()
    kept.write_bytes(changed(kept.read_bytes(), 20))
    assert open_pairs(photos).hash() == first and len(read) == 2 * COUNT + 1


def test_the_hash_depends_on_the_examples_of_tfds(tmp_path):
    features = {"image": "image", "captions": "text", "name": None}

    def source(images: Sequence[bytes], captions: Sequence[str], paths: Sequence[Path] = ()) -> TfdsPairs:
        examples = [{"image": image, "text": text} for image, text in zip(images, captions, strict=True)]
        return TfdsPairs(examples, features, "five", "tfds:five", paths)

    variants = [
        (IMAGES, CAPTIONS),
        ([*IMAGES[:-1], changed(IMAGES[-1], 30)], CAPTIONS),
        (IMAGES, [*CAPTIONS[:-1], "x"]),
    ]
    assert len({source(*each).hash() for each in variants}) == 3
    assert source(*variants[0]).hash() == source(*variants[0]).hash()
    shards = [write(tmp_path / name, data) for name, data in (("a", b"shard"), ("b", b"shard"), ("c", b"shbrd"))]
    hashes = [source(IMAGES, CAPTIONS, [shard]).hash() for shard in shards]
    assert hashes[0] == hashes[1] != hashes[2]


def test_changed_demo_scenes_have_another_hash(tmp_path):
    first = open_pairs("scenes:3").hash()
    (pictures,) = (tmp_path / "cache").rglob("pngs")
    data = np.fromfile(pictures, np.uint8)
    data[200] ^= 1
    data.tofile(pictures)
    assert open_pairs("scenes:3").hash() != first


@pytest.mark.slow
def test_training_does_not_resume_if_one_of_many_images_has_changed(tmp_path):
    captions = [f"a dog {number}" for number in range(150)]
    images = [image_of(number + 200) for number in range(150)]
    photos = texts_beside(new_folder(tmp_path / "data"), images, captions)
    state = tiny_input(open_pairs(photos)).get_state()
    tiny_input(open_pairs(photos)).set_state(state)
    write(Path(photos) / "77.png", image_of(999))
    refused("data: found .*, with which the run began", tiny_input(open_pairs(photos)).set_state, state)
