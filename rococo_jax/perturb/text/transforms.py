"""Altered captions while training: a Grain transform that reads a precomputed influence table.

No model runs here: the influence of every caption's words was computed once (`rococo influence`), and altering a
caption is some hashing. Grain hands each sample a generator of its own, so that a sample gets other altered captions
every epoch and the same ones in a run that was interrupted.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import grain.python as grain
import numpy as np

from rococo_jax.errors import InputError
from rococo_jax.perturb.text.replacement import CaptionAlterer


class AlterCaptions(grain.RandomMapTransform):
    """Adds `count` altered captions to a sample.

    A sample is a mapping with `caption` and, where its image has more, `captions`. Added are `altered_captions`, a
    tuple of `count` strings, and `altered_valid` (count,), False where there was nothing to alter and the string is
    empty. The alterers take turns, and which one begins is drawn.

    Args:
        alterers: one for each variant wanted.
        influence: caption -> influence of its words (`read_influence_table`); None where the alterers select at random.
        count: altered captions a sample (K).
    """

    def __init__(
        self, alterers: Sequence[CaptionAlterer], influence: Mapping[str, np.ndarray] | None = None, count: int = 1
    ):
        self.alterers, self.influence, self.count = tuple(alterers), influence, count

    def random_map(self, sample: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        """The sample with its altered captions, different ones as far as there are.

        Raises:
            InputError: the influence table does not have the caption.
        """
        caption = sample["caption"]
        originals = sample.get("captions", (caption,))
        influence = None if self.influence is None else self._influence_of(caption)
        draw = int(rng.integers(1 << 31))
        # The turn changes from draw to draw, so that few altered captions a sample still come from all alterers.
        first, alterers = draw % len(self.alterers), len(self.alterers)
        made = []
        for place in range(min(self.count, alterers)):
            share = -(-(self.count - place) // alterers)
            alterer = self.alterers[(first + place) % alterers]
            altered = alterer.alter(caption, originals, influence, count=share, draw=draw)
            made.append([each.caption for each in altered])
        turns = max(map(len, made))
        distinct = list(
            dict.fromkeys(text for turn in range(turns) for texts in made for text in texts[turn : turn + 1])
        )
        filled = [distinct[i % len(distinct)] if distinct else "" for i in range(self.count)]
        return {**sample, "altered_captions": tuple(filled), "altered_valid": np.full(self.count, bool(distinct))}

    def _influence_of(self, caption: str) -> np.ndarray:
        try:
            return self.influence[caption]
        except KeyError:
            wanted = "a table that was made from the training captions"
            raise InputError("influence table", "captions", f"no line for {caption!r}", wanted) from None
