"""Tars in WebDataset's form give the samples that a folder gives, wherever a run begins and however it is shared."""

import io
import json
import os
import pickle
import shutil
import sys
import tarfile

import numpy as np
import pytest

from rococo_jax.cli.main import main
from rococo_jax.data import tar_index, tar_pairs
from rococo_jax.data.captioned_images import open_pairs
from rococo_jax.data.sample_order import SampleOrder
from rococo_jax.data.tar_pairs import expand_tars, open_tars, split_names
from rococo_jax.training.config import default_config
from rococo_jax.training.inputs.batches import make_order
from tests.support.refusals import refused
from tests.support.tar_pairs import BROKEN, caption_of, image_of, numbers_of, write_tar, write_world
from tests.support.training_pairs import assert_same_batches, column, take, tiny_input

SKIP = {"on_decode_error": "skip", "batch_size": 64}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return write_world(tmp_path_factory.mktemp("tars"))


@pytest.fixture(scope="module")
def tars(world):
    return open_tars(world.pattern, allow_missing=True)


@pytest.fixture(scope="module")
def by_shards(world, tars):
    return {**SKIP, "order": SampleOrder(len(tars), 64, 3, tars.shards)}


@pytest.mark.thorough  # it imports torch
def test_samples_match_webdataset(world, tars):
    wds = pytest.importorskip("webdataset")
    found = []
    for sample in wds.WebDataset([*map(str, world.tars)], shardshuffle=False):
        text = sample["txt"].decode() if "txt" in sample else json.loads(sample.get("json", b"{}")).get("caption") or ""
        if "png" in sample and text.strip():
            found.append((sample["png"], (text,)))
    assert found == [(sample.image, sample.captions) for sample in tars]
    assert len(found) == 994 and tars.shards == tuple(world.sizes)
    assert [tars.captioned(index).captions for index in range(len(tars))] == [captions for _, captions in found]


def test_a_folder_of_the_same_samples_gives_the_same_batches(world, tars):
    folder = open_pairs(world.images, world.captions)
    found, wanted = (take(tiny_input(source, **SKIP), 16) for source in (tars, folder))
    assert_same_batches(found, wanted)
    assert sum(batch["skipped_images"] for batch in found) >= len(BROKEN)
    numbers = np.concatenate([numbers_of(batch) for batch in found])
    np.testing.assert_array_equal(numbers, np.array(world.whole)[column(found, "image_id")])
    assert not set(BROKEN) & set(numbers)


def test_processes_and_workers_and_resumed_runs_read_the_same_samples_by_shard(tars, by_shards):
    whole = take(tiny_input(tars, **by_shards), 17)  # into the second epoch
    for rows in (range(32), range(16, 32), [*range(48, 64)]):
        own = take(tiny_input(tars, rows=rows, start_step=14, **by_shards), 3)
        for name in ("image_id", "ids", "pixels"):
            np.testing.assert_array_equal(column(own, name), np.concatenate([b[name][rows] for b in whole[14:]]))
    stopped = tiny_input(tars, **by_shards)
    take(stopped, 9)
    resumed = tiny_input(pickle.loads(pickle.dumps(tars)), **by_shards)
    resumed.set_state(json.loads(json.dumps(stopped.get_state())))
    assert_same_batches(take(resumed, 8), whole[9:])
    if "ROCOCO_THOROUGH" in os.environ:  # two processes take seconds to start
        assert_same_batches(take(tiny_input(tars, start_step=5, workers=2, **by_shards), 4), whole[5:9])


def test_reading_by_shards_seeks_once_per_lane_and_shard(world, by_shards, monkeypatch):
    # A few members may lie between two images, and a shard's last one and the next lane's first.
    monkeypatch.setattr(tar_pairs, "_READ_AHEAD", 8 * 1024)
    steps = 15
    seeks = {}
    for name, choices in (("shuffled", SKIP), ("shards", by_shards)):
        source = open_tars(world.pattern, allow_missing=True)
        take(tiny_input(source, **choices), steps)
        assert source.reads >= steps * 64
        seeks[name] = source.seeks / source.reads
    # 2 lanes: each begins 7 shards and perhaps one in its middle; substitutes of broken images seek there and back.
    assert seeks["shards"] <= (2 * 8 + 2 * 2 * len(BROKEN)) / (steps * 64) < 0.04
    assert seeks["shuffled"] > 0.8


def test_the_index_is_written_once_and_resumes_after_an_interruption(world, tmp_path, monkeypatch):
    for tar in world.tars:
        shutil.copy(tar, tmp_path)
    pattern, read, read_tar = f"{tmp_path}/cc-{{00..06}}.tar", [], tar_index.read_tar
    expected = open_tars(world.pattern, allow_missing=True).hash()

    def interrupted(path, caption):
        if len(read) == 3:
            raise KeyboardInterrupt
        read.append(path)
        return read_tar(path, caption)

    monkeypatch.setattr(tar_index, "read_tar", interrupted)
    with pytest.raises(KeyboardInterrupt):
        open_tars(pattern, allow_missing=True)
    assert len(list(tmp_path.glob("*.arrow"))) == 3
    first = set(read)
    monkeypatch.setattr(tar_index, "read_tar", lambda path, caption: read.append(path) or read_tar(path, caption))
    made = open_tars(pattern, allow_missing=True)
    assert len(read) == 7 and not first & set(read[3:]) and made.hash() == expected
    indexes = sorted(path.name for path in tmp_path.iterdir() if path.suffix != ".tar")
    assert (
        indexes == [index.name for index in made.indexes] == [f".cc-{number:02}.tar.index.arrow" for number in range(7)]
    )
    open_tars(str(tmp_path), allow_missing=True)  # a folder of them
    assert len(read) == 7
    # A tar that was written again is read again.
    write_tar(tmp_path / "cc-06.tar", range(2000, 2040), 0)
    grown = open_tars(pattern, allow_missing=True)
    assert read[7:] == [f"{tmp_path}/cc-06.tar"] * (len(read) - 7) and grown.shards[-1] == 40


def test_consecutive_reads_of_tars_behind_a_url_are_made_in_blocks(world, by_shards, tmp_path, monkeypatch):
    fsspec = pytest.importorskip("fsspec")
    monkeypatch.setenv("ROCOCO_CACHE", str(tmp_path))
    monkeypatch.setattr(tar_pairs, "_READ_AHEAD", 8 * 1024)
    monkeypatch.setattr(tar_pairs, "_BLOCK", 64 * 1024)
    memory = fsspec.filesystem("memory")
    for tar in world.tars:
        memory.pipe(f"/cc/{tar.name}", tar.read_bytes())
    source, fetched = open_tars("memory://cc/cc-{00..06}.tar", allow_missing=True), []
    fetch = type(memory).cat_file
    monkeypatch.setattr(type(memory), "cat_file", lambda *at, **span: fetched.append(1) or fetch(*at, **span))
    local = open_tars(world.pattern, allow_missing=True)
    found, wanted = (take(tiny_input(each, **by_shards), 15) for each in (source, local))
    assert_same_batches(found, wanted)
    assert expand_tars("memory://cc/cc-0[0-2]*.tar") == [f"memory:///cc/cc-0{number}.tar" for number in range(3)]
    size = sum(tar.stat().st_size for tar in world.tars)
    assert len(fetched) < 1.5 * size / (64 * 1024) + 2 * source.seeks < 0.2 * source.reads
    refused(r"memory://cc/none\.tar: file: found nothing there", open_tars, "memory://cc/none.tar")
    for lost in (PermissionError("no right"), OSError("no route")):
        monkeypatch.setattr(type(memory), "cat_file", lambda *_, lost=lost, **__: (_ for _ in ()).throw(lost))
        monkeypatch.setattr(type(memory), "glob", lambda *_, lost=lost, **__: (_ for _ in ()).throw(lost))
        refused(rf"cc-0\*\.tar: file: found {lost}; wanted files of that name", expand_tars, "memory://cc/cc-0*.tar")
        # Not an image to skip: every image after it would be, and the run would go on without them.
        again = tiny_input(open_tars("memory://cc/cc-{00..06}.tar", allow_missing=True), **SKIP)
        refused(rf"tar: found {lost}; wanted a tar that can be read", take, again, 1)
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    missing = r"gs://: storage: found gcsfs is not installed; wanted pip install gcsfs"
    refused(missing, open_tars, "gs://bucket/a.tar")


def test_patterns_of_tar_names_are_expanded():
    assert expand_tars("cc-{0008..0011}.tar") == [f"cc-{number:04}.tar" for number in range(8, 12)]
    assert expand_tars("c-{8..10}.tar") == ["c-8.tar", "c-9.tar", "c-10.tar"]
    assert expand_tars("{a,b}-{0..1}.tar") == ["a-0.tar", "a-1.tar", "b-0.tar", "b-1.tar"]
    assert split_names("a-{x,y}.tar, b ,c{0..2}.tar") == ["a-{x,y}.tar", "b", "c{0..2}.tar"]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:-10240], r"c.tar: tar: found cut short after \d+ members"),
        (lambda data: data[:2000], r"c.tar: tar: found cut short after \d+ members"),
        (
            lambda data: data[:3584] + b"x" * 512 + data[4096:],
            r"c.tar: tar: found damaged after \d members, at byte 3,584",
        ),
        (lambda data: b"", "c.tar: tar: found an empty file; wanted a complete, uncompressed tar"),
        (lambda data: b"\x1f\x8b" + data, "c.tar: tar: found a compressed file"),
        (lambda data: b"x" * 5000, "c.tar: tar: found no tar"),
        (None, "c.tar: file: found nothing there; wanted a complete"),
    ],
)
def test_tars_that_cannot_be_used_are_refused_in_one_line(world, tmp_path, damage, message, refusal):
    tar = tmp_path / "c.tar"
    write_tar(tar, range(20, 24), 0)
    if damage is None:
        tar.unlink()
    else:
        tar.write_bytes(damage(tar.read_bytes()))
    assert refusal("pack", "--images", tar, "--out", tmp_path / "out").count("\n") == 1
    assert not (tmp_path / "out").exists()
    refused(message, open_pairs, f"{world.tars[0]},{tar}", allow_missing=True)


def test_patterns_without_tars_and_incomplete_samples_are_refused(world, tmp_path):
    for name, message in (
        ("a-{3..1}.tar", "an increasing range"),
        ("a-{0.tar", "an unmatched brace"),
        ("*.tar", "no tar of that name"),
        ("{0..999}{0..9999}.tar", "more than a million"),
    ):
        refused(message, open_pairs, f"{tmp_path}/{name}")
    missing = "found 3 without an image and 3 without a caption; the first is cc-00.tar/000000"
    refused(missing, open_pairs, world.pattern)


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["a.b.01.png", "a.b.01.txt"], "1 without an image and 0 without a caption; the first is c.tar/a"),
        (["1.png", "2.png", "1.txt", "2.txt"], "2 without an image and 2 without a caption; the first is c.tar/1"),
    ],
)
def test_the_error_for_tars_without_complete_samples_states_the_reason(tmp_path, names, found):
    with tarfile.open(tmp_path / "c.tar", "w") as tar:
        for name in names:
            content = io.BytesIO(image_of(1) if name.endswith("png") else b"a dog")
            member = tarfile.TarInfo(name)
            member.size = len(content.getvalue())
            tar.addfile(member, content)
    wanted = "; wanted a sample with both: consecutive members whose names agree up to the first dot"
    refused(found + wanted, open_pairs, f"{tmp_path}/c.tar", allow_missing=True)


def test_broken_images_stop_a_run_that_does_not_skip(world, tars):
    refused(r"cc-0\d.tar/.*000(005|123|500|888)\.png: image: found", take, tiny_input(tars, batch_size=64), 16)


def test_tars_can_be_packed(world, tmp_path, capsys):
    pack = ["pack", "--images", world.pattern, "--out", str(tmp_path / "out"), "--shards", "3"]
    assert main([*pack, "--allow-missing-images", "--leave-out-broken"]) == 0
    assert "990 images with 990 captions in 3 tars" in capsys.readouterr().out
    packed = open_pairs(str(tmp_path / "out"))
    assert sum(packed.shards) == 990
    whole = [number for number in world.whole if number not in BROKEN]
    for index in range(0, 990, 37):
        assert (packed[index].image, packed[index].captions) == (image_of(whole[index]), (caption_of(whole[index]),))


def test_tars_are_read_in_the_configured_order(world, tars):
    data = default_config().data
    data.order = "shards"
    both = open_pairs(f"{world.pattern},{world.tars[6]}", allow_missing=True)
    assert make_order(data, both, 64, 0).shuffle.shards == (*tars.shards, tars.shards[6])
    data.weights = "0.75,0.25"
    refused("config.data.weights: found .* with order 'shards'; wanted no weights", make_order, data, both, 64, 0)
    data.order = "shuffled"
    order = make_order(data, both, 64, 0)
    drawn = np.array([order.image(position) for position in range(8192)])
    assert abs((drawn >= len(tars)).mean() - 0.25) < 0.01 and drawn.max() < len(both)
    data.order, data.weights = "shards", ""
    folder_first = open_pairs(f"{world.images},{world.pattern}", world.captions, allow_missing=True)
    refused(r"'shards' of source 1 of data\.images; wanted 'shuffled'", make_order, data, folder_first, 64, 0)
