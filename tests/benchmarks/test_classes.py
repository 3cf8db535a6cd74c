"""Benchmarks of classes: folders and tables, prompts, refusals, tasks, and the real stimuli."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rococo_jax.benchmarks.benchmark import find_benchmark, with_corrupted_images
from rococo_jax.benchmarks.classes import COUNTS, TEMPLATES, templates_of
from rococo_jax.benchmarks.settings import Settings
from rococo_jax.benchmarks.tables import ORIGINALS, TEXTS, Embeddings
from rococo_jax.evaluation.inputs import open_benchmarks
from tests.support.refusals import refused

LABELS = {"a/0.png": "oven", "a/1.png": "cat", "b/2.png": "cat", "b/3.png": "sea_lion"}


@pytest.fixture
def folder(tmp_path):
    """Four images with a table of labels."""
    for number, name in enumerate(LABELS):
        path = tmp_path / "classes" / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (40 * number, 0, 0)).save(path)
    lines = ["image,label", *(f"{name},{label}" for name, label in LABELS.items())]
    (tmp_path / "classes" / "labels.csv").write_text("\n".join(lines) + "\n")
    return tmp_path


def opened(folder, **settings):
    return open_benchmarks(Settings(**{"templates": ("1",), **settings}), data=folder, names=("classes",))[0]


def random_embeddings(benchmark, width=8, **given):
    rng = np.random.default_rng(0)
    tables = {TEXTS: len(benchmark.texts), **{key: len(images) for key, images in benchmark.image_sets.items()}}
    return Embeddings({key: rng.normal(size=(rows, width)) for key, rows in tables.items()}, **given)


def test_images_are_corrupted_of_the_benchmarks_that_are_named(folder):
    for number in range(2):
        path = folder / "cifar10" / "images" / ("cat", "dog")[number] / "0.png"
        path.parent.mkdir(parents=True)
        Image.new("RGB", (8, 8), (0, 90 * number, 0)).save(path)

    def corrupted(*names):
        settings = Settings(templates=("1",), corruptions=("fog",), severities=(2,), corrupted_benchmarks=names)
        both = open_benchmarks(settings, data=folder, names=("classes", "cifar10"))
        return {each.name: ("fog_2" in each.image_sets, "corruptions" in each.decides) for each in both}

    yes, no = (True, True), (False, False)
    assert corrupted() == corrupted("classes", "cifar10") == {"classes": yes, "cifar10": yes}
    assert corrupted("cifar10") == {"classes": no, "cifar10": yes}
    refused("corrupted_benchmarks: found 'rococo'; wanted one of classes, cifar10", corrupted, "rococo")


def test_a_table_and_folders_and_json_lines_say_the_same(folder):
    (task,) = opened(folder).tasks
    assert task.classes == ("cat", "oven", "sea lion") and task.label.tolist() == [1, 0, 0, 2]
    assert opened(folder).texts == ("a picture of a cat.", "a picture of an oven.", "a picture of a sea lion.")
    table = folder / "classes" / "labels.csv"
    lines = [json.dumps({"image": name, "label": label}) for name, label in LABELS.items()]
    table.with_suffix(".jsonl").write_text("\n".join(lines))
    table.unlink()
    assert opened(folder).tasks[0].label.tolist() == task.label.tolist()
    table.with_suffix(".jsonl").unlink()
    for name, label in LABELS.items():
        (folder / "classes" / "images" / label).mkdir(exist_ok=True)
        (folder / "classes" / "images" / name).rename(folder / "classes" / "images" / label / Path(name).name)
    for empty in ("a", "b"):
        (folder / "classes" / "images" / empty).rmdir()
    (folders,) = opened(folder).tasks
    assert folders.classes == task.classes and sorted(folders.label.tolist()) == sorted(task.label.tolist())


def test_templates_are_eighty_and_each_variant_has_its_own():
    assert len(TEMPLATES) == len(set(TEMPLATES)) == 80 and all(each.count("{}") == 1 for each in TEMPLATES)
    assert [len(templates_of(str(count))) for count in COUNTS] == list(COUNTS)


def test_further_templates_are_further_variants(folder):
    tasks = opened(folder, templates=("5", "1", "80")).tasks
    assert [(task.variant, task.prompts.shape) for task in tasks] == [
        ("clean", (3, 5)),
        ("templates_1", (3, 1)),
        ("templates_80", (3, 80)),
    ]


def test_class_vectors_are_means_of_unit_prompts(folder):
    benchmark = opened(folder, templates=("5",))
    embeddings = random_embeddings(benchmark, logit_scale=3.0)
    outcome = benchmark.tasks[0].score(embeddings)
    means = embeddings.tables[TEXTS][benchmark.tasks[0].prompts].mean(axis=1)
    cosines = embeddings.tables[ORIGINALS] @ (means / np.linalg.norm(means, axis=1, keepdims=True)).T
    p = np.exp(3 * cosines) / np.exp(3 * cosines).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(outcome.statistics.confidence, p.max(axis=1), rtol=1e-6)
    assert outcome.rows(benchmark).column("predicted").to_pylist() == [
        benchmark.tasks[0].classes[place] for place in p.argmax(axis=1)
    ]


def test_corrupted_images_ask_the_clean_task_again(folder):
    benchmark = with_corrupted_images(opened(folder, templates=("1", "5")), ["fog", "contrast"], [1, 3])
    names = [task.variant for task in benchmark.tasks]
    assert names == ["clean", "templates_5", "uncorrupted", "fog_1", "fog_3", "contrast_1", "contrast_3"]
    assert {task.pooled for task in benchmark.tasks[3:]} == {"corruptions_1", "corruptions_3"}


BAD = {
    "a label that is not in the list": (lambda at: (at / "classes.json").write_text('["cat", "oven"]'), "sea_lion"),
    "a class without images": (
        lambda at: (at / "classes.json").write_text('["cat", "oven", "sea_lion", "dog"]'),
        "'dog'",
    ),
    "a class twice": (lambda at: (at / "classes.json").write_text('["cat", "cat"]'), "each once"),
    "two classes of one name": (
        lambda at: (at / "classes.json").write_text('{"cat": "x", "oven": "x", "sea_lion": "y"}'),
        "another name",
    ),
    "an empty name": (
        lambda at: (at / "classes.json").write_text('{"cat": " ", "oven": "x", "sea_lion": "y"}'),
        "an empty name",
    ),
    "an image twice": (lambda at: add_line(at, "a/0.png,cat"), "the same image twice"),
    "an image that is not there": (lambda at: add_line(at, "none.png,cat"), "missing"),
    "an image outside": (lambda at: add_line(at, "../x.png,cat"), "inside the image folder"),
    "an empty label": (lambda at: add_line(at, "x.png,"), "label"),
    "one class": (lambda at: (at / "labels.csv").write_text("image,label\na/0.png,cat\n"), "at least 2"),
    "an empty table": (lambda at: (at / "labels.csv").write_text("image,label\n"), "at least one"),
}


def add_line(at, line):
    with (at / "labels.csv").open("a") as file:
        file.write(line + "\n")


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line(folder, name):
    change, said = BAD[name]
    change(folder / "classes")
    refused(re.escape(said), opened, folder)


def test_an_empty_class_folder_is_refused(folder):
    (folder / "classes" / "labels.csv").unlink()
    (folder / "classes" / "images" / "zebra").mkdir()
    refused("no image", opened, folder)


@pytest.mark.parametrize(("text", "said"), [("a {}\n\nthe {}", "line 2"), ("a thing", "line 1"), ("{} {}", "line 1")])
def test_a_template_without_its_place_is_refused(tmp_path, text, said):
    (tmp_path / "mine.txt").write_text(text)
    refused(said, templates_of, str(tmp_path / "mine.txt"))
    refused("1, 5, 30, 80", templates_of, "7")


@pytest.mark.real_data
def test_the_real_stimuli_are_read_whole(real_data):
    info = find_benchmark("cue_conflict")
    benchmark = info.open({"images": real_data / "cue_conflict"}, Settings(templates=("1",)))
    assert {task.name: len(task.label) for task in benchmark.tasks} == {
        "cue_conflict": 1280,
        "edges": 160,
        "silhouettes": 160,
    }
    assert int((benchmark.tasks[0].label != benchmark.tasks[0].texture).sum()) == 1200
