"""`rococo export`: a model back in the form of another project."""

import argparse

from rococo_jax.cli.convert import add_source_arguments, source_options
from rococo_jax.cli.outputs import output_folder

HELP = "Write a model as a Hugging Face or open_clip folder."
EXAMPLES = """\
  rococo export models/clip_b32 exported/clip_b32
  rococo export RN50.pt exported/rn50 --format open_clip
  rococo export models/clip_b32 exported/clip_b32 --card out/clip_b32/results.json --licence mit --push me/clip-robust
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="model directory, checkpoint, or hub name")
    parser.add_argument("out", type=output_folder, metavar="OUT", help="the new folder")
    parser.add_argument(
        "--format",
        choices=("huggingface", "open_clip"),
        default="huggingface",
        help="whose form it gets (default: %(default)s)",
    )
    parser.add_argument(
        "--card", nargs="+", metavar="RESULTS", help="write a model card of the Hugging Face hub from these results"
    )
    parser.add_argument("--licence", default="other", help="of the model, for the card (default: %(default)s)")
    parser.add_argument(
        "--push", metavar="OWNER/NAME", help="upload the folder to the hub (HF_ENDPOINT), with the token that "
        "`hf auth login` or HF_TOKEN gives"
    )  # fmt: skip
    add_source_arguments(parser)


def run(arguments: argparse.Namespace) -> None:
    from rococo_jax.storage import refuse_existing_folder

    refuse_existing_folder(arguments.out)

    import jax

    from rococo_jax.checkpoints import export_huggingface, export_open_clip
    from rococo_jax.encoders import load_model
    from rococo_jax.report.model_card import model_card, push, write_card
    from rococo_jax.runtime import make_mesh

    card = model_card(arguments.card, arguments.licence) if arguments.card else None
    encoder = load_model(arguments.model, mesh=make_mesh(jax.devices()[:1]), **source_options(arguments))
    write = export_open_clip if arguments.format == "open_clip" else export_huggingface
    family = write(encoder, arguments.out)
    print(f"{arguments.out}: {family} from {arguments.model}")
    if card is not None:
        write_card(arguments.out, card, arguments.card)
        print(f"{arguments.out}/README.md: model card with {len(card.data.eval_results)} results")
    if arguments.push:
        print(push(arguments.out, arguments.push))
