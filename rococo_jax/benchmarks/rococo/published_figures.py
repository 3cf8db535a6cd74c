"""Published figures to check an installation against: those of one public model, with where they stand.

Source: the log that the public code of RoCOCO (arXiv 2304.10727, "RoCOCO: Robustness Benchmark of MS-COCO to
Stress-test Image-Text Matching Models") carries of its run on OpenAI's CLIP ViT-B/32, the 5,000 images of the Karpathy
test split of MS-COCO and the published annotation files. The log names the clean run and the mixed gallery; its three
altered runs of image-to-text carry no variant's name.
"""

import dataclasses

from rococo_jax.perturb.text import VARIANTS

MODEL = "OpenAI CLIP ViT-B/32"
PROTOCOL = "paper"
IMAGES, CAPTIONS, ALTERED = 5000, 25_010, 25_000

METRICS = ("r1", "r5", "r10", "fr1")


@dataclasses.dataclass(frozen=True)
class PublishedLine:
    """One line of the log, percentages; `variants` are those that it may be, more than one where it has no name."""

    task: str
    variants: tuple[str, ...]
    r1: float
    r5: float
    r10: float
    fr1: float


LINES = (
    PublishedLine("image_to_text", ("clean",), 50.12, 74.66, 83.04, 0.0),
    PublishedLine("image_to_text", VARIANTS, 37.00, 66.72, 76.50, 33.48),
    PublishedLine("image_to_text", VARIANTS, 36.88, 66.68, 76.52, 34.34),
    PublishedLine("image_to_text", VARIANTS, 36.98, 66.70, 76.54, 33.48),
    PublishedLine("text_to_image", ("mix_0.9",), 19.84, 46.28, 57.34, 37.02),
)
