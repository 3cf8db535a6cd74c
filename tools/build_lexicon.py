"""Build the shipped lexicon: nouns that are common in captions, in the concept groups of WordNet.

    python tools/build_lexicon.py --wordnet DIR --captions FILE [FILE ...] --out FILE

`--wordnet` is the folder of WordNet 3.0's database files (Debian's package `wordnet-base`). `--captions` are Karpathy
files; they only decide which nouns are common enough (a word counts if a part-of-speech tagger usually labels it a
noun), and no caption is stored. Do not use captions of a benchmark. The script needs the packages `textblob` (tagger)
and `wordfreq` (usage of plurals). WordNet is not read at run time.

`lexicon.toml` assigns nouns to concepts. Nouns without a concept are left out: colours, quantities, words about the
picture itself, attributes and other abstractions, since replacing "view" or "number" does not change what an image
shows.
"""

import argparse
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from rococo_jax.errors import InputError
from rococo_jax.perturb.text.words import PLURAL_ONLY, plain, plural_of, split_words
from rococo_jax.storage import read_json, write_json

_TABLES = tomllib.loads(Path(__file__).with_name("lexicon.toml").read_text(encoding="utf-8"))
# Concept -> kind of its nouns, and its WordNet meanings (noun, number of the sense).
CONCEPTS = {
    concept: (each["kind"], tuple((text[:-2], int(text[-1])) for text in each["meanings"]))
    for concept, each in _TABLES["concepts"].items()
}
OTHER_MEANING = {
    noun: concept for concept, each in _TABLES["concepts"].items() for noun in each.get("other_meaning", "").split()
}
LEFT_OUT = tuple(_TABLES["left_out"].split())
_MIN_COUNT, _MIN_NOUN_SHARE, _MIN_GROUP = 3, 0.5, 4
# "waters" is 8 % as frequent as "water", "snows" 2 %, "rices" 0.2 %.
_MIN_PLURAL_SHARE = 0.03
# Number of a noun's meanings, most frequent first, whose hypernyms count.
_MEANINGS = 3


@dataclass(frozen=True)
class Synset:
    """Nouns of one meaning: key, words, and the keys of more general synsets."""

    key: str
    words: tuple[str, ...]
    hypernyms: tuple[str, ...]


class WordNetNouns:
    """The nouns of a folder of WordNet 3.x database files; their format is the manual page wndb(5WN).

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
        """The keys of the synsets of each noun, most frequent first."""
        senses = {}
        for fields in self._lines("index.noun"):
            pointers = int(fields[3])
            senses[fields[0].replace("_", " ")] = tuple(fields[6 + pointers :])
        return senses

    @cached_property
    def synsets(self) -> dict[str, Synset]:
        """All synsets by key."""
        synsets = {}
        for fields in self._lines("data.noun"):
            count = int(fields[3], 16)
            words = tuple(word.replace("_", " ").lower() for word in fields[4 : 4 + 2 * count : 2])
            pointers = fields[5 + 2 * count :]
            hypernyms = tuple(key for sign, key in zip(pointers[::4], pointers[1::4], strict=False) if sign[0] == "@")
            synsets[fields[0]] = Synset(fields[0], words, hypernyms)
        return synsets

    @cached_property
    def exceptions(self) -> dict[str, str]:
        """The singular of each irregular plural ("men" -> "man")."""
        return {fields[0]: fields[1] for fields in self._lines("noun.exc")}

    def sense(self, noun: str, number: int = 1) -> Synset:
        """Return the `number`-th most frequent meaning of a noun, counted from 1."""
        return self.synsets[self.senses[noun][number - 1]]

    def ancestors(self, synset: Synset) -> Iterator[Synset]:
        """Yield the synset, then more general ones, nearest first."""
        queue, visited = [synset], set()
        while queue:
            current = queue.pop(0)
            if current.key not in visited:
                visited.add(current.key)
                yield current
                queue.extend(self.synsets[key] for key in current.hypernyms)

    def _lines(self, name: str) -> Iterator[list[str]]:
        with (self.folder / name).open(encoding="ascii", errors="strict") as file:
            for line in file:
                # The licence is at the head of each file, in lines that begin with two spaces.
                if not line.startswith("  "):
                    yield line.split(" | ")[0].split()


def count_nouns(captions: Iterable[str]) -> dict[str, int]:
    """Return the number of occurrences of each word that a tagger usually labels a noun."""
    from textblob.en import tag

    nouns, words = Counter(), Counter()
    for caption in captions:
        text = " ".join(word.text for word in split_words(caption))
        for word, part_of_speech in tag(text, tokenize=False):
            words[plain(word)] += 1
            nouns[plain(word)] += part_of_speech.startswith("NN")
    listed = OTHER_MEANING.keys() | {plural_of(noun) for noun in OTHER_MEANING}
    return {
        word: count
        for word, count in words.items()
        if word in listed or (nouns[word] and nouns[word] >= _MIN_NOUN_SHARE * count)
    }


def singular_of(word: str, counts: Mapping[str, int], wordnet: WordNetNouns) -> str | None:
    """Return the noun in WordNet of which a word is a form, or None.

    A word is a plural (by WordNet's exceptions and rules of detachment, morphy(7WN)) if the captions contain its
    singular as well, since WordNet lists many plurals as separate nouns ("steps", "hands").
    """
    if word in PLURAL_ONLY:
        return word if word in wordnet.senses else None
    exception = wordnet.exceptions.get(word)
    if exception in counts:
        return exception
    for plural, singular in _DETACHMENTS:
        stem = word.removesuffix(plural) + singular
        if word.endswith(plural) and not word.endswith("ss") and stem in wordnet.senses and stem in counts:
            return stem
    return word if word in wordnet.senses else None


_DETACHMENTS = (
    ("s", ""),
    ("ses", "s"),
    ("xes", "x"),
    ("zes", "z"),
    ("ches", "ch"),
    ("shes", "sh"),
    ("men", "man"),
    ("ies", "y"),
)


def concept_of(noun: str, wordnet: WordNetNouns, meanings: dict[str, str]) -> str | None:
    """Return the concept of the nearest listed meaning above the noun's most frequent one."""
    if noun in OTHER_MEANING:
        return OTHER_MEANING[noun]
    return next((meanings[s.key] for s in wordnet.ancestors(wordnet.sense(noun)) if s.key in meanings), None)


def make_lexicon(wordnet: WordNetNouns, captions: Iterable[str]) -> dict:
    """Return the lexicon in the form that `rococo_jax.perturb.text.lexicon.Lexicon.from_json` reads."""
    occurrences = count_nouns(captions)
    meanings: dict[str, str] = {}
    for concept, (_, names) in CONCEPTS.items():
        for noun, number in names:
            meanings.setdefault(wordnet.sense(noun, number).key, concept)
    counts: Counter[str] = Counter()
    for word, count in occurrences.items():
        singular = (
            singular_of(word, occurrences, wordnet) if len(word) > 1 and word.isascii() and word.isalpha() else None
        )
        if singular is not None and singular not in LEFT_OUT:
            counts[singular] += count
    groups = defaultdict(dict)
    for noun in sorted(noun for noun, count in counts.items() if count >= _MIN_COUNT):
        concept = concept_of(noun, wordnet, meanings)
        if concept is not None:
            plural = plural_of(noun)
            groups[concept][noun] = plural if _is_used(plural, noun) else None
    nouns = {noun for members in groups.values() for noun in members}
    return {
        "format": "rococo_jax.lexicon",
        "version": 1,
        "made_by": "python tools/build_lexicon.py",
        "source": "WordNet 3.0, Princeton University",
        "licence": "the WordNet licence: see the file beside this one",
        "groups": [
            {
                "concept": concept,
                "kind": kind,
                "nouns": {noun: plural for noun, plural in groups[concept].items() if noun not in PLURAL_ONLY},
                "plural_only": [noun for noun in groups[concept] if noun in PLURAL_ONLY],
            }
            for concept, (kind, _) in CONCEPTS.items()
            if len(groups[concept]) >= _MIN_GROUP
        ],
        "synonyms": _synonyms(nouns, wordnet),
        "more_general": _more_general(nouns, wordnet),
    }


def _is_used(plural: str, singular: str) -> bool:
    """Return whether the plural of a noun is in use ("rooms", not "rices"), by word frequencies of English text."""
    from wordfreq import word_frequency

    return word_frequency(plural, "en") > _MIN_PLURAL_SHARE * word_frequency(singular, "en")


def _synonyms(nouns: set[str], wordnet: WordNetNouns) -> list[list[str]]:
    """Return groups of nouns that share a synset in any of their meanings."""
    sets = {tuple(sorted(nouns.intersection(synset.words))) for synset in wordnet.synsets.values()}
    return [list(words) for words in sorted(sets) if len(words) > 1]


def _more_general(nouns: set[str], wordnet: WordNetNouns) -> dict[str, list[str]]:
    """Return the hypernyms of each noun among the nouns ("dog": "animal", "pet"), which are true of it as well."""
    general = {}
    for noun in sorted(nouns):
        hypernyms: set[str] = set()
        for key in wordnet.senses[noun][:_MEANINGS]:
            hypernyms.update(word for synset in wordnet.ancestors(wordnet.synsets[key]) for word in synset.words)
        kinds = sorted((hypernyms & nouns) - {noun})
        if kinds:
            general[noun] = kinds
    return general


def main() -> None:
    """Write the lexicon."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--wordnet", type=Path, required=True, help="folder of WordNet 3.0's database files")
    parser.add_argument("--captions", type=Path, nargs="+", required=True, help="Karpathy files, for counting nouns")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    captions = [
        caption
        for path in arguments.captions
        for item in read_json(path, "a captions file")
        for caption in item["caption"]
    ]
    write_json(arguments.out, make_lexicon(WordNetNouns(arguments.wordnet), captions))


if __name__ == "__main__":
    main()
