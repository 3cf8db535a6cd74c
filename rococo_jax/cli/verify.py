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
    elif not _verify_choices(options):
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


def _verify_choices(options: Options) -> bool:
    """Audits the items of a benchmark of choices; False where the folder is of another benchmark."""
    from pathlib import Path

    from rococo_jax.benchmarks.benchmark import recognise
    from rococo_jax.benchmarks.choices.audit import audit_choices, audit_lines
    from rococo_jax.storage import write_json

    info = recognise(Path(options.annotations))
    if info.reader is None:
        return False
    images = None if options.images is None else Path(options.images)
    report = audit_choices(info, Path(options.annotations), images)
    if options.out:
        write_json(options.out, {"annotations": options.annotations, **report})
    print("\n".join(audit_lines(report)))
    return True


def _verify_annotations(options: Options) -> None:
    from rococo_jax.benchmarks.rococo.annotations import read_annotation_folder
    from rococo_jax.benchmarks.rococo.audit import inspect_annotations
    from rococo_jax.storage import write_json

    report = inspect_annotations(read_annotation_folder(options.annotations), options.images)
    if options.out:
        write_json(options.out, {"annotations": options.annotations, **report})
    print("\n".join(report_lines(report)))


def report_lines(report: dict[str, Any]) -> Iterator[str]:
    """Format the report."""
    yield "Files"
    rows = [[each["name"], each["role"], each["form"] or "", each["bytes"], each["sha256"]] for each in report["files"]]
    yield from _table(["name", "read as", "form", "bytes", "sha256"], rows)
    yield from ("", "Original captions")
    yield from _table(None, list(_clean_rows(report["clean"])))
    if report["variants"]:
        yield from ("", "Altered captions")
        yield from _table(["", *report["variants"]], _variant_rows(list(report["variants"].values())))
        yield from _examples(report["variants"])
    if "images" in report:
        found = report["images"]
        missing = f"; missing: {found['missing']:,}, such as {found['examples'][0]}" if found["missing"] else ""
        yield from ("", f"Images: {found['present']:,} of {found['named']:,} are in {found['folder']}{missing}")


def _clean_rows(clean: dict[str, Any]) -> Iterator[list[Any]]:
    yield ["images", clean["images"]]
    yield ["captions", clean["captions"]]
    for count, images in clean["captions_per_image"].items():
        yield [f"images with {count} captions", images]
    words = clean["words_per_caption"]
    yield ["words in a caption: fewest, mean, most", f"{words['fewest']}, {words['mean']:.1f}, {words['most']}"]
    for key, label in _SURFACE.items():
        yield [label, clean[key]]
    for reading, counts in clean["duplicates"].items():
        yield [f"captions that repeat another one ({_READINGS[reading]})", counts["repetitions"]]
        yield ["    texts that several images share", counts["texts_of_several_images"]]
        yield ["    texts that one image has twice", counts["texts_twice_in_one_image"]]


_READINGS = {"exact": "exactly", "normalised": "case, final punctuation aside", "words": "words alone"}
_SURFACE = {
    "ending_with_full_stop": 'ending with "."',
    "ending_with_space_and_full_stop": 'ending with " ."',
    "with_capital_letters": "with capital letters",
    "with_spaces_at_the_ends": "with white space at an end",
    "without_words": "without any word",
}


def _variant_rows(variants: Sequence[dict[str, Any]]) -> list[list[Any]]:
    lengths = sorted({count for each in variants for count in each["captions_per_image"]}, key=int)
    rows: list[tuple[str, Any]] = [
        ("images", lambda each: each["images"]),
        *(
            (f"images with {count} captions", lambda each, n=count: each["captions_per_image"].get(n, 0))
            for count in lengths
        ),
        ("altered captions", lambda each: each["altered"]),
        ("originals without an altered one", lambda each: each["originals_without_altered"]),
        *((label, lambda each, key=key: each[key]) for key, label in _SURFACE.items()),
        ("no-ops: say what their original says, word for word", lambda each: each["no_ops"]["count"]),
        ("no-ops, case and final punctuation aside", lambda each: each["no_ops_normalised"]["count"]),
        ("equal to some image's original: ties", lambda each: each["same_as_some_original"]["exact"]),
        ("    case and final punctuation aside", lambda each: each["same_as_some_original"]["normalised"]),
        ("altered captions that repeat another one", lambda each: each["duplicates"]["repetitions"]),
        ("word replaced inside a longer word, too", lambda each: each["replaced_inside_words"]["count"]),
        ("word replaced in several places", lambda each: each["replaced_several_times"]["count"]),
    ]
    return [[label, *map(figure, variants)] for label, figure in rows]


def _examples(variants: dict[str, Any]) -> Iterator[str]:
    """One example of each quirk that is there, from the first variant that has it."""
    for key in ("no_ops", "replaced_inside_words", "replaced_several_times"):
        having = [(name, each[key]["examples"][0]) for name, each in variants.items() if each[key]["count"]]
        for name, example in having[-1:]:
            yield from ("", f"For example {key.replace('_', ' ')} in {name}, {example['image']}:")
            yield f"    original  {example['original']}"
            yield f"    altered   {example['altered']}"


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
