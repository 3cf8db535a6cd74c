"""Choose the splits of tables of images: files of a data set by split, and rows by the value of a column `split`.

A data set of the hub has files by split (`test-00000-of-00001.parquet`), and some have such a column as well: all
31,014 images of `nlphuji/flickr30k` are in the files of `test`, and the column divides them into train, val and test.
A requested split, as `?split=test` or `--split test`, is looked up in both:

- If the files have that split, these files are read. If their rows have a column with several splits, the request
  applies to the column as well and has to be one of its values.
- Otherwise the request has to be a value of the column, in the files of any split.
- If both `?split=` and `--split` are given, the first selects files, and the second selects rows if there is a column.
- `all` reads all rows. Without a request, there must not be several splits.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rococo_jax.data.caption_tables import split_column, splits_of
from rococo_jax.data.parquet_table import ImageTable
from rococo_jax.data.read_options import Columns, ReadOptions
from rococo_jax.errors import InputError

ALL = "all"
# Names of files and folders that are recognised as splits.
USUAL_SPLITS = ("train", "training", "validation", "valid", "val", "dev", "test", "testing")


class ChosenTables(NamedTuple):
    """The tables of a data set to read.

    Attributes:
        tables: of the requested splits.
        row_split: the splits to read of the column of splits; "" for all.
        must_choose: whether the user has to choose if the column has several splits.
        remark: which splits of the data set are read, for the summary.
    """

    tables: list[ImageTable]
    row_split: str
    must_choose: bool = False
    remark: str = ""


def choose_tables(source: str, tables: Mapping[str, Sequence[ImageTable]], options: ReadOptions) -> ChosenTables:
    """Choose the tables of a data set by their split, as the text of this module describes.

    Args:
        tables: by split of the data set; those without a split under "".

    Raises InputError: the requested split exists neither in the data set nor in the column, or a request is necessary
        and missing.
    """
    columns, request = options.requested_columns, options.row_split
    all_tables = [table for tables_of_split in tables.values() for table in tables_of_split]
    if not any(tables):
        return ChosenTables(all_tables, request)
    if not request:
        if len(tables) > 1:
            expected = f"{_describe_tables(tables)}, one or several (train+validation), or all"
            raise InputError(source, "split", "none named, of several", expected)
        return ChosenTables(all_tables, "", must_choose=True)
    if request == ALL:
        has_column = bool(_column_counts(all_tables, columns, source))
        return ChosenTables(all_tables, (options.split or ALL) if has_column else "")
    requested = splits_of(request)
    if not requested <= tables.keys():
        return _choose_in_column(source, tables, all_tables, options)
    of_split = [table for name in tables if name in requested for table in tables[name]]
    names = ", ".join(name or "(without one)" for name in tables)
    remark = f", split {request} of {names}" if len(tables) > 1 else ""
    column_counts = _column_counts(of_split, columns, source)
    if options.split_in_name and options.split:
        return ChosenTables(of_split, options.split if column_counts else "", remark=remark)
    if len(column_counts) < 2:
        return ChosenTables(of_split, "", remark=remark)
    if requested <= column_counts.keys():
        return ChosenTables(of_split, request, remark=remark)
    problem = f"{request!r}, whose rows have a column of splits {_describe_counts(column_counts)}"
    raise InputError(source, "split", problem, f"one of these as `split`, or all, and ?split={request} behind the name")


def _choose_in_column(
    source: str, tables: Mapping[str, Sequence[ImageTable]], all_tables: list[ImageTable], options: ReadOptions
) -> ChosenTables:
    """Choose all tables, and of their column the requested splits, which the data set itself does not have."""
    requested = splits_of(options.row_split)
    column_counts = _column_counts(all_tables, options.requested_columns, source)
    if column_counts and requested <= column_counts.keys():
        return ChosenTables(all_tables, options.row_split)
    unknown = min(requested - tables.keys() - column_counts.keys(), default=min(requested))
    in_column = f"; or, in their column, {_describe_counts(column_counts)}" if column_counts else ""
    expected = f"{_describe_tables(tables)}{in_column}, one or several (train+validation), or all"
    raise InputError(source, "split", repr(unknown), expected)


def _column_counts(tables: Sequence[ImageTable], columns: Columns, source: str) -> Counter[str]:
    """Count the rows of each split in the column of splits; nothing if there is no such column."""
    column = split_column(tables[0].schema().names, columns, source)
    if column is None:
        return Counter()
    return Counter(str(value).strip() for table in tables for value in table.read([column])[column].to_pylist())


def _describe_counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} ({count:,})" for name, count in counts.items())


def _describe_tables(tables: Mapping[str, Sequence[ImageTable]]) -> str:
    counts = {name or "(without one)": sum(table.row_count() for table in each) for name, each in tables.items()}
    return _describe_counts(counts)
