"""Searches: in which order the altered captions of a query are scored.

A search is a generator: it yields candidates and up to how many changes it has tried *all* altered captions before, is
sent the margin of each candidate, and returns the latter number at its end. So many queries are searched side by side,
and their candidates are encoded together. The margin is the goal's: the query is fooled where it is 0 or more.

    exhaustive   all altered captions with one change, then all with two, ...
    beam         all with one change; of each caption the best `width` are changed again, and so on
    greedy       words in the order of their influence on the margin; the best change of each word is kept, as in
                 TextFooler (Jin et al., arXiv 1907.11932)

The order does not depend on the budget, so a larger budget tries the same candidates first: what it finds includes what
a smaller one finds.
"""

import itertools
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

import numpy as np

from rococo_jax.attacks.changes import Candidate, Change, Space, first_word_of
from rococo_jax.perturb.text.influence import without_word
from rococo_jax.perturb.text.words import split_words

Search = Generator[tuple[list[Candidate], int], np.ndarray, int]
# Candidates of a query that are scored together: at most, and at first if a query ends with its first success.
LARGEST_BLOCK, FIRST_BLOCK = 1024, 16


def exhaustive(space: Space, count: int, width: int, block_size: int) -> Search:
    """Score all altered captions with up to `count` changes; `width` is not used."""
    for changes in range(1, count + 1):
        for block in _blocks(space.combinations(changes), block_size):
            yield block, changes - 1
    return count


def beam(space: Space, count: int, width: int, block_size: int) -> Search:
    """Score all altered captions with one change, then all further changes of the best `width` of each caption."""
    frontier: Iterable[Candidate] = space.combinations(1)
    complete, is_complete = 0, True
    for _ in range(count):
        scored: list[tuple[float, Candidate]] = []
        for block in _blocks(frontier, block_size):
            margins = yield block, complete
            scored.extend(zip(margins.tolist(), block, strict=True))
        complete += is_complete
        best = _best_of_each_caption(scored, width)
        is_complete = is_complete and len(best) == len(scored)
        frontier = itertools.chain.from_iterable(map(space.extend, best))
    return complete


def greedy(space: Space, count: int, width: int, block_size: int) -> Search:
    """Change the words whose removal raises the margin most, one after the other, each in the best way."""
    probes: list[Candidate] = []
    changes_of_word: dict[int, list[Change]] = {}
    for number, caption in enumerate(space.captions):
        words = split_words(caption)
        by_word: dict[int, list[Change]] = {}
        for change in space.changes[number]:
            by_word.setdefault(first_word_of(change, words), []).append(change)
        for index, of_word in sorted(by_word.items()):
            changes_of_word[len(probes)] = of_word
            probes.append(Candidate(number, (), without_word(caption, words[index]), is_probe=True))
    if not probes:
        return count
    margins = yield probes, 0
    ordered: dict[int, list[list[Change]]] = {}
    for probe in np.argsort(-margins, kind="stable").tolist():
        ordered.setdefault(probes[probe].caption, []).append(changes_of_word[probe])
    current = {number: Candidate(number, (), space.captions[number]) for number in ordered}
    for step in range(count):
        words_left = [number for number in ordered if step < len(ordered[number])]
        block = [each for number in words_left for each in space.extend(current[number], ordered[number][step])]
        if block:
            margins = yield block, 0
            best = _best_of_each_caption(list(zip(margins.tolist(), block, strict=True)), 1)
            current |= {candidate.caption: candidate for candidate in best}
    return 0


SEARCHES: dict[str, Callable[[Space, int, int, int], Search]] = {
    "exhaustive": exhaustive,
    "beam": beam,
    "greedy": greedy,
}


def _best_of_each_caption(scored: Sequence[tuple[float, Candidate]], count: int) -> list[Candidate]:
    """Return the candidates of the highest margins of each caption; ties go to the first."""
    by_caption: dict[int, list[Candidate]] = {}
    for row in sorted(range(len(scored)), key=lambda row: (-scored[row][0], row)):
        by_caption.setdefault(scored[row][1].caption, []).append(scored[row][1])
    return [candidate for candidates in by_caption.values() for candidate in candidates[:count]]


def _blocks(candidates: Iterable[Candidate], size: int) -> Iterator[list[Candidate]]:
    """Yield blocks of `size` candidates, each twice as large as the one before, up to `LARGEST_BLOCK`."""
    candidates = iter(candidates)
    while block := list(itertools.islice(candidates, size)):
        yield block
        size = min(2 * size, LARGEST_BLOCK)
