"""`rococo influence`: write the embedding influence of every word of every caption."""

import dataclasses
from typing import Annotated, Literal

from rococo_jax.cli.inputs import CaptionOptions
from rococo_jax.cli.outputs import output_file
from rococo_jax.options import Option

EXAMPLES = """\
  rococo influence models/clip-b32 --captions coco/captions_test.json --out influence.jsonl
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Write the embedding influence of every word of every caption, one JSON line per caption.

    Attributes:
        model: model directory, Hugging Face folder, or hub name
        out: output file
        dtype: dtype of the tower
        source: captions
    """

    model: Annotated[str, Option("MODEL", positional=True)]
    out: Annotated[str, Option("F.jsonl", check=output_file)]
    dtype: Literal["float32", "bfloat16"] = "float32"
    source: CaptionOptions


def run(options: Options) -> None:
    from rococo_jax.processes import distributed_run
    from rococo_jax.runtime import enable_compilation_cache

    with distributed_run():
        enable_compilation_cache()
        _run(options)


def _run(options: Options) -> None:
    import jax

    from rococo_jax.encoders import load_model
    from rococo_jax.perturb.text.influence_table import write_influence_table
    from rococo_jax.processes import run_on_all_processes
    from rococo_jax.progress import progress
    from rococo_jax.runtime import make_mesh

    images = run_on_all_processes("captions", lambda: options.source.read())
    local_mesh = make_mesh(jax.local_devices())
    encoder = run_on_all_processes("model", lambda: load_model(options.model, mesh=local_mesh, dtype=options.dtype))
    total = sum(len(image.captions) for image in images)
    with progress("influence", total, "captions") as advance:
        earlier_lines = write_influence_table(encoder, images, options.out, on_progress=advance)
    if jax.process_index() == 0:
        resumed = f", {earlier_lines} of them by an earlier run" if earlier_lines else ""
        print(f"{options.out}: {total} captions{resumed}")
