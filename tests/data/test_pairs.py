"""Training pairs come from folders, JSON lines, packed tars and TFDS alike, and bad ones are named."""

import io
import json
import pickle
import shutil
import sys

import numpy as np
import pytest

from rococo_jax.data import captioned_images
from rococo_jax.data.captioned_images import open_pairs, register_source
from rococo_jax.data.packing import pack_pairs
from rococo_jax.data.pair_source import JoinedPairs
from rococo_jax.data.tfds_pairs import TfdsPairs, find_feature, open_tfds
from tests.support.refusals import refused
from tests.support.training_pairs import (
    all_of,
    assert_same_batches,
    captions_of,
    column,
    png,
    take,
    tiny_input,
    write_pairs,
)

# Folders and captions files


def test_pairs_are_in_file_order_with_all_captions(tmp_path):
    source = open_pairs(*write_pairs(tmp_path, 4))
    assert [sample.name for sample in all_of(source)] == [f"image{number:03d}.png" for number in range(4)]
    assert [list(sample.captions) for sample in all_of(source)] == [captions_of(number) for number in range(4)]
    assert all(sample.image.is_file() for sample in all_of(source))
    assert all_of(pickle.loads(pickle.dumps(source))) == all_of(source)


def test_missing_images_are_skipped_or_named(tmp_path):
    images, captions = write_pairs(tmp_path, 2)
    (tmp_path / "images" / "image000.png").unlink()
    assert [sample.name for sample in all_of(open_pairs(images, captions, allow_missing=True))] == ["image001.png"]
    refused(r"1 of 2 images in none of .*; the first is 'image000.png'", open_pairs, images, captions)
    (tmp_path / "empty").mkdir()
    (tmp_path / "none.json").write_text("[]")
    for arguments, message in (
        ((images, str(tmp_path / "gone.json")), r"gone\.json: file: found nothing there"),
        ((str(tmp_path / "gone"), captions), r"gone: image folder: found nothing there"),
        ((str(tmp_path / "empty"), captions), r"captions\.json: images: found none of its 2 images in .*empty"),
        ((images, ""), r"captions: found no captions file"),
        ((images, str(tmp_path / "none.json")), r"none\.json: captions: found an empty list"),
        ((str(tmp_path / "none.json"), captions), r"image folder: found a file"),
        (("", ""), r"images: found ''"),
    ):
        refused(message, open_pairs, *arguments, allow_missing=True)


def test_the_hash_depends_on_the_data_and_not_on_their_location_or_form(tmp_path):
    (images, captions), moved = (write_pairs(tmp_path / place, 3) for place in ("a", "b"))
    rows = [{"image": f"image{n:03d}.png", "caption": text} for n in range(3) for text in captions_of(n)[:2]]
    rows += [{"image": f"image{n:03d}.png", "captions": captions_of(n)[2:]} for n in range(3)]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    source, lines = open_pairs(images, captions), open_pairs(images, str(tmp_path / "pairs.jsonl"))
    assert all_of(lines) == all_of(source)
    assert source.hash() == lines.hash() == open_pairs(*moved).hash()
    assert source.hash() != open_pairs(*write_pairs(tmp_path / "c", 3, captions=4)).hash()


@pytest.mark.real_data
def test_the_real_folders_are_read_together(real_data):
    coco, flickr = real_data / "coco", real_data / "flickr8k"
    samples = all_of(open_pairs(f"{coco}/images,{flickr}/images", f"{coco}/captions_train.json,{flickr}/captions.json"))
    assert len(samples) == 2570 + 1000 and sum(len(sample.captions) for sample in samples) == 12857 + 5000
    assert all(sample.image.is_file() for sample in samples[::100])


def test_tars_folders_and_registered_names_can_be_joined(tmp_path, monkeypatch):
    monkeypatch.setattr(captioned_images, "SOURCE_KINDS", list(captioned_images.SOURCE_KINDS))
    images, captions = write_pairs(tmp_path, 3)
    register_source("again:", lambda name: open_pairs(images, captions) if name == "again:three" else None)
    assert all_of(open_pairs("again:three")) == all_of(open_pairs(images, captions))
    refused(r"wanted folders of images, tars, tfds:NAME, .*again:NAME", open_pairs, "")
    pack_pairs(open_pairs(*write_pairs(tmp_path / "more", 7)), tmp_path / "tars", shards=3)
    source = open_pairs(f"{tmp_path}/tars,{images},again:three", captions)
    numbers = (*range(3), *range(7), *range(3))
    assert [list(sample.captions) for sample in all_of(source)] == [captions_of(number) for number in numbers]


# TensorFlow Datasets


@pytest.fixture(scope="module")
def dataset_folder(tmp_path_factory):
    """A dataset that TFDS itself has written, with the features of its captioning datasets."""
    tfds = pytest.importorskip("tensorflow_datasets")

    class RococoTinyCaptions(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            captions = tfds.features.Sequence({"id": np.int64, "text": tfds.features.Text()})
            features = {"image": tfds.features.Image(encoding_format="png"), "image/filename": tfds.features.Text()}
            features |= {"captions": captions, "title": tfds.features.Text()}
            return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

        def _split_generators(self, dl_manager):
            return {"train": self._generate_examples()}

        def _generate_examples(self):
            for number in range(9):
                texts = [{"id": k, "text": text} for k, text in enumerate(captions_of(number))]
                image = {"image": io.BytesIO(png(number)), "image/filename": f"{number}.png"}
                yield number, {**image, "captions": texts, "title": f"title {number}"}

    folder = tmp_path_factory.mktemp("tfds")
    RococoTinyCaptions(data_dir=folder, file_format="array_record").download_and_prepare()
    return folder


def test_tfds_is_read_without_tensorflow(dataset_folder):
    source = open_pairs(f"tfds:rococo_tiny_captions?data_dir={dataset_folder}&split=train")
    assert len(source) == 9
    for sample in all_of(source):
        number = int(sample.name.removesuffix(".png"))
        assert list(sample.captions) == captions_of(number) and sample.image == png(number)
    assert "tensorflow" not in sys.modules


@pytest.mark.slow
def test_tfds_and_tars_feed_training_with_workers(dataset_folder, tmp_path):
    tfds = open_pairs(f"tfds:rococo_tiny_captions?data_dir={dataset_folder}")
    alone = take(tiny_input(tfds, batch_size=4), 3)
    assert len(set(column(alone, "image_id")[:8])) == 8  # of 9: an epoch drops its rest
    pack_pairs(open_pairs(*write_pairs(tmp_path, 11)), tmp_path / "tars", shards=3)
    both = JoinedPairs([tfds, open_pairs(str(tmp_path / "tars"))])
    assert_same_batches(take(tiny_input(both, workers=1), 3), take(tiny_input(both), 3))


def test_tfds_features_and_splits_can_be_named(dataset_folder):
    whole = open_tfds(f"tfds:rococo_tiny_captions?data_dir={dataset_folder}")
    half = open_tfds(f"tfds:rococo_tiny_captions?data_dir={dataset_folder}&split=train[:4]&captions=title&name=title")
    assert len(half) == 4 and half.hash() != whole.hash()
    for sample in all_of(half):
        assert sample.captions == (sample.name,) and sample.name.startswith("title ")


@pytest.mark.parametrize("split", ["train", "train[:4]"])
def test_the_hash_of_tfds_data_depends_on_their_records(split, dataset_folder, tmp_path):
    shutil.copytree(dataset_folder, tmp_path / "moved")
    first, moved = (open_tfds(f"tfds:rococo_tiny_captions?data_dir={folder}&split={split}")
                    for folder in (dataset_folder, tmp_path / "moved"))  # fmt: skip
    (record,) = moved.files
    assert first.hash() == moved.hash()
    data = bytearray(record.read_bytes())
    data[len(data) // 2] ^= 1
    record.write_bytes(data)
    moved._hash = None
    assert first.hash() != moved.hash()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("rococo_no_such_dataset?", "dataset: found Dataset rococo_no_such_dataset not found"),
        ("rococo_tiny_captions?split=test&", "dataset: found Unknown split 'test'"),
        ("rococo_tiny_captions?captions=words&", "captions: found the features captions, image, image/filename, title"),
        ("rococo_tiny_captions?image=photo&", "dataset: found .*photo"),
        ("rococo_tiny_captions?caption=title&", "option: found caption; wanted one of split"),
    ],
)
def test_missing_datasets_of_tfds_are_named(dataset_folder, name, message):
    refused(message, open_tfds, f"tfds:{name}data_dir={dataset_folder}")


def test_the_error_for_missing_tfds_explains_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    missing = "library: found no tensorflow_datasets installed; wanted pip install 'tensorflow-datasets>="
    refused(missing, open_tfds, "tfds:coco_captions/2014")


def test_examples_without_image_or_caption_are_named():
    features = {"image": "image", "captions": "texts/en", "name": None}
    examples = [{"image": 3, "texts": {"en": ["a"]}}, {"image": b"x", "texts": {"en": []}}]
    source = TfdsPairs(examples, features, "two", "tfds:two")
    refused("example 0 of tfds:two: image: found int", source.__getitem__, 0)
    refused("example 1 of tfds:two: texts/en: found no caption", source.__getitem__, 1)


def test_features_of_tfds_are_found_by_their_path():
    example = {"a": {"b": {"c": 1}}, "a/b": 2}
    assert find_feature(example, "a/b") == 2 and find_feature(example, "a/b/c") == 1
    assert find_feature(example, "a") is None and find_feature(example, "b") is None and find_feature(3, "a") is None
