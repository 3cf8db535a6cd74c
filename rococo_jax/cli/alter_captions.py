"""`rococo alter-captions`: replace one noun of every caption, or add a false detail, as a benchmark annotation."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Literal

from rococo_jax.cli.inputs import CaptionOptions
from rococo_jax.cli.outputs import output_file, output_file_or_folder
from rococo_jax.options import Option
from rococo_jax.perturb.text import VARIANTS

if TYPE_CHECKING:
    from rococo_jax.benchmarks.rococo.generate import AlteredSet

EXAMPLES = """\
  rococo alter-captions models/clip-b32 --captions captions.json --variant same_concept --out same_concept.json
  rococo alter-captions models/clip-b32 --captions mine.csv --variant all --out annotations
  rococo alter-captions models/clip-b32 --captions captions.json --variant danger --select highest --out danger.json
  rococo alter-captions models/clip-b32 --captions captions.json --variant rand_voca --influence table.jsonl \\
      --lexicon nouns.json --seed 1 --out rand_voca.json
  rococo alter-captions --captions captions.json --variant half_truth --out half_truth.json --items half/items.jsonl
"""


# half_truth replaces no noun.
_OF_NOUNS = Option(excludes=("variant=half_truth",))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Replace one noun of every caption, or add a false detail, and write a benchmark annotation.

    Attributes:
        model: model directory, Hugging Face folder, or hub name; not needed for half_truth
        variant: kind of replacement; all writes --out/VARIANT.json for each; half_truth adds a false detail instead
        out: output file; for all variants a folder
        items: also write items of the benchmark `choices`: each caption against its altered caption
        seed: seed of the replacements (default: 0)
        select: noun to replace, by influence
        lexicon: concept groups as JSON, or demo, that of the drawn scenes (default: the shipped lexicon)
        influence: table of `rococo influence`, which is computed otherwise
        dtype: dtype of the tower
        source: captions
    """

    variant: Literal["same_concept", "diff_concept", "rand_voca", "danger", "all", "half_truth"]
    model: Annotated[str | None, Option("MODEL", positional=True)] = None
    out: Annotated[str, Option("F.json", check=output_file_or_folder)]
    items: Annotated[str | None, Option("F.jsonl", check=output_file)] = None
    seed: Annotated[int, Option("N")] = 0
    select: Annotated[Literal["lowest", "highest", "random"], _OF_NOUNS] = "lowest"
    lexicon: Annotated[str | None, Option("F")] = None
    influence: Annotated[str | None, Option("F.jsonl", excludes=("variant=half_truth", "select=random"))] = None
    dtype: Literal["float32", "bfloat16"] = "float32"
    source: CaptionOptions


def run(options: Options) -> None:
    from rococo_jax.benchmarks.rococo.generate import HALF_TRUTH, add_details, alter_captions
    from rococo_jax.encoders import load_model
    from rococo_jax.errors import InputError
    from rococo_jax.perturb.text.influence_table import influences_from_table, read_influence_table
    from rococo_jax.perturb.text.lexicon import open_lexicon
    from rococo_jax.runtime import enable_compilation_cache

    enable_compilation_cache()
    lexicon = open_lexicon(options.lexicon or "")
    lexicon_record = {"name": lexicon.name, "sha256": lexicon.hash()}
    if options.variant == HALF_TRUTH:
        images = options.source.read()
        provenance = {"lexicon": lexicon_record, "seed": options.seed}
        sets = [_write(options, add_details(images, lexicon, options.seed), provenance)]
        return _write_items(options, sets)
    if options.model is None:
        raise InputError("MODEL", "model", "none", f"a model, whose influence selects the noun for {options.variant}")
    images = options.source.read()
    influences = None
    if options.influence:
        influences = influences_from_table(read_influence_table(options.influence), images, options.influence)
    encoder = load_model(options.model, dtype=options.dtype)
    settings = {"seed": options.seed, "select": options.select, "fit_article": True}
    by_variant = alter_captions(encoder, images, _variants(options), lexicon=lexicon, influences=influences, **settings)
    provenance = {"model": encoder.describe(), "lexicon": lexicon_record, **settings}
    _write_items(options, [_write(options, altered, provenance) for altered in by_variant.values()])


def _variants(options: Options) -> tuple[str, ...]:
    return VARIANTS if options.variant == "all" else (options.variant,)


def _write(options: Options, altered: "AlteredSet", provenance: Mapping[str, object]) -> "AlteredSet":
    from pathlib import Path

    from rococo_jax.benchmarks.rococo.generate import write_altered

    out = Path(options.out)
    out = out / f"{altered.variant}.json" if options.variant == "all" else out
    write_altered(out, altered, provenance)
    total = sum(len(item.originals) for item in altered.items)
    unaltered = sum(altered.unaltered.values())
    reasons = "; ".join(f"{count}: {reason}" for reason, count in altered.unaltered.items())
    print(f"{out}: {total - unaltered} of {total} captions altered" + (f" ({reasons})" if unaltered else ""))
    return altered


def _write_items(options: Options, sets: Sequence["AlteredSet"]) -> None:
    if options.items:
        from rococo_jax.benchmarks.own import choice_items
        from rococo_jax.storage import write_json_lines

        items = [item for altered in sets for item in choice_items(altered)]
        write_json_lines(options.items, items)
        print(f"{options.items}: {len(items):,} items")
