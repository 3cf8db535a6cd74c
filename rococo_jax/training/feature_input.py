"""Batches of features, drawn from what `make_features` made.

Noise may be laid on them, in standard deviations of each feature: heads of a million parameters learn a few thousand
images by heart within a hundred steps, and training with noise holds them back as a ridge does (Bishop, "Training with
noise is equivalent to Tikhonov regularization", Neural Computation 7, 1995). An altered caption has the noise of its
caption and a mixed image that of its image, so that what tells them apart is left as it is.
"""

from typing import Any

import numpy as np

from rococo_jax.data.shuffle import SampleOrder
from rococo_jax.data.training_input import refuse_other_order
from rococo_jax.training.features import Features


class FeatureInput:
    """Batches of features: a pure function of (features, batch size, seed, step), like `TrainingInput`.

    Every epoch takes each image once, with one of its captions.
    """

    def __init__(
        self,
        features: Features,
        *,
        batch_size: int,
        seed: int,
        altered: int,
        squash: float = 0.0,
        noise: float = 0.0,
        process_index: int = 0,
        process_count: int = 1,
    ):
        self.features, self.altered, self.squash, self.seed = features, altered, squash, seed
        self.spread = {"image": noise * features.images.std(0), "text": noise * features.texts.std(0)} if noise else {}
        self.order = SampleOrder(len(features.images), batch_size, seed)
        rows = batch_size // process_count
        self.rows = slice(process_index * rows, (process_index + 1) * rows)
        self.next_step, self.untold = 0, features.left_out
        self.identity = {"seed": seed, "batch_size": batch_size, **features.identity}

    def __next__(self) -> dict[str, np.ndarray]:
        """The batch of `next_step`: this process's rows of it."""
        features, step = self.features, self.next_step
        images = self.order.batch(step)
        count = len(images)
        random = np.random.default_rng([self.seed, step])
        captions = features.first[images] + (
            random.random(count) * (features.first[images + 1] - features.first[images])
        ).astype(np.int64)
        batch = {
            "image_id": images.astype(np.int32),
            "sample_index": np.arange(step * count, (step + 1) * count),
            "image_features": features.images[images],
            "text_features": features.texts[captions],
        }
        if features.altered is not None:
            pool = features.altered.shape[1]
            chosen = np.argsort(random.random((count, pool)), axis=1)[:, : self.altered]
            batch["altered_features"] = features.altered[captions[:, None], chosen]
            batch["altered_valid"] = features.altered_valid[captions[:, None], chosen]
        # Drawn by themselves, so that asking for them changes no other draw.
        if features.views is not None:
            chosen = np.random.default_rng([self.seed, step, 2]).integers(features.views.shape[1], size=count)
            batch["image_features"] = features.views[images, chosen]
        if features.squashed is not None:
            taken = np.random.default_rng([self.seed, step, 1]).random(count) < self.squash
            batch["image_features"] = np.where(taken[:, None], features.squashed[images], batch["image_features"])
        if features.mixed is not None:
            chosen = random.integers(features.mixed.shape[1], size=count)
            batch["mixed_features"] = features.mixed[images, chosen][:, None]
            batch["mixed_valid"] = np.ones((count, 1), bool)
        self._lay_noise(batch, np.random.default_rng([self.seed, step, 3]))
        self.next_step += 1
        # Counted once a run, with the first batch that is drawn.
        self.untold, untold = 0, self.untold
        mine = {name: array[self.rows] for name, array in batch.items()}
        return {**mine, "skipped_images": np.array(untold, np.int32)}

    def _lay_noise(self, batch: dict[str, np.ndarray], random: np.random.Generator) -> None:
        for side, negatives in (("image", "mixed"), ("text", "altered")) if self.spread else ():
            own = batch[f"{side}_features"]
            noise = self.spread[side] * random.standard_normal(own.shape, np.float32)
            batch[f"{side}_features"] = own + noise
            if (name := f"{negatives}_features") in batch:
                batch[name] = batch[name] + noise[:, None]

    def get_state(self) -> dict[str, Any]:
        """Where the run stands, as JSON values."""
        return {"next_step": self.next_step, **self.identity}

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes on where `get_state` was called.

        Raises:
            InputError: the state belongs to another order of the data.
        """
        refuse_other_order(self.identity, state)
        self.next_step = int(state["next_step"])

    def close(self) -> None:
        """Nothing is open."""
