"""Write the tables of docs/research/performance.md, compiled.md and perf/README.md from results of `perf/run_all.py`.

    make perf DATA=... BESIDE=...
    cp build/perf.json docs/performance.json            compiled.json likewise
    python perf/tables.py

A table stands between `<!-- NAME -->` and `<!-- / -->`; NAME is one of TABLES below. A line that has not been measured
says so. `--check` writes nothing and fails where a page is not what the figures give.
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
    """Return a table in Markdown, with the first `left` columns aligned to the left."""
    rows = list(rows)
    if not rows:
        return "Not measured.\n"
    lines = [head, ["---"] * left + ["---:"] * (len(head) - left), *rows]
    return "".join("| " + " | ".join(map(str, line)) + " |\n" for line in lines)


def entries_of(results: Figures, *names: str) -> Iterable[tuple[str, dict]]:
    """Return the measurements of these names that have a result."""
    return [(name, results[name]["figures"]) for name in names if "figures" in results.get(name, {})]


# What, beside what, its ratio and the page that tells of it: of scripts that `run_all.py` leaves out.
_LONGER = (
    ("influence of every word", "`transformers`, every text padded to 77", "13.6", "encoding"),
    ("the whole benchmark, from files", "the published procedure", "7.1", "evaluation"),
    ("mixed images", "the published script's loop in torch", "9.7", "images"),
    ("nineteen corruptions", "`imagecorruptions-imaug`", "5.1", "images"),
)


def ratios(results: Figures) -> str:
    """Return one line for each reference: the ratio, and the page that explains it."""
    rows = [[*row[:2], row[3], "encoding"] for row in tower_rows(results)]
    for what, name in (("small images", "input_small"), ("images as published", "input_published_size")):
        for _, figures in entries_of(results, name):
            kinds = figures["2 workers"]
            rows.append([f"training input, {what}", "a bare pool that only decodes", f"{kinds['folder']['ratio']:.2f}",
                         "training"])  # fmt: skip
    for _, figures in entries_of(results, "loss"):
        ours, torch = (figures["strategies"][name]["seconds"] for name in ("all_gather", "torch"))
        rows.append(["loss and gradients, 8,192 pairs", "torch, whole matrices", f"{torch / ours:.2f}", "training"])
    for _, figures in entries_of(results, "ranking"):
        rows += [["ranks, bounds and ties", "NumPy's product and argsort",
                  f"{figures['numpy_argsort_over_ranking']:.1f}", "ranking"],
                 ["ranks, bounds and ties", "the bare product alone", f"{1 / figures['ranking_over_product']:.2f}",
                  "ranking"]]  # fmt: skip
    rows += map(list, _LONGER)
    return table(["what", "beside", "ratio"],
                 [[f"[{what}](#{page})", peer, ratio] for what, peer, ratio, page in rows],
                 left=2)  # fmt: skip


def machine_table(results: Figures) -> str:
    rows = []
    for each in results.values():
        if "figures" in each:
            rows.append([f"`{each['command']}`", f"{each['seconds']:.0f}", f"{each['machine']['load']:.1f}"])
        else:
            rows.append([f"`{each['command']}`", each["failed"], ""])
    cpus = sorted({f"{each['machine']['cores']} cores, {each['machine']['cpu']}" for each in results.values()
                   if "machine" in each})  # fmt: skip
    return f"{'; '.join(cpus)}.\n\n" + table(["command", "seconds", "load at its end"], rows)


def tower_rows(results: Figures) -> list[list[str]]:
    """Towers beside other libraries: what, beside what, the rates and the ratio, and the largest difference."""
    rows = []
    for name, what, peer, key, part in (
        ("text_tower", "captions", "`transformers` padded to 77", "captions", None),
        ("text_open_clip", "captions", "open_clip padded to 77", "captions", "whole"),
        ("text_open_clip", "captions", "open_clip in batches of one length", "captions", "short"),
        ("image_tower", "images", "`transformers`", "images", None),
        ("files_to_vectors", "files to vectors", "open_clip with a DataLoader", "images", None),
    ):
        for _, figures in entries_of(results, name):
            each = figures[part] if part else figures
            rates = each[f"{key}_per_second"]
            rows.append([what, peer, f"{rates['ours']:.1f}/s, {rates['theirs']:.1f}/s", each["ratio_median_of_rounds"],
                         f"{each['largest_difference']:.0e}"])  # fmt: skip
    return rows


def reference_table(results: Figures) -> str:
    return table(["what", "beside", "ours, theirs", "ratio, median of rounds", "largest difference"],
                 tower_rows(results), left=2)  # fmt: skip


def training_input(results: Figures) -> str:
    rows = []
    for name, what in (("input_small", "small"), ("input_published_size", "as published")):
        for _, figures in entries_of(results, name):
            for workers, kinds in ((key, value) for key, value in figures.items() if key.endswith(" workers")):
                for kind, each in kinds.items():
                    if kind == "threads" or (
                        kind.endswith(" draft") and (what, kind) != ("as published", "folder draft")
                    ):
                        continue  # small images have nothing to skip, and files are decoded alike from everywhere
                    low, high = each["ratios"]
                    memory_bytes = each.get("held", {})
                    memory = (
                        f"{memory_bytes['worker_bytes'] / 1e6:.0f}, {memory_bytes['shared_bytes'] / 1e6:.0f}"
                        if memory_bytes
                        else ""
                    )
                    rows.append([what, f"{kind}, {workers}", f"{each['images_per_second']:,.0f}",
                                 f"{each['ratio']:.2f} ({low:.2f} to {high:.2f})", f"{each['processor_us']:,.0f}",
                                 f"{each['processor_ratio']:.2f}", f"{each['of_64_cores']:,}", memory])  # fmt: skip
    head = ["images", "input", "images/s", "ratio", "processor us an image", "ratio", "64 cores, predicted",
            "MB: a worker's own, shared"]  # fmt: skip
    return table(head, rows, left=2)


def ranking(results: Figures) -> str:
    rows, before = [], None
    for name, each in entries_of(results, *(f"ranking_{times}" for times in (1, 2, 4, 8)), "ranking_large"):
        images, captions, width = each["shape"]
        seconds, peak = each["seconds"]["ranking"], each["peak_memory_MB"]
        growth = f"{seconds / before:.1f}" if before and name != "ranking_large" else ""
        before = seconds
        ratio = [each["ranking_over_product"], each.get("ranking_over_product_in_processor_time", "")]
        rows.append([f"{images:,} x {captions:,} x {width}", seconds, growth, each["seconds"]["product"],
                     *ratio, round(peak), round(each["of_these_embeddings_MB"])])  # fmt: skip
    head = ["images x captions x width", "seconds", "times the line above", "bare product", "ratio",
            "in processor time", "peak MB", "of these embeddings"]  # fmt: skip
    return table(head, rows)


def loss(results: Figures) -> str:
    rows = []
    for _, figures in entries_of(results, "loss"):
        of_torch = figures["strategies"]["torch"]
        for name, each in figures["strategies"].items():
            rows.append([f"{name}, {figures['pairs']:,} pairs of {figures['width']}", f"{each['seconds']:.2f}",
                         f"{of_torch['seconds'] / each['seconds']:.2f}", f"{each['held_mib']:,.0f}",
                         f"{each['held_mib'] / of_torch['held_mib']:.3f}", f"{each['loss']:.6f}"])  # fmt: skip
    head = ["loss and its gradients", "seconds", "speed of torch's", "MiB above the start", "of torch's", "loss"]
    return table(head, rows)


def cold_start(results: Figures) -> str:
    rows = []
    for _, each in entries_of(results, "cold_start"):
        rows = [["`rococo --help`", each["help"]], ["`import rococo_jax`", each["import"]],
                ["a first caption's vector", each["first_embedding"]],
                ["the same, nothing compiled", each["first_embedding_uncached"]]]  # fmt: skip
    return table(["from a new process", "seconds"], rows)


# Programs that compile a training step, as the tables name them.
_STEPS = {
    "step_128": "rococo, v5e:2x2, 128 pairs",
    "big_vision_128": "big_vision, v5e:2x2, 128 pairs",
    "step_512": "rococo, v5e:2x2, 512 pairs",
    "big_vision_512": "big_vision, v5e:2x2, 512 pairs",
    "step_16_chips": "rococo, v5e:4x4, 128 pairs",
    "big_vision_16_chips": "big_vision, v5e:4x4, 128 pairs",
    "step_v6e": "rococo, v6e:2x2, 128 pairs",
    "big_vision_v6e": "big_vision, v6e:2x2, 128 pairs",
    "step_h100": "rococo, 8 H100, 128 pairs",
    "big_vision_h100": "big_vision, 8 H100, 128 pairs",
    "flags_asynchronous": "rococo, asynchronous all-reduces requested",
    "flags_fusion": "rococo, all-reduces fused with products requested",
    "flags_data_parallel": "rococo, pipelined all-reduces requested",
    "flags_vmem": "rococo, 96 MiB of on-chip memory requested",
    "step_3b": "rococo, v5e:4x4, 32 pairs, image tower of 3.0 billion parameters, fsdp=16",
    "step_384_pixels": "rococo, v5e:2x2, 64 pairs, 384 pixels (576 tokens)",
    "step_384_pixels_splash": "rococo, the same by splash attention",
    "step_512_pixels_einsum": "rococo, v5e:2x2, 32 pairs, 512 pixels (1,024 tokens), by einsums",
    "step_512_pixels": "rococo, the same by splash attention",
    "step_32_none": "rococo, v5e:2x2, 32 pairs, nothing recomputed",
    "step_32_unrolled": "rococo, the same with unrolled blocks",
    "jimm_32": "jimm, v5e:2x2, 32 pairs, nothing recomputed",
}
_OTHER_PROGRAMS = {
    "images_high": "images, float32 at `high`",
    "images_bfloat16": "images, bfloat16",
    "texts_high": "texts, float32 at `high`",
    "texts_bfloat16": "texts, bfloat16",
    "influence_bfloat16": "influence, bfloat16",
    "ranks": "ranks, 25,000 x 5,000",
    "mixing": "mixing, 128 images",
    "corruption_gaussian_noise": "Gaussian noise, 16 images",
    "corruption_defocus_blur": "defocus blur, 16 images",
    "corruption_glass_blur": "glass blur, 16 images",
    "corruption_fog": "fog, 16 images",
    "corruption_elastic_transform": "elastic transform, 16 images",
    "corruption_contrast": "contrast, 16 images",
    "gradients_float32": "sum of gradients, float32",
    "gradients_bfloat16": "sum of gradients, bfloat16",
    "step_sc_vc_grounding": "step, SC + VC + grounding, 64 pairs",
    "step_128": "step, contrastive alone, 128 pairs",
}


def _sent(figures: dict) -> list[str]:
    """Return the cells of collectives: in loops, outside, and how many of them are asynchronous."""
    inside, outside = figures["collectives_in_loops"], figures["collectives_outside"]
    cells = [f"{each['count']}, {each['mb']:,.1f}" for each in (inside, outside)]
    return [*cells, f"{figures['asynchronous']} of {inside['count'] + outside['count']}"]


def compiled_steps(results: Figures) -> str:
    rows = []
    for name, each in entries_of(results, *_STEPS):
        sizes = [f"{each['tflop']:.1f}", f"{each['gb']:.1f}", f"{each['logits_gb']:.1f}"]
        memory = [f"{each[key]:.2f}" for key in ("temporaries_gb", "peak_gb")]
        rows.append([_STEPS[name], *sizes, *memory, *_sent(each)])
    head = ["program", "TFLOP", "GB through memory", "of attention logits", "temporaries, GB", "peak, GB",
            "collectives in loops, MB a turn", "outside, MB", "asynchronous"]  # fmt: skip
    return table(head, rows)


def compiled_programs(results: Figures) -> str:
    rows = []
    for name, each in entries_of(results, *_OTHER_PROGRAMS):
        others = ", ".join(f"{part} {share:.2f}" for part, share in each["others_of_limit"].items())
        rows.append([_OTHER_PROGRAMS[name], f"**{each['limit']}**; {others}", f"{each['tflop']:.3g}",
                     f"{each['vector_gop']:.3g}", f"{each['gb']:.3g}", f"{1000 * each['tflop'] / each['gb']:.0f}",
                     f"{each['temporaries_gb']:.2f}", _sent(each)[1]])  # fmt: skip
    head = ["program", "limited by; others beside it", "TFLOP", "vector, Gop", "GB", "FLOP a byte", "temporaries, GB",
            "collectives, MB"]  # fmt: skip
    return table(head, rows, left=2)


TABLES: dict[str, Callable[[Figures], str]] = {
    "ratios": ratios,
    "machine": machine_table,
    "beside": reference_table,
    "training input": training_input,
    "ranking": ranking,
    "loss": loss,
    "cold start": cold_start,
    "compiled steps": compiled_steps,
    "compiled programs": compiled_programs,
}


def with_tables(page: str, results: Figures) -> str:
    """Return the page with updated tables."""
    return _BLOCK.sub(lambda block: f"{block[1]}\n{TABLES[block[2]](results)}\n{block[4]}", page)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    pages = {
        DOCS / "research" / "performance.md": "performance.json",
        Path(__file__).with_name("README.md"): "performance.json",
        DOCS / "research" / "compiled.md": "compiled.json",
    }
    for path, figures in pages.items():
        page = path.read_text()
        updated = with_tables(page, json.loads((DOCS / figures).read_text()))
        if arguments.check and updated != page:
            sys.exit(f"{path}: found tables of other figures; wanted those of {DOCS / figures}")
        path.write_text(updated)


if __name__ == "__main__":
    main()
