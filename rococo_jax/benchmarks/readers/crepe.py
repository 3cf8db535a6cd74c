"""CREPE (arXiv 2212.07796): a caption of a region against hard negatives made from its scene graph.

Productivity: `prod_hard_negatives/TYPE/prod_vg_hard_negs_TYPE_complexity_N.csv`, TYPE atom, negate or swap, N 4 to 12,
with `image_id, x, y, width, height, caption, hard_negs`; systematicity: `syst_hard_negatives/
syst_vg_hard_negs_{seen,unseen}_compounds_in_CORPUS.csv` with `valid_hard_negs_atom` and `valid_hard_negs_comp`. Lists
are Python literals. The image is cropped to its region; images are `IMAGE_ID.jpg` of Visual Genome. The published code
ranks a caption among its own negatives only (`one2many`), so its R@1 is OTA, except for ties. The means over
complexities are `prod_atom`, `prod_negate` and `prod_swap`.
"""

from collections.abc import Iterator

from rococo_jax.benchmarks.choices.items import Item, choose_text
from rococo_jax.benchmarks.choices.reader import ChoiceReader, choice_benchmark
from rococo_jax.benchmarks.choices.records import Record
from rococo_jax.benchmarks.pooling import Headline

_CORPORA = ("cc12m", "yfcc", "laion")
FILES = (
    *(
        f"prod_hard_negatives/{kind}/prod_vg_hard_negs_{kind}_complexity_{size}.csv"
        for kind in ("atom", "negate", "swap")
        for size in range(4, 13)
    ),
    *(
        f"syst_hard_negatives/syst_vg_hard_negs_{compounds}_compounds_in_{corpus}.csv"
        for compounds in ("seen", "unseen")
        for corpus in _CORPORA
    ),
)

_PARTS = {
    f"prod_{kind}_complexity_{size}": f"prod_{kind}" for kind in ("atom", "negate", "swap") for size in range(4, 13)
}


def items(record: Record) -> Iterator[Item]:
    """Yield the region with its caption and the hard negatives of each kind."""
    image = record.crop(record.image("image_id", "{}.jpg"), "x", "y", "width", "height")
    part = record.source.stem.replace("_vg_hard_negs", "").replace("_compounds", "")
    kinds = ("atom", "comp") if part.startswith("syst") else ("",)
    for kind in kinds:
        wrong = record.texts(f"valid_hard_negs_{kind}" if kind else "hard_negs")
        name = f"{part}_{kind}" if kind else part
        yield choose_text(record.id, image, [record.text("caption")], wrong, name)


INFO = choice_benchmark(
    ChoiceReader(
        items,
        headline=Headline("ota", "parts", "[ours]: the paper has a number for each complexity and corpus", "prod_atom"),
        pooled=_PARTS,
    ),
    name="crepe",
    question="Is a region's caption more similar to it than captions with atoms replaced, negated or swapped?",
    paper="CREPE: Can Vision-Language Foundation Models Reason Compositionally?, arXiv 2212.07796",
    licence="annotations MIT; images Visual Genome (CC BY 4.0)",
    size="productivity: 17,553 captions in 27 parts; systematicity: 385,777 captions over three corpora",
    folders={"images": "visual_genome", "annotations": "crepe"},
    files=FILES,
    source="annotations: the benchmark's public repository; images: Visual Genome, in one folder",
)
