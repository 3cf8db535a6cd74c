"""`rococo mix-images`: a gallery in which every image has another one mixed in, or a word written on it."""

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
  rococo mix-images --images coco/images --captions captions_test.json --protocol control --out squashed
  rococo mix-images --images coco/images --captions captions_test.json --method text --out words
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Mix another image into every image, as the benchmark does or stricter, or write a word on it.

    Attributes:
        out: images and manifest.json, with text items.jsonl of the benchmark choices too; one folder a run
        method: blend, paste a box, or text: write what another image shows on a note
        ratio: share of own content, 0 to 1
        seed: published: 1, 10, 100
        protocol: paper: as published, JPEG; strict: nobody with itself, PNG; control: squashed and compressed, not
            mixed; of text: paper, and control without the words
        words: words to write instead, one a line (text)
        pairs: images and captions
    """

    out: Annotated[str, Option("DIR", check=output_folder)]
    method: Literal["mix", "patch", "text"] = "mix"
    ratio: Annotated[float, Option("R")] = 0.9
    seed: Annotated[int, Option("N")] = 1
    protocol: Literal["paper", "strict", "control"] = "paper"
    words: Annotated[str | None, Option("FILE")] = None
    pairs: Annotated[PairOptions, ALL_IMAGES]


def run(options: Options) -> int:
    from rococo_jax.benchmarks.rococo.mixed_galleries import write_mixed
    from rococo_jax.benchmarks.rococo.published_mixing import make_plan
    from rococo_jax.errors import InputError
    from rococo_jax.runtime import enable_compilation_cache

    data = options.pairs.read()
    if options.method == "text":
        return _write_words(options, data)
    if options.words:
        raise InputError("--words", "option", f"one with {options.method}", "--method text")
    names = list(data.names)
    if len(names) < 2 and options.protocol != "control":
        raise InputError(options.pairs.captions, "images", len(names), "at least two images to mix")
    plan = make_plan(names, options.method, options.ratio, options.seed, options.protocol)
    enable_compilation_cache()
    written = write_mixed(plan, dict(zip(names, data.paths, strict=True)), options.out)
    print(
        f"{written} images written, {len(names) - written} already there; {plan.variant}, seed {plan.seed}, "
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
    words = read_lines(options.words, "words, one a line") if options.words else ()
    words, places = [word.strip() for word in words if word.strip()], dict(zip(data.items, data.paths, strict=True))
    plan = plan_words(places, shipped_lexicon(), options.seed, options.ratio, words)
    files = dict(zip(data.names, data.paths, strict=True))
    about = {"seed": options.seed, "ratio": options.ratio, "words": words, "lexicon": shipped_lexicon().name}
    folder = write_words(plan, files, options.out, options.protocol == "control", **about)

    def sentence(noun: str) -> str:
        return f"a photo of {article_of(noun)} {noun}."

    items = [
        text_choice(each["image"], "words", [sentence(each["object"])], sentence(each["word"]), each["file"])
        for each in plan
        if each["object"]
    ]
    folder.write("items.jsonl", "".join(json.dumps(item) + "\n" for item in items).encode())
    folder.finish()
    print(f"{options.out}: {len(plan)} images, {len(items)} items of choices, manifest.json")
    return 0
