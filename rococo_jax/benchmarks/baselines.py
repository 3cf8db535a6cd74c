"""Text-only baselines: scorers that choose between a true and an altered text without seeing the image.

    bigram, trigram   prefer the higher log probability under an n-gram model of training captions
    shorter           prefers the text with fewer words
    bag_of_words      upper bound of every model that ignores word order: texts with the same words tie

Preference is in percent; ties count one half, as in `metrics.grounding`. Training captions that occur word for word
among a benchmark's own texts are left out, so that no baseline has seen the answers.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float, Int

from rococo_jax.metrics.counts import Counts
from rococo_jax.metrics.metric import Metric, share
from rococo_jax.perturb.text.ngrams import NgramModel, plain_words

PREFERENCE = "preference"
_METRICS = (
    Metric(PREFERENCE, "Preference", "higher", "%", "the original is preferred; ties count one half", "ours",
           share(PREFERENCE)),
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Baseline:
    """A scorer of texts.

    Attributes:
        name: in results.
        label: heading in tables.
        definition: one phrase.
    """

    name: str
    label: str
    definition: str


BASELINES = {
    each.name: each
    for each in (
        Baseline("bigram", "Bigrams", "the more probable text under a bigram model of training captions"),
        Baseline("trigram", "Trigrams", "the more probable text under a trigram model of training captions"),
        Baseline("shorter", "Shorter wins", "the text with fewer words"),
        Baseline("bag_of_words", "Bag of words, at most", "the best without word order: texts of the same words tie"),
    )
}  # fmt: skip
_ORDERS = ("bigram", "trigram")

# Maps (right, wrong) rows of a table of texts to 1 if the right text is preferred, 0.5 for a tie, else 0.
Preference = Callable[[Int[np.ndarray, " pairs"], Int[np.ndarray, " pairs"]], Float[np.ndarray, " pairs"]]


@functools.lru_cache(maxsize=4)
def text_baselines(texts: tuple[str, ...], training_captions: tuple[str, ...] | None = None) -> dict[str, Preference]:
    """Return the baselines of a table of texts, by name. The last few tables are cached for further models.

    Args:
        texts: all texts that are compared.
        training_captions: captions to fit the n-gram models on; without them, there are no n-gram baselines.
    """
    words = [plain_words(text) for text in texts]
    preferences: dict[str, Preference] = {}
    if training_captions is not None:
        benchmark_texts = set(words)
        model = NgramModel([each for each in map(plain_words, training_captions) if each not in benchmark_texts])
        scores = np.array([model.log_probability(each) for each in words])
        for column, name in enumerate(_ORDERS):
            preferences[name] = _higher(scores[:, column])
    preferences["shorter"] = _higher(-np.array([len(each) for each in words], float))
    bags: dict[tuple[str, ...], int] = {}
    bag = np.array([bags.setdefault(tuple(sorted(each)), len(bags)) for each in words], int)
    preferences["bag_of_words"] = lambda right, wrong: np.where(bag[right] == bag[wrong], 0.5, 1.0)
    return preferences


def _higher(score: Float[np.ndarray, " texts"]) -> Preference:
    return lambda right, wrong: win_rate(score[right], score[wrong])


def win_rate(right: Float[np.ndarray, " pairs"], wrong: Float[np.ndarray, " pairs"]) -> Float[np.ndarray, " pairs"]:
    """Return 1 where the right text scores higher, 0.5 for a tie, else 0."""
    return ((right > wrong) + (right >= wrong).astype(float)) / 2


def preference_with_interval(
    preference: Sequence[Float[np.ndarray, " _pairs"]], group: Sequence[Int[np.ndarray, " _pairs"]]
) -> dict:
    """Return `{"preference": %, "interval": [low, high], "pairs": n}` of one baseline, averaged over seeds or parts.

    Args:
        preference: for each seed or part, the preference of each pair.
        group: for each seed or part, the image of each pair; intervals resample images.
    """
    counts = Counts.mean(
        [Counts.of_rows({PREFERENCE: each}, of_run, _METRICS) for each, of_run in zip(preference, group, strict=True)]
    )
    return {
        PREFERENCE: counts.value(PREFERENCE),
        "interval": counts.intervals()[PREFERENCE],
        "pairs": sum(map(len, preference)),
    }
