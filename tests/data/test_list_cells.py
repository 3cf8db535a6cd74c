"""Lists in cells of tables: each text stands alone, whatever library printed the list, or the cell is refused."""

import json
import time

import numpy as np
import pandas
import pytest

from rococo_jax.benchmarks.choices.records import read_records
from rococo_jax.data.caption_forms import read_captions
from rococo_jax.data.list_cells import MalformedList, parse_list
from tests.support.refusals import refused

LETTERS = [*"ab '\"\\\n\t,é.[](){}#;", "熊", "...", "array("]
TEXTS = ['A dog\'s "bone", and more ... of it', "A [small] dog.", "two\nlines", "Ein Bär"]


def test_lists_printed_by_numpy_python_and_json_are_read():
    rng = np.random.default_rng(0)
    lists = [["".join(rng.choice(LETTERS, rng.integers(1, 30))) for _ in range(rng.integers(1, 6))] for _ in range(300)]
    for texts in [TEXTS, *lists]:
        arrays = np.array(texts), np.array(texts, object)
        # NumPy's own texts end before trailing zeros, of which there are none.
        printed = [json.dumps(texts), json.dumps(texts, indent=1), str(texts), str(list(arrays[0]))]
        printed += [form(array) for array in arrays for form in (str, repr)]
        printed += [str(tuple(texts))] * (len(texts) > 1)
        assert [parse_list(cell) for cell in printed] == [texts] * len(printed)


def test_a_csv_of_arrays_has_the_captions_of_its_parquet_file(tmp_path):
    frame = pandas.DataFrame({"image": ["1.png", "2.png"], "caption": [TEXTS, ["A text that is " + "long " * 40] * 2]})
    frame.to_parquet(tmp_path / "c.parquet")
    back = pandas.read_parquet(tmp_path / "c.parquet")
    assert isinstance(back["caption"][0], np.ndarray)
    back.to_csv(tmp_path / "c.csv", index=False)
    back.to_csv(tmp_path / "c.tsv", index=False, sep="\t")
    expected = read_captions(f"{tmp_path}/c.parquet").items
    assert [list(item.captions) for item in expected] == frame["caption"].to_list()
    assert read_captions(f"{tmp_path}/c.csv").items == read_captions(f"{tmp_path}/c.tsv").items == expected


@pytest.mark.parametrize("cell", ["[a dog]", "[laughs] a dog", "(a dog)", '("Stop" it says) a sign', "[not a list", ""])
def test_captions_with_brackets_are_not_read_as_lists(cell):
    assert parse_list(cell) is None


LONG = np.array([f"caption {number}" for number in range(2000)], object)
NO_LISTS = {
    "NumPy's short form": (str(LONG), "shortened when it was printed"),
    "NumPy's short form in full": (repr(LONG), "shortened when it was printed"),
    "pandas' short form": (pandas.DataFrame({"c": [list(LONG)]}).to_string(index=False, header=False), "shortened"),
    "a column of a table in print": ("['a dog', 'a do...", "shortened"),
    "cut off": ("['a dog', 'a c", "incomplete"),
    "a comma that is missing": ("['a dog' 'a cat', 'a bear']", "side by side"),
    "two texts in one": ("['a dog''a cat']", "side by side"),
    "bytes": ("[b'a dog', b'a cat']", "bytes"),
    "nulls": ('["a dog", null]', "something but texts"),
    "missing values": ("['a dog', nan]", "something but texts"),
    "missing values alone": ("[nan]", "missing values"),
    "numbers": ("[101, 2023]", "something but texts"),
    "objects": ("[{'raw': 'a dog'}]", "list of objects"),
    "one object": ("{'raw': 'a dog'}", "an object"),
    "a set": ("{'a dog', 'a cat'}", "a set"),
    "lists of lists": ("[['a dog'], ['a cat']]", "list of lists"),
    "an array of arrays": (repr(np.array([["a", "b"]])), "list of lists"),
    "a column that pandas printed": (str(pandas.Series(["a dog", "a cat"])), "pandas printed"),
}


@pytest.mark.parametrize("kind", NO_LISTS)
def test_a_list_that_cannot_be_read_is_refused_with_its_row_and_column(kind, tmp_path):
    cell, message = NO_LISTS[kind]
    with pytest.raises(MalformedList, match=message):
        parse_list(cell)
    frame = pandas.DataFrame({"image": ["1.png", "2.png"], "texts": ["a plain one", cell]})
    frame.to_csv(tmp_path / "c.csv", index=False)
    refused(
        rf"texts of row 2 \('2.png'\): found .*{message}.*; wanted a text, or a list of texts as JSON",
        read_captions,
        f"{tmp_path}/c.csv",
    )
    frame.to_parquet(tmp_path / "c.parquet")
    refused(rf"texts of row 2 .*{message}", read_captions, f"{tmp_path}/c.parquet")


def test_lists_without_quotes_are_refused_if_every_cell_is_one(tmp_path):
    """DuckDB writes columns of lists like this; a single text in brackets is a text."""
    (tmp_path / "c.csv").write_text('image,caption\n1.png,"[a dog, a cat]"\n2.png,"[a bear, a bee]"\n')
    refused(
        "captions: found brackets around each, without quotes: '.a dog, a cat.'", read_captions, f"{tmp_path}/c.csv"
    )
    (tmp_path / "c.csv").write_text('image,caption\n1.png,"[a dog, a cat]"\n2.png,a bear\n')
    assert read_captions(f"{tmp_path}/c.csv").items[0].captions == ("[a dog, a cat]",)


def test_lists_in_cells_of_items_are_read_like_those_of_captions(tmp_path):
    frame = pandas.DataFrame({"hard_captions": [str(np.array(TEXTS)), str(TEXTS)]})
    frame.to_csv(tmp_path / "i.tsv", index=False, sep="\t")
    records = [*read_records(tmp_path / "i.tsv")[1]]
    assert [record.texts("hard_captions") for record in records] == [tuple(TEXTS)] * 2
    pandas.DataFrame({"hard_captions": ["['a dog' 'a cat', 'a bear']"]}).to_csv(tmp_path / "i.csv", index=False)
    refused(
        "item 0: hard_captions: found a list with texts side by side",
        next(iter(read_records(tmp_path / "i.csv")[1])).texts,
        "hard_captions",
    )


def test_cells_are_read_in_linear_time():
    """A quadratic pattern took 0.2 s for 16,000 line ends, so half a minute for these."""
    cells = [
        "0 a" + "\nb" * 200_000,
        "0 a\n" + "dtype: " * 200_000,
        "[nan" + " " * 200_000 + "x",
        "[" + "'a' " * 100_000,
    ]
    start = time.process_time()
    for cell in cells[:3]:
        assert parse_list(cell) is None
    with pytest.raises(MalformedList):
        parse_list(cells[3])
    assert time.process_time() - start < 10
    with pytest.raises(MalformedList, match="a column that pandas printed"):
        parse_list(str(pandas.Series(["a dog", "a cat"])))
