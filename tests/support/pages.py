"""Made-up results of a report, and a strict reader of its page."""

import html.parser
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from rococo_jax.evaluation.examples import Example, Side, write_examples
from rococo_jax.report import write_report
from tests.support.variants import describe

VOID = {"meta", "img", "br", "input", "link", "col"}
NASTY = "<script>alert('x')</script> & \"quotes\" <img src=http://evil.example/x onerror=alert(1)> \u202eright to left"
VARIANTS = ("clean", "same_concept", "danger")


class Page(html.parser.HTMLParser):
    """Reads a page strictly: every element closed, in order; collects elements, their text, and what would load."""

    def __init__(self, source: str):
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[tuple[tuple[str, ...], str]] = []
        self.feed(source)
        self.close()
        assert not self.open, f"left open: {self.open}"

    def handle_starttag(self, tag, attributes):
        assert len(attributes) == len(dict(attributes)), f"an attribute twice in <{tag}>"
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, f"</{tag}> inside {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data):
        self.words.append((tuple(self.open), data))

    def text(self, inside: str | None = None) -> str:
        parts = [data for path, data in self.words if (inside in path if inside else not {"style", "script"} & {*path})]
        return " ".join(" ".join(parts).split())

    def all(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.elements if tag == name]


def results_of(model: str, clean: float = 52.34567, **changed) -> dict:
    """Results as `rococo evaluate` writes them, with one more metric than it knows."""
    tasks = {"image_to_text": {}}
    for place, variant in enumerate(VARIANTS):
        r1 = clean - 4.1 * place
        metrics = {"r1": r1, "r5": r1 + 20.25, "r10": r1 + 30.5, "r_mean": r1 + 50.75 / 3, "fr1": 7.7 * place}
        metrics |= {"top1_own": r1, "top1_own_altered": 5.5 * place, "top1_other_altered": 2.2 * place}
        metrics |= {"top1_other": 100 - r1 - 7.7 * place, "median_rank": 3.0 + place}
        if place:
            metrics |= {"drop": 100 * (clean - r1) / clean, "drop_points": clean - r1}
        tasks["image_to_text"][variant] = metrics
    intervals = {
        task: {v: {name: [x - 3.3, x + 3.1] for name, x in m.items() if name != "median_rank"} for v, m in each.items()}
        for task, each in tasks.items()
    }
    fingerprint = {
        "model": {"weights": model},
        "data": {"rococo": {"captions": "aa", "images": "bb"}},
        "protocol": "paper",
        "versions": {"jax": "0.10.2"},
    }
    made = {"format": "rococo_jax.results", "version": 2, "model": model, "protocol": "paper"}
    made |= {"fingerprint": fingerprint, "tasks": tasks, "intervals": intervals, "kinds": dict.fromkeys(tasks, "rank")}
    return made | changed


def example(**changed) -> Example:
    """An image whose first choice was an altered caption."""
    sides = {"query": Side(image="a.jpg"), "right": Side("a man on a bench"), "wrong": Side("a criminal on a bench")}
    made = {"task": "image_to_text", "variant": "danger", "seed": None, "role": "error", "order": 0}
    made |= {"kind": "own_altered", "right_score": 0.25, "wrong_score": 0.31}
    return Example(**(made | sides | changed))


ROW = {
    "task": "image_to_text",
    "variant": "danger",
    "unit": 0,
    "query": 0,
    "image": "a.jpg",
    "caption": "a man on a bench",
}
ROW |= {"rank": 2, "rank_optimistic": 2, "rank_pessimistic": 2, "top1_kind": "own_altered"}
ROW |= {"r1": False, "r5": True, "r10": True, "top1_own": False, "top1_own_altered": True}
ROW |= {"top1_other_altered": False, "top1_other": False}
ROW |= {"top1_text": "a criminal on a bench", "top1_score": 0.31, "positive_score": 0.25}


def save(folder: Path, results: dict, examples: list[Example] | None = None) -> Path:
    """Write results, with the fields of variants that they do not describe, and one query's row."""
    folder.mkdir(parents=True, exist_ok=True)
    described = {task: describe(variants) for task, variants in results["tasks"].items()}
    results = {**results, "variants": described | results.get("variants", {})}
    (folder / "results.json").write_text(json.dumps(results))
    pq.write_table(pa.Table.from_pylist([ROW]), folder / "per_query.parquet")
    if examples is not None:
        write_examples(folder, examples)
    return folder


def report(tmp_path: Path, *sources: Path) -> Page:
    return Page(write_report(sources, tmp_path / "report.html")[0].read_text(encoding="utf-8"))


def tables_of(page: Page) -> list[str]:
    """The text of every table, found by how deep and when the parser saw it."""
    tables, inside = [], False
    for path, data in page.words:
        if "table" in path and not inside:
            tables.append("")
        inside = "table" in path
        if inside:
            tables[-1] += " " + data
    return tables
