"""Published results of people: a marked row of tables, apart from ranks, tests and the CSV."""

import csv
import json
import re

import pytest

from rococo_jax.benchmarks.benchmark import find_benchmark, human_results, known_benchmarks
from rococo_jax.cli.main import main
from rococo_jax.evaluation.counts import row_table, rows_of_outcomes
from rococo_jax.evaluation.results import per_query_table, with_checksum, write_per_query
from rococo_jax.evaluation.summary import print_summary
from rococo_jax.metrics import METRICS
from rococo_jax.storage import write_json
from tests.support.paths import CHECKOUT
from tests.support.planted_winoground import ITEMS, planted_winoground

SOURCE = "crowd workers, tables 3 and 4 of arXiv 2204.03162"
SCORES = ("text_score", "image_score", "group_score")


def save(folder, planted):
    write_json(folder / "results.json", with_checksum(planted.results))
    rows = [row_table("winoground", each, planted.benchmark) for each in rows_of_outcomes(planted.outcomes)]
    write_per_query(folder / "per_query.parquet", per_query_table(rows))


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Results of two models on Winoground in folders."""
    folder = tmp_path_factory.mktemp("humans")
    for name, right in (("weak", 8), ("strong", 20)):
        counts = {"Object": right, "Relation": right, "Both": right}
        save(folder / "out" / name, planted_winoground(folder / "data" / name, counts, name=name))
    return folder / "out"


def test_human_results_of_winoground_parts_add_up_to_that_of_all_items():
    """The paper prints both; a typing error in one of the twelve numbers would break the sum."""
    (humans,) = find_benchmark("winoground").humans
    parts = {tag.lower(): count for tag, count in ITEMS.items()}
    for name in SCORES:
        mean = sum(humans.values[part][name] * count for part, count in parts.items()) / sum(parts.values())
        # Each printed number is rounded to two decimals.
        assert mean == pytest.approx(humans.values["all"][name], abs=0.01), name


def test_human_results_of_vismin_categories_have_the_mean_of_the_source():
    (humans,) = find_benchmark("vismin").humans
    values = [humans.values[part][name] for part in find_benchmark("vismin").reader.parts for name in SCORES]
    assert len(values) == 12 and sum(values) / 12 == pytest.approx(86.54, abs=0.005)


def test_every_human_result_has_a_source_and_is_documented():
    page = (CHECKOUT / "docs/reference/scoring.md").read_text()
    section = page.partition("## Results of people")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    for name, info in known_benchmarks().items():
        for humans in info.humans:
            (row, *_) = [line for line in rows if f"`{name}`" in line and (not humans.task or humans.task in line)]
            assert humans.items in row and (humans.source in row or "the same" in row)
            assert (humans.task or name) in info.tasks
            numbers = {float(number) for number in re.findall(r"\d+(?:\.\d)?", row)}
            for values in humans.values.values():
                assert values.keys() <= METRICS.keys()
                assert {round(value + 1e-9, 1) for value in values.values()} <= numbers, (name, values, numbers)


def test_human_results_end_the_tables_of_the_page_and_are_not_ranked(models, tmp_path, monkeypatch):
    assert main(["report", str(models), "--out", str(tmp_path / "with.html")]) == 0
    with monkeypatch.context() as patch:
        patch.setattr("rococo_jax.report.tables.human_results", lambda results: {})
        assert main(["report", str(models), "--out", str(tmp_path / "without.html")]) == 0
    rows = [path.with_suffix(".csv").read_text() for path in (tmp_path / "with.html", tmp_path / "without.html")]
    assert rows[0] == rows[1] and "uman" not in rows[0]
    assert {row["model"] for row in csv.DictReader(rows[0].splitlines())} == {"weak", "strong"}
    with_humans, without = ((tmp_path / name).read_text().splitlines() for name in ("with.md", "without.md"))
    first, board = (place for place, line in enumerate(with_humans) if line.startswith("| Humans (on all 400 items)"))
    assert "| 85.5 |" in with_humans[first] and with_humans[first - 1].startswith("| weak")
    leaderboard_note = with_humans.index(f"Humans, Winoground: on all 400 items ({SOURCE}).")
    del with_humans[leaderboard_note : leaderboard_note + 2]
    board -= 2
    added = [line for line in with_humans if line.startswith("| Humans")]
    assert with_humans[board - 2].startswith("| strong") and with_humans[board - 1].startswith("| weak")
    assert "| 85.5 | 89.5 | 88.5 |" in with_humans[board] and "(table" not in with_humans[board]
    note = f" Humans: on all 400 items ({SOURCE})."
    note += " They are a reference, and are not ranked or tested."
    assert [line.replace(note, "") for line in with_humans if line not in added] == without
    html = (tmp_path / "with.html").read_text()
    foots = re.findall(r"<tfoot>.*?</tfoot>", html, re.DOTALL)
    assert sum(foot.count("<tr>") for foot in foots) == len(added)
    assert "Humans" not in "".join(re.findall(r"<tbody>.*?</tbody>", html, re.DOTALL))


def test_the_terminal_names_the_items_even_if_fewer_were_evaluated(tmp_path, capsys):
    few = planted_winoground(tmp_path, {"Object": 1, "Relation": 2, "Both": 1}, {"Object": 5, "Relation": 6, "Both": 4})
    print_summary([few.results])
    lines = [*map(str.strip, capsys.readouterr().out.splitlines())]
    (row,) = [line.split() for line in lines if line.startswith("(humans)") and " all (" in line]
    assert row == "(humans) winoground all (on all 400 items) 85.5 89.5 88.5".split()
    assert f"humans: winoground: on all 400 items ({SOURCE})" in lines
    assert len([line for line in lines if line.startswith("(humans)")]) == 4


def test_results_of_other_benchmarks_have_no_human_results(models):
    results = json.loads((models / "weak" / "results.json").read_text())
    assert human_results(results) and "mean" not in human_results(results)["winoground"].values
    assert human_results(results | {"benchmarks": {"mine": {}}}) == {}
    assert human_results({"tasks": {"sugarcrepe": {}}}) == {}
