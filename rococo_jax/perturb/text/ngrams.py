"""Estimate the probability of a text by word n-grams of a corpus.

    P_1(w) = (c(w) + 1) / (N + V + 1)
    P_n(w | h) = l_n c(h w) / c(h) + (1 - l_n) P_{n-1}(w | shorter h)        P_{n-1} alone if h does not occur

Interpolation after Jelinek and Mercer (1980), l_2 = 0.6, l_3 = 0.5. Texts are padded with two starts and one end.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from rococo_jax.perturb.text.words import plain, split_words

Words = tuple[str, ...]
START, END = "<s>", "</s>"
_BIGRAM, _TRIGRAM = 0.6, 0.5


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
