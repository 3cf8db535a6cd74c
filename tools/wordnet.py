"""WordNet's nouns, read from a folder of its database files.

Needed only to rebuild the shipped lexicon (`make_lexicon.py`); nothing at run time reads WordNet. The files are those
of WordNet 3.x as Princeton and Debian (`wordnet-base`) ship them; their format is the manual page wndb(5WN).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from rococo_jax.errors import InputError

# lexnames(5WN): the lexicographer files of nouns, by number.
LEXICOGRAPHER_FILES = {
    3: "tops", 4: "act", 5: "animal", 6: "artifact", 7: "attribute", 8: "body", 9: "cognition", 10: "communication",
    11: "event", 12: "feeling", 13: "food", 14: "group", 15: "location", 16: "motive", 17: "object", 18: "person",
    19: "phenomenon", 20: "plant", 21: "possession", 22: "process", 23: "quantity", 24: "relation", 25: "shape",
    26: "state", 27: "substance", 28: "time",
}  # fmt: skip


@dataclass(frozen=True)
class Synset:
    """A set of nouns of one meaning: key, lexicographer file, words, and the keys of more general synsets."""

    key: str
    file: str
    words: tuple[str, ...]
    hypernyms: tuple[str, ...]


class WordNetNouns:
    """The nouns of a WordNet database folder.

    Raises:
        InputError: the folder does not hold `index.noun`, `data.noun` and `noun.exc`.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        for name in ("index.noun", "data.noun", "noun.exc"):
            if not (folder / name).is_file():
                raise InputError(folder, name, "nothing there", "the database files of WordNet 3.x")

    @cached_property
    def senses(self) -> dict[str, tuple[str, ...]]:
        """Noun -> keys of its synsets, most frequent first."""
        senses = {}
        for fields in self._lines("index.noun"):
            pointers = int(fields[3])
            senses[fields[0].replace("_", " ")] = tuple(fields[6 + pointers :])
        return senses

    @cached_property
    def synsets(self) -> dict[str, Synset]:
        """Key -> synset."""
        synsets = {}
        for fields in self._lines("data.noun"):
            count = int(fields[3], 16)
            words = tuple(word.replace("_", " ").lower() for word in fields[4 : 4 + 2 * count : 2])
            pointers = fields[5 + 2 * count :]
            hypernyms = tuple(key for sign, key in zip(pointers[::4], pointers[1::4], strict=False) if sign[0] == "@")
            synsets[fields[0]] = Synset(fields[0], LEXICOGRAPHER_FILES[int(fields[1])], words, hypernyms)
        return synsets

    @cached_property
    def exceptions(self) -> dict[str, str]:
        """Irregular plural -> singular ("men" -> "man")."""
        return {fields[0]: fields[1] for fields in self._lines("noun.exc")}

    def sense(self, noun: str, number: int = 1) -> Synset:
        """The `number`-th most frequent meaning of a noun, counted from 1."""
        return self.synsets[self.senses[noun][number - 1]]

    def ancestors(self, synset: Synset) -> Iterator[Synset]:
        """More general synsets, nearest first, the synset itself at the head."""
        queue, seen = [synset], set()
        while queue:
            current = queue.pop(0)
            if current.key not in seen:
                seen.add(current.key)
                yield current
                queue.extend(self.synsets[key] for key in current.hypernyms)

    def _lines(self, name: str) -> Iterator[list[str]]:
        with (self.folder / name).open(encoding="ascii", errors="strict") as file:
            for line in file:
                # The licence stands at the head of each file in lines that begin with two spaces.
                if not line.startswith("  "):
                    yield line.split(" | ")[0].split()
