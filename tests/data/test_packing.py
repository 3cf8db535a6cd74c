"""`rococo pack` writes shards that hold what was put in, goes on where it stopped, and leaves nothing half-written."""

import io
import json
from pathlib import Path

import pytest
from PIL import Image

from rococo_jax.cli.main import main
from rococo_jax.data import array_record
from rococo_jax.data.array_record import RecordPairs
from rococo_jax.data.captioned_images import open_pairs
from rococo_jax.storage import hash_file
from tests.support.training_pairs import write_pairs


@pytest.fixture
def pairs(tmp_path):
    return write_pairs(tmp_path, 10)


def pack(pairs, out, *more) -> int:
    return main(["pack", "--images", pairs[0], "--captions", pairs[1], "--out", str(out), *map(str, more)])


def test_the_manifest_says_what_is_in_the_shards(pairs, tmp_path, capsys):
    assert pack(pairs, tmp_path / "out", "--shards", 4) == 0
    assert "10 images with 50 captions in 4 shards, 4 of them written now" in capsys.readouterr().out
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert (manifest["images"], manifest["captions"], manifest["image_size"]) == (10, 50, None)
    assert [shard["images"] for shard in manifest["shards"]] == [2, 3, 2, 3]
    for shard in manifest["shards"]:
        assert shard["sha256"] == hash_file(tmp_path / "out" / shard["file"])
        assert len(RecordPairs(tmp_path / "out" / shard["file"])) == shard["images"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(
        ["manifest.json", *(shard["file"] for shard in manifest["shards"])]
    )


def test_packing_twice_writes_nothing_twice_and_the_same_bytes(pairs, tmp_path, capsys):
    assert pack(pairs, tmp_path / "out", "--shards", 3) == pack(pairs, tmp_path / "again", "--shards", 3) == 0
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
    assert pack(pairs, tmp_path / "out", "--shards", 3) == 0
    assert "0 of them written now" in capsys.readouterr().out
    assert before == {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
    assert (tmp_path / "out" / "manifest.json").read_bytes() == (tmp_path / "again" / "manifest.json").read_bytes()


def test_an_interrupted_packing_goes_on(pairs, tmp_path, monkeypatch, capsys):
    whole, write_shard, written = tmp_path / "whole", array_record._write_shard, []
    assert pack(pairs, whole, "--shards", 4) == 0

    def interrupted(source, numbers, path, *more):
        written.append(path)
        if len(written) == 3:
            path.write_bytes(b"half a shard")
            raise KeyboardInterrupt
        return write_shard(source, numbers, path, *more)

    monkeypatch.setattr(array_record, "_write_shard", interrupted)
    assert pack(pairs, tmp_path / "out", "--shards", 4) == 130
    assert sorted(path.name for path in (tmp_path / "out").glob("*")) == [
        ".packing.json",
        "pairs-00000-of-00004.array_record",
        "pairs-00001-of-00004.array_record",
    ]
    monkeypatch.setattr(array_record, "_write_shard", write_shard)
    assert pack(pairs, tmp_path / "out", "--shards", 4) == 0
    assert "2 of them written now" in capsys.readouterr().out
    assert {path.name: hash_file(path) for path in (tmp_path / "out").iterdir()} == {
        path.name: hash_file(path) for path in whole.iterdir()
    }


def test_a_packing_killed_before_it_has_noted_its_first_shard_goes_on(pairs, tmp_path, monkeypatch):
    write_json = array_record.write_json

    def killed(path, value):
        if value["shards"]:
            raise KeyboardInterrupt
        write_json(path, value)

    monkeypatch.setattr(array_record, "write_json", killed)
    assert pack(pairs, tmp_path / "out", "--shards", 2) == 130
    assert (tmp_path / "out" / "pairs-00000-of-00002.array_record").is_file()
    monkeypatch.setattr(array_record, "write_json", write_json)
    assert pack(pairs, tmp_path / "out", "--shards", 2) == 0
    assert len(open_pairs(str(tmp_path / "out"))) == 10


def test_larger_images_are_resized_and_smaller_ones_kept(tmp_path):
    pairs = write_pairs(tmp_path, 3)
    Image.new("RGBA", (90, 60), (10, 200, 30, 255)).save(Path(pairs[0]) / "image001.png")
    assert pack(pairs, tmp_path / "out", "--shards", 1, "--image-size", 20) == 0
    source = open_pairs(str(tmp_path / "out"))
    resized = Image.open(io.BytesIO(source[1].image))
    assert (resized.format, resized.mode, resized.size) == ("JPEG", "RGB", (30, 20))
    # JPEG of quality 95 keeps a flat colour within a few of 256 levels.
    assert all(abs(a - b) <= 3 for a, b in zip(resized.getpixel((10, 10)), (10, 200, 30), strict=True))
    assert source[0].image == (Path(pairs[0]) / "image000.png").read_bytes()


def test_shards_can_be_packed_anew(pairs, tmp_path):
    assert pack(pairs, tmp_path / "out", "--shards", 4) == 0
    assert main(["pack", "--images", str(tmp_path / "out"), "--out", str(tmp_path / "two"), "--shards", "2"]) == 0
    four, two = RecordPairs(tmp_path / "out"), RecordPairs(tmp_path / "two")
    assert [four[index] for index in range(10)] == [two[index] for index in range(10)]


def test_a_broken_image_stops_or_is_left_out(pairs, tmp_path, capsys):
    (Path(pairs[0]) / "image006.png").write_bytes(b"")
    assert pack(pairs, tmp_path / "out", "--shards", 2) == 2
    assert "image006.png: image: found an empty file" in capsys.readouterr().err
    assert not (tmp_path / "out" / "manifest.json").exists()
    # Without a whole shard nothing stays.
    assert pack(pairs, tmp_path / "none", "--shards", 1) == 2 and not list((tmp_path / "none").iterdir())
    capsys.readouterr()
    assert pack(pairs, tmp_path / "less", "--shards", 2, "--leave-out-broken") == 0
    assert "left out, cannot be decoded: 1; the first is image006.png" in capsys.readouterr().out
    source = open_pairs(str(tmp_path / "less"))
    assert [source[index].name for index in range(len(source))] == [
        f"image{number:03d}.png" for number in range(10) if number != 6
    ]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--shards", "11"], "packing: shards: found 11; wanted 1 to 10"),
        (["--shards", "0"], "packing: shards: found 0"),
        (["--image-size", "0", "--shards", "2"], "packing: image_size: found 0"),
    ],
)
def test_impossible_settings_are_named(pairs, tmp_path, more, message, capsys):
    assert pack(pairs, tmp_path / "out", *more) == 2
    assert message in capsys.readouterr().err


def test_a_folder_with_something_else_is_left_alone(pairs, tmp_path, capsys):
    assert pack(pairs, tmp_path / "out", "--shards", 2) == 0
    before = (tmp_path / "out" / "manifest.json").read_bytes()
    assert pack(pairs, tmp_path / "out", "--shards", 3) == 2
    assert "shards of other pairs or settings" in capsys.readouterr().err
    assert (tmp_path / "out" / "manifest.json").read_bytes() == before
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("precious")
    assert pack(pairs, tmp_path / "full", "--shards", 2) == 2
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["thesis.txt"]
