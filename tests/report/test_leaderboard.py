"""The leaderboard: declared columns, ranks that agree with the rows, sections, facts, and every format."""

import csv
import json
import re
import shutil
import subprocess

import numpy as np
import pytest

import rococo_jax
from rococo_jax.cli.main import main
from rococo_jax.evaluation.results import with_checksum
from rococo_jax.metrics.ranks import ranks, significant_differences
from rococo_jax.report import write_report
from rococo_jax.report.blocks import Cell, Head, Table
from rococo_jax.report.latex import escaped, latex_table
from tests.report.test_classes import save as classes_run
from tests.report.test_humans import save as save_planted
from tests.support.made_runs import make_run
from tests.support.pages import results_of, save
from tests.support.planted_winoground import planted_winoground
from tests.support.refusals import refused

NOISE = {"good_model": 0.5, "poor & 1%": 2.2, "middle": 1.2, "twin": 0.5}
HEADLINE = "image_to_text/clean/r1"
# Everything that LaTeX treats as a command, what it cannot write, and what begins an argument of the row above.
NASTY = '[a]_b%c&d#e~f^g\\h{i}$j−k–l\u00a0m<n>|o" *é中`p--q'


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for place, (name, noise) in enumerate(NOISE.items()):
        make_run(folder / f"{place}", name, noise, seed=0 if name == "twin" else place)
    return folder


@pytest.fixture(scope="module")
def frame(runs):
    return rococo_jax.leaderboard(runs)


def printed(capsys, *arguments) -> str:
    assert main(["leaderboard", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def test_columns_are_declared_headlines_with_the_numbers_of_the_results(runs, frame):
    long = rococo_jax.read_results(runs).set_index(["model", "task", "variant", "metric"])
    columns = [
        name for name in frame.columns if name.count("/") == 2 and not re.search("_(low|high|sd|n|groups)$", name)
    ]
    # Each task's headline, and FR@1 of its first altered variant; never the one with the largest value.
    assert columns == [f"{task}/{variant}" for task, variants in (
        ("image_to_text", ("clean/r1", "same_concept/fr1")), ("text_to_image", ("clean/r1", "mix_0.9/fr1"))
    ) for variant in variants]  # fmt: skip
    for row in frame.to_dict("records"):
        for column in columns:
            expected = long.loc[(row["model"], *column.split("/"))]
            numbers = [row[column], row[f"{column}_low"], row[f"{column}_high"], row[f"{column}_n"]]
            assert numbers == [expected.value, expected.low, expected.high, expected.n]
    assert list(frame[HEADLINE]) == sorted(frame[HEADLINE], reverse=True) and len(frame) == len(NOISE)


def test_ranks_and_groups_follow_from_the_rows(runs, frame):
    rows = rococo_jax.read_rows(runs)
    right = rows[(rows.task == "image_to_text") & (rows.variant == "clean")].pivot(index="image", columns="model")["r1"]
    scores = 100.0 * right[list(frame.model)].to_numpy(float)
    expected = ranks(scores.mean(axis=0), significant_differences(scores.mean(axis=0), scores))
    names = [f"{HEADLINE}_{end}" for end in ("rank_low", "rank_high", "groups")]
    assert [tuple(row) for row in frame[names].to_numpy()] == [(each.low, each.high, each.letters) for each in expected]
    assert len({each.letters for each in expected}) > 1
    # A metric whose lower end is better: the smallest FR@1 can be first.
    fooled = frame.set_index("model")["image_to_text/same_concept/fr1"]
    assert frame.set_index("model")["image_to_text/same_concept/fr1_rank_low"][fooled.idxmin()] == 1


def test_two_models_have_no_ranks_and_a_note_reports_models_without_rows(runs, tmp_path, capsys):
    two = rococo_jax.leaderboard([runs / "0", runs / "1"])
    assert not [name for name in two if "rank" in name]
    for place in "0123":
        shutil.copytree(runs / place, tmp_path / place)
    (tmp_path / "2" / "per_query.parquet").unlink()
    text = printed(capsys, tmp_path)
    assert "No rank interval, because there are no counts of single queries or items: middle in Image to text" in text
    frame = rococo_jax.leaderboard(tmp_path).set_index("model")
    assert np.isnan(frame[f"{HEADLINE}_rank_low"]["middle"]) and frame[f"{HEADLINE}_rank_high"].max() == 3


def test_results_under_other_conditions_are_ranked_apart(runs, tmp_path, capsys):
    for place in "0123":
        shutil.copytree(runs / place, tmp_path / place)
    path = tmp_path / "3" / "results.json"
    results = json.loads(path.read_text())
    results["fingerprint"]["data"]["rococo"]["captions"] = "other"
    path.write_text(json.dumps(results))
    frame = rococo_jax.leaderboard(tmp_path)
    assert dict(zip(frame.model, frame.section, strict=True)) == {**dict.fromkeys([*NOISE][:3], 1), "twin": 2}
    assert frame[f"{HEADLINE}_rank_high"].max() == 3
    text = printed(capsys, tmp_path)
    assert "Leaderboard, section 2" in text and "Not comparable with section 1: data.rococo.captions differ." in text


def test_metrics_without_counts_or_a_best_value_have_no_rank_and_a_note_reports_it(tmp_path, capsys):
    headline = {"variant": "clean", "metric": "shape_bias", "pooling": "items", "source": "a paper"}
    for number in range(3):
        classes_run(tmp_path, f"model-{number}", number, corrupted=False)
        path = tmp_path / f"model-{number}" / "results.json"
        results = json.loads(path.read_text())
        path.write_text(json.dumps(with_checksum({**results, "headlines": {"cues": headline}})))
    frame = rococo_jax.leaderboard(tmp_path)
    assert {name for name in frame if name.endswith("rank_low")} == {"pets/clean/top1_rank_low"}
    text = printed(capsys, tmp_path)
    assert "No rank interval, because neither end is better: Cues Shape bias." in text
    assert "fewer than three models have counts of the same queries or items: Pets ood AUROC, MCM." in text


def test_facts_from_csv_or_json_are_shown_as_columns(runs, tmp_path, capsys):
    table = tmp_path / "facts.csv"
    table.write_text(
        "model,parameters,data\n" + "".join(f"{name},{place}5,x_{place}\n" for place, name in enumerate(NOISE))
    )
    listed = tmp_path / "facts.json"
    listed.write_text(
        json.dumps({name: {"parameters": int(f"{n}5"), "data": f"x_{n}"} for n, name in enumerate(NOISE)})
    )
    for path in (table, listed):
        frame = rococo_jax.leaderboard(runs, facts=path).set_index("model")
        assert dict(frame.parameters) == {name: float(f"{place}5") for place, name in enumerate(NOISE)}
        assert frame.data["middle"] == "x_2"
    assert "x\\_2" in printed(capsys, runs, "--facts", listed)
    listed.write_text(json.dumps([{"model": "middle", "data": "a"}]))
    refused("no row for", rococo_jax.leaderboard, runs, facts=listed)
    listed.write_text("[1]")
    refused("a list of objects", rococo_jax.leaderboard, runs, facts=listed)


def test_every_format_has_the_same_numbers(runs, frame, tmp_path, capsys):
    columns = list(csv.DictReader(printed(capsys, runs, "--format", "csv").splitlines()))
    listed = json.loads(printed(capsys, runs, "--format", "json"))
    assert printed(capsys, runs, "--format", "csv", "--out", tmp_path / "l.csv") == ""
    assert list(csv.DictReader((tmp_path / "l.csv").open())) == columns
    for row, from_csv, from_json in zip(frame.to_dict("records"), columns, listed, strict=True):
        assert list(row) == list(from_csv) == list(from_json)
        assert float(from_csv[HEADLINE]) == from_json[HEADLINE] == row[HEADLINE]
    for name in ("markdown", "table", "latex"):
        text = printed(capsys, runs, "--format", name)
        for row in listed:
            assert f"{row[HEADLINE]:.1f}" in text and "(simultaneous 95 % interval)" in text.replace("\\%", "%")


@pytest.mark.slow
def test_human_results_have_a_row_that_is_neither_ranked_nor_in_files(tmp_path, capsys):
    for name, right in (("a", 8), ("b", 20), ("c", 21)):
        counts = dict.fromkeys(("Object", "Relation", "Both"), right)
        save_planted(tmp_path / "out" / name, planted_winoground(tmp_path / "data" / name, counts, name=name))
    lines = printed(capsys, tmp_path / "out").splitlines()
    (row,) = [line for line in lines if line.startswith("| Humans")]
    assert "85.5" in row and "Humans" not in printed(capsys, tmp_path / "out", "--format", "csv")
    assert set(rococo_jax.leaderboard(tmp_path / "out")["winoground/all/group_score_rank_high"]) <= {1, 2, 3}


def test_the_leaderboard_is_the_first_table_of_a_page_of_several_models(runs, tmp_path):
    assert main(["report", str(runs), "--out", str(tmp_path / "r.html")]) == 0
    page = (tmp_path / "r.html").read_text()
    assert re.search(r"<caption[^>]*>(.*?)</caption>", page)[1] == "Leaderboard"
    assert main(["report", str(runs / "0"), "--out", str(tmp_path / "one.html")]) == 0
    assert "Leaderboard" not in (tmp_path / "one.html").read_text()


def latex_words(text: str) -> str:
    """Read LaTeX as its scanner does: groups are balanced, and no special character is bare. Returns the words."""
    words, depth, place = "", 0, 0
    while place < len(text):
        letter = text[place]
        if letter == "\\":
            command = re.compile(r"\\([A-Za-z]+|.)", re.DOTALL).match(text, place)
            words += command[1] if command[1] in set("&%$#_{}") else " "
            place = command.end()
            continue
        assert letter not in "#~^_" or letter == "~" or text.count("$", 0, place) % 2, text[place - 20 : place + 5]
        depth += {"{": 1, "}": -1}.get(letter, 0)
        assert depth >= 0
        words += letter
        place += 1
    assert depth == 0 and text.count("$") % 2 == text.count(r"\$") % 2
    return words


def test_latex_escapes_special_characters_and_has_one_cell_per_column(runs, capsys):
    table = Table(NASTY, [Head(NASTY, words=True), Head("x")], [[Cell(NASTY), Cell("−1.0", (NASTY,), strong=True)]])
    for text in (latex_table(table), printed(capsys, runs, "--format", "latex"), compared(capsys, runs)):
        without_comment = text.partition("\n")[2]
        latex_words(without_comment)
        assert not re.search(r"(?<!\\)%", without_comment)
        columns = len(re.search(r"\\begin{tabular}{([lr]+)}", text)[1])
        body = text.partition(r"\toprule")[2].partition(r"\bottomrule")[0]
        for line in (line for line in body.splitlines() if r" \\" in line and "multicolumn" not in line):
            assert len(re.findall(r"(?<!\\)&", line)) == columns - 1, line
            assert not line.startswith(("[", "*"))
    assert escaped("a--b") == "a{-}{-}b" and escaped("−1") == "$-$1" and escaped("é") == r"\'{e}"


def compared(capsys, runs) -> str:
    assert main(["compare", str(runs), "--format", "latex"]) == 0
    return capsys.readouterr().out


def test_latex_of_a_comparison_has_stars_intervals_and_a_footnote(runs, capsys):
    text = compared(capsys, runs)
    assert main(["compare", str(runs), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert text.count(r"\textsuperscript{*}") == sum(row["p_corrected"] < 0.05 for row in rows) > 0
    for words in ("permutation test with 9,999 swaps", "(max{-}T)", f"rococo\\_jax {rococo_jax.__version__}", "Images"):
        assert words in text
    assert main(["compare", str(runs), "--format", "latex", "--json"]) == 2
    assert "--json" in capsys.readouterr().err


def _has_booktabs() -> bool:
    find = shutil.which("kpsewhich")
    return bool(
        find and shutil.which("pdflatex") and subprocess.run([find, "booktabs.sty"], capture_output=True).stdout
    )


@pytest.mark.skipif(not _has_booktabs(), reason="pdflatex with booktabs is not installed")
def test_latex_compiles_with_only_booktabs(runs, tmp_path, capsys):
    nasty = Table(NASTY, [Head(NASTY, words=True), Head("x")], [[Cell(NASTY), Cell("−1.0", (NASTY,), strong=True)]])
    tables = [latex_table(nasty), printed(capsys, runs, "--format", "latex"), compared(capsys, runs)]
    head = "\\documentclass{article}\n\\usepackage{booktabs}\n\\begin{document}\n"
    (tmp_path / "t.tex").write_text(head + "\n".join(tables) + "\\end{document}\n", encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "t.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace", timeout=120)
    assert done.returncode == 0, done.stdout[-2000:]


def test_the_list_of_many_models_is_complete_and_beside_the_example(tmp_path):
    for place in range(12):
        save(tmp_path / "all" / f"m{place}", results_of(f"model-{place}", 40.0 + 7 * place % 12))
    page = write_report([tmp_path / "all"], tmp_path / "r.html")[0].read_text()
    screen = page.partition('id="headline"')[2].partition('class="facts"')[0]
    names = re.search(r'<ol class="numbered">(.*?)</ol>', screen, re.DOTALL)
    assert len(re.findall("model-", names[1])) == 12
    # Chart and names are one item of the grid, so that the example stays in the second column.
    assert screen.rfind("<section", 0, names.start()) > screen.rfind("</section>", 0, names.start())
