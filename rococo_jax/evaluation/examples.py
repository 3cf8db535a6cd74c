"""Error examples, and examples of correct preferences with and without the image, with small pictures.

Examples are selected during the evaluation, while the images are available: the most confident ones of each variant
first, with the variants of a task alternating, and each image at most once per task and role. `examples.parquet` beside
`results.json` contains everything that a report shows, so a report needs neither images nor annotations.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from rococo_jax.benchmarks.benchmark import Benchmark
from rococo_jax.benchmarks.tasks import Example, Outcome, Side
from rococo_jax.data.pictures import thumbnail_jpeg
from rococo_jax.evaluation.table_metadata import read_rows, written_with
from rococo_jax.progress import progress
from rococo_jax.storage import atomic_write, whole_file

__all__ = ["EXAMPLES", "Example", "Side", "collect_examples", "read_examples", "write_examples"]

EXAMPLES = "examples.parquet"
ERRORS_A_TASK = 12
WON_A_TASK = 4  # of each role
_LONGEST_SIDE = 320  # px: sharp at the size that a page shows, about 20 kB each
_SIDES = ("query", "right", "wrong")


def collect_examples(benchmark: Benchmark, outcomes: Sequence[Outcome], count: int = ERRORS_A_TASK) -> list[Example]:
    """Return up to `count` errors of each task and some correct preferences, with pictures."""
    selected = []
    for task in dict.fromkeys(outcome.task for outcome in outcomes):
        of_task = [each for each in outcomes if each.task == task]
        selected += _alternate(_errors(of_task, benchmark, count), count)
        for role in ("won_blind", "won_looking"):
            selected += _alternate(_won(of_task, benchmark, role), WON_A_TASK)
    pictures: dict[tuple[str, int], bytes | None] = {}

    def with_picture(side: Side) -> Side:
        if side.picture is None:
            return side
        name, row = side.picture
        if side.picture not in pictures:
            pictures[side.picture] = thumbnail_jpeg(benchmark.image_sets[name].thumbnail(row), _LONGEST_SIDE)
        note = side.note or benchmark.image_sets[name].note(row)
        return dataclasses.replace(side, jpeg=pictures[side.picture], note=note, picture=None)

    examples = []
    with progress("drawing examples", len(selected), "examples") as advance:
        for example in selected:
            examples.append(
                dataclasses.replace(example, **{side: with_picture(getattr(example, side)) for side in _SIDES})
            )
            advance(1)
    return examples


def _errors(outcomes: Sequence[Outcome], benchmark: Benchmark, count: int) -> dict[str, list[Example]]:
    """Return the errors of each variant, most confident last, and after them that with an own altered item."""
    waiting: dict[str, list[Example]] = {}
    for outcome in outcomes:
        # Images of other variants are skipped, so each variant offers more than its share.
        waiting.setdefault(outcome.variant, []).extend(outcome.errors(benchmark, 2 * count))
    for errors in waiting.values():
        errors.sort(key=lambda each: each.wrong_score - each.right_score)
        if own_altered := [each for each in errors if each.kind == "own_altered"]:
            errors.remove(own_altered[-1])
            errors.append(own_altered[-1])
    return waiting


def _won(outcomes: Sequence[Outcome], benchmark: Benchmark, role: str) -> dict[str, list[Example]]:
    """Return the pairs of each variant whose original won, for one role, in reverse order."""
    waiting: dict[str, list[Example]] = {}
    for outcome in outcomes:
        won = [each for each in outcome.won(benchmark) if each.role == role]
        waiting.setdefault(outcome.variant, []).extend(won)
    return {variant: won[::-1] for variant, won in waiting.items()}


def _alternate(waiting: dict[str, list[Example]], count: int) -> list[Example]:
    """Take the last example of each variant in turn, with each image at most once."""
    selected, used_images = [], set()
    while len(selected) < count and any(waiting.values()):
        for errors in waiting.values():
            while errors and _image(errors[-1]) in used_images:
                errors.pop()
            if errors and len(selected) < count:
                selected.append(dataclasses.replace(errors.pop(), order=len(selected)))
                used_images.add(_image(selected[-1]))
    return selected


def _image(example: Example) -> str:
    """Return the image of an example: the query, or else the right answer."""
    return example.query.image or example.right.image


def write_examples(folder: Path, examples: Sequence[Example], numbers: str | None = None) -> None:
    """Write `examples.parquet`, by rename; `numbers` is the hash of the numbers of its results."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    side = pa.struct([("text", pa.string()), ("image", pa.string()), ("jpeg", pa.binary()), ("note", pa.string())])
    types = {"seed": pa.int64(), "order": pa.int64(), "right_score": pa.float64(), "wrong_score": pa.float64()}
    names = [field.name for field in dataclasses.fields(Example)]
    schema = pa.schema([(name, side if name in _SIDES else types.get(name, pa.string())) for name in names])
    rows = [dataclasses.asdict(example) for example in examples]
    for row in rows:
        for name in _SIDES:
            row[name].pop("picture")
    table = pa.Table.from_pylist(rows, schema=schema)
    with atomic_write(folder / EXAMPLES) as temporary:
        parquet.write_table(written_with(table, numbers) if numbers else table, temporary, write_page_checksum=True)


def read_examples(folder: Path) -> list[Example]:
    """Read the examples beside a `results.json`; there are none if the file does not exist (`rococo score`).

    Raises InputError: the file is damaged, or belongs to other results than those beside it.
    """
    path = folder / EXAMPLES
    if not path.is_file():
        return []
    expected = "the examples that `rococo evaluate` writes"
    rows = read_rows(path, expected).to_pylist()
    with whole_file(path, expected):
        return [Example(**{**row, **{side: Side(**row[side]) for side in _SIDES}}) for row in rows]
