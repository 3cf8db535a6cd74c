"""Two sets of altered captions over the same originals, beside each other: how alike are they?

Say a benchmark's published files, and what this project makes of the same captions. Captions are matched by image and
by their text; a caption is *comparable* where both sides replaced exactly one word of it (`recover_change`). Counted:

    same word          comparable captions in which both replaced the same word; of these, by the same word
    same concept       comparable captions whose two new words are nouns of one concept group, among those where the
                       lexicon knows both; and for each side, whether its new word is of the old word's group
    vocabulary         different new words of each side, and how many they share (Jaccard: shared / either)
    length, no-ops     words and characters of altered captions; those that say what their original says
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from rococo_jax.benchmarks.rococo.annotations import AlteredCaptions, AnnotationSet, normalise_caption
from rococo_jax.benchmarks.rococo.caption_diff import Change, recover_change
from rococo_jax.errors import InputError
from rococo_jax.perturb.text.lexicon import Lexicon
from rococo_jax.perturb.text.words import plain, split_words

EXAMPLES = 5


class _Pair(NamedTuple):
    """An original with its altered caption on either side, None where that side left it unaltered."""

    image: str
    original: str
    altered: tuple[str | None, str | None]


def compare_annotations(first: AnnotationSet, second: AnnotationSet, lexicon: Lexicon, source: object) -> dict:
    """What `rococo verify --against` reports, as a JSON value: variant -> figures; see the head of this file.

    Args:
        first, second: two folders of annotations.
        lexicon: says which nouns are of one concept.
        source: what an error calls the second set.

    Raises:
        InputError: the sets have no variant or no caption in common.
    """
    shared = [name for name in first.variants if name in second.variants]
    if not shared:
        found = ", ".join(second.variants) or "no variants"
        raise InputError(source, "variants", found, f"one of {', '.join(first.variants) or 'any, but there are none'}")
    report = {}
    for name in shared:
        pairs = list(_pairs(first.variants[name].items, second.variants[name].items))
        if not pairs:
            raise InputError(source, f"captions of {name}", "none of the same image and text", "captions in common")
        report[name] = _compare(pairs, lexicon)
    return report


def _pairs(first: Iterable[AlteredCaptions], second: Iterable[AlteredCaptions]) -> Iterable[_Pair]:
    """Captions of both; one that an image has twice is matched in order."""
    others = {item.image: item for item in second}
    for item in first:
        other = others.get(item.image)
        left = list(range(len(other.originals))) if other else []
        for original, altered in zip(item.originals, item.altered, strict=True):
            place = next((k for k in left if other.originals[k] == original), None)
            if place is not None:
                left.remove(place)
                yield _Pair(item.image, original, (altered, other.altered[place]))


def _compare(pairs: Sequence[_Pair], lexicon: Lexicon) -> dict[str, Any]:
    both = [pair for pair in pairs if None not in pair.altered]
    changes = [tuple(recover_change(pair.original, altered) for altered in pair.altered) for pair in both]
    comparable = [(pair, *change) for pair, change in zip(both, changes, strict=True) if None not in change]
    same_word = [each for each in comparable if each[1].word_index == each[2].word_index]
    concepts = [tuple(_concept(change.new, lexicon) for change in each[1:]) for each in comparable]
    known = [pair for pair in concepts if None not in pair]
    words = [{plain(each[side].new) for each in comparable} for side in (1, 2)]
    other_words = [_example(*each) for each in comparable if each[1].word_index != each[2].word_index]
    return {
        "captions": len(pairs),
        "altered_by_both": len(both),
        "altered_by_first_only": sum(pair.altered[0] is not None is pair.altered[1] for pair in pairs),
        "altered_by_second_only": sum(pair.altered[1] is not None is pair.altered[0] for pair in pairs),
        "comparable": len(comparable),
        "same_word": _share(len(same_word), len(comparable)),
        "same_replacement": _share(sum(plain(a.new) == plain(b.new) for _, a, b in same_word), len(same_word)),
        "same_concept": _share(sum(a == b for a, b in known), len(known)),
        "concept_kept": [_concept_kept([each[side] for each in comparable], lexicon) for side in (1, 2)],
        "vocabulary": {
            "words": [len(side) for side in words],
            "shared": len(words[0] & words[1]),
            "jaccard": _share(len(words[0] & words[1]), len(words[0] | words[1])),
        },
        "length": {
            "words": [_mean(len(split_words(pair.altered[side])) for pair in both) for side in (0, 1)],
            "characters": [_mean(len(pair.altered[side]) for pair in both) for side in (0, 1)],
            "original_words": _mean(len(split_words(pair.original)) for pair in both),
        },
        "no_ops": [
            sum(normalise_caption(pair.altered[side]) == normalise_caption(pair.original) for pair in both)
            for side in (0, 1)
        ],
        "examples": other_words[:EXAMPLES],
    }


def _concept(word: str, lexicon: Lexicon) -> str | None:
    noun = lexicon.find(word)
    return None if noun is None else noun.concept


def _concept_kept(changes: Sequence[Change], lexicon: Lexicon) -> dict[str, Any]:
    pairs = [(_concept(change.old, lexicon), _concept(change.new, lexicon)) for change in changes]
    known = [pair for pair in pairs if None not in pair]
    return _share(sum(old == new for old, new in known), len(known))


def _share(count: int, of: int) -> dict[str, Any]:
    """Percentage None where there is nothing to take a share of."""
    return {"count": count, "of": of, "percent": 100 * count / of if of else None}


def _mean(values: Iterable[int]) -> float | None:
    values = list(values)
    return sum(values) / len(values) if values else None


def _example(pair: _Pair, first: Change, second: Change) -> dict[str, Any]:
    return {"image": pair.image, "original": pair.original, "replaced": [first.old, second.old]}
