"""`rococo mix-images`: a gallery in which every image has another one mixed in."""

import dataclasses
from typing import Annotated, Literal

from rococo_jax.cli.inputs import ALL_IMAGES, PairOptions
from rococo_jax.cli.outputs import output_folder
from rococo_jax.options import Option

EXAMPLES = """\
  rococo mix-images --images coco/images --captions captions_test.json --method mix --ratio 0.9 --seed 1 --out mixed/1
  rococo mix-images --images coco/images --captions captions_test.json --method patch --protocol strict --out patched
  rococo mix-images --images coco/images --captions captions_test.json --protocol control --out squashed
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Mix another image into every image, as the benchmark does or stricter; writes the images and manifest.json.

    Attributes:
        out: images and manifest.json; one folder a run
        method: blend or paste a box
        ratio: share of own content, 0 to 1
        seed: published: 1, 10, 100
        protocol: paper: as published, JPEG; strict: nobody with itself, PNG; control: squashed and compressed, not
            mixed
        pairs: images and captions
    """

    out: Annotated[str, Option("DIR", check=output_folder)]
    method: Literal["mix", "patch"] = "mix"
    ratio: Annotated[float, Option("R")] = 0.9
    seed: Annotated[int, Option("N")] = 1
    protocol: Literal["paper", "strict", "control"] = "paper"
    pairs: Annotated[PairOptions, ALL_IMAGES]


def run(options: Options) -> int:
    from rococo_jax.benchmarks.rococo.mixed_galleries import write_mixed
    from rococo_jax.benchmarks.rococo.published_mixing import make_plan
    from rococo_jax.errors import InputError
    from rococo_jax.runtime import enable_compilation_cache

    data = options.pairs.read()
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
