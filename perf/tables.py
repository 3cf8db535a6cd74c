"""Write the tables of docs/performance.md from the figures of `perf/run_all.py`.

    make perf DATA=... BESIDE=...
    cp build/perf.json docs/performance.json
    python perf/tables.py

A table stands between `<!-- NAME -->` and `<!-- / -->`; NAME is one of TABLES below. A line that has not been measured
says so. `--check` writes nothing and fails where the page is not what the figures give.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"
_BLOCK = re.compile(r"(<!-- ([\w ]+) -->\n)(.*?)(<!-- / -->)", re.DOTALL)
Figures = dict[str, dict]


def table(head: list[str], rows: Iterable[list[object]], left: int = 1) -> str:
    """Markdown; the first `left` columns are words."""
    rows = list(rows)
    if not rows:
        return "Not measured.\n"
    lines = [head, ["---"] * left + ["---:"] * (len(head) - left), *rows]
    return "".join("| " + " | ".join(map(str, line)) + " |\n" for line in lines)


def measured(found: Figures, *names: str) -> Iterable[tuple[str, dict]]:
    """The entries of these names that have figures."""
    return [(name, found[name]["figures"]) for name in names if "figures" in found.get(name, {})]


def machine(found: Figures) -> str:
    rows = []
    for each in found.values():
        if "figures" in each:
            rows.append([f"`{each['command']}`", f"{each['seconds']:.0f}", f"{each['machine']['load']:.1f}"])
        else:
            rows.append([f"`{each['command']}`", each["failed"], ""])
    cpus = sorted({f"{each['machine']['cores']} cores, {each['machine']['cpu']}" for each in found.values()
                   if "machine" in each})  # fmt: skip
    return f"{'; '.join(cpus)}.\n\n" + table(["command", "seconds", "load at its end"], rows)


def beside(found: Figures) -> str:
    """Towers beside other libraries."""
    rows = []
    for name, what, key, parts in (
        ("text_tower", "captions, `transformers` padded to 77", "captions", [None]),
        ("text_open_clip", "captions, open_clip padded to 77", "captions", ["whole"]),
        ("text_open_clip", "captions, open_clip in batches of one length", "captions", ["short"]),
        ("image_tower", "images, `transformers`", "images", [None]),
        ("files_to_vectors", "files to vectors, open_clip with a DataLoader", "images", [None]),
    ):
        for _, figures in measured(found, name):
            for part in parts:
                each = figures if part is None else figures[part]
                rates, largest = each[f"{key}_per_second"], each["largest_difference"]
                rows.append([what, f"{rates['ours']:.1f}/s", f"{rates['theirs']:.1f}/s",
                             each["ratio_median_of_rounds"], f"{largest:.0e}"])  # fmt: skip
    return table(["beside", "ours", "theirs", "ratio, median of rounds", "largest difference"], rows)


def training_input(found: Figures) -> str:
    rows = []
    for name, what in (("input_small", "small"), ("input_published_size", "as published")):
        for _, figures in measured(found, name):
            for workers, kinds in ((key, value) for key, value in figures.items() if key.endswith(" workers")):
                for kind, each in kinds.items():
                    low, high = each["ratios"]
                    held = each.get("held", {})
                    memory = f"{held['worker_bytes'] / 1e6:.0f}, {held['shared_bytes'] / 1e6:.0f}" if held else ""
                    rows.append([what, f"{kind}, {workers}", f"{each['images_per_second']:,.0f}",
                                 f"{each['ratio']:.2f} ({low:.2f} to {high:.2f})", f"{each['processor_us']:,.0f}",
                                 f"{each['processor_ratio']:.2f}", f"{each['of_64_cores']:,}", memory])  # fmt: skip
    head = ["images", "input", "images/s", "ratio", "processor us an image", "ratio", "64 cores, predicted",
            "MB: a worker's own, shared"]  # fmt: skip
    return table(head, rows, left=2)


def ranking(found: Figures) -> str:
    rows, before = [], None
    for name, each in measured(found, *(f"ranking_{times}" for times in (1, 2, 4, 8)), "ranking_large"):
        images, captions, width = each["shape"]
        taken, peak = each["seconds"]["ranking"], each["peak_memory_MB"]
        growth = f"{taken / before:.1f}" if before and name != "ranking_large" else ""
        before = taken
        ratio = [each["ranking_over_product"], each.get("ranking_over_product_in_processor_time", "")]
        rows.append([f"{images:,} x {captions:,} x {width}", taken, growth, each["seconds"]["product"],
                     *ratio, round(peak), round(each["of_these_embeddings_MB"])])  # fmt: skip
    head = ["images x captions x width", "seconds", "times the line above", "bare product", "ratio",
            "in processor time", "peak MB", "of these embeddings"]  # fmt: skip
    return table(head, rows)


def loss(found: Figures) -> str:
    rows = []
    for _, figures in measured(found, "loss"):
        of_torch = figures["strategies"]["torch"]
        for name, each in figures["strategies"].items():
            rows.append([f"{name}, {figures['pairs']:,} pairs of {figures['width']}", f"{each['seconds']:.2f}",
                         f"{of_torch['seconds'] / each['seconds']:.2f}", f"{each['held_mib']:,.0f}",
                         f"{each['held_mib'] / of_torch['held_mib']:.3f}", f"{each['loss']:.6f}"])  # fmt: skip
    head = ["loss and its gradients", "seconds", "speed of torch's", "MiB above the start", "of torch's", "loss"]
    return table(head, rows)


def cold_start(found: Figures) -> str:
    rows = []
    for _, each in measured(found, "cold_start"):
        rows = [["`rococo --help`", each["help"]], ["`import rococo_jax`", each["import"]],
                ["a first caption's vector", each["first_embedding"]],
                ["the same, nothing compiled", each["first_embedding_uncached"]]]  # fmt: skip
    return table(["from a new process", "seconds"], rows)


def recipes(found: Figures) -> str:
    rows = [[name, each["seconds"], each["share"], each["counted"]] for _, figures in measured(found, "recipes")
            for name, each in figures.items() if isinstance(each, dict)]  # fmt: skip
    return table(["step", "seconds", "of the whole step", "counted operations"], rows)


TABLES: dict[str, Callable[[Figures], str]] = {
    "machine": machine,
    "beside": beside,
    "training input": training_input,
    "ranking": ranking,
    "loss": loss,
    "cold start": cold_start,
    "recipes": recipes,
}


def written(page: str, found: Figures) -> str:
    """The page with its tables made anew."""
    return _BLOCK.sub(lambda block: f"{block[1]}\n{TABLES[block[2]](found)}\n{block[4]}", page)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--figures", type=Path, default=DOCS / "performance.json")
    parser.add_argument("--page", type=Path, default=DOCS / "performance.md")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    page = arguments.page.read_text()
    made = written(page, json.loads(arguments.figures.read_text()))
    if arguments.check and made != page:
        sys.exit(f"{arguments.page}: found tables of other figures; wanted those of {arguments.figures}")
    if not arguments.check:
        arguments.page.write_text(made)


if __name__ == "__main__":
    main()
