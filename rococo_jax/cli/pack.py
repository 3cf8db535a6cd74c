"""`rococo pack`: image-text pairs in a few tars."""

import dataclasses
from typing import Annotated

from rococo_jax.cli.inputs import PairOptions
from rococo_jax.cli.outputs import output_folder
from rococo_jax.options import Option

EXAMPLES = """\
  rococo pack --images coco/images --captions captions_train.json --out shards
  rococo pack --images cc3m --captions cc3m.jsonl --out shards --shards 256 --image-size 256 --leave-out-broken
  rococo pack --images "cc12m-{00000..01242}.tar" --out shards --shards 1024 --allow-missing-images --leave-out-broken
  rococo pack --images "tfds:coco_captions/2014?split=train" --out shards --shards 64
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Pack images and captions into tars in WebDataset's form: few large files instead of many small ones.

    Attributes:
        out: where the tars go
        shards: how many tars
        image_size: shorter side in pixels of larger images, written as JPEG
        leave_out_broken: leave out images that cannot be decoded, and name them
        pairs: images and captions
    """

    out: Annotated[str, Option("DIR", check=output_folder)]
    shards: Annotated[int, Option("N")] = 16
    image_size: Annotated[int | None, Option("S")] = None
    leave_out_broken: bool = False
    pairs: PairOptions


def run(options: Options) -> None:
    from rococo_jax.data.packing import pack_pairs
    from rococo_jax.progress import progress

    source = options.pairs.open()
    with progress("packing", len(source), "images") as advance:
        packed = pack_pairs(
            source,
            options.out,
            shards=options.shards,
            image_size=options.image_size,
            leave_out_broken=options.leave_out_broken,
            on_progress=advance,
        )
    captions = sum(tar["captions"] for tar in packed.pairs.summaries)
    print(
        f"{options.out}: {len(packed.pairs)} images with {captions} captions in {options.shards} tars, "
        f"{packed.written} of them written now"
    )
    if packed.left_out:
        print(f"left out, cannot be decoded: {len(packed.left_out)}; the first is {packed.left_out[0]}")
