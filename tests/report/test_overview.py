"""One screen on several models: its numbers, stars and words are those of the results and of `compare --json`."""

import json
import re
import shutil
import sys

import pytest

from rococo_jax.cli.main import main
from rococo_jax.evaluation.results import read_results
from rococo_jax.report.collection import group_by_fingerprint, load_results
from rococo_jax.report.comparison import compare_groups
from rococo_jax.report.overview import overview_lines
from tests.report.test_classes import save as classes_run
from tests.report.test_kinds import choice_run
from tests.support.made_runs import make_run
from tests.support.terminal import in_terminal

LONG = "an-organisation-with-a-name/a-model-with-a-very-long-name-indeed-number-1"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("overview")
    made = (("worst", 2.2, 1), ("base", 1.0, 0), ("same", 1.0, 2), (LONG, 1.4, 3))
    return [make_run(folder / str(number), name, noise, seed) for number, (name, noise, seed) in enumerate(made)]


def lines_of(folders, width=80, reference=None):
    groups = group_by_fingerprint(load_results(folders))
    return overview_lines(groups, compare_groups(groups, reference), width)


def test_numbers_and_stars_match_the_results_and_differences(folders, capsys):
    assert main(["compare", *map(str, folders), "--reference", "base"]) == 0
    text = capsys.readouterr().out
    assert main(["compare", *map(str, folders), "--reference", "base", "--json"]) == 0
    rows = {(row["model"], row["variant"], row["metric"]): row for row in json.loads(capsys.readouterr().out)
            if row["task"] == "image_to_text"}  # fmt: skip
    table = text.partition("Text to image:")[0].splitlines()
    for folder in folders:
        results = read_results(folder / "results.json")
        model, tasks = results["model"], results["tasks"]["image_to_text"]
        start = "a-model-with-" if model == LONG else f"{model} "
        (line,) = [line for line in table if line.startswith(start)]
        cells = line.split()[1:]
        fooled = [tasks[name]["fr1"] for name in ("same_concept", "danger")]
        assert float(cells.pop(0)) == pytest.approx(tasks["clean"]["r1"], abs=0.05)
        if model != "base":
            row = rows[model, "clean", "r1"]
            assert cells.pop(0).endswith("*") == (row["verdict"] in ("better", "worse"))
        assert float(cells.pop(0)) == pytest.approx(sum(fooled) / 2, abs=0.05)
        for variant, value in zip(("same_concept", "danger"), fooled, strict=True):
            cell = cells.pop(0)
            assert float(cell.rstrip("*")) == pytest.approx(value, abs=0.05)
            verdict = rows[model, variant, "fr1"]["verdict"] if model != "base" else ""
            assert cell.endswith("*") == (verdict in ("better", "worse"))
        for metric in ("blind", "grounding"):
            mean = sum(tasks[name][metric] for name in ("same_concept", "danger")) / 2
            assert float(cells.pop(0).rstrip("!")) == pytest.approx(mean, abs=0.05)
    assert re.search(r"^worst: .*clean R@1 worse", text, re.MULTILINE)


@pytest.mark.parametrize("width", [80, 120])
def test_lines_fit_the_terminal_without_breaking_a_word(folders, width):
    lines = lines_of(folders, width)
    assert max(map(len, lines)) <= width and len(lines) <= 40
    # A task with one altered variant has the shortest table.
    assert sum(bool(re.search(r"fooled \(FR@1\) +looks\?", line)) for line in lines) == 2
    words = set(" ".join(lines_of(folders, 10_000)).split())
    allowed = words | {word for word in " ".join(lines).split() if "…" in word}
    assert set(" ".join(lines).split()) <= allowed


def test_the_reference_comes_first_and_the_others_in_command_line_order(folders):
    text = "\n".join(lines_of(folders, 200, "same"))
    table = text.partition("Text to image:")[0]
    names = [line.split()[0] for line in table.splitlines()[3:7]]
    assert names[:3] == ["same", "worst", "base"]


@pytest.mark.slow
def test_many_models_have_a_sentence_for_each_verdict(tmp_path):
    made = [make_run(tmp_path / str(number), f"model-{number}", 1.0 + number / 8, number) for number in range(11)]
    text = "\n".join(lines_of(made))
    assert re.search(r"clean R@1 worse: \d+ of 10 models", text) and "model-3: " not in text


def test_models_at_chance_have_no_verdict_and_are_mentioned_first(tmp_path):
    made = [make_run(tmp_path / name, name, noise=60.0, seed=seed) for seed, name in enumerate(("blind", "deaf"))]
    lines = lines_of(made)
    place = next(number for number, line in enumerate(lines) if line.startswith("blind, deaf: clean R@1 is no better"))
    assert place < next(number for number, line in enumerate(lines) if "fooled (FR@1)" in line)
    assert any(line.startswith("deaf: fooled: not meaningful") for line in lines)
    assert not any("fooled less" in line or "fooled more" in line for line in lines)


def test_results_under_other_conditions_are_separate_with_the_fields_that_differ(folders, tmp_path):
    shutil.copytree(folders[1], tmp_path / "strict")
    results = json.loads((tmp_path / "strict" / "results.json").read_text())
    results["protocol"], results["model"] = "strict", "strict-base"
    results.pop("sha256", None)
    (tmp_path / "strict" / "results.json").write_text(json.dumps(results))
    lines = lines_of([*folders, tmp_path / "strict"])
    place = lines.index("Under other conditions (protocol):")
    assert "strict-base" in " ".join(lines[place:]) and "strict-base" not in " ".join(lines[:place])


def test_results_with_only_choices_or_classes_show_their_headlines(tmp_path):
    for number, name in enumerate(("one", "two")):
        choice_run(tmp_path / "choice" / name, name, 40 + 30 * number, number)
        classes_run(tmp_path / "classes", name, number)
    text = "\n".join(lines_of([tmp_path / "choice"]))
    values = [read_results(tmp_path / "choice" / name / "results.json")["tasks"]["sugarcrepe"]["mean"]["ota"]
              for name in ("one", "two")]  # fmt: skip
    assert "SugarCrepe" in text and all(f"{value:.1f}" in text for value in values)
    assert re.search(r"^two: SugarCrepe better", text, re.MULTILINE)
    assert "Top-1" in "\n".join(lines_of([tmp_path / "classes"]))


@pytest.mark.slow
def test_the_table_of_all_differences_fits_80_columns_without_breaking_a_word(folders):
    words = [sys.executable, "-m", "rococo_jax", "compare", *map(str, folders), "--all"]
    lines = in_terminal(words, 80).splitlines()
    assert max(map(len, lines)) <= 80
    text = " ".join(lines)
    for word in ("Same", "concept,", "Grounding", "Difference", "undecided", "Verdict"):
        assert word in text.split()
    assert re.search(r"\d+\.\d+ to [+−]?\d+\.\d+", lines[5])
