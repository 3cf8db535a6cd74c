"""Images, annotations and scores that cannot be used."""

import json

import numpy as np

from tests.support.faults import Fault, each_of, edited, undamaged, written


def _loop(file: str):
    def damage(world):
        (world / file).unlink(missing_ok=True)
        (world / file).symlink_to(world / file)

    return damage


_DDS = b"DDS " + np.array([124, 0x1007, 16, 16, 64, 0, 0] + [0] * 11 + [32, 0] + [0] * 11, "<u4").tobytes()
IMAGES = [
    Fault("no image is there", lambda world: (world / "none").mkdir(), "none: images: found none of 12",
          lambda world: world.command("evaluate", "--allow-missing-images", images="none")),
    Fault("symlink loop", _loop("images/00.png"), "00.png"),
    Fault("6000-character path", edited("captions.json", lambda items: items[0].update(image="n/" * 3000 + "00.png")),
          r" \.\.\. .*File name too long", "embed"),
    Fault("DDS with unknown pixel format flags", written("images/00.png", _DDS + bytes(4096)),
          "00.png: image: found a damaged file"),
]  # fmt: skip


def _text(name: str, text: str, says: str, file: str = "danger") -> Fault:
    return Fault(name, written(f"annotations/{file}.json", text), says)


def _beside(name: str, change, says: str) -> Fault:
    """A captions.json beside the benchmark's own files, with a fault in it."""

    def damage(world):
        items = json.loads((world / "captions.json").read_text())
        change(items)
        (world / "annotations/captions.json").write_text(json.dumps(items))

    return Fault(f"FULL folder, captions.json {name}", damage, says)


_MISSPELT = '{"format": "rococo_jax.anotation", "version": 1, "variant": "same_concept", "made_by": {}, "items": []}'
ANNOTATIONS = [
    _text("a 5,000-digit integer", f"[{'9' * 5000}]", "danger.json: JSON"),
    _text("nested 100,000 deep", "[" * 100_000, "danger.json: JSON"),
    _text("caption nested 5,000 deep", '[{"image": "00.png", "caption": ' + "[" * 5000 + "]" * 5000 + "}]",
          "danger.json: (JSON|caption)"),
    _text("objects nested 100,000 deep", '{"a":' * 100_000, "danger.json: JSON"),
    _text("same_concept.json with format misspelt", _MISSPELT, "same_concept.json: format", "same_concept"),
    Fault("x.json is a symlink loop", _loop("annotations/x.json"), "x.json"),
    _beside("has a null caption", lambda items: items[3]["caption"].append(None), "found null"),
    _beside("names an image twice", lambda items: items.append(items[0]), "also item 0"),
    _beside("lacks 4 images", lambda items: items.__delitem__(slice(4)), "captions.json: capt"),
    Fault("a file that is no annotation is named", written("annotations/other.json", '{"note": "another"}'),
          "other.json", code=0),
]  # fmt: skip


def _bytes(order: str, usual: type, scores):
    """Scores in another order of bytes than those of which the same command made `n.json`."""

    def damage(world):
        np.save(world / "s.npy", scores(np.load(world / "s.npy").astype(usual)))
        world.run("score", out="n.json")
        np.save(world / "s.npy", np.load(world / "s.npy").astype(order))

    return damage


def _same_tasks(world):
    found, wanted = (json.loads((world / name).read_text())["tasks"] for name in ("score.json", "n.json"))
    assert found == wanted


def _npy(name: str, header: str) -> Fault:
    text = header.encode().ljust(117) + b"\n"
    content = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(4000)
    return Fault(name, written("s.npy", content), "s.npy", "score")


_HEADER = "{'descr': '<f4', 'fortran_order': False, 'shape': (%s"
SCORES = [
    Fault("big-endian float32", _bytes(">f4", np.float32, np.asarray), "", "score", 0, _same_tasks),
    # Scores that only float64 tells apart.
    Fault("big-endian float64", _bytes(">f8", np.float64, lambda x: 1 + 1e-12 * x), "", "score", 0, _same_tasks),
    _npy("negative shape", _HEADER % "-12, 60), }"),
    _npy("header cut (unclosed bracket)", _HEADER % "12, 60"),
    _npy("header of 110 brackets", "(" * 110),
    _npy("shape beyond the file", _HEADER % "12000, 60000000), }"),
    Fault("--out is the similarity file", undamaged, "s.npy: out: found what similarities names",
          lambda world: world.command("score", out="s.npy")),
    Fault("--out and --per-query are one file", undamaged, "out and per_query",
          lambda world: world.command("score", "--per-query", "score.json")),
]  # fmt: skip


@each_of([*IMAGES, *ANNOTATIONS, *SCORES])
def test_damaged_inputs_are_reported_in_one_line(fault, world, capsys):
    fault.check(world, capsys)
