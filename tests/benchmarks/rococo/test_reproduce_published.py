"""`rococo verify --published` tells results that agree with the published figures from others, line by line."""

import copy
import json

import pytest

from rococo_jax.benchmarks.rococo.reproduce_published import LINES, METRICS
from rococo_jax.cli.main import main

VARIANTS = ("clean", "danger", "rand_voca", "same_concept")  # no order in which the unnamed lines could be meant


def results() -> dict:
    """Results that are the published figures, the unnamed lines in another order, with one more variant."""
    lines = [LINES[0], LINES[2], LINES[1], LINES[3]]
    to_text = {name: figures(line) for name, line in zip(VARIANTS, lines, strict=True)}
    to_text["diff_concept"] = figures(LINES[1]) | {"r1": 36.0}
    sizes = {name: {"queries": 5000, "gallery": 50_010} for name in to_text} | {
        "clean": {"queries": 5000, "gallery": 25_010}
    }
    clean = figures(LINES[0]) | {"r1": 30.0}
    return {
        "format": "rococo_jax.results",
        "version": 2,
        "model": "clip-b32",
        "protocol": "paper",
        "fingerprint": {},
        "tasks": {"image_to_text": to_text, "text_to_image": {"clean": clean, "mix_0.9": figures(LINES[4])}},
        "intervals": {},
        "sizes": {
            "image_to_text": sizes,
            "text_to_image": {
                "clean": {"queries": 25_010, "gallery": 5000},
                "mix_0.9": {"queries": 25_010, "gallery": 10_000},
            },
        },
        "data": {"rococo": {"image_count": 5000, "coverage": {"present": 5000, "wanted": 5000, "complete": True}}},
    }


def figures(line) -> dict[str, float]:
    told = {name: getattr(line, name) for name in METRICS}
    split = {"top1_own": 0.0, "top1_own_altered": 0.0, "top1_other_altered": 0.0, "top1_other": 0.0}
    return told | {"r_mean": (line.r1 + line.r5 + line.r10) / 3} | split


def verify(tmp_path, capsys, made: dict) -> tuple[int, str, str]:
    path = tmp_path / "results.json"
    path.write_text(json.dumps(made))
    code = main(["verify", "--published", str(path)])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_published_figures_match_in_whatever_order_the_unnamed_lines_come(tmp_path, capsys):
    code, out, _ = verify(tmp_path, capsys, results())
    assert code == 0
    assert "5 of 5 published lines match" in out and "DIFFERS" not in out and "diff_concept" not in out


@pytest.mark.parametrize(("points", "code"), [(0.1, 0), (-0.1, 0), (0.11, 1), (-0.5, 1)])
def test_a_tenth_of_a_point_is_the_limit(points, code, tmp_path, capsys):
    made = results()
    made["tasks"]["image_to_text"]["clean"]["r5"] += points
    found, out, _ = verify(tmp_path, capsys, made)
    assert found == code
    assert ("DIFFERS in R@5" in out) == bool(code)
    assert f"{4 if code else 5} of 5 published lines match" in out


def test_a_difference_is_told_with_its_line_and_the_others_still_match(tmp_path, capsys):
    made = results()
    made["tasks"]["text_to_image"]["mix_0.9"] |= {"r1": 19.0, "fr1": 40.0}
    code, out, _ = verify(tmp_path, capsys, made)
    assert code == 1
    assert "DIFFERS in R@1, FR@1" in out and "-0.84" in out and "+2.98" in out
    assert "4 of 5 published lines match" in out


def test_a_variant_that_was_not_run_is_missing_and_no_match(tmp_path, capsys):
    made = results()
    del made["tasks"]["text_to_image"]
    code, out, _ = verify(tmp_path, capsys, made)
    assert code == 1 and "MISSING" in out and "4 of 5 published lines match" in out


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"protocol": "strict"}, "protocol: found strict; wanted paper"),
        (
            {"data": {"rococo": {"image_count": 281, "coverage": {"wanted": 5000, "complete": False}}}},
            "281 of 5000 images",
        ),
        ({"data": {"rococo": {"image_count": 1000}}}, "1000 of 5000 images"),
        ({"sizes": None}, "sizes: found nothing"),
        ({"sizes": {"image_to_text": {"danger": {"queries": 5000, "gallery": 50_007}}}}, "50007 gallery"),
    ],
)
def test_results_of_other_conditions_are_refused_in_one_line(change, named, tmp_path, capsys):
    code, out, error = verify(tmp_path, capsys, copy.deepcopy(results()) | change)
    assert code == 2 and out == ""
    assert named in error and len(error.strip().splitlines()) == 1


def test_without_annotations_and_results_there_is_nothing_to_verify(tmp_path, refusal):
    assert "--annotations" in refusal("verify")
    assert "nothing there" in refusal("verify", "--published", tmp_path / "none.json")
