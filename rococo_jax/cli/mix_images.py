"""`rococo mix-images`: mix another image into every image of a gallery, or write a word on it."""

import dataclasses
import json
from typing import TYPE_CHECKING, Annotated, Literal

from rococo_jax.cli.inputs import ALL_IMAGES, PairOptions
from rococo_jax.cli.outputs import output_folder
from rococo_jax.options import Option

if TYPE_CHECKING:
    from rococo_jax.data.pair_source import CaptionedImages

EXAMPLES = """\
  rococo mix-images --images coco/images --captions captions_test.json --method mix --ratio 0.9 --seed 1 --out mixed/1
  rococo mix-images --images coco/images --captions captions_test.json --method patch --protocol strict --out patched
  rococo mix-images --images coco/images --captions captions_test.json --protocol control --out control
  rococo mix-images --images coco/images --captions captions_test.json --method text --out words
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Mix another image into every image, as the benchmark does or stricter, or write a word on it.

    Attributes:
        out: folder for images and manifest.json, one for each run; text adds items.jsonl for the benchmark choices
        method: mix blends two images, patch pastes a box, text writes the object of another image on a note
        ratio: share of the image's own content, 0 to 1
        seed: random seed; the published ones are 1, 10 and 100
        protocol: paper: as published, JPEG; strict: no image with itself, PNG; control: resized to a square and
            compressed, not mixed; with text: paper, or control without the words
        words: file with the words to write, one per line
        pairs: images and captions
    """

    out: Annotated[str, Option("DIR", check=output_folder)]
    method: Literal["mix", "patch", "text"] = "mix"
    ratio: Annotated[float, Option("R")] = 0.9
    seed: Annotated[int, Option("N")] = 1
    protocol: Literal["paper", "strict", "control"] = "paper"
    words: Annotated[str | None, Option("FILE", needs=("method=text",))] = None
    pairs: Annotated[PairOptions, ALL_IMAGES]


def run(options: Options) -> int:
    from rococo_jax.benchmarks.rococo.mixed_galleries import write_mixed
    from rococo_jax.benchmarks.rococo.published_mixing import make_plan
    from rococo_jax.errors import InputError
    from rococo_jax.runtime import enable_compilation_cache

    data = options.pairs.read()
    if options.method == "text":
        return _write_words(options, data)
    names = list(data.names)
    if len(names) < 2 and options.protocol != "control":
        raise InputError(options.pairs.captions, "images", len(names), "at least two images to mix")
    plan = make_plan(names, options.method, options.ratio, options.seed, options.protocol)
    enable_compilation_cache()
    new = write_mixed(plan, dict(zip(names, data.paths, strict=True)), options.out)
    print(
        f"{new} images written, {len(names) - new} already there; {plan.variant}, seed {plan.seed}, "
        f"{plan.protocol}: {plan.self_mixed} mixed with themselves, own share {plan.true_ratio.mean():.4f}; "
        f"{options.out}/manifest.json"
    )
    return 0


def _write_words(options: Options, data: "CaptionedImages") -> int:
    from rococo_jax.benchmarks.readers.plain_choices import text_choice
    from rococo_jax.errors import InputError
    from rococo_jax.perturb.images.written_words import plan_words, write_words
    from rococo_jax.perturb.text.lexicon import shipped_lexicon
    from rococo_jax.perturb.text.words import article_of
    from rococo_jax.texts import read_lines

    if options.protocol == "strict":
        raise InputError("--protocol", "protocol", "strict with text", "paper or control")
    words = read_lines(options.words, "words, one per line") if options.words else ()
    words = [word.strip() for word in words if word.strip()]
    image_files = dict(zip(data.items, data.paths, strict=True))
    plan = plan_words(image_files, shipped_lexicon(), options.seed, options.ratio, words)
    files = dict(zip(data.names, data.paths, strict=True))
    settings = {"seed": options.seed, "ratio": options.ratio, "words": words, "lexicon": shipped_lexicon().name}
    folder = write_words(plan, files, options.out, options.protocol == "control", **settings)

    def sentence(noun: str) -> str:
        return f"a photo of {article_of(noun)} {noun}."

    items = [
        text_choice(entry["image"], "words", [sentence(entry["object"])], sentence(entry["word"]), entry["file"])
        for entry in plan
        if entry["object"]
    ]
    folder.write("items.jsonl", "".join(json.dumps(item) + "\n" for item in items).encode())
    folder.finish()
    print(f"{options.out}: {len(plan)} images, {len(items)} items of choices, manifest.json")
    return 0
