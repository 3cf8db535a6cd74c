"""Benchmark annotations in the published form and in our own are read alike, and what disagrees is refused by name."""

import json
from pathlib import Path

import pytest

from rococo_jax.benchmarks.rococo.annotations import (
    AlteredCaptions,
    altered_pairs,
    is_no_op,
    normalise_caption,
    read_annotation,
    read_annotation_folder,
    write_annotation,
)
from rococo_jax.data.captions import CaptionedImage, captions_from_json
from tests.support.refusals import refused


def clean_items(images: int = 3) -> list[dict]:
    """A tiny benchmark: five captions an image, the second image with six."""
    return [
        {"image": f"val2014/{k}.jpg", "caption": [f"Scene {k} has a ball {n}." for n in range(6 if k == 1 else 5)]}
        for k in range(images)
    ]


def published(word: str = "weapon") -> list[dict]:
    items = clean_items()
    for item in items:
        item["caption"] += [text.lower().rstrip(".").replace("ball", word) for text in item["caption"][:5]]
    return items


def write(folder: Path, **files) -> Path:
    for name, content in files.items():
        (folder / f"{name}.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def write_set(folder: Path, **more) -> Path:
    variants = {name: published(name) for name in ("danger", "same_concept")}
    return write(folder, coco_karpathy_test=clean_items(), **variants, **more)


def captioned() -> tuple[CaptionedImage, ...]:
    return tuple(captions_from_json(clean_items(), "expected"))


def test_captions_in_the_published_form_are_split_by_their_number(tmp_path):
    annotation = read_annotation(write(tmp_path, danger=published()) / "danger.json")
    assert (annotation.variant, annotation.form) == ("danger", "published")
    five, six, _ = annotation.items
    assert len(five.originals) == len(five.altered) == 5 and None not in five.altered
    assert len(six.originals) == len(six.altered) == 6 and six.altered[5] is None
    assert six.originals[2] == "Scene 1 has a ball 2." and six.altered[2] == "scene 1 has a weapon 2"


@pytest.mark.parametrize("length", [1, 4, 5, 6, 8, 9, 12])
def test_a_published_list_of_another_length_is_refused_with_its_image(length, tmp_path):
    items = published()
    items[2]["caption"] = ["a"] * length
    path = write(tmp_path, danger=items) / "danger.json"
    refused(rf"item 2 \('val2014/2\.jpg'\): found {length} captions; wanted 10", read_annotation, path)
    refused(r"danger\.json", read_annotation_folder, tmp_path)


def test_an_annotation_is_the_same_after_writing_and_reading(tmp_path):
    items = (
        AlteredCaptions("a.jpg", ("A cat.", "Two cats."), ("A dog.", None)),
        AlteredCaptions("b/c.jpg", ("猫",), ("犬",)),
    )
    change = {"word_index": 1, "old": "cat", "new": "dog", "concept": "animal", "influence": 0.25}
    path = tmp_path / "swapped.json"
    write_annotation(path, "swapped", items, made_by={"seed": 3}, changes=[[change, None], [None]])
    annotation = read_annotation(path)
    assert annotation.items == items and (annotation.variant, annotation.form) == ("swapped", "own")
    raw = json.loads(path.read_text(encoding="utf-8"))
    assert raw["made_by"] == {"seed": 3} and raw["items"][0]["changes"] == [change, None]


def test_a_bare_list_of_original_and_altered_captions_is_read(tmp_path):
    annotation = read_annotation(write(tmp_path, swapped=own()["items"]) / "swapped.json")
    assert (annotation.variant, annotation.form) == ("swapped", "own")
    assert annotation.items == (AlteredCaptions("a.jpg", ("A cat.",), ("A dog.",)),)


def own(**item) -> dict:
    base = {"image": "a.jpg", "originals": ["A cat."], "altered": ["A dog."]}
    return {"format": "rococo_jax.annotation", "version": 1, "items": [{**base, **item}]}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"items": []}, "format: found None"),
        ({**own(), "version": 2}, "version: found 2; wanted 1"),
        ({**own(), "items": None}, "items: found null"),
        ({**own(), "items": []}, "items: found an empty list"),
        (own(originals=[]), r"originals of item 0 \('a.jpg'\): found an empty list"),
        (own(originals=[None]), "originals 0 of item 0 .*: found null"),
        (own(altered=[]), "altered of item 0 .*: found 0 entries; wanted 1"),
        (own(altered=[7]), "altered 0 of item 0 .*: found a number; wanted a string or null"),
        (own(image="../a.jpg"), "wanted a path inside"),
        ({**own(), "items": own()["items"] * 2}, "image of item 1: found 'a.jpg', which is also item 0"),
        ([own()["items"][0], {"image": "b.jpg"}], 'wanted the key "originals"'),
        ('{"format": "rococo_jax.annotation", "ver', "JSON: found"),
    ],
)
def test_errors_in_an_annotation_are_named(content, said, tmp_path):
    refused(said, read_annotation, write(tmp_path, swapped=content) / "swapped.json")


def test_a_folder_is_read_with_its_variants_in_the_order_of_the_paper_and_others_by_their_clean_captions(tmp_path):
    other = [{**item, "image": f"other/{k}.jpg"} for k, item in enumerate(clean_items())]
    ten_captions = [{"image": f"o/{k}.jpg", "caption": [f"text {n}" for n in range(10)]} for k in range(3)]
    files = {"coco_karpathy_val": other, "a_note": {"about": "this folder"}, "ten_captions": ten_captions}
    found = read_annotation_folder(write_set(tmp_path, my_words=published("spoon"), **files))
    assert found.clean == captioned() and found.clean_source == tmp_path / "coco_karpathy_test.json"
    assert list(found.variants) == ["same_concept", "danger", "my_words"]
    assert [path.name for path in found.ignored] == ["a_note.json", "coco_karpathy_val.json", "ten_captions.json"]


def test_a_damaged_variant_of_another_name_is_an_error_and_not_ignored(tmp_path):
    damaged = published("spoon")
    damaged[0]["caption"].pop()
    said = r"my_words\.json: caption list of item 0 .* found 9 captions"
    refused(said, read_annotation_folder, write_set(tmp_path, my_words=damaged))


@pytest.mark.parametrize(
    ("files", "source", "variants"),
    [
        ({"danger": published()}, None, ["danger"]),
        ({"my_words": published()}, None, ["my_words"]),
        ({"captions": clean_items()}, "captions.json", []),
        ({"captions": clean_items(), "my_words": published()}, "captions.json", ["my_words"]),
    ],
)
def test_clean_captions_are_read_from_a_file_or_from_the_variants(files, source, variants, tmp_path):
    other = [{"image": "o.jpg", "caption": ["A."]}] if len(files) > 1 else {"a": "note"}
    found = read_annotation_folder(write(tmp_path, **files, another=other))
    assert found.clean == captioned() and list(found.variants) == variants
    assert found.clean_source == (source and tmp_path / source)
    assert [path.name for path in found.ignored] == ["another.json"]


def test_a_folder_of_small_annotations_is_read(tmp_path):
    items = [AlteredCaptions("a.jpg", ("A cat.", "Two cats."), ("A dog.", None))]
    for variant in ("zebra", "danger"):
        write_annotation(tmp_path / f"{variant}.json", variant, items, made_by={})
    found = read_annotation_folder(tmp_path)
    assert list(found.variants) == ["danger", "zebra"]
    assert found.clean == (CaptionedImage("a.jpg", ("A cat.", "Two cats.")),)


def changed(place: int, caption: int, *texts: str) -> list[dict]:
    """The published form with other texts in place of one of an image's captions."""
    items = published()
    items[place]["caption"][caption : caption + 1] = texts
    return items


@pytest.mark.parametrize(
    ("items", "said"),
    [
        (published()[::-1], "image of item 0: found 'val2014/2.jpg'; wanted 'val2014/0.jpg', as in coco_karpathy_test"),
        (changed(1, 3, "Another."), r"originals of item 1 \('val2014/1.jpg'\): found another text at caption 3"),
        (published()[:-1], "items: found 2; wanted 3"),
        (changed(1, 5), "originals of item 1 .*: found 5 captions"),
    ],
)
def test_a_variant_that_disagrees_with_the_clean_captions_is_refused(items, said, tmp_path):
    refused(rf"rand_voca\.json: {said}", read_annotation_folder, write_set(tmp_path, rand_voca=items))


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "no annotation file"),
        ({"a_note": {"about": "x"}}, "no annotation file"),
        ({"one": clean_items(), "two": clean_items()}, "several captions files"),
        ({"danger": '[{"image": "a.jpg", "cap'}, "JSON"),
        ({"coco_karpathy_test": "{}"}, "captions: found an object"),
    ],
)
def test_the_error_for_an_unreadable_folder_states_the_reason(files, said, tmp_path):
    refused(said, read_annotation_folder, write(tmp_path, **files))


def test_a_missing_annotation_folder_is_named(tmp_path):
    refused("annotation folder: found nothing there", read_annotation_folder, tmp_path / "none")
    (tmp_path / "dataset_coco.json").write_text(json.dumps({"images": [], "dataset": "coco"}))
    said = "annotation folder: .*`rococo evaluate MODEL --images DIR --captions FILE` makes one of captions in any form"
    for place in (tmp_path, tmp_path / "dataset_coco.json"):
        refused(said, read_annotation_folder, place)


def test_no_ops_are_found_with_and_without_normalisation(tmp_path):
    originals = ("A cat  sits.", "A dog.", "A bird.", "A fish.")
    altered = ("A cat sits.", "a dog", "A bird , too.", None)
    write_annotation(tmp_path / "v.json", "v", [AlteredCaptions("a.jpg", originals, altered)], made_by={})
    pairs = [pair for _, *pair in altered_pairs(read_annotation(tmp_path / "v.json").items)]
    assert [is_no_op(*pair) for pair in pairs] == [True, False, False]
    assert [is_no_op(*pair, normalised=True) for pair in pairs] == [True, True, False]


@pytest.mark.parametrize(
    ("text", "normalised"),
    [
        ("A cat.", "a cat"),
        ("  A\tcat  sits . ", "a cat sits"),
        ("Really?!", "really"),
        ("a sink, and a mirror,", "a sink, and a mirror"),
        ("U.S. flag", "u.s. flag"),
        ("...", ""),
        ("", ""),
    ],
)
def test_normalisation_removes_only_case_and_final_punctuation(text, normalised):
    assert normalise_caption(text) == normalised
    assert normalise_caption(normalised) == normalised


@pytest.mark.real_data
def test_the_published_files_are_read_completely(published_set):
    found = published_set
    assert list(found.variants) == ["same_concept", "diff_concept", "rand_voca", "danger"]
    assert len(found.clean) == 5000 and sum(len(item.captions) for item in found.clean) == 25_010
    assert [path.name for path in found.ignored] == ["coco_karpathy_val.json"]
    for annotation in found.variants.values():
        altered = [text for item in annotation.items for text in item.altered]
        assert len(altered) == 25_010 and sum(text is None for text in altered) == 10
    assert sum(is_no_op(*pair) for _, *pair in altered_pairs(found.variants["danger"].items)) == 3
