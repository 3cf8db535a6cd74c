"""A results.json with the tables beside it, under the names that its tasks have in a report."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rococo_jax.evaluation.examples import Example, read_examples
from rococo_jax.evaluation.results import PAIRS, PER_QUERY
from rococo_jax.evaluation.stored_counts import CountsByVariant, read_counts
from rococo_jax.evaluation.table_metadata import read_rows

_CONTENTS = {PER_QUERY: "queries", PAIRS: "pairs"}


@dataclasses.dataclass(frozen=True)
class ResultsFile:
    """A results.json with the tables beside it.

    Attributes:
        stored: the checked content.
        tasks: the name in the file of each task, by its name in the report.
    """

    path: Path
    stored: dict[str, Any]
    tasks: Mapping[str, str]

    @property
    def table(self) -> Path:
        """The per_query.parquet beside it."""
        return self.path.parent / PER_QUERY

    def rows(self, name: str = PER_QUERY, columns: Sequence[str] | None = None) -> Any:
        """Return the rows of its tasks in a table beside it, an Arrow table with their names in the report.

        Raises InputError: there is no such table, or see `table_metadata.read_rows`.
        """
        import pyarrow as pa

        expected = f"the table of {_CONTENTS[name]} that `rococo evaluate` writes beside results.json"
        table = read_rows(self.path.with_name(name), expected, columns=columns)
        reported = {stored: task for task, stored in self.tasks.items()}
        tasks = pa.array([reported.get(stored) for stored in table["task"].to_pylist()], pa.string())
        return table.set_column(table.column_names.index("task"), "task", tasks).filter(tasks.is_valid())

    def counts(self, variants: Mapping[str, Sequence[str]]) -> CountsByVariant:
        """Return the counts of variants, by task; see `read_counts`."""
        names = {self.tasks[task]: task for task in variants}
        counts = read_counts(self.table, self.stored, {name: variants[task] for name, task in names.items()})
        return {(names[name], variant): of_variant for (name, variant), of_variant in counts.items()}

    def examples(self) -> list[Example]:
        """Return the examples beside it."""
        names = {name: task for task, name in self.tasks.items()}
        examples = read_examples(self.path.parent)
        return [dataclasses.replace(each, task=names[each.task]) for each in examples if each.task in names]
