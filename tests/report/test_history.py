"""A history has a line for each evaluation, by the date of the journal; its drawings have the same numbers."""

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from rococo_jax.cli import history
from tests.support.commands import run_command
from tests.support.pages import results_of
from tests.support.refusals import refused

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def nights(tmp_path) -> list[Path]:
    """Folders of four evaluations of two models, named in another order than that of their dates."""
    folders = []
    for night, date in enumerate(("2026-03-04", "2026-03-01", "2026-03-02", "2026-03-03")):
        folder = tmp_path / f"night-{night}"
        lines = []
        for model in ("a", "b"):
            results = results_of(model, clean=50.0 + int(date[-1]) + (10.0 if model == "b" else 0.0))
            if date == "2026-03-04":
                results["fingerprint"]["data"]["rococo"]["captions"] = "others"
            (folder / model).mkdir(parents=True)
            (folder / model / "results.json").write_text(json.dumps(results))
            lines.append(json.dumps({"time": f"{date}T02:00:00Z", "event": "evaluated", "model": model}))
        (folder / "journal.jsonl").write_text("\n".join(lines) + "\n")
        folders.append(folder)
    return [*folders[1:], folders[0]]


NUMBERS = "--numbers", "image_to_text/clean/r1,image_to_text/danger/fr1"


def test_evaluations_are_listed_oldest_first_and_changed_conditions_are_marked(nights, capsys):
    run_command(history, *nights, *NUMBERS)
    head, _, *lines = capsys.readouterr().out.splitlines()
    assert "Image to text, clean: R@1" in head and "Image to text, danger: FR@1" in head
    assert [line.split(" | ")[0] for line in lines] == [
        f"| 2026-03-0{day} 02:00" for day in (1, 2, 3, 4) for _ in ("a", "b")
    ]
    assert lines[0] == "| 2026-03-01 02:00 | a | 51.0 (47.7 to 54.1) | 15.4 (12.1 to 18.5) |  |"
    assert lines[7].endswith("| data.rococo.captions |") and "| 64.0 (" in lines[7]


def test_a_misspelt_metric_is_refused_with_the_nearest_name(nights):
    words = *nights, "--numbers", "image_to_text/clean/r2"
    refused("number: found 'image_to_text/clean/r2'.*did you mean image_to_text/clean/r", run_command, history, *words)
    refused("headlines: found none; wanted the numbers to show", run_command, history, *nights)


def test_the_chart_has_a_mark_with_its_number_for_each_evaluation(nights, tmp_path, capsys):
    paths = [tmp_path / f"{name}.svg" for name in ("one", "two")]
    for path in paths:
        run_command(history, *nights, *NUMBERS, "--chart", path)
    assert paths[0].read_bytes() == paths[1].read_bytes() and str(paths[0]) in capsys.readouterr().out
    chart = ElementTree.parse(paths[0])
    marks = [title.text for title in chart.iter(f"{SVG}title")][1:]
    assert len(marks) == 2 * 8 and "a, 2026-03-02: 52.0 48.7 to 55.1" in marks
    # In each panel two curves join three dates; the fourth has other data.
    lines = re.findall(r"<path [^>]*stroke-width: 1\.5", paths[0].read_text())
    assert len(lines) == 2 * 2 * 2


def test_the_badge_has_the_latest_number_of_one_model(nights, tmp_path):
    path = tmp_path / "badge.svg"
    run_command(history, *(night / "b" for night in nights), *NUMBERS, "--badge", path)
    badge = ElementTree.parse(path).getroot()
    assert [text.text for text in badge.iter(f"{SVG}text")] == ["R@1", "64.0 %"]
    assert "2026-03-04" in badge.get("aria-label") and "60.7 to 67.1" in badge.find(f"{SVG}title").text
    words = *nights, *NUMBERS, "--badge", tmp_path / "both.svg"
    refused("badge: models: found a, b; wanted results of one model", run_command, history, *words)
    assert not (tmp_path / "both.svg").exists()


def test_a_single_evaluation_has_a_chart(nights, tmp_path, capsys):
    run_command(history, nights[0] / "a", *NUMBERS, "--chart", tmp_path / "chart.svg")
    assert len([*ElementTree.parse(tmp_path / "chart.svg").iter(f"{SVG}title")]) == 1 + 2
    assert len(capsys.readouterr().out.splitlines()) == 4
