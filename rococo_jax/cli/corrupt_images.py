"""`rococo corrupt-images`: apply one of the nineteen corruptions of ImageNet-C to every image of a folder."""

import argparse

from rococo_jax.cli.outputs import output_folder

HELP = "Corrupt every image of a folder (the 19 kinds and 5 severities of ImageNet-C), with a manifest."
EXAMPLES = """\
  rococo corrupt-images --images coco/images --corruption gaussian_noise --severity 3 --out noisy
  rococo corrupt-images --images coco/images --corruption fog --severity 5 --seed 7 --size 224 --out foggy
  rococo corrupt-images --images coco/images --corruption defocus_blur --severity 1 --format jpeg --out blurred

corruptions:
  gaussian_noise, shot_noise, impulse_noise, speckle_noise, defocus_blur, glass_blur, motion_blur, zoom_blur,
  gaussian_blur, snow, frost, fog, brightness, spatter, contrast, elastic_transform, pixelate,
  jpeg_compression, saturate
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--images", required=True, metavar="DIR", help="every image below this folder")
    parser.add_argument("--corruption", required=True, metavar="NAME", help="one of the 19 below")
    parser.add_argument("--severity", required=True, type=int, metavar="1..5", help="1 is mild, 5 is strong")
    parser.add_argument(
        "--out", type=output_folder, required=True, metavar="DIR", help="images and manifest.json; one folder a run"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of all random draws (default: 0)")
    parser.add_argument(
        "--size",
        type=int,
        metavar="N",
        help="resize the shorter side to N and cut the centre first; the constants were chosen for 224",
    )
    parser.add_argument("--format", choices=("png", "jpeg"), default="png", help="png is lossless (default)")


def run(arguments: argparse.Namespace) -> int:
    from rococo_jax.perturb.images.corruptions import find_corruption
    from rococo_jax.perturb.images.image_folders import write_corrupted
    from rococo_jax.runtime import enable_compilation_cache

    corruption = find_corruption(arguments.corruption)
    enable_compilation_cache()
    written, there = write_corrupted(
        arguments.images,
        corruption,
        arguments.severity,
        arguments.out,
        seed=arguments.seed,
        size=arguments.size,
        kind=arguments.format,
    )
    print(
        f"{written} images written, {there} already there; {corruption.name}, severity {arguments.severity}, "
        f"seed {arguments.seed}; {arguments.out}/manifest.json"
    )
    return 0
