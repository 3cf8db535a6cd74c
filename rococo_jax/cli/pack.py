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
    """Pack images and captions into tars in the WebDataset format: few large files instead of many small ones.

    Attributes:
        out: folder of the tars
        shards: number of tars
        image_size: shorter side in pixels to which larger images are resized, as JPEG
        leave_out_broken: skip images that cannot be decoded, and report the first
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
        f"{packed.new_tars} of them written now"
    )
    if packed.skipped:
        print(f"left out, cannot be decoded: {len(packed.skipped)}; the first is {packed.skipped[0]}")
