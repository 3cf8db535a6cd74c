"""`rococo corrupt-images`: apply one of the nineteen corruptions of ImageNet-C to every image of a folder."""

import dataclasses
from typing import Annotated, Literal

from rococo_jax.cli.outputs import output_folder
from rococo_jax.options import Option

EXAMPLES = """\
  rococo corrupt-images --images coco/images --corruption gaussian_noise --severity 3 --out noisy
  rococo corrupt-images --images coco/images --corruption fog --severity 5 --seed 7 --size 224 --out foggy
  rococo corrupt-images --images coco/images --corruption defocus_blur --severity 1 --format jpeg --out blurred

corruptions:
  gaussian_noise, shot_noise, impulse_noise, speckle_noise, defocus_blur, glass_blur, motion_blur, zoom_blur,
  gaussian_blur, snow, frost, fog, brightness, spatter, contrast, elastic_transform, pixelate,
  jpeg_compression, saturate
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Corrupt every image of a folder (the 19 kinds and 5 severities of ImageNet-C), with a manifest.

    Attributes:
        images: folder of images, with subfolders
        corruption: one of the 19 below; the frost is drawn, ImageNet-C uses photographs
        severity: from 1 (mild) to 5 (strong)
        out: folder for images and manifest.json, one for each run
        seed: random seed (default: 0)
        size: first resize the shorter side to N and crop the centre; the constants were chosen for 224
        format: png is lossless (default)
    """

    images: Annotated[str, Option("DIR")]
    corruption: Annotated[str, Option("NAME")]
    severity: Annotated[int, Option("1..5")]
    out: Annotated[str, Option("DIR", check=output_folder)]
    seed: Annotated[int, Option("N")] = 0
    size: Annotated[int | None, Option("N")] = None
    format: Literal["png", "jpeg"] = "png"


def run(options: Options) -> int:
    from rococo_jax.perturb.images.corruptions import find_corruption
    from rococo_jax.perturb.images.image_folders import write_corrupted
    from rococo_jax.runtime import enable_compilation_cache

    corruption = find_corruption(options.corruption)
    enable_compilation_cache()
    new, existing = write_corrupted(
        options.images,
        corruption,
        options.severity,
        options.out,
        seed=options.seed,
        size=options.size,
        kind=options.format,
    )
    print(
        f"{new} images written, {existing} already there; {corruption.name}, severity {options.severity}, "
        f"seed {options.seed}; {options.out}/manifest.json"
    )
    return 0
