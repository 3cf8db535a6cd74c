"""Time image encoding from normalised pixels: our CLIP ViT-B/32 (or B/16) and `transformers`.

    python perf/image_tower.py [--patch 32] [--count 64] [--batch 16] [--cores 2]

Both have the same random weights and get random pixels. The reference runs at its fastest: no_grad, its fused
attention, whole batches, one thread per core. Both return unit vectors in NumPy, which must agree.
"""

import measuring
import numpy as np


def main() -> None:
    parser = measuring.options(__doc__, cores=True)
    parser.add_argument("--patch", type=int, default=32)
    parser.add_argument("--count", type=int, default=64)
    parser.add_argument("--batch", type=int, default=16, help="batch size of the reference")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    measuring.use_cores(arguments.cores)
    theirs = make_reference(arguments.patch, arguments.cores)
    ours = measuring.converted(theirs)
    pixels = np.random.default_rng(0).standard_normal((arguments.count, 224, 224, 3), np.float32)
    channels_first = np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))
    report = measuring.compare(
        "images",
        ours=lambda: ours.encode_image(pixels),
        theirs=lambda: encode_with_reference(theirs, channels_first, arguments.batch),
        items=len(pixels),
        items_of_reference=len(pixels),
        rounds=arguments.rounds,
    )
    measuring.print_report({"patch": arguments.patch, **report})


def make_reference(patch: int, threads: int):
    import torch
    import transformers

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    config = transformers.CLIPVisionConfig(patch_size=patch, image_size=224, projection_dim=512)
    return transformers.CLIPVisionModelWithProjection(config).eval()


def encode_with_reference(model, pixels: np.ndarray, batch: int) -> np.ndarray:
    import torch

    with torch.no_grad():
        parts = [model(pixel_values=rows).image_embeds for rows in torch.from_numpy(pixels).split(batch)]
        return torch.nn.functional.normalize(torch.cat(parts), dim=-1).numpy()


if __name__ == "__main__":
    main()
