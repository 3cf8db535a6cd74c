"""The printed tables: in a terminal of any width every figure is there whole."""

import io
import re

import pytest
import rich.console

from rococo_jax.evaluation import summary
from rococo_jax.evaluation.summary import print_summary

METRICS = {
    "rank": ("r1", "r5", "r10", "fr1", "drop", "ties"),
    "choose": ("group_score", "text_score", "image_score", "itt", "ota", "ata", "tot", "brittleness"),
    "classify": ("top1", "per_class", "ece", "ece_scaled", "auroc_mcm", "fpr95_mcm"),
}
MODELS = [f"open_clip:ViT-L-14-quickgelu_laion400m_e{epoch}" for epoch in (31, 32)] + ["b32"]


def result(model: str, seed: int):
    tasks, intervals, figure = {}, {}, 10.0 + seed
    for kind, names in METRICS.items():
        for task in (f"{kind}_attribute_replaced", f"{kind}_relation_replaced"):
            tasks[task], intervals[task] = {}, {}
            for variant in ("clean", "same_concept_of_another_kind"):
                tasks[task][variant] = {}
                for name in names:
                    figure += 0.1
                    tasks[task][variant][name] = figure
                intervals[task][variant] = {names[0]: [figure - 5, figure + 5]}
    kinds = {task: task.partition("_")[0] for task in tasks}
    return {"model": model, "tasks": tasks, "kinds": kinds, "intervals": intervals, "notes": ["a [bracketed] note"]}


RESULTS = [result(model, 20 * place) for place, model in enumerate(MODELS)]
FIGURES = {
    f"{value:.1f}"
    for each in RESULTS
    for variants in each["tasks"].values()
    for metrics in variants.values()
    for value in metrics.values()
}


@pytest.fixture
def printed(monkeypatch):
    """Return the summary as printed to a terminal of `columns`, or to a file (None)."""
    monkeypatch.setattr(summary, "compare_with_published", lambda results: [])
    original = rich.console.Console

    def print_in(columns: int | None) -> str:
        written = io.StringIO()

        def console(width=None):
            return original(file=written, width=width or columns, force_terminal=columns is not None, color_system=None)

        monkeypatch.setattr(rich.console, "Console", console)
        print_summary(RESULTS)
        return re.sub(r"\x1b\[[\d;]*m", "", written.getvalue())

    return print_in


@pytest.mark.parametrize("columns", [60, 80, 100, 200])
def test_no_number_is_truncated(printed, columns):
    text = printed(columns)
    assert set(re.findall(r"(?<![\d.-])\d+\.\d(?![\d-])", text)) >= FIGURES and "…" not in text
    for line in text.splitlines():
        # Names come first; what follows the first figure is figures alone.
        assert re.fullmatch(r"[^.]*?( +[\d.-]+)*", line.rstrip()) or "note" in line, line


def test_wide_terminals_and_files_have_complete_names(printed):
    for columns in (200, None):
        text = printed(columns)
        assert text.count(" model ") + text.count("\nmodel ") + text.startswith("model ") == len(METRICS)
        for model in MODELS:
            assert text.count(f"{model} ") == len(METRICS)
        assert "note: a [bracketed] note" in text


def test_numbers_of_a_column_are_right_aligned(printed):
    text = printed(None)
    for title in ("R@1", "95 %", "Brittleness", "Mean per class"):
        lines = text.splitlines()
        head = next(place for place, line in enumerate(lines) if f" {title} " in line)
        end = lines[head].index(f" {title} ") + len(title)
        for line in lines[head + 2 : head + 6]:
            assert line[end].isdigit() and line[end + 1] == " ", (title, line)


def test_notes_name_the_benchmark_and_among_several_models_the_model(capsys):
    first, second = result("a", 0), result("b", 1)
    for results, notes in (
        (first, {"valse": ["only 4 images"], "aro": ["few"]}),
        (second, {"valse": ["only 4 images"]}),
    ):
        results["benchmarks"] = {name: {"notes": texts} for name, texts in notes.items()}
    print_summary([first, second])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note:")]
    assert lines == ["note: valse: only 4 images", "note: a: aro: few"]


def test_the_headline_comes_first_and_rows_over_several_parts_are_separated(capsys):
    results = result("a", 0)
    task = next(task for task, kind in results["kinds"].items() if kind == "choose")
    results["tasks"][task] = {name: {"ota": 50.0} for name in ("one", "mean", "two", "all")}
    results["sizes"] = {task: {name: {"items": 4, "parts": 2, "of_parts": 2} for name in ("mean", "all")}}
    results["headlines"] = {task: {"variant": "all"}}
    print_summary([results])
    lines = capsys.readouterr().out.splitlines()
    first = next(number for number, line in enumerate(lines) if "50.0" in line)
    rows = [line.split() for line in lines[first : first + 5]]
    names = [next((word for word in row if word in ("one", "two", "mean", "all")), "") for row in rows]
    assert names == ["all", "mean", "", "one", "two"]
