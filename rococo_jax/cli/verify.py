"""`rococo verify`: recompute the numbers of results, or audit a folder of benchmark annotations."""

import dataclasses
from pathlib import Path
from typing import Annotated

from rococo_jax.cli.outputs import output_file
from rococo_jax.options import Option

EXAMPLES = """\
  rococo verify out
  rococo verify --annotations rococo/annotations
  rococo verify --annotations rococo/annotations --images coco/images --out verified.json
  rococo verify --annotations sugar_crepe --images coco/images

Exit code 1 if a number differs; each is named with its stored and its recomputed value."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Recompute the numbers of results from their rows, or count and check benchmark annotations; correct nothing.

    Attributes:
        results: results.json files, or folders that contain them, with their per_query.parquet and reports
        annotations: folder of annotation files
        images: with --annotations: folder of images, to count missing ones
        out: write the complete report, with examples, as JSON
    """

    results: Annotated[tuple[str, ...], Option("RESULTS", positional=True)] = ()
    annotations: Annotated[str | None, Option("DIR")] = None
    images: Annotated[str | None, Option("DIR")] = None
    out: Annotated[str | None, Option("FILE", check=output_file)] = None


def run(options: Options) -> int:
    """Print the report. Returns 1 if a number differs; irregularities of annotations are reported and are no errors."""
    from rococo_jax.errors import InputError

    if bool(options.results) == (options.annotations is not None):
        problem = "both" if options.results else "neither"
        raise InputError("rococo verify", "input", problem, "RESULTS or --annotations DIR")
    if options.results:
        return _verify_results(options)

    from rococo_jax.benchmarks.audit import audit, audit_lines
    from rococo_jax.storage import write_json

    report = audit(Path(options.annotations), None if options.images is None else Path(options.images))
    if options.out:
        write_json(options.out, {"annotations": options.annotations, **report})
    print("\n".join(audit_lines(report)))
    return 0


def _verify_results(options: Options) -> int:
    from rococo_jax.report.verification import verify_results
    from rococo_jax.storage import write_json

    count, differences = verify_results(options.results)
    if options.out:
        rows = [{**vars(each), "file": str(each.file)} for each in differences]
        write_json(options.out, {"compared": count, "differences": rows})
    for difference in differences:
        print(difference)
    print(f"{count:,} values compared: {f'{len(differences):,} differ' if differences else 'all equal'}")
    return 1 if differences else 0
