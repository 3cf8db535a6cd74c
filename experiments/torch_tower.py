"""A model directory whose image tower, DINOv2, runs in PyTorch in bfloat16: twice as fast with AVX-512.

    # models.py
    from functools import partial
    from experiments.torch_tower import with_torch_tower

    plain = partial(with_torch_tower, "models/plain", "towers/dinov2_vits14")

    rococo evaluate plain=models.py:plain --data DATA --benchmarks cifar10 --out out
    python experiments/torch_tower.py models/plain towers/dinov2_vits14 IMAGE...

Text tower and heads are the model directory's. What is cached is named after the precision and the library, so it never
meets what the tower gives in float32. The second form prints the cosines of the image vectors of both.
"""

import argparse
from collections.abc import Iterator
from itertools import islice

import numpy as np
import torch
import transformers

from rococo_jax.data.pictures import open_image
from rococo_jax.encoders import Encoder, load_model
from rococo_jax.encoders.device_steps import BatchFeatures
from rococo_jax.encoders.programs import as_pixels

_IMAGES_AT_ONCE = 32


class TorchTower(Encoder):
    """An encoder that asks a `Dinov2Model` for its image features: class token and mean of the patches."""

    tower: torch.nn.Module

    def describe(self):
        """As the model directory's, and what computes its image tower."""
        return {**super().describe(), "image tower": f"torch {torch.__version__}, bfloat16"}

    def describe_tower(self, side: str):
        """As the model directory's, and for images what computes them."""
        about = super().describe_tower(side)
        return about if side == "text" else {**about, "computed by": self.describe()["image tower"]}

    def image_batches(self, images) -> Iterator[BatchFeatures]:
        """As `Encoder.image_batches`; every step has the same number of rows."""
        mean, std = (np.asarray(each, np.float32) for each in (self.preprocessing.mean, self.preprocessing.std))
        pixels, done = as_pixels(images, self.spec.vision.image_size, self.preprocessing), 0
        while batch := list(islice(pixels, _IMAGES_AT_ONCE)):
            rows = np.zeros((_IMAGES_AT_ONCE, *batch[0].shape), np.float32)
            rows[: len(batch)] = (np.stack(batch) * self.preprocessing.rescale_factor - mean) / std
            with torch.inference_mode():
                tokens = self.tower(torch.from_numpy(rows).permute(0, 3, 1, 2).to(torch.bfloat16)).last_hidden_state
                features = torch.cat([tokens[:, 0], tokens[:, 1:].float().mean(1)], 1).float().numpy()
            yield np.arange(done, done + len(batch)), features[: len(batch)]
            done += len(batch)


def with_torch_tower(model: str, tower: str) -> TorchTower:
    """The model directory `model` with its image tower computed by PyTorch from the folder `tower`."""
    start = load_model(model)
    made = TorchTower(start.model, start.preprocessing, start.tokenizer, start.provenance, start.name)
    made.training_images = start.training_images
    made.tower = transformers.Dinov2Model.from_pretrained(tower, dtype=torch.bfloat16).eval()
    return made


def main():
    """Prints cosines of the vectors of both towers."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("tower")
    parser.add_argument("images", nargs="+")
    options = parser.parse_args()
    images = [open_image(path) for path in options.images]
    ours, torchs = load_model(options.model), with_torch_tower(options.model, options.tower)
    cosines = (ours.encode_image(images) * torchs.encode_image(images)).sum(1)
    print(f"{len(images)} images: cosine of both vectors {cosines.min():.5f} to {cosines.max():.5f}")


if __name__ == "__main__":
    main()
