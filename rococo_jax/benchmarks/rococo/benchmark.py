"""RoCOCO (arXiv 2304.10727) as rank tasks: images find their captions among altered ones, captions find their image.

- `image_to_text`: queries are the images; the gallery is, image by image, the originals, then the altered captions, as
  in the published files. `clean` has the originals alone.
- `text_to_image`, `clean`: queries are the originals, never the altered captions; the gallery is the images.

Protocols: `paper` takes the strings as they are and breaks ties as the published code does. `strict` normalises case
and final punctuation on both sides before captions are embedded, leaves out altered captions that are then no different
from their original ("no-ops"), and counts every tie against the model.
"""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rococo_jax.benchmarks.benchmark import Benchmark, open_images
from rococo_jax.benchmarks.pooling import Headline
from rococo_jax.benchmarks.rococo.annotations import (
    AlteredCaptions,
    Annotation,
    AnnotationSet,
    altered_pairs,
    is_no_op,
    normalise_caption,
    read_annotation_folder,
)
from rococo_jax.benchmarks.rococo.mixed_galleries import mixed_galleries, parse_mix
from rococo_jax.benchmarks.settings import Settings
from rococo_jax.benchmarks.tables import ORIGINALS, TEXTS, Rows
from rococo_jax.benchmarks.tasks import IMAGE_TO_TEXT, TEXT_TO_IMAGE, RankTask
from rococo_jax.benchmarks.variants import CLEAN, CONTROL
from rococo_jax.data.captions import CaptionedImage
from rococo_jax.storage import hash_json


@dataclasses.dataclass(frozen=True, eq=False)
class CaptionTasks:
    """Tasks over one table of images and one of captions.

    Attributes:
        images: names, in the order of the annotations.
        texts: strings as they are to be embedded.
        tasks: the clean task of each direction, and one for each variant.
        notes: what a reader of the results must know.
    """

    images: tuple[str, ...]
    texts: tuple[str, ...]
    tasks: tuple[RankTask, ...]
    notes: tuple[str, ...]


def tasks_of_set(
    annotations: AnnotationSet, protocol: str = "paper", *, images: Collection[str] | None = None
) -> CaptionTasks:
    """All tasks of a folder of annotations, over one table of distinct strings.

    The gallery shrinks to the `images` that are present (all by default).
    """
    strict, rows = protocol == "strict", {}
    prepare = normalise_caption if strict else str

    def row_of(caption: str) -> int:
        return rows.setdefault(prepare(caption), len(rows))

    clean = [item for item in annotations.clean if images is None or item.image in images]
    image_row = {item.image: row for row, item in enumerate(clean)}
    tasks = [image_to_text("clean", without_altered(clean), image_row, row_of, strict)]
    notes = []
    for variant, annotation in annotations.variants.items():
        items = [item for item in annotation.items if item.image in image_row]
        tasks.append(image_to_text(variant, items, image_row, row_of, strict))
        notes += _note_on_no_ops(variant, items, strict)
    tasks.append(text_to_image(tasks[0]))
    return CaptionTasks(tuple(image_row), tuple(rows), tuple(tasks), tuple(notes))


def tasks_of_file(annotation: Annotation | Sequence[CaptionedImage], protocol: str = "paper") -> CaptionTasks:
    """Build the tasks of one annotation file over its captions in file order, none merged.

    A file of plain captions gives only the clean tasks. `strict` leaves out no-ops; the strings are not normalised,
    because the embeddings were made from the strings as they are.
    """
    strict = protocol == "strict"
    if isinstance(annotation, Annotation):
        items, variant = annotation.items, annotation.variant
    else:
        items, variant = without_altered(annotation), None
    image_row = {item.image: row for row, item in enumerate(items)}
    captions = tuple(caption for item in items for caption in (*item.originals, *_altered(item)))
    in_file_order = iter(range(len(captions)))
    task = image_to_text(variant or "clean", items, image_row, lambda _: next(in_file_order), strict=False)
    task = dataclasses.replace(task, ties="pessimistic" if strict else "published")
    tasks, notes = [dataclasses.replace(task.with_gallery(~task.gallery_altered), variant="clean")], []
    if variant is not None:
        is_kept = np.ones(len(captions), bool)
        if strict:
            is_kept = np.array([keep for item in items for keep in _kept_in_strict(item)])
            notes = _note_on_no_ops(variant, items, strict)
        tasks.append(dataclasses.replace(task.with_gallery(is_kept), variant=variant))
    tasks.append(text_to_image(tasks[0]))
    return CaptionTasks(tuple(image_row), captions, tuple(tasks), tuple(notes))


def without_altered(items: Iterable[CaptionedImage]) -> list[AlteredCaptions]:
    """Return images with their captions and no altered ones."""
    return [AlteredCaptions(item.image, item.captions, (None,) * len(item.captions)) for item in items]


def _altered(item: AlteredCaptions) -> list[str]:
    return [caption for caption in item.altered if caption is not None]


def _kept_in_strict(item: AlteredCaptions) -> list[bool]:
    altered = [not is_no_op(old, new, normalised=True) for _, old, new in altered_pairs([item])]
    return [True] * len(item.originals) + altered


def _note_on_no_ops(variant: str, items: Iterable[AlteredCaptions], strict: bool) -> list[str]:
    count = sum(_kept_in_strict(item).count(False) for item in items) if strict else 0
    note = f"{variant}: altered captions left out because they say what their original says (strict): {count}"
    return [note] if count else []


def note_on_shared_captions(built: CaptionTasks) -> list[str]:
    """Say how ties between images of one caption count, which no model can avoid; nothing where there are none."""
    clean = next(task for task in built.tasks if task.name == IMAGE_TO_TEXT and task.variant == "clean")
    images: dict[str, set[int]] = {}
    for row, image in zip(clean.gallery.index.tolist(), clean.gallery_group.tolist(), strict=True):
        images.setdefault(built.texts[row], set()).add(image)
    shared = [rows for rows in images.values() if len(rows) > 1]
    if not shared:
        return []
    affected = len(set[int]().union(*shared))
    is_strict = clean.ties == "pessimistic"
    counted = "counts against the model, a perfect one included (strict)" if is_strict else "is right for one (paper)"
    return [f"{len(shared):,} texts are captions of several images ({affected:,} images): a tie of these {counted}"]


def image_to_text(
    variant: str,
    items: Iterable[AlteredCaptions],
    image_row: dict[str, int],
    caption_row: Callable[[str], int],
    strict: bool,
) -> RankTask:
    """Return the task in which images find their captions among those of all images and the altered ones.

    Args:
        image_row: row of each image in the table of images.
        caption_row: returns the row of a caption in the table of texts.
        strict: leave out no-ops, and count ties against the model.
    """
    gallery, group, origin, images = [], [], [], []
    for item in items:
        originals = len(item.originals)
        made_from = [-1] * originals + [place for place, each in enumerate(item.altered) if each is not None]
        captions = [*item.originals, *_altered(item)]
        is_kept = _kept_in_strict(item) if strict else [True] * len(captions)
        image, begin = image_row[item.image], len(gallery)
        images.append(image)
        for caption, keep, place in zip(captions, is_kept, made_from, strict=True):
            if keep:
                gallery.append(caption_row(caption))
                group.append(image)
                origin.append(-1 if place < 0 else begin + place)
    return RankTask(
        name=IMAGE_TO_TEXT,
        variant=variant,
        queries=Rows.of(ORIGINALS, images),
        gallery=Rows.of(TEXTS, gallery),
        query_group=np.array(images, int),
        gallery_group=np.array(group, int),
        gallery_altered=np.array(origin, int) >= 0,
        gallery_origin=np.array(origin, int),
        ties="pessimistic" if strict else "published",
    )


def text_to_image(clean: RankTask) -> RankTask:
    """Return a task without altered captions with queries and gallery exchanged."""
    return dataclasses.replace(
        clean,
        name=TEXT_TO_IMAGE,
        queries=clean.gallery,
        gallery=clean.queries,
        query_group=clean.gallery_group,
        gallery_group=clean.query_group,
        gallery_altered=np.zeros(len(clean.queries), bool),
        gallery_origin=None,
    )


HEADLINE = Headline(
    "r1", "items", "[ours]: the paper's tables have R@1 of every gallery, altered ones beside the clean one", CLEAN
)


def open_rococo(folders: Mapping[str, Path], settings: Settings) -> Benchmark:
    """RoCOCO over the images that are present, with the mixed galleries that the settings ask for.

    Raises InputError where annotations are unusable, images missing without leave, or a mixed gallery unknown.
    """
    for variant in settings.mixed_galleries:
        if variant != CONTROL:
            parse_mix(variant)
    annotations = read_annotation_folder(folders["annotations"])
    names = [item.image for item in annotations.clean]
    originals, excluded, data = open_images(folders["images"], names, settings)
    built = tasks_of_set(annotations, settings.protocol, images=set(originals.names))
    tasks = [task for task in built.tasks if settings.wants(task.name)]
    notes = [*built.notes, *note_on_shared_captions(built)]
    image_sets: dict[str, Any] = {originals.name: originals}
    to_image = next((task for task in tasks if task.name == TEXT_TO_IMAGE), None)
    if to_image is not None and settings.mixed_galleries and len(originals) < 2:
        notes.append("one image alone cannot be mixed")
    elif to_image is not None and settings.mixed_galleries:
        mixed = mixed_galleries(to_image, originals, settings.mixed_galleries, settings.seeds, settings.protocol)
        tasks += [task for task, _ in mixed]
        image_sets |= {images.name: images for _, images in mixed}
    captions = sum(len(item.captions) for item in annotations.clean if item.image in set(originals.names))
    data |= {"annotations": str(folders["annotations"].resolve()), "caption_count": captions}
    return Benchmark(
        name="rococo",
        images=built.images,
        texts=built.texts,
        image_sets=image_sets,
        tasks=tuple(tasks),
        notes=tuple(notes),
        data=data,
        conditions=_hashes(annotations, originals.names, originals.hashes),
        ignored_files=tuple(path.name for path in annotations.ignored),
        excluded=excluded,
        requested=_requested(annotations, settings),
        headline=HEADLINE,
    )


def _variant_hashes(annotations: AnnotationSet) -> dict[str, str]:
    return {
        name: hash_json([[item.image, item.originals, item.altered] for item in annotation.items])
        for name, annotation in annotations.variants.items()
    }


def _hashes(annotations: AnnotationSet, names: tuple[str, ...], hashes: tuple[str, ...]) -> dict[str, Any]:
    clean = hash_json([[item.image, *item.captions] for item in annotations.clean])
    images = hash_json(dict(zip(names, hashes, strict=True)))
    return {"captions": clean, "variants": _variant_hashes(annotations), "images": images}


def _requested(annotations: AnnotationSet, settings: Settings) -> dict[str, Any]:
    requested: dict[str, Any] = {"variants": {}}
    if settings.wants(IMAGE_TO_TEXT):
        hashes = _variant_hashes(annotations)
        requested["variants"] = {name: {"from": name, "sha256": sha256} for name, sha256 in hashes.items()}
    if settings.wants(TEXT_TO_IMAGE) and settings.mixed_galleries:
        requested |= {"mixed_galleries": list(settings.mixed_galleries), "seeds": list(settings.seeds)}
    return requested
