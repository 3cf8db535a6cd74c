"""SugarCrepe and SugarCrepe++: is a true caption more similar to its image than a fluent false one?

SugarCrepe (arXiv 2306.14610): seven parts, `PART.json`: `{id: {"filename", "caption", "negative_caption"}}`. Accuracy
is OTA; `mean` is the macro mean over the parts.

SugarCrepe++ (arXiv 2406.11171): five parts, `PART.json`: `[{"id", "filename", "caption", "caption2",
"negative_caption"}]`. ITT is ATA; TOT compares the texts alone.
"""

from collections.abc import Iterator

from rococo_jax.benchmarks.choices.items import Item, choose_text
from rococo_jax.benchmarks.choices.reader import ChoiceReader, choice_benchmark
from rococo_jax.benchmarks.choices.records import Record, holds_list, holds_object
from rococo_jax.benchmarks.coco import VAL2017, part_files


def items(record: Record) -> Iterator[Item]:
    """One image, its caption and a false one."""
    image, right = record.image("filename"), record.text("caption")
    yield choose_text(record.id, image, [right], [record.text("negative_caption")], record.source.stem)


def items_pp(record: Record) -> Iterator[Item]:
    """One image, its caption, the same in other words, and a false one."""
    right, wrong = (record.text("caption"), record.text("caption2")), record.text("negative_caption")
    yield choose_text(record.word("id"), record.image("filename"), right, [wrong], record.source.stem)


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

PARTS = tuple(_HASHES)
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
    downloads=(*part_files(_PUBLISHED, "sugar_crepe", _HASHES, 240_000), VAL2017),
)

_PUBLISHED_PP = "https://raw.githubusercontent.com/Sri-Harsha/scpp/main/data"
_HASHES_PP = {
    "replace_att": "6826413592894754eeca02aeebbcbbc8b95a7456998abcc714e71c033ce6fe87",
    "replace_obj": "5c6dc499ec8f511a8aa4ec1b7b5eb0eca90317488abe36ec39573355e2d361ab",
    "replace_rel": "040fb95d3f0619bf515db60879e99709a87a5e9b4f524ec3403b127243480fd4",
    "swap_att": "450d0fd9fcad3e6f44950dc634e7f901ab1c6d9c60a569ade5ae8ffb3d203ad8",
    "swap_obj": "5f33cae824de431a7ecd3c5de6301f689815f9497aa36d96b154bbaf117b201b",
}

choice_benchmark(
    ChoiceReader(items_pp, leads=("itt", "tot")),
    name="sugarcrepe_pp",
    question="Are a caption and its paraphrase both more similar to the image than a false caption?",
    paper="SUGARCREPE++: Vision-Language Model Sensitivity to Semantic and Lexical Alterations, arXiv 2406.11171",
    licence="annotations CC BY 4.0; images under their Flickr licences",
    size="4,757 items in 5 parts",
    folders={"images": "coco/images", "annotations": "sugarcrepe_pp"},
    files=tuple(f"{part}.json" for part in _HASHES_PP),
    source="annotations: the benchmark's public repository; images: MS-COCO val2017, cocodataset.org",
    holds=holds_list,
    downloads=(*part_files(_PUBLISHED_PP, "sugarcrepe_pp", _HASHES_PP, 270_000), VAL2017),
)
