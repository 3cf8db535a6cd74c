"""Find the bindings of captions, and which of them training captions contain [ours].

Two kinds of bindings are found, by the words of a lexicon:

    adjective, noun          an adjective of colour, size, age, material or state right before a noun
    noun, relation, noun     two neighbouring nouns with one to three words between them, articles and adjectives left
                             out, unless one of these is "and" or "or", or a comma or a full stop is between them

    "a red dog behind two small trees"   (red, dog), (dog, behind two, tree), (small, tree)

Nouns count in the singular, all other words as they are written, in lower case. The rules know no grammar: they do not
find "the dog is red" or the first adjective of "a red wooden chair", keep "rides" and "riding" apart, take any words
between two nouns for their relation, and see only nouns and adjectives of the lexicon, which is English; "front" is one
of its nouns, so "in front of" is two relations.

A text of an item is *known* if the training captions contain all bindings that no text of the item's other side has.
"""

from collections.abc import Collection, Iterable

from rococo_jax.perturb.text.kinds import Slot, find_slots
from rococo_jax.perturb.text.lexicon import Lexicon
from rococo_jax.perturb.text.words import plain, split_words

# Version of the rules above. It is raised, with a line in CHANGELOG.md, when a caption may have other bindings.
PARSER = 1
ADJECTIVES = ("colour", "size", "age", "material", "state")
CLASSES = ("both_known", "only_true_known", "only_false_known", "none_known")
BOTH_KNOWN, ONLY_TRUE_KNOWN, ONLY_FALSE_KNOWN, NONE_KNOWN = CLASSES
_ARTICLES, _LISTS = ("a", "an", "the"), ("and", "or")

# (adjective, noun) or (noun, relation, noun).
Binding = tuple[str, ...]


def bindings_of(captions: Iterable[str], lexicon: Lexicon) -> frozenset[Binding]:
    """Return the bindings of some captions.

    >>> from rococo_jax.perturb.text.lexicon import shipped_lexicon
    >>> sorted(bindings_of(["Two red dogs behind a tree"], shipped_lexicon()))
    [('dog', 'behind', 'tree'), ('red', 'dog')]
    """
    return frozenset(binding for caption in captions for binding in _bindings_of(caption, lexicon))


def _bindings_of(caption: str, lexicon: Lexicon) -> Iterable[Binding]:
    words = split_words(caption)
    texts = [plain(word.text) for word in words]
    slots = {slot.index: slot for slot in find_slots(texts, lexicon)}
    adjectives = {index for index, slot in slots.items() if slot.noun is None and slot.concept in ADJECTIVES}
    last: Slot | None = None
    for index, slot in slots.items():
        if slot.noun is None:
            continue
        if index - 1 in adjectives:
            yield texts[index - 1], slot.noun.name
        if last is not None and last.noun is not None:
            separators = caption[words[last.index].end : words[index].start]
            between = [
                texts[place]
                for place in range(last.index + 1, index)
                if texts[place] not in _ARTICLES and place not in adjectives
            ]
            if 1 <= len(between) <= 3 and not {*between} & {*_LISTS} and not {*separators} & {",", "."}:
                yield last.noun.name, " ".join(between), slot.noun.name
        last = slot


def class_of(true: Iterable[str], false: Iterable[str], known: Collection[Binding], lexicon: Lexicon) -> str:
    """Return the class of an item, given its true and false texts; empty if a side has no binding of its own."""
    of_true, of_false = bindings_of(true, lexicon), bindings_of(false, lexicon)
    own_true, own_false = of_true - of_false, of_false - of_true
    if not (own_true and own_false):
        return ""
    is_true_known, is_false_known = own_true <= known, own_false <= known
    if is_true_known:
        return BOTH_KNOWN if is_false_known else ONLY_TRUE_KNOWN
    return ONLY_FALSE_KNOWN if is_false_known else NONE_KNOWN
