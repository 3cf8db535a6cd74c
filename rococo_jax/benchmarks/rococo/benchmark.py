"""RoCOCO as a registered benchmark: its folders, and how they become tables and tasks."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rococo_jax.benchmarks.benchmark import Benchmark, BenchmarkInfo, open_images, partial_note, register
from rococo_jax.benchmarks.rococo.annotations import CLEAN_FILE, AnnotationSet, read_annotation_folder
from rococo_jax.benchmarks.rococo.build import tasks_of_set
from rococo_jax.benchmarks.rococo.mixed_galleries import mixed_galleries, parse_mix
from rococo_jax.benchmarks.settings import CONTROL, Settings
from rococo_jax.benchmarks.tasks import IMAGE_TO_TEXT, TEXT_TO_IMAGE
from rococo_jax.perturb.text import VARIANTS
from rococo_jax.storage import hash_json

TASKS = (IMAGE_TO_TEXT, TEXT_TO_IMAGE)


def open_rococo(folders: Mapping[str, Path], settings: Settings) -> Benchmark:
    """RoCOCO over the images that are present, with the mixed galleries that the settings ask for.

    Raises:
        InputError: an annotation file is unusable, images are missing and that is not allowed, or a mixed gallery is
            none.
    """
    for variant in settings.mixed_galleries:
        if variant != CONTROL:
            parse_mix(variant)
    annotations = read_annotation_folder(folders["annotations"])
    names = [item.image for item in annotations.clean]
    originals, missing, data = open_images(folders["images"], names, settings.allow_missing_images)
    built = tasks_of_set(annotations, settings.protocol, images=set(originals.names))
    tasks = [task for task in built.tasks if settings.wants(task.name)]
    notes = [partial_note(len(originals), len(names))] if missing else []
    notes += built.notes
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
        name=INFO.name,
        images=built.images,
        texts=built.texts,
        image_sets=image_sets,
        tasks=tuple(tasks),
        notes=tuple(notes),
        data=data,
        decides={**_hashes(annotations, originals.names, originals.hashes), **_asked(settings)},
        unread=tuple(path.name for path in annotations.ignored),
    )


def _hashes(annotations: AnnotationSet, names: tuple[str, ...], hashes: tuple[str, ...]) -> dict[str, Any]:
    variants = {
        name: hash_json([[item.image, item.originals, item.altered] for item in annotation.items])
        for name, annotation in annotations.variants.items()
    }
    clean = hash_json([[item.image, *item.captions] for item in annotations.clean])
    return {"captions": clean, "variants": variants, "images": hash_json(dict(zip(names, hashes, strict=True)))}


def _asked(settings: Settings) -> dict[str, Any]:
    asked: dict[str, Any] = {"tasks": [task for task in TASKS if settings.wants(task)]}
    if TEXT_TO_IMAGE in asked["tasks"]:
        asked |= {"mixes": list(settings.mixed_galleries), "seeds": list(settings.seeds)}
    return asked


INFO = register(
    BenchmarkInfo(
        name="rococo",
        question="Does an altered caption or a mixed image take the first place?",
        paper="RoCOCO: Robustness Benchmark of MS-COCO to Stress-test Image-Text Matching Models, arXiv 2304.10727",
        licence="annotations MIT; captions CC BY 4.0; images under their Flickr licences",
        size="5,000 images, 25,010 captions, 4 x 25,000 altered captions",
        folders={"images": "coco/images", "annotations": "rococo/annotations"},
        files=(CLEAN_FILE, *(f"{variant}.json" for variant in VARIANTS)),
        source="annotations: the benchmark's public repository; images: MS-COCO val2014, cocodataset.org",
        tasks=TASKS,
        open=open_rococo,
    )
)
