"""Bindings of captions: the parser against sentences that were parsed by hand, and the classes of items."""

import pytest

from rococo_jax.perturb.text.bindings import bindings_of, class_of
from rococo_jax.perturb.text.lexicon import shipped_lexicon

BY_HAND = {
    "a red dog behind a small tree": {("red", "dog"), ("small", "tree"), ("dog", "behind", "tree")},
    # Plurals count as their singular; letters in any case.
    "Two Black Dogs on old boats": {("black", "dog"), ("old", "boat"), ("dog", "on", "boat")},
    "people riding horses": {("person", "riding", "horse")},
    # Relations have one to three words without articles and adjectives; other forms of a verb are other relations.
    "a dog next to a cat": {("dog", "next to", "cat")},
    "a dog that is near a cat": {("dog", "that is near", "cat")},
    "a dog that is very near a cat": set(),
    "a man rides the horse": {("man", "rides", "horse")},
    # A number or a word that describes a place is part of the relation.
    "a dog behind two small trees": {("dog", "behind two", "tree"), ("small", "tree")},
    # Lists, commas and full stops end a relation.
    "two dogs and a cat, on the boat": set(),
    "a dog or a cat": set(),
    "a dog on a boat. A red bird": {("dog", "on", "boat"), ("red", "bird")},
    "a dog on a boat. Near it a bird": {("dog", "on", "boat")},
    # Neighbouring nouns alone relate two nouns.
    "a dog on a boat near a tree": {("dog", "on", "boat"), ("boat", "near", "tree")},
    "a baseball bat": set(),
    # Limits: no predicates, only the adjective before the noun, no words outside the lexicon, and "front" is a noun.
    "the dog is red": set(),
    "a red wooden chair": {("wooden", "chair")},
    "a red xylograph behind a dog": set(),
    "a dog in front of a cat": {("dog", "in", "front"), ("front", "of", "cat")},
    "ein roter Hund hinter einem Baum": set(),
    "": set(),
}


@pytest.mark.parametrize("caption", BY_HAND)
def test_bindings_are_those_that_were_found_by_hand(caption):
    assert bindings_of([caption], shipped_lexicon()) == BY_HAND[caption]


def test_bindings_of_several_captions_are_those_of_each():
    assert bindings_of(BY_HAND, shipped_lexicon()) == set().union(*BY_HAND.values())


CLASSES = {
    ("a red dog", "a blue bird"): "both_known",
    ("a red dog", "a blue dog"): "only_true_known",
    ("a cat behind a tree", "a tree behind a cat"): "only_false_known",
    ("a red cat", "a blue cat"): "none_known",
    # Bindings of both sides do not count: "blue cat" is not known.
    ("a red dog and a blue cat", "a blue bird and a blue cat"): "both_known",
    ("a dog", "a cat"): "",
    ("a red dog on a boat", "a red dog on a blue boat"): "",
    # All bindings of a side must be known.
    ("a red dog on a boat", "a blue bird on a sofa"): "only_true_known",
    # Of several texts, those of each: the wrong one has a binding of the second true one.
    (("a red dog", "a blue bird"), ("a blue bird", "a red cat")): "only_true_known",
    (("a red dog", "a red cat"), "a blue bird"): "only_false_known",
}


@pytest.mark.parametrize("texts", CLASSES)
def test_a_side_is_known_if_training_captions_have_all_of_its_own_bindings(texts):
    lexicon = shipped_lexicon()
    known = bindings_of(["a red dog on a boat", "a tree behind a cat", "a blue bird"], lexicon)
    true, false = ([side] if isinstance(side, str) else side for side in texts)
    assert class_of(true, false, known, lexicon) == CLASSES[texts]
