"""The examples that an evaluation keeps: chosen by a rule, with small pictures, read back as they were."""

import dataclasses
import io
import random

import numpy as np
import pytest
from PIL import Image

from rococo_jax.benchmarks.benchmark import Benchmark, find_benchmark
from rococo_jax.benchmarks.image_sets import CorruptedImages
from rococo_jax.benchmarks.rococo.annotations import AlteredCaptions, write_annotation
from rococo_jax.benchmarks.settings import Settings
from rococo_jax.benchmarks.tables import ORIGINALS, TEXTS, Embeddings
from rococo_jax.benchmarks.tasks import Outcome
from rococo_jax.benchmarks.tasks.task import Task
from rococo_jax.checkpoints import save_model
from rococo_jax.cli.main import main
from rococo_jax.data.images import FileImages
from rococo_jax.errors import InputError
from rococo_jax.evaluation.examples import Example, Side, collect_examples, read_examples, write_examples
from tests.benchmarks.published_forms import FORMS, write
from tests.support.made_runs import IMAGES, made_benchmark
from tests.support.tiny import random_captions, tiny_encoder
from tests.support.world import seventy_pictures


def fooled(image: str, lead: float, variant: str = "danger") -> Example:
    sides = Side(image=image), Side("a man"), Side("a criminal")
    return Example("image_to_text", variant, None, "error", 0, "own_altered", *sides, 0.3, 0.3 + lead)


class Fooled(Outcome):
    """An outcome with these errors."""

    kind, counted, sizes, result = "rank", None, {}, None

    def __init__(self, variant: str, found: list[Example]):
        self.of = Task("image_to_text", variant, baseline="clean")
        self.found = found

    def won(self, tables) -> list[Example]:
        return []

    def errors(self, tables, count: int) -> list[Example]:
        return sorted(self.found, key=lambda each: each.right_score - each.wrong_score)[:count]


def chosen(examples: list[Example], count: int) -> list[Example]:
    variants = dict.fromkeys(each.variant for each in examples)
    outcomes = [Fooled(variant, [each for each in examples if each.variant == variant]) for variant in variants]
    return collect_examples(Benchmark("made", ("x",), (), {}, ()), outcomes, count)


def test_examples_are_ordered_by_how_confidently_the_model_is_fooled():
    found = chosen([fooled(str(place), place / 100) for place in range(10)], 3)
    assert [(each.query.image, each.order) for each in found] == [("9", 0), ("8", 1), ("7", 2)]
    assert len(chosen([fooled("a", 0.1), fooled("a", 0.2), fooled("b", 0.1)], 10)) == 2
    assert chosen([], 10) == []


def test_an_image_is_shown_once_and_variants_alternate():
    many = [fooled("best", 0.9), fooled("best", 0.8, "same_concept"), fooled("second", 0.7), fooled("third", 0.6)]
    many += [fooled("weak", 0.1, "same_concept"), fooled("weaker", 0.05, "mix_0.9")]
    found = chosen(many, 3)
    assert len({each.query.image for each in found}) == 3
    assert sorted(each.variant for each in found) == ["danger", "mix_0.9", "same_concept"]


def test_the_choice_of_examples_does_not_depend_on_the_order_of_queries():
    many = [fooled(f"image {place}", place / 1000, ("danger", "rand_voca")[place % 2]) for place in range(60)]
    wanted = chosen(many, 6)
    for seed in range(5):
        random.Random(seed).shuffle(many)
        assert {each.query.image for each in chosen(many, 6)} == {each.query.image for each in wanted}


def test_examples_are_unchanged_by_writing_and_reading_and_damaged_ones_are_refused(tmp_path):
    kept = [fooled("a.jpg", 0.25), dataclasses.replace(fooled("b.jpg", 0.125), seed=10, order=1)]
    kept[0] = dataclasses.replace(kept[0], query=Side(image="a.jpg", jpeg=b"\xff\xd8", note="\u202e"))
    write_examples(tmp_path, kept)
    assert read_examples(tmp_path) == kept
    (tmp_path / "examples.parquet").write_bytes((tmp_path / "examples.parquet").read_bytes()[:-40])
    with pytest.raises(InputError, match=r"examples\.parquet"):
        read_examples(tmp_path)
    assert read_examples(tmp_path / "nowhere") == []


def unit_vectors(rng, *shape):
    vectors = rng.normal(size=shape)
    return (vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize("count", [1, 4, 100])
def test_queries_won_by_an_altered_caption_are_ordered_by_its_lead(count):
    benchmark = made_benchmark()
    task = next(task for task in benchmark.tasks if task.variant == "danger")
    rng = np.random.default_rng(0)
    images, texts = unit_vectors(rng, IMAGES, 6), unit_vectors(rng, len(benchmark.texts), 6)
    scores = images @ texts[task.gallery.index].T
    right = (task.gallery_group[None] == np.arange(IMAGES)[:, None]) & ~task.gallery_altered
    top, behind = scores.argmax(1), np.where(right, scores, -2).max(1) - scores.max(1)
    order = sorted(np.flatnonzero(task.gallery_altered[top]), key=lambda query: behind[query])
    own = [query for query in order if task.gallery_group[top[query]] == query]
    assert own and len(order) > 10
    wanted = [own[0], *(query for query in order if query != own[0])][:count]
    found = task.score(Embeddings({ORIGINALS: images, TEXTS: texts})).errors(benchmark, count)
    assert [each.query.image for each in found] == [benchmark.images[query] for query in wanted]
    assert [each.wrong.text for each in found] == [benchmark.texts[task.gallery.index[top[query]]] for query in wanted]
    assert found[0].kind == "own_altered"


@pytest.mark.parametrize("count", [1, 3, 100])
def test_wrong_items_are_ordered_by_their_lead_with_each_image_once(count, tmp_path):
    rng, (images, items) = np.random.default_rng(0), (8, 30)
    of = rng.integers(0, images, items)
    rows = [{"filename": f"{of[n]}.jpg", "caption": f"dog {n}", "negative_caption": f"cat {n}"} for n in range(items)]
    form = dataclasses.replace(FORMS["sugarcrepe"], rows=rows, images=tuple(f"{n}.jpg" for n in range(images)))
    write(form, tmp_path)
    benchmark = find_benchmark("sugarcrepe").open({"images": tmp_path / "images", "annotations": tmp_path}, Settings())
    (task,) = (task for task in benchmark.tasks if task.variant == "swap_att")
    sizes = {ORIGINALS: len(benchmark.images), TEXTS: len(benchmark.texts)}
    vectors = {name: unit_vectors(rng, count, 6) for name, count in sizes.items()}
    of_item = vectors[ORIGINALS][task.images.index][task.item_images[:, 0]]
    right, wrong = np.einsum("itd,id->ti", vectors[TEXTS][task.item_texts], of_item)
    wanted = {}
    for item in sorted(np.flatnonzero(wrong >= right), key=lambda item: right[item] - wrong[item]):
        wanted.setdefault(int(task.group[item]), item)
    wanted = list(wanted.values())[:count]
    found = task.score(Embeddings(vectors)).errors(benchmark, count)
    assert [each.right.text for each in found] == [benchmark.texts[task.item_texts[item, 0]] for item in wanted]
    leads = [each.wrong_score - each.right_score for each in found]
    np.testing.assert_allclose(leads, (wrong - right)[wanted], atol=1e-6)


@pytest.mark.parametrize("mode", ["RGB", "L", "P", "RGBA", "CMYK", "1", "I;16", "LA"])
def test_pictures_of_every_mode_become_small_jpegs(tmp_path, mode):
    path = tmp_path / ("x.tif" if mode in ("CMYK", "I;16") else "x.png")
    Image.new(mode, (1000, 400)).save(path)
    example = dataclasses.replace(fooled("x", 0.1), query=Side(image="x", picture=("originals", 0)))
    benchmark = Benchmark("made", ("x",), (), {"originals": FileImages(("x",), (path,))}, ())
    (made,) = collect_examples(benchmark, [Fooled("danger", [example])])
    assert Image.open(io.BytesIO(made.query.jpeg)).size == (320, 128)


def test_a_corrupted_example_is_the_image_that_was_evaluated(tmp_path):
    files = seventy_pictures(tmp_path)
    originals = FileImages(tuple(files), tuple(files.values()))
    for kind in ("gaussian_noise", "jpeg_compression"):
        images = CorruptedImages(originals, kind, 3)
        measured = list(images.read(range(40)))[35]
        np.testing.assert_array_equal(np.asarray(images.thumbnail(35)), np.asarray(measured))


@pytest.mark.parametrize("protocol", ["paper", pytest.param("strict", marks=pytest.mark.slow)])
def test_an_altered_caption_is_traced_to_its_original(tmp_path, protocol):
    names = list(seventy_pictures(tmp_path / "images"))[:20]
    items = tuple(
        AlteredCaptions(name, tuple(random_captions(5, seed, 6)), tuple(random_captions(5, 100 + seed, 6)))
        for seed, name in enumerate(names)
    )
    origins: dict[str, set[str]] = {}
    for item in items:
        for original, altered in zip(item.originals, item.altered, strict=True):
            origins.setdefault(altered, set()).add(original)
    (tmp_path / "annotations").mkdir()
    write_annotation(tmp_path / "annotations" / "danger.json", "danger", items, made_by={})
    save_model(tmp_path / "tiny", tiny_encoder())
    places = {name: str(tmp_path / name) for name in ("annotations", "images", "out")}
    command = ["evaluate", str(tmp_path / "tiny"), *(f"--{name}={place}" for name, place in places.items())]
    assert main([*command, *f"--protocol {protocol} --mixed-galleries none --no-cache --no-report".split()]) == 0
    errors = [each for each in read_examples(tmp_path / "out") if (each.variant, each.role) == ("danger", "error")]
    assert errors, "nobody is fooled, so this test would show nothing"
    for each in errors:
        assert each.wrong.note.removeprefix("altered from: ") in origins[each.wrong.text]
        assert each.query.image in names and each.query.jpeg
