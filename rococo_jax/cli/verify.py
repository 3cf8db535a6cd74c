"""`rococo verify`: recompute the numbers of results, or audit a folder of benchmark annotations."""

import dataclasses
from pathlib import Path
from typing import Annotated

from rococo_jax.cli.outputs import output_file
from rococo_jax.options import Option

EXAMPLES = """\
  rococo verify out
  rococo verify out --embeddings
  rococo verify --annotations rococo/annotations
  rococo verify --annotations rococo/annotations --images coco/images --out verified.json
  rococo verify --annotations sugar_crepe --images coco/images

Exit code 1 if a number differs; each is named with its stored and its recomputed value."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Recompute the numbers of results from their rows, or count and check benchmark annotations; correct nothing.

    Attributes:
        results: results.json files, or folders that contain them, with their per_query.parquet and reports
        embeddings: also compute every row and number again from the embeddings in the cache, with the model and data
        model: source of the model (default: as journal.jsonl has it)
        data: folder of benchmarks in the documented layout (default: the folders in the results)
        cache: folder of the embedding cache (default: that of rococo evaluate)
        annotations: folder of annotation files
        images: folder of images, to count missing ones
        out: write the complete report, with examples, as JSON
    """

    results: Annotated[tuple[str, ...], Option("RESULTS", positional=True)] = ()
    embeddings: Annotated[bool, Option(needs=("results",))] = False
    model: Annotated[str | None, Option("MODEL", needs=("embeddings",))] = None
    data: Annotated[str | None, Option("DIR", needs=("embeddings",))] = None
    cache: Annotated[str | None, Option("DIR", needs=("embeddings",))] = None
    annotations: Annotated[str | None, Option("DIR", excludes=("results",))] = None
    images: Annotated[str | None, Option("DIR", needs=("annotations",))] = None
    out: Annotated[str | None, Option("FILE", check=output_file)] = None


def run(options: Options) -> int:
    """Print the report. Returns 1 if a number differs; irregularities of annotations are reported and are no errors."""
    from rococo_jax.errors import InputError

    if options.results:
        return _verify_results(options)
    if options.annotations is None:
        raise InputError("rococo verify", "input", "neither", "RESULTS or --annotations DIR")

    from rococo_jax.benchmarks.audit import audit, audit_lines
    from rococo_jax.storage import write_json

    report = audit(Path(options.annotations), None if options.images is None else Path(options.images))
    if options.out:
        write_json(options.out, {"annotations": options.annotations, **report})
    print("\n".join(audit_lines(report)))
    return 0


def _verify_results(options: Options) -> int:
    import sys

    from rococo_jax.report.verification import verify_embeddings, verify_results
    from rococo_jax.runtime import cache_folder, enable_compilation_cache
    from rococo_jax.storage import write_json

    count, differences = verify_results(options.results)
    if options.embeddings:
        enable_compilation_cache()
        cache = Path(options.cache) if options.cache is not None else cache_folder() / "embeddings"
        data = None if options.data is None else Path(options.data)
        recomputed, others, absent = verify_embeddings(options.results, cache, options.model, data)
        count, differences = count + recomputed, [*differences, *others]
        for each in absent:
            print(f"rococo: {each}: not computed from embeddings: its data were not found; --data DIR", file=sys.stderr)
    if options.out:
        rows = [{**vars(each), "file": str(each.file)} for each in differences]
        write_json(options.out, {"compared": count, "differences": rows})
    for difference in differences:
        print(difference)
    print(f"{count:,} values compared: {f'{len(differences):,} differ' if differences else 'all equal'}")
    return 1 if differences else 0
