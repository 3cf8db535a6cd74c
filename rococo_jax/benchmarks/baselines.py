"""Text-only baselines: scorers that choose between a true and an altered text without seeing the image.

    bigram, trigram   prefer the higher log probability under an n-gram model of training captions
    shorter           prefers the text with fewer words
    bag_of_words      upper bound of every model that ignores word order: texts with the same words tie

Preference is in percent; ties count one half, as in `metrics.grounding`. Training captions that occur word for word
among a benchmark's own texts are left out, so that no baseline has seen the answers.

The n-gram models estimate the probability of a text by word n-grams of a corpus:

    P_1(w) = (c(w) + 1) / (N + V + 1)
    P_n(w | h) = l_n c(h w) / c(h) + (1 - l_n) P_{n-1}(w | shorter h)        P_{n-1} alone if h does not occur

Interpolation after Jelinek and Mercer (1980), l_2 = 0.6, l_3 = 0.5. Texts are padded with two starts and one end.
"""

import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from jaxtyping import Float, Int

from rococo_jax.metrics.counts import Counts
from rococo_jax.metrics.metric import Metric, share
from rococo_jax.perturb.text.words import plain, split_words

Words = tuple[str, ...]
START, END = "<s>", "</s>"
_BIGRAM, _TRIGRAM = 0.6, 0.5
PREFERENCE = "preference"
_METRICS = (
    Metric(PREFERENCE, "Preference", "higher", "%", "the original is preferred; ties count one half", "ours",
           share(PREFERENCE)),
)  # fmt: skip


def plain_words(text: str) -> Words:
    """Return the words of a text in plain form, in order."""
    return tuple(plain(word.text) for word in split_words(text))


def count_ngrams(texts: Iterable[Words]) -> Counter:
    """Count the n-grams of 1 to 3 words; the key `()` is the number of words."""
    counts: Counter = Counter()
    for words in texts:
        padded = (START, START, *words, END)
        counts.update(padded[i : i + n] for n in (1, 2, 3) for i in range(max(0, 3 - n), len(padded) - n + 1))
        # Histories at the start of a text: each occurs once, and no word precedes it.
        counts[START, START] += 1
        counts[START,] += 1
        counts[()] += len(words) + 1
    return counts


class NgramModel:
    """Interpolated word model of order 2 and 3."""

    def __init__(self, texts: Iterable[Words]):
        self.counts = count_ngrams(texts)
        self.vocabulary = sum(len(ngram) == 1 and ngram != (START,) for ngram in self.counts)

    def log_probability(self, words: Sequence[str]) -> tuple[float, float]:
        """Return the natural logarithms of the text's probability, of order 2 and of order 3."""
        padded = (START, START, *words, END)
        count = self.counts
        total = count[()] + self.vocabulary + 1
        second = third = 0.0
        for end in range(2, len(padded)):
            bigram, trigram = padded[end - 1 : end + 1], padded[end - 2 : end + 1]
            probability = (count[bigram[1:]] + 1) / total
            if history_count := count[bigram[:1]]:
                probability = _BIGRAM * count[bigram] / history_count + (1 - _BIGRAM) * probability
            second += math.log(probability)
            if history_count := count[trigram[:2]]:
                probability = _TRIGRAM * count[trigram] / history_count + (1 - _TRIGRAM) * probability
            third += math.log(probability)
        return second, third


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
