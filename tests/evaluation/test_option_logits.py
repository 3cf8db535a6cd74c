"""Test logits of the options of questions: metrics restated item by item in plain Python, and refusals."""

import csv
import json
import math
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rococo_jax.cli.main import main
from rococo_jax.evaluation.models.option_logits import score_questions
from rococo_jax.evaluation.results import read_results
from rococo_jax.evaluation.stored_counts import read_counts
from rococo_jax.metrics.class_statistics import halves

BINS = 15


def make_questions(seed: int, noise: float) -> list[dict]:
    """Return 80 questions with 2 to 6 options each, two on each image; `noise` differs between models."""
    design, numbers = random.Random(0), random.Random(seed)
    records = []
    for place in range(80):
        count = design.choice([2, 3, 4, 6])
        options = [f"option {design.randrange(10**6)}" for _ in range(count)]
        answer = design.randrange(count)
        logits = [design.gauss(2.0 * (each == answer), 1.0) + numbers.gauss(0.0, noise) for each in range(count)]
        records.append(
            {
                "image": f"{place // 2}.jpg",
                "question": f"What is thing {place}?",
                "options": options,
                "logits": logits,
                # By text and by position in turns.
                "answer": answer if place % 2 else options[answer],
            }
        )
    return records


def write(path, records):
    path.write_text("\n".join(map(json.dumps, records)))
    return path


def item_numbers(record, temperature=1.0) -> dict:
    """Return the numbers of one question, computed with its own options alone."""
    options, logits = record["options"], [logit / temperature for logit in record["logits"]]
    answer = record["answer"] if isinstance(record["answer"], int) else options.index(record["answer"])
    total = math.fsum(math.exp(logit) for logit in logits)
    p = [math.exp(logit) / total for logit in logits]
    best = p.index(max(p))
    entropy = -math.fsum(each * math.log(each) for each in p)
    return {
        "predicted": options[best],
        "top1": best == answer,
        "confidence": p[best],
        "nll": -math.log(p[answer]),
        "brier": math.fsum((each - (place == answer)) ** 2 for place, each in enumerate(p)),
        "guessing": 1 / len(options),
        "uncertainty": entropy / math.log(len(options)),
    }


def mean(values) -> float:
    values = list(values)
    return math.fsum(values) / len(values)


def ece(items) -> float:
    gaps = [0.0] * BINS
    for each in items:
        place = max(0, math.ceil(each["confidence"] * BINS) - 1)
        gaps[place] += each["top1"] - each["confidence"]
    return 100 * math.fsum(map(abs, gaps)) / len(items)


def best_temperature(records) -> float:
    """Return the temperature of lowest mean NLL by ternary search on its logarithm: there is one minimum."""
    low, high = math.log(1e-3), math.log(1e3)
    for _ in range(200):
        one, other = low + (high - low) / 3, high - (high - low) / 3
        nll = [mean(item_numbers(each, math.exp(point))["nll"] for each in records) for point in (one, other)]
        low, high = (low, other) if nll[0] < nll[1] else (one, high)
    return math.exp((low + high) / 2)


@pytest.fixture(scope="module")
def scored(tmp_path_factory):
    """Questions without and with a corruption, and their results."""
    folder = tmp_path_factory.mktemp("options")
    clean, fog = make_questions(1, 0.2), make_questions(2, 1.5)
    files = write(folder / "mine.jsonl", clean), write(folder / "fog.jsonl", fog)
    results, rows, *_ = score_questions(str(files[0]), corrupted={"fog_3": str(files[1])})
    return clean, fog, results, rows


def test_metrics_equal_those_of_each_question_with_its_options(scored):
    """The tolerance is that of sums of 80 rounded numbers; the temperature is fitted to 1e-7."""
    for records, variant in zip(scored[:2], ("clean", "fog_3"), strict=True):
        items = [item_numbers(each) for each in records]
        metrics = scored[2]["tasks"]["questions"][variant]
        for name, scale in (("top1", 100), ("guessing", 100), ("confidence", 100), ("nll", 1), ("brier", 1)):
            assert metrics[name] == pytest.approx(scale * mean(each[name] for each in items), rel=1e-12), name
        assert metrics["ece"] == pytest.approx(ece(items), rel=1e-11)
        assert "per_class" not in metrics and "prior" not in metrics
        half = halves([each["image"] for each in records]).tolist()
        sides = [[each for each, side in zip(records, half, strict=True) if side == number] for number in (0, 1)]
        fitted = [best_temperature(side) for side in sides]
        scaled = [item_numbers(each, fitted[1 - side]) for each, side in zip(records, half, strict=True)]
        assert metrics["nll_scaled"] == pytest.approx(mean(each["nll"] for each in scaled), rel=1e-7)
        assert metrics["ece_scaled"] == pytest.approx(ece(scaled), rel=1e-6)


def test_change_under_corruption_equals_its_definition(scored):
    clean, fog, results, _ = scored
    changes = []
    for before, after in zip(map(item_numbers, clean), map(item_numbers, fog), strict=True):
        alignments = [1 - abs(each["confidence"] - each["top1"]) for each in (before, after)]
        changes.append(alignments[1] - alignments[0] - abs(after["uncertainty"] - before["uncertainty"]))
    metrics = results["tasks"]["questions"]["fog_3"]
    assert metrics["ras"] == pytest.approx(mean(changes), abs=1e-12)
    assert metrics["ras_destructive"] == pytest.approx(mean(min(each, 0) for each in changes), abs=1e-12)
    assert metrics["ras_corrective"] == pytest.approx(mean(max(each, 0) for each in changes), abs=1e-12)
    same = [
        item_numbers(one)["predicted"] == item_numbers(two)["predicted"] for one, two in zip(clean, fog, strict=True)
    ]
    assert metrics["consistency"] == pytest.approx(100 * mean(same))


def test_rows_have_the_text_of_the_answer_and_of_the_chosen_option(scored):
    clean, fog, _, table = scored
    rows = {(row["variant"], row["question"]): row for row in table.to_pylist()}
    for records, variant in ((clean, "clean"), (fog, "fog_3")):
        for record in records:
            row, item = rows[variant, record["question"]], item_numbers(record)
            assert (row["image"], row["predicted"]) == (record["image"], item["predicted"])
            assert row["chosen"] == ("right" if item["top1"] else "wrong")
            assert row["nll"] == pytest.approx(item["nll"], abs=1e-12)
            answer = record["answer"]
            assert row["label"] == (record["options"][answer] if isinstance(answer, int) else answer)


def test_the_order_of_lines_and_of_options_does_not_matter(scored, tmp_path):
    shuffled = []
    for record in random.Random(5).sample(scored[0], len(scored[0])):
        order = random.Random(6).sample(range(len(record["options"])), len(record["options"]))
        answer = record["answer"] if isinstance(record["answer"], str) else record["options"][record["answer"]]
        lists = {name: [record[name][place] for place in order] for name in ("options", "logits")}
        shuffled.append(record | lists | {"answer": answer})
    again = score_questions(str(write(tmp_path / "mine.jsonl", shuffled))).results
    of_clean = again["tasks"]["questions"]["clean"]
    assert of_clean == scored[2]["tasks"]["questions"]["clean"]
    assert again["fingerprint"]["comparable"] == scored[2]["fingerprint"]["comparable"]


@pytest.mark.parametrize("form", ["parquet", "csv", "json"])
def test_tables_and_json_give_the_same_results(scored, tmp_path, form):
    records = [each | {"answer": row["label"]} for each, row in zip(scored[0], labels_of(scored), strict=True)]
    path = tmp_path / f"mine.{form}"
    if form == "parquet":
        pq.write_table(pa.Table.from_pylist(records), path)
    elif form == "json":
        path.write_text(json.dumps(records))
    else:
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, records[0])
            writer.writeheader()
            writer.writerows(each | {"logits": json.dumps(each["logits"])} for each in records)
    assert score_questions(str(path)).results["tasks"]["questions"]["clean"] == scored[2]["tasks"]["questions"]["clean"]


def labels_of(scored) -> list[dict]:
    """Return the rows of the clean variant in the order of the records."""
    rows = {row["question"]: row for row in scored[3].to_pylist() if row["variant"] == "clean"}
    return [rows[record["question"]] for record in scored[0]]


def test_several_kinds_of_corruption_have_a_mean(scored, tmp_path):
    files = {name: str(write(tmp_path / f"{name}.jsonl", make_questions(seed, 1.0)))
             for seed, name in ((3, "fog_3"), (4, "contrast_3"), (5, "fog_5"))}  # fmt: skip
    tasks = score_questions(str(write(tmp_path / "mine.jsonl", scored[0])), corrupted=files).results["tasks"]
    metrics = tasks["questions"]
    assert metrics["corruptions_3"]["ras"] == pytest.approx(
        mean(metrics[name]["ras"] for name in ("fog_3", "contrast_3"))
    )
    assert "corruptions_5" not in metrics


def test_the_command_writes_results_that_compare_and_report_and_select_can_read(tmp_path, capsys):
    for model, noise in (("one", 0.2), ("two", 2.0)):
        clean, fog = (write(tmp_path / f"{model}-{name}.jsonl", make_questions(seed, noise * factor))
                      for name, seed, factor in (("clean", 1, 1), ("fog", 2, 3)))  # fmt: skip
        out = tmp_path / "out" / model
        command = ["score", "--logits", clean, "--corrupted", f"fog_3={fog}", "--name", model, "--task", "vqa"]
        command += ["--out", out / "results.json", "--per-query", out / "per_query.parquet"]
        assert main([*map(str, command)]) == 0
    results = read_results(out / "results.json")
    counts = read_counts(out / "per_query.parquet", results)["vqa", "fog_3"]
    for name in ("top1", "ece", "nll", "guessing", "ras"):
        assert counts.value(name) == pytest.approx(results["tasks"]["vqa"]["fog_3"][name]), name
    assert results["chance"]["vqa"]["clean"]["top1"] == pytest.approx(results["tasks"]["vqa"]["clean"]["guessing"])
    folders = [str(tmp_path / "out" / model) for model in ("one", "two")]
    capsys.readouterr()
    assert main(["compare", *folders, "--all"]) == 0
    assert "| two | Vqa | Clean | Top-1 |" in capsys.readouterr().out
    assert main(["select", *folders, "--count", "3", "--out", str(tmp_path / "selection.json")]) == 0
    selection = json.loads((tmp_path / "selection.json").read_text())
    assert len(selection["chosen"]) == 3 and selection["corruptions"] == ["fog_3"]
    assert main(["report", str(tmp_path / "out"), "--out", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.md").read_text()
    assert "its own options" in page and "destructive" in page and "Majority class" not in page
    assert "| one | " in page and "| one ()" not in page


def test_a_selection_gives_the_numbers_of_a_file_with_only_these_questions(scored, tmp_path, refusal):
    """The list that `rococo select` writes, and RAS on its images."""
    clean, fog, *_ = scored
    images = ["3.jpg", "9.jpg", "22.jpg"]
    chosen = {"format": "rococo_jax.selection", "version": 1, "chosen": [{"image": image} for image in images]}
    (tmp_path / "selection.json").write_text(json.dumps(chosen))
    few = [write(tmp_path / f"few-{place}.jsonl", [each for each in records if each["image"] in images])
           for place, records in enumerate((clean, fog))]  # fmt: skip
    every = [write(tmp_path / f"every-{place}.jsonl", records) for place, records in enumerate((clean, fog))]
    selected = score_questions(
        str(every[0]), corrupted={"fog_3": str(every[1])}, only=str(tmp_path / "selection.json")
    ).results
    assert selected["tasks"] == score_questions(str(few[0]), corrupted={"fog_3": str(few[1])}).results["tasks"]
    assert selected["data"]["questions"]["only"]["selected"] == 6
    (tmp_path / "other.txt").write_text("3.jpg\n99.jpg\n")
    command = ["score", "--logits", every[0], "--out", tmp_path / "r.json"]
    assert "'99.jpg'" in refusal(*command, "--only", tmp_path / "other.txt")
    assert "--corruptions: found it with --logits" in refusal(*command, "--corruptions", "fog")


LINE = {"image": "a.jpg", "question": "What?", "options": ["a cat", "a dog"], "logits": [1.0, -0.5], "answer": 0}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"logits": [1.0]}, "item in line 2: logits: found 1 numbers; wanted 2, one for each option"),
        ({"logits": [1.0, math.nan]}, "item in line 2: logits: found NaN or infinite values"),
        ({"logits": [1.0, True]}, "item in line 2: logits: found [1.0, True]; wanted a list of numbers"),
        ({"logits": None}, "item in line 2: logits: found None; wanted a list of numbers"),
        ({"answer": "a hen"}, "answer: found 'a hen'; wanted one of ['a cat', 'a dog'], or a position from 0 to 1"),
        ({"answer": 2}, "answer: found 2; wanted"),
        ({"answer": -1}, "answer: found -1; wanted"),
        ({"answer": True}, "answer: found True; wanted"),
        ({"answer": "1"}, "answer: found '1'; wanted"),
        ({"options": ["a cat"], "logits": [1.0]}, "options: found ['a cat']; wanted at least 2, each once"),
        ({"options": ["a cat", "a cat"]}, "options: found ['a cat', 'a cat']; wanted at least 2, each once"),
        ({"image": ""}, "image: found nothing; wanted an image or an id"),
        ({"question": "What?"}, "question: found 'a.jpg: What?' more than once; wanted every question once"),
    ],
)  # fmt: skip
def test_an_unusable_line_is_named(tmp_path, refusal, changes, said):
    other = LINE | {"question": "And here?"} | changes
    file = write(tmp_path / "answers.jsonl", [LINE, other])
    error = refusal("score", "--logits", file, "--out", tmp_path / "r.json")
    assert said in error and error.count("\n") == 1 and not (tmp_path / "r.json").exists()


@pytest.mark.parametrize(
    ("corrupted", "said"),
    [
        ([], "fog.jsonl: questions: found no 'a.jpg: And here?'; wanted all 2 of"),
        ([{"answer": 1}], "answer of 'a.jpg: And here?': found 'a dog'; wanted 'a cat'"),
        ([{"options": ["a cat", "a hen"]}], "options of 'a.jpg: And here?': found"),
        ([{}, {"question": "More?"}], "questions: found 'a.jpg: More?' as well"),
    ],
)
def test_a_corruption_with_other_questions_is_refused(tmp_path, refusal, corrupted, said):
    second = LINE | {"question": "And here?"}
    clean = write(tmp_path / "answers.jsonl", [LINE, second])
    fog = write(tmp_path / "fog.jsonl", [LINE, *(second | changes for changes in corrupted)])
    error = refusal("score", "--logits", clean, "--corrupted", f"fog_3={fog}", "--out", tmp_path / "r.json")
    assert said in error and error.count("\n") == 1


def test_probabilities_and_options_of_class_logits_are_refused(tmp_path, refusal):
    probabilities = write(tmp_path / "p.jsonl", [LINE | {"logits": [0.75, 0.25]}])
    assert "logits: found probabilities" in refusal("score", "--logits", probabilities, "--out", tmp_path / "r.json")
    logits = write(tmp_path / "answers.jsonl", [LINE])
    labels = ["score", "--logits", logits, "--labels", "labels.csv", "--out", tmp_path / "r.json"]
    assert "--labels: found --labels with" in refusal(*labels)
    clean = ["--corrupted", f"clean={logits}"]
    assert "--corrupted: found clean" in refusal("score", "--logits", logits, *clean, "--out", tmp_path / "r.json")


COUNTING = {"image": "b.jpg", "question": "How many?", "options": ["1", "2", "3"], "logits": [0.0, 5.0, -1.0]}


@pytest.mark.parametrize("options", [["1", "2", "3"], ["1.0", "2.0", "3.0"], ["one", " 2 ", "3"]])
def test_a_numeric_answer_selects_the_option_with_the_same_text(tmp_path, options):
    file = write(tmp_path / "answers.jsonl", [COUNTING | {"options": options, "answer": 2}])
    assert score_questions(str(file)).results["tasks"]["questions"]["clean"]["top1"] == 100
    pq.write_table(pa.Table.from_pylist([COUNTING | {"options": options, "answer": 2}]), tmp_path / "a.parquet")
    assert score_questions(str(tmp_path / "a.parquet")).results["tasks"]["questions"]["clean"]["top1"] == 100


def test_an_ambiguous_numeric_answer_is_refused(tmp_path, refusal):
    """A position of options that are numbers; and numbers that are positions of other questions of the file."""
    for records, said in (
        ([COUNTING | {"answer": 0}], "answer: found 0; wanted one of ['1', '2', '3']\n"),
        ([LINE, COUNTING | {"answer": 1}], "numbers that are positions of options in some questions"),
    ):
        file = write(tmp_path / "answers.jsonl", records)
        error = refusal("score", "--logits", file, "--out", tmp_path / "r.json")
        assert said in error and error.count("\n") == 1
    # Both meanings are the same option.
    same = COUNTING | {"options": ["0", "1", "2"], "answer": 1}
    assert score_questions(str(write(tmp_path / "answers.jsonl", [LINE, same])))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([[1 / 3, 2 / 3], [0.33, 0.33, 0.33]], "found probabilities: none below 0, and every row sums to 1"),
        ([[33.3, 66.7], [80.0, 10.0, 9.9]], "found probabilities in percent"),
        ([[0.4, 0.6], [0.7, 0.3], [2.5, -1.0]], "2 of 3 rows sum to 1"),
    ],
)
def test_probabilities_of_some_questions_are_refused(tmp_path, refusal, options, said):
    records = [
        LINE | {"question": f"What is {place}?", "options": ["a", "b", "c"][: len(logits)], "logits": logits}
        for place, logits in enumerate(options)
    ]
    other = [record | {"logits": [4.0, -2.0, 1.0][: len(record["logits"])]} for record in records]
    clean = write(tmp_path / "clean.jsonl", other)
    for file in (["p.jsonl"], [clean, "--corrupted", f"fog_3={tmp_path / 'p.jsonl'}"]):
        write(tmp_path / "p.jsonl", records)
        files = [tmp_path / "p.jsonl" if each == "p.jsonl" else each for each in file]
        assert said in refusal("score", "--logits", *files, "--out", tmp_path / "r.json")
