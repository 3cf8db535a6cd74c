"""NegBench's retrieval on small files in the published form."""

import re

import numpy as np
import pytest

from rococo_jax.benchmarks.benchmark import find_benchmark
from rococo_jax.benchmarks.readers.negbench import VARIANTS
from rococo_jax.benchmarks.settings import Settings
from rococo_jax.benchmarks.tables import ORIGINALS, TEXTS, Embeddings
from rococo_jax.evaluation.results import make_results
from tests.support.refusals import refused
from tests.support.world import noise, write_pictures

CLEAN = ["data/a.jpg,\"['a dog', 'a dog runs']\"", "data/b.jpg,\"['a cat']\"", "data/c.jpg,\"['a red bus']\""]
NEGATED = [
    "data/c.jpg,\"['a bus, not a car']\"",
    "data/a.jpg,\"['a dog and no cat', 'no man, a dog runs']\"",
    "data/b.jpg,\"['a cat', 'there is no dog']\"",
]


def opened(folder, clean=CLEAN, negated=NEGATED, images="abc", **settings):
    for variant, lines in (("clean", clean), ("negated", negated)):
        (folder / VARIANTS[variant]).write_text("\n".join(["filepath,captions", *lines]) + "\n")
    write_pictures(folder / "images", [f"{name}.jpg" for name in images], noise(8, 8))
    folders = {"images": folder / "images", "annotations": folder}
    return find_benchmark("negbench_retrieval").open(folders, Settings(**settings))


def test_negated_captions_are_ranked_over_the_same_images(tmp_path):
    benchmark = opened(tmp_path)
    rng = np.random.default_rng(0)
    images, texts = rng.normal(size=(3, 4)), rng.normal(size=(len(benchmark.texts), 4))
    outcomes = [task.score(Embeddings({ORIGINALS: images, TEXTS: texts})) for task in benchmark.tasks]
    tasks = make_results("m", "paper", {}, outcomes)["tasks"]
    captions = {
        "clean": {"a": ["a dog", "a dog runs"], "b": ["a cat"], "c": ["a red bus"]},
        "negated": {"a": ["a dog and no cat", "no man, a dog runs"], "b": ["a cat", "there is no dog"],
                    "c": ["a bus, not a car"]},
    }  # fmt: skip
    for variant, of_images in captions.items():
        gallery = texts[[benchmark.texts.index(text) for own in of_images.values() for text in own]]
        owner = np.repeat(np.arange(3), [len(own) for own in of_images.values()])
        to_image, to_text = (images @ gallery.T).argmax(0) == owner, owner[(images @ gallery.T).argmax(1)] == range(3)
        assert tasks["negbench_text_to_image"][variant]["r1"] == pytest.approx(100 * to_image.mean())
        assert tasks["negbench_image_to_text"][variant]["r1"] == pytest.approx(100 * to_text.mean())
    found = tasks["negbench_text_to_image"]
    assert found["negated"]["drop_points"] == pytest.approx(found["clean"]["r1"] - found["negated"]["r1"])


def test_missing_images_are_removed_from_queries_and_gallery(tmp_path):
    benchmark = opened(tmp_path, images="ab", allow_missing_images=True)
    assert benchmark.images == ("a.jpg", "b.jpg") and "2 of 3" in benchmark.notes[0]
    assert [len(task.queries) for task in benchmark.tasks] == [3, 2, 4, 2]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ({"clean": CLEAN[:2]}, "images: found no line of c.jpg"),
        ({"negated": NEGATED[:2]}, "found no line of b.jpg"),
        ({"clean": [*CLEAN, CLEAN[0]]}, "filepath: found a.jpg twice"),
        ({"clean": ["data/a.jpg,a dog"]}, "captions: found 'a dog'; wanted a list of texts"),
        ({"clean": ["data/a.jpg,[]"]}, "at least one"),
        ({"clean": ["data/a.jpg"]}, "1 cells; wanted 2 between commas"),
        ({"clean": ["..,['a dog']"]}, "inside the image folder"),
        ({"clean": []}, "at least one"),
    ],
)
def test_bad_input_is_reported_in_one_line(lines, said, tmp_path):
    refused(re.escape(said), opened, tmp_path, **lines)


def test_a_missing_file_is_named(tmp_path):
    folders = {"images": tmp_path, "annotations": tmp_path}
    refused(r"COCO_val_retrieval\.csv.*nothing there", find_benchmark("negbench_retrieval").open, folders, Settings())
