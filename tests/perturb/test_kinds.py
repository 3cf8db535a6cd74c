"""Check alterations of all kinds by hand, and properties that all of them have."""

import collections

import pytest

from rococo_jax.perturb.text.kinds import KINDS, KindAlterer
from rococo_jax.perturb.text.lexicon import shipped_lexicon
from rococo_jax.perturb.text.words import plain, split_words
from tests.support.refusals import refused

pytestmark = pytest.mark.quick  # words, however the programs are compiled

LEXICON = shipped_lexicon()
CAPTIONS = (
    "A man with a hat riding a horse near two small dogs",
    "a red car and a white dog on a street.",
    "Two cats are sitting on a wooden bench &amp; an old chair",
    "A DOG ON THE BEACH.",
    "It is very, very nice!",
    "一只狗在海滩上",
    "",
)
# Of a kind and a caption all alterations that there are, or some that are not among them.
ALL = {
    ("order", "A dog behind a car"): {"A car behind a dog"},
    ("order", "a red car and a white dog"): {"a white car and a red dog"},
    ("order", "a man and a woman"): set(),
    ("order", "a small red dog"): set(),
    ("order", "An apple under a horse"): {"A horse under an apple"},
    ("negation", "The dogs are wet"): {"The dogs are not wet"},
    ("negation", "Men with a hat"): {"Men without a hat", "Men with no hat"},
    ("negation", "Men without a hat"): set(),
    ("count", "five tall men"): {f"{number} tall men" for number in ("two", "three", "four", "six")},
    ("count", "A dog"): {"Two dogs", "Three dogs", "Four dogs"},
    ("count", "a dog bowl"): set(),
    ("attribute", "an open book"): {"a closed book", "an empty book", "a full book"},
    ("attribute", "a dog"): set(),
    ("relation", "A cat above cars"): {f"A cat {word} cars" for word in
                                       ("on", "under", "behind", "beside", "inside", "below", "outside")},
    ("relation", "in front of houses"): set(),
}  # fmt: skip


def alter(kind: str, caption: str, others=(), **choices) -> list[str]:
    return [each.caption for each in KindAlterer(kind, LEXICON).alter(caption, [caption, *others], **choices)]


@pytest.mark.parametrize(("kind", "caption"), ALL)
def test_alterations_of_a_caption_match_a_list_written_by_hand(kind, caption):
    assert set(alter(kind, caption, count=99)) == ALL[kind, caption]


def test_an_addition_describes_a_noun_or_adds_another_noun():
    made = alter("addition", "A dog", ["a black cat"], count=999)
    assert {"A brown dog", "An old dog", "A dog and a horse", "A dog and an umbrella"} <= set(made)
    assert not {"A black dog", "A dog and a cat", "A dog and a dog"} & set(made)


@pytest.mark.parametrize("kind", KINDS)
def test_new_words_are_in_no_caption_of_the_image_and_nothing_is_lost(kind):
    for caption in CAPTIONS:
        others = [text for text in CAPTIONS if text != caption]
        before = {plain(word.text) for text in CAPTIONS for word in split_words(text)}
        own = collections.Counter(plain(word.text) for word in split_words(caption))
        for altered in alter(kind, caption, others, count=40):
            new = collections.Counter(plain(word.text) for word in split_words(altered)) - own
            assert altered != caption
            if kind in ("attribute", "relation"):
                assert set(new) - {"a", "an"} and not set(new) - {"a", "an"} & before
            if kind == "order":
                assert not set(new) - {"a", "an"}


@pytest.mark.parametrize("kind", KINDS)
def test_an_alteration_depends_only_on_its_draw_and_draws_differ(kind):
    caption = CAPTIONS[0] if kind != "order" else "A man with a hat near two small red dogs beside a boy with a kite"
    made = [tuple(alter(kind, caption, draw=draw)) for draw in range(12)]
    assert made == [tuple(alter(kind, caption, draw=draw)) for draw in range(12)]
    assert len(set(made)) > 2 and all(len(each) == 1 for each in made)


def test_an_unknown_kind_is_refused():
    refused("kind", KindAlterer, "noun", LEXICON)


def test_an_added_detail_is_not_a_synonym_of_one_in_the_captions():
    caption, others = "a dog on a rug", ["a mug near a poodle", "a large grey animal"]
    alterer = KindAlterer("addition", LEXICON)
    made = alterer.alter(caption, [caption, *others], count=500)
    added = {each.new.split()[-1] for each in made}
    assert added.isdisjoint({"gray", "grey", "large", "big", "huge", "dog"}) and "small" in added
    for noun in filter(None, map(LEXICON.find, sorted(added))):
        said = [LEXICON.find(word) for word in ("dog", "rug", "mug", "poodle", "animal")]
        assert all(LEXICON.alters(each, noun) for each in said if each is not None)
