"""Draw the README's figure from the results of `rococo demo`: an example of false recall, and FR@1 of both models.

    rococo demo --out demo-out
    python experiments/demo_figure.py demo-out/250-scenes-seed-1 --out docs/figures/demo.png

Left: the first picture for which the plain model ranks one of its altered captions above all true captions, and the
same picture mixed with another at 0.9 (seed 1), as the model saw it. Right: FR@1 of every variant and model with its
95 % bootstrap interval over pictures. Needs the extra `notebook` (Matplotlib).
"""

import argparse
import textwrap
from pathlib import Path

import matplotlib
import pyarrow.parquet as pq
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from PIL import Image

import rococo_jax
from rococo_jax.benchmarks.rococo.mixed_galleries import mix_one, place_of
from rococo_jax.benchmarks.rococo.published_mixing import make_plan
from rococo_jax.data.captioned_images import read_captions
from rococo_jax.storage import atomic_write, read_json


def first_fooled(table: Path, annotation: Path) -> tuple[str, str, str]:
    """Image, original and altered caption of the first query where one of its altered captions ranks first."""
    items = {item["image"]: item for item in read_json(annotation, "an annotation")["items"]}
    for row in pq.read_table(table).to_pylist():
        if (row["task"], row["variant"], row["top1_kind"]) == ("image_to_text", "same_concept", "own_altered"):
            item = items[row["image"]]
            return row["image"], item["originals"][item["altered"].index(row["top1_text"])], row["top1_text"]
    raise SystemExit(f"{table}: found no false recall in same_concept; wanted at least one")


def draw(run: Path, protocol: str) -> Figure:
    """Draw the figure from a run's folder."""
    benchmark = run / "benchmark"
    images, annotations = benchmark / "images", benchmark / "annotations"
    image, original, altered = first_fooled(
        run / protocol / "plain" / "per_query.parquet", annotations / "same_concept.json"
    )
    names = [item.image for item in read_captions(annotations / "captions.json")]
    plan = make_plan(names, "mix", 0.9, 1)
    mixed = mix_one(plan, place_of(plan, image), {name: images / name for name in names})

    figure = plt.figure(figsize=(11, 3.6), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=(9, 11))
    told = ("true", original), ("altered, preferred by the plain model", altered)
    words = "\n".join(textwrap.fill(f"{what}: “{text}”", 78) for what, text in told)
    left.suptitle(words, fontsize=8, x=0.01, ha="left")
    shown = {"the picture": Image.open(images / image), "with a tenth of another": mixed}
    for axis, (title, pixels) in zip(left.subplots(1, 2), shown.items(), strict=True):
        axis.imshow(pixels)
        axis.set_axis_off()
        axis.set_title(title, fontsize=8, loc="left")
    rococo_jax.plot_results([run / protocol], "fr1", axes=right.subplots())
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, metavar="RUN", help="OUT/N-scenes-seed-S of rococo demo")
    parser.add_argument("--protocol", default="paper")
    parser.add_argument("--out", type=Path, required=True, metavar="F.png")
    arguments = parser.parse_args()
    matplotlib.use("Agg")
    figure = draw(arguments.run, arguments.protocol)
    with atomic_write(arguments.out) as temporary:
        figure.savefig(temporary, dpi=110, format="png", metadata={"Software": None})


if __name__ == "__main__":
    main()
