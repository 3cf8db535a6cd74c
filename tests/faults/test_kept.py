"""What earlier commands left: embeddings, results and folders that are damaged, or belong to other inputs."""

import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rococo_jax.encoders.cache import EmbeddingCache
from tests.support.faults import Table, World

CACHE, KEPT = Table(), Table()


def _parts(world):
    return sorted((world / "cache").rglob("*.npy"), key=lambda path: path.stat().st_size)


def _saved(array) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def _part(name: str, damage, **marks):
    """A damaged part is computed again, and what is computed is what it was."""

    @CACHE.row(name, code=0, after=World.assert_undisturbed, **marks)
    def _(world):
        damage(_parts(world))
        return world.evaluate()


def _swap(parts):
    first, second = parts[0].read_bytes(), parts[-1].read_bytes()
    parts[0].write_bytes(second)
    parts[-1].write_bytes(first)


def _rewrite(change):
    """All parts as arrays that `change` makes of them, without and then with their own digests."""

    def damage(parts):
        for part in parts:
            part.write_bytes(_saved(change(np.load(io.BytesIO(part.read_bytes())))))

    return damage


def _as_folder(parts):
    parts[0].unlink()
    (parts[0] / "below").mkdir(parents=True)


def _flip_a_bit(parts):
    for part in parts:
        content = bytearray(part.read_bytes())
        content[len(content) // 2] ^= 1
        part.write_bytes(content)


def _npz(parts):
    for part in parts:
        with part.open("wb") as file:
            np.savez(file, a=np.zeros(3))


def _cut_header(parts):
    content = parts[0].read_bytes()
    parts[0].write_bytes(content.replace(b"}", b" ", 1))


_part("two cache files swapped in content (text<->image)", _swap)
_part("part with fewer rows", _rewrite(lambda array: array[:-1]))
_part("part of another width", _rewrite(lambda array: array[:, :-1]), thorough=True)
_part("part full of NaN", _rewrite(lambda array: array * np.nan), thorough=True)
_part("part of strings", _rewrite(lambda array: array.astype(str)), thorough=True)
_part("part is a zip (npz)", _npz, thorough=True)
_part("part is a folder", _as_folder)
_part("header without its closing brace", _cut_header, thorough=True)
_part("one bit flipped in every part", _flip_a_bit)


def test_a_part_under_another_key_is_not_used(tmp_path):
    cache = EmbeddingCache(tmp_path)
    one, other = (cache.key({}, [name]) for name in (b"one", b"other"))
    cache.put(one, np.ones((2, 3), np.float32))
    np.testing.assert_array_equal(cache.get(one), np.ones((2, 3)))
    cache.put(other, np.zeros((2, 3), np.float32))
    shutil.copy(cache._path(one), cache._path(other))
    assert cache.get(other) is None


@KEPT.row("metric in results.json hand-edited to 99; same command", says="results.json: sha256: found values changed")
def _(world):
    world.run(world.evaluate())
    world.edit("out/results.json", lambda value: value["tasks"]["image_to_text"]["clean"].update(r1=99.0))
    return world.evaluate()


@KEPT.row("hand-edited results in a report", says="results.json: sha256")
def _(world):
    world.edit("truth/results.json", lambda value: value["tasks"]["image_to_text"]["clean"].update(r1=99.0))
    return ["report", world / "truth", "--out", world / "report.html"]


def _table(name: str, table: str, damage):
    @KEPT.row(f"{name}; same command", code=0, after=World.assert_undisturbed)
    def _(world):
        world.run(world.evaluate())
        path = world / "out" / table
        path.write_bytes(damage(path.read_bytes()))
        return world.evaluate()


_table("per_query.parquet emptied", "per_query.parquet", lambda content: b"")
_table("per_query.parquet cut", "per_query.parquet", lambda content: content[:-40])
_table("per_image.parquet cut", "per_image.parquet", lambda content: content[:-40])


def _changed_image(world, folder: str = "images", number: int = 0) -> None:
    Image.new("RGB", (40, 40), (9, 99, 200)).save(world / folder / f"{number:02}.png")


def _other_images(world) -> str:
    """Another folder of images of the same names."""
    (world / "b").mkdir()
    for number in range(12):
        _changed_image(world, "b", number)
    return "b"


for _name, _command in (("mix-images", "mix"), ("corrupt-images", "corrupt")):

    def _rows(name, command):
        out = {"mix": "mixed", "corrupt": "corrupted"}[command]

        @KEPT.row(f"an image changed after {name}; same command", says="manifest.json: image '00.png': found changed")
        def _(world):
            world.run(getattr(world, command)())
            _changed_image(world)
            return getattr(world, command)()

        @KEPT.row(
            f"{name} --images B --out O (other folder, other pixels, same names)", says="image '00.png': found ch"
        )
        def _(world):
            world.run(getattr(world, command)())
            return getattr(world, command)(images=_other_images(world))

        def as_at_first(world):
            assert _bytes_of(world / out) == _bytes_of(world / f"{out}-undisturbed")

        @KEPT.row(f"{name}: an output image cut short; same command", code=0, says="written", after=as_at_first)
        def _(world):
            world.run(getattr(world, command)())
            shutil.copytree(world / out, world / f"{out}-undisturbed")
            path = next((world / out).glob("03*"))
            path.write_bytes(path.read_bytes()[:-20])
            return getattr(world, command)()

        @KEPT.row(
            f"{name}: half done, an image of the first half changed, resume", says="image '00.png': found changed"
        )
        def _(world):
            world.run(getattr(world, command)())
            manifest = json.loads((world / out / "manifest.json").read_text())
            hashes = manifest.pop("files_sha256")
            (world / out / "manifest.json").unlink()
            (world / out / ".unfinished.json").write_text(json.dumps(manifest))
            half = dict(list(hashes.items())[:6])
            (world / out / ".written.jsonl").write_text("".join(f"{json.dumps(pair)}\n" for pair in half.items()))
            for name in hashes.keys() - half.keys():
                (world / out / name).unlink()
            _changed_image(world)
            return getattr(world, command)()

    _rows(_name, _command)


def _bytes_of(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@KEPT.row("pack B into the same --out", says="packed: output folder: found shards of other pairs")
def _(world):
    world.run(world.pack())
    return world.pack(images=_other_images(world))


@KEPT.row("pack: one image changed; same command", says="packed: output folder: found shards of other pairs")
def _(world):
    world.run(world.pack())
    _changed_image(world, number=7)
    return world.pack()


@pytest.fixture(scope="module")
def embeddings(pristine, tmp_path_factory) -> Path:
    """The cache that an evaluation leaves."""
    world = World(shutil.copytree(pristine, tmp_path_factory.mktemp("embedded") / "world", symlinks=True))
    world.run(world.evaluate())
    return world / "cache"


@CACHE.each
def test_cache(fault, world, embeddings, capsys):
    shutil.copytree(embeddings, world / "cache")
    fault.check(world, capsys)


@KEPT.each
def test_kept(fault, world, embeddings, capsys):
    shutil.copytree(embeddings, world / "cache")
    fault.check(world, capsys)
