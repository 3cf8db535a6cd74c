"""RoCOCO (arXiv 2304.10727) as rank tasks: images find their captions among altered ones, captions find their image.

- `image_to_text`: queries are the images; the gallery is, image by image, the originals, then the altered captions, as
  in the published files. `clean` has the originals alone.
- `text_to_image`, `clean`: queries are the originals, never the altered captions; the gallery is the images.

Protocols: `paper` takes the strings as they are. `strict` normalises case and final punctuation on both sides before
captions are embedded, and leaves out altered captions that are then no different from their original ("no-ops").
`control` takes the captions as `paper` does.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Literal

import numpy as np

from rococo_jax.benchmarks.rococo.annotations import AlteredCaptions, Annotation, AnnotationSet, normalise_caption
from rococo_jax.benchmarks.tasks import IMAGE_TO_TEXT, TEXT_TO_IMAGE, RankBenchmark, RankTask
from rococo_jax.data.captions import CaptionedImage

Protocol = Literal["paper", "strict", "control"]
PROTOCOLS = ("paper", "strict", "control")


def rococo_from_set(
    annotations: AnnotationSet, protocol: Protocol = "paper", *, images: Collection[str] | None = None
) -> RankBenchmark:
    """All tasks of a folder of annotations, over one table of distinct strings.

    Args:
        annotations: clean captions and any number of variants.
        protocol: `paper`, `strict` or `control`.
        images: the names of the images that are present; the gallery shrinks to them. All by default.
    """
    table = _Strings(normalise_caption if protocol == "strict" else str)
    clean = [item for item in annotations.clean if images is None or item.image in images]
    image_row = {item.image: row for row, item in enumerate(clean)}
    as_altered = [AlteredCaptions(item.image, item.captions, (None,) * len(item.captions)) for item in clean]
    tasks = [_image_to_text("clean", as_altered, image_row, table.row, protocol)]
    notes = []
    for variant, annotation in annotations.variants.items():
        items = [item for item in annotation.items if item.image in image_row]
        tasks.append(_image_to_text(variant, items, image_row, table.row, protocol))
        notes += _note_on_no_ops(variant, items, protocol)
    tasks.append(_text_to_image_clean(tasks[0]))
    return RankBenchmark(tuple(image_row), tuple(table.rows), tuple(tasks), tuple(notes))


def rococo_from_file(annotation: Annotation | Sequence[CaptionedImage], protocol: Protocol = "paper") -> RankBenchmark:
    """The tasks of one annotation file; its table of captions is the file's captions in file order, none merged.

    A file of plain captions gives only the clean tasks. `strict` leaves out no-ops; the strings are not normalised,
    because whoever made the embeddings has read them as they are.
    """
    if isinstance(annotation, Annotation):
        items, variant = annotation.items, annotation.variant
    else:
        items = [AlteredCaptions(item.image, item.captions, (None,) * len(item.captions)) for item in annotation]
        variant = None
    image_row = {item.image: row for row, item in enumerate(items)}
    captions = tuple(caption for item in items for caption in (*item.originals, *_altered(item)))
    in_file_order = iter(range(len(captions)))
    whole = _image_to_text(variant or "clean", items, image_row, lambda _: next(in_file_order), "paper")
    notes = []
    tasks = [_only(whole, "clean", ~whole.gallery_altered)]
    if variant is not None:
        kept = np.ones(len(captions), bool)
        if protocol == "strict":
            kept = np.array([keep for item in items for keep in _kept_in_strict(item)])
            notes += _note_on_no_ops(variant, items, protocol)
        tasks.append(_only(whole, variant, kept))
    tasks.append(_text_to_image_clean(tasks[0]))
    return RankBenchmark(tuple(image_row), captions, tuple(tasks), tuple(notes))


class _Strings:
    """A table of distinct strings in order of appearance."""

    def __init__(self, prepare: Callable[[str], str]):
        self.prepare, self.rows = prepare, {}

    def row(self, caption: str) -> int:
        return self.rows.setdefault(self.prepare(caption), len(self.rows))


def _altered(item: AlteredCaptions) -> list[str]:
    return [caption for caption in item.altered if caption is not None]


def _kept_in_strict(item: AlteredCaptions) -> list[bool]:
    pairs = [(old, new) for old, new in zip(item.originals, item.altered, strict=True) if new is not None]
    return [True] * len(item.originals) + [normalise_caption(old) != normalise_caption(new) for old, new in pairs]


def _note_on_no_ops(variant: str, items: Iterable[AlteredCaptions], protocol: Protocol) -> list[str]:
    count = sum(_kept_in_strict(item).count(False) for item in items) if protocol == "strict" else 0
    return (
        [f"{variant}: altered captions left out because they say what their original says (strict): {count}"]
        if count
        else []
    )


def _image_to_text(
    variant: str,
    items: Iterable[AlteredCaptions],
    image_row: dict[str, int],
    caption_row: Callable[[str], int],
    protocol: Protocol,
) -> RankTask:
    gallery, group, altered, images = [], [], [], []
    for item in items:
        captions = [*item.originals, *_altered(item)]
        kept = _kept_in_strict(item) if protocol == "strict" else [True] * len(captions)
        image = image_row[item.image]
        images.append(image)
        for place, (caption, keep) in enumerate(zip(captions, kept, strict=True)):
            if keep:
                gallery.append(caption_row(caption))
                group.append(image)
                altered.append(place >= len(item.originals))
    return RankTask(
        name=IMAGE_TO_TEXT,
        variant=variant,
        queries=np.array(images, int),
        gallery=np.array(gallery, int),
        query_group=np.array(images, int),
        gallery_group=np.array(group, int),
        gallery_altered=np.array(altered, bool),
    )


def _only(task: RankTask, variant: str, kept: np.ndarray) -> RankTask:
    """The task with part of its gallery."""
    return RankTask(
        name=task.name,
        variant=variant,
        queries=task.queries,
        gallery=task.gallery[kept],
        query_group=task.query_group,
        gallery_group=task.gallery_group[kept],
        gallery_altered=task.gallery_altered[kept],
    )


def _text_to_image_clean(clean: RankTask) -> RankTask:
    """The clean task turned round."""
    return RankTask(
        name=TEXT_TO_IMAGE,
        variant="clean",
        queries=clean.gallery,
        gallery=clean.queries,
        query_group=clean.gallery_group,
        gallery_group=clean.query_group,
        gallery_altered=np.zeros(len(clean.queries), bool),
    )
