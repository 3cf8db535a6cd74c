"""`rococo baselines`: how often a scorer that sees no image prefers the right text."""

import dataclasses
from typing import Annotated

from rococo_jax.cli.outputs import output_file
from rococo_jax.options import Option

EXAMPLES = """\
  rococo baselines rococo/annotations/*.json --captions captions_train.json
  rococo baselines sugar_crepe/*.json --captions captions_train.json --out baselines.json

takes RoCOCO's annotations (published form and ours), SugarCrepe's and SugarCrepe++'s parts, and lists of true_caption
and false_caption. Files of plain captions are left out. Training captions that are texts of a file, word for word, do
not count for it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Score a benchmark's texts without the image: n-grams, length, bags of words.

    Attributes:
        files: right and wrong texts, JSON
        captions: training captions for the n-gram models, Karpathy form; several with commas (default: no n-gram
            models)
        out: also write the figures
    """

    files: Annotated[tuple[str, ...], Option("FILE", positional=True)]
    captions: Annotated[str | None, Option("FILE")] = None
    out: Annotated[str | None, Option("F.json", check=output_file)] = None


def run(options: Options) -> None:
    """Scores every file, prints a table, and writes the figures."""
    from pathlib import Path

    from rococo_jax.benchmarks.baselines import BASELINES, figure, read_text_pairs, text_baselines
    from rococo_jax.errors import InputError
    from rococo_jax.evaluation.companions import read_training_captions
    from rococo_jax.storage import write_json

    training = None if options.captions is None else read_training_captions(options.captions)
    found = {}
    for file in options.files:
        try:
            pairs = read_text_pairs(file)
        except InputError:
            if _holds_plain_captions(file):
                continue
            raise
        scorers = text_baselines(pairs.texts, None if training is None else training.captions)
        found[str(Path(file))] = {
            name: figure([prefer(pairs.right, pairs.wrong)], [pairs.image]) for name, prefer in scorers.items()
        }
    if not found:
        raise InputError("baselines", "files", "none with altered texts", "at least one")
    _print_table(found, BASELINES)
    if options.out is not None:
        about = None if training is None else training.about
        write_json(Path(options.out), {"captions": about, "baselines": found})


def _holds_plain_captions(file: str) -> bool:
    from rococo_jax.errors import InputError
    from rococo_jax.evaluation.models.arrays import read_score_annotation

    try:
        return isinstance(read_score_annotation(file), list)
    except InputError:
        return False


def _print_table(found: dict, labels: dict) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    names = list(dict.fromkeys(name for of_file in found.values() for name in of_file))
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("file")
    table.add_column("pairs", justify="right")
    for name in names:
        table.add_column(labels[name].label, justify="right")
    for file, of_file in found.items():
        cells = [f"{of_file[name]['preference']:.1f}" if name in of_file else "" for name in names]
        table.add_row(file, f"{next(iter(of_file.values()))['pairs']:,}", *cells)
    console = Console(width=None if Console().is_terminal else 120)
    console.print(table)
    console.print("How often the right text is preferred without the image, in per cent; guessing gives 50.")
