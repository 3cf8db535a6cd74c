"""Anyone's own items: the plain JSON lines form, which `rococo benchmarks --items` writes of every other benchmark.

`items.jsonl`: `{"id", "images": [{"file", "box"?}], "texts": [...], "match": [[image, text], ...], "part"?}`. A box is
[left, top, right, bottom] in pixels; `match` lists the right pairs by place; `part` is `all` where it is not given.
Where items are also counted together, `kind`, `pair` and `set` name what an item belongs to. `templates`, a list of
prompts with `{}` for the text, makes the mean of their vectors stand for each text; `scene` names what several images
show, whose items are then resampled together.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from rococo_jax.benchmarks.choices.items import AS_GIVEN, BUNDLES, Bundle, Item, Picture
from rococo_jax.benchmarks.choices.reader import ChoiceReader, choice_benchmark
from rococo_jax.benchmarks.choices.records import Record
from rococo_jax.benchmarks.pooling import OURS, Headline


def items(record: Record) -> Iterator[Item]:
    """The item of a line."""
    images = record.under("images")
    pictures = [_picture(images.under(place)) for place in range(len(images.value))]
    pairs = [record.under("match").under(place) for place in range(len(record.under("match").value))]
    for pair in pairs:
        if len(pair.value) != 2:
            raise record.refuse("match", pair.value, "pairs [image, text]")
    match = tuple((pair.number(0), pair.number(1)) for pair in pairs)
    part = record.word("part") if "part" in record.value else "all"
    bundles = tuple(Bundle(how, record.word(how)) for how in BUNDLES if how in record.value)
    templates = record.texts("templates") if "templates" in record.value else AS_GIVEN
    for template in templates:
        if template.count("{}") != 1:
            raise record.refuse("templates", repr(template)[:80], "templates with {} once, for the text")
    scene = record.word("scene") if "scene" in record.value else ""
    yield Item(record.word("id"), tuple(pictures), record.texts("texts"), match, part, bundles, templates, scene)


def _picture(record: Record) -> Picture:
    image = record.image("file")
    if record.value.get("box") is None:
        return image
    box = record.under("box")
    if len(box.value) != 4:
        raise record.refuse("box", box.value, "[left, top, right, bottom]")
    return record.inside(image, tuple(box.number(place) for place in range(4)))


def text_choice(id: str, part: str, right: Sequence[str], wrong: str, image: str) -> dict[str, Any]:
    """The line of an item of one image, its right texts and a wrong one."""
    return {"id": id, "part": part, "texts": [*right, wrong], "match": [[0, place] for place in range(len(right))],
            "images": [{"file": image}]}  # fmt: skip


def as_json(item: Item) -> dict[str, Any]:
    """The line of an item."""
    images = [{"file": each.file} | ({"box": list(each.box)} if each.box else {}) for each in item.images]
    match = [list(pair) for pair in item.match]
    more: dict[str, Any] = {each.how: each.label for each in item.bundles}
    more |= {"templates": list(item.templates)} if item.templates != AS_GIVEN else {}
    more |= {"scene": item.scene} if item.scene else {}
    return {"id": item.id, "images": images, "texts": list(item.texts), "match": match, "part": item.part, **more}


INFO = choice_benchmark(
    ChoiceReader(items, headline=Headline("", "parts", f"{OURS}: items of your own")),
    name="choices",
    question="Which of a few texts belongs to which of a few images, in items of your own?",
    paper="none; the form is this project's",
    licence="yours",
    size="as many items as the file has",
    folders={"images": "choices/images", "annotations": "choices"},
    files=("items.jsonl",),
    source="your own file, or `rococo benchmarks --data DIR --items NAME --out items.jsonl`",
)
