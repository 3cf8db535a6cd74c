"""Makes `rococo_jax/metrics/assets/published_field.json`: published results of CLIP checkpoints, facts in one table.

    python tools/build_published_field.py vl_compo_results.csv

The source is the table of results published with arXiv 2406.09388: 202 checkpoints on compositional
benchmarks, retrieval and ImageNet, each evaluated by its authors. Figures are rounded to two digits after the point.
"""

import argparse
import csv
from collections import Counter
from pathlib import Path

from rococo_jax.metrics.published_field import COLUMNS, FIELD, FORMAT
from rococo_jax.storage import write_json


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    with parser.parse_args().table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    names = Counter((row["arch"], row["pretrained"]) for row in rows)
    for row in rows:  # two families trained the same architecture on data of the same name
        shared = names[row["arch"], row["pretrained"]] > 1
        row["name"] = f"{row['arch']} {row['pretrained']}" + (f" ({row['family']})" if shared else "")
    made = [[row["name"], *(round(float(row[name]), 2) for name in COLUMNS)] for row in rows]
    write_json(FIELD, {
        "format": FORMAT,
        "source": "results of CLIP checkpoints on compositional benchmarks (arXiv 2406.09388), as published with them; "
        "facts, arranged and rounded by this project",
        "columns": ["checkpoint", *COLUMNS],
        "rows": sorted(made),
    })  # fmt: skip


if __name__ == "__main__":
    main()
