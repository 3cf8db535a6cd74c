"""The training input: batches of NumPy arrays that are a pure function of (data, settings, seed, step).

    global number  g = step * batch_size + place         range
    image          order(g): another permutation in every epoch
    sample         decode, resize, draw a caption, alter it: random by (seed, g)
    batches        of batch_size / processes samples; process p takes batch p of every `processes`
    workers        each makes whole batches in turn

Random draws depend on global numbers and not on processes or workers, so the global batch of a step is the same for any
number of either, from the start and resumed: the state of a run is its step. Worker processes use no accelerator.
"""

import copy
import multiprocessing
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import grain.python as grain
import numpy as np
from absl import flags

from rococo_jax.data.augmentation import Augmentation
from rococo_jax.data.pair_source import PairSource
from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.data.tokenizers import Tokenizer
from rococo_jax.data.training_samples import (
    CAPTIONS_PER_IMAGE,
    ON_DECODE_ERROR,
    TEXT_FIELDS,
    Batch,
    DrawSample,
    MakeBatch,
    SampleOrder,
    derive_seed,
)
from rococo_jax.errors import InputError

# More samples than any run draws; Grain's datasets have a length.
_SAMPLES = 2**53
_SOURCE = "training input"


class TrainingInput(Iterator[Batch]):
    """Endless batches from `start_step` on. Made by `make_training_input`.

    Reading and worker processes start with the first batch; `close`, or leaving a `with` block, ends them. `identity`
    decides the order of the data; a state with another identity is refused.
    """

    def __init__(
        self,
        batches: grain.MapDataset,
        identity: Mapping[str, Any],
        *,
        workers: int = 0,
        prefetch: int = 2,
        start_step: int = 0,
    ):
        self.identity = dict(identity)
        self.next_step = start_step
        self._batches, self._workers, self._prefetch = batches, workers, prefetch
        self._iterator: grain.DatasetIterator | None = None

    def __next__(self) -> Batch:
        """The batch of `next_step`. Raises InputError where an image is broken and `on_decode_error` is `raise`."""
        if self._iterator is None:
            self._iterator = iter(self._from(self.next_step))
        batch = next(self._iterator)
        self.next_step += 1
        # Copied out of the workers' shared memory, which is freed with Grain's own arrays.
        return {name: np.array(values) for name, values in batch.items()} if self._workers else batch

    def _from(self, step: int) -> grain.IterDataset:
        ahead = 0 if self._workers else self._prefetch
        reading = grain.ReadOptions(num_threads=min(ahead, os.cpu_count() or 1), prefetch_buffer_size=ahead)
        batches = self._batches[step:].to_iter_dataset(reading)
        if not self._workers:
            return batches
        if not flags.FLAGS.is_parsed():  # Grain reads absl's flags, which must be parsed
            flags.FLAGS.mark_as_parsed()
        options = grain.MultiprocessingOptions(self._workers, per_worker_buffer_size=max(self._prefetch, 1))
        return batches.mp_prefetch(options, worker_init_fn=_start_worker)

    def get_state(self) -> dict[str, Any]:
        """The state as JSON values: `next_step` and the identity of the order of the data."""
        return {"next_step": self.next_step, **copy.deepcopy(self.identity)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Resumes from `get_state`, on any number of processes and workers; InputError where the data's order is
        another.
        """
        refuse_other_order(self.identity, state)
        self.close()
        self.next_step = int(state["next_step"])

    def close(self) -> None:
        """Ends the worker processes. The next batch starts them again."""
        if self._iterator is not None:
            self._iterator.close()
            self._iterator = None

    def __enter__(self) -> "TrainingInput":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def make_training_input(
    source: PairSource,
    *,
    preprocessing: Preprocessing | None,
    tokenizer: Tokenizer,
    batch_size: int,
    seed: int,
    process_index: int = 0,
    process_count: int = 1,
    start_step: int = 0,
    text_length: int | None = None,
    captions_per_image: str = "one",
    extra_text: Sequence[grain.MapTransform | grain.RandomMapTransform] = (),
    text_fields: Mapping[str, str] = TEXT_FIELDS,
    augmentation: Augmentation | None = None,
    on_decode_error: str = "raise",
    workers: int = 0,
    prefetch: int = 2,
) -> TrainingInput:
    """The training input of one process; `training_samples` describes a batch.

    Args:
        source: images and captions (`open_pairs`).
        preprocessing: how images are turned into pixels; None leaves out the pixels and opens no image.
        batch_size: of the global batch, over all processes.
        process_index: which contiguous part of each global batch this process reads.
        text_length: tokens of every text; the tokenizer's context length by default.
        captions_per_image: `one` caption, drawn at random for each sample, or `all` in turn.
        extra_text: transforms that add texts to a sample: `altered_captions` and `altered_valid`, `hard_positive`,
            `hard_negatives`, or others.
        text_fields: key of further texts in a sample: name of their arrays in the batch.
        augmentation: random crops and flips; none by default.
        on_decode_error: `skip` replaces and counts images that cannot be decoded; `raise` raises the InputError when
            the batch is due.
        workers: processes that make batches; 0 makes them in threads of this one.
        prefetch: batches made ahead, by each worker.

    Raises:
        InputError: the source is empty or smaller than a batch, the batch is not divisible by the processes, the text
            length does not fit the tokenizer, or a choice is unknown.
    """
    for name, value, choices in (
        ("captions_per_image", captions_per_image, CAPTIONS_PER_IMAGE),
        ("on_decode_error", on_decode_error, ON_DECODE_ERROR),
    ):
        if value not in choices:
            raise InputError(_SOURCE, name, repr(value), f"one of {', '.join(choices)}")
    if batch_size % process_count:
        raise InputError(_SOURCE, "batch_size", batch_size, f"a multiple of the {process_count} processes")
    order = SampleOrder(len(source), batch_size, seed)
    draw = DrawSample(source, order, preprocessing, augmentation or Augmentation(), captions_per_image, on_decode_error)
    samples = grain.MapDataset.range(_SAMPLES).random_map(draw, seed=derive_seed(seed, "samples"))
    for number, transform in enumerate(extra_text):
        if isinstance(transform, grain.RandomMapTransform):
            samples = samples.random_map(transform, seed=derive_seed(seed, "extra text", number))
        else:
            samples = samples.map(transform)
    make_batch = MakeBatch(tokenizer, _check_text_length(text_length, tokenizer), text_fields)
    batches = samples.batch(batch_size // process_count, drop_remainder=True, batch_fn=make_batch)
    identity = {
        "seed": seed,
        "batch_size": batch_size,
        "captions_per_image": captions_per_image,
        "images": len(source),
        "data": source.hash(),
    }
    mine = batches[process_index::process_count]
    return TrainingInput(mine, identity, workers=workers, prefetch=prefetch, start_step=start_step)


def refuse_other_order(identity: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Raises InputError where a saved state belongs to another order of the data than `identity`."""
    for name, value in identity.items():
        if state.get(name) != value:
            raise InputError(_SOURCE, name, value, f"{state.get(name)}, with which the run began")


def _check_text_length(length: int | None, tokenizer: Tokenizer) -> int:
    spec = tokenizer.spec
    most = spec.fixed_length or spec.context_length
    least = spec.fixed_length or 2
    if length is None:
        return most
    if not least <= length <= most:
        wanted = f"{most}, the tower's fixed length" if least == most else f"{least} to {most}, the tower's context"
        raise InputError(_SOURCE, "text_length", length, wanted)
    return length


def _end_with_parent() -> None:
    """Ends this worker when the process that started it has gone, however that ended."""
    multiprocessing.parent_process().join()
    os._exit(1)


def _start_worker(worker: int, count: int) -> None:
    """Keeps a worker process off accelerators, and from tokenising in as many threads as there are cores."""
    threading.Thread(target=_end_with_parent, daemon=True, name="parent").start()
    import jax

    jax.config.update("jax_platforms", "cpu")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
