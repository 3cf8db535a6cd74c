"""Your own multiple-choice items, as JSON lines or as a table; `rococo benchmarks --items` writes others as JSON lines.

`items.jsonl`: `{"id", "images": [{"file", "box"?}], "texts": [...], "match": [[image, text], ...], "part"?}`. A box is
[left, top, right, bottom] in pixels. `match` lists the matching pairs by index. `part` is `all` by default. `kind`,
`pair` and `set` name groups of items that are also counted together. With `templates`, a list of prompts with `{}` for
the text, the mean of their embeddings represents each text. Items with the same `scene` are resampled together.

`choices.csv`: columns `image,true,false` and optionally `part`; each row is an item of one image and two texts. All
files `choices*.csv` are read, unless there is `items.jsonl`.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from rococo_jax.benchmarks.choices.items import GROUPINGS, WITHOUT_PROMPT, Item, ItemGroup, Picture, choose_text
from rococo_jax.benchmarks.choices.reader import ChoiceReader, choice_benchmark
from rococo_jax.benchmarks.choices.records import Record
from rococo_jax.benchmarks.pooling import OURS, Headline


def items(record: Record) -> Iterator[Item]:
    """Yield the item of a line, or of a row of a table."""
    yield _item_of_row(record) if record.source.suffix == ".csv" else _item_of_line(record)


def _item_of_row(record: Record) -> Item:
    number = int(record.id) + 1
    record = dataclasses.replace(record, id=f"in row {number}")
    image, true, false = record.image("image"), record.text("true"), record.text("false")
    if true == false:
        raise record.error("false", f"the same text as true: {false[:40]!r}", "another text")
    part = record.label("part") if "part" in record.value else "all"
    return choose_text(f"{record.source.stem} {number}", image, [true], [false], part)


def _item_of_line(record: Record) -> Item:
    images = record.child("images")
    pictures = [_picture(images.child(place)) for place in range(len(images.value))]
    pairs = [record.child("match").child(place) for place in range(len(record.child("match").value))]
    for pair in pairs:
        if len(pair.value) != 2:
            raise record.error("match", pair.value, "pairs [image, text]")
    match = tuple((pair.number(0), pair.number(1)) for pair in pairs)
    part = record.label("part") if "part" in record.value else "all"
    groups = tuple(ItemGroup(grouping, record.label(grouping)) for grouping in GROUPINGS if grouping in record.value)
    templates = record.texts("templates") if "templates" in record.value else WITHOUT_PROMPT
    for template in templates:
        if template.count("{}") != 1:
            raise record.error("templates", repr(template)[:80], "templates with {} once, for the text")
    scene = record.label("scene") if "scene" in record.value else ""
    return Item(record.label("id"), tuple(pictures), record.texts("texts"), match, part, groups, templates, scene)


def _picture(record: Record) -> Picture:
    image = record.image("file")
    if record.value.get("box") is None:
        return image
    box = record.child("box")
    if len(box.value) != 4:
        raise record.error("box", box.value, "[left, top, right, bottom]")
    return record.inside(image, tuple(box.number(place) for place in range(4)))


def text_choice(id: str, part: str, right: Sequence[str], wrong: str, image: str) -> dict[str, Any]:
    """Return the line of an item with one image, its right texts and a wrong text."""
    return {"id": id, "part": part, "texts": [*right, wrong], "match": [[0, place] for place in range(len(right))],
            "images": [{"file": image}]}  # fmt: skip


def as_json(item: Item) -> dict[str, Any]:
    """Return the line of an item."""
    images = [{"file": each.file} | ({"box": list(each.box)} if each.box else {}) for each in item.images]
    match = [list(pair) for pair in item.match]
    more: dict[str, Any] = {each.grouping: each.label for each in item.groups}
    more |= {"templates": list(item.templates)} if item.templates != WITHOUT_PROMPT else {}
    more |= {"scene": item.scene} if item.scene else {}
    return {"id": item.id, "images": images, "texts": list(item.texts), "match": match, "part": item.part, **more}


INFO = choice_benchmark(
    ChoiceReader(items, headline=Headline("", "parts", f"{OURS}: items of your own")),
    name="choices",
    question="Which of a few texts match which of a few images, in your own items?",
    paper="none; the form is this project's",
    licence="yours",
    size="as many items as the file has",
    folders={"images": "choices/images", "annotations": "choices"},
    files=("items.jsonl", "choices*.csv"),
    source="your own file, or `rococo benchmarks --data DIR --items NAME --out items.jsonl`",
)
