"""Multiple-choice items as readers yield them, and the tables and tasks that are built from them."""

import dataclasses
import itertools
import types
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from rococo_jax.benchmarks.pooling import Pool
from rococo_jax.benchmarks.subset import Subset
from rococo_jax.benchmarks.tables import Rows
from rococo_jax.benchmarks.tasks import ChoiceTask
from rococo_jax.errors import InputError
from rococo_jax.metrics.choice import ItemGroups

# Left, top, right and bottom in pixels, as in Pillow's `crop`.
Box = tuple[int, int, int, int]


@dataclasses.dataclass(frozen=True, slots=True)
class Picture:
    """An image, or the region of an image inside a box.

    Attributes:
        file: name of the image, relative to the folder of images.
        box: left, top, right, bottom in pixels.
    """

    file: str
    box: Box | None = None


# The templates of texts that are embedded without a prompt.
WITHOUT_PROMPT = ("{}",)
# Groupings of items beyond their parts: see `metrics.choice`.
GROUPINGS = ("kind", "pair", "set")


@dataclasses.dataclass(frozen=True, slots=True)
class ItemGroup:
    """A group of items that a published metric counts together.

    Attributes:
        grouping: `kind` (the metric is the mean of the accuracies of all kinds), `pair` or `set` (correct if all its
            items are).
        label: identifies the group within a part.
        min_items: groups with fewer items are not counted.
    """

    grouping: str
    label: str
    min_items: int = 1


@dataclasses.dataclass(frozen=True, slots=True)
class Item:
    """Images, texts, and the pairs of them that match.

    Attributes:
        id: unique within its part.
        images: images or regions.
        texts: strings.
        match: (index of an image, index of a text) of each matching pair.
        part: part of the benchmark, which becomes a variant in the results.
        groups: groups that the item belongs to, at most one for each grouping.
        templates: prompts with `{}` for the text; the mean of their embeddings represents the text.
        scene: identifies what the image shows, if several images show the same scene, such as with and without an
            attack. Items of one scene are resampled together. Empty if the image is the only one of its scene.
    """

    id: str
    images: tuple[Picture, ...]
    texts: tuple[str, ...]
    match: tuple[tuple[int, int], ...]
    part: str
    groups: tuple[ItemGroup, ...] = ()
    templates: tuple[str, ...] = WITHOUT_PROMPT
    scene: str = ""


def choose_text(
    id: str,
    image: Picture,
    right: Sequence[str],
    wrong: Sequence[str],
    part: str,
    groups: Sequence[ItemGroup] = (),
    templates: tuple[str, ...] = WITHOUT_PROMPT,
    scene: str = "",
) -> Item:
    """Return an item that asks which texts match one image; the right texts come first."""
    match = tuple((0, place) for place in range(len(right)))
    return Item(id, (image,), (*right, *wrong), match, part, tuple(groups), templates, scene)


def choose_image(id: str, text: str, right: Picture, wrong: Sequence[Picture], part: str) -> Item:
    """Return an item that asks which image matches one text; the right image comes first."""
    return Item(id, (right, *wrong), (text,), ((0, 0),), part)


def choose_pairs(id: str, images: Sequence[Picture], texts: Sequence[str], part: str) -> Item:
    """Return an item with as many images as texts; each text matches the image at its position."""
    return Item(id, tuple(images), tuple(texts), tuple((place, place) for place in range(len(texts))), part)


class ItemTables:
    """Items by part, with all file names, pictures and texts without repetitions, in order of first occurrence."""

    def __init__(self, source: object):
        self.source = source
        self.names: dict[str, int] = {}
        self.pictures: dict[Picture, int] = {}
        self.texts: dict[str, int] = {}
        self.parts: dict[str, list[Item]] = {}
        self._ids: set[tuple[str, str]] = set()

    def add(self, item: Item, source: object = "") -> None:
        """Add an item; `source` is its file, for errors.

        Raises InputError: its id is repeated in its part, a pair is outside its images and texts, all or none of its
        pairs match, or it is of another kind than the other items of its part.
        """
        source, field = source or self.source, f"item {item.id}"
        part = self.parts.setdefault(item.part, [])
        if (item.part, item.id) in self._ids:
            raise InputError(source, field, f"the id twice in part {item.part!r}", "every id once")
        self._ids.add((item.part, item.id))
        images, texts = len(item.images), len(item.texts)
        if not images:
            raise InputError(source, f"{field}: images", "none", "at least one")
        if not texts or any(not (0 <= i < images and 0 <= t < texts) for i, t in item.match):
            problem = f"{list(item.match)} for {images} images and {texts} texts"
            raise InputError(source, f"{field}: match", problem, "pairs [image, text] of existing positions")
        if not item.match or len(set(item.match)) == images * texts:
            problem = "no pair" if not item.match else "every pair"
            raise InputError(source, f"{field}: match", problem, "some pairs that match and some that do not")
        if part and question_of(part[0]) != question_of(item):
            problem = f"{question_of(item)}, after {question_of(part[0])}, in part {item.part!r}"
            raise InputError(source, f"{field}: match", problem, "one kind of question in a part")
        if part and part[0].templates != item.templates:
            problem = f"others than in {part[0].id}, in part {item.part!r}"
            raise InputError(source, f"{field}: templates", problem, "the same templates in all items of a part")
        part.append(item)
        for picture in item.images:
            self.names.setdefault(picture.file, len(self.names))
            self.pictures.setdefault(picture, len(self.pictures))
        for text in item.texts:
            self.texts.setdefault(text, len(self.texts))

    @property
    def count(self) -> int:
        """Number of items in all parts."""
        return sum(map(len, self.parts.values()))

    def select(self, subset: Subset) -> "ItemTables":
        """Return the tables of the listed items: by `PART/ID`, by `ID`, or by the image that an item belongs to.

        An item belongs to its first image. A pair or set of which some items are not listed is not counted.

        Raises InputError: the list has an unknown key, or an id that several parts have.
        """
        items = [(part, item) for part, of_part in self.parts.items() for item in of_part]
        images = {item.images[0].file for _, item in items}
        parts_with_id = Counter(item.id for _, item in items)
        ids = {f"{part}/{item.id}" for part, item in items} | parts_with_id.keys()
        example = f"{items[0][0]}/{items[0][1].id}"
        expected = f"items (PART/ID, such as {example!r}, or ID) or images that items belong to (their first)"
        subset.refuse_unknown(images | ids, expected)
        ambiguous = [key for key in subset.keys if key not in images and parts_with_id[key] > 1]
        if ambiguous:
            problem = f"{len(ambiguous):,} ids that several parts have, the first {ambiguous[0]!r}"
            raise InputError(subset.source, "entries", problem, f"PART/ID, such as {example!r}")

        def is_listed(part: str, item: Item) -> bool:
            by_id = item.id in subset and item.id not in images
            return by_id or f"{part}/{item.id}" in subset or item.images[0].file in subset

        tables = ItemTables(self.source)
        incomplete = {(part, group) for part, item in items if not is_listed(part, item) for group in item.groups}
        for part, item in items:
            if is_listed(part, item):
                groups = [each for each in item.groups if each.grouping == "kind" or (part, each) not in incomplete]
                tables.add(dataclasses.replace(item, groups=tuple(groups)))
        return tables

    def in_turns(self) -> list[str]:
        """Return the file names of the first item of each part, then of the second item of each part, and so on."""
        items = (item for turn in itertools.zip_longest(*self.parts.values()) for item in turn if item is not None)
        return list(dict.fromkeys(picture.file for item in items for picture in item.images))

    def items(self) -> Iterator[Item]:
        """Yield all items, part by part, without the groups that have too few items."""
        for part in self.parts.values():
            sizes = Counter(group for item in part for group in item.groups)
            for item in part:
                groups = tuple(group for group in item.groups if sizes[group] >= group.min_items)
                yield item if groups == item.groups else dataclasses.replace(item, groups=groups)


def _groups_of_items(items: Sequence[Item]) -> dict[str, ItemGroups]:
    """Return for each grouping the group of each item of a part; groups with too few items are left out."""
    groupings = {}
    for grouping in dict.fromkeys(group.grouping for item in items for group in item.groups):
        group_of_item = [next((group for group in item.groups if group.grouping == grouping), None) for item in items]
        sizes = {
            group: size
            for group, size in Counter(group_of_item).items()
            if group is not None and size >= group.min_items
        }
        number = {group: place for place, group in enumerate(sizes)}
        numbers = np.array([number.get(group, -1) for group in group_of_item])
        groupings[grouping] = ItemGroups(numbers, np.array(list(sizes.values()), int))
    return groupings


def question_of(item: Item) -> str:
    """Return a phrase for the kind of question that an item asks."""
    if len(item.images) == 1:
        return "texts of one image, several of them right" if len(item.match) > 1 else "texts of one image"
    if len(item.texts) == 1:
        return "images of one text"
    return "images and texts"


def tasks_of(
    tables: ItemTables,
    name: str,
    picture_rows: Mapping[Picture, tuple[str, int]],
    name_row: Mapping[str, int],
    first_metrics: Sequence[str] = (),
    pools: Callable[[str], tuple[Pool, ...]] | None = None,
    baselines: Mapping[str, str] = types.MappingProxyType({}),
) -> tuple[list[ChoiceTask], tuple[str, ...]]:
    """Build a task for each part, of the items all of whose pictures exist.

    Args:
        tables: the items.
        name: name of the tasks.
        picture_rows: (image set, row) of each existing picture; empty to compare texts without images.
        name_row: row of each file name in the benchmark's `images`.
        first_metrics: metrics that tables show first.
        pools: returns the pooled variants of a part; `ChoiceTask`'s default if None.
        baselines: part -> the part that its drop is measured against.

    Returns:
        The tasks, and the prompts that their texts become.
    """
    texts_only = not picture_rows
    pictures = list(tables.pictures)
    image_of = np.array([name_row.get(picture.file, -1) for picture in pictures], int)
    strings, prompts = list(tables.texts), []
    # By list of templates, the row of the first prompt of each text, or -1; its other prompts follow that row.
    first_prompts: dict[tuple[str, ...], np.ndarray] = {}
    scene_rows: dict[str, int] = {}
    tasks = []
    for part_name, part in tables.parts.items():
        is_complete = np.array([texts_only or all(picture in picture_rows for picture in item.images) for item in part])
        items = [item for item, keep in zip(part, is_complete.tolist(), strict=True) if keep]
        if not items:
            continue
        item_pictures = _padded([[tables.pictures[picture] for picture in item.images] for item in items])
        item_texts = _padded([[tables.texts[text] for text in item.texts] for item in items])
        match = np.zeros((len(items), item_pictures.shape[1], item_texts.shape[1]), bool)
        pairs = [(row, image, text) for row, item in enumerate(items) for image, text in item.match]
        match[tuple(np.array(pairs).T)] = True

        templates = items[0].templates
        first_prompt = first_prompts.setdefault(templates, np.full(len(strings), -1))
        texts = np.unique(item_texts[item_texts >= 0])
        new_texts = texts[first_prompt[texts] < 0]
        first_prompt[new_texts] = len(prompts) + len(templates) * np.arange(len(new_texts))
        prompts += [template.replace("{}", strings[text]) for text in new_texts.tolist() for template in templates]

        used_pictures = np.unique(item_pictures[item_pictures >= 0])
        used = [pictures[number] for number in used_pictures.tolist()]
        row_of_picture = np.full(len(pictures) + 1, -1)  # the last entry is for padding, which is -1
        row_of_picture[used_pictures] = np.arange(len(used_pictures))
        rows = Rows(()) if texts_only else _rows([picture_rows[picture] for picture in used])
        has_whole_images = not texts_only and all(picture.box is None for picture in used)

        group = image_of[item_pictures[:, 0]]
        items_with_image = zip(items, group.tolist(), strict=True)
        units = np.array(
            [scene_rows.setdefault(item.scene, image) if item.scene else image for item, image in items_with_image]
        )
        pooling: dict[str, Any] = {} if pools is None else {"pools": pools(part_name)}
        tasks.append(
            ChoiceTask(
                name=name,
                variant=part_name,
                ids=[item.id for item in items],
                images=rows,
                image_names=np.empty(0, int) if texts_only else image_of[used_pictures],
                item_images=np.full((len(item_texts), 1), -1) if texts_only else row_of_picture[item_pictures],
                item_texts=np.where(item_texts < 0, -1, first_prompt[item_texts]),
                match=match[:, :1] if texts_only else match,
                group=group,
                units=units,
                templates=len(templates),
                baseline=baselines.get(part_name, ""),
                leads=tuple(first_metrics),
                whole_images=len(name_row) if has_whole_images else 0,
                bundles={grouping: each.share(is_complete) for grouping, each in _groups_of_items(part).items()},
                **pooling,
            )
        )
    return tasks, tuple(prompts)


def _padded(lists: Sequence[Sequence[int]]) -> Int[np.ndarray, "items most"]:
    """Return one row per item, padded with -1 to the length of the longest."""
    rows = np.full((len(lists), max(map(len, lists))), -1)
    rows[np.arange(rows.shape[1]) < np.array([*map(len, lists)])[:, None]] = np.concatenate(lists)
    return rows


def _rows(places: Iterable[tuple[str, int]]) -> Rows:
    """Return rows of one or several tables, in order."""
    rows = Rows(())
    table, index = None, []
    for name, row in places:
        if name != table and index:
            rows, index = rows + Rows.of(table, index), []
        table = name
        index.append(row)
    return rows + Rows.of(table, index) if index else rows
