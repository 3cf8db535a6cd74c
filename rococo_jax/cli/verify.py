"""`rococo verify`: what is in a folder of benchmark annotations, and what is odd about it."""

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

HELP = "Count, hash and check a folder of benchmark annotations; nothing is changed."
EXAMPLES = """\
  rococo verify --annotations rococo/annotations
  rococo verify --annotations rococo/annotations --images coco/images --out verified.json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("--annotations", required=True, metavar="DIR", help="folder of annotation files")
    parser.add_argument("--images", metavar="DIR", help="folder of images; counts those that are missing")
    parser.add_argument("--out", metavar="FILE", help="write the whole report, with examples, as JSON")


def run(arguments: argparse.Namespace) -> None:
    """Prints the report. Quirks are reported and are no error; a file that cannot be used is."""
    from rococo_jax.benchmarks.published_quirks import inspect_annotations
    from rococo_jax.data.annotations import read_annotation_folder
    from rococo_jax.storage import write_json

    report = inspect_annotations(read_annotation_folder(arguments.annotations), arguments.images)
    if arguments.out:
        write_json(arguments.out, {"annotations": arguments.annotations, **report})
    print("\n".join(report_lines(report)))


def report_lines(report: dict[str, Any]) -> Iterator[str]:
    """The report as a person reads it."""
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
