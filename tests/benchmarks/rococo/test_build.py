"""RoCOCO as tasks: who is asked, among whom, in which order, and what `strict` changes."""

from pathlib import Path

import numpy as np
import pytest

from rococo_jax.benchmarks.rococo.annotations import AlteredCaptions, Annotation, AnnotationSet
from rococo_jax.benchmarks.rococo.benchmark import note_on_shared_captions, tasks_of_file, tasks_of_set
from rococo_jax.data.captions import CaptionedImage

ITEMS = (
    AlteredCaptions("a.jpg", ("A dog.", "A cat.", "Two dogs"), ("a car", "A  CAT .", None)),
    AlteredCaptions("b.jpg", ("A dog.", "One bird"), ("a car", "one fish")),
)
ANNOTATION = Annotation("same_concept", ITEMS, Path("same_concept.json"), "own")
CLEAN = tuple(CaptionedImage(item.image, item.originals) for item in ITEMS)
FOLDER = AnnotationSet(CLEAN, {"same_concept": ANNOTATION}, (), None)


def tasks_of(benchmark):
    return {(task.name, task.variant): task for task in benchmark.tasks}


def gallery_of(benchmark, variant):
    return [benchmark.texts[row] for row in tasks_of(benchmark)["image_to_text", variant].gallery.index]


def test_the_gallery_has_the_order_of_the_published_files_and_embeds_each_text_once():
    benchmark = tasks_of_set(FOLDER)
    task = tasks_of(benchmark)["image_to_text", "same_concept"]
    expected = ["A dog.", "A cat.", "Two dogs", "a car", "A  CAT .", "A dog.", "One bird", "a car", "one fish"]
    assert gallery_of(benchmark, "same_concept") == expected
    assert len(benchmark.texts) == len(set(benchmark.texts)) == 7
    assert task.gallery_group.tolist() == [0, 0, 0, 0, 0, 1, 1, 1, 1]
    assert task.gallery_altered.tolist() == [False, False, False, True, True, False, False, True, True]
    assert task.queries.index.tolist() == task.query_group.tolist() == [0, 1]


def test_clean_tasks_contain_only_original_captions():
    benchmark = tasks_of_set(FOLDER)
    assert gallery_of(benchmark, "clean") == ["A dog.", "A cat.", "Two dogs", "A dog.", "One bird"]
    assert not tasks_of(benchmark)["image_to_text", "clean"].gallery_altered.any()
    task = tasks_of(benchmark)["text_to_image", "clean"]
    assert [benchmark.texts[row] for row in task.queries.index] == gallery_of(benchmark, "clean")
    assert task.query_group.tolist() == [0, 0, 0, 1, 1]
    assert task.gallery.index.tolist() == task.gallery_group.tolist() == [0, 1]


def test_the_strict_protocol_normalises_captions_and_excludes_altered_ones_that_are_equal():
    benchmark = tasks_of_set(FOLDER, "strict")
    expected = ["a dog", "a cat", "two dogs", "a car", "a dog", "one bird", "a car", "one fish"]
    assert gallery_of(benchmark, "same_concept") == expected
    note = "same_concept: altered captions left out because they say what their original says (strict): 1"
    assert benchmark.notes == (note,)


def test_a_note_states_how_ties_of_captions_of_several_images_count():
    """A tie between "A dog." of a.jpg and of b.jpg: neither is right under strict, one is under paper."""
    for build in (tasks_of_set, lambda folder, *protocol: tasks_of_file(folder.variants["same_concept"], *protocol)):
        (note,) = note_on_shared_captions(build(FOLDER))
        assert note == "1 texts are captions of several images (2 images): a tie of these is right for one (paper)"
        (note,) = note_on_shared_captions(build(FOLDER, "strict"))
        assert "against the model, a perfect one included (strict)" in note
    assert note_on_shared_captions(tasks_of_set(FOLDER, images={"b.jpg"})) == []
    # "a dog" and "A dog." differ until strict normalises them.
    items = (CaptionedImage("a.jpg", ("a dog",)), CaptionedImage("b.jpg", ("A dog.",)))
    folder = AnnotationSet(items, {}, (), None)
    notes = [len(note_on_shared_captions(tasks_of_set(folder, protocol))) for protocol in ("paper", "strict")]
    assert notes == [0, 1]


def test_the_gallery_contains_only_available_images():
    benchmark = tasks_of_set(FOLDER, images={"b.jpg"})
    assert benchmark.images == ("b.jpg",)
    assert gallery_of(benchmark, "same_concept") == ["A dog.", "One bird", "a car", "one fish"]
    task = tasks_of(benchmark)["image_to_text", "same_concept"]
    assert task.query_group.tolist() == [0] and set(task.gallery_group) == {0}


def test_columns_are_captions_in_file_order_and_the_strict_protocol_excludes_no_ops():
    tasks, strict = tasks_of(tasks_of_file(ANNOTATION)), tasks_of(tasks_of_file(ANNOTATION, "strict"))
    assert tasks["image_to_text", "same_concept"].gallery.index.tolist() == list(range(9))
    assert tasks["image_to_text", "clean"].gallery.index.tolist() == [0, 1, 2, 5, 6]
    assert tasks["text_to_image", "clean"].queries.index.tolist() == [0, 1, 2, 5, 6]
    assert strict["image_to_text", "same_concept"].gallery.index.tolist() == [0, 1, 2, 3, 5, 6, 7, 8]


def test_plain_captions_give_only_the_clean_tasks():
    assert list(tasks_of(tasks_of_file(list(CLEAN)))) == [("image_to_text", "clean"), ("text_to_image", "clean")]


@pytest.mark.real_data
def test_the_published_files_give_galleries_of_the_published_sizes(published_set):
    tasks = tasks_of(tasks_of_set(published_set))
    for variant in ("same_concept", "diff_concept", "rand_voca", "danger"):
        task = tasks["image_to_text", variant]
        assert (len(task.queries), len(task.gallery), np.sum(task.gallery_altered)) == (5000, 50_010, 25_000)
    assert len(tasks["image_to_text", "clean"].gallery) == 25_010
    assert len(tasks["text_to_image", "clean"].queries) == 25_010
    assert len(tasks["text_to_image", "clean"].gallery) == 5000
