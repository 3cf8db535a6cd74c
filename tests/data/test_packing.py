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
from tests.support.training_pairs import all_of, captions_of, write_pairs


@pytest.fixture
def pairs(tmp_path):
    return write_pairs(tmp_path, 10)


@pytest.fixture
def pack(pairs, capsys):
    """Pack the pairs with some options; return the exit code and the output."""

    def pack(out: Path, *options) -> tuple[int, str]:
        code = main(["pack", "--images", pairs[0], "--captions", pairs[1], "--out", str(out), *map(str, options)])
        return code, "".join(capsys.readouterr())

    return pack


def members(folder: Path) -> list[dict[str, bytes]]:
    """The files in each tar of a folder."""
    tars = []
    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path) as tar:
            tars.append({member.name: tar.extractfile(member).read() for member in tar})
    return tars


def test_tars_contain_images_and_captions_in_order_and_can_be_packed_again(pairs, pack, tmp_path):
    items = json.loads(Path(pairs[1]).read_text())
    items[4]["caption"] = ["a line\nbroken", " kept spaces "]
    Path(pairs[1]).write_text(json.dumps(items))
    code, output = pack(tmp_path / "out", "--shards", 4)
    assert code == 0 and "10 images with 47 captions in 4 tars, 4 of them written now" in output
    tars = members(tmp_path / "out")
    assert [len(tar) // 2 for tar in tars] == [2, 3, 2, 3]
    files = {name: data for tar in tars for name, data in tar.items()}
    assert json.loads(files.pop("00000004.json")) == {"captions": items[4]["caption"]}
    for number in range(10):
        assert files.pop(f"{number:08d}.png") == (Path(pairs[0]) / f"image{number:03d}.png").read_bytes()
        if number != 4:
            assert files.pop(f"{number:08d}.txt").decode().split("\n") == captions_of(number)
    assert not files
    assert main(["pack", "--images", str(tmp_path / "out"), "--out", str(tmp_path / "two"), "--shards", "2"]) == 0
    four, two = (all_of(open_pairs(str(tmp_path / name))) for name in ("out", "two"))
    assert [(pair.image, pair.captions) for pair in four] == [(pair.image, pair.captions) for pair in two]
    assert [list(pair.captions) for pair in four] == [item["caption"] for item in items]


def test_only_missing_tars_are_written_and_with_the_same_bytes(pack, tmp_path):
    def state(name: str, value) -> dict:
        # The hidden indexes record when the tars were written.
        files = (tmp_path / name).iterdir()
        return {path.name: value(path) for path in files if not path.name.startswith(".")}

    assert pack(tmp_path / "out", "--shards", 4)[0] == pack(tmp_path / "again", "--shards", 4)[0] == 0
    files, times = state("out", hash_file), state("out", lambda path: path.stat().st_mtime_ns)
    assert files == state("again", hash_file)
    assert "0 of them written now" in pack(tmp_path / "out", "--shards", 4)[1]
    assert times == state("out", lambda path: path.stat().st_mtime_ns)
    for number in (1, 3):
        (tmp_path / "out" / f"pairs-{number:05d}-of-00004.tar").unlink()
    assert "2 of them written now" in pack(tmp_path / "out", "--shards", 4)[1]
    assert files == state("out", hash_file)


def test_larger_images_are_resized_and_others_are_copied_or_written_as_png(pairs, pack, tmp_path):
    files = [Path(pairs[0]) / f"image{number:03d}.png" for number in range(3)]
    Image.new("RGBA", (90, 60), (10, 200, 30, 255)).save(files[1])
    pixels = np.random.default_rng(0).integers(0, 256, (9, 7, 3), np.uint8)
    Image.fromarray(pixels).save(files[2], "TIFF")
    assert pack(tmp_path / "out", "--shards", 1, "--image-size", 20)[0] == 0
    kept, resized, other = (pair.image for pair in all_of(open_pairs(str(tmp_path / "out")))[:3])
    assert kept == files[0].read_bytes()
    resized, other = (Image.open(io.BytesIO(data)) for data in (resized, other))
    assert (resized.format, resized.mode, resized.size) == ("JPEG", "RGB", (30, 20))
    # JPEG of quality 95 keeps a flat colour within a few of 256 levels.
    assert all(abs(a - b) <= 3 for a, b in zip(resized.getpixel((10, 10)), (10, 200, 30), strict=True))
    assert other.format == "PNG"
    np.testing.assert_array_equal(np.asarray(other), pixels)


def test_a_broken_image_stops_packing_or_is_skipped(pairs, pack, tmp_path):
    (Path(pairs[0]) / "image006.png").write_bytes(b"")
    code, output = pack(tmp_path / "out", "--shards", 2)
    assert code == 2 and "image006.png: image: found an empty file" in output
    assert not list((tmp_path / "out").glob("*.arrow"))
    # Without a whole tar nothing stays.
    assert pack(tmp_path / "none", "--shards", 1)[0] == 2 and not list((tmp_path / "none").iterdir())
    code, output = pack(tmp_path / "less", "--shards", 2, "--leave-out-broken")
    assert code == 0 and "left out, cannot be decoded: 1; the first is image006.png" in output
    names = [Path(pair.name).name for pair in all_of(open_pairs(str(tmp_path / "less")))]
    assert names == [f"{number:08d}.png" for number in range(10) if number != 6]


def test_invalid_settings_and_folders_with_other_files_are_refused(pack, tmp_path):
    assert pack(tmp_path / "tars", "--shards", 2)[0] == 0
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("precious")
    before = {path: path.is_file() and path.read_bytes() for path in tmp_path.rglob("*")}
    for out, options, message in (
        ("new", ["--shards", 11], "packing: shards: found 11; wanted 1 to 10"),
        ("new", ["--shards", 0], "packing: shards: found 0"),
        ("new", ["--image-size", 0, "--shards", 2], "packing: image_size: found 0"),
        ("tars", ["--shards", 3], "shards of other pairs or settings"),
        ("full", ["--shards", 2], "something already there"),
    ):
        code, output = pack(tmp_path / out, *options)
        assert code == 2 and message in output
        assert before == {path: path.is_file() and path.read_bytes() for path in tmp_path.rglob("*")}
