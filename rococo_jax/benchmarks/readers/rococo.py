"""RoCOCO (arXiv 2304.10727): retrieval on MS-COCO with altered captions and mixed images in the gallery."""

from collections.abc import Iterator
from pathlib import Path

from rococo_jax.benchmarks.benchmark import BenchmarkInfo, downloads_of, register
from rococo_jax.benchmarks.rococo.annotations import CLEAN_FILE, read_annotation_folder
from rococo_jax.benchmarks.rococo.benchmark import HEADLINE, open_rococo
from rococo_jax.benchmarks.tasks import IMAGE_TO_TEXT, TEXT_TO_IMAGE
from rococo_jax.perturb.text import VARIANTS


def image_names(annotations: Path) -> Iterator[str]:
    """Yield the names of the images that have captions."""
    return (item.image for item in read_annotation_folder(annotations).clean)


INFO = register(
    BenchmarkInfo(
        name="rococo",
        question="Does an altered caption or a mixed image rank first?",
        paper="RoCOCO: Robustness Benchmark of MS-COCO to Stress-test Image-Text Matching Models, arXiv 2304.10727",
        licence="annotations MIT; captions CC BY 4.0; images under their Flickr licences",
        size="5,000 images, 25,010 captions, 4 x 25,000 altered captions",
        folders={"images": "coco/images", "annotations": "rococo/annotations"},
        files=(CLEAN_FILE, *(f"{variant}.json" for variant in VARIANTS)),
        source="annotations: the benchmark's public repository; images: MS-COCO val2014, cocodataset.org",
        tasks=(IMAGE_TO_TEXT, TEXT_TO_IMAGE),
        open=open_rococo,
        image_names=image_names,
        headline=HEADLINE,
        downloads=downloads_of("rococo"),
    )
)
