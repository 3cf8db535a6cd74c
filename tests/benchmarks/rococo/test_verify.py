"""`rococo verify` counts what is odd in annotations, agrees with what is known of the published ones, mends nothing."""

import hashlib
import json

import pytest

from rococo_jax.benchmarks.audit import alphanumeric_runs, audit_captions, find_edits
from rococo_jax.benchmarks.rococo.annotations import AlteredCaptions, write_annotation
from rococo_jax.cli.main import main
from rococo_jax.perturb.text.words import split_words


@pytest.fixture
def quirky(tmp_path):
    """Two images with one of every quirk."""
    items = [
        AlteredCaptions(
            "val2014/a.jpg",
            ("A man and a man walk.", "The ground in the background.", "A cat.", "A cat."),
            ("A criminal and a criminal walk . ", "the france in the backfrance", "A  cat.", None),
        ),
        AlteredCaptions("val2014/b.jpg", ("A dog , a bird.", "a cat"), ("a dog a bird", "A cat.")),
    ]
    folder = tmp_path / "annotations"
    write_annotation(folder / "danger.json", "danger", items, made_by={})
    (tmp_path / "val2014").mkdir()
    (tmp_path / "val2014/a.jpg").write_bytes(b"")
    return folder


def counts(report, part):
    return {name: quirk["parts"][part]["count"] for name, quirk in report["quirks"].items() if part in quirk["parts"]}


def test_every_quirk_is_counted(quirky, tmp_path):
    report = audit_captions(quirky, tmp_path)
    assert report["parts"]["clean"]["texts"] == {"2": 1, "4": 1}
    assert report["parts"]["danger"]["texts"] == {"4": 1, "7": 1}
    clean = {"full_stop": 5, "space_and_full_stop": 0, "capitals": 5, "white_space": 0, "no_words": 0, "repeats": 1,
             "of_another_image": 1}  # fmt: skip
    danger = {"full_stop": 3, "space_and_full_stop": 1, "capitals": 3, "white_space": 2, "no_words": 0, "repeats": 0,
              "of_another_image": 1, "no_op": 1, "no_op_normalised": 2, "tie": 1, "tie_normalised": 2,
              "several_times": 1, "inside_words": 1}  # fmt: skip
    assert (counts(report, "clean"), counts(report, "danger")) == (clean, danger)
    (inside,) = report["quirks"]["inside_words"]["parts"]["danger"]["examples"]
    assert inside["texts"] == ["The ground in the background.", "the france in the backfrance"]
    assert (report["images"]["missing"], report["images"]["examples"]) == (1, ["val2014/b.jpg"])


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
def test_replacements_inside_words_and_in_several_places_are_recognised(original, altered, several_times, inside_words):
    edits = find_edits(original, altered)
    assert (edits.several_times, edits.inside_words) == (several_times, inside_words)


def test_the_command_prints_and_writes_the_same_numbers(quirky, tmp_path, capsys):
    before = (quirky / "danger.json").read_bytes()
    out = tmp_path / "verified.json"
    arguments = ["verify", "--annotations", str(quirky), "--images", str(tmp_path), "--out", str(out)]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert "  no-op: has its original's words: danger 1\n" in printed
    assert f"images missing in {tmp_path}: 1 of 2, such as val2014/b.jpg" in printed
    report = json.loads(out.read_text())
    assert report["hashes"] == {"danger.json": hashlib.sha256(before).hexdigest()}
    assert counts(report, "danger")["no_op"] == 1
    assert (quirky / "danger.json").read_bytes() == before


def test_an_unusable_file_is_reported_in_one_line_and_nothing_is_written(quirky, tmp_path, refusal):
    (quirky / "danger.json").write_bytes((quirky / "danger.json").read_bytes()[:200])
    out = tmp_path / "verified.json"
    error = refusal("verify", "--annotations", quirky, "--out", out)
    assert error.count("\n") == 1 and "danger.json: JSON" in error and not out.exists()
    assert "none" in refusal("verify", "--annotations", tmp_path / "none")


def test_clean_captions_alone_can_be_verified(tmp_path, capsys):
    (tmp_path / "captions.json").write_text(json.dumps([{"image": "a.jpg", "caption": ["A cat."]}]))
    assert main(["verify", "--annotations", str(tmp_path)]) == 0
    assert "altered" not in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.real_data
def test_the_published_files_have_their_known_quirks(real_data):
    report = audit_captions(real_data / "rococo/annotations", real_data / "coco/images")
    variants = {name: counts(report, name) for name in report["parts"]}
    clean = variants.pop("clean")
    assert report["parts"]["clean"]["texts"] == {"5": 4990, "6": 10}
    assert (clean["full_stop"], clean["repeats"], clean["of_another_image"]) == (18_822, 155, 184)
    no_ops = {name: each["no_op"] for name, each in variants.items()}
    assert no_ops == {"same_concept": 0, "diff_concept": 0, "rand_voca": 0, "danger": 3}
    # Case and final punctuation hide no other: `strict` leaves out these three.
    assert variants["danger"]["no_op_normalised"] == 3
    for name, each in variants.items():
        assert report["parts"][name]["texts"] == {"10": 4990, "11": 10}
        if name == "danger":
            # Danger keeps case, and nearly every one of its full stops has a space before it.
            assert each["capitals"] > 19_000 and each["space_and_full_stop"] > 18_700
        else:
            assert each["full_stop"] == 0 and each["capitals"] <= 5
        assert each["inside_words"] > 0 and each["several_times"] > 0
    examples = report["quirks"]["inside_words"]["parts"]["rand_voca"]["examples"]
    assert any("backfrance" in example["texts"][1] for example in examples)
    assert report["images"]["named"] - report["images"]["missing"] == 281
    assert report["ignored"] == ["coco_karpathy_val.json"]


def test_an_audit_reads_published_and_original_spacing_alike():
    for text in ("A man's T-shirt, 2.5 m.", "a man 's T - shirt , 2 . 5 m"):
        assert alphanumeric_runs(text) == ["a", "man", "s", "t", "shirt", "2", "5", "m"]
    # `split_words` keeps compounds whole and drops the possessive, so that a word can be replaced.
    assert [word.text for word in split_words("A man's T-shirt, 2.5 m.")] == ["A", "man", "T-shirt", "2.5", "m"]
