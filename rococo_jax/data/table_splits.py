"""Splits of tables of images: those into which a data set is divided, and those that a column `split` names.

A data set of the hub has splits of its own (`test-00000-of-00001.parquet`), and some have such a column as well: all
31,014 images of `nlphuji/flickr30k` are in the split `test`, and the column divides them into train, val and test. One
choice, as `?split=test` or `--split test`, is looked for in both:

- a split of the data set is read; where its rows have a column of several splits, the choice is made in that column,
  too, and must be one of them;
- otherwise the choice is one of the column's splits, in whichever split of the data set;
- with both `?split=` and `--split`, the first chooses the split of the data set and the second in the column, if there
  is one;
- `all` is all rows; without a choice there must be nothing to choose.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rococo_jax.data.caption_tables import Columns, split_column, splits_of
from rococo_jax.data.parquet_table import ImageTable
from rococo_jax.errors import InputError

ALL = "all"
# Names by which files and folders tell their split, where nothing else does.
USUAL_SPLITS = ("train", "training", "validation", "valid", "val", "dev", "test", "testing")


class SplitChoice(NamedTuple):
    """The splits that a user names: behind the source's name (`?split=`), and as the option `--split`."""

    source: str = ""
    option: str = ""

    @property
    def either(self) -> str:
        """The one that counts for a source whose rows alone tell splits."""
        return self.source or self.option


NO_CHOICE = SplitChoice()


class ChosenTables(NamedTuple):
    """Tables to read.

    Attributes:
        tables: of the chosen splits of the data set.
        split: the choice in the column of splits; "" for none.
        must_choose: whether there must be one, if the column has several.
        remark: for people: which splits of the data set are read.
    """

    tables: list[ImageTable]
    split: str
    must_choose: bool = False
    remark: str = ""


def choose_tables(
    source: str, tables: Mapping[str, Sequence[ImageTable]], columns: Columns, choice: SplitChoice
) -> ChosenTables:
    """Choose the tables of a data set by their split.

    Args:
        tables: by split of the data set; under "" those of none.

    Raises InputError: a split that is neither one of the data set nor one of the column, or none where several are.
    """
    every = [table for each in tables.values() for table in each]
    if not any(tables):
        return ChosenTables(every, choice.either)
    names = ", ".join(name or "(without one)" for name in tables)
    if not choice.either:
        if len(tables) > 1:
            wanted = f"{_counts(tables)}, one or several (train+validation), or all"
            raise InputError(source, "split", "none named, of several", wanted)
        return ChosenTables(every, "", must_choose=True)
    if choice.either == ALL:
        in_column = _column_counts(every, columns, source)
        return ChosenTables(every, (choice.option or ALL) if in_column else "")
    chosen = splits_of(choice.either)
    if not chosen <= tables.keys():
        in_column = _column_counts(every, columns, source)
        if not in_column or not chosen <= in_column.keys():
            unknown = min(chosen - tables.keys() - in_column.keys(), default=min(chosen))
            of_column = f"; or, in their column, {_listed(in_column)}" if in_column else ""
            wanted = f"{_counts(tables)}{of_column}, one or several (train+validation), or all"
            raise InputError(source, "split", repr(unknown), wanted)
        return ChosenTables(every, choice.either)
    of_split = [table for name in tables if name in chosen for table in tables[name]]
    remark = f", split {choice.either} of {names}" if len(tables) > 1 else ""
    in_column = _column_counts(of_split, columns, source)
    if choice.source and choice.option:
        return ChosenTables(of_split, choice.option if in_column else "", remark=remark)
    if len(in_column) < 2:
        return ChosenTables(of_split, "", remark=remark)
    if chosen <= in_column.keys():
        return ChosenTables(of_split, choice.either, remark=remark)
    found = f"{choice.either!r}, whose rows have a column of splits {_listed(in_column)}"
    raise InputError(
        source, "split", found, f"one of these as `split`, or all, and ?split={choice.either} behind the name"
    )


def _column_counts(tables: Sequence[ImageTable], columns: Columns, source: str) -> Counter[str]:
    """The rows of each split that a column tells; nothing where there is no such column."""
    column = split_column(tables[0].schema().names, columns, source)
    if column is None:
        return Counter()
    return Counter(str(value).strip() for table in tables for value in table.read([column])[column].to_pylist())


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} ({count:,})" for name, count in counts.items())


def _counts(tables: Mapping[str, Sequence[ImageTable]]) -> str:
    return _listed({name or "(without one)": sum(table.row_count() for table in each) for name, each in tables.items()})
