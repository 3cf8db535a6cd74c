"""Cache of what runs of one process share: the starting model, the data, and the features of frozen towers.

A sweep trains many times from one model on one data set. Decoding images, altering captions and running the towers
takes longer than a short run on their features; it is done once for all runs with the same settings of it.
"""

from collections.abc import Callable, Hashable
from typing import Any

from jax.sharding import Mesh
from ml_collections import ConfigDict

from rococo_jax.data.pair_source import PairSource
from rococo_jax.encoders import Encoder
from rococo_jax.storage import hash_json
from rococo_jax.training.config import flat
from rococo_jax.training.init import starting_encoder
from rococo_jax.training.inputs.batches import open_source
from rococo_jax.training.inputs.feature_pool import Features

# Keys that do not change features. All others count, so that a new key cannot be missed.
_NOT_FEATURES = ("steps", "batch_size", "micro_batches", "kept_micro_batches", "remat", "fsdp", "ema", "optimizer",
                 "log", "checkpoint", "eval", "data.workers", "data.prefetch", "data.feature_noise",
                 "train.heads", "losses.contrastive", "losses.hard_positives.count",
                 "losses.hard_positives.negative_weight", "losses.ce_clip.intra", "losses.ce_clip.rank",
                 "losses.ce_clip.upper",
                 "losses.sc.scope", "losses.sc.count", "losses.vc.scope")  # fmt: skip


class RunCache:
    """Keeps the last data and the last starting model, and a few sets of features."""

    def __init__(self, features: int = 4):
        self._kept: dict[str, dict[Hashable, Any]] = {}
        self._most = {"features": features}

    def source(self, data: ConfigDict) -> PairSource:
        """Open the source of pairs once, as `open_source`."""
        return self._get("source", (data.images, data.captions, data.split), lambda: open_source(data))

    def encoder(self, config: ConfigDict, mesh: Mesh) -> Encoder:
        """Load the starting encoder once, as `starting_encoder`."""
        # Random parameters, of a whole model or of residual heads, come from the run's seed.
        keys = {key: value for key, value in flat(config).items() if key.startswith(("init", "dtype", "seed"))}
        keys["kind"] = config.losses.contrastive.kind
        return self._get("encoder", (hash_json(keys), mesh), lambda: starting_encoder(config, mesh))

    def features(self, config: ConfigDict, make: Callable[[], Features]) -> Features:
        """The result of `make`, or an earlier one for a config with the same features."""
        keys = {key: value for key, value in flat(config).items() if not key.startswith(_NOT_FEATURES)}
        keys |= {key: bool(keys[key]) for key in keys if key.endswith(".weight")}
        if config.init.model:
            # The towers are not the seed's, and pools are the same for all seeds.
            del keys["seed"]
        return self._get("features", hash_json(keys), make)

    def _get(self, kind: str, key: Hashable, make: Callable[[], Any]) -> Any:
        kept = self._kept.setdefault(kind, {})
        made = kept.pop(key) if key in kept else None
        while made is None and len(kept) >= self._most.get(kind, 1):
            # Dropped before the next is made, to save memory; the least recently used first.
            del kept[next(iter(kept))]
        kept[key] = make() if made is None else made
        return kept[key]
