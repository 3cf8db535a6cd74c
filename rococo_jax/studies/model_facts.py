"""Comparisons of groups of models that share a fact (`report.model_facts`), such as their training data.

The groups are compared in each variable by the Kruskal-Wallis test (SciPy), which needs no normal distribution, with
Holm's correction over all tests of the study. A group of few models says little, and models of one group often share
more than the fact.

`runs_of_the_same_data` reads the results of a study: of the same data under the same protocol, each model once.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy import stats

from rococo_jax.errors import InputError
from rococo_jax.evaluation.conditions import conditions_of
from rococo_jax.metrics.correlation import holm
from rococo_jax.progress import say
from rococo_jax.report.blocks import Block, Cell, Head, Note, Part, Table
from rococo_jax.report.collection import Run, group_by_fingerprint, load_results, runs_of
from rococo_jax.report.comparable import field_name
from rococo_jax.report.difference import p_value
from rococo_jax.report.facts import runs_by_size
from rococo_jax.report.model_facts import ModelFacts

COLUMNS = ("fact", "group", "models", "variable", "mean", "sd", "p", "p_holm")


def comparable_runs(sources: Sequence[str]) -> tuple[Run, ...]:
    """Read results whose metrics are compared; see `load_results`.

    Raises InputError: there are none, they differ in more than the model, or a model has several image sizes.
    """
    groups = group_by_fingerprint(load_results(sources))
    if len(groups) > 1:
        fields = [field for field, *_ in groups[1].differences]
        _refuse(f"{len(groups)} kinds that differ in {_shortened(fields)}")
    _check_one_size_each(groups[0].runs)
    return groups[0].runs


def runs_of_the_same_data(sources: Sequence[str]) -> tuple[Run, ...]:
    """Read results whose single answers are compared. Variants that are means may be over other seeds or corruptions.

    Raises InputError: there are none, they are of other data or another protocol, or a model has several image sizes.
    """
    runs = runs_of(load_results(sources))
    first_of_task: dict[str, tuple[Run, dict[str, str]]] = {}
    runs_of_task: dict[str, list[Run]] = {}
    for run in runs:
        for benchmark in conditions_of(run.results):
            for task in dict.fromkeys(task for task, _ in benchmark.variants):
                first, shared = first_of_task.setdefault(task, (run, benchmark.shared))
                runs_of_task.setdefault(task, []).append(run)
                fields = {**shared, **benchmark.shared}
                differing = [field for field in fields if shared.get(field) != benchmark.shared.get(field)]
                if differing := [field_name(("benchmark", benchmark.name), field) for field in differing]:
                    _refuse(f"{run.path}, which differs from {first.path} in {_shortened(sorted(differing))}")
    for run in runs if len(runs) > 1 else ():
        if all(len(runs_of_task[task]) == 1 for task in run.tasks):
            _refuse(f"{run.path}, which has no benchmark in common with the other results")
    _check_one_size_each(runs)
    return runs


def _refuse(problem: str) -> None:
    raise InputError("RESULTS", "results", problem, "results that differ only in the model")


def _shortened(fields: Sequence[str]) -> str:
    return ", ".join(fields[:3])


def _check_one_size_each(runs: Sequence[Run]) -> None:
    """Raise InputError if a model has results at two image sizes, which a study would count as two models."""
    for model, of_size in runs_by_size(runs).items():
        sizes = ", ".join(map(str, of_size))
        raise InputError("RESULTS", "image size", f"{model} at {sizes} pixels", "one size for each model")


@dataclasses.dataclass(frozen=True)
class Group:
    """The models of one group in one variable: their number, mean and standard deviation (NaN for one model)."""

    name: str
    models: int
    mean: float
    sd: float


@dataclasses.dataclass(frozen=True)
class Comparison:
    """One variable in the groups of one fact, with the p-value of the test and after the correction."""

    fact: str
    variable: str
    groups: tuple[Group, ...]
    p: float
    p_holm: float

    def record(self) -> dict[str, Any]:
        """Return the comparison as JSON values; the standard deviation of a single model is None."""
        record = dataclasses.asdict(self)
        for group in record["groups"]:
            group["sd"] = None if np.isnan(group["sd"]) else group["sd"]
        return record


def compare_groups(
    facts: ModelFacts, variables: Sequence[str], values: Float[np.ndarray, "variables models"]
) -> list[Comparison]:
    """Compare the groups of every fact in every variable. A fact is left out if no two groups differ or none has two.

    Models with an empty cell are left out of that fact.
    """
    tests = []
    for fact, group_of_model in facts.groups.items():
        names = [name for name in dict.fromkeys(group_of_model) if name]
        members = {name: [row for row, group in enumerate(group_of_model) if group == name] for name in names}
        if len(names) < 2 or max(map(len, members.values())) < 2:
            say(f"{fact}: not compared: it needs two groups, one of them of two models or more")
            continue
        for variable, row in zip(variables, values, strict=True):
            samples = {name: row[members[name]] for name in names}
            p = float(stats.kruskal(*samples.values()).pvalue) if np.ptp(np.concatenate([*samples.values()])) else 1.0
            groups = [
                Group(name, len(sample), float(sample.mean()), float(sample.std(ddof=1)) if len(sample) > 1 else np.nan)
                for name, sample in samples.items()
            ]
            tests.append((fact, variable, tuple(groups), p))
    corrected = holm(np.array([p for *_, p in tests]))
    return [Comparison(*test, float(p_holm)) for test, p_holm in zip(tests, corrected, strict=True)]


def csv_rows(comparisons: Sequence[Comparison]) -> list[list[object]]:
    """Return the heading and a row for each group and variable."""
    rows: list[list[object]] = [[*COLUMNS]]
    for each in comparisons:
        for group in each.record()["groups"]:
            name, models, mean, sd = group.values()
            rows.append([each.fact, name, models, each.variable, mean, "" if sd is None else sd, each.p, each.p_holm])
    return rows


def facts_parts(comparisons: Sequence[Comparison]) -> list[Part]:
    """Return a part of the page for each fact: a table of variables by groups."""
    note = Note(
        f"Mean over the models of a group, and their standard deviation. p is of the Kruskal-Wallis test, with Holm's "
        f"correction for all {len(comparisons)} tests; below it the raw one. Models of one group may share more than "
        "this fact, so a difference is not an effect of it."
    )
    return [
        Part(f"By {fact}", _blocks(fact, [each for each in comparisons if each.fact == fact], note), "group")
        for fact in dict.fromkeys(each.fact for each in comparisons)
    ]


def _blocks(fact: str, comparisons: Sequence[Comparison], note: Note) -> list[Block]:
    groups = comparisons[0].groups
    heads = [Head("Variable", words=True), *(Head(f"{group.name} ({group.models})") for group in groups)]
    heads.append(Head("p, Holm", edge=True))
    rows = []
    for each in comparisons:
        # RAS and the like are fractions of one; percentages have one decimal.
        decimals = 1 if max(abs(group.mean) for group in each.groups) >= 1 else 3
        cells = [
            Cell(
                f"{group.mean:.{decimals}f}",
                () if np.isnan(group.sd) else (f"± {group.sd:.{decimals}f}",),
                group.mean,
            )
            for group in each.groups
        ]
        rows.append([Cell(each.variable, words=True), *cells, _p_cell(each)])
    return [note, Table(f"By {fact}", heads, rows, sortable=True)]


def _p_cell(comparison: Comparison) -> Cell:
    corrected, raw = p_value(comparison.p_holm), p_value(comparison.p)
    return Cell(corrected, (f"raw {raw}",), comparison.p_holm, edge=True, strong=comparison.p_holm < 0.05)
