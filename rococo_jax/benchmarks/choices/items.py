"""Items of choices as readers give them, and the tables and tasks that are built of many."""

import dataclasses
import itertools
import types
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from rococo_jax.benchmarks.pooling import Pool
from rococo_jax.benchmarks.tables import Rows
from rococo_jax.benchmarks.tasks import ChoiceTask
from rococo_jax.errors import InputError
from rococo_jax.metrics.choice import ItemGroups

# Left, top, right and bottom in pixels of the file, as in Pillow's `crop`.
Box = tuple[int, int, int, int]


@dataclasses.dataclass(frozen=True, slots=True)
class Picture:
    """An image, or the part of it inside a box.

    Attributes:
        file: its name, relative to the folder of images.
        box: left, top, right, bottom in pixels.
    """

    file: str
    box: Box | None = None


# The templates of texts that are compared as they are.
AS_GIVEN = ("{}",)
# How items of one label are counted together, beside one by one: see `metrics.choice`.
BUNDLES = ("kind", "pair", "set")


@dataclasses.dataclass(frozen=True, slots=True)
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


@dataclasses.dataclass(frozen=True, slots=True)
class Item:
    """Images, texts, and which belong together.

    Attributes:
        id: unique within its part.
        images: pictures.
        texts: strings.
        match: (place of an image, place of a text) of each right pair.
        part: the variant that it is counted in.
        bundles: what it is counted together with, at most one of each way.
        templates: prompts that each text is put into at `{}`; the mean of their vectors stands for the text.
        scene: what its image shows, where several images show the same, such as with and without an attack; items of
            one scene are resampled together. Empty where the image shows a scene of its own.
    """

    id: str
    images: tuple[Picture, ...]
    texts: tuple[str, ...]
    match: tuple[tuple[int, int], ...]
    part: str
    bundles: tuple[Bundle, ...] = ()
    templates: tuple[str, ...] = AS_GIVEN
    scene: str = ""


def choose_text(
    id: str,
    image: Picture,
    right: Sequence[str],
    wrong: Sequence[str],
    part: str,
    bundles: Sequence[Bundle] = (),
    templates: tuple[str, ...] = AS_GIVEN,
    scene: str = "",
) -> Item:
    """One image, its right texts, then the wrong ones."""
    match = tuple((0, place) for place in range(len(right)))
    return Item(id, (image,), (*right, *wrong), match, part, tuple(bundles), templates, scene)


def choose_image(id: str, text: str, right: Picture, wrong: Sequence[Picture], part: str) -> Item:
    """One text, its image, then the wrong ones."""
    return Item(id, (right, *wrong), (text,), ((0, 0),), part)


def choose_pairs(id: str, images: Sequence[Picture], texts: Sequence[str], part: str) -> Item:
    """As many images as texts; each belongs to the one in its own place."""
    return Item(id, tuple(images), tuple(texts), tuple((place, place) for place in range(len(texts))), part)


class ItemTables:
    """Collects items by part; names, pictures and texts once each, in the order in which they come."""

    def __init__(self, source: object):
        self.source = source
        self.names: dict[str, int] = {}
        self.pictures: dict[Picture, int] = {}
        self.texts: dict[str, int] = {}
        self.parts: dict[str, list[Item]] = {}
        self._ids: set[tuple[str, str]] = set()

    def add(self, item: Item, where: object = "") -> None:
        """Adds an item.

        Raises InputError: its id occurs twice in its part, its matrix has another shape, nothing is right or wrong, or
        it asks another kind of question than its part.
        """
        source, field = where or self.source, f"item {item.id}"
        part = self.parts.setdefault(item.part, [])
        if (item.part, item.id) in self._ids:
            raise InputError(source, field, f"the id twice in part {item.part!r}", "every id once")
        self._ids.add((item.part, item.id))
        images, texts = len(item.images), len(item.texts)
        if not images:
            raise InputError(source, f"{field}: images", "none", "at least one")
        if not texts or any(not (0 <= i < images and 0 <= t < texts) for i, t in item.match):
            found = f"{list(item.match)} for {images} images and {texts} texts"
            raise InputError(source, f"{field}: match", found, "pairs [image, text] of places that are there")
        if not item.match or len(set(item.match)) == images * texts:
            found = "no pair" if not item.match else "every pair"
            raise InputError(source, f"{field}: match", found, "some pairs right and some wrong")
        if part and shape_of(part[0]) != shape_of(item):
            found = f"{shape_of(item)}, after {shape_of(part[0])}, in part {item.part!r}"
            raise InputError(source, f"{field}: match", found, "one kind of question in a part")
        if part and part[0].templates != item.templates:
            found = f"others than in {part[0].id}, in part {item.part!r}"
            raise InputError(source, f"{field}: templates", found, "the same templates in all items of a part")
        part.append(item)
        for picture in item.images:
            self.names.setdefault(picture.file, len(self.names))
            self.pictures.setdefault(picture, len(self.pictures))
        for text in item.texts:
            self.texts.setdefault(text, len(self.texts))

    def in_turns(self) -> list[str]:
        """The names of the images of the first item of each part, then of the second of each, ..., each once."""
        turns = (item for turn in itertools.zip_longest(*self.parts.values()) for item in turn if item is not None)
        return list(dict.fromkeys(picture.file for item in turns for picture in item.images))

    def items(self) -> Iterator[Item]:
        """The items that were added, part by part, with the bundles that have enough items."""
        for part in self.parts.values():
            sizes = Counter(bundle for item in part for bundle in item.bundles)
            for item in part:
                counted = tuple(bundle for bundle in item.bundles if sizes[bundle] >= bundle.least)
                yield item if counted == item.bundles else dataclasses.replace(item, bundles=counted)


def _bundled(items: Sequence[Item]) -> dict[str, ItemGroups]:
    """The bundles of a part that have enough items, by way of counting."""
    bundled = {}
    for how in dict.fromkeys(bundle.how for item in items for bundle in item.bundles):
        of_item = [next((bundle for bundle in item.bundles if bundle.how == how), None) for item in items]
        sizes = {bundle: size for bundle, size in Counter(of_item).items() if bundle and size >= bundle.least}
        number = {bundle: place for place, bundle in enumerate(sizes)}
        bundled[how] = ItemGroups(
            np.array([number.get(bundle, -1) for bundle in of_item]), np.array(list(sizes.values()), int)
        )
    return bundled


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
    pools: Callable[[str], tuple[Pool, ...]] | None = None,
    baselines: Mapping[str, str] = types.MappingProxyType({}),
) -> tuple[list[ChoiceTask], tuple[str, ...]]:
    """One task for each part that has items whose pictures are all there, and the texts that they use.

    Args:
        tables: the items.
        name: of the tasks.
        picture_rows: (table, row) of each picture that is there; empty to compare texts alone.
        name_row: the row in the benchmark's `images` of each name.
        leads: metrics to put first.
        pools: from a part to the variants that it and others make together; the default is `ChoiceTask`'s.
        baselines: part -> the part that its drop is measured against.
    """
    alone = not picture_rows
    pictures = list(tables.pictures)
    image_of = np.array([name_row.get(picture.file, -1) for picture in pictures], int)
    strings, prompts = list(tables.texts), []
    # For each list of templates the row of each text's first prompt; its others follow. -1 where it has none yet.
    first_prompts: dict[tuple[str, ...], np.ndarray] = {}
    scene_rows: dict[str, int] = {}
    tasks = []
    for part_name, part in tables.parts.items():
        is_kept = np.array([alone or all(picture in picture_rows for picture in item.images) for item in part])
        items = [item for item, keep in zip(part, is_kept.tolist(), strict=True) if keep]
        if not items:
            continue
        item_pictures = _padded([[tables.pictures[picture] for picture in item.images] for item in items])
        item_texts = _padded([[tables.texts[text] for text in item.texts] for item in items])
        match = np.zeros((len(items), item_pictures.shape[1], item_texts.shape[1]), bool)
        match[tuple(np.array([(row, *pair) for row, item in enumerate(items) for pair in item.match]).T)] = True
        templates = items[0].templates
        first_prompt = first_prompts.setdefault(templates, np.full(len(strings), -1))
        new = np.unique(item_texts[item_texts >= 0])
        new = new[first_prompt[new] < 0]
        first_prompt[new] = len(prompts) + len(templates) * np.arange(len(new))
        prompts += [template.replace("{}", strings[text]) for text in new.tolist() for template in templates]
        used_pictures = np.unique(item_pictures[item_pictures >= 0])
        place = np.full(len(pictures) + 1, -1)  # the last for -1
        place[used_pictures] = np.arange(len(used_pictures))
        rows = Rows(()) if alone else _rows([picture_rows[pictures[one]] for one in used_pictures.tolist()])
        are_whole = all(pictures[one].box is None for one in used_pictures.tolist())
        group = image_of[item_pictures[:, 0]]
        scenes = zip(items, group.tolist(), strict=True)
        units = np.array([scene_rows.setdefault(item.scene, row) if item.scene else row for item, row in scenes])
        more: dict[str, Any] = {} if pools is None else {"pools": pools(part_name)}
        tasks.append(
            ChoiceTask(
                name=name,
                variant=part_name,
                ids=[item.id for item in items],
                images=rows,
                image_names=image_of[used_pictures] if not alone else np.empty(0, int),
                item_images=np.full((len(item_texts), 1), -1) if alone else place[item_pictures],
                item_texts=np.where(item_texts < 0, -1, first_prompt[item_texts]),
                match=match[:, :1] if alone else match,
                group=group,
                units=units,
                templates=len(templates),
                baseline=baselines.get(part_name, ""),
                leads=tuple(leads),
                whole_images=len(name_row) if are_whole and not alone else 0,
                bundles={how: each.share(is_kept) for how, each in _bundled(part).items()},
                **more,
            )
        )
    return tasks, tuple(prompts)


def _padded(lists: Sequence[Sequence[int]]) -> Int[np.ndarray, "items most"]:
    """One row an item, -1 where it has fewer than the largest."""
    rows = np.full((len(lists), max(map(len, lists))), -1)
    rows[np.arange(rows.shape[1]) < np.array([*map(len, lists)])[:, None]] = np.concatenate(lists)
    return rows


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
