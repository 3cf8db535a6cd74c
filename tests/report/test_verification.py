"""Verification finds each changed number of a folder of results, by its place, and nothing in an unchanged one."""

import json
import re
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rococo_jax.cli import score, verify
from rococo_jax.cli.main import main
from rococo_jax.evaluation.sections import Evaluated, write_evaluated
from rococo_jax.report import write_report
from rococo_jax.report.verification import _compare_rows
from rococo_jax.storage import write_json
from tests.support.commands import run_command
from tests.support.made_runs import make_run
from tests.support.nouns import MODELS, numbered_nouns
from tests.support.refusals import refused


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    """Results of two models and their report."""
    out = tmp_path_factory.mktemp("written") / "out"
    for name, noise in (("a", 0.5), ("b", 0.7)):
        run = make_run(out / name, name, noise)
        results = json.loads((run / "results.json").read_text())
        tables = (pq.read_table(run / f"{table}.parquet") for table in ("per_query", "pairs"))
        rows, pairs = tables
        write_evaluated(run, Evaluated(results, rows, [], pairs))
    write_report(out, out / "report.html")
    return out


@pytest.fixture
def folder(written, tmp_path) -> Path:
    """A copy of these results, which a test may change."""
    return shutil.copytree(written, tmp_path / "out")


def verified(folder: Path, capsys, code: int = 1) -> list[str]:
    """The lines that `rococo verify` prints about a folder."""
    assert run_command(verify, folder) == code
    return capsys.readouterr().out.splitlines()


def test_an_unchanged_folder_is_verified_with_all_its_numbers(folder, capsys):
    (line,) = verified(folder, capsys, code=0)
    numbers = sum(
        len(metrics) + len(json.loads(path.read_text())["intervals"][task][variant])
        for path in folder.rglob("results.json")
        for task, variants in json.loads(path.read_text())["tasks"].items()
        for variant, metrics in variants.items()
    )
    assert line.endswith("all equal") and int(line.split()[0].replace(",", "")) > numbers > 200


def changed(number: float | int) -> float | int:
    """The number with another digit."""
    return number + 1 if isinstance(number, int) else number + 0.001


@pytest.mark.parametrize(
    ("part", "task", "variant", "name"),
    [
        ("tasks", "image_to_text", "clean", "r1"),
        ("tasks", "image_to_text", "danger", "drop"),
        ("tasks", "image_to_text", "danger", "grounding"),
        ("tasks", "text_to_image", "mix_0.9", "r1_std"),
        ("intervals", "text_to_image", "mix_0.9", "fr1"),
        ("intervals", "image_to_text", "danger", "drop_points"),
        ("sizes", "image_to_text", "clean", "queries"),
        ("sizes", "text_to_image", "mix_0.9", "images"),
        ("sizes", "image_to_text", "danger", "gallery"),
        ("chance", "image_to_text", "danger", "r1"),
    ],
)
def test_a_changed_number_of_the_results_is_named_with_both_values(folder, capsys, part, task, variant, name):
    path = folder / "a" / "results.json"
    results = json.loads(path.read_text())
    numbers = results[part][task][variant]
    old = numbers[name]
    numbers[name] = [old[0], changed(old[1])] if isinstance(old, list) else changed(old)
    path.write_text(json.dumps(results))
    lines = verified(folder, capsys)
    assert f"{path}: sha256 of all other entries: stored {results['sha256']}, recomputed" in lines[0]
    place = f"{path}: {part}: {task}: {variant}: {name}: stored {numbers[name]}, recomputed {old}"
    # The rows do not tell the gallery and what guessing is expected to have.
    assert (place in lines) == (name != "gallery" and part != "chance")
    # The page is of other numbers than the results now have; it is named, too.
    assert any("report.csv: all numbers" in line for line in lines) and lines[-1].endswith("differ")


@pytest.mark.parametrize(
    ("table", "column", "place"),
    [
        ("per_query", "r1", "tasks: image_to_text: clean: r1"),
        ("per_query", "top1_score", ""),
        ("per_query", "caption", ""),
        ("pairs", "difference", ""),
    ],
)
def test_a_changed_value_of_a_table_is_found(folder, capsys, table, column, place):
    path = folder / "b" / f"{table}.parquet"
    rows = pq.read_table(path)
    values = rows[column].to_pylist()
    values[3] = not values[3] if isinstance(values[3], bool) else values[3] + type(values[3])("1")
    field = rows.schema.get_field_index(column)
    pq.write_table(
        rows.set_column(field, rows.schema.field(field), pa.array(values, rows.schema.field(field).type)), path
    )
    lines = verified(folder, capsys)
    assert f"{path}: sha256: stored" in lines[0]
    assert any(f"b/results.json: {place}: stored" in line for line in lines) == bool(place)


@pytest.mark.parametrize(
    ("suffix", "number", "place"),
    [
        (".csv", r"(?m)^1,a,.*?danger,.*?,fr1,\d", "report.csv: line"),
        (".csv", r"(?m)^1,b,.*?fr1.*?,a,-?\d", "difference: stored"),
        (".md", r"\d\d\.\d", "report.md: line"),
        (".html", r"<td[^>]*>\d\d\.\d", "report.html: line"),
    ],
)
def test_a_changed_digit_of_a_report_is_found(folder, capsys, suffix, number, place):
    path = folder / f"report{suffix}"
    text = path.read_text()
    end = re.search(number, text).end()
    path.write_text(f"{text[: end - 1]}{(int(text[end - 1]) + 1) % 10}{text[end:]}")
    lines = verified(folder, capsys)
    assert len(lines) == 2 and place in lines[0] and lines[-1].endswith("1 differ")


def test_missing_rows_fail_the_verification(folder, capsys):
    (folder / "a" / "per_query.parquet").unlink()
    lines = verified(folder, capsys)
    assert any("per_query.parquet: sha256: stored" in line and "no such file" in line for line in lines)
    assert any("a/results.json: rows: stored no per_query.parquet beside it" in line for line in lines)


def test_other_tables_are_skipped_and_the_differences_are_written_as_json(folder, tmp_path, capsys):
    (folder / "facts.csv").write_bytes(b"model,parameters\n\xff,1\n")
    results = json.loads((folder / "a" / "results.json").read_text())
    results["tasks"]["image_to_text"]["clean"]["r5"] += 0.01
    write_json(folder / "a" / "results.json", results)
    assert run_command(verify, folder / "a", "--out", tmp_path / "verified.json") == 1
    report = json.loads((tmp_path / "verified.json").read_text())
    assert [each["place"].split(": ")[-1] for each in report["differences"]] == ["sha256 of all other entries", "r5"]
    assert report["compared"] > 100
    capsys.readouterr()


@pytest.mark.parametrize("value", [5, None, "x", [], {"clean": 3}, {"clean": {"r1": 10**400}}])
def test_results_of_another_structure_are_reported_without_a_traceback(folder, capsys, value):
    path = folder / "a" / "results.json"
    results = json.loads(path.read_text())
    results["tasks"]["image_to_text"] = value
    path.write_text(json.dumps(results))
    lines = verified(folder, capsys)
    assert lines[0].startswith(f"{path}: sha256 of all other entries: stored")


def test_results_and_annotations_cannot_be_verified_together(folder, expect_refusal):
    refused("input: found neither; wanted RESULTS or --annotations", run_command, verify)
    expect_refusal(f"verify {folder} --annotations {folder}", "--annotations: found also RESULTS")
    (folder / "empty").mkdir()
    refused("a folder without results.json", run_command, verify, folder / "empty")


def test_results_of_scores_from_another_program_are_verified(tmp_path, capsys):
    questions = [
        {
            "image": "7.jpg",
            "question": "Which animal?",
            "options": ["cat", "dog"],
            "logits": [2.5, 0.5],
            "answer": "cat",
        },
        {"image": "8.jpg", "question": "Is it asleep?", "options": ["yes", "no"], "logits": [0.5, 0.25], "answer": 1},
        {"image": "9.jpg", "question": "Is it old?", "options": ["yes", "no"], "logits": [0.5, 1.25], "answer": 1},
    ]
    (tmp_path / "mine.jsonl").write_text("\n".join(map(json.dumps, questions)))
    rows = tmp_path / "per_query.parquet"
    words = "--logits", tmp_path / "mine.jsonl", "--out", tmp_path / "results.json", "--per-query", rows
    run_command(score, *words)
    capsys.readouterr()
    (line,) = verified(tmp_path, capsys, code=0)
    assert line.endswith("all equal")
    table = pq.read_table(rows)
    entropy = table.schema.get_field_index("entropy")
    pq.write_table(table.set_column(entropy, "entropy", pa.array([0.1, 0.2, 0.3])), rows)
    lines = verified(tmp_path, capsys)
    assert lines[0].startswith(f"{rows}: sha256: stored") and len(lines) == 2


@pytest.fixture
def evaluated(tmp_path) -> tuple[Path, Path]:
    """Results of a model in NumPy, and the cache of its embeddings."""
    images, captions = numbered_nouns(tmp_path)
    words = ["--images", images, "--captions", captions, "--name", "photos", "--out", tmp_path / "data"]
    assert main(["make-benchmark", *map(str, words)]) == 0
    (tmp_path / "models.py").write_text(MODELS)
    words = ["--data", tmp_path / "data", "--out", tmp_path / "out", "--cache", tmp_path / "cache", "--seeds", "1"]
    assert main(["evaluate", f"{tmp_path / 'models.py'}:Good", *map(str, words), "--quiet", "--no-report"]) == 0
    return tmp_path / "out", tmp_path / "cache"


@pytest.mark.slow
def test_rows_and_numbers_are_computed_again_from_stored_embeddings(evaluated, capsys, refusal):
    out, cache = evaluated
    words = ["verify", str(out), "--embeddings", "--cache", str(cache)]
    capsys.readouterr()
    assert main(words) == 0
    counted = int(re.match(r"([\d,]+) values compared: all equal", capsys.readouterr().out)[1].replace(",", ""))
    table = pq.read_table(out / "per_query.parquet")
    assert counted > table.num_rows * 10
    # A row that no number is computed from, with its hash in the results.
    scores = table["top1_score"].to_pylist()
    scores[3] += 0.01
    place = table.column_names.index("top1_score")
    pq.write_table(table.set_column(place, table.schema.field(place), pa.array(scores)), out / "per_query.parquet")
    assert main(words) == 1
    wanted = f"{out}/per_query.parquet: image_to_text: clean: row 3: top1_score: stored {scores[3]}"
    assert wanted in capsys.readouterr().out
    for part in cache.glob("??/*.npy"):
        part.unlink()
    error = refusal(*words)
    assert "embeddings of images: found" in error and "that are not stored" in error


@pytest.mark.parametrize(
    ("stored", "recomputed", "is_close"),
    [
        (0.25, 0.250009, True), (0.25, 0.250011, False), (-0.25, -0.249989, False), (0.25, -0.25, False),
        (5000.0, 5000.04, True), (5000.0, 5000.06, False), (float("nan"), float("nan"), True),
        (0.5, float("nan"), False), (0.5, None, False), (None, None, True),
    ],
)  # fmt: skip
def test_a_similarity_is_equal_within_a_hundred_thousandth(stored, recomputed, is_close):
    rows, again = (
        pa.table({"benchmark": ["b"] * 2, "task": ["t"] * 2, "variant": ["v"] * 2, "score": pa.array([0.5, value])})
        for value in (stored, recomputed)
    )
    different = [each for each in _compare_rows(Path("rows"), rows, again, "b") if each is not None]
    assert [each.place for each in different] == ([] if is_close else ["t: v: row 1: score"])


def test_verifying_embeddings_requires_results(refusal):
    assert "--embeddings: found it alone" in refusal("verify", "--embeddings", "--annotations", "somewhere")
    assert "--cache: found it alone" in refusal("verify", "somewhere", "--cache", "elsewhere")
