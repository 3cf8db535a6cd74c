"""SugarCrepe++ (arXiv 2406.11171): are both of two true captions more similar to the image than the false one?

Five parts, `PART.json`: `[{"id", "filename", "caption", "caption2", "negative_caption"}]`. ITT is ATA; TOT compares the
texts alone.
"""

from collections.abc import Iterator

from rococo_jax.benchmarks.choices.items import Item, choose_text
from rococo_jax.benchmarks.choices.reader import ChoiceReader, choice_benchmark
from rococo_jax.benchmarks.choices.records import Record, holds_list
from rococo_jax.benchmarks.coco_files import VAL2017
from rococo_jax.data.downloads import Download

PARTS = ("replace_att", "replace_obj", "replace_rel", "swap_att", "swap_obj")


def items(record: Record) -> Iterator[Item]:
    """One image, its caption, the same in other words, and a false one."""
    right, wrong = (record.text("caption"), record.text("caption2")), record.text("negative_caption")
    yield choose_text(record.word("id"), record.image("filename"), right, [wrong], record.source.stem)


_PUBLISHED = "https://raw.githubusercontent.com/Sri-Harsha/scpp/main/data"
_HASHES = {
    "replace_att": "6826413592894754eeca02aeebbcbbc8b95a7456998abcc714e71c033ce6fe87",
    "replace_obj": "5c6dc499ec8f511a8aa4ec1b7b5eb0eca90317488abe36ec39573355e2d361ab",
    "replace_rel": "040fb95d3f0619bf515db60879e99709a87a5e9b4f524ec3403b127243480fd4",
    "swap_att": "450d0fd9fcad3e6f44950dc634e7f901ab1c6d9c60a569ade5ae8ffb3d203ad8",
    "swap_obj": "5f33cae824de431a7ecd3c5de6301f689815f9497aa36d96b154bbaf117b201b",
}

INFO = choice_benchmark(
    ChoiceReader(items, leads=("itt", "tot")),
    name="sugarcrepe_pp",
    question="Are a caption and its paraphrase both more similar to the image than a false caption?",
    paper="SUGARCREPE++: Vision-Language Model Sensitivity to Semantic and Lexical Alterations, arXiv 2406.11171",
    licence="annotations CC BY 4.0; images under their Flickr licences",
    size="4,757 items in 5 parts",
    folders={"images": "coco/images", "annotations": "sugarcrepe_pp"},
    files=tuple(f"{part}.json" for part in PARTS),
    source="annotations: the benchmark's public repository; images: MS-COCO val2017, cocodataset.org",
    holds=holds_list,
    downloads=(
        *(
            Download(f"{_PUBLISHED}/{name}.json", f"sugarcrepe_pp/{name}.json", "annotations", digest, 270_000)
            for name, digest in _HASHES.items()
        ),
        VAL2017,
    ),
)
