"""A second evaluation into one folder: what is missing is added, what is there is kept, and anything else is refused.

The oracle is one evaluation of everything into a fresh folder: all files must be its bytes.
"""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import rococo_jax
from rococo_jax.benchmarks.cue_conflict import CLASSES
from rococo_jax.checkpoints import save_model
from rococo_jax.errors import InputError
from tests.benchmarks.published_forms import FORMS, write
from tests.support.tiny import WORDS, tiny_encoder
from tests.support.world import noise, write_pictures, write_world

FILES = ("results.json", "per_query.parquet", "pairs.parquet", "per_image.parquet", "examples.parquet")
# Defaults of all evaluations here: what is small.
SMALL = {"mixed_galleries": (), "templates": ("1",)}


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Path:
    """Four benchmarks in the documented layout, two models, two sets of other images and two files of templates."""
    folder = tmp_path_factory.mktemp("world")
    rng = np.random.default_rng(0)
    captions = [[" ".join(rng.choice(WORDS, 4)) for _ in range(5)] for _ in range(6)]
    write_world(folder / "made", captions, picture=noise(40, 56), altered={"danger": "{} q".format})
    data = folder / "data"
    shutil.copytree(folder / "made" / "images", data / "coco" / "images")
    shutil.copytree(folder / "made" / "annotations", data / "rococo" / "annotations")
    write(FORMS["sugarcrepe"], data / "sugar_crepe")
    shutil.move(data / "sugar_crepe" / "images" / "a.jpg", data / "coco" / "images" / "a.jpg")
    classes = ("cat", "dog", "tree")
    write_pictures(
        data / "cifar10" / "images", [f"{each}/{n}.png" for each in classes for n in range(4)], noise(4, 4, 8)
    )
    shapes = [f"{kind}/{name}1.png" for kind in ("edges", "silhouettes") for name in CLASSES]
    write_pictures(data / "cue_conflict", shapes, noise(4, 4, 8))
    for number, name in enumerate(("near", "far")):
        write_pictures(folder / name, [f"{n}.png" for n in range(3 + number)], noise(8 + number, 8, 4))
    (folder / "mine.txt").write_text("my {}\nher {}\n")
    (folder / "other.txt").write_text("the other {}\n")
    for seed in (0, 1):
        save_model(folder / f"m{seed}" / "tiny", tiny_encoder(seed=seed, name="tiny"))
    return folder


class Folder:
    """Evaluations into one folder, with one cache."""

    def __init__(self, world: Path, place: Path, capsys):
        self.world, self.out, self.cache, self.capsys = world, place / "out", place / "cache", capsys

    def evaluate(self, model: str = "m0", **options) -> tuple[int, str]:
        """Evaluate; returns how many images and texts were embedded, and what was printed."""
        self.capsys.readouterr()
        options = {"data": self.world / "data", "cache": self.cache, **SMALL, **options}
        source = options.pop("source", self.world / model / "tiny")
        rococo_jax.evaluate(source, out=self.out, **options)
        said = self.capsys.readouterr().err
        counted = re.search(r"([\d,]+) images and texts embedded", said)
        return (int(counted[1].replace(",", "")) if counted else 0), said

    @property
    def files(self) -> dict[str, bytes]:
        return {name: (self.out / name).read_bytes() for name in FILES}

    @property
    def results(self) -> dict:
        return json.loads((self.out / "results.json").read_text())


@pytest.fixture
def folder(world, tmp_path, capsys):
    """Makes folders for evaluations, by name."""
    return lambda name: Folder(world, tmp_path / name, capsys)


ROCOCO, CIFAR, CUES, SUGAR = ({"benchmarks": [name]} for name in ("rococo", "cifar10", "cue_conflict", "sugarcrepe"))
MIXED = {**ROCOCO, "tasks": ("text_to_image",)}
# What is evaluated first, then, and at once, which is the second where that has all of the first.
ADDED = {
    "a task": ({**CUES, "tasks": ("edges",)}, CUES, None),
    "another task": ({**CUES, "tasks": ("silhouettes",)}, {**CUES, "tasks": ("edges",)}, {**CUES, "tasks": ("edges", "silhouettes")}),
    "a direction": ({**ROCOCO, "tasks": ("text_to_image",)}, ROCOCO, None),
    "a seed": (
        {**MIXED, "mixed_galleries": ("mix_0.9",), "seeds": (10,)}, {**MIXED, "mixed_galleries": ("mix_0.9",), "seeds": (10, 1)}, None
    ),
    "another seed": (
        {**MIXED, "mixed_galleries": ("mix_0.9",), "seeds": (1,)},
        {**MIXED, "mixed_galleries": ("mix_0.9",), "seeds": (10,)},
        {**MIXED, "mixed_galleries": ("mix_0.9",), "seeds": (1, 10)},
    ),
    "a mixed gallery": (
        {**MIXED, "seeds": (1,), "mixed_galleries": ("patch_0.9",)},
        {**MIXED, "seeds": (1,), "mixed_galleries": ("mix_0.9",)},
        {**MIXED, "seeds": (1,), "mixed_galleries": ("mix_0.9", "patch_0.9")},
    ),
    "corruptions": (CIFAR, {**CIFAR, "corruptions": ("fog",), "severities": (2,)}, None),
    "a kind of corruption": (
        {**CIFAR, "corruptions": ("fog",), "severities": (2,)},
        {**CIFAR, "corruptions": ("pixelate", "fog"), "severities": (2,)},
        None,
    ),
    "a severity": (
        {**CIFAR, "corruptions": ("fog",), "severities": (5,)},
        {**CIFAR, "corruptions": ("fog",), "severities": (2, 5)},
        None,
    ),
    "corruptions of one benchmark more": (
        {"benchmarks": ["cifar10", "rococo"], "corruptions": ("fog",), "severities": (2,), "corrupted_benchmarks": ("cifar10",)},
        {"benchmarks": ["cifar10", "rococo"], "corruptions": ("fog",), "severities": (2,)},
        None,
    ),
    "a set of templates": ({**CIFAR, "templates": ("5",)}, {**CIFAR, "templates": ("5", "1")}, None),
    "a file of templates": (
        {**CIFAR, "templates": ("5", "mine.txt")},
        {**CIFAR, "templates": ("5", "1")},
        {**CIFAR, "templates": ("5", "1", "mine.txt")},
    ),
    "other images": (CIFAR, {**CIFAR, "out_images": (("near", "near"),)}, None),
    "further other images": (
        {**CIFAR, "out_images": (("near", "near"),)},
        {**CIFAR, "out_images": (("far", "far"),)},
        {**CIFAR, "out_images": (("near", "near"), ("far", "far"))},
    ),
    "a benchmark": (SUGAR, {"benchmarks": ["sugarcrepe", "rococo"]}, None),
    "another benchmark": (CIFAR, ROCOCO, {"benchmarks": ["cifar10", "rococo"]}),
    "a benchmark between two": (
        {"benchmarks": ["cue_conflict", "rococo"]}, SUGAR, {"benchmarks": ["rococo", "sugarcrepe", "cue_conflict"]}
    ),
    "a task and a benchmark": (
        {**CUES, "tasks": ("edges",)}, {"benchmarks": ["cue_conflict", "sugarcrepe"], "tasks": ("silhouettes", "sugarcrepe")},
        {"benchmarks": ["cue_conflict", "sugarcrepe"], "tasks": ("edges", "silhouettes", "sugarcrepe")},
    ),
}  # fmt: skip


@pytest.mark.parametrize("added", ADDED)
def test_what_is_added_gives_the_bytes_of_one_evaluation_and_embeds_nothing_twice(folder, world, added, monkeypatch):
    monkeypatch.chdir(world)  # options name files and folders there
    first, then, both = ADDED[added]
    together, apart = folder("together"), folder("apart")
    embedded, _ = together.evaluate(**(both or then))
    begun, _ = apart.evaluate(**first)
    assert apart.files["results.json"] != together.files["results.json"]
    grown, said = apart.evaluate(**then)
    assert apart.files == together.files
    assert "adding" in said and begun + grown == embedded
    # Each of the three is now part of what is there.
    for options in (first, then, both or then):
        assert apart.evaluate(**options)[0] == 0 and apart.files == together.files


def changed(world: Path, place: Path, change) -> Path:
    """A copy of the data with a change."""
    data = shutil.copytree(world / "data", place / "changed")
    change(data)
    return data


def with_other_captions(data: Path) -> None:
    path = data / "rococo" / "annotations" / "danger.json"
    items = json.loads(path.read_text())
    items[0]["caption"][-1] = "a boat"
    path.write_text(json.dumps(items))


def with_another_picture(data: Path) -> None:
    write_pictures(data / "cifar10" / "images" / "cat", ["0.png"], noise(5, 5))


def with_other_names(data: Path) -> None:
    (data / "cifar10" / "images" / "cat").rename(data / "cifar10" / "images" / "wolf")


def with_other_items(data: Path) -> None:
    def reword(rows):
        rows[0]["negative_caption"] = "a house"

    (data / "sugar_crepe" / "swap_att.json").unlink()
    write(FORMS["sugarcrepe"], data / "sugar_crepe", reword)


BOTH = {"benchmarks": ["rococo", "cifar10"]}
# First, then, the field, and what is said of it.
REFUSED = {
    "model": (CIFAR, {**CIFAR, "model": "m1"}, "model.weights", ""),
    "precision": (CIFAR, {**CIFAR, "precision": "bfloat16"}, "model.dtype", "float32; wanted bfloat16"),
    "image size": (CIFAR, {**CIFAR, "image_size": 48}, "model", ""),
    "protocol": (ROCOCO, {**ROCOCO, "protocol": "strict"}, "protocol", "paper; wanted strict"),
    "protocol of another benchmark": (ROCOCO, {**SUGAR, "protocol": "strict"}, "protocol", "paper; wanted strict"),
    "limit": (CIFAR, {**CIFAR, "limit": 6}, "data.cifar10.limit", "with nothing, .*; wanted 6"),
    "no limit": ({**CIFAR, "limit": 6}, CIFAR, "data.cifar10.limit", "with 6, .*; wanted nothing"),
    "another limit": ({**CIFAR, "limit": 6}, {**CIFAR, "limit": 9}, "data.cifar10.limit", "with 6, .*; wanted 9"),
    "limit of another benchmark": ({**ROCOCO, "limit": 3}, CIFAR, "data.rococo.limit", "with 3; wanted nothing"),
    "limit of one benchmark more": (ROCOCO, {**BOTH, "limit": 3}, "data.rococo.limit", ""),
    "first templates": ({**CIFAR, "templates": ("5", "1")}, CIFAR, "data.cifar10.first_templates", ""),
    "templates of the same name": (
        {**CIFAR, "templates": ("1", "mine.txt")}, {**CIFAR, "templates": ("1", "here/mine.txt")}, "templates.mine", ""
    ),
    "other images of the same name": (
        {**CIFAR, "out_images": (("near", "near"),)}, {**CIFAR, "out_images": (("near", "far"),)}, "out_images.near", ""
    ),
    "captions": (ROCOCO, {**ROCOCO, "change": with_other_captions}, "data.rococo.variants.danger", ""),
    "an image": (CIFAR, {**CIFAR, "change": with_another_picture}, "data.cifar10.images", ""),
    "names of classes": (CIFAR, {**CIFAR, "change": with_other_names}, "data.cifar10.classes.cat", "cat.*; wanted nothing"),
    "items": (SUGAR, {**SUGAR, "change": with_other_items}, "data.sugarcrepe.parts.swap_att", ""),
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED)
def test_something_else_is_refused_with_the_field_and_nothing_is_changed(folder, world, tmp_path, kind, monkeypatch):
    monkeypatch.chdir(world)
    first, then, field, words = REFUSED[kind]
    then = dict(then)
    if change := then.pop("change", None):
        then["data"] = changed(world, tmp_path, change)
    (world / "here").mkdir(exist_ok=True)
    (world / "here" / "mine.txt").write_text("my big {}\nher big {}\n")
    out = folder("out")
    out.evaluate(**first)
    before = out.files
    with pytest.raises(InputError, match="another output folder") as error:
        out.evaluate(**then)
    assert field in error.value.field and re.search(words, str(error.value))
    assert str(error.value.source) == str(out.out / "results.json") and out.files == before


def test_a_limit_that_leaves_nothing_out_is_no_other_request(folder):
    out = folder("out")
    out.evaluate(**CIFAR)
    assert out.evaluate(**CIFAR, limit=12)[0] == 0
    # Six images of RoCOCO are fewer than the limit, twelve of CIFAR are not.
    other = folder("other")
    other.evaluate(**ROCOCO, limit=7)
    other.evaluate(**CIFAR, limit=7)
    assert other.results["data"]["cifar10"]["coverage"]["limit"] == 7


def test_comparable_does_not_depend_on_how_much_was_requested(folder, world, monkeypatch):
    monkeypatch.chdir(world)
    few, many = folder("few"), folder("many")
    few.evaluate(**CIFAR)
    more = {
        "templates": ("1", "mine.txt"),
        "corruptions": ("fog",),
        "severities": (2,),
        "out_images": (("near", "near"),),
    }
    many.evaluate("m1", **{**CIFAR, **more})
    one, other = (each.results["fingerprint"] for each in (few, many))
    assert one["comparable"] == other["comparable"] and one["model"] != other["model"]


class Unmarked:
    """An encoder without a fingerprint that counts what it encodes."""

    name = "counting"

    def __init__(self, shift: float = 0.0):
        self.shift, self.images, self.texts = shift, 0, 0

    def encode_image(self, images):
        self.images += len(images)
        pixels = np.array([np.asarray(image.convert("RGB").resize((4, 4)), float).ravel() for image in images])
        return (pixels / 255 + self.shift).astype(np.float32)

    def encode_text(self, texts):
        self.texts += len(texts)
        return np.array([np.random.default_rng(list(text.encode())).random(48) for text in texts], np.float32)


class Marked(Unmarked):
    """The same with a fingerprint."""

    def fingerprint(self):
        return "a mark"


def test_a_benchmark_that_is_there_is_not_scored_again_without_a_cache(folder):
    out, fresh, model = folder("out"), folder("fresh"), Marked()
    out.evaluate(source=model, cache=None, **ROCOCO)
    assert model.images >= 6 and model.texts >= 60
    model.images = model.texts = 0
    out.evaluate(source=model, cache=None, benchmarks=["rococo", "cifar10"])
    # One image and two texts to try the model.
    assert (model.images, model.texts) == (12 + 1, 3 + 2)
    fresh.evaluate(source=Marked(), cache=None, benchmarks=["rococo", "cifar10"])
    assert out.files == fresh.files


def test_a_model_without_a_fingerprint_is_evaluated_again_and_its_old_results_are_never_kept(folder):
    out, fresh = folder("out"), folder("fresh")
    out.evaluate(source=Unmarked(), **CUES, tasks=("edges",))
    changed = Unmarked(0.5)
    _, said = out.evaluate(source=changed, **CUES, tasks=("silhouettes",))
    assert "no fingerprint" in said
    fresh.evaluate(source=Unmarked(0.5), **CUES)
    assert out.files == fresh.files
    with pytest.raises(InputError, match="results of cue_conflict, which cannot be kept: the model has no fingerprint"):
        out.evaluate(source=changed, **SUGAR)
    assert out.files == fresh.files


DAMAGE = {
    "a missing table": lambda out: (out / "pairs.parquet").unlink(),
    "missing examples": lambda out: (out / "examples.parquet").unlink(),
    "a table cut short": lambda out: (out / "per_query.parquet").write_bytes((out / "per_query.parquet").read_bytes()[:-9]),
    "a table of other results": lambda out: shutil.copy(out.parent.parent / "other/out/per_image.parquet", out),
    "a flipped bit": lambda out: (out / "per_query.parquet").write_bytes(flipped((out / "per_query.parquet").read_bytes())),
    "a table written again": lambda out: written_again(out / "per_query.parquet"),
}  # fmt: skip


def flipped(content: bytes) -> bytes:
    place = content.index(b"img") if b"img" in content else 200
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


def written_again(path: Path) -> None:
    import pandas

    pandas.read_parquet(path).to_parquet(path)


@pytest.mark.parametrize("kind", DAMAGE)
def test_tables_that_are_not_those_of_the_results_are_made_again(folder, world, kind, tmp_path):
    folder("other").evaluate("m1", **CUES, tasks=("edges",))
    out, fresh = folder("out"), folder("fresh")
    out.evaluate(**CUES, tasks=("edges",))
    intact = out.files
    DAMAGE[kind](out.out)
    embedded, said = out.evaluate(**CUES, tasks=("edges",))
    assert embedded == 0 and "computed again: a table beside results.json" in said and out.files == intact
    DAMAGE[kind](out.out)
    with pytest.raises(InputError, match="benchmarks: found results of cue_conflict, which cannot be kept: a table"):
        out.evaluate(**SUGAR)
    out.evaluate(**CUES, tasks=("silhouettes",))
    fresh.evaluate(**CUES)
    assert out.files == fresh.files


def test_results_that_say_less_than_they_must_are_refused(folder):
    out = folder("out")
    out.evaluate(**SUGAR)
    path, results = out.out / "results.json", out.results
    edited = {
        "sha256: found values changed": {**results, "notes": ["other"]},
        "version: found 1; wanted 2": {**results, "version": 1},
        "benchmarks: found nothing": {
            key: value for key, value in results.items() if key not in ("benchmarks", "sha256")
        },
    }
    for words, content in edited.items():
        path.write_text(json.dumps(content))
        with pytest.raises(InputError, match=words):
            out.evaluate(**SUGAR)
        assert json.loads(path.read_text()) == content


def test_what_was_added_before_must_still_be_there_to_add_more(folder, world, tmp_path):
    out = folder("out")
    images, templates = shutil.copytree(world / "near", tmp_path / "near"), tmp_path / "mine.txt"
    shutil.copy(world / "mine.txt", templates)
    out.evaluate(**CIFAR | {"templates": ("1", str(templates))}, out_images=(("near", str(images)),))
    before = out.files
    assert out.evaluate(**CIFAR)[0] == 0 and out.files == before
    templates.write_text("your {}\n")
    with pytest.raises(InputError, match=r"cifar10: templates\.mine: found .*; wanted the same contents"):
        out.evaluate(**CIFAR | {"templates": ("1", "5")})
    shutil.copy(world / "mine.txt", templates)
    (images / "0.png").unlink()
    with pytest.raises(InputError, match=r"cifar10: out_images\.near: found .*; wanted the same contents"):
        out.evaluate(**CIFAR | {"templates": ("1", "5")})
    shutil.rmtree(images)
    with pytest.raises(InputError, match="near: out images: found nothing there"):
        out.evaluate(**CIFAR | {"templates": ("1", "5")})
    assert out.files == before


def test_two_sets_of_one_name_are_refused(folder, world):
    for options in ({"templates": (str(world / "mine.txt"), str(world / "here/mine.txt"))},
                    {"out_images": (("near", str(world / "near")), ("near", str(world / "far")))}):  # fmt: skip
        with pytest.raises(InputError, match=r"settings: (templates|out_images): found .* one name"):
            folder("out").evaluate(**CIFAR | options)
