"""`rococo export`: write a model in the format of another project."""

import dataclasses
from typing import Annotated, Literal

from rococo_jax.cli.outputs import output_folder
from rococo_jax.evaluation.options import SourceOptions
from rococo_jax.options import Option

EXAMPLES = """\
  rococo export models/clip_b32 exported/clip_b32
  rococo export RN50.pt exported/rn50 --format open_clip
  rococo export models/clip_b32 exported/clip_b32 --card out/clip_b32/results.json --licence mit
  hf upload me/clip-robust exported/clip_b32           publish it; the card becomes the page of the repository
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Write a model as a Hugging Face or open_clip folder.

    Attributes:
        model: model directory, checkpoint, or hub name
        out: the new folder
        format: format of the folder
        card: write a model card for the Hugging Face hub from these results
        licence: licence of the model, for the card
        how: settings of the checkpoint
    """

    model: Annotated[str, Option("MODEL", positional=True)]
    out: Annotated[str, Option("OUT", positional=True, check=output_folder)]
    format: Literal["huggingface", "open_clip"] = "huggingface"
    card: Annotated[tuple[str, ...], Option("RESULTS", several=True)] = ()
    licence: str = "other"
    how: SourceOptions


def run(options: Options) -> None:
    from rococo_jax.storage import refuse_existing_folder

    refuse_existing_folder(options.out)

    import jax

    from rococo_jax.checkpoints import export_huggingface, export_open_clip
    from rococo_jax.encoders import load_model
    from rococo_jax.report.model_card import model_card, write_card
    from rococo_jax.runtime import make_mesh

    encoder = load_model(options.model, mesh=make_mesh(jax.devices()[:1]), **vars(options.how))
    weights = encoder.describe()["weights"]
    card = model_card(options.card, options.licence, weights) if options.card else None
    write = export_open_clip if options.format == "open_clip" else export_huggingface
    family = write(encoder, options.out)
    print(f"{options.out}: {family} from {options.model}")
    if card is not None:
        write_card(options.out, card, options.card)
        print(f"{options.out}/README.md: model card")
