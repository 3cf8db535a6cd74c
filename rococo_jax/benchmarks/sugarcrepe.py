"""SugarCrepe (arXiv 2306.14610): is the true caption more similar to its image than a fluent false one?

Seven parts, `PART.json`: `{id: {"filename", "caption", "negative_caption"}}`. Accuracy is OTA; `mean` is the macro mean
over the parts.
"""

from collections.abc import Iterator

from rococo_jax.benchmarks.choices.items import Item, choose_text
from rococo_jax.benchmarks.choices.reader import ChoiceReader, choice_benchmark
from rococo_jax.benchmarks.choices.records import Record, holds_object
from rococo_jax.benchmarks.coco_files import VAL2017
from rococo_jax.data.downloads import Download

PARTS = ("add_att", "add_obj", "replace_att", "replace_obj", "replace_rel", "swap_att", "swap_obj")


def items(record: Record) -> Iterator[Item]:
    """One image, its caption and a false one."""
    image, right = record.image("filename"), record.text("caption")
    yield choose_text(record.id, image, [right], [record.text("negative_caption")], record.source.stem)


_PUBLISHED = "https://raw.githubusercontent.com/RAIVNLab/sugar-crepe/0047054b243992f0fad63d6f64f7544862daf846/data"
_HASHES = {
    "add_att": "012d88d729693d193760e6f3393b06a1cf874380a9db0062e937201199fe044d",
    "add_obj": "1b9d76b93139a937b8dc1ada92a4f05ecc821bb3c291d752428bafadd4bb0682",
    "replace_att": "9fe55fd4c0a9ad1f85d486d9f6d0215b41f867eb025026e7f7b5ce44352545ee",
    "replace_obj": "9d299600639947e9d15281a9ded1382b376cf4ea088a8d08a1314bfe76e81898",
    "replace_rel": "356bcc2fc4c6aed3f4d9fd50acc58489bb1fe70c28791f9368d4cbf9ea39cdc9",
    "swap_att": "7a7ce04e5c4c80412b48c6f0c1347fb1a2f5d54c0be6aa429b64d390e442f8d0",
    "swap_obj": "073cdb8e253d053614e80710834d9773b09dbc1dd0a412f6f9492262caa1dcad",
}

INFO = choice_benchmark(
    ChoiceReader(items),
    name="sugarcrepe",
    question="Is the true caption more similar to its image than a fluent false one?",
    paper="SugarCrepe: Fixing Hackable Benchmarks for Vision-Language Compositionality, arXiv 2306.14610",
    licence="annotations MIT; images under their Flickr licences",
    size="7,511 items on 1,560 images in 7 parts",
    folders={"images": "coco/images", "annotations": "sugar_crepe"},
    files=tuple(f"{part}.json" for part in PARTS),
    source="annotations: the benchmark's public repository; images: MS-COCO val2017, cocodataset.org",
    holds=holds_object,
    downloads=(
        *(
            Download(f"{_PUBLISHED}/{name}.json", f"sugar_crepe/{name}.json", "annotations", digest, 240_000)
            for name, digest in _HASHES.items()
        ),
        VAL2017,
    ),
)
