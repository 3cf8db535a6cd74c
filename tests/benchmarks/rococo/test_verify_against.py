"""`rococo verify --against` compares two sets of altered captions: words, concepts, vocabulary, length, no-ops."""

import json
import re

import pytest

from rococo_jax.benchmarks.rococo.annotations import AlteredCaptions, read_annotation_folder, write_annotation
from rococo_jax.benchmarks.rococo.caption_diff import compare_annotations
from rococo_jax.cli.main import main
from rococo_jax.perturb.text.lexicon import Lexicon, shipped_lexicon

ORIGINALS = ("A dog on a bench.", "A man near a boat.", "A cat.", "A cat.", "Nothing to see.")
# Same word and same replacement; another word; a no-op beside a true change; left alone on one side; on both.
FIRST = ("A cat on a bench.", "A woman near a boat.", "a cat", "A dog.", None)
SECOND = ("a cat on a bench", "a man near a kitchen", "a horse", None, None)


def folder(path, **variants):
    for variant, items in variants.items():
        made = [AlteredCaptions(image, originals, altered) for image, originals, altered in items]
        write_annotation(path / f"{variant}.json", variant, made, made_by={})
    return path


@pytest.fixture
def two(tmp_path):
    alone = ("b.jpg", ("A bus.",), ("A car.",))
    first = folder(tmp_path / "first", danger=[alone], same_concept=[("a.jpg", ORIGINALS, FIRST)])
    (first / "danger.json").unlink()
    # In another order, the two cats as they were.
    originals, altered = zip(*((ORIGINALS[i], SECOND[i]) for i in (4, 1, 2, 3, 0)), strict=True)
    second = folder(tmp_path / "second", same_concept=[alone, ("a.jpg", originals, altered)])
    return first, second


def compare(two, lexicon=None):
    sets = map(read_annotation_folder, two)
    return compare_annotations(*sets, lexicon or shipped_lexicon(), two[1])["same_concept"]


def test_words_concepts_vocabulary_length_and_no_ops_are_counted(two):
    found = compare(two)
    # The originals are matched by image and text, whatever their order; the two cats one after the other.
    assert (found["captions"], found["altered_by_both"], found["comparable"]) == (5, 3, 2)
    assert (found["altered_by_first_only"], found["altered_by_second_only"]) == (1, 0)
    assert found["same_word"] == {"count": 1, "of": 2, "percent": 50.0}
    assert found["same_replacement"] == {"count": 1, "of": 1, "percent": 100.0}
    # cat and cat; woman and kitchen. man -> woman keeps the concept, boat -> kitchen does not.
    assert found["same_concept"]["count"] == 1 and found["same_concept"]["of"] == 2
    assert [side["count"] for side in found["concept_kept"]] == [2, 1]
    assert found["vocabulary"]["words"] == [2, 2] and found["vocabulary"]["shared"] == 1
    assert found["vocabulary"]["jaccard"] == {"count": 1, "of": 3, "percent": pytest.approx(100 / 3)}
    assert found["length"]["words"] == [12 / 3, 12 / 3]
    assert found["length"]["characters"] == [(17 + 20 + 5) / 3, (16 + 20 + 7) / 3]
    assert found["no_ops"] == [1, 0]
    assert found["examples"] == [{"image": "a.jpg", "original": ORIGINALS[1], "replaced": ["man", "boat"]}]


def test_a_set_agrees_with_itself(two):
    found = compare((two[0], two[0]))
    assert found["same_word"]["percent"] == found["same_replacement"]["percent"] == 100
    assert found["vocabulary"]["jaccard"]["percent"] == found["same_concept"]["percent"] == 100


def test_concepts_are_those_of_the_lexicon_asked_for(two, tmp_path, capsys):
    groups = [{"concept": "all", "nouns": ["dog", "cat", "man", "woman", "boat", "kitchen"]}]
    lexicon = {"format": "rococo_jax.lexicon", "version": 1, "groups": groups}
    assert compare(two, Lexicon.from_json(lexicon))["same_concept"]["percent"] == 100
    (tmp_path / "nouns.json").write_text(json.dumps(lexicon))
    arguments = ["verify", "--annotations", str(two[0]), "--against", str(two[1])]
    assert main([*arguments, "--lexicon", str(tmp_path / "nouns.json")]) == 0
    assert re.search(r"new words of one concept +100\.0 %", capsys.readouterr().out)


def test_the_command_prints_the_comparison_and_writes_it(two, tmp_path, capsys):
    out = tmp_path / "verified.json"
    assert main(["verify", "--annotations", str(two[0]), "--against", str(two[1]), "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"same word replaced +50\.0 %", printed) and f"Compared with {two[1]}" in printed
    report = json.loads(out.read_text())["comparison"]
    assert report["against"] == str(two[1]) and report["variants"]["same_concept"] == compare(two)


def test_sets_with_nothing_in_common_and_a_lexicon_without_a_second_set_are_refused(two, tmp_path, capsys):
    others = folder(tmp_path / "others", same_concept=[("c.jpg", ("A bus.",), ("A car.",))])
    variants = folder(tmp_path / "variants", danger=[("a.jpg", ORIGINALS, FIRST)])
    out = tmp_path / "verified.json"
    for arguments in (
        ["--against", str(others)],
        ["--against", str(variants)],
        ["--against", str(tmp_path / "none")],
        ["--lexicon", str(tmp_path / "nouns.json")],
    ):
        assert main(["verify", "--annotations", str(two[0]), "--out", str(out), *arguments]) == 2
        captured = capsys.readouterr()
        assert captured.out == "" and captured.err.count("\n") == 1 and not out.exists()


@pytest.mark.thorough
@pytest.mark.real_data
def test_published_variants_replace_the_same_words_as_each_other(real_data, tmp_path):
    published = real_data / "rococo" / "annotations"
    renamed = json.loads((published / "diff_concept.json").read_text())
    for name, value in (
        ("coco_karpathy_test", json.loads((published / "coco_karpathy_test.json").read_text())),
        ("same_concept", renamed),
    ):
        (tmp_path / f"{name}.json").write_text(json.dumps(value))
    found = compare((published, tmp_path))
    assert found["captions"] == 25_010 and found["altered_by_both"] == 25_000
    # The choice of word is a property of the caption (all four variants made the same one in 21,889 of 25,000, 87.6 %),
    # the concept is the variant's.
    assert found["same_word"]["percent"] > 87.6
    assert found["concept_kept"][0]["percent"] > 3 * found["concept_kept"][1]["percent"]
