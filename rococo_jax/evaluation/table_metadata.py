"""Hash in the metadata of each table that identifies the results it was written with.

It prevents reading a table together with the `results.json` of another evaluation. The hash is of the numbers in
`results.json`, not of the whole file, so the same numbers from a data folder of another name give the same tables.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rococo_jax.errors import InputError
from rococo_jax.evaluation.results import RESULTS
from rococo_jax.storage import hash_json, read_json, read_table

_KEY = b"rococo_jax.results"


def numbers_hash(results: Mapping[str, Any]) -> str:
    """Return the hash of the numbers of results and of what decides them; folders and notes are no part of it."""
    parts = {part: results.get(part) for part in ("fingerprint", "tasks", "intervals", "sizes")}
    return hash_json(json.loads(json.dumps(parts)))


def written_with(table: Any, numbers: str) -> Any:
    """Return the table with the hash of the numbers of the results that it belongs to in its metadata."""
    return table.replace_schema_metadata({**(table.schema.metadata or {}), _KEY: numbers.encode()})


def numbers_of(schema: Any) -> str | None:
    """Return the hash of the numbers that a table was written with; None if it has no such hash."""
    stored = (schema.metadata or {}).get(_KEY)
    return None if stored is None else stored.decode()


def read_rows(path: Path, expected: str, *, any_results: bool = False, **options: Any) -> Any:
    """Read a table of results; `expected` describes it for errors, `options` are those of `read_table`.

    With `any_results`, the table may have been written with other results than those beside it.

    Raises:
        InputError: the file is damaged, or was written with other results than the `results.json` beside it. Such files
            are left by an evaluation that was killed while it replaced results, or by copying single files.
    """
    table = read_table(path, expected, **options)
    numbers, results = numbers_of(table.schema), path.with_name(RESULTS)
    if any_results or numbers is None or not results.exists():
        return table
    stored = read_json(results, "a results file")
    if isinstance(stored, dict) and numbers_hash(stored) != numbers:
        problem = f"rows of another evaluation than that of {RESULTS}"
        raise InputError(path, "results", problem, "those of the same evaluation; run it again")
    return table
