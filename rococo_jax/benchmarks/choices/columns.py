"""Published items whose fields can be named in one line: the columns of images, texts, ids and parts.

A field is a key of an object, or a position in a list. What is not a plain column needs a function of its own, as in
`readers/valse.py`.
"""

from collections.abc import Callable, Iterator, Sequence

from rococo_jax.benchmarks.choices.items import Item, choose_pairs, choose_text
from rococo_jax.benchmarks.choices.records import Record

Field = str | int
# Returns the part that the item of a record belongs to.
PartOf = Callable[[Record], str]


def file_stem(record: Record) -> str:
    """Return the name of the record's file without its ending: one part for each file."""
    return record.source.stem


def caption_columns(
    image: Field,
    true: Sequence[Field],
    false: Sequence[Field],
    *,
    id: Field | None = None,
    part: PartOf = file_stem,
) -> Callable[[Record], Iterator[Item]]:
    """Return a reader of items with one image, its true captions, and false ones.

    Args:
        image, true, false: columns of the image and of the captions.
        id: column of the item's id; by default its key or line in the file.
        part: returns the part of an item; by default each file is a part.
    """

    def items(record: Record) -> Iterator[Item]:
        true_captions, false_captions = map(record.text, true), map(record.text, false)
        item_id = record.id if id is None else record.label(id)
        yield choose_text(item_id, record.image(image), [*true_captions], [*false_captions], part(record))

    return items


def pair_columns(
    images: Sequence[Field],
    texts: Sequence[Field],
    *,
    id: Field | None = None,
    part: PartOf = file_stem,
    image_name: str = "{}",
) -> Callable[[Record], Iterator[Item]]:
    """Return a reader of items with as many images as texts; each text belongs to the image at its position.

    Args:
        images, texts: their columns.
        id, part: as for `caption_columns`.
        image_name: file name of an image, with `{}` for the value of its column.
    """

    def items(record: Record) -> Iterator[Item]:
        item_id = record.id if id is None else record.label(id)
        files = [record.image(field, image_name) for field in images]
        yield choose_pairs(item_id, files, [record.text(field) for field in texts], part(record))

    return items
