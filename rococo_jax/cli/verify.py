"""`rococo verify`: audit a folder of benchmark annotations, or check results against published figures."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from rococo_jax.cli.outputs import output_file
from rococo_jax.options import Option

EXAMPLES = """\
  rococo verify --annotations rococo/annotations
  rococo verify --annotations rococo/annotations --images coco/images --out verified.json
  rococo verify --annotations sugar_crepe --images coco/images
  rococo verify --published out/clip-b32/results.json"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Count, hash and check benchmark annotations, or check results against published figures.

    Attributes:
        annotations: folder of annotation files
        images: folder of images; counts those that are missing
        out: write the whole report, with examples, as JSON
        published: results.json of OpenAI's CLIP ViT-B/32: compare with the published figures; exit 1 where they differ
    """

    annotations: Annotated[str | None, Option("DIR")] = None
    images: Annotated[str | None, Option("DIR")] = None
    out: Annotated[str | None, Option("FILE", check=output_file)] = None
    published: Annotated[str | None, Option("RESULTS")] = None


def run(options: Options) -> int:
    """Print the report. Quirks are reported and are not errors."""
    from rococo_jax.errors import InputError

    if options.annotations is None and options.published is None:
        raise InputError("--annotations", "folder", "nothing", "a folder of annotation files, or --published RESULTS")
    if options.annotations is None:
        for option in ("images", "out"):
            if getattr(options, option) is not None:
                raise InputError(f"--{option}", "use", "no --annotations", "a folder of annotation files")
    else:
        _verify_annotations(options)
    if options.published is None:
        return 0
    return _verify_results(options.published)


def _verify_results(source: str) -> int:
    from pathlib import Path

    from rococo_jax.benchmarks.rococo.reproduce_published import compare_with_published
    from rococo_jax.evaluation.results import read_results

    path = Path(source) / "results.json" if Path(source).is_dir() else Path(source)
    results = read_results(path)
    compared = compare_with_published(results, path)
    print("\n".join(published_lines(results, compared)))
    return 0 if all(each.matches for each in compared) else 1


def published_lines(results: dict[str, Any], compared: Sequence[Any]) -> Iterator[str]:
    """Format the result of `compare_with_published`."""
    from rococo_jax.benchmarks.rococo.reproduce_published import METRICS, MODEL, TOLERANCE

    names = {"r1": "R@1", "r5": "R@5", "r10": "R@10", "fr1": "FR@1"}
    yield f"{results['model']} beside the published {MODEL}; tolerance {TOLERANCE} points"
    rows = []
    for each in compared:
        unnamed = " (not named in the log)" if len(each.line.variants) > 1 else ""
        published = [f"{getattr(each.line, name):.2f}" for name in METRICS]
        rows.append([each.line.task, f"published{unnamed}", *published, ""])
        if each.variant is None:
            rows.append(["", "no such variant in the results", *[""] * len(METRICS), "MISSING"])
            continue
        away = [names[name] for name in METRICS if not each.is_near(name)]
        verdict = "matches" if each.matches else f"DIFFERS in {', '.join(away)}"
        rows.append(["", each.variant, *(f"{each.found[name]:.2f}" for name in METRICS), verdict])
        rows.append(["", "difference", *(f"{each.differences[name]:+.2f}" for name in METRICS), ""])
    yield from _table(["task", "line", *names.values(), ""], rows)
    if any(each.variant and each.line.task == "text_to_image" for each in compared):
        yield "text_to_image is a mean over seeds of the mixing; the log has one run and does not name its seed"
    matching = sum(each.matches for each in compared)
    yield f"{matching} of {len(compared)} published lines match"


def _verify_annotations(options: Options) -> None:
    from pathlib import Path

    from rococo_jax.benchmarks.audit import audit, audit_lines
    from rococo_jax.storage import write_json

    report = audit(Path(options.annotations), None if options.images is None else Path(options.images))
    if options.out:
        write_json(options.out, {"annotations": options.annotations, **report})
    print("\n".join(audit_lines(report)))


def _table(head: Sequence[str] | None, rows: Sequence[Sequence[Any]]) -> Iterator[str]:
    """Columns two spaces apart; numbers to the right, with commas in thousands."""
    cells = [[f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row] for row in rows]
    lines = [*([list(head)] if head else []), *cells]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    right = [any(isinstance(row[column], int) for row in rows) for column in range(len(lines[0]))]
    for line in lines:
        padded = (
            cell.rjust(width) if to_the_right else cell.ljust(width)
            for cell, width, to_the_right in zip(line, widths, right, strict=True)
        )
        yield ("  " + "  ".join(padded)).rstrip()
