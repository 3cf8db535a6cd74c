"""Build the batches of training: pairs, and the further fields that losses read. `make_batches` is the entry point."""

import dataclasses
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Int
from ml_collections import ConfigDict

from rococo_jax.cores import usable_cores
from rococo_jax.data.augmentation import Augmentation
from rococo_jax.data.captioned_images import open_pairs
from rococo_jax.data.pair_source import PairSource
from rococo_jax.data.sample_order import MixtureOrder, SampleOrder, is_object_storage, read_weights
from rococo_jax.data.tar_pairs import split_names
from rococo_jax.data.training_input import TrainingInput, make_training_input
from rococo_jax.data.training_samples import DrawSample
from rococo_jax.encoders import Encoder
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.errors import InputError
from rococo_jax.losses.terms import Field
from rococo_jax.processes import gather, sum_over_processes
from rococo_jax.progress import say
from rococo_jax.runtime import cache_folder
from rococo_jax.training.batch import Batch, Images, batch_from_arrays, training_preprocessing
from rococo_jax.training.config_keys import read_jitter
from rococo_jax.training.config_needs import cached_sides
from rococo_jax.training.inputs import active_makers
from rococo_jax.training.inputs.feature_pool import Features, ReadFeatures, locked_features, make_features
from rococo_jax.training.inputs.field_maker import FieldContext

# Captions are short: one in a thousand captions of COCO has more than 32 tokens.
_DEFAULT_TOKENS = 48
# A worker takes seconds to start; `auto` starts none for fewer images than the main process reads in that time.
_IMAGES_WORTH_WORKERS = 20_000


def open_source(data: ConfigDict) -> PairSource:
    """Open the source of pairs that `data` of the config names. Raises InputError if it cannot be read."""
    if not data.images:
        raise InputError("config", "data.images", "''", "folders of images, tars, tfds:NAME, or scenes:COUNT")
    return open_pairs(data.images, data.captions, allow_missing=True, split=data.split)


def make_batches(
    context: FieldContext,
    feature_cache: Callable[[ConfigDict, Callable[[], Features]], Features] = lambda config, make: make(),
    rows: Int[np.ndarray, " rows"] | None = None,
) -> "PairBatches":
    """Return the batches of this process, from step 0. All processes must call it.

    Args:
        feature_cache: returns the features of frozen towers of a config, from another run or by calling the function.
        rows: the rows of each global batch that this process reads; all by default.
    """
    config, encoder, source_of_run = context.config, context.encoder, context.source
    makers = active_makers(config.losses)
    augmentation = Augmentation(
        (config.data.random_crop_min_scale, 1.0) if config.data.random_crop_min_scale else None,
        flip=config.data.flip,
        resize_prob=config.data.resize_prob,
        also_resized=any(each.resized_view(config) for each in makers),
        jitter=read_jitter(config.data.color_jitter) or None,
        jitter_prob=config.data.color_jitter_prob,
        grayscale_prob=config.data.grayscale_prob,
    )
    cache = EmbeddingCache(cache_folder() / "embeddings")
    features = None
    if cached_sides(config) == ("vision",):
        features, source = locked_features(context, cache)
        context = dataclasses.replace(context, source=source)
    elif config.data.cached_features:
        features = feature_cache(config, lambda: make_features(context, augmentation, cache))
        all_rows = np.arange(config.batch_size)
        read = ReadFeatures(features, config, all_rows if rows is None else rows)
        arrays = TrainingInput(read, read.identity, prefetch=config.data.prefetch)
        return PairBatches(arrays, [field for _, field in read.fields], {"skipped_images": features.left_out})
    texts = [pair for each in makers for pair in each.sample_texts]
    transforms = [each.transform(context) for each in makers]
    preprocessing = training_preprocessing(config, encoder.preprocessing) if features is None else None
    if preprocessing not in (None, encoder.preprocessing):
        size = "{} x {}".format(*preprocessing.image_size)
        say(f"{encoder.name}: images are resized to {size} pixels, since mixed images and patch dropout need one grid")
    draw = DrawSample(
        context.source,
        make_order(config.data, context.source, config.batch_size, config.seed),
        preprocessing,
        augmentation,
        config.data.captions_per_image,
        config.data.on_decode_error,
        config.data.decode,
    )
    arrays = make_training_input(
        draw,
        encoder.tokenizer,
        text_length=text_length(config.data.text_length, encoder),
        text_fields={key: field.name for key, field in texts},
        extra_text=[transform for transform in transforms if transform is not None],
        workers=workers_of(config.data.workers, config.steps * config.batch_size),
        prefetch=config.data.prefetch,
        rows=None if rows is None else rows.tolist(),
    )
    lost = {"skipped_images": len(source_of_run) - len(context.source), "cut_texts": 0, "equal_altered_texts": 0}
    return PairBatches(arrays, [field for _, field in texts], lost, features)


def make_order(data: ConfigDict, source: PairSource, batch_size: int, seed: int) -> SampleOrder:
    """Return the order of samples that `data.order` and `data.weights` describe.

    Raises InputError: the weights do not match the sources, or the order is 'shards' with weights or without shards.
    """
    parts, by_shard = source.parts, data.order == "shards"
    in_bucket = next(filter(is_object_storage, split_names(data.images)), None)
    if in_bucket and not by_shard and all(part.shards for part in parts) and jax.process_index() == 0:
        say(f"{in_bucket} is read with one request an image; config.data.order=shards reads shards from front to back")
    for number, part in enumerate(parts, 1):
        if by_shard and not part.shards:
            expected = "'shuffled' for sources without shards (folders, TFDS)"
            raise InputError("config", "config.data.order", f"'shards' of source {number} of data.images", expected)
    if data.weights:
        if by_shard:
            expected = "no weights, or config.data.order=shuffled"
            raise InputError("config", "config.data.weights", f"{data.weights} with order 'shards'", expected)
        return MixtureOrder(list(map(len, parts)), read_weights(data.weights, len(parts)), batch_size, seed)
    shards = [size for part in parts for size in part.shards] if by_shard else []
    return SampleOrder(len(source), batch_size, seed, shards)


def workers_of(workers: int | str, images: int) -> int:
    """Return the number of workers; `auto` shares the machine's cores among its processes, 0 for runs of few images."""
    if workers != "auto":
        return workers
    if images < _IMAGES_WORTH_WORKERS * jax.process_count():
        return 0
    hosts = gather("hosts", socket.gethostname)
    return max(1, usable_cores() // hosts.count(socket.gethostname()))


class PairBatches:
    """Batches as `data.training_input` makes them: pixels and token ids, or features of frozen towers.

    `counts` are this process's share of what was lost since step 0: images that could not be decoded and were replaced
    (with features: left out), texts that were cut, and altered texts that have the tokens of their caption after
    cutting. The counts of a run before it was resumed are in the share of process 0.

    Args:
        lost: what was lost before the first step, by the names that are counted.
        image_features: features of all images, to be looked up by their ids.
    """

    def __init__(
        self,
        arrays: TrainingInput,
        fields: Sequence[Field],
        lost: Mapping[str, int],
        image_features: np.ndarray | None = None,
    ):
        self.arrays, self.fields, self.image_features = arrays, fields, image_features
        self.counts = _of_process_0(lost)

    def close(self) -> None:
        """End the processes that read images."""
        self.arrays.close()

    def get_state(self) -> dict[str, Any]:
        """Return the state of the arrays and the counts of all processes. All processes must call it."""
        return {**self.arrays.get_state(), "counts": sum_over_processes(self.counts)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Resume from `get_state`. Raises InputError as `TrainingInput.set_state`."""
        self.arrays.set_state(state)
        self.counts = _of_process_0(state["counts"])

    def __next__(self) -> Batch:
        """Return this process's rows of the next batch."""
        arrays = next(self.arrays)
        cut_before = self.counts.get("cut_texts")
        self.counts = {name: count + int(arrays.get(name, 0)) for name, count in self.counts.items()}
        is_first_cut = cut_before == 0 and self.counts["cut_texts"] > 0
        if is_first_cut and jax.process_index() == 0:
            limit = arrays["ids"].shape[1]
            counted = "metrics.jsonl counts them, and altered texts that are then equal to their captions and ignored"
            say(f"texts are truncated to {limit} tokens (config.data.text_length, or the model's limit); {counted}")
        batch = batch_from_arrays(arrays, self.fields)
        if self.image_features is None:
            return batch
        return dataclasses.replace(batch, images=Images(features=self.image_features[arrays["image_id"]]))


def _of_process_0(counts: Mapping[str, int]) -> dict[str, int]:
    """Return the counts on process 0 and zeros on the others, so that the sum over processes is right."""
    return {name: count if jax.process_index() == 0 else 0 for name, count in counts.items()}


def text_length(requested: int, encoder: Encoder) -> int:
    """Return the number of tokens to which texts are padded or cut.

    Args:
        requested: `data.text_length`, 0 for the default.

    Raises InputError: the tower has another fixed length, or `requested` is above its context length.
    """
    fixed, context = encoder.tokenizer.spec.fixed_length, encoder.spec.text.context_length
    if fixed and requested not in (0, fixed):
        raise InputError("config", "config.data.text_length", requested, f"0 or {fixed}, the tower's fixed length")
    if requested and not 2 <= requested <= context:
        raise InputError("config", "config.data.text_length", requested, f"0, or 2 to {context}, the tower's context")
    return fixed or requested or min(context, _DEFAULT_TOKENS)
