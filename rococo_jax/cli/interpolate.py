"""`rococo interpolate`: models between two models, by their weights."""

import argparse

HELP = "Average the parameters of two models: A at weight 0, B at weight 1 (WiSE-FT)."
EXAMPLES = """\
  rococo interpolate runs/plain/model runs/sc/model --weight 0.25,0.5,0.75 --out models/between
  rococo evaluate models/between/* --data DATA --benchmarks rococo --out out/between
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("first", metavar="A", help="model directory, Hugging Face folder, or hub name")
    parser.add_argument("second", metavar="B", help="a model of the same shape")
    parser.add_argument("--weight", required=True, metavar="W[,W]", help="weights of B, numbers from 0 to 1")
    parser.add_argument(
        "--out", required=True, metavar="DIR", help="new folder, with a model directory for each weight"
    )


def run(arguments: argparse.Namespace) -> None:
    from pathlib import Path

    from rococo_jax.checkpoints import save_model
    from rococo_jax.encoders import load_model
    from rococo_jax.storage import refuse_existing_folder
    from rococo_jax.training.interpolate import interpolated, read_weights

    weights = read_weights(arguments.weight)
    refuse_existing_folder(arguments.out)
    first, second = load_model(arguments.first), load_model(arguments.second)
    for text, weight in weights.items():
        folder = Path(arguments.out) / f"weight_{text}"
        save_model(folder, interpolated(first, second, weight))
        print(folder)
