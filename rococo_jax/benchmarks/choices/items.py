"""Items of choices as readers give them, and the tables and tasks that are built of many."""

import dataclasses
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from rococo_jax.benchmarks.tables import Rows
from rococo_jax.benchmarks.tasks import ChoiceTask
from rococo_jax.errors import InputError
from rococo_jax.metrics.choice import Bundled

# Left, top, right and bottom in pixels of the file, as in Pillow's `crop`.
Box = tuple[int, int, int, int]


@dataclasses.dataclass(frozen=True)
class Picture:
    """An image, or the part of it inside a box.

    Attributes:
        file: its name, relative to the folder of images.
        box: left, top, right, bottom in pixels.
    """

    file: str
    box: Box | None = None


# How items of one label are counted together, beside one by one: see `metrics.choice`.
BUNDLES = ("kind", "pair", "set")


@dataclasses.dataclass(frozen=True)
class Bundle:
    """Items that a published figure counts together.

    Attributes:
        how: `kind`, of which the mean of all kinds' accuracies is taken; `pair` or `set`, right if all its items are.
        label: of the items that belong together, within their part.
        least: how many items a label must have to be counted at all.
    """

    how: str
    label: str
    least: int = 1


@dataclasses.dataclass(frozen=True)
class Item:
    """Images, texts, and which belong together.

    Attributes:
        id: unique within its part.
        images: pictures.
        texts: strings.
        match: (place of an image, place of a text) of each right pair.
        part: the variant that it is counted in.
        bundles: what it is counted together with, at most one of each way.
    """

    id: str
    images: tuple[Picture, ...]
    texts: tuple[str, ...]
    match: tuple[tuple[int, int], ...]
    part: str
    bundles: tuple[Bundle, ...] = ()


def choose_text(
    id: str, image: Picture, right: Sequence[str], wrong: Sequence[str], part: str, bundles: Sequence[Bundle] = ()
) -> Item:
    """One image, its right texts, then the wrong ones."""
    match = tuple((0, place) for place in range(len(right)))
    return Item(id, (image,), (*right, *wrong), match, part, tuple(bundles))


def choose_image(id: str, text: str, right: Picture, wrong: Sequence[Picture], part: str) -> Item:
    """One text, its image, then the wrong ones."""
    return Item(id, (right, *wrong), (text,), ((0, 0),), part)


def choose_pairs(id: str, images: Sequence[Picture], texts: Sequence[str], part: str) -> Item:
    """As many images as texts; each belongs to the one in its own place."""
    return Item(id, tuple(images), tuple(texts), tuple((place, place) for place in range(len(texts))), part)


class Lists:
    """Lists of whole numbers, one an item, in flat arrays."""

    def __init__(self) -> None:
        self.flat, self.ends = array("q"), array("q", [0])

    def append(self, numbers: Iterable[int]) -> None:
        """Add the list of one more item."""
        self.flat.extend(numbers)
        self.ends.append(len(self.flat))

    def __getitem__(self, item: int) -> array:
        return self.flat[self.ends[item] : self.ends[item + 1]]

    def joined(self) -> tuple[Int[np.ndarray, " numbers"], Int[np.ndarray, " items"]]:
        """The numbers of all items, and how many each has."""
        return _numbers(self.flat), np.diff(_numbers(self.ends))

    def padded(self) -> Int[np.ndarray, "items most"]:
        """One row an item, -1 where it has fewer than the largest."""
        flat, counts = self.joined()
        filled = np.arange(counts.max(initial=0)) < counts[:, None]
        rows = np.full(filled.shape, -1)
        rows[filled] = flat
        return rows


class Part:
    """The items of one part, as places in tables: 1,000,000 of them take some 100 MB with their ids."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.seen: set[str] = set()
        self.pictures, self.texts, self.match = Lists(), Lists(), Lists()
        self.shape = ""
        # By way of counting: numbers of labels, and the label of each item, -1 for none.
        self.labels: dict[str, dict[Bundle, int]] = {}
        self.label_of: dict[str, array] = {}

    def add_bundles(self, bundles: Iterable[Bundle]) -> None:
        """Record those of the item that was added last."""
        for bundle in bundles:
            numbers, of_item = self.labels.setdefault(bundle.how, {}), self.label_of.setdefault(bundle.how, array("q"))
            of_item.extend([-1] * (len(self.ids) - 1 - len(of_item)))
            of_item.append(numbers.setdefault(bundle, len(numbers)))

    def bundles(self) -> dict[str, Bundled]:
        """The bundles that have enough items, by way of counting."""
        bundled = {}
        for how, numbers in self.labels.items():
            of_item = np.full(len(self.ids), -1)
            of_item[: len(self.label_of[how])] = _numbers(self.label_of[how])
            sizes = np.bincount(of_item[of_item >= 0], minlength=len(numbers))
            counted = sizes >= np.array([bundle.least for bundle in numbers])
            number = np.append(np.where(counted, np.cumsum(counted) - 1, -1), -1)  # the last for -1
            bundled[how] = Bundled(number[of_item], sizes[counted])
        return bundled


class ItemTables:
    """Collects items; names, pictures and texts once each."""

    def __init__(self, source: object):
        self.source = source
        self.names: dict[str, int] = {}
        self.pictures: dict[Picture, int] = {}
        self.texts: dict[str, int] = {}
        self.parts: dict[str, Part] = {}

    def add(self, item: Item, where: object = "") -> None:
        """Adds an item.

        Raises InputError: its id occurs twice in its part, its matrix has another shape, nothing is right or wrong, or
        it asks another kind of question than its part.
        """
        source, field = where or self.source, f"item {item.id}"
        part = self.parts.setdefault(item.part, Part())
        if item.id in part.seen:
            raise InputError(source, field, f"the id twice in part {item.part!r}", "every id once")
        part.seen.add(item.id)
        images, texts = len(item.images), len(item.texts)
        if not images:
            raise InputError(source, f"{field}: images", "none", "at least one")
        if not texts or any(not (0 <= i < images and 0 <= t < texts) for i, t in item.match):
            found = f"{list(item.match)} for {images} images and {texts} texts"
            raise InputError(source, f"{field}: match", found, "pairs [image, text] of places that are there")
        if not item.match or len(set(item.match)) == images * texts:
            found = "no pair" if not item.match else "every pair"
            raise InputError(source, f"{field}: match", found, "some pairs right and some wrong")
        shape = shape_of(item)
        if part.ids and part.shape != shape:
            found = f"{shape}, after {part.shape}, in part {item.part!r}"
            raise InputError(source, f"{field}: match", found, "one kind of question in a part")
        part.shape = shape
        part.ids.append(item.id)
        for picture in item.images:
            self.names.setdefault(picture.file, len(self.names))
        part.pictures.append(self.pictures.setdefault(picture, len(self.pictures)) for picture in item.images)
        part.texts.append(self.texts.setdefault(text, len(self.texts)) for text in item.texts)
        part.match.append(image * texts + text for image, text in item.match)
        part.add_bundles(item.bundles)

    def in_turns(self) -> list[str]:
        """The names of the images of the first item of each part, then of the second of each, ..., each once."""
        name_of = np.array([self.names[picture.file] for picture in self.pictures], int)
        lists = [part.pictures.joined() for part in self.parts.values()]
        turn = np.concatenate([np.repeat(np.arange(len(counts)), counts) for _, counts in lists])
        used = name_of[np.concatenate([pictures for pictures, _ in lists])][np.argsort(turn, kind="stable")]
        names = list(self.names)
        return [names[number] for number in dict.fromkeys(used.tolist())]

    def items(self) -> Iterator[Item]:
        """The items that were added, part by part."""
        pictures, texts = list(self.pictures), list(self.texts)
        for name, part in self.parts.items():
            counted = {how: each.number for how, each in part.bundles().items()}
            of_part = [(list(part.labels[how]), part.label_of[how], number) for how, number in counted.items()]
            for place, id in enumerate(part.ids):
                images = tuple(pictures[number] for number in part.pictures[place])
                words = tuple(texts[number] for number in part.texts[place])
                match = tuple(divmod(pair, len(words)) for pair in part.match[place])
                bundles = tuple(labels[column[place]] for labels, column, kept in of_part if kept[place] >= 0)
                yield Item(id, images, words, match, name, bundles)


def shape_of(item: Item) -> str:
    """Describe an item's kind of question."""
    if len(item.images) == 1:
        several = len(item.match) > 1
        return "texts of one image, several of them right" if several else "texts of one image"
    if len(item.texts) == 1:
        return "images of one text"
    return "images and texts"


def tasks_of(
    tables: ItemTables,
    name: str,
    picture_rows: Mapping[Picture, tuple[str, int]],
    name_row: Mapping[str, int],
    leads: Sequence[str] = (),
    pooled: Mapping[str, str] | None = None,
) -> tuple[list[ChoiceTask], tuple[str, ...]]:
    """One task for each part that has items whose pictures are all there, and the texts that they use.

    Args:
        tables: the items.
        name: of the tasks.
        picture_rows: (table, row) of each picture that is there; empty to compare texts alone.
        name_row: the row in the benchmark's `images` of each name.
        leads: metrics to put first.
        pooled: part -> the variant that is a mean over it and others; the default is `ChoiceTask`'s, for all parts.
    """
    alone = not picture_rows
    pictures = list(tables.pictures)
    there = np.array([alone or picture in picture_rows for picture in pictures], bool)
    image_of = np.array([name_row.get(picture.file, -1) for picture in pictures], int)
    used = np.full(len(tables.texts), -1)
    tasks, kept_texts = [], []
    for part_name, part in tables.parts.items():
        item_pictures = part.pictures.padded()
        is_kept = (there[item_pictures] | (item_pictures < 0)).all(axis=1)
        if not is_kept.any():
            continue
        item_pictures, item_texts = item_pictures[is_kept], part.texts.padded()[is_kept]
        match = _match(part, is_kept, item_pictures.shape[1], item_texts.shape[1])
        new = np.unique(item_texts[item_texts >= 0])
        new = new[used[new] < 0]
        used[new] = np.arange(len(kept_texts), len(kept_texts) + len(new))
        kept_texts += new.tolist()
        used_pictures = np.unique(item_pictures[item_pictures >= 0])
        place = np.full(len(pictures) + 1, -1)  # the last for -1
        place[used_pictures] = np.arange(len(used_pictures))
        rows = Rows(()) if alone else _rows([picture_rows[pictures[one]] for one in used_pictures.tolist()])
        are_whole = all(pictures[one].box is None for one in used_pictures.tolist())
        more: dict[str, Any] = {} if pooled is None else {"pooled": pooled.get(part_name)}
        tasks.append(
            ChoiceTask(
                name=name,
                variant=part_name,
                ids=part.ids
                if is_kept.all()
                else [one for one, keep in zip(part.ids, is_kept.tolist(), strict=True) if keep],
                images=rows,
                image_names=image_of[used_pictures] if not alone else np.empty(0, int),
                item_images=np.full((len(item_texts), 1), -1) if alone else place[item_pictures],
                item_texts=np.where(item_texts < 0, -1, used[item_texts]),
                match=match[:, :1] if alone else match,
                group=image_of[item_pictures[:, 0]],
                leads=tuple(leads),
                whole_images=len(name_row) if are_whole and not alone else 0,
                bundles={how: each.share(is_kept) for how, each in part.bundles().items()},
                **more,
            )
        )
    strings = list(tables.texts)
    return tasks, tuple(strings[place] for place in kept_texts)


def _match(part: Part, kept: Bool[np.ndarray, " items"], images: int, texts: int) -> Bool[np.ndarray, "kept i t"]:
    (flat, counts), (_, own_texts) = part.match.joined(), part.texts.joined()
    of_item = np.repeat(np.arange(len(counts)), counts)
    match = np.zeros((len(counts), images, texts), bool)
    match[of_item, flat // own_texts[of_item], flat % own_texts[of_item]] = True
    return match[kept]


def _numbers(values: array) -> Int[np.ndarray, " values"]:
    # The buffer of an array is of C's `long long`, which NumPy tells from its own 64-bit integers.
    return np.fromiter(values, np.int64, len(values))


def _rows(places: Iterable[tuple[str, int]]) -> Rows:
    """Rows of one table or of several, in order."""
    rows = Rows(())
    table, index = None, []
    for name, row in places:
        if name != table and index:
            rows, index = rows + Rows.of(table, index), []
        table = name
        index.append(row)
    return rows + Rows.of(table, index) if index else rows
