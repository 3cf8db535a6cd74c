"""Recover the replaced word of altered captions, and compare two sets of altered captions over the same originals.

The published RoCOCO files hold captions, not changes: lower-cased, split at punctuation and clitics ("someone 's"),
without the final stop. `recover_change` splits both captions into words; if they differ in exactly one word, that is
the change. An altered caption that replaced every occurrence of a word, hit a substring ("baseweapon"), corrected the
spelling of another word or equals its original has no single change, and gives None.

`compare_annotations` compares, say, published files with this project's alterations of the same captions. Captions are
matched by image and text; a caption is *comparable* if both sides replaced exactly one word of it. Counted:

    same word          comparable captions in which both replaced the same word; of these, by the same word
    same concept       comparable captions whose two new words are nouns of one concept group, among those where the
                       lexicon knows both; and for each side, whether its new word is of the old word's group
    vocabulary         different new words of each side, and how many they share (Jaccard: shared / either)
    length, no-ops     words and characters of altered captions; altered captions that equal their original

`recover_lexicon` makes concept groups of words that replaced each other. Words are linked by how often one replaced the
other where the concept stays the same, less how often it did where the concept changes, and grouped by Louvain's search
for modularity (Blondel et al., J. Stat. Mech. 2008, P10008; networkx). Connected components do not work: a few stray
replacements join nearly all words.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import regex

from rococo_jax.benchmarks.rococo.annotations import AlteredCaptions, Annotation, AnnotationSet, normalise_caption
from rococo_jax.errors import InputError
from rococo_jax.perturb.text.lexicon import Group, Lexicon, Noun
from rococo_jax.perturb.text.words import plain, plural_of, split_words

EXAMPLES = 5
_SPLIT_CLITIC = regex.compile(r"\s+(?=(?:n['’]t|['’](?:s|re|ve|ll|d|m))(?!\w))", regex.IGNORECASE)
# The only replacement of two words, misspelt as published and as corrected here.
_TWO_WORDS = ("commiting crime", "committing crime")


class Change(NamedTuple):
    """One word of a caption replaced.

    `word_index` is its number in the original (as `split_words` counts); `old` and `new` are as written.
    """

    word_index: int
    old: str
    new: str


def recover_change(original: str, altered: str) -> Change | None:
    """The single word in which two captions differ, ignoring case and punctuation; None if there is none.

    >>> recover_change("A man's dog.", "a queen 's dog")
    Change(word_index=1, old='man', new='queen')
    """
    old = [word.text for word in split_words(original)]
    new = _words_of_altered(altered)
    if len(old) != len(new):
        return None
    different = [index for index, pair in enumerate(zip(old, new, strict=True)) if plain(pair[0]) != plain(pair[1])]
    if len(different) != 1:
        return None
    index = different[0]
    return Change(index, old[index], new[index])


def _words_of_altered(altered: str) -> list[str]:
    for two in _TWO_WORDS:
        altered = altered.replace(two, two.replace(" ", "\u2011"))
    return [word.text.replace("\u2011", " ") for word in split_words(_SPLIT_CLITIC.sub("", altered))]


def common_change(original: str, altered: Mapping[str, str | None]) -> tuple[int, dict[str, Change]] | None:
    """The word's index and variant -> change, if every variant replaced exactly one word and all the same one, else
    None.
    """
    changes = {
        variant: recover_change(original, caption) for variant, caption in altered.items() if caption is not None
    }
    if len(changes) < len(altered) or any(change is None for change in changes.values()):
        return None
    indices = {change.word_index for change in changes.values()}
    return (indices.pop(), changes) if len(indices) == 1 else None


def pair_counts(originals: Sequence[str], altered: Sequence[str | None]) -> dict[tuple[str, str], int]:
    """Count replacements of words: (old, new) -> count, words in `plain` form."""
    counts: dict[tuple[str, str], int] = {}
    for original, caption in zip(originals, altered, strict=True):
        change = None if caption is None else recover_change(original, caption)
        if change is not None:
            pair = (plain(change.old), plain(change.new))
            counts[pair] = counts.get(pair, 0) + 1
    return counts


class _Pair(NamedTuple):
    """An original with its altered caption on each side, None where a side left it unaltered."""

    image: str
    original: str
    altered: tuple[str | None, str | None]


def compare_annotations(first: AnnotationSet, second: AnnotationSet, lexicon: Lexicon, source: object) -> dict:
    """Compare two sets of annotations: variant -> figures, a JSON value; see the head of this file.

    Raises InputError, which names `source` for the second set, where they have no variant or no caption in common.
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
    """Captions of both sets; a caption that an image has twice is matched in order."""
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
    other_words = [
        {"image": pair.image, "original": pair.original, "replaced": [one.old, other.old]}
        for pair, one, other in comparable
        if one.word_index != other.word_index
    ]
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
    """`percent` is None where `of` is 0."""
    return {"count": count, "of": of, "percent": 100 * count / of if of else None}


def _mean(values: Iterable[int]) -> float | None:
    values = list(values)
    return sum(values) / len(values) if values else None


Pairs = Mapping[tuple[str, str], int]
# Above 1, the plain modularity, groups are smaller: fewer replacements of another concept fall into one group.
_RESOLUTION = 2.0
_LEAST_GROUP = 2


def recover_lexicon(same: Annotation, different: Annotation | None = None, danger: Annotation | None = None) -> Lexicon:
    """A lexicon from published files: `same` keeps the concept, `different` changes it, `danger` tells the kinds.

    Raises InputError: no single replaced word in `same`, or networkx is not installed.
    """
    pairs = _count(same)
    if not pairs:
        raise InputError(same.source, "altered captions", "no single replaced word", "captions with one word replaced")
    kinds = _kinds(_count(danger)) if danger else {}
    groups = []
    for words in group_words(pairs, _count(different) if different else {}):
        if len(words) >= _LEAST_GROUP:
            head = min(words, key=lambda word: (-sum(n for pair, n in pairs.items() if pair[0] == word), word))
            groups.append(Group(head, _vote(words, kinds), tuple(_nouns(words, head))))
    return Lexicon(groups, name="recovered")


def group_words(same: Pairs, different: Pairs) -> list[list[str]]:
    """Groups of words, larger ones first; words of each in alphabetical order."""
    try:
        import networkx
    except ImportError:
        wanted = "pip install 'rococo-jax[lexicon]'"
        raise InputError("lexicon", "networkx", "not installed", wanted) from None
    links: dict[tuple[str, str], int] = defaultdict(int)
    for sign, pairs in ((1, same), (-1, different)):
        for (old, new), count in pairs.items():
            if old != new:
                links[min(old, new), max(old, new)] += sign * count
    graph = networkx.Graph()
    graph.add_nodes_from(sorted({word for pair in same for word in pair}))
    graph.add_weighted_edges_from(
        (*pair, count) for pair, count in sorted(links.items()) if count > 0 and len({*pair}) > 1
    )
    groups = networkx.community.louvain_communities(graph, resolution=_RESOLUTION, seed=0)
    return sorted(map(sorted, groups), key=lambda group: (-len(group), group))


def _count(annotation: Annotation) -> dict[tuple[str, str], int]:
    total: dict[tuple[str, str], int] = defaultdict(int)
    for item in annotation.items:
        for pair, count in pair_counts(item.originals, item.altered).items():
            total[pair] += count
    return dict(total)


def _kinds(danger: Pairs) -> dict[str, dict[str, int]]:
    """Word -> kind -> how often the danger variant replaced it as that kind."""
    kind_of = {"criminal": "person", "minefield": "place", "weapon": "thing"}
    kinds: dict[str, dict[str, int]] = {}
    for (old, new), count in danger.items():
        kind = "action" if new.endswith(" crime") else kind_of.get(new)
        if kind is not None:
            votes = kinds.setdefault(old, {})
            votes[kind] = votes.get(kind, 0) + count
    return kinds


def _vote(words: Iterable[str], kinds: Mapping[str, Mapping[str, int]]) -> str:
    votes: dict[str, int] = defaultdict(int)
    for word in words:
        for kind, count in kinds.get(word, {}).items():
            votes[kind] += count
    return max(sorted(votes), key=votes.__getitem__) if votes else "thing"


def _nouns(words: list[str], concept: str) -> list[Noun]:
    """Words with their plurals where both occur; a plural alone is a noun without singular."""
    present = set(words)
    plurals = {plural_of(word) for word in words if word.isascii()} & present
    nouns = []
    for word in words:
        plural = plural_of(word) if word.isascii() else None
        if plural in present and plural != word:
            nouns.append(Noun(word, plural, concept))
        elif word not in plurals:
            is_plural = word.endswith("s") and not word.endswith("ss")
            nouns.append(Noun(None, word, concept) if is_plural else Noun(word, None, concept))
    return nouns
