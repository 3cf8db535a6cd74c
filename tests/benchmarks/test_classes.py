"""Test benchmarks of classes: folders and tables, prompts, refusals, tasks, and the real stimuli."""

import json
import re
import shutil
import types
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import scipy.special

import rococo_jax
from rococo_jax.benchmarks.benchmark import find_benchmark, with_corrupted_images
from rococo_jax.benchmarks.classes import COUNTS, TEMPLATES, templates_of
from rococo_jax.benchmarks.settings import Settings
from rococo_jax.benchmarks.tables import ORIGINALS, TEXTS
from rococo_jax.evaluation.inputs import open_benchmarks
from tests.support.made_runs import unit
from tests.support.random_inputs import embeddings_of
from tests.support.refusals import refused
from tests.support.world import noise, write_pictures

LABELS = {"a/0.png": "oven", "a/1.png": "cat", "b/2.png": "cat", "b/3.png": "sea_lion"}
LINES = [f"{name},{label}" for name, label in LABELS.items()]


@pytest.fixture
def folder(tmp_path):
    """Four images with a table of labels."""
    write_pictures(tmp_path / "classes" / "images", LABELS, noise(8, 8))
    return write_table(tmp_path, LINES)


def write_table(folder, lines):
    (folder / "classes" / "labels.csv").write_text("\n".join(["image,label", *lines]) + "\n")
    return folder


def opened(folder, **settings):
    return open_benchmarks(Settings(**{"templates": ("1",), **settings}), data=folder, names=("classes",))[0]


def test_only_images_of_the_named_benchmarks_are_corrupted(folder):
    write_pictures(folder / "cifar10" / "images", ["cat/0.png", "dog/0.png"], noise(8, 8))

    def corrupted(*names):
        settings = Settings(templates=("1",), corruptions=("fog",), severities=(2,), corrupted_benchmarks=names)
        both = open_benchmarks(settings, data=folder, names=("classes", "cifar10"))
        return {each.name: ("fog_2" in each.image_sets, "corruptions" in each.requested) for each in both}

    yes, no = (True, True), (False, False)
    assert corrupted() == corrupted("classes", "cifar10") == {"classes": yes, "cifar10": yes}
    assert corrupted("cifar10") == {"classes": no, "cifar10": yes}
    refused("corrupted_benchmarks: found 'rococo'; wanted one of classes, cifar10", corrupted, "rococo")


def test_a_table_and_folders_and_json_lines_describe_the_same_classes(folder):
    (task,), at = opened(folder).tasks, folder / "classes"
    assert task.classes == ("cat", "oven", "sea lion") and task.label.tolist() == [1, 0, 0, 2]
    assert opened(folder).texts == ("a picture of a cat.", "a picture of an oven.", "a picture of a sea lion.")
    lines = [json.dumps({"image": name, "label": label}) for name, label in LABELS.items()]
    (at / "labels.jsonl").write_text("\n".join(lines))
    (at / "labels.csv").unlink()
    assert opened(folder).tasks[0].label.tolist() == task.label.tolist()
    (at / "labels.jsonl").unlink()
    shutil.rmtree(at / "images")
    write_pictures(at / "images", [f"{label}/{Path(name).name}" for name, label in LABELS.items()], noise(8, 8))
    (folders,) = opened(folder).tasks
    assert folders.classes == task.classes and folders.label.tolist() == sorted(task.label.tolist())


def test_there_are_eighty_templates_and_each_variant_has_its_selection(folder):
    assert len(TEMPLATES) == len(set(TEMPLATES)) == 80 and all(each.count("{}") == 1 for each in TEMPLATES)
    assert [len(templates_of(str(count))) for count in COUNTS] == list(COUNTS)
    shapes = {task.variant: task.prompts.shape for task in opened(folder, templates=("5", "1", "80")).tasks}
    assert shapes == {"clean": (3, 5), "templates_1": (3, 1), "templates_80": (3, 80)}


def test_class_embeddings_are_means_of_normalised_prompts(folder):
    benchmark = opened(folder, templates=("5",))
    embeddings, (task,) = embeddings_of(benchmark, logit_scale=3.0), benchmark.tasks
    outcome, classes = task.score(embeddings), unit(embeddings.tables[TEXTS][task.prompts].mean(axis=1))
    p = scipy.special.softmax(3 * embeddings.tables[ORIGINALS] @ classes.T, axis=1)
    np.testing.assert_allclose(outcome.statistics.confidence, p.max(axis=1), rtol=1e-6)
    predicted = [task.classes[place] for place in p.argmax(axis=1)]
    assert outcome.rows(benchmark).column("predicted").to_pylist() == predicted


@pytest.mark.parametrize("scale", [3.0, None])
def test_probabilities_use_cosines_times_the_logit_scale_of_the_model_or_100(folder, scale):
    images, texts = (unit(np.random.default_rng(rows).normal(size=(rows, 5))) for rows in (4, 3))
    give = {"encode_image": lambda some: images[: len(some)], "encode_text": lambda some: texts[: len(some)]}
    model = types.SimpleNamespace(**give, logit_scale=scale)
    results = rococo_jax.evaluate(model, data=folder, benchmarks=["classes"], templates=("1",))
    p = scipy.special.softmax((scale or 100) * images @ texts.T, axis=1)
    assert results["tasks"]["classes"]["clean"]["confidence"] == pytest.approx(100 * p.max(axis=1).mean(), rel=1e-5)


def test_the_clean_task_is_repeated_with_corrupted_images(folder):
    benchmark = with_corrupted_images(opened(folder, templates=("1", "5")), ["fog", "contrast"], [1, 3])
    names = [task.variation.name for task in benchmark.tasks]
    assert names == ["clean", "templates_5", "uncorrupted", "fog_1", "fog_3", "contrast_1", "contrast_3"]
    assert {pool.variant.name for task in benchmark.tasks[3:] for pool in task.pools} == {
        "corruptions_1",
        "corruptions_3",
    }


@pytest.mark.parametrize(
    ("classes", "said"),
    [
        ('["cat", "oven"]', "sea_lion"),
        ('["cat", "oven", "sea_lion", "dog"]', "'dog'"),
        ('["cat", "cat"]', "each once"),
        ('{"cat": " ", "oven": "x", "sea_lion": "y"}', "an empty name"),
    ],
)
def test_bad_class_names_are_reported_in_one_line(folder, classes, said):
    (folder / "classes" / "classes.json").write_text(classes)
    refused(re.escape(said), opened, folder)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([*LINES, "a/0.png,cat"], "the same image twice"),
        ([*LINES, "none.png,cat"], "missing"),
        ([*LINES, "../x.png,cat"], "inside the image folder"),
        ([*LINES, "x.png,"], "label"),
        (["a/0.png,cat"], "at least 2"),
        ([], "at least one"),
    ],
)
def test_bad_tables_are_reported_in_one_line(folder, lines, said):
    write_table(folder, lines)
    refused(re.escape(said), opened, folder)


def test_an_empty_class_folder_is_refused(folder):
    (folder / "classes" / "labels.csv").unlink()
    (folder / "classes" / "images" / "zebra").mkdir()
    refused("no image", opened, folder)


NAMES = ("owl", "unicycle", "ox", "upright piano", "European garden spider", "one-piece swimsuit", "hourglass", "{x}")


def write_names(folder, names):
    """A class of one image for each name."""
    write_pictures(folder / "classes" / "images", [f"{row}.png" for row in range(len(names))], noise(8, 8))
    write_table(folder, [f"{row}.png,n{row}" for row in range(len(names))])
    (folder / "classes" / "classes.json").write_text(json.dumps({f"n{row}": name for row, name in enumerate(names)}))
    return folder


@pytest.mark.parametrize("ours", [False, True])
def test_templates_of_the_user_are_filled_in_unchanged(tmp_path, ours):
    lines = ["a photo of a {}.", "itap of a {}.", " a {} in a video game. ", "the {}.", "a {}s' \u00e9t\u00e9"]
    lines = list(TEMPLATES[:5]) if ours else lines
    (tmp_path / "mine.txt").write_text("".join(f"{line}\n" for line in lines))
    texts = opened(write_names(tmp_path, NAMES), templates=(str(tmp_path / "mine.txt"),)).texts
    assert set(texts) == {line.format(name) for line in lines for name in NAMES}  # as OpenAI's notebook, open_clip


def test_articles_in_shipped_templates_fit_the_class_names(folder):
    articles = dict(zip(NAMES, ("an", "a", "an", "an", "a", "a", "an", "a"), strict=True))
    texts = opened(write_names(folder, NAMES), templates=("1",)).texts
    assert set(texts) == {f"a picture of {article} {name}." for name, article in articles.items()}


def test_class_names_are_used_unchanged_and_labels_without_underscores(folder):
    named = {"cat": "Felis_catus", "oven": " gas  oven", "sea_lion": "SEA lion"}
    (folder / "classes" / "classes.json").write_text(json.dumps(named))
    (folder / "mine.txt").write_text("{}")
    assert set(opened(folder, templates=(str(folder / "mine.txt"),)).texts) == set(named.values())
    (folder / "classes" / "classes.json").write_text(json.dumps(list(named)))
    assert set(opened(folder, templates=(str(folder / "mine.txt"),)).texts) == {"cat", "oven", "sea lion"}


class LowerCase:
    """A model that reads text in lower case and without blanks at its ends, as CLIP's tokenizer does."""

    name = "lower"

    def __init__(self, names, tells_tokens):
        self.kinds = list(dict.fromkeys(map(self.read, names)))
        if tells_tokens:
            self.token_rows = lambda texts: ([[*self.read(text).encode()] for text in texts], [False] * len(texts))

    def read(self, text):
        return text.lower().strip()

    def encode_image(self, images):
        return np.eye(16)[: len(images)]

    def encode_text(self, texts):
        return np.eye(16)[[self.kinds.index(self.read(text)) for text in texts]]


@pytest.mark.parametrize("tells_tokens", [True, False])
@pytest.mark.parametrize(
    "names",
    [("Truck", "cat", "dog", "truck "), pytest.param(("missile", "cat", "dog", "missile"), marks=pytest.mark.slow)],
)
def test_classes_whose_texts_are_equal_to_the_model_tie_and_a_note_names_them(tmp_path, names, tells_tokens):
    (tmp_path / "mine.txt").write_text("{}")
    folder = write_names(tmp_path, names)
    options = {"data": folder, "benchmarks": "classes", "templates": str(tmp_path / "mine.txt")}
    results = rococo_jax.evaluate(LowerCase(names, tells_tokens), out=tmp_path / "out", **options)
    clean = results["tasks"]["classes"]["clean"]
    reader = "this model's tokenizer" if tells_tokens else "this model"
    shown = ("missile (n0)", "missile (n3)") if "missile" in names else ("Truck", "truck ")
    (note,) = [note for note in results["notes"] if "one text for" in note]
    assert note.startswith(f"classes: {shown[0]!r} and {shown[1]!r} are one text for {reader}: images of such")
    assert not any("untrained" in note for note in results["notes"])
    rows = pq.read_table(tmp_path / "out" / "per_query.parquet").to_pylist()
    by_label = {row["label"]: row["chosen"] for row in rows}
    assert [by_label[name] for name in shown] == ["tie", "tie"]
    assert clean["ties"] == pytest.approx(100 * np.mean([row["chosen"] == "tie" for row in rows]))
    other = rococo_jax.evaluate(LowerCase(("a", "b", "c", "d"), tells_tokens), **options | {"data": write_names(
        tmp_path / "other", ("a", "b", "c", "d"))})  # fmt: skip
    assert other["tasks"]["classes"]["clean"]["ties"] == 0 and not any("one text" in note for note in other["notes"])


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (
            ["train/cat/a.png", "train/dog/a.png", "val/cat/a.png"],
            "only folders in train, val (cat, dog); .*images/val",
        ),
        (["Test/cat/a.png", "training/cat/a.png"], "only folders in Test, training (cat); .*images/Test"),
        (["validation/a.png", "train2017/a.png"], "splits of a data set: train2017, validation"),
        (["val/a.png"], "splits of a data set: val"),
        (["imagenet/cat/a.png", "imagenet/dog/a.png"], r"only folders in imagenet (cat, dog); .*images/imagenet"),
        (["cat/a.png", "dog/2020/a.png"], "only folders in dog (2020)"),
    ],
)
def test_folders_of_splits_are_not_classes(tmp_path, files, said):
    write_pictures(tmp_path / "classes" / "images", files, noise(8, 8))
    refused(said.replace("(", r"\(").replace(")", r"\)"), opened, tmp_path)


def test_a_folder_named_train_among_other_vehicles_is_a_class(tmp_path):
    write_pictures(tmp_path / "classes" / "images", ["train/a.png", "bus/a.png", "bus/more/b.png"], noise(8, 8))
    assert opened(tmp_path).tasks[0].classes == ("bus", "train")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a {}\n\nthe {}", "line 2"),
        ("a thing", "line 1"),
        ("{} {}", "line 1"),
        ("{} {x}", "line 1"),
        ("{} {", "line 1"),
        ("{0}", "line 1"),
    ],
)
def test_a_template_without_a_placeholder_is_refused(tmp_path, text, said):
    (tmp_path / "mine.txt").write_text(text)
    refused(said, templates_of, str(tmp_path / "mine.txt"))
    refused("1, 5, 30, 80", templates_of, "7")


@pytest.mark.real_data
def test_the_real_stimuli_are_read_completely(real_data):
    info = find_benchmark("cue_conflict")
    benchmark = info.open({"images": real_data / "cue_conflict"}, Settings(templates=("1",)))
    counts = {task.name: len(task.label) for task in benchmark.tasks}
    assert counts == {"cue_conflict": 1280, "edges": 160, "silhouettes": 160}
    assert int((benchmark.tasks[0].label != benchmark.tasks[0].texture).sum()) == 1200


@pytest.mark.parametrize("line", ["'a photo of a {}.',", '["a photo of a {}."]', "[ 'a photo of a {}.',"])
def test_templates_copied_from_code_are_refused(line, tmp_path):
    (tmp_path / "t.txt").write_text(f"a {{}}.\n{line}\n")
    refused("line 2: found .*marks of Python; wanted the template alone", templates_of, str(tmp_path / "t.txt"))
    (tmp_path / "t.txt").write_text("\"{}\"\nthe word '{}'\n")
    assert len(templates_of(str(tmp_path / "t.txt"))) == 2
