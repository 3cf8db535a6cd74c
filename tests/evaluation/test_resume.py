"""A second evaluation into one folder: what is missing is added, what is there is kept, and anything else is refused.

The oracle is one evaluation of everything into a fresh folder: all files must be its bytes.
"""

import dataclasses
import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import rococo_jax
from rococo_jax.benchmarks.readers.cue_conflict import CLASSES
from rococo_jax.benchmarks.tasks import RankTask
from rococo_jax.checkpoints import save_model
from rococo_jax.cli.main import main
from rococo_jax.data.training_images import training_images, write_training_images
from rococo_jax.errors import InputError
from rococo_jax.evaluation import conditions, results
from rococo_jax.evaluation.examples import read_examples
from rococo_jax.evaluation.models.encoder import EncoderModel
from rococo_jax.evaluation.stored_counts import read_counts
from rococo_jax.report.collection import group_by_fingerprint, load_results
from tests.benchmarks.published_forms import FORMS, write
from tests.support.kills import Killed, killed_at, watched
from tests.support.processes import run_command_together
from tests.support.tiny import WORDS, tiny_encoder
from tests.support.world import noise, write_pictures, write_world

FILES = ("results.json", "per_query.parquet", "pairs.parquet", "examples.parquet")
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
MIX = {**MIXED, "mixed_galleries": ("mix_0.9",)}
FOG = {**CIFAR, "corruptions": ("fog",), "severities": (2,)}
BOTH = {"benchmarks": ["rococo", "cifar10"]}
FOG_OF_BOTH = {**FOG, **BOTH}
TWO_OTHERS = {"benchmarks": ["cue_conflict", "rococo"]}
ITEMS_AND_SHAPES = {"benchmarks": ["cue_conflict", "sugarcrepe"]}
NEAR, FAR = ("near", "near"), ("far", "far")
# What is evaluated first, then, and at once, which is the second where that has all of the first.
ADDED = {
    "a task": ({**CUES, "tasks": ("edges",)}, CUES, None),
    "another task": ({**CUES, "tasks": ("silhouettes",)}, {**CUES, "tasks": ("edges",)}, CUES),
    "a direction": ({**ROCOCO, "tasks": ("text_to_image",)}, ROCOCO, None),
    "a seed": ({**MIX, "seeds": (10,)}, {**MIX, "seeds": (10, 1)}, None),
    "another seed": ({**MIX, "seeds": (1,)}, {**MIX, "seeds": (10,)}, {**MIX, "seeds": (1, 10)}),
    "a mixed gallery": (
        {**MIXED, "seeds": (1,), "mixed_galleries": ("patch_0.9",)},
        {**MIXED, "seeds": (1,), "mixed_galleries": ("mix_0.9",)},
        {**MIXED, "seeds": (1,), "mixed_galleries": ("mix_0.9", "patch_0.9")},
    ),
    "corruptions": (CIFAR, FOG, None),
    "a kind of corruption": (FOG, {**FOG, "corruptions": ("pixelate", "fog")}, None),
    "a severity": ({**FOG, "severities": (5,)}, {**FOG, "severities": (2, 5)}, None),
    "corruptions of a benchmark": ({**FOG_OF_BOTH, "corrupted_benchmarks": ("cifar10",)}, FOG_OF_BOTH, None),
    "a set of templates": ({**CIFAR, "templates": ("5",)}, {**CIFAR, "templates": ("5", "1")}, None),
    "a file of templates": (
        {**CIFAR, "templates": ("5", "mine.txt")},
        {**CIFAR, "templates": ("5", "1")},
        {**CIFAR, "templates": ("5", "1", "mine.txt")},
    ),
    "other images": (CIFAR, {**CIFAR, "out_images": (NEAR,)}, None),
    "further images": (
        {**CIFAR, "out_images": (NEAR,)},
        {**CIFAR, "out_images": (FAR,)},
        {**CIFAR, "out_images": (NEAR, FAR)},
    ),
    "a benchmark": (SUGAR, {"benchmarks": ["sugarcrepe", "rococo"]}, None),
    "another benchmark": (CIFAR, ROCOCO, BOTH),
    "a benchmark between two": (TWO_OTHERS, SUGAR, {"benchmarks": ["rococo", "sugarcrepe", "cue_conflict"]}),
    "a task and a benchmark": (
        {**CUES, "tasks": ("edges",)},
        {**ITEMS_AND_SHAPES, "tasks": ("silhouettes", "sugarcrepe")},
        {**ITEMS_AND_SHAPES, "tasks": ("edges", "silhouettes", "sugarcrepe")},
    ),
}  # fmt: skip


# Tried at every run; the others are of the same kinds.
QUICK = ("another seed", "a task and a benchmark")


def every_case(cases, quick=()):
    """Return parameters; those that are not quick are thorough. Every fourth one is quick by default."""
    quick = quick or list(cases)[::4]
    return [case if case in quick else pytest.param(case, marks=pytest.mark.thorough) for case in cases]


@pytest.mark.slow
@pytest.mark.parametrize("added", every_case(ADDED, QUICK))
def test_added_benchmarks_give_the_bytes_of_one_evaluation_and_embed_nothing_twice(folder, world, added, monkeypatch):
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


def test_only_an_added_task_is_scored(folder, monkeypatch):
    scored = []
    score = RankTask.score
    monkeypatch.setattr(
        RankTask, "score", lambda task, *rest: (scored.append((task.name, task.variant)), score(task, *rest))[1]
    )
    out = folder("out")
    out.evaluate(**ROCOCO, tasks=("image_to_text",))
    assert scored == [("image_to_text", "clean"), ("image_to_text", "danger")]
    scored.clear()
    out.evaluate(**MIXED)
    assert scored == [("text_to_image", "clean")]
    scored.clear()
    out.evaluate(**MIX, seeds=(1,))
    assert {task for task, _ in scored} == {"text_to_image"} and ("text_to_image", "mix_0.9") in scored


def test_a_benchmark_without_any_usable_item_is_kept(folder, monkeypatch):
    adapt = EncoderModel.adapt_benchmark
    monkeypatch.setattr(
        EncoderModel,
        "adapt_benchmark",
        lambda model, each: dataclasses.replace(adapt(model, each), tasks=each.tasks * (each.name != "sugarcrepe")),
    )
    out, whole = folder("out"), folder("whole")
    out.evaluate(**SUGAR)
    out.evaluate(**ITEMS_AND_SHAPES)
    whole.evaluate(**ITEMS_AND_SHAPES)
    assert out.files == whole.files and set(out.results["benchmarks"]) == {"sugarcrepe", "cue_conflict"}
    assert set(out.results["tasks"]) == {"edges", "silhouettes"}


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
    "names of classes": (CIFAR, {**CIFAR, "change": with_other_names}, "data.cifar10.classes.cat", "nothing, wolf"),
    "items": (SUGAR, {**SUGAR, "change": with_other_items}, "data.sugarcrepe.parts.swap_att", ""),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", every_case(REFUSED))
def test_a_different_request_is_refused_with_its_field_and_no_file_changes(folder, world, tmp_path, kind, monkeypatch):
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


@pytest.mark.slow
def test_a_limit_that_excludes_nothing_is_the_same_request(folder):
    out = folder("out")
    out.evaluate(**CIFAR)
    assert out.evaluate(**CIFAR, limit=12)[0] == 0
    # Six images of RoCOCO are fewer than the limit, twelve of CIFAR are not.
    other = folder("other")
    other.evaluate(**ROCOCO, limit=7)
    other.evaluate(**CIFAR, limit=7)
    assert other.results["data"]["cifar10"]["coverage"]["limit"] == 7


@pytest.mark.slow
def test_a_new_file_of_altered_captions_is_added_and_a_missing_one_is_reported(folder, world, tmp_path):
    data = shutil.copytree(world / "data", tmp_path / "changed")
    danger = data / "rococo" / "annotations" / "danger.json"
    out, whole, there = folder("out"), folder("whole"), {"data": data, **ROCOCO}
    out.evaluate(**there)
    shutil.copy(danger, danger.with_name("same_concept.json"))
    out.evaluate(**there)
    whole.evaluate(**there)
    assert out.files == whole.files
    danger.unlink()
    assert out.evaluate(**there)[0] == 0 and out.files == whole.files
    with pytest.raises(
        InputError, match="rococo: data: found no variants danger, which the results in the folder have"
    ):
        out.evaluate(**there, corruptions=("fog",), severities=(2,))
    assert out.files == whole.files


def test_a_model_with_another_list_of_training_images_is_another_model(folder, world, tmp_path):
    out, model = folder("out"), shutil.copytree(world / "m0" / "tiny", tmp_path / "tiny")
    names = [f"{number:02}.png" for number in range(3)]
    seen = training_images(names, [world / "data" / "coco" / "images" / name for name in names])
    out.evaluate(source=model, **ROCOCO)
    write_training_images(model, seen)
    with pytest.raises(InputError, match=r"model\.training_images: found .* with nothing"):
        out.evaluate(source=model, **ROCOCO)


@pytest.mark.slow
def test_another_name_for_a_model_is_accepted_and_results_keep_the_first_one(world, tmp_path, capsys):
    command = words(world, tmp_path / "out", tmp_path / "cache", "--benchmarks", "sugarcrepe", "--no-report")
    assert main(command) == 0
    command[1] = f"other={command[1]}"
    assert main(command) == 0
    assert "its results have the name 'tiny', not 'other'" in capsys.readouterr().err
    assert json.loads((tmp_path / "out" / "results.json").read_text())["model"] == "tiny"


@pytest.mark.slow
def test_the_comparable_hash_does_not_depend_on_how_much_was_requested(folder, world, monkeypatch):
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


@pytest.mark.slow
def test_a_finished_benchmark_is_not_scored_again_without_a_cache(folder):
    out, fresh, model = folder("out"), folder("fresh"), Marked()
    out.evaluate(source=model, cache=None, **ROCOCO)
    assert model.images >= 6 and model.texts >= 60
    model.images = model.texts = 0
    out.evaluate(source=model, cache=None, benchmarks=["rococo", "cifar10"])
    # One image and two texts to try the model.
    assert (model.images, model.texts) == (12 + 1, 3 + 2)
    assert folder("again").evaluate(source=Marked(), cache=None, **CIFAR)[0] == 12 + 3
    fresh.evaluate(source=Marked(), cache=None, benchmarks=["rococo", "cifar10"])
    assert out.files == fresh.files


def test_a_model_without_a_fingerprint_is_always_evaluated_again(folder):
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
    "a table cut short": lambda out: rewritten(out, lambda content: content[:-9]),
    "a flipped bit": lambda out: rewritten(out, flipped),
    "a table of other results": lambda out: shutil.copy(out.parent.parent / "other/out/per_query.parquet", out),
    "a table written again": lambda out: written_again(out / "per_query.parquet"),
}


def rewritten(out: Path, change) -> None:
    path = out / "per_query.parquet"
    path.write_bytes(change(path.read_bytes()))


def flipped(content: bytes) -> bytes:
    place = content.index(b"img") if b"img" in content else 200
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


def written_again(path: Path) -> None:
    import pandas

    pandas.read_parquet(path).to_parquet(path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", every_case(DAMAGE, ["a table of other results"]))
def test_tables_that_do_not_match_the_results_are_written_again(folder, world, kind, tmp_path):
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


def test_incomplete_results_are_refused(folder):
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


def test_adding_results_requires_the_files_of_earlier_ones(folder, world, tmp_path):
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


def test_two_image_sets_of_the_same_name_are_refused(folder, world):
    for options in ({"templates": (str(world / "mine.txt"), str(world / "here/mine.txt"))},
                    {"out_images": (("near", str(world / "near")), ("near", str(world / "far")))}):  # fmt: skip
        with pytest.raises(InputError, match=r"settings: (templates|out_images): found .* the same name"):
            folder("out").evaluate(**CIFAR | options)


@pytest.mark.slow
def test_an_evaluation_killed_between_two_files_leaves_no_inconsistent_files(folder):
    few, whole = folder("few"), folder("whole")
    edges, cues = {**CUES, "tasks": ("edges",)}, CUES
    few.evaluate(**edges)
    whole.evaluate(**cues)
    out = folder("out")
    out.evaluate(**edges)

    def restore() -> None:
        shutil.rmtree(out.out)
        shutil.copytree(few.out, out.out)

    def report() -> bool:
        """Return whether a report was written."""
        try:
            results = json.loads((out.out / "results.json").read_text())
            read_counts(out.out / "per_query.parquet", results), read_examples(out.out)
        except InputError as error:
            assert "rows of another evaluation than that of results.json" in str(error)
            return False
        return True

    restore()
    operations = watched(out.out, lambda _: None, lambda: out.evaluate(**cues))
    assert out.files == whole.files
    refused_reports = 0
    # Every third operation, the same command and that before it in turns; all of them in a thorough run.
    step = 1 if os.environ.get("ROCOCO_THOROUGH") else 3
    for turn, number in enumerate(range(operations, 0, -step)):
        restore()
        with pytest.raises(Killed):
            watched(out.out, killed_at(number), lambda: out.evaluate(**cues))
        half = out.files
        reported = report()
        assert reported or half["per_query.parquet"] != few.files["per_query.parquet"]
        refused_reports += not reported
        # The same command, or that before it, makes the folder consistent again.
        out.evaluate(**(cues if turn % 2 else edges))
        assert out.files == (whole if turn % 2 or half == whole.files else few).files
    assert refused_reports > 0


@pytest.mark.slow
def test_results_are_kept_with_other_versions_and_the_versions_are_recorded(folder, monkeypatch):
    out, whole = folder("out"), folder("whole")
    with monkeypatch.context() as earlier:
        earlier.setattr(results, "__version__", "0.0.1")
        out.evaluate(**CUES)
    computed, said = out.evaluate(**ITEMS_AND_SHAPES)
    assert computed and "adding sugarcrepe; keeping cue_conflict" in said
    found, now = out.results, results.__version__
    versions = {name: about["versions"]["rococo_jax"] for name, about in found["benchmarks"].items()}
    assert versions == {"cue_conflict": "0.0.1", "sugarcrepe": now}
    assert found["fingerprint"]["versions"]["rococo_jax"] == f"{now}, 0.0.1"
    whole.evaluate(**ITEMS_AND_SHAPES)
    for part in ("tasks", "intervals", "sizes", "headlines"):
        assert found[part] == whole.results[part]
    # Once more: nothing is left to compute, and the files stay as they are.
    files = out.files
    assert out.evaluate(**ITEMS_AND_SHAPES)[0] == 0 and out.files == files


@pytest.mark.slow
def test_a_new_version_of_the_scoring_computes_benchmarks_of_its_kind_again(folder, monkeypatch):
    out, whole = folder("out"), folder("whole")
    out.evaluate(**ITEMS_AND_SHAPES)
    monkeypatch.setitem(conditions.SCORING, "choice", 2)
    _, said = out.evaluate(**ITEMS_AND_SHAPES)
    assert "sugarcrepe: scored again, because another version of the scoring was used" in said
    assert "cue_conflict" not in said.partition("scored again")[0].rpartition("out:")[2]
    whole.evaluate(**ITEMS_AND_SHAPES)
    assert out.files == whole.files
    assert out.results["benchmarks"]["sugarcrepe"]["scoring"] == {"choice": 2}
    monkeypatch.setitem(conditions.SCORING, "choice", 3)
    other = folder("other")
    other.evaluate("m1", **ITEMS_AND_SHAPES)
    first, second = group_by_fingerprint(load_results([out.out, other.out]))
    assert [[*run.tasks] for run in first.runs] == [["sugarcrepe", "edges", "silhouettes"], ["edges", "silhouettes"]]
    assert {(field.partition(",")[0], *values) for field, *values in second.differences} == {
        ("scoring of sugarcrepe", "2", "3")
    }


def words(world: Path, out: Path, cache: Path, *more: object) -> list[str]:
    """The command line of an evaluation."""
    options = ["--data", world / "data", "--out", out, "--cache", cache, "--mixed-galleries", "none"]
    return [*map(str, ["evaluate", world / "m0" / "tiny", *options, *more])]


@pytest.mark.slow
def test_two_commands_give_the_reports_of_one_and_keep_training_captions(world, tmp_path, capsys):
    captions = ["--baseline-captions", world / "made" / "captions.json"]
    apart, together, cache = tmp_path / "apart", tmp_path / "together", tmp_path / "cache"
    assert main(words(world, apart / "out", cache, "--benchmarks", "sugarcrepe", *captions)) == 0
    assert main(words(world, apart / "out", cache, "--benchmarks", "rococo")) == 0
    said = capsys.readouterr()
    assert "adding rococo; keeping sugarcrepe" in said.err and "sugarcrepe" in said.out.split("report:")[1]
    assert main(words(world, together / "out", cache, "--benchmarks", "rococo,sugarcrepe", *captions)) == 0
    names = ("report.html", "report.csv", "report.md", *FILES)
    assert {path.name for path in (together / "out").iterdir()} == {*names, "journal.jsonl"}
    for name in names:
        assert (apart / "out" / name).read_bytes() == (together / "out" / name).read_bytes(), name
    other = tmp_path / "other.json"
    other.write_text(json.dumps([{"image": "a", "caption": ["a house on a boat"]}]))
    command = words(world, apart / "out", cache, "--benchmarks", "rococo", "--baseline-captions", other)
    assert main(command) == 2
    assert "baseline_captions: found results with baselines of" in capsys.readouterr().err


@pytest.mark.slow
def test_baselines_are_added_later_and_their_captions_file_must_still_exist(world, tmp_path, capsys):
    captions = shutil.copy(world / "made" / "captions.json", tmp_path)
    out, whole, cache = tmp_path / "out", tmp_path / "whole", tmp_path / "cache"
    named = ["--baseline-captions", captions, "--no-report"]
    assert main(words(world, out, cache, "--benchmarks", "sugarcrepe", "--no-report")) == 0
    assert main(words(world, out, cache, "--benchmarks", "rococo", *named)) == 2
    assert "sugarcrepe, which cannot be kept: they lack the baselines" in capsys.readouterr().err
    assert main(words(world, out, cache, "--benchmarks", "sugarcrepe", *named)) == 0
    assert main(words(world, out, cache, "--benchmarks", "rococo", *named)) == 0
    assert main(words(world, whole, cache, "--benchmarks", "rococo,sugarcrepe", *named)) == 0
    assert (out / "results.json").read_bytes() == (whole / "results.json").read_bytes()
    Path(captions).unlink()
    assert main(words(world, out, cache, "--benchmarks", "rococo,cifar10", "--templates", "1", "--no-report")) == 2
    assert "baseline_captions: found file: nothing there; wanted the file that the results" in capsys.readouterr().err


def test_a_model_that_may_have_seen_the_images_is_refused_even_with_existing_results(world, tmp_path, refusal):
    command = words(world, tmp_path / "out", tmp_path / "cache", "--benchmarks", "sugarcrepe", "--no-report")
    assert main(command) == 0
    assert "training images: found not known" in refusal(*command, "--require-clean")


def test_results_of_a_list_are_recognised_by_its_journal(world, tmp_path, refusal):
    """The folders and their empty files are enough: no model is loaded."""
    command = words(world, tmp_path / "out", tmp_path / "cache", "--benchmarks", "sugarcrepe", "--no-report")
    for name in ("first", "second"):
        (tmp_path / "out" / name).mkdir(parents=True)
        (tmp_path / "out" / name / "results.json").touch()
    (tmp_path / "out" / "journal.jsonl").touch()
    assert "which contains results of first, second in a folder each" in refusal(*command)


@pytest.mark.slow
def test_a_folder_cannot_contain_results_of_both_one_model_and_a_list(world, tmp_path, refusal):
    one, other = f"first={world}/m0/tiny", f"second={world}/m1/tiny"
    options = ["--data", world / "data", "--benchmarks", "cue_conflict", "--templates", "1", "--tasks", "edges"]
    options = [*map(str, options), "--no-report", "--out"]
    assert main(["evaluate", one, other, *options, str(tmp_path / "two")]) == 0
    assert main(["evaluate", one, *options, str(tmp_path / "one")]) == 0
    error = refusal("evaluate", f"third={world}/m1/tiny", *options, tmp_path / "two")
    assert f"--out: found {tmp_path}/two, which contains results of first, second in a folder each; wanted " in error
    assert f"{tmp_path}/two/third for one more model" in error and not (tmp_path / "two" / "results.json").exists()
    error = refusal("evaluate", one, other, *options, tmp_path / "one")
    assert "which contains the results of one model; wanted another folder for several models" in error
    assert not (tmp_path / "one" / "first").exists()


@pytest.mark.slow
def test_each_model_of_a_list_gets_its_missing_results(world, tmp_path, capsys):
    shutil.copytree(world / "m1" / "tiny", tmp_path / "second")
    (tmp_path / "models.txt").write_text(f"first={world}/m0/tiny\n{tmp_path}/second\n")
    out = tmp_path / "out"

    def run(*more) -> str:
        command = ["evaluate", "--models", tmp_path / "models.txt", "--data", world / "data", "--out", out]
        command += ["--cache", tmp_path / "cache", "--mixed-galleries", "none", "--no-report", *more]
        assert main([*map(str, command)]) == 0
        return capsys.readouterr().err

    run("--benchmarks", "sugarcrepe", "--shard", "2/2")
    said = run("--benchmarks", "sugarcrepe")
    assert "1 of 2: first evaluated" in said and "2 of 2: second kept" in said
    said = run("--benchmarks", "rococo")
    assert said.count("adding rococo; keeping sugarcrepe") == 2
    for name in ("first", "second"):
        assert set(json.loads((out / name / "results.json").read_text())["benchmarks"]) == {"rococo", "sugarcrepe"}


@pytest.mark.slow
@pytest.mark.thorough
def test_models_with_different_requests_share_a_table_unless_their_means_differ(folder):
    few, many, other = folder("few"), folder("many"), folder("other")
    mixed = {"mixed_galleries": ("mix_0.9",), "seeds": (1,)}
    few.evaluate("m0", **ROCOCO | mixed)
    many.evaluate("m1", **BOTH | mixed)
    assert len(group_by_fingerprint(load_results([few.out, many.out]))) == 1
    other.evaluate("m1", **ROCOCO | mixed | {"seeds": (1, 10)})
    _, second = group_by_fingerprint(load_results([few.out, other.out]))
    assert second.differences == (("seeds of text_to_image, mix_0.9", "[1]", "[1, 10]"),)
    assert len(group_by_fingerprint(load_results([few.out, many.out, other.out]))) == 2


def test_image_sets_of_the_same_name_with_other_contents_are_not_compared(folder, world):
    one, other = folder("one"), folder("other")
    one.evaluate("m0", **CIFAR, out_images=(("near", str(world / "near")),))
    other.evaluate("m1", **CIFAR, out_images=(("near", str(world / "far")),))
    first, second = group_by_fingerprint(load_results([one.out, other.out]))
    assert [field for field, *_ in second.differences] == ["out_images near of cifar10_ood, near"]
    assert all("clean" in run.tasks["cifar10"] for run in first.runs) and [*second.runs[0].tasks] == ["cifar10_ood"]


@pytest.mark.slow
@pytest.mark.thorough
def test_two_processes_add_the_same_missing_results_as_one(world, tmp_path):
    """Process 0 decides what is missing, and both embed and score it."""
    tasks = ["--benchmarks", "cue_conflict", "--templates", "1", "--tasks", "edges", "--no-report"]
    more = ["--benchmarks", "cue_conflict,sugarcrepe", "--templates", "1", "--no-report"]
    run_command_together(words(world, tmp_path / "two", tmp_path / "cache", *tasks), 2)
    said = run_command_together(words(world, tmp_path / "two", tmp_path / "cache", *more), 2)
    assert said.count("adding sugarcrepe; cue_conflict (tasks silhouettes)") == 1
    assert main(words(world, tmp_path / "one", tmp_path / "cache", *more)) == 0
    two, one = (json.loads((tmp_path / name / "results.json").read_text()) for name in ("two", "one"))
    assert two["tasks"] == one["tasks"] and two["benchmarks"] == one["benchmarks"] and two["sha256"] == one["sha256"]
