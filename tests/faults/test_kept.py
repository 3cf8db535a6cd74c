"""Test damaged or unrelated outputs of earlier commands: embeddings, results and folders."""

import io
import json
import shutil

import numpy as np
import pytest
from PIL import Image

from rococo_jax.encoders.cache import EmbeddingCache
from tests.support.faults import Fault, World, each_of, edited


def _swap(parts):
    first, second = parts[0].read_bytes(), parts[-1].read_bytes()
    parts[0].write_bytes(second)
    parts[-1].write_bytes(first)


def _as_folder(parts):
    parts[0].unlink()
    (parts[0] / "below").mkdir(parents=True)


def _part(name: str, damage) -> Fault:
    """A damaged part of the cache is computed again, and what is computed is what it was."""

    def damaged(world):
        damage(sorted((world / "cache").rglob("*.npy"), key=lambda path: path.stat().st_size))

    return Fault(name, damaged, "", code=0, after=World.assert_undisturbed)


CACHE = [_part("two cache files swapped in content (text<->image)", _swap), _part("part is a folder", _as_folder)]


def _flipped(content: bytes) -> bytes:
    return content[:-40] + bytes([content[-40] ^ 1]) + content[-39:]


def _of_fewer_rows(content: bytes) -> bytes:
    file = io.BytesIO()
    np.save(file, np.load(io.BytesIO(content))[:-1])
    return file.getvalue()


@pytest.mark.parametrize("damage", [_flipped, _of_fewer_rows, None], ids=["flipped", "fewer rows", "another's"])
def test_a_cached_part_that_was_changed_or_has_another_key_is_not_used(damage, tmp_path):
    cache = EmbeddingCache(tmp_path)
    keys = [cache.key({}, [name]) for name in (b"one", b"other")]
    for number, key in enumerate(keys):
        cache.put(key, np.full((2, 3), number, np.float32))
    one, other = (next(tmp_path.rglob(f"{key}.npy")) for key in keys)
    other.write_bytes(damage(other.read_bytes()) if damage else one.read_bytes())
    np.testing.assert_array_equal(cache.get(keys[0]), np.zeros((2, 3)))
    assert cache.get(keys[1]) is None


def _after(name: str, damage):
    """Damage done to what a command left."""

    def damaged(world):
        world.run(name)
        damage(world)

    return damaged


def _damage_tables(world) -> None:
    (world / "out/pairs.parquet").write_bytes(b"")
    path = world / "out/per_query.parquet"
    path.write_bytes(path.read_bytes()[:-40])


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
    Fault("tables emptied and cut short beside good results", _after("evaluate", _damage_tables), "", code=0,
          after=World.assert_undisturbed),
    *_rows_of_a_gallery("mix", "mixed"), *_rows_of_a_gallery("corrupt", "corrupted"),
    Fault("pack B into the same --out", _after("pack", _other_images), _OTHER_PAIRS,
          lambda world: world.command("pack", images="b")),
    Fault("pack: one image changed; same command", _after("pack", lambda world: _changed_image(world, 7)),
          _OTHER_PAIRS, "pack"),
]  # fmt: skip


@pytest.mark.slow
@each_of([*CACHE, *KEPT])
def test_damaged_caches_and_stored_files_are_reported_or_replaced(fault, world, capsys):
    fault.check(world, capsys)
