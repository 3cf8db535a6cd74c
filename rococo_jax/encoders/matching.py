"""Pairs of images and texts in groups of one image and a fixed number of texts, as the matching head takes them.

The head's keys and values of an image are most of the work of a pair, and a group shares them. The texts of a group
have one padded length. Every step has a static shape, so a pair's logits depend on no other pair.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Float, Int

from rococo_jax.encoders import programs
from rococo_jax.encoders.device_steps import Rows, collected
from rococo_jax.encoders.protocol import OnProgress, PairPlaces, PairScorer

# Images whose tokens are on every device at once: 1.8 MB each for BLIP-base at 384 pixels.
_IMAGES_PLACED = 256
# Texts of a group: with more of them the image's part weighs less (a third of BLIP-base's work at 16), and more of the
# last group of an image is filled up.
_TEXTS = 16
# Every length makes groups of its own, so those of short captions share one.
_SHORTEST = 16


class MatchingHead(PairScorer):
    """What a matching head adds to an `Encoder`, as BLIP's (arXiv 2201.12086): a pair's score is the logit of a match.

    Candidates are ranked by logit + cosine, as the published evaluation does.
    """

    adds_cosine, decides_by = True, "matching head's logit + cosine"

    @property
    def pair_scorer(self) -> "MatchingHead | None":
        """The encoder, where it has a matching head; None where it has none."""
        return None if self.spec.matching is None else self

    def score(
        self, images: Iterable[Any], texts: Sequence[str], pairs: PairPlaces, on_progress: OnProgress
    ) -> Float[np.ndarray, " pairs"]:
        """See `PairScorer`. The tokens of an image are computed once. Raises InputError: as `encode_text`."""
        return self.matching_logits(self.image_tokens(images), texts, pairs, on_progress)[:, 1]

    def image_tokens(self, images) -> Float[np.ndarray, "images tokens width"]:
        """What the image tower gives before pooling, as `encode_image` takes the images; for `matching_logits`.

        Raises InputError: as `encode_image`.
        """
        return collected(self.name, "images", self._image_batches(images, programs.image_tokens))

    def matching_logits(
        self,
        image_tokens: Float[np.ndarray, "images tokens width"],
        texts: Sequence[Any],
        pairs: PairPlaces,
        on_progress: OnProgress | None = None,
    ) -> Float[np.ndarray, "pairs 2"]:
        """What the matching head says of pairs: logits of no match and of a match, float32.

        Args:
            image_tokens: from `image_tokens`.
            texts: as `encode_text` takes them. Where the spec has a `first_id`, it replaces their first token.
            pairs: the image and the text of each, as places in `image_tokens` and `texts`.
            on_progress: called with the number of pairs done.

        Raises:
            InputError: as `encode_text`.
        """
        ids, first = self.token_ids(texts), self.spec.matching.first_id
        ids = ids if first is None else [[first, *row[1:]] for row in ids]
        placed = self._current()
        logits = np.empty((len(pairs[0]), 2), np.float32)
        for start in range(0, len(image_tokens), _IMAGES_PLACED):
            some = image_tokens[start : start + _IMAGES_PLACED]
            if not len(here := np.flatnonzero((pairs[0] >= start) & (pairs[0] < start + len(some)))):
                continue
            # Few shapes of what lies on the devices, since each is a program to compile: powers of two.
            tokens = programs.pad_rows(some, 1 << (len(some) - 1).bit_length())
            tokens = jax.device_put(tokens, NamedSharding(self.mesh, PartitionSpec()))
            program = partial(programs.matching_logits, self.mesh, placed.graph, (placed.state, tokens))
            places, rows = self._groups(pairs[0][here] - start, pairs[1][here], ids)
            for index, values in self.steps.run(rows, program):
                real = places[index] >= 0
                logits[here[places[index][real]]] = values[real]
                if on_progress is not None:
                    on_progress(int(real.sum()))
        return logits

    def _groups(
        self, images: Int[np.ndarray, " pairs"], texts: Int[np.ndarray, " pairs"], ids: Sequence[Sequence[int]]
    ) -> tuple[Int[np.ndarray, "groups texts"], Iterator[Rows]]:
        """Group pairs (at least one) by image and padded length of the text, a place in `ids`.

        Returns the place of each pair in its group, -1 where a group is not full and repeats its first; and the groups
        as rows of steps, shortest first.
        """
        context = self.spec.text.context_length
        lengths = np.array([programs.bucket_length(max(len(row), _SHORTEST), context) for row in ids], np.int64)[texts]
        order = np.lexsort((texts, images, lengths))
        # Where the image or the length changes a run begins; a run is cut into groups.
        ordered = np.stack([lengths[order], images[order]])
        begins = np.flatnonzero(np.concatenate([[True], (ordered[:, 1:] != ordered[:, :-1]).any(axis=0)]))
        within = np.arange(len(order)) - np.repeat(begins, np.diff(np.append(begins, len(order))))
        group = np.cumsum(within % _TEXTS == 0) - 1
        pairs = np.full((group[-1] + 1, _TEXTS), -1, np.int64)
        pairs[group, within % _TEXTS] = order
        filled, first = np.where(pairs < 0, pairs[:, :1], pairs), pairs[:, 0]

        def rows() -> Iterator[Rows]:
            of_groups = lengths[first].tolist()
            for batch in programs.text_batches(of_groups, context, self._tokens // _TEXTS, self.steps.devices):
                index = batch.index
                padded = self.tokenizer.pad([ids[text] for text in texts[filled[index]].ravel()], batch.length)
                arrays = (each.reshape(len(index), _TEXTS, -1) for each in padded)
                yield Rows(index, (images[first[index]].astype(np.int32), *arrays), batch.unit, _TEXTS * batch.length)

        return pairs, rows()
