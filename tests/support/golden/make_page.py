"""Writes page.json: digests of the charts and tables of a report and of a sweep's page, by number and title.

    python -m tests.support.golden.make_page OUT

OUT gets the pages. Look at them first. A digest covers what a reader sees: coordinates of charts count in whole pixels,
and the numbers that only sorting reads are left out.
"""

import hashlib
import json
import os
import re
import sys
from pathlib import Path

import matplotlib

from rococo_jax.report import write_report
from rococo_jax.sweep.page import write_figures
from rococo_jax.sweep.plan import make_plan
from tests.report.test_altered_images import with_corruptions
from tests.report.test_classes import save as classes_run
from tests.report.test_kinds import choice_run
from tests.support.made_runs import six_runs
from tests.support.pages import results_of, save
from tests.support.paths import CHECKOUT
from tests.sweep.test_sweep import choice_rows

GOLDEN = Path(__file__).with_name("page.json")


def pages_of(folder: Path) -> str:
    """A report of made results of every kind, and the page of a sweep with a failure."""
    runs = folder / "runs"
    six_runs(runs / "rank")
    for number, name in enumerate(("one", "two")):
        classes_run(runs / "classes", name, number)
        choice_run(runs / "choice" / name, name, 40 + 30 * number, number)
        save(runs / "corrupted" / name, with_corruptions(results_of(name, clean=40.0 + number)))
    plan = make_plan(CHECKOUT / "configs" / "scenes_tiny.py", over=["batch_size=8,16"], seeds=(0, 1))
    pages = [write_report([runs], folder / "report.html")[0]]
    pages += [write_figures(plan, choice_rows(folder / "sweep"), folder, {"batch_size_8-0": "no space"})]
    return "".join(page.read_text(encoding="utf-8") for page in pages)


def digests(pages: str) -> dict[str, str]:
    """Return a digest of each chart and table, by its number and title."""
    hashes = {"matplotlib": matplotlib.__version__}
    for tag, content in re.findall(r'<(svg|table|figure(?= class="bars))\b(.*?)</\1>', pages, re.DOTALL):
        title = re.search(r"<(title|caption|figcaption)\b[^>]*>(.*?)</\1>", content, re.DOTALL)
        words = re.sub(r"<[^>]*>|\s+", " ", title[2]).split() if title else []
        content = re.sub(r' data-value="[^"]*"', "", content)
        content = re.sub(r"<tr>[^\n]*flags\.xla_flags[^\n]*</tr>\n?", "", content)  # the tests set some
        if tag == "svg":
            content = re.sub(r"-?\d+\.\d+", lambda number: f"{float(number[0]):.0f}", content)
        if "jax" not in content:  # versions
            name = f"{len(hashes)}: {tag}: {' '.join(words)}"
            hashes[name] = hashlib.sha256(content.encode()).hexdigest()[:12]
    return hashes


if __name__ == "__main__":
    out = Path(sys.argv[1])
    os.environ.setdefault("ROCOCO_MADE_RUNS", str(out / "made-runs"))
    GOLDEN.write_text(json.dumps(digests(pages_of(out)), indent=0, ensure_ascii=False) + "\n")
