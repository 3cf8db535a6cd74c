"""`rococo attention`: attention maps of an image tower, before and after another image is mixed in."""

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

from rococo_jax.cli.outputs import output_file
from rococo_jax.options import Option

EXAMPLES = """\
  rococo attention models/clip-b32 --images coco/images --captions captions_test.json --seed 10 --out attention.html
  rococo attention models/dinov2 --images some/photos --method mix --ratio 0.7 --count 20 --out attention.html
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Write a page with attention maps of an image tower, before and after another image is mixed in.

    Attributes:
        model: model directory, Hugging Face folder, or hub name
        images: folder of images
        out: the page to write
        captions: captions file whose images are used, in its order, which decides the pairs (default: all images of the
            folder)
        method: blend two images (mix) or paste a box (patch)
        ratio: share of the original image that remains
        seed: seed of the mixing; published: 1, 10, 100
        protocol: protocol of the mixing
        count: number of images to show
    """

    model: Annotated[str, Option("MODEL", positional=True)]
    images: Annotated[str, Option("DIR")]
    out: Annotated[str, Option("F.html", check=output_file)]
    captions: Annotated[str | None, Option("FILE")] = None
    method: Literal["mix", "patch"] = "patch"
    ratio: Annotated[float, Option("R")] = 0.9
    seed: Annotated[int, Option("N")] = 1
    protocol: Literal["paper", "strict"] = "paper"
    count: Annotated[int, Option("N", least=1)] = 8


def run(options: Options) -> None:
    from rococo_jax.benchmarks.rococo.published_mixing import make_plan
    from rococo_jax.data.caption_forms import read_captions
    from rococo_jax.data.image_files import find_images, list_images
    from rococo_jax.encoders import load_model
    from rococo_jax.errors import InputError
    from rococo_jax.report import page_path
    from rococo_jax.report.markdown import write_page
    from rococo_jax.runtime import enable_compilation_cache
    from rococo_jax.studies.attention import attention_page, choose_pairs

    page = page_path(options.out)
    if options.captions is None:
        files = {name: Path(options.images) / name for name in list_images(options.images)}
    else:
        names = [item.image for item in read_captions(options.captions).items]
        paths = find_images(names, options.images)[0]
        files = {name: paths[name] for name in names if name in paths}
    if len(files) < 2:
        raise InputError(options.images, "images", len(files), "at least two images")
    plan = make_plan(list(files), options.method, options.ratio, options.seed, options.protocol)
    enable_compilation_cache()
    encoder = load_model(options.model)
    pairs = choose_pairs(encoder, plan, files, options.count)
    write_page(page, attention_page(encoder, plan, pairs))
    print(f"{page}: {len(pairs)} images, {plan.variant}, seed {plan.seed}; {page.with_suffix('.md')}: its table")
