"""n-gram models against the formula restated."""

import math

import numpy as np

from rococo_jax.benchmarks.baselines import NgramModel, plain_words


def restated(texts, words, order):
    """Log probability by the formula at the head of `benchmarks/baselines.py`, each conditional on its own."""
    padded = [["<s>", "<s>", *text, "</s>"] for text in texts]
    tokens = [token for text in padded for token in text[2:]]

    def probability(history, word, depth):
        if depth == 1:
            return (tokens.count(word) + 1) / (len(tokens) + len(set(tokens)) + 1)
        lower = probability(history[1:], word, depth - 1)
        followed = [text[i] for text in padded for i in range(2, len(text)) if text[i - depth + 1 : i] == list(history)]
        share = {2: 0.6, 3: 0.5}[depth]
        return share * followed.count(word) / len(followed) + (1 - share) * lower if followed else lower

    text = ["<s>", "<s>", *words, "</s>"]
    return sum(math.log(probability(text[i - order + 1 : i], text[i], order)) for i in range(2, len(text)))


def test_the_ngram_model_follows_its_formula():
    texts = [plain_words(text) for text in ("a cat on a mat", "a dog on a mat", "the cat sat", "a cat on a mat")]
    words = ("a", "cat", "on", "the", "dog")
    expected = [restated(texts, words, 2), restated(texts, words, 3)]
    np.testing.assert_allclose(NgramModel(texts).log_probability(words), expected, rtol=1e-12)
