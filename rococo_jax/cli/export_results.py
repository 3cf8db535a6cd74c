"""`rococo export-results`: results in the forms in which other sites collect them."""

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from rococo_jax.cli.outputs import output_folder
from rococo_jax.options import Option

if TYPE_CHECKING:  # loads NumPy
    from rococo_jax.report.collection import Run

EXAMPLES = """\
  rococo export-results out --to every-eval-ever --out records --organization "My Lab"
  rococo export-results out/clip-b32 --to hub --out shared --source https://example.org/results
  rococo export-results out/clip-b32 --to hub --out shared --dataset image_to_text=me/rococo:i2t
  hf upload me/clip-b32 shared .                        publish it in the model's repository

hub: .eval_results/BENCHMARK.yaml with the headline of each task. The hub shows it on a leaderboard if the data set is
registered there as a benchmark; its eval.yaml has the names of tasks.
every-eval-ever: data/rococo_jax/DEVELOPER/MODEL/UUID.json with every metric, and UUID_samples.jsonl with a line for
each query or item."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Write results for the Hugging Face hub (.eval_results) or as records of Every Eval Ever.

    Attributes:
        results: results.json files, or folders that contain them
        to: form of the results
        out: the new folder; for the hub, several models have a folder each
        datasets: for the hub: data set of a task, and the task's name there, if it is another than here
        source: for the hub: address of a page about the results
        developer: for every-eval-ever: who made the models whose names have no organization (ORG/NAME)
        organization: for every-eval-ever: who evaluated them
        relationship: for every-eval-ever: relationship of the evaluator to the developer
    """

    results: Annotated[tuple[str, ...], Option("RESULTS", positional=True)]
    to: Literal["hub", "every-eval-ever"]
    out: Annotated[str, Option("DIR", check=output_folder)]
    datasets: Annotated[tuple[tuple[str, str], ...], Option("TASK=ORG/NAME", flag="dataset")] = ()
    source: Annotated[str | None, Option("URL")] = None
    developer: str = "unknown"
    organization: str = "unknown"
    relationship: Literal["first_party", "third_party", "collaborative", "other"] = "other"


def run(options: Options) -> None:
    from rococo_jax.report.collection import load_results, runs_of
    from rococo_jax.storage import atomic_directory

    runs = runs_of(load_results(options.results))
    write = _write_records if options.to == "every-eval-ever" else _write_for_hub
    with atomic_directory(options.out) as folder:
        lines = write(folder, runs, options)
    print("\n".join(lines))


def _write_records(folder: Path, runs: Sequence["Run"], options: Options) -> list[str]:
    from rococo_jax.report.every_eval_ever import write_record

    about = {name: getattr(options, name) for name in ("developer", "organization", "relationship")}
    paths = [path for run in runs for path in write_record(folder, run, about)]
    return [f"{options.out}/{path.relative_to(folder)}" for path in paths]


def _write_for_hub(folder: Path, runs: Sequence["Run"], options: Options) -> list[str]:
    from rococo_jax.errors import InputError, unknown_name
    from rococo_jax.report.hub_results import hub_entries, portable_name, write_hub_results

    tasks = dict.fromkeys(task for run in runs for task in run.tasks)
    for task, name in options.datasets:
        if task not in tasks:
            raise unknown_name("--dataset", "task", task, tasks)
        if not re.fullmatch(r"[\w.-]+/[\w.-]+(:.+)?", name):
            raise InputError("--dataset", task, name, "ORG/NAME or ORG/NAME:TASK, as on the hub")
    paths, reasons = [], []
    for run in runs:
        entries, left_out = hub_entries(run, dict(options.datasets), options.source)
        of_run = folder if len(runs) == 1 else folder / portable_name(run.label)
        paths += write_hub_results(of_run, entries) if entries else []
        reasons += [f"{run.label}: {task} is left out: {reason}" for task, reason in left_out.items()]
    if not paths:
        reason = "; ".join(reasons[:1]) or "no tasks"
        raise InputError(
            ", ".join(options.results), "results", reason, "--dataset TASK=ORG/NAME, of the whole benchmark"
        )
    return [*(f"{options.out}/{path.relative_to(folder)}" for path in paths), *reasons]
