"""`rococo pack` writes tars that hold what was put in, goes on where it stopped, and leaves nothing half-written."""

import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rococo_jax.cli.main import main
from rococo_jax.data.captioned_images import open_pairs
from rococo_jax.storage import hash_file
from tests.support.training_pairs import captions_of, write_pairs


@pytest.fixture
def pairs(tmp_path):
    return write_pairs(tmp_path, 10)


def pack(pairs, out, *more) -> int:
    return main(["pack", "--images", pairs[0], "--captions", pairs[1], "--out", str(out), *map(str, more)])


def members(tar: Path) -> dict[str, bytes]:
    with tarfile.open(tar) as opened:
        return {member.name: opened.extractfile(member).read() for member in opened}


def test_tars_hold_the_images_and_captions_in_order(pairs, tmp_path, capsys):
    items = json.loads(Path(pairs[1]).read_text())
    items[4]["caption"] = ["a line\nbroken", " kept spaces "]
    Path(pairs[1]).write_text(json.dumps(items))
    assert pack(pairs, tmp_path / "out", "--shards", 4) == 0
    assert "10 images with 47 captions in 4 tars, 4 of them written now" in capsys.readouterr().out
    files = [members(tmp_path / "out" / f"pairs-{number:05d}-of-00004.tar") for number in range(4)]
    assert [len(file) // 2 for file in files] == [2, 3, 2, 3]
    everything = {name: data for file in files for name, data in file.items()}
    assert json.loads(everything.pop("00000004.json")) == {"captions": items[4]["caption"]}
    for number in range(10):
        assert everything.pop(f"{number:08d}.png") == (Path(pairs[0]) / f"image{number:03d}.png").read_bytes()
        if number != 4:
            assert everything.pop(f"{number:08d}.txt").decode().split("\n") == captions_of(number)
    assert not everything
    source = open_pairs(str(tmp_path / "out"))
    assert [list(source[number].captions) for number in range(10)] == [item["caption"] for item in items]


def test_packing_twice_writes_nothing_twice_and_the_same_bytes(pairs, tmp_path, capsys):
    assert pack(pairs, tmp_path / "out", "--shards", 3) == pack(pairs, tmp_path / "again", "--shards", 3) == 0
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
    assert pack(pairs, tmp_path / "out", "--shards", 3) == 0
    assert "0 of them written now" in capsys.readouterr().out
    assert before == {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
    files = [{path.name: hash_file(path) for path in (tmp_path / name).iterdir()} for name in ("out", "again")]
    assert files[0] == files[1]


def test_only_missing_tars_are_written(pairs, tmp_path, capsys):
    assert pack(pairs, tmp_path / "out", "--shards", 4) == 0
    whole = {path.name: hash_file(path) for path in (tmp_path / "out").iterdir()}
    for number in (1, 3):
        (tmp_path / "out" / f"pairs-{number:05d}-of-00004.tar").unlink()
    capsys.readouterr()
    assert pack(pairs, tmp_path / "out", "--shards", 4) == 0
    assert "2 of them written now" in capsys.readouterr().out
    assert {path.name: hash_file(path) for path in (tmp_path / "out").iterdir()} == whole


def test_formats_that_tars_do_not_have_are_written_as_png(tmp_path):
    images, captions = write_pairs(tmp_path, 2)
    pixels = np.random.default_rng(0).integers(0, 256, (9, 7, 3), np.uint8)
    Image.fromarray(pixels).save(Path(images) / "image001.png", "TIFF")
    assert pack((images, captions), tmp_path / "out", "--shards", 1) == 0
    image = Image.open(io.BytesIO(members(tmp_path / "out" / "pairs-00000-of-00001.tar")["00000001.png"]))
    assert image.format == "PNG"
    np.testing.assert_array_equal(np.asarray(image), pixels)


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


def test_tars_can_be_packed_anew(pairs, tmp_path):
    assert pack(pairs, tmp_path / "out", "--shards", 4) == 0
    assert main(["pack", "--images", str(tmp_path / "out"), "--out", str(tmp_path / "two"), "--shards", "2"]) == 0
    four, two = open_pairs(str(tmp_path / "out")), open_pairs(str(tmp_path / "two"))
    for index in range(10):
        assert (four[index].image, four[index].captions) == (two[index].image, two[index].captions)


def test_a_broken_image_stops_or_is_left_out(pairs, tmp_path, capsys):
    (Path(pairs[0]) / "image006.png").write_bytes(b"")
    assert pack(pairs, tmp_path / "out", "--shards", 2) == 2
    assert "image006.png: image: found an empty file" in capsys.readouterr().err
    assert not list((tmp_path / "out").glob("*.arrow"))
    # Without a whole tar nothing stays.
    assert pack(pairs, tmp_path / "none", "--shards", 1) == 2 and not list((tmp_path / "none").iterdir())
    capsys.readouterr()
    assert pack(pairs, tmp_path / "less", "--shards", 2, "--leave-out-broken") == 0
    assert "left out, cannot be decoded: 1; the first is image006.png" in capsys.readouterr().out
    source = open_pairs(str(tmp_path / "less"))
    assert [Path(source[index].name).name for index in range(len(source))] == [
        f"{number:08d}.png" for number in range(10) if number != 6
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
    before = (tmp_path / "out" / "packing.json").read_bytes()
    assert pack(pairs, tmp_path / "out", "--shards", 3) == 2
    assert "shards of other pairs or settings" in capsys.readouterr().err
    assert (tmp_path / "out" / "packing.json").read_bytes() == before
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("precious")
    assert pack(pairs, tmp_path / "full", "--shards", 2) == 2
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["thesis.txt"]
