"""MS-COCO: where its images and the Karpathy split are got. Hashes are as TensorFlow Datasets keeps them."""

from collections.abc import Mapping

from rococo_jax.data.downloads import Download

_ZIPS = "http://images.cocodataset.org/zips"
_KARPATHY = "https://storage.googleapis.com/sfr-vision-language-research/datasets"


def images_of(split: str, sha256: str, size: int) -> Download:
    """The images of a split, as `coco/images/SPLIT`."""
    return Download(f"{_ZIPS}/{split}.zip", f"coco/images/{split}", "images", sha256, size, unpack=split)


VAL2014 = images_of("val2014", "fe9be816052049c34717e077d9e34aa60814a55679f804cd043e3cbee3b9fde0", 6_645_013_297)
VAL2017 = images_of("val2017", "4f7e2ccb2866ec5041993c9cf2a952bbed69647b115d0f74da7ce8f4bef82f05", 815_585_330)


def karpathy_test(to: str) -> Download:
    """Captions of the Karpathy test split."""
    name = "coco_karpathy_test.json"
    digest = "5b202a235ee2a4e13f82b984ef9293b8e2d34f9b1f92147bf8340580f20faf15"
    return Download(f"{_KARPATHY}/{name}", f"{to}/{name}", "annotations", digest, 1_735_468)


def part_files(source: str, folder: str, hashes: Mapping[str, str], size: int) -> tuple[Download, ...]:
    """Annotation files `NAME.json` of a public repository, by the hash of each; about `size` bytes each."""
    files = ((f"{name}.json", digest) for name, digest in hashes.items())
    return tuple(
        Download(f"{source}/{file}", f"{folder}/{file}", "annotations", digest, size) for file, digest in files
    )
