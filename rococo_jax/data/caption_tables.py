"""Captions as tables: a row for each caption, or for each image with a list of them.

CSV, TSV and text with a header (`,`, tab, `;` or `|`), JSON lines, JSON lists of other keys than the Karpathy form's,
Parquet, and Flickr's lines without one (`NAME.jpg#0`, tab, caption). Columns are found by their usual names, whatever
their case, or named by the user; captions may lie in several (`caption_0`, `caption_1`, ...). An image may come back in
a later row; its captions add up. A cell that is a list in JSON or Python holds several captions. A column `split` is
counted, and rows of some splits alone are read where the user names them.
"""

import contextlib
import dataclasses
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rococo_jax.data.captions import CaptionedImage, check_image_name, check_text, json_type
from rococo_jax.data.list_cells import WANTED as WANTED_CELL
from rococo_jax.data.list_cells import NoList, parse_list
from rococo_jax.errors import InputError
from rococo_jax.storage import is_url
from rococo_jax.texts import JSON_LINES, file_suffix, is_well_formed, iterate_lines, open_table, read_jsonl

USUAL = {
    "image": ("image", "file_name", "filepath", "filename", "image_path", "path", "file", "image_name", "image_file",
              "img", "img_path", "jpg", "png"),
    "caption": ("caption", "captions", "text", "texts", "title", "sentence", "sentences", "raw", "description",
                "comment", "alt_text", "txt"),
    "name": ("file_name", "filename", "image_name"),
    "split": ("split",),
}  # fmt: skip
_LINKS = ("url", "image_url", "img_url", "photo_url", "coco_url", "flickr_url")
_NUMBERED = re.compile(rf"({'|'.join(USUAL['caption'])})[ _-]?(\d+)")
_WANTED = "a table of images and captions"
# Characters of a column's name that a message shows.
_LONGEST_NAME = 40

# Roles (`image`, `caption`, `split`, and `name` of images inside the table) -> columns that the user names.
Columns = Mapping[str, str]


def parse_columns(text: str) -> dict[str, str]:
    """Columns by role, of `image=photo,caption=title`.

    Raises InputError: another role, or one without a column or twice.
    """
    columns: dict[str, str] = {}
    for part in filter(None, text.split(",")):
        role, _, column = (piece.strip() for piece in part.partition("="))
        if role not in USUAL or not column or role in columns:
            raise InputError("columns", "entry", repr(part), "image=COLUMN,caption=COLUMN, each once")
        columns[role] = column
    return columns


def choose_column(role: str, header: Sequence[str], columns: Columns, source: object, where: str = "columns") -> str:
    """The column of a role: the one that the user names, or the only one of the usual names.

    Raises InputError: there is none, several, or only one of links.
    """
    plain = {name.strip().lower(): name for name in reversed(header)}
    short = (repr(name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}...") for name in header)
    names = ", ".join(short) if len(header) < 30 else f"{len(header)} names"
    if role in columns:
        if columns[role] not in header and columns[role].strip().lower() not in plain:
            raise InputError(source, f"{role} column {columns[role]!r}", f"the columns {names}", "one of them")
        return columns[role] if columns[role] in header else plain[columns[role].strip().lower()]
    fitting = [plain[name] for name in USUAL[role] if name in plain]
    if len(fitting) > 1:
        found = f"{' and '.join(map(repr, fitting))}, any of which may be the {role}"
        raise InputError(source, where, found, f"one of them, named: columns {role}={fitting[0]}")
    if not fitting:
        links = [plain[name] for name in _LINKS if name in plain]
        if role == "image" and links:
            raise InputError(source, f"column {links[0]!r}", "links", _DOWNLOAD)
        if role == "image" and "image_id" in plain:
            wanted = "the names of image files: COCO's ids belong to the `images` of its annotations"
            raise InputError(source, f"{where} for the image", f"{plain['image_id']!r}, ids", wanted)
        wanted = f"one of {', '.join(USUAL[role][:6])}, ..., or columns {role}=NAME"
        raise InputError(source, f"{where} for the {role}", names or "none", wanted)
    if (count := [name.strip().lower() for name in header].count(fitting[0].strip().lower())) > 1:
        raise InputError(source, f"column {fitting[0]!r}", f"{count} of that name", "one")
    return fitting[0]


def caption_columns(header: Sequence[str], columns: Columns, source: object, where: str = "columns") -> tuple[str, ...]:
    """The column of captions, or those that are numbered, by their numbers. Raises InputError as `choose_column`."""
    plain = {name.strip().lower(): name for name in header}
    numbered = {match: plain[match[0]] for match in map(_NUMBERED.fullmatch, plain) if match}
    if "caption" in columns or not numbered:
        return (choose_column("caption", header, columns, source, where),)
    usual = [plain[name] for name in USUAL["caption"] if name in plain]
    if usual or len({match[1] for match in numbered}) > 1 or len({int(match[2]) for match in numbered}) < len(numbered):
        found = f"{', '.join(map(repr, [*usual, *numbered.values()][:4]))}, any of which may be the captions"
        raise InputError(source, where, found, "columns of one name and a number each, or columns caption=NAME")
    return tuple(numbered[match] for match in sorted(numbered, key=lambda match: int(match[2])))


def check_split_choice(source: object, split: str, counts: Mapping[str, int], must_choose: bool = False) -> str:
    """For people: the splits of a file with the rows of each, and which are read.

    Args:
        split: those that the user chooses, with `+` or commas between them; "all", or nothing for no choice.

    Raises InputError: one that is not there, or no choice where there must be one.
    """
    chosen = splits_of(split)
    unknown = sorted(chosen - counts.keys() - ({"all"} if counts else set()))
    there = ", ".join(f"{name} ({count:,})" for name, count in counts.items())
    if unknown or (must_choose and len(counts) > 1 and not chosen):
        found = repr(unknown[0]) if unknown else "none named, of several"
        raise InputError(source, "split", found, f"{there or 'a column split'}, one or several (train+val), or all")
    return f", splits {there}: {f'read: {split}' if chosen else 'all read; `split` chooses'}" if counts else ""


def splits_of(split: str) -> set[str]:
    """The splits that a choice names."""
    return {name.strip() for name in re.split("[+,]", split)} - {""}


_DOWNLOAD = "files of images: download them first (img2dataset makes tars that are read as they are)"


@dataclasses.dataclass(frozen=True)
class CaptionsFile:
    """What a captions file, folder or data set holds.

    Attributes:
        items: images in the order in which they first come, with their captions in file order.
        columns: that were read, where the form has columns.
        folder: where its images lie, where the form says so.
        places: of images inside the table, by name: whatever has `read_bytes()`.
        skipped: images that are left out because they have no caption.
        also: what else is to be said: splits, or how captions are told apart.
    """

    source: str
    items: tuple[CaptionedImage, ...]
    columns: tuple[str, ...] = ()
    folder: Path | None = None
    places: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    skipped: int = 0
    also: str = ""

    def summary(self) -> str:
        """One line for people: what was understood."""
        captions = [caption for item in self.items for caption in item.captions]
        repeated = len(captions) - sum(len(set(item.captions)) for item in self.items)
        said = f"{Path(self.source).name}: {len(self.items):,} images, {len(captions):,} captions"
        said += f", {repeated:,} of them twice for one image" if repeated else ""
        said += f", {self.skipped:,} images without a caption left out" if self.skipped else ""
        return f"{said}, columns {' and '.join(self.columns)}{self.also}" if self.columns else said + self.also


Rows = Iterable[tuple[str, Mapping[str, Any]]]


def table_rows(path: str, columns: Columns) -> Rows:
    """The rows of JSON lines, of Flickr's lines, or of a table with a header: where each is, and its values by column.

    Raises InputError: it names the file, and the line.
    """
    if file_suffix(path) in JSON_LINES:
        return json_rows(path)
    is_flickr = _FLICKR.fullmatch(next(iterate_lines(path, _WANTED), "").rstrip("\r\n"))
    return _flickr_rows(path) if is_flickr else _delimited_rows(path, columns)


def collect_rows(
    source: str, rows: Rows, columns: Columns, roots: Iterable[Path] = (), split: str = "", must_choose: bool = False
) -> CaptionsFile:
    """The images of rows, with their captions; `rows` are where each is, and its values by column.

    An absolute path below one of `roots`, folders of images, is taken as a name inside it. `split` and `must_choose` as
    `check_split_choice` has them.

    Raises InputError: it names the file, and the column or the line with its field.
    """
    captions: list[tuple[str, list[str]]] = []
    used: dict[str, None] = {}
    chosen: dict[tuple[str, ...], tuple[str, tuple[str, ...], str | None]] = {}
    wanted, counts = splits_of(split) - {"all"}, Counter[str]()
    for where, row in rows:
        header = tuple(row)
        if header not in chosen:
            at = "columns" if where.startswith("row") else where
            image, texts = (
                choose_column("image", header, columns, source, at),
                caption_columns(header, columns, source, at),
            )
            chosen[header] = image, texts, split_column(header, columns, source)
            used |= dict.fromkeys([image, *texts])
        image, texts, of_split = chosen[header]
        if of_split is not None:
            counts[name := str(row[of_split]).strip()] += 1
            if wanted and name not in wanted:
                continue
        name = _name_below(row[image], roots, f"{image} of {where}", source)
        if len(texts) > 1:  # some may be blank
            texts = [each for each in texts if isinstance(row[each], list) or str(row[each] or "").strip()] or texts[:1]
        parts = (captions_in_cell(row[each], each, f"{where} ({name!r})", source) for each in texts)
        captions.append((name, list(itertools.chain.from_iterable(parts))))
    also = check_split_choice(source, split, counts, must_choose)
    _refuse_unquoted_lists(captions, source)
    return CaptionsFile(source, by_image(captions, source), tuple(used), also=also)


def _refuse_unquoted_lists(captions: Iterable[tuple[str, Sequence[str]]], source: object) -> None:
    """Raises InputError where each caption is `[..., ...]`: lists as DuckDB and pandas print them, without quotes."""
    texts = [text.strip() for _, more in captions for text in more]
    lists = [text for text in texts if text.startswith("[") and text.endswith("]")]
    several = next((text for text in lists if "," in text), None)
    if several is not None and len(lists) == len(texts):
        raise InputError(source, "captions", f"brackets around each, without quotes: {several[:40]!r}", WANTED_CELL)


def split_column(header: Sequence[str], columns: Columns, source: object) -> str | None:
    """The column of splits; None where there is none."""
    has_one = "split" in columns or any(name.strip().lower() in USUAL["split"] for name in header)
    return choose_column("split", header, columns, source) if has_one else None


def by_image(captions: Iterable[tuple[str, Sequence[str]]], source: object) -> tuple[CaptionedImage, ...]:
    """The images in the order in which they first come, with the captions of all their rows; InputError without any."""
    texts: dict[str, list[str]] = {}
    for name, more in captions:
        texts.setdefault(name, []).extend(more)
    if not texts:
        raise InputError(source, "rows", "none", "at least one image with a caption")
    return tuple(CaptionedImage(name, tuple(each)) for name, each in texts.items())


def _name_below(name: Any, roots: Iterable[Path], where: str, source: object) -> str:
    if isinstance(name, str) and is_url(name):
        raise InputError(source, where, f"the link {name[:60]!r}", _DOWNLOAD)
    if isinstance(name, str) and name.startswith("/"):
        for root in roots:
            with contextlib.suppress(ValueError):
                return check_image_name(Path(name).relative_to(root.absolute()).as_posix(), where, source)
    return check_image_name(name, where, source)


def captions_in_cell(value: Any, column: str, where: str, source: object) -> list[str]:
    """The captions of a cell: a text, or a list of texts, also one that is written in JSON or Python.

    Raises InputError: no text, or an empty one.
    """
    if isinstance(value, str):
        try:
            texts_in_cell = parse_list(value)
        except NoList as error:
            raise InputError(source, f"{column} of {where}", f"{error}: {value[:40]!r}", WANTED_CELL) from None
        value = value if texts_in_cell is None else texts_in_cell
    if not isinstance(value, str | list):
        raise InputError(source, f"{column} of {where}", json_type(value), "a string or a list of strings")
    texts = {column: value} if isinstance(value, str) else {f"{column} {n}": text for n, text in enumerate(value)}
    if not texts:
        raise InputError(source, f"{column} of {where}", "an empty list", "at least one caption")
    for field, text in texts.items():
        if not check_text(text, f"{field} of {where}", source).strip():
            raise InputError(source, f"{field} of {where}", "an empty text", "a caption")
    return list(texts.values())


def json_rows(path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield where each object of JSON lines is, and its values. Raises InputError where a line has none."""
    for number, entry in read_jsonl(path, "image-text pairs as JSON lines"):
        if not isinstance(entry, dict):
            raise InputError(path, f"line {number}", json_type(entry), "an object with an image and captions")
        yield f"line {number}", entry


def _delimited_rows(path: str, columns: Columns) -> Iterator[tuple[str, Mapping[str, Any]]]:
    def fits(names: set[str]) -> bool:
        with contextlib.suppress(InputError):
            choose_column("image", header := sorted(names), columns, path)
            return bool(caption_columns(header, columns, path))
        return False

    if file_suffix(path) == ".txt" and not is_well_formed(path, _WANTED, fits) and _has_names_and_texts(path):
        yield from _named_lines(path)
        return
    header, rows = open_table(path, _WANTED, fits)
    choose_column("image", header, columns, path)
    caption_columns(header, columns, path)
    for number, cells in rows:
        yield f"row {number}", cells


# Lines of CLIP_benchmark's files (flickr30k_test_karpathy.txt): NAME.jpg, comma, a caption whose commas and quotation
# marks mean nothing. Its reader (clip_benchmark/datasets/flickr.py) strips a line and splits it at ".jpg,".
_NAMED = re.compile(r"(.+?\.(?:jpe?g|png)),(.*)", re.IGNORECASE)


def _has_names_and_texts(path: str) -> bool:
    lines = filter(None, map(str.strip, iterate_lines(path, _WANTED)))
    return next(lines, "").lower() == "image,caption" and all(map(_NAMED.fullmatch, lines))


def _named_lines(path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for number, line in enumerate(iterate_lines(path, _WANTED), 1):
        if match := _NAMED.fullmatch(line.strip()):
            yield f"line {number}", {"image": match[1], "caption": match[2]}


# Flickr8k.token.txt and results_20130124.token (NAME.jpg#0, tab, caption); results.csv of Flickr30k (NAME.jpg| 0|
# caption, of which one line lacks the second bar). No quotes: those of a line are the caption's.
_FLICKR = re.compile(r"([^\t|]+\.\w+)(?:#\d+\t|\| *\d+(?:\|| {2}))\s*(.*)|image_name\| *comment_number\| *comment")


def _flickr_rows(path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for number, line in enumerate(iterate_lines(path, _WANTED), 1):
        match = _FLICKR.fullmatch(text := line.rstrip("\r\n"))
        if match is None and text.strip():
            raise InputError(
                path, f"line {number}", repr(text)[:80], "NAME.jpg#0, a tab and a caption, or as results.csv"
            )
        if match and match[1]:
            yield f"line {number}", {"image": match[1], "caption": match[2]}
