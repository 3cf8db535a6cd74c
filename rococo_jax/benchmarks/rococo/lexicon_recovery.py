"""Recover concept groups from published altered captions: words that replaced each other form a group.

Counted from the captions: `same(a, b)`, how often b replaced a where the concept stays the same, and `different(a, b)`
where it changes. Words are grouped to maximise [ours]

    sum over pairs in one group of  same(a, b) - w different(a, b) - k(a) k(b) / 2m,      k(a) = sum_b same(a, b)

Newman's modularity (Phys. Rev. E 69, 066133) with changed concepts as negative evidence. Connected components do not
work: a few stray replacements join nearly all words. The maximum is searched as in Blondel et al. (J. Stat. Mech. 2008,
P10008): move words one by one to the best neighbouring group, then groups as if they were words; in alphabetical order,
so that the same captions give the same groups.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from rococo_jax.benchmarks.rococo.annotations import Annotation
from rococo_jax.benchmarks.rococo.caption_diff import pair_counts
from rococo_jax.errors import InputError
from rococo_jax.perturb.text.lexicon import Group, Lexicon, Noun
from rococo_jax.perturb.text.words import plural_of

Pairs = Mapping[tuple[str, str], int]
# w: a replaced word and its replacement rarely occur twice, so a pair of different concepts weighs as much as a pair of
# the same concept.
_WEIGHT_OF_DIFFERENT = 1.0
_LEAST_GROUP = 2


def recover_lexicon(
    same: Annotation, different: Annotation | None = None, danger: Annotation | None = None, name: str = "recovered"
) -> Lexicon:
    """Recover a lexicon from published files.

    Args:
        same: the variant whose replacements keep the concept.
        different: the one whose replacements change it.
        danger: the one that distinguishes persons, places, actions and things.

    Raises:
        InputError: no replaced word was found in `same`.
    """
    pairs = _count(same)
    if not pairs:
        raise InputError(same.source, "altered captions", "no single replaced word", "captions with one word replaced")
    groups = group_words(pairs, _count(different) if different else {})
    kinds = _kinds(_count(danger)) if danger else {}
    made = []
    for words in groups:
        if len(words) >= _LEAST_GROUP:
            heads = sorted(words, key=lambda word: (-sum(n for pair, n in pairs.items() if pair[0] == word), word))
            made.append(Group(heads[0], _vote(words, kinds), tuple(_nouns(words, heads[0]))))
    return Lexicon(made, name=name)


def group_words(same: Pairs, different: Pairs) -> list[list[str]]:
    """Groups of words, larger ones first; see the head of this file. Words of each in alphabetical order."""
    words = sorted({word for pair in same for word in pair})
    number = {word: index for index, word in enumerate(words)}
    weights: list[dict[int, float]] = [defaultdict(float) for _ in words]
    degrees = [0.0] * len(words)
    for (old, new), count in sorted(same.items()):
        a, b = number[old], number[new]
        if a != b:
            weights[a][b] += count
            weights[b][a] += count
            degrees[a] += count
            degrees[b] += count
    for (old, new), count in sorted(different.items()):
        if old in number and new in number and old != new:
            a, b = number[old], number[new]
            weights[a][b] -= _WEIGHT_OF_DIFFERENT * count
            weights[b][a] -= _WEIGHT_OF_DIFFERENT * count
    groups = [[index] for index in range(len(words))]
    total = sum(degrees)
    while True:
        labels = _move_one_by_one(weights, degrees, total)
        if len(set(labels)) == len(groups):
            break
        groups, weights, degrees = _merge(labels, groups, weights, degrees)
    return sorted(([words[index] for index in sorted(group)] for group in groups), key=lambda g: (-len(g), g))


def _move_one_by_one(weights: list[dict[int, float]], degrees: list[float], total: float) -> list[int]:
    """Label nodes: each moves to the neighbouring label of largest gain, until no node gains."""
    labels = list(range(len(weights)))
    sums = list(degrees)
    moved = True
    while moved:
        moved = False
        for node, neighbours in enumerate(weights):
            own = labels[node]
            sums[own] -= degrees[node]
            gains: dict[int, float] = defaultdict(float)
            for other, weight in neighbours.items():
                gains[labels[other]] += weight
            gains.setdefault(own, 0.0)

            def gain(label: int, gains=gains, node=node) -> float:
                return gains[label] - degrees[node] * sums[label] / total

            best = max(sorted(gains), key=gain)
            # A threshold above rounding errors, or two labels could swap forever.
            if gain(best) > gain(own) + 1e-9:
                labels[node], moved = best, True
            sums[labels[node]] += degrees[node]
    return labels


def _merge(labels: list[int], groups: list[list[int]], weights: list[dict[int, float]], degrees: list[float]):
    """Merge the nodes of each label into one node."""
    index = {label: place for place, label in enumerate(sorted(set(labels)))}
    merged_groups: list[list[int]] = [[] for _ in index]
    merged_weights: list[dict[int, float]] = [defaultdict(float) for _ in index]
    merged_degrees = [0.0] * len(index)
    for node, label in enumerate(labels):
        place = index[label]
        merged_groups[place] += groups[node]
        merged_degrees[place] += degrees[node]
        for other, weight in weights[node].items():
            if labels[other] != label:
                merged_weights[place][index[labels[other]]] += weight
    return merged_groups, merged_weights, merged_degrees


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
