"""Test that every reader opens texts and tables in one way, whatever the marks, line ends, delimiters and suffixes."""

import csv
import gzip
import json
import time
from collections.abc import Callable
from pathlib import Path

import pandas
import pytest

from rococo_jax.benchmarks.choices.records import holds_object, read_records, read_side_lines
from rococo_jax.benchmarks.classes import read_classes, templates_of
from rococo_jax.benchmarks.readers.classes import read_own
from rococo_jax.data.caption_forms import read_captions
from rococo_jax.errors import InputError
from rococo_jax.evaluation.model_list import read_models
from rococo_jax.evaluation.models.class_logits import read_labels
from rococo_jax.perturb.text.influence_table import read_influence_table
from rococo_jax.perturb.text.lexicon import read_lexicon
from rococo_jax.studies.correlate import correlate_table
from rococo_jax.texts import iterate_lines, open_table, parse_json, read_lines
from rococo_jax.training.inputs.hard_positives import read_hard_positives
from tests.support.refusals import refused

GROUP = {"concept": "animal", "kind": "thing", "nouns": ["dog", "bär"]}
LEXICON = {"format": "rococo_jax.lexicon", "version": 1, "groups": [GROUP]}
SCORES = "model,acc,fr1\n" + "".join(f"m\u2028{n},{n * n},{90 - n}\n" for n in range(6))
# Reader -> a file's name, its text, and what reads it. U+2028 and U+0085 end no line.
READERS: dict[str, tuple[str, str, Callable[[Path], object]]] = {
    "captions in JSON": ("c.json", json.dumps([{"image": "ä.jpg", "caption": ["a\u2028dög"]}]), lambda p: opened(p)),
    "captions in JSON lines": ("c.jsonl", '{"image": "a.jpg", "caption": "a\u2028dög"}\n', lambda p: opened(p)),
    "captions in commas": ("c.csv", 'image,caption\nä.jpg,"a\u0085dög"\nb.jpg,c\n', lambda p: opened(p)),
    "captions in tabs": ("c.tsv", "image\tcaption\nä.jpg\ta\u0085dög\n", lambda p: opened(p)),
    "Flickr's lines": ("c.txt", "1_a.jpg#0\ta\u2028dög\n1_a.jpg#1\ttwo\n", lambda p: opened(p)),
    "labels": ("l.csv", "image,label\nä.jpg,cat\nb.jpg,dög\n", read_labels),
    "labels in tabs": ("l.tsv", "image\tlabel\nä.jpg\tcat\nb.jpg\tdög\n", read_labels),
    "labels in JSON lines": ("l.jsonl", '{"image": "ä.jpg", "label": "dög"}\n', read_labels),
    "own classes": ("labels.csv", "image,label\na.jpg,cat\nb.jpg,dög\n", lambda p: list(own_classes(p))),
    "names of classes": ("classes.json", '["cat", "dög"]', read_classes),
    "templates": ("t.txt", "a photo of a {}.\nein\u2028Bild: {}\n", lambda p: templates_of(str(p))),
    "models": ("models.txt", "# ä\nours=runs/sc-vc\na\x0bb=other  # why\n", lambda p: read_models([], p)),
    "items": ("i.csv", "image,caption\na.jpg,dög\n", lambda p: [record.value for record in read_records(p)[1]]),
    "a first character": ("i.json", ' {"0": 1}', holds_object),
    "relations": ("symmetric_relations.txt", "next to\nbeside\n", lambda p: read_side_lines(p.parent, [p.name])),
    "a lexicon": ("x.json", json.dumps(LEXICON, ensure_ascii=False), lambda p: read_lexicon(p).hash()),
    "hard positives": ("h.jsonl", '{"caption": "a dög", "hard_negative": "a cat"}\n', read_hard_positives),
    "influence": ("i.jsonl", json.dumps({"caption": "a dög", "words": ["a", "dög"], "influence": [0.5, 1]}) + "\n",
                  lambda p: {key: value.tolist() for key, value in read_influence_table(p).items()}),
    "scores": ("s.csv", SCORES, lambda p: (correlate_table(p).models, [str(x) for x in correlate_table(p).places])),
}  # fmt: skip
SPELLINGS = {
    "a mark": lambda text: text.encode("utf-8-sig"),
    "UTF-16": lambda text: text.encode("utf-16"),
    "UTF-16, the other way": lambda text: b"\xfe\xff" + text.encode("utf-16-be"),
    "CRLF": lambda text: text.replace("\n", "\r\n").encode(),
    "a mark and CRLF": lambda text: text.replace("\n", "\r\n").encode("utf-8-sig"),
    "CR": lambda text: text.replace("\n", "\r").encode(),
    "no last line end": lambda text: text.rstrip("\n").encode(),
}


def opened(path: Path) -> object:
    return read_captions(str(path)).items


def own_classes(path: Path) -> object:
    return read_own({"annotations": path.parent, "images": path.parent / "images"}).images


@pytest.mark.parametrize("reader", READERS)
def test_byte_order_marks_and_line_ends_do_not_change_what_is_read(reader, tmp_path):
    name, text, read = READERS[reader]

    def read_as(folder: str, data: bytes, name: str = name) -> object:
        path = tmp_path / folder / name
        path.parent.mkdir()
        path.write_bytes(data)
        return read(path)

    expected = read_as("plain", text.encode())
    for spelling, encode in SPELLINGS.items():
        assert read_as(spelling, encode(text)) == expected, spelling
    # Relations have one name, and not a form.
    if reader != "relations":
        stem, _, suffix = name.partition(".")
        assert read_as("LARGE", text.encode(), f"{stem}.{suffix.upper()}") == expected
    if name.endswith(("csv", "tsv")):
        for delimiter in ",;\t|":
            usual = "\t" if name.endswith(".tsv") else ","
            assert read_as(f"by {ord(delimiter)}", text.replace(usual, delimiter).encode()) == expected, delimiter
    for damage in (text.encode("utf-16-le"), text.encode() + b"\xff\n"):
        if reader != "a first character":
            refused("encoding: found", read_as, f"damaged {damage[-2]}", damage)


def test_lines_are_split_only_at_line_feeds(tmp_path):
    text = "a\x0b\x0c\x1c\u2028\u2029\x85b\r\n\r\nc\rd\n"
    (tmp_path / "t").write_bytes(text.encode())
    assert read_lines(tmp_path / "t", "") == text.removesuffix("\n").replace("\r\n", "\n").split("\n")
    assert [*iterate_lines(tmp_path / "t", "")] == [f"{line}\n" for line in text.removesuffix("\n").split("\n")]
    (tmp_path / "long").write_bytes(b"x" * 70_000 + b"\n" + b"y" * 70_000 + b"\xff")
    refused("not UTF-8 at offset 140001", lambda: list(iterate_lines(tmp_path / "long", "")))


TABLES = {
    "quoted breaks": (b'a,b\n"one\ntwo","x ""y"""\n', [{"a": "one\ntwo", "b": 'x "y"'}]),
    "trimmed headings": (b" a , b\n1, 2\n", [{"a": "1", "b": "2"}]),
    "blank rows": (b"a,b\n\n1,2\n,\n  \n3,4\n\n", [{"a": "1", "b": "2"}, {"a": "3", "b": "4"}]),
    "Excel's first line": (b"sep=;\r\na;b\r\n1,5;2\r\n", [{"a": "1,5", "b": "2"}]),
    "columns without a name at the end": (b"a,b,,\n1,2,,\n", [{"a": "1", "b": "2"}]),
    "one column": (b"a\n1\n", [{"a": "1"}]),
    "a compressed table": (gzip.compress(b"a,b\n1,2\n"), [{"a": "1", "b": "2"}]),
    "a heading twice": (b"a,b, a\n1,2,3\n", "column 'a': found 2 columns of that name"),
    "a short row": (b"a,b\n1,2\n3\n", r"row 2 \(to line 3\): found 1 cells; wanted 2 between commas"),
    "a long row": (b"a,b\n1,2,3\n", r"row 1 \(to line 2\): found 3 cells"),
    "an open quote": (b'a,b\n"1,2\n', "row 1: found unexpected end of data"),
    "zero bytes": (b"a,b\n1,\x002\n", "encoding: found a zero byte at character 6"),
    "blank lines before": (b"\n\r\na,b\n1,2\n", [{"a": "1", "b": "2"}]),
    "nothing": (b"", "header: found an empty file"),
    "commas alone": (b",,\n", "header: found an empty file"),
}


@pytest.mark.parametrize("form", TABLES)
def test_tables_of_every_form_are_read_or_refused(form, tmp_path):
    content, expected = TABLES[form]
    path = tmp_path / ("t.csv.gz" if form == "a compressed table" else "t.csv")
    path.write_bytes(content)
    if isinstance(expected, str):
        refused(expected, lambda: list(open_table(path, "a table").rows))
    else:
        assert [row for _, row in open_table(path, "a table").rows] == expected


def written(path: Path, text: str) -> Path:
    path.write_text(text, newline="")
    return path


# Lines of tables in which a quotation mark is a letter: at the beginning of a text, at its end, or around a word.
MARKS = [
    ['"Happy Birthday" reads the cake', "a man on a bike", 'a sign that says "stop"'],
    ['"Happy birthday, the cake reads', "a man on a bike", "a kitchen", 'a sign that says stop"', "a dog"],
    ['"5 inch pizza on a plate', 'a kitchen with a TV of 20"', "a dog"],
    ["a dog", '"5 inch pizza on a plate'],
    ['"""', '"', 'a "', '" a'],
    ['"A doubled ""mark"" in quotes"', '"and one that is open'],
]
ORDERS = {"image first": "{0}{2}{1}", "caption first": "{1}{2}{0}", "between": "{3}{2}{1}{2}{0}"}


def lines_of(texts: list[str], order: str, delimiter: str) -> str:
    head = ORDERS[order].format("image", "caption", delimiter, "id") + "\n"
    rows = (ORDERS[order].format(f"im{n}.jpg", text, delimiter, n) + "\n" for n, text in enumerate(texts))
    return head + "".join(rows)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("texts", MARKS, ids=range(len(MARKS)))
def test_quotation_marks_are_ordinary_characters_in_a_table_with_tabs(texts, order, tmp_path):
    path = written(tmp_path / "t.tsv", lines_of(texts, order, "\t"))
    rows = [row for _, row in open_table(path, "a table").rows]
    table = pandas.read_csv(path, sep="\t", quoting=csv.QUOTE_NONE, dtype=str)
    assert rows == table.to_dict("records") and [row["caption"] for row in rows] == texts


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("delimiter", [",", ";", "|", "\t"])
@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC])
def test_tables_written_by_pandas_are_read_as_pandas_reads_them(order, delimiter, quoting, tmp_path):
    texts = ["one, two\nthree, four", "a\n\nb, c; d|e", 'a "quoted" dog\n"', "x\ty", '"', "a.b\r\nc, d", "\n", "plain"]
    texts += ["A dog runs, fast.\n\nIt is sunny, and warm.\n\nEnd, of it.", "1, 2\n3, 4", "im, a\nim, b"]
    columns = [name for name in lines_of([], order, ",").strip().split(",")]
    frame = pandas.DataFrame({"image": [f"im{n}.jpg" for n in range(len(texts))], "caption": texts, "id": "7"})[columns]
    frame.to_csv(tmp_path / "t.csv", index=False, sep=delimiter, quoting=quoting)
    rows = [row for _, row in open_table(tmp_path / "t.csv", "a table").rows]
    assert rows == frame.to_dict("records")
    with (tmp_path / "t.csv").open(newline="") as file:
        assert rows == [*csv.DictReader(file, delimiter=delimiter)]


@pytest.mark.parametrize("order", ORDERS)
def test_a_quoted_cell_that_contains_further_rows_is_refused(order, tmp_path):
    for texts in ([text.replace(",", "") for text in each] for each in MARKS[1:3]):
        last = next(number for number, text in enumerate(texts) if number and text.endswith('"'))
        for delimiter in ",;|":
            path = written(tmp_path / "t.csv", "\n" + lines_of(["a cat", *texts], order, delimiter))
            said = (
                rf"row 2 \(lines 4 to {last + 4}\): found a quotation mark that begins a cell and ends in a later row"
            )
            refused(said, lambda path=path: list(open_table(path, "a table").rows))


def test_a_quoted_cell_that_contains_a_row_with_more_commas_is_refused(tmp_path):
    text = 'image,caption\n1.jpg,"5 inch pizza\n2.jpg,a man, sitting\n3.jpg,a TV of 20"\n4.jpg,"a, b"\n'
    refused(
        "row 1 .lines 2 to 4.: found a quotation", lambda: list(open_table(written(tmp_path / "t.csv", text), "").rows)
    )
    labels = 'name,label\none,"cat\ntwo,dog"\n'
    refused(
        "row 1 .lines 2 to 3.: found a quotation",
        lambda: list(open_table(written(tmp_path / "l.csv", labels), "").rows),
    )
    scores = 'model,acc\n"a big one,3.5\nanother",4\n'
    refused(
        "row 1 .lines 2 to 3.: found a quotation",
        lambda: list(open_table(written(tmp_path / "s.csv", scores), "").rows),
    )


def test_json_and_json_lines_with_each_others_suffix_are_refused_with_the_right_suffix(tmp_path):
    lines = written(tmp_path / "h.json", '{"caption": "a", "hard_negative": "b"}\n' * 2)
    refused(
        "JSON: found Extra data at line 2, .*; a file of JSON lines, with a value in each line, is named .jsonl",
        read_hard_positives,
        lines,
    )
    whole = written(tmp_path / "h.jsonl", '[\n {"caption": "a", "hard_negative": "b"}\n]\n')
    refused("line 1: found the beginning of a value of several lines; .* is named .json", read_hard_positives, whole)


def test_long_cells_are_read_and_other_kinds_of_files_are_refused(tmp_path):
    cell = "x" * 300_000
    assert [row["b"] for _, row in open_table(written(tmp_path / "t.csv", f"a,b\n1,{cell}\n"), "").rows] == [cell]
    for name in ("t.xlsx", "t.XLS", "t.ods"):
        path = written(tmp_path / name, "PK\x03\x04")
        for read in (read_lines, lambda path, wanted: open_table(path, wanted)):
            refused(r"found a spreadsheet .*; wanted a table: save it as CSV in UTF-8", read, path, "a table")
    kinds = {"a zip archive": b"PK\x03\x04\xff", "a Parquet file": b"PAR1\xff", "a JPEG image": b"\xff\xd8\xff"}
    for kind, start in kinds.items():
        (tmp_path / "t.txt").write_bytes(start)
        refused(
            rf"encoding: found bytes that are not UTF-8 at offset \d \({kind}\)", read_lines, tmp_path / "t.txt", ""
        )


def test_a_missing_text_file_and_a_folder_are_refused(tmp_path):
    for read in (lambda path: read_lines(path, "a list"), lambda path: list(iterate_lines(path, "a list"))):
        refused("none: file: found nothing there; wanted a list", read, tmp_path / "none")
        refused("file: found a folder; wanted a list", read, tmp_path)


def test_a_byte_order_mark_does_not_change_the_first_heading_of_a_table(tmp_path):
    """A mark before the first heading is no part of it: images keep their names."""
    (tmp_path / "l.csv").write_bytes(b"\xef\xbb\xbfimage,label\r\nx.jpg,cat\r\n")
    assert read_labels(tmp_path / "l.csv").images == ("x.jpg",)


def test_repeated_keys_and_columns_are_found_in_linear_time(tmp_path):
    """Each name was counted among all others: minutes for the names of these."""
    names = [f"key{number}" for number in range(60_000)]
    start = time.process_time()
    with pytest.raises(InputError, match="the key 'key59999' twice"):
        parse_json("{" + ", ".join(f'"{name}": 1' for name in [*names, names[-1]]) + "}", "a.json", "an object")
    (tmp_path / "a.csv").write_text(",".join(names) + "\n" + ",".join("1" for _ in names) + "\n")
    assert len(open_table(tmp_path / "a.csv", "a table").header) == len(names)
    assert time.process_time() - start < 20
