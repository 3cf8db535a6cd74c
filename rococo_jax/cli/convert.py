"""`rococo convert`: write a model directory from a checkpoint of another project."""

import dataclasses
from typing import Annotated

from rococo_jax.cli.inspect import describe_facts
from rococo_jax.cli.outputs import output_folder
from rococo_jax.evaluation.options import SourceOptions
from rococo_jax.options import Option

EXAMPLES = """\
  rococo convert openai/clip-vit-base-patch32 models/clip_b32
  rococo convert ViT-B-32.pt models/openai_b32 --tokenizer tokenizers/clip
  rococo convert laion/CLIP-ViT-B-32-laion2B-s34B-b79K models/laion_b32 --source-format open_clip
  rococo convert towers/dinov2_vits14 models/dinov2 --pooling cls+mean
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Convert a checkpoint of another project into a model directory.

    Attributes:
        source: checkpoint file (.pt, .npz), folder, or hub name
        out: the new model directory
        how: settings of the checkpoint
    """

    source: Annotated[str, Option("SOURCE", positional=True)]
    out: Annotated[str, Option("OUT", positional=True, check=output_folder)]
    how: SourceOptions


def run(options: Options) -> None:
    from rococo_jax.storage import refuse_existing_folder

    refuse_existing_folder(options.out)

    import jax

    from rococo_jax.checkpoints import save_model
    from rococo_jax.encoders import load_model
    from rococo_jax.encoders.inspection import inspect_model
    from rococo_jax.runtime import make_mesh

    encoder = load_model(options.source, mesh=make_mesh(jax.devices()[:1]), **vars(options.how))
    save_model(options.out, encoder)
    print(f"{options.out}: {encoder.provenance.get('model_type', encoder.name)} from {options.source}")
    print("\n".join(describe_facts(encoder, inspect_model(encoder))))
