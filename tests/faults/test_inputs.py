"""Images, annotations and scores that cannot be used."""

import json

import numpy as np
from PIL import Image

from tests.support.faults import Table

IMAGES, ANNOTATIONS, SCORES = Table(), Table(), Table()


@IMAGES.row("1x40000 image", says="aspect ratio")
def _(world):
    Image.new("RGB", (1, 40000)).save(world / "images/00.png")
    return world.evaluate()


@IMAGES.row("60000x1 image", says="aspect ratio")
def _(world):
    Image.new("RGB", (60000, 1)).save(world / "images/00.png")
    return world.embed()


@IMAGES.row("symlink loop", says="00.png")
def _(world):
    (world / "images/00.png").unlink()
    (world / "images/00.png").symlink_to(world / "images/00.png")
    return world.evaluate()


@IMAGES.row("6000-character path", says=r" \.\.\. .*File name too long")
def _(world):
    world.edit("captions.json", lambda items: items[0].update(image="n/" * 3000 + "00.png"))
    return world.embed()


@IMAGES.row("DDS with unknown pixel format flags", says="00.png: image: found a damaged file")
def _(world):
    header = b"DDS " + np.array([124, 0x1007, 16, 16, 64, 0, 0] + [0] * 11 + [32, 0] + [0] * 11, "<u4").tobytes()
    (world / "images/00.png").write_bytes(header + bytes(4096))
    return world.evaluate()


def _annotation_row(name: str, make_text, file: str = "annotations/danger.json", **expected):
    def make(world):
        (world / file).write_text(make_text(world))
        return world.evaluate()

    ANNOTATIONS.row(name, **expected)(make)


_annotation_row("a 5,000-digit integer", lambda world: f"[{'9' * 5000}]", says="danger.json: JSON")
_annotation_row("nested 100,000 deep", lambda world: "[" * 100_000, says="danger.json: JSON")
_annotation_row(
    "caption nested 5,000 deep",
    lambda world: '[{"image": "00.png", "caption": ' + "[" * 5000 + "]" * 5000 + "}]",
    says="danger.json: (JSON|caption)",
)
_annotation_row("objects nested 100,000 deep", lambda world: '{"a":' * 100_000, says="danger.json: JSON")


@ANNOTATIONS.row("variant lacks an item", says="danger.json: items: found 11")
def _(world):
    world.edit("annotations/danger.json", lambda items: items.pop())
    return world.evaluate()


@ANNOTATIONS.row("x.json is a symlink loop", says="x.json")
def _(world):
    (world / "annotations/x.json").symlink_to(world / "annotations/x.json")
    return world.evaluate()


def _beside(name: str, change, says: str):
    """A captions.json beside the benchmark's own files, with a fault in it."""

    @ANNOTATIONS.row(name, says=says)
    def _(world):
        items = json.loads((world / "captions.json").read_text())
        change(items)
        (world / "annotations/captions.json").write_text(json.dumps(items))
        return world.evaluate()


_beside("FULL folder, captions.json has a null caption", lambda items: items[3]["caption"].append(None), "found null")
_beside("FULL folder, captions.json names an image twice", lambda items: items.append(items[0]), "also item 0")
_beside("FULL folder, captions.json lacks 4 images", lambda items: items.__delitem__(slice(4)), "captions.json: capt")


def _own_form(world) -> dict:
    items = json.loads((world / "annotations/same_concept.json").read_text())
    items = [{"image": i["image"], "originals": i["caption"][:5], "altered": i["caption"][5:]} for i in items]
    return {"format": "rococo_jax.annotation", "version": 1, "variant": "same_concept", "made_by": {}, "items": items}


def _own_text(world, **changed) -> str:
    value = {key: item for key, item in (_own_form(world) | changed).items() if item is not None}
    return json.dumps(value)


SAME = "annotations/same_concept.json"
_annotation_row(
    "same_concept.json with format misspelt",
    lambda world: _own_text(world, format="rococo_jax.anotation"),
    SAME,
    says="same_concept.json: format",
)
_annotation_row(
    'same_concept.json without "format"', lambda world: _own_text(world, format=None), SAME,
    says="same_concept.json: format",
)  # fmt: skip
_annotation_row("danger.json is {}", lambda world: "{}", says="danger.json: format")


@ANNOTATIONS.row("a file that is no annotation is named", code=0, says="other.json")
def _(world):
    (world / "annotations/other.json").write_text('{"note": "something else"}')
    return world.evaluate()


def _same_tasks(world):
    assert (
        json.loads((world / "score.json").read_text())["tasks"] == json.loads((world / "n.json").read_text())["tasks"]
    )


@SCORES.row("big-endian float32", code=0, after=_same_tasks)
def _(world):
    world.run(world.score(out="n.json"))
    np.save(world / "s.npy", np.load(world / "s.npy").astype(">f4"))
    return world.score()


@SCORES.row("big-endian float64", code=0, after=_same_tasks)
def _(world):
    """Scores that only float64 tells apart."""
    np.save(world / "s.npy", 1 + np.load(world / "s.npy").astype(np.float64) * 1e-12)
    world.run(world.score(out="n.json"))
    np.save(world / "s.npy", np.load(world / "s.npy").astype(">f8"))
    return world.score()


def _npy(name: str, header: str, **expected):
    @SCORES.row(name, **{"says": "s.npy", **expected})
    def _(world):
        text = header.encode().ljust(117) + b"\n"
        (world / "s.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(4000))
        return world.score()


_npy("negative shape", "{'descr': '<f4', 'fortran_order': False, 'shape': (-12, 60), }")
_npy("header cut (unclosed bracket)", "{'descr': '<f4', 'fortran_order': False, 'shape': (12, 60")
_npy("header of 110 brackets", "(" * 110)
_npy("shape beyond the file", "{'descr': '<f4', 'fortran_order': False, 'shape': (12000, 60000000), }")


@IMAGES.each
def test_images(fault, world, capsys):
    fault.check(world, capsys)


@ANNOTATIONS.each
def test_annotations(fault, world, capsys):
    fault.check(world, capsys)


@SCORES.each
def test_scores(fault, world, capsys):
    fault.check(world, capsys)
