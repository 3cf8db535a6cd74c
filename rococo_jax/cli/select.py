"""`rococo select`: images on which corruption changes what models say, no two of them alike."""

import dataclasses
from typing import Annotated

from rococo_jax.cli.outputs import output_file
from rococo_jax.options import Option

EXAMPLES = """\
  rococo evaluate a b c --data DATA --benchmarks cifar10 --corruptions all --severities 3 --out out
  rococo select out --count 200 --out selected.json
  rococo select out --task cifar10 --embeddings images.npz --weight 0.5 --out selected.json
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """List discriminative images: those whose answers corruption changes for most models, and that differ most.

    Attributes:
        results: results of two models or more, with --corruptions
        out: the list, with reasons
        task: which task (default: the first that all have on corrupted images)
        count: how many images at most
        weight: of inconsistency against distance, 0 to 1
        embeddings: of the images, as rococo embed writes them; without, inconsistency decides alone
    """

    results: Annotated[tuple[str, ...], Option("RESULTS", positional=True)]
    out: Annotated[str, Option("F.json", check=output_file)]
    task: str | None = None
    count: int = 100
    weight: float = 0.5
    embeddings: Annotated[str | None, Option("F.npz")] = None


def run(options: Options) -> None:
    """Select images, write the list, and print their number."""
    from rococo_jax.storage import write_json
    from rococo_jax.studies.model_facts import runs_of_the_same_data
    from rococo_jax.studies.select import select

    runs = runs_of_the_same_data(options.results)
    selection = select(runs, options.task, options.count, options.weight, options.embeddings)
    write_json(options.out, selection)
    selected, inconsistent, images = len(selection["chosen"]), selection["inconsistent"], selection["images"]
    print(f"{options.out}: {selected} of {inconsistent} inconsistent images of {images}")
