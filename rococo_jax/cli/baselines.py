"""`rococo baselines`: how often a scorer that sees no image prefers the right text."""

import dataclasses
from typing import Annotated

from rococo_jax.cli.outputs import output_file
from rococo_jax.options import Option

EXAMPLES = """\
  rococo baselines rococo/annotations --captions captions_train.json
  rococo baselines rococo/annotations sugar_crepe --captions captions_train.json --out baselines.json

takes altered captions, and benchmarks that choose among texts of one image. Training captions that are texts of a part,
word for word, do not count for it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Score a benchmark's texts without the image: n-grams, length, bags of words.

    Attributes:
        annotations: folders of annotations of RoCOCO or of benchmarks of choices
        captions: training captions for the n-gram models, Karpathy form; several with commas (default: no n-gram
            models)
        out: also write the figures
    """

    annotations: Annotated[tuple[str, ...], Option("DIR", positional=True)]
    captions: Annotated[str | None, Option("FILE")] = None
    out: Annotated[str | None, Option("F.json", check=output_file)] = None


def run(options: Options) -> None:
    """Scores every part, prints a table, and writes the figures."""
    from pathlib import Path

    from rococo_jax.benchmarks.baselines import BASELINES, figure, read_text_pairs, text_baselines
    from rococo_jax.evaluation.companions import read_training_captions
    from rococo_jax.storage import write_json

    training = None if options.captions is None else read_training_captions(options.captions)
    figures = {}
    for folder in map(Path, options.annotations):
        for part, pairs in read_text_pairs(folder).items():
            scorers = text_baselines(pairs.texts, None if training is None else training.captions)
            figures[str(folder / part)] = {
                name: figure([prefer(pairs.right, pairs.wrong)], [pairs.image]) for name, prefer in scorers.items()
            }
    _print_table(figures, BASELINES)
    if options.out is not None:
        about = None if training is None else training.about
        write_json(Path(options.out), {"captions": about, "baselines": figures})


def _print_table(figures: dict, labels: dict) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    names = list(dict.fromkeys(name for of_part in figures.values() for name in of_part))
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("part")
    table.add_column("pairs", justify="right")
    for name in names:
        table.add_column(labels[name].label, justify="right")
    for part, of_part in figures.items():
        cells = [f"{of_part[name]['preference']:.1f}" if name in of_part else "" for name in names]
        table.add_row(part, f"{next(iter(of_part.values()))['pairs']:,}", *cells)
    console = Console(width=None if Console().is_terminal else 120)
    console.print(table)
    console.print("How often the right text is preferred without the image, in per cent; guessing gives 50.")
