"""Two images and two captions to be matched: seven benchmarks, most of which differ only in the names of their fields.

Winoground (arXiv 2204.03162): captions of the same words. `examples.jsonl`: `{"id", "image_0", "caption_0", "image_1",
"caption_1", "collapsed_tag", ...}`, images `NAME.png`, as in the published archive. A part is the collapsed tag.

ColorSwap (arXiv 2402.04492): captions that exchange their colours. `data/test-*.parquet`, the published data set, which
contains its images; or `test.json`, `[{"id", "image_1", "caption_1", "image_2", "caption_2", ...}]`, images as paths.

BiVLC (arXiv 2406.09952): SugarCrepe's captions with a generated image for each false one. `data/test-*.parquet`, which
contains its images, or `test.jsonl`: `image, caption, negative_image, negative_caption, type, subtype`. A part is type
and subtype.

EqBen (arXiv 2303.14465): the smallest visual change. `private_info_global.json` (all) or
`eqben_subset_10percent_final.json`: `[{"image0", "caption0", "image1", "caption1", ...}]`. A part is the first folder.

COLA (arXiv 2305.03689): several objects exchange their attributes. `COLA_multiobjects_matching_benchmark.json`:
`[[link 1, caption 1, link 2, caption 2]]`; images are named by the last part of the link. The
published number is the image score.

MMVP-VLM (arXiv 2401.06209): pairs of images with similar CLIP embeddings, with a statement each, in nine visual
patterns. `Questions.csv`: `Question ID, Type, Statement`; two consecutive lines are a pair; images `TYPE/ID.jpg`, as in
the published archive. The text is "a photo of STATEMENT", as in the authors' evaluation of CLIP models
(github.com/tsb0601/MMVP). The published number is the image score.

VisMin (arXiv 2407.16772): one minimal change; a part is its category. The hub's Parquet copy, `default/test/*.parquet`,
which contains its images, or `vismin.jsonl`: `id, image_0, text_0, image_1, text_1, category`. Text 0 belongs to image
0, as in the authors' metric since January 2025 (github.com/rabiulcste/vismin, commit 680a3ee). In the data of 2024
about half of the items were crossed; the authors withdrew them together with the file that listed those items.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path

from rococo_jax.benchmarks.choices.items import Item, choose_pairs
from rococo_jax.benchmarks.choices.reader import ChoiceReader, choice_benchmark, pair_columns
from rococo_jax.benchmarks.choices.records import Record, read_records
from rococo_jax.benchmarks.pooling import Headline, HumanResults

# Metrics in the order of both sources of human results.
_SCORES = ("text_score", "image_score", "group_score")


def _scores(**by_part: tuple[float, float, float]) -> dict[str, dict[str, float]]:
    """Return text, image and group score by part and metric."""
    return {part: dict(zip(_SCORES, scores, strict=True)) for part, scores in by_part.items()}


def cola_items(record: Record) -> Iterator[Item]:
    """Yield two images, named by the last part of their links, and their captions."""
    images = [record.link(place) for place in (0, 2)]
    yield choose_pairs(record.id, images, [record.text(place) for place in (1, 3)], "multi_objects")


def mmvp_records(path: Path) -> tuple[str, Iterator[Record]]:
    """Read two consecutive lines as one record, a list."""
    content, lines = read_records(path)
    pairs = itertools.zip_longest(lines, lines)
    return content, (Record(path, one.id, [one, other]) for one, other in pairs)


def mmvp_items(record: Record) -> Iterator[Item]:
    """Yield two images and their statements, each with the published prefix."""
    one, other = record.value
    if other is None or one.label("Type") != other.label("Type"):
        raise one.error("Type", "no second line of its type", "two consecutive lines for each pair")
    kind = one.label("Type")
    folder = kind.replace("{", "{{").replace("}", "}}")
    images = [each.image("Question ID", folder + "/{}.jpg") for each in (one, other)]
    part = "_".join(kind.lower().replace("&", "and").split())
    texts = [f"a photo of {each.text('Statement')}" for each in (one, other)]
    yield choose_pairs(one.label("Question ID"), images, texts, part)


choice_benchmark(
    ChoiceReader(
        pair_columns(
            images=["image_0", "image_1"],
            texts=["caption_0", "caption_1"],
            id="id",
            part=lambda record: record.label("collapsed_tag").lower(),
            image_name="{}.png",
        ),
        headline=Headline("group_score", "items", "main results of the paper: all 400 items (arXiv 2204.03162)"),
        parts=("object", "relation", "both"),
    ),
    name="winoground",
    question="Which of two captions of the same words belongs to which of two images?",
    paper="Winoground: Probing Vision and Language Models for Visio-Linguistic Compositionality, arXiv 2204.03162",
    licence="META IMAGES RESEARCH LICENSE; images by Getty Images",
    size="400 items, 800 images",
    folders={"images": "winoground/images", "annotations": "winoground"},
    files=("examples.jsonl",),
    source="huggingface.co/datasets/facebook/winoground, after its terms are accepted",
    humans=(
        HumanResults(
            _scores(
                all=(89.50, 88.50, 85.50),
                object=(92.20, 90.78, 88.65),
                relation=(89.27, 90.56, 86.70),
                both=(76.92, 57.69, 57.69),
            ),
            items="on all 400 items",
            source="crowd workers, tables 3 and 4 of arXiv 2204.03162",
        ),
    ),
)
choice_benchmark(
    ChoiceReader(
        pair_columns(["image_1", "image_2"], ["caption_1", "caption_2"], id="id", part=lambda _: "all"),
        headline=Headline("group_score", "items", "the paper's tables: all items (arXiv 2402.04492)"),
    ),
    name="colorswap",
    question="Which of two captions with exchanged colours belongs to which of two images?",
    paper="ColorSwap: A Color and Word Order Dataset for Multimodal Evaluation, arXiv 2402.04492",
    licence="MIT",
    size="300 items in the test split",
    folders={"images": "colorswap", "annotations": "colorswap"},
    files=("test.json", "data/test-*.parquet", "test*.parquet"),
    source="huggingface.co/datasets/stanfordnlp/colorswap, after its terms are accepted, or its images as files",
)
choice_benchmark(
    ChoiceReader(
        pair_columns(
            images=["image", "negative_image"],
            texts=["caption", "negative_caption"],
            part=lambda record: f"{record.label('type')}_{record.label('subtype')}".lower(),
        ),
        headline=Headline("group_score", "items", "OVERALL of github.com/IMirandaM/BiVLC, main_evaluation_BiVLC.py"),
    ),
    name="bivlc",
    question="Do a photograph and an image made for a false caption find their own captions, and the captions them?",
    paper="BiVLC: Extending Vision-Language Compositionality Evaluation with Text-to-Image Retrieval, arXiv 2406.09952",
    licence="MIT",
    size="2,933 items",
    folders={"images": "bivlc", "annotations": "bivlc"},
    files=("test.jsonl", "data/test-*.parquet", "test*.parquet"),
    source="huggingface.co/datasets/imirandam/BiVLC, as it is, or its images unpacked into files",
)
choice_benchmark(
    ChoiceReader(
        pair_columns(
            images=["image0", "image1"],
            texts=["caption0", "caption1"],
            part=lambda record: record.image("image0").file.partition("/")[0],
        ),
        headline=Headline("group_score", "items", "github.com/Wangt-CN/EqBen, src/eqben/eqben_acc.py: all items"),
    ),
    name="eqben",
    question="Do similarities follow a minimal visual change: which of two captions belongs to which image?",
    paper="Equivariant Similarity for Vision-Language Foundation Models, arXiv 2303.14465",
    licence="Apache-2.0; frames of videos under the licences of their data sets",
    size="250,612 items; the subset has a tenth",
    folders={"images": "eqben/images", "annotations": "eqben"},
    files=("private_info_global.json", "eqben_subset_10percent_final.json"),
    source="the links in the benchmark's public repository; frames stored as .npy must be saved as image files",
)
choice_benchmark(
    ChoiceReader(
        cola_items,
        headline=Headline("image_score", "items", "the paper's multi-object accuracy (arXiv 2305.03689)"),
    ),
    name="cola",
    question="Which of two captions with exchanged attributes belongs to which of two images?",
    paper="COLA: A Benchmark for Compositional Text-to-image Retrieval, arXiv 2305.03689",
    licence="MIT; images Visual Genome (CC BY 4.0)",
    size="210 items",
    folders={"images": "cola/images", "annotations": "cola"},
    files=("COLA_multiobjects_matching_benchmark.json",),
    source="annotations: the benchmark's public repository; images: the links in it",
)
choice_benchmark(
    ChoiceReader(
        mmvp_items,
        mmvp_records,
        headline=Headline(
            "image_score", "parts", "github.com/tsb0601/MMVP, scripts/evaluate_vlm.py: nine patterns of 15 pairs each"
        ),
    ),
    name="mmvp",
    question="Does each statement prefer its own of two images that CLIP finds alike?",
    paper="Eyes Wide Shut? Exploring the Visual Shortcomings of Multimodal LLMs, arXiv 2401.06209",
    licence="MIT",
    size="135 items in 9 parts",
    folders={"images": "mmvp/MLLM_VLM Images", "annotations": "mmvp"},
    files=("Questions.csv",),
    source="huggingface.co/datasets/MMVP/MMVP_VLM",
)
choice_benchmark(
    ChoiceReader(
        pair_columns(
            images=["image_0", "image_1"],
            texts=["text_0", "text_1"],
            id="id",
            part=lambda record: record.label("category").lower(),
        ),
        headline=Headline(
            "group_score", "parts", "[ours] for the mean; github.com/rabiulcste/vismin, metric.py has each category"
        ),
        parts=("object", "attribute", "counting", "relation"),
    ),
    name="vismin",
    question="Do two images with one minimal change find their own texts, and the texts them?",
    paper="VisMin: Visual Minimal-Change Understanding, arXiv 2407.16772",
    licence="CC BY 4.0; images changed from those of COCO",
    size="2,084 items: 579 of objects, 294 of attributes, 589 of counts, 622 of relations",
    folders={"images": "vismin", "annotations": "vismin"},
    files=("vismin.jsonl", "default/test/*.parquet"),
    source="huggingface.co/datasets/mair-lab/vismin-bench, branch refs/convert/parquet",
    humans=(
        HumanResults(
            _scores(
                object=(86.87, 95.50, 83.07),
                attribute=(82.31, 91.15, 76.87),
                relation=(81.67, 92.76, 76.20),
                counting=(88.96, 96.77, 86.41),
            ),
            items="number of items not stated",
            source="crowd workers, github.com/rabiulcste/vismin, index.html, commit 29ce2c0",
        ),
    ),
)
