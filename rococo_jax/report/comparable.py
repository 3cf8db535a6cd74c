"""Decide which results are comparable: for each variant of each benchmark, whatever else their files contain.

Results that measured a variant under the same conditions (`evaluation.conditions`) are in one section of the page. The
order of the files decides which section comes first, and not who shares one.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rococo_jax.errors import object_of
from rococo_jax.evaluation.conditions import conditions_of
from rococo_jax.evaluation.sections import BY_BENCHMARK, BY_TASK, BY_VARIANT, change_part, only
from rococo_jax.storage import hash_json

# ("benchmark", name), ("task", name) or ("variant", task, variant): the place that a condition holds for.
_Place = tuple[str, ...]


@dataclasses.dataclass
class Section:
    """Conditions that the members of a group share.

    Attributes:
        fields: conditions by place. All variants of a benchmark, and of a task, have the same shared conditions.
        members: variants by task of each result of the group, by its number.
    """

    fields: dict[_Place, dict[str, str]] = dataclasses.field(default_factory=dict)
    members: dict[int, dict[str, list[str]]] = dataclasses.field(default_factory=dict)

    def takes(self, conditions: Mapping[_Place, dict[str, str]]) -> bool:
        """Whether these conditions agree with those of all members."""
        return all(self.fields.get(place, fields) == fields for place, fields in conditions.items())


def sections_of(contents: Sequence[dict[str, Any]]) -> list[Section]:
    """Return the sections of the contents of results files, in the order in which their first file was named."""
    sections: list[Section] = []
    for number, content in enumerate(contents):
        for benchmark in conditions_of(content):
            protocol = {"protocol": benchmark.shared["protocol"]}
            for (task, variant), fields in benchmark.variants.items():
                # A section has one protocol.
                conditions: dict[_Place, dict[str, str]] = {(): protocol}
                conditions |= {("benchmark", benchmark.name): benchmark.shared, ("task", task): benchmark.shared}
                conditions["variant", task, variant] = fields
                section = next((each for each in sections if each.takes(conditions)), None)
                if section is None:
                    sections.append(section := Section())
                section.fields |= conditions
                section.members.setdefault(number, {}).setdefault(task, []).append(variant)
    return sections


def only_variants(content: dict[str, Any], variants: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return contents with these variants of these tasks alone."""
    if all(len(variants.get(task, ())) == len(of_task) for task, of_task in content["tasks"].items()):
        return content

    def filtered(by_task: Mapping[str, Any]) -> dict[str, Any]:
        return {task: only(variants[task])(of_task) for task, of_task in by_task.items()}

    for path in BY_TASK:
        content = change_part(content, path, only(variants))
    for path in BY_VARIANT:
        content = change_part(content, path, filtered)
    benchmarks = {
        name: each for name, each in object_of(content.get("benchmarks")).items() if {*each["tasks"]} & {*variants}
    }
    if not benchmarks:
        return content
    for path in BY_BENCHMARK:
        content = change_part(content, path, only(benchmarks))
    return content | {"notes": list(dict.fromkeys(note for each in benchmarks.values() for note in each["notes"]))}


def with_common_names(contents: Sequence[dict[str, Any]]) -> list[tuple[dict[str, Any], dict[str, str]]]:
    """Return contents in which a benchmark with the same data has the same name, and their new names of tasks.

    The name is that of the first results with this data. Results that have the data twice keep their names.
    """
    names: dict[str, str] = {}
    renamed = []
    for content in contents:
        new_tasks: dict[str, str] = {}
        present = set(object_of(content.get("benchmarks")))
        for benchmark in conditions_of(content):
            if not benchmark.data or not benchmark.name:
                continue
            name = names.setdefault(hash_json(benchmark.data), benchmark.name)
            if name != benchmark.name and name not in present:
                present.add(name)
                content, tasks = _renamed(content, benchmark.name, name)
                new_tasks |= tasks
        renamed.append((content, new_tasks))
    return renamed


def _renamed(content: dict[str, Any], old: str, new: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return contents with another name of a benchmark and of tasks that begin with it, and new name -> old name."""
    about = content["benchmarks"][old]
    tasks = {task: new + task.removeprefix(old) for task in about["tasks"] if task.startswith(old)}
    tasks = {task: name for task, name in tasks.items() if name not in content["tasks"]}

    def with_names(names: Mapping[str, str]) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
        return lambda value: {names.get(name, name): each for name, each in value.items()}

    for path in BY_TASK:
        content = change_part(content, path, with_names(tasks))
    for path in BY_BENCHMARK:
        content = change_part(content, path, with_names({old: new}))
    about = {**about, "tasks": [tasks.get(task, task) for task in about["tasks"]]}
    content = {**content, "benchmarks": {**content["benchmarks"], new: about}}
    return content, {name: task for task, name in tasks.items()}


def differences(first: Section, this: Section) -> list[tuple[str, str, str]]:
    """Return the conditions in which a section differs from the first one, in what both have, each once."""
    rows: dict[str, tuple[str, str, str]] = {}
    # Benchmarks of two names may have tasks of the same name, and only then do tasks show more than benchmarks.
    for kinds in (((), ("benchmark",), ("variant",)), (("task",),)):
        for place in [place for place in this.fields if place[:1] in kinds and not (rows and kinds == (("task",),))]:
            one, other = first.fields.get(place, this.fields[place]), this.fields[place]
            for field in {**one, **other}:
                if one.get(field) != other.get(field):
                    name = field_name(place, field)
                    rows.setdefault(name, (name, one.get(field, "not recorded"), other.get(field, "not recorded")))
    return list(rows.values())


def field_name(place: _Place, field: str) -> str:
    """Return the name of a condition for readers.

    >>> field_name(("benchmark", "rococo"), "data.captions"), field_name(("variant", "rococo", "mix_0.9"), "seeds")
    ('data.rococo.captions', 'seeds of rococo, mix_0.9')
    """
    kind, *names = place or ("",)
    if kind == "variant":
        return f"{field} of {', '.join(names)}"
    is_data = bool(names and names[0]) and field.partition(".")[0] == "data"
    return f"data.{names[0]}{field.removeprefix('data')}" if is_data else field
