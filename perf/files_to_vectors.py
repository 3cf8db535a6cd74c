"""Time image files to unit vectors with CLIP B/32: ours and open_clip with a torch DataLoader, in turns.

    python perf/files_to_vectors.py --images coco/originals/val2014 [--count 192] [--rounds 3]

Both have the same random weights, made by open_clip and converted. open_clip reads files as its users do: its own
transform in a DataLoader of as many workers as cores, then `encode_image` and unit length, without gradients. Ours is
`embed_images` without a cache. Files of which both crop the same pixels are taken: where an odd number of columns is
left over, open_clip's crop lies one pixel from that of `transformers`, which is ours. Files come from the page cache;
for open_clip's installation see `measuring.py`.
"""

import json
import sys
from pathlib import Path

import measuring
import numpy as np
from PIL import Image

BATCH, SIDE = 64, 224


def main() -> None:
    parser = measuring.options(__doc__, cores=True, beside=True)
    parser.add_argument("--images", required=True, type=Path, help="folder of images")
    parser.add_argument("--count", type=int, default=192, help="files, some again where there are fewer")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    measuring.use_cores(arguments.cores)
    files = sorted(path for path in arguments.images.rglob("*.jpg") if is_cropped_alike(path))
    if not files:
        sys.exit(f"{arguments.images}: found no image whose crop is even; wanted .jpg files")
    paths = [str(files[number % len(files)]) for number in range(arguments.count)]
    theirs, transform, ours = measuring.open_clip_pair(arguments)
    from rococo_jax.encoders.cache import EmbeddingCache
    from rococo_jax.encoders.embedding import embed_images

    report = measuring.compare(
        "images",
        ours=lambda: embed_images(ours, [Path(path) for path in paths], EmbeddingCache(None)),
        theirs=lambda: encode_with_loader(theirs, transform, paths, arguments.cores),
        items=len(paths),
        items_of_reference=len(paths),
        rounds=arguments.rounds,
    )
    print(json.dumps({"files": len(files), "count": len(paths), "cores": arguments.cores, **report}))


def is_cropped_alike(path: Path) -> bool:
    with Image.open(path) as image:
        short, long = sorted(image.size)
    return int(SIDE * long / short) % 2 == SIDE % 2


class Files:
    """A map-style data set of prepared images."""

    def __init__(self, paths: list[str], transform):
        self.paths, self.transform = paths, transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int):
        return self.transform(Image.open(self.paths[index]))


def encode_with_loader(model, transform, paths: list[str], workers: int) -> np.ndarray:
    import torch

    loader = torch.utils.data.DataLoader(Files(paths, transform), batch_size=BATCH, num_workers=workers)
    with torch.no_grad():
        return torch.cat([model.encode_image(batch, normalize=True) for batch in loader]).numpy()


if __name__ == "__main__":
    main()
