"""Word n-gram models of a corpus.

    P_1(w) = (c(w) + 1) / (N + V + 1)
    P_n(w | h) = l_n c(h w) / c(h) + (1 - l_n) P_{n-1}(w | shorter h)        P_{n-1} alone where h was not seen

Interpolation after Jelinek and Mercer (1980), l_2 = 0.6, l_3 = 0.5. Texts are padded with two starts and one end.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from rococo_jax.perturb.text.words import plain, split_words

Words = tuple[str, ...]
START, END = "<s>", "</s>"
_BIGRAM, _TRIGRAM = 0.6, 0.5


def words_of(text: str) -> Words:
    """The words of a text in plain form."""
    return tuple(plain(word.text) for word in split_words(text))


def count_ngrams(texts: Iterable[Words]) -> Counter:
    """Counts of the n-grams of 1 to 3 words; `()` counts the words."""
    counts: Counter = Counter()
    for words in texts:
        padded = (START, START, *words, END)
        counts.update(padded[i : i + n] for n in (1, 2, 3) for i in range(max(0, 3 - n), len(padded) - n + 1))
        # Histories that begin a text, which are counted once each and predict nothing.
        counts[START, START] += 1
        counts[START,] += 1
        counts[()] += len(words) + 1
    return counts


class NgramModel:
    """Interpolated word models of order 2 and 3."""

    def __init__(self, texts: Iterable[Words]):
        self.counts = count_ngrams(texts)
        self.vocabulary = sum(len(ngram) == 1 and ngram != (START,) for ngram in self.counts)

    def log_probability(self, words: Sequence[str]) -> tuple[float, float]:
        """Natural logarithm of the text's probability, order 2 and order 3."""
        padded = (START, START, *words, END)
        every = self.counts.get
        total = every((), 0) + self.vocabulary + 1
        second = third = 0.0
        for place in range(2, len(padded)):
            two, three = padded[place - 1 : place + 1], padded[place - 2 : place + 1]
            probability = (every(two[1:], 0) + 1) / total
            seen = every(two[:1], 0)
            if seen:
                probability = _BIGRAM * every(two, 0) / seen + (1 - _BIGRAM) * probability
            second += math.log(probability)
            seen = every(three[:2], 0)
            if seen:
                probability = _TRIGRAM * every(three, 0) / seen + (1 - _TRIGRAM) * probability
            third += math.log(probability)
        return second, third
