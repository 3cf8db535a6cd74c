"""`rococo verify` counts what is odd in annotations, agrees with what is known of the published ones, mends nothing."""

import hashlib
import json
import re

import pytest

from rococo_jax.benchmarks.rococo.annotations import AlteredCaptions, read_annotation_folder, write_annotation
from rococo_jax.benchmarks.rococo.audit import alphanumeric_runs, find_edits, inspect_annotations
from rococo_jax.cli.main import main
from rococo_jax.perturb.text.words import split_words


@pytest.fixture
def quirky(tmp_path):
    """Two images with one of every quirk."""
    items = [
        AlteredCaptions(
            "val2014/a.jpg",
            ("A man and a man walk.", "The ground in the background.", "A cat.", "A cat."),
            ("A criminal and a criminal walk .", "the france in the backfrance", "A  cat.", None),
        ),
        AlteredCaptions("val2014/b.jpg", ("A dog , a bird.", "a cat"), ("a dog a bird", "A cat.")),
    ]
    folder = tmp_path / "annotations"
    write_annotation(folder / "danger.json", "danger", items, made_by={})
    (tmp_path / "val2014").mkdir()
    (tmp_path / "val2014/a.jpg").write_bytes(b"")
    return folder


def test_every_quirk_is_counted(quirky, tmp_path):
    report = inspect_annotations(read_annotation_folder(quirky), tmp_path)
    clean, danger = report["clean"], report["variants"]["danger"]
    assert (clean["images"], clean["captions"], clean["captions_per_image"]) == (2, 6, {"2": 1, "4": 1})
    assert clean["words_per_caption"] == {"fewest": 2, "mean": 21 / 6, "most": 6}
    assert clean["ending_with_full_stop"] == 5 and clean["with_capital_letters"] == 5
    shared = {name: counts["texts_of_several_images"] for name, counts in clean["duplicates"].items()}
    assert shared == {"exact": 0, "normalised": 1, "words": 1}
    assert clean["duplicates"]["exact"]["texts_twice_in_one_image"] == 1
    assert clean["duplicates"]["exact"]["repetitions"] == 1 and clean["duplicates"]["words"]["repetitions"] == 2
    assert danger["altered"] == 5 and danger["originals_without_altered"] == 1
    assert danger["captions_per_image"] == {"4": 1, "7": 1}
    assert danger["ending_with_full_stop"] == 3 and danger["ending_with_space_and_full_stop"] == 1
    assert danger["no_ops"]["count"] == 1 and danger["no_ops_normalised"]["count"] == 2
    assert danger["same_as_some_original"] == {"exact": 1, "normalised": 2}
    assert danger["replaced_several_times"]["count"] == danger["replaced_inside_words"]["count"] == 1
    assert danger["replaced_inside_words"]["examples"][0]["altered"] == "the france in the backfrance"
    assert (report["images"]["present"], report["images"]["examples"]) == (1, ["val2014/b.jpg"])


@pytest.mark.parametrize(
    ("original", "altered", "several_times", "inside_words"),
    [
        ("A man.", "a criminal", False, False),
        ("A man and a woman.", "a dog and a wodog", False, True),
        ("A dog, a dog.", "a cat , a cat .", True, False),
        ("Two dogs.", "two cats", False, False),
        ("A man walks a dog.", "a woman walks a cat", False, False),
        ("A walking man takes a walk.", "a commiting crimeing man takes a commiting crime", False, True),
        ("The same.", "The same.", False, False),
        ("", "a cat", False, False),
    ],
)
def test_replacements_inside_words_and_in_several_places_are_told_apart(original, altered, several_times, inside_words):
    edits = find_edits(original, altered)
    assert (edits.several_times, edits.inside_words) == (several_times, inside_words)


def test_the_command_prints_a_table_and_writes_the_same_figures(quirky, tmp_path, capsys):
    before = (quirky / "danger.json").read_bytes()
    out = tmp_path / "verified.json"
    arguments = ["verify", "--annotations", str(quirky), "--images", str(tmp_path), "--out", str(out)]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert re.search(r"no-ops: say what their original says, word for word +1\n", printed)
    assert re.search(rf"danger\.json +variant +own +{len(before)} ", f"{printed}".replace(",", ""))
    assert f"Images: 1 of 2 are in {tmp_path}; missing: 1, such as val2014/b.jpg" in printed
    report = json.loads(out.read_text())
    assert report["files"][0]["sha256"] == hashlib.sha256(before).hexdigest()
    assert report["variants"]["danger"]["no_ops"]["count"] == 1
    assert (quirky / "danger.json").read_bytes() == before


def test_an_unusable_file_is_one_line_and_exit_code_2(quirky, tmp_path, capsys):
    (quirky / "danger.json").write_bytes((quirky / "danger.json").read_bytes()[:200])
    out = tmp_path / "verified.json"
    assert main(["verify", "--annotations", str(quirky), "--out", str(out)]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and not out.exists()
    assert captured.err.count("\n") == 1 and "danger.json: JSON" in captured.err
    assert main(["verify", "--annotations", str(tmp_path / "none")]) == 2


def test_clean_captions_alone_can_be_verified(tmp_path, capsys):
    (tmp_path / "captions.json").write_text(json.dumps([{"image": "a.jpg", "caption": ["A cat."]}]))
    assert main(["verify", "--annotations", str(tmp_path)]) == 0
    assert "Altered" not in capsys.readouterr().out


@pytest.mark.real_data
def test_the_published_files_have_the_quirks_that_are_known(published, real_data):
    report = inspect_annotations(published, real_data / "coco/images")
    clean, variants = report["clean"], report["variants"]
    assert (clean["images"], clean["captions"], clean["captions_per_image"]) == (5000, 25_010, {"5": 4990, "6": 10})
    assert clean["ending_with_full_stop"] == 18_822
    assert clean["duplicates"]["exact"]["repetitions"] == 155
    assert clean["duplicates"]["words"]["texts_of_several_images"] == 129
    assert {name: each["no_ops"]["count"] for name, each in variants.items()} == {
        "same_concept": 0,
        "diff_concept": 0,
        "rand_voca": 0,
        "danger": 3,
    }
    for name, each in variants.items():
        assert each["altered"] == 25_000 and each["captions_per_image"] == {"10": 4990, "11": 10}
        if name == "danger":
            # Danger keeps case, and nearly every one of its full stops has a space before it.
            assert each["with_capital_letters"] > 19_000 and each["ending_with_space_and_full_stop"] > 18_700
        else:
            assert each["ending_with_full_stop"] == 0 and each["with_capital_letters"] <= 5
        assert each["replaced_inside_words"]["count"] > 0 and each["replaced_several_times"]["count"] > 0
    examples = variants["rand_voca"]["replaced_inside_words"]["examples"]
    assert any("backfrance" in example["altered"] for example in examples)
    assert (report["images"]["present"], report["images"]["missing"]) == (281, 4719)
    roles = {each["name"]: each["role"] for each in report["files"]}
    assert roles["coco_karpathy_test.json"] == "clean" and roles["coco_karpathy_val.json"] == "ignored"


def test_an_audit_reads_published_and_original_spacing_alike():
    for text in ("A man's T-shirt, 2.5 m.", "a man 's T - shirt , 2 . 5 m"):
        assert alphanumeric_runs(text) == ["a", "man", "s", "t", "shirt", "2", "5", "m"]
    # `split_words` keeps compounds whole and drops the possessive, so that a word can be replaced.
    assert [word.text for word in split_words("A man's T-shirt, 2.5 m.")] == ["A", "man", "T-shirt", "2.5", "m"]
