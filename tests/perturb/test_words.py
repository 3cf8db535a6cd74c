"""Split captions into words with their spans, and replace one word by another."""

import html

import numpy as np
import pytest

from rococo_jax.perturb.text.words import like_case, plain, replace_word, split_words


def texts(caption: str) -> list[str]:
    return [word.text for word in split_words(caption)]


@pytest.mark.parametrize(
    ("caption", "words"),
    [
        ("", []),
        ("  \t\n", []),
        ("...!?", []),
        ("A dog, on grass.", ["A", "dog", "on", "grass"]),
        ("a man's dogs' T-shirt", ["a", "man", "dogs", "T-shirt"]),
        ("DON’T o'clock IT’S it's", ["DON’T", "o'clock", "IT", "it"]),
        ("3.5 of 1,000, 2nd.", ["3.5", "of", "1,000", "2nd"]),
        ("x_y 5:50 a/b", ["x", "y", "5", "50", "a", "b"]),
        ("一只狗 dog ねこ", ["一", "只", "狗", "dog", "ね", "こ"]),
        ("👩🏽‍🚀 on 🏖️🇫🇷 ©", ["👩🏽‍🚀", "on", "🏖️", "🇫🇷"]),
        ("caf&eacute; &amp; AT&T &bogus;", ["café", "AT", "T", "bogus"]),
        ("&lt;b&gt;dog&#39;s&nbsp;tail", ["b", "dog", "tail"]),
        ("नमस्ते हिन्दी", ["नमस्ते", "हिन्दी"]),
    ],
)
def test_a_caption_is_split_into_the_expected_words(caption, words):
    assert texts(caption) == words


@pytest.mark.parametrize("caption", ["A man's &quot;T-shirt&quot;, caf&eacute;!", "一只狗 👩🏽‍🚀 x", "a&amp;b"])
def test_spans_of_words_contain_their_text_and_never_overlap(caption):
    end = 0
    for word in split_words(caption):
        assert end <= word.start < word.end
        assert html.unescape(caption[word.start : word.end]) == word.text
        end = word.end


def test_the_fast_path_for_ascii_finds_the_same_words():
    # Letters that decide something: digits, joins, the possessive s in both cases, an entity's start.
    letters = np.array([*"aBsS01'-.,' &#;S's", *map(chr, range(128))])
    rng = np.random.default_rng(0)
    places, lengths = rng.integers(0, len(letters), (10_000, 13)), rng.integers(1, 14, 10_000)
    places[::2] %= 18
    for some, length in zip(places, lengths, strict=True):
        text = "".join(letters[some[:length]])
        words = [(word.text, word.start + 2, word.end + 2) for word in split_words(text)]
        # A letter of another script takes the slow way.
        assert words == [(word.text, word.start, word.end) for word in split_words("狗 " + text)[1:]], text


def test_replacing_keeps_case_punctuation_and_other_occurrences():
    caption = "Dogs, dogs & DOGS' dog-house &amp; dogs."
    words = split_words(caption)
    assert [word.text for word in words] == ["Dogs", "dogs", "DOGS", "dog-house", "dogs"]
    assert replace_word(caption, words[0], "cats") == "Cats, dogs & DOGS' dog-house &amp; dogs."
    assert replace_word(caption, words[2], "cats") == "Dogs, dogs & CATS' dog-house &amp; dogs."
    assert replace_word(caption, words[4], "cats") == "Dogs, dogs & DOGS' dog-house &amp; cats."
    assert (like_case("A", "eagle"), like_case("dog", "Paris")) == ("Eagle", "Paris")


def test_words_are_equal_regardless_of_case_and_kind_of_apostrophe():
    assert plain("O’Clock") == plain("o'clock")
