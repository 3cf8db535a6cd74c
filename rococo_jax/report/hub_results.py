"""Results in the form of the Hugging Face hub: `.eval_results/*.yaml` in a model's repository.

Format: https://huggingface.co/docs/hub/eval-results. An entry is one number on a leaderboard: data set, task and value.
Of each task it is the headline, the number that ranks models; the page and the model card have all others.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rococo_jax.benchmarks.benchmark import downloads_of
from rococo_jax.benchmarks.pooling import coverage_phrase
from rococo_jax.benchmarks.subset import phrase_of
from rococo_jax.errors import object_of
from rococo_jax.evaluation.journal import evaluation_time
from rococo_jax.metrics import metric_of
from rococo_jax.report.collection import Run
from rococo_jax.storage import write_text

_HUB_URL = re.compile(r"hf://datasets/([^/@]+/[^/@]+)@([^/]+)/")
_UNPORTABLE = re.compile(r'[<>:"/\\|?*\x00-\x1f]')


def portable_name(name: str) -> str:
    """Return a name as that of a file or folder on every system.

    >>> portable_name("openai/clip: large."), portable_name("..")
    ('openai_clip_ large', '_')
    """
    return _UNPORTABLE.sub("_", name).rstrip(". ") or "_"


def hub_data_set(benchmark: str) -> tuple[str, str | None] | None:
    """Return the hub's data set of a benchmark and its commit, from the address of its files; None if it has none.

    >>> hub_data_set("winoground")
    ('facebook/winoground', 'b400e173549071916ad1b3d449293bc8d8b4b763')
    """
    matches = [match for each in downloads_of(benchmark) if (match := _HUB_URL.match(each.url))]
    if not matches:
        return None
    name, revision = matches[0].groups()
    return name, revision if re.fullmatch("[0-9a-f]{40}", revision) else None


def hub_entries(
    run: Run, data_sets: Mapping[str, str], source: str | None = None
) -> tuple[dict[str, list[dict[str, Any]]], dict[str, str]]:
    """Return the entries of each benchmark, and why other tasks have none.

    A part of a benchmark is left out: a leaderboard would rank it beside results of the whole.

    Args:
        data_sets: `ORG/NAME` or `ORG/NAME:TASK` by task; the benchmark's own data set and the task's name by default.
        source: address of a page about the results.
    """
    entries: dict[str, list[dict[str, Any]]] = {}
    left_out: dict[str, str] = {}
    for task in run.tasks:
        benchmark, headline = run.benchmark_of(task) or task, run.headline(task)
        if headline is None:
            left_out[task] = "it has no headline"
            continue
        if part := _part_of(run, task, benchmark, headline.variant):
            left_out[task] = f"it has {part}, and the leaderboard has results of the whole"
            continue
        if task in data_sets:
            name, _, task_id = data_sets[task].partition(":")
            data_set: dict[str, Any] = {"id": name, "task_id": task_id or task}
        elif known := hub_data_set(benchmark):
            data_set = {"id": known[0], "task_id": task} | ({"revision": known[1]} if known[1] else {})
        else:
            left_out[task] = "no data set of the hub is known for it"
            continue
        estimate, sizes = run.estimate(task, headline.variant, headline.metric), run.sizes(task)
        metric, size = metric_of(headline.metric), sizes.get(headline.variant, {})
        phrases = [f"{metric.label} of {headline.variant}, {metric.unit or 'no unit'}"]
        if estimate.has_interval:
            phrases.append(f"95 % interval {estimate.low:.2f} to {estimate.high:.2f}")
        phrases += [f"{size[name]} {name}" for name in ("queries", "items", "images") if name in size][:1]
        version = run.results["fingerprint"].get("versions", {}).get("rococo_jax")
        phrases.append(f"protocol {run.results['protocol']}, rococo_jax {version or 'unknown'}")
        entry = {
            "dataset": data_set,
            "value": estimate.value,
            "date": f"{evaluation_time(run.path, run.results):%Y-%m-%d}",
        }
        entry |= {"source": {"url": source, "name": "rococo_jax"}} if source else {}
        entries.setdefault(benchmark, []).append(entry | {"notes": "; ".join(phrases)})
    return entries, left_out


def _part_of(run: Run, task: str, benchmark: str, variant: str) -> str:
    """Return a phrase for the part of a benchmark that was evaluated; empty for all of it."""
    data = run.data.get(benchmark, {})
    coverage = object_of(data.get("coverage"))
    if coverage.get("complete") is False:
        # Fewer than are present with a limit.
        return f"{data.get('image_count', coverage.get('present'))} of {coverage.get('wanted')} images"
    return phrase_of(data) or coverage_phrase(run.sizes(task).get(variant, {})).strip(" ()")


def write_hub_results(folder: Path, entries: Mapping[str, list[dict[str, Any]]]) -> list[Path]:
    """Write a file for each benchmark into `folder/.eval_results`; return their paths."""
    from huggingface_hub.utils import yaml_dump

    (folder / ".eval_results").mkdir(parents=True)
    paths = {name: folder / ".eval_results" / f"{name}.yaml" for name in entries}
    return [write_text(paths[name], yaml_dump(each)) for name, each in entries.items()]
