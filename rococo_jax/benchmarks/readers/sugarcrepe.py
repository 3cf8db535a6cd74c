"""SugarCrepe and SugarCrepe++: is a true caption more similar to its image than a fluent false one?

SugarCrepe (arXiv 2306.14610): seven parts, `PART.json`: `{id: {"filename", "caption", "negative_caption"}}`. Accuracy
is OTA. `all` is the accuracy over all items, the average in the paper's table; `mean` is the mean over the parts.

SugarCrepe++ (arXiv 2406.11171): five parts, `PART.json`: `[{"id", "filename", "caption", "caption2",
"negative_caption"}]`. ITT is ATA; TOT compares the texts alone.
"""

from rococo_jax.benchmarks.choices.reader import ChoiceReader, caption_columns, choice_benchmark
from rococo_jax.benchmarks.choices.records import holds_list, holds_object
from rococo_jax.benchmarks.pooling import Headline

PARTS_PP = ("replace_att", "replace_obj", "replace_rel", "swap_att", "swap_obj")
PARTS = ("add_att", "add_obj", *PARTS_PP)
INFO = choice_benchmark(
    ChoiceReader(
        caption_columns("filename", true=["caption"], false=["negative_caption"]),
        headline=Headline("ota", "items", "average of the paper's table (github.com/RAIVNLab/sugar-crepe, issue 3)"),
        parts=PARTS,
    ),
    name="sugarcrepe",
    question="Is the true caption more similar to its image than a fluent false one?",
    paper="SugarCrepe: Fixing Hackable Benchmarks for Vision-Language Compositionality, arXiv 2306.14610",
    licence="annotations MIT; images under their Flickr licences",
    size="7,511 items on 1,560 images in 7 parts",
    folders={"images": "coco/images", "annotations": "sugar_crepe"},
    files=tuple(f"{part}.json" for part in PARTS),
    source="annotations: the benchmark's public repository; images: MS-COCO val2017, cocodataset.org",
    holds=holds_object,
)

choice_benchmark(
    ChoiceReader(
        caption_columns("filename", true=["caption", "caption2"], false=["negative_caption"], id="id"),
        headline=Headline("itt", "parts", "[ours]: the paper has a number for each part (arXiv 2406.11171)"),
        first_metrics=("tot",),
        parts=PARTS_PP,
    ),
    name="sugarcrepe_pp",
    question="Are a caption and its paraphrase both more similar to the image than a false caption?",
    paper="SUGARCREPE++: Vision-Language Model Sensitivity to Semantic and Lexical Alterations, arXiv 2406.11171",
    licence="annotations CC BY 4.0; images under their Flickr licences",
    size="4,757 items in 5 parts",
    folders={"images": "coco/images", "annotations": "sugarcrepe_pp"},
    files=tuple(f"{part}.json" for part in PARTS_PP),
    source="annotations: the benchmark's public repository; images: MS-COCO val2017, cocodataset.org",
    holds=holds_list,
)
