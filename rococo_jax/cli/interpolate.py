"""`rococo interpolate`: average the weights of two models."""

import dataclasses
from typing import Annotated

from rococo_jax.cli.outputs import output_folder
from rococo_jax.errors import InputError
from rococo_jax.options import Option

EXAMPLES = """\
  rococo interpolate runs/plain/model runs/sc/model --weight 0.25,0.5,0.75 --out models/between
  rococo evaluate models/between/* --data DATA --benchmarks rococo --out out/between
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Average the parameters of two models: A at weight 0, B at weight 1 (WiSE-FT).

    Attributes:
        first: model directory, Hugging Face folder, or hub name
        second: a model of the same shape
        weight: weights of B, from 0 to 1
        out: the new folder, with one model directory per weight
    """

    first: Annotated[str, Option("A", positional=True)]
    second: Annotated[str, Option("B", positional=True)]
    weight: Annotated[tuple[float, ...], Option("W[,W]")]
    out: Annotated[str, Option("DIR", check=output_folder)]


def run(options: Options) -> None:
    from pathlib import Path

    from rococo_jax.checkpoints import save_model
    from rococo_jax.encoders import load_model
    from rococo_jax.storage import refuse_existing_folder
    from rococo_jax.training.init import interpolated

    if not all(0 <= weight <= 1 for weight in options.weight) or len(set(options.weight)) < len(options.weight):
        raise InputError("--weight", "weights", options.weight, "different numbers from 0 to 1, such as 0.25,0.5")
    refuse_existing_folder(options.out)
    first, second = load_model(options.first), load_model(options.second)
    for weight in options.weight:
        folder = Path(options.out) / f"weight_{weight:g}"
        save_model(folder, interpolated(first, second, weight))
        print(folder)
