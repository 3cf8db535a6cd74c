"""`rococo make-benchmark`: make a benchmark from your own images and captions."""

import dataclasses
from typing import Annotated, Literal

from rococo_jax.cli.inputs import PairOptions
from rococo_jax.cli.outputs import output_folder
from rococo_jax.options import Option

EXAMPLES = """\
  rococo make-benchmark --images photos --captions photos.csv --out DATA
  rococo make-benchmark --images photos --captions photos.csv --columns image=file,caption=de --name urlaub --out DATA
  rococo make-benchmark --images hf:nlphuji/flickr30k?split=test --model models/clip-b32 --name flickr --out DATA
  rococo make-benchmark --images photos --mixed mix_0.9,patch_0.9 --seeds 1,10 --licence CC-BY-4.0 --out DATA
(nlphuji/flickr30k has all its images in one split of the hub; `?split=test` takes the 1,000 of its column `split`.)
Next: `rococo evaluate MODEL --data DATA --out OUT`. If this command is interrupted, run it again: it resumes."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Make a benchmark from your own images and captions: altered captions, choices and a data card.

    Attributes:
        out: data folder; the benchmark is written to DATA/NAME
        name: name of the benchmark, also in results
        model: model whose influence selects the replaced nouns and whose vocabulary rand_voca uses (default: nouns are
            selected at random, and rand_voca uses nouns of the lexicon)
        select: noun to replace, by influence (default: lowest with --model, else random)
        seed: seed of the replacements (default: 0)
        lexicon: concept groups as JSON, or demo, that of the drawn scenes (default: the shipped lexicon)
        licence: licence of your data, for the data card
        mixed: also write mixed images with manifests: mix_R, patch_R (not needed for evaluate, which mixes images
            itself)
        seeds: seeds of --mixed
        pairs: images and captions
    """

    out: Annotated[str, Option("DATA", check=output_folder)]
    name: str = "mine"
    model: Annotated[str | None, Option("MODEL")] = None
    select: Literal["lowest", "highest", "random"] | None = None
    seed: Annotated[int, Option("N")] = 0
    lexicon: Annotated[str | None, Option("F")] = None
    licence: Annotated[str, Option("TEXT")] = "not stated"
    mixed: Annotated[tuple[str, ...], Option("A,B")] = ()
    seeds: Annotated[tuple[int, ...], Option("N,N")] = (1,)
    pairs: PairOptions


def run(options: Options) -> None:
    from pathlib import Path

    from rococo_jax.benchmarks.excluded_input import exif_rotated_images
    from rococo_jax.benchmarks.own import check_name, make_own, write_mixed_galleries
    from rococo_jax.encoders import load_model
    from rococo_jax.perturb.text.lexicon import open_lexicon
    from rococo_jax.progress import say
    from rococo_jax.runtime import enable_compilation_cache

    check_name(options.name)
    enable_compilation_cache()
    mixed = [(name, seed) for name in options.mixed for seed in options.seeds]
    data, lexicon = options.pairs.read(), open_lexicon(options.lexicon or "")
    for each in exif_rotated_images(data.paths):
        say(each.note)
    encoder = None if options.model is None else load_model(options.model)
    folder, selection = Path(options.out) / options.name, {"select": options.select, "seed": options.seed}
    sizes = make_own(folder, data, lexicon, encoder=encoder, licence=options.licence, **selection)
    write_mixed_galleries(folder, data, mixed)
    variants = ", ".join(f"{name} {each['altered']:,}" for name, each in sizes["variants"].items())
    print(
        f"{folder}: {sizes['images']:,} images, {sizes['captions']:,} captions, "
        f"{sizes['lexicon_coverage']:.1%} of them with a noun of the lexicon; altered: {variants}\n"
        f"Next: rococo evaluate MODEL --data {options.out} --out OUT"
    )
    if encoder is None:
        print("The replaced nouns are random. To select them by influence, as RoCOCO does, add --model MODEL.")
