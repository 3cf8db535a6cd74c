"""What earlier commands left: embeddings, results and folders that are damaged, or belong to other inputs."""

import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rococo_jax.encoders.cache import EmbeddingCache
from tests.support.faults import Fault, World, each_of, edited


def _part(name: str, damage, thorough: bool = False) -> Fault:
    """A damaged part of the cache is computed again, and what is computed is what it was."""

    def damaged(world):
        damage(sorted((world / "cache").rglob("*.npy"), key=lambda path: path.stat().st_size))

    return Fault(name, damaged, "", code=0, after=World.assert_undisturbed, thorough=thorough)


def _swap(parts):
    first, second = parts[0].read_bytes(), parts[-1].read_bytes()
    parts[0].write_bytes(second)
    parts[-1].write_bytes(first)


def _rewrite(change):
    """All parts as arrays that `change` makes of them."""

    def damage(parts):
        for part in parts:
            np.save(part, change(np.load(io.BytesIO(part.read_bytes()))))

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


CACHE = [
    _part("two cache files swapped in content (text<->image)", _swap),
    _part("part with fewer rows", _rewrite(lambda array: array[:-1])),
    _part("part of another width", _rewrite(lambda array: array[:, :-1]), thorough=True),
    _part("part full of NaN", _rewrite(lambda array: array * np.nan), thorough=True),
    _part("part of strings", _rewrite(lambda array: array.astype(str)), thorough=True),
    _part("part is a zip (npz)", _npz, thorough=True),
    _part("part is a folder", _as_folder),
    _part("header without its closing brace",
          lambda parts: parts[0].write_bytes(parts[0].read_bytes().replace(b"}", b" ", 1)), thorough=True),
    _part("one bit flipped in every part", _flip_a_bit),
]  # fmt: skip


def test_a_part_under_another_key_is_not_used(tmp_path):
    cache = EmbeddingCache(tmp_path)
    keys = [cache.key({}, [name]) for name in (b"one", b"other")]
    cache.put(keys[0], np.ones((2, 3), np.float32))
    (one,) = tmp_path.rglob("*.npy")
    np.testing.assert_array_equal(cache.get(keys[0]), np.ones((2, 3)))
    cache.put(keys[1], np.zeros((2, 3), np.float32))
    (other,) = {*tmp_path.rglob("*.npy")} - {one}
    shutil.copy(one, other)
    assert cache.get(keys[1]) is None


def _after(name: str, damage):
    """Damage done to what a command left."""

    def damaged(world):
        world.run(name)
        damage(world)

    return damaged


def _table(table: str, damage) -> Fault:
    """A damaged table beside good results is written again."""

    def change(world) -> None:
        (world / "out" / table).write_bytes(damage((world / "out" / table).read_bytes()))

    return Fault(f"{table} {damage.__name__}", _after("evaluate", change), "", code=0, after=World.assert_undisturbed)


def emptied(content: bytes) -> bytes:
    return b""


def cut(content: bytes) -> bytes:
    return content[:-40]


def _changed_image(world, number: int = 0, folder: str = "images") -> None:
    Image.new("RGB", (40, 40), (9, 99, 200)).save(world / folder / f"{number:02}.png")


def _other_images(world) -> None:
    """`b`, another folder of images of the same names."""
    (world / "b").mkdir()
    for number in range(12):
        _changed_image(world, number, "b")


def _rows_of_a_gallery(name: str, out: str) -> list[Fault]:
    """A command that writes an image for each, and goes on where it was stopped."""

    def cut_short(world):
        shutil.copytree(world / out, world / "undisturbed")
        path = next((world / out).glob("03*"))
        path.write_bytes(path.read_bytes()[:-20])

    def as_at_first(world):
        assert _bytes_of(world / out) == _bytes_of(world / "undisturbed")

    def half_done(world):
        manifest = json.loads((world / out / "manifest.json").read_text())
        hashes = manifest.pop("files_sha256")
        (world / out / "manifest.json").unlink()
        (world / out / ".unfinished.json").write_text(json.dumps(manifest))
        half = dict(list(hashes.items())[:6])
        (world / out / ".written.jsonl").write_text("".join(f"{json.dumps(pair)}\n" for pair in half.items()))
        for file in hashes.keys() - half.keys():
            (world / out / file).unlink()
        _changed_image(world)

    changed = "image '00.png': found changed"
    return [
        Fault(f"an image changed after {name}; same command", _after(name, _changed_image),
              f"manifest.json: {changed}", name),
        Fault(f"{name} --images B --out O (other folder, other pixels, same names)", _after(name, _other_images),
              changed, lambda world: world.command(name, images="b")),
        Fault(f"{name}: an output image cut short; same command", _after(name, cut_short), "written", name, 0,
              as_at_first),
        Fault(f"{name}: half done, an image of the first half changed, resume", _after(name, half_done), changed, name),
    ]  # fmt: skip


def _bytes_of(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def _to_99(folder: str):
    return edited(f"{folder}/results.json", lambda each: each["tasks"]["image_to_text"]["clean"].update(r1=99.0))


_OTHER_PAIRS = "packed: output folder: found shards of other pairs"
KEPT = [
    Fault("metric in results.json hand-edited to 99; same command", _after("evaluate", _to_99("out")),
          "results.json: sha256: found values changed"),
    Fault("hand-edited results in a report", _to_99("truth"), "results.json: sha256", "report"),
    _table("per_query.parquet", emptied), _table("per_query.parquet", cut), _table("per_image.parquet", cut),
    *_rows_of_a_gallery("mix", "mixed"), *_rows_of_a_gallery("corrupt", "corrupted"),
    Fault("pack B into the same --out", _after("pack", _other_images), _OTHER_PAIRS,
          lambda world: world.command("pack", images="b")),
    Fault("pack: one image changed; same command", _after("pack", lambda world: _changed_image(world, 7)),
          _OTHER_PAIRS, "pack"),
]  # fmt: skip


@pytest.fixture(scope="module")
def embeddings(pristine, tmp_path_factory) -> Path:
    """The cache that an evaluation leaves."""
    world = World(shutil.copytree(pristine, tmp_path_factory.mktemp("embedded") / "world", symlinks=True))
    world.run("evaluate")
    return world / "cache"


@each_of([*CACHE, *KEPT])
def test_kept(fault, world, embeddings, capsys):
    shutil.copytree(embeddings, world / "cache")
    fault.check(world, capsys)
