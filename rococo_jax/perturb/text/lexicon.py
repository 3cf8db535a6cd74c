"""Concept groups of nouns: the words of captions that may be replaced, and their replacements.

A lexicon is JSON:

    {"format": "rococo_jax.lexicon", "version": 1,
     "groups": [{"concept": "animal", "kind": "thing",
                 "nouns": {"dog": "dogs", "sheep": "sheep", "rice": null} or ["dog", "sheep"],
                 "plural_only": ["cattle"]}],
     "synonyms": [["sofa", "couch"]],
     "more_general": {"dog": ["animal"]}}

`nouns` maps each singular to its plural, or to null if no plural is in use; for a list, plurals are formed by rule.
`kind` (person, place, action or thing; default: thing) decides the replacement in variant danger. `synonyms` are words
that never replace each other. `more_general` lists words that are still true of the noun, so that replacing it by them
alters nothing. Both are optional. Other keys are ignored.

The shipped lexicon is built from WordNet by `tools/build_lexicon.py`; WordNet's licence is in the same folder.
"""

import functools
import importlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rococo_jax.errors import InputError, require_one_of
from rococo_jax.perturb.text.words import follows_singular_word, plain, plural_of
from rococo_jax.storage import hash_json, read_json

FORMAT, VERSION = "rococo_jax.lexicon", 1
KINDS = ("person", "place", "action", "thing")
SHIPPED = Path(__file__).parent / "assets" / "lexicon.json"


@dataclass(frozen=True)
class Noun:
    """A noun and its two forms, one of which may be None."""

    singular: str | None
    plural: str | None
    concept: str

    def form(self, plural: bool) -> str | None:
        """Return the plural or the singular, or None."""
        return self.plural if plural else self.singular

    def is_absent(self, words: frozenset[str]) -> bool:
        """Return whether neither form is among some words in plain form."""
        return all(form is None or plain(form) not in words for form in (self.singular, self.plural))

    @property
    def name(self) -> str:
        """The form used in `synonyms` and `more_general`."""
        return self.singular or self.plural


@dataclass(frozen=True)
class Group:
    """A concept with its nouns, in the lexicon's order."""

    concept: str
    kind: str
    nouns: tuple[Noun, ...]


class Lexicon:
    """Concept groups in the given order, with look-up by word. `name` is recorded in outputs."""

    def __init__(
        self,
        groups: Iterable[Group],
        synonyms: Iterable[Sequence[str]] = (),
        more_general: Mapping[str, Iterable[str]] | None = None,
        name: str = "lexicon",
    ):
        self.groups = {group.concept: group for group in groups}
        self.name = name
        self._synonym_sets = [tuple(words) for words in synonyms]
        self._more_general = {noun: frozenset(words) for noun, words in (more_general or {}).items()}
        self._synonyms: dict[str, set[str]] = {}
        for words in self._synonym_sets:
            for word in words:
                self._synonyms.setdefault(word, set()).update(words)
        self._by_form: dict[str, Noun] = {}
        for group in self.groups.values():
            for noun in group.nouns:
                for form in (noun.singular, noun.plural):
                    if form is not None:
                        self._by_form.setdefault(plain(form), noun)
        self.nouns = tuple(noun for group in self.groups.values() for noun in group.nouns)

    def find(self, word: str) -> Noun | None:
        """Return the noun of which a word is a form, in any case; None for a word outside the lexicon."""
        return self._by_form.get(plain(word))

    def is_plural(self, words: Sequence[str], index: int) -> bool:
        """Return whether word `index` of a caption, a noun of the lexicon, is a plural ("sheep", not "a sheep")."""
        noun = self.find(words[index])
        if noun.singular is None or noun.plural is None:
            return noun.singular is None
        if plain(noun.singular) == plain(noun.plural):
            return not follows_singular_word(list(words), index)
        return plain(words[index]) == plain(noun.plural)

    def kind(self, noun: Noun) -> str:
        """Return person, place, action or thing, which decides the replacement in variant danger."""
        return self.groups[noun.concept].kind

    def alters(self, old: Noun, new: Noun) -> bool:
        """Return whether `new` in place of `old` changes the meaning: it is neither a synonym nor more general."""
        if old.name == new.name:
            return False
        return new.name not in self._synonyms.get(old.name, ()) and new.name not in self._more_general.get(old.name, ())

    def names_without_effect(self, old: Noun) -> set[str]:
        """Return the names of nouns that do not alter the meaning in place of `old` (`alters`)."""
        return {old.name}.union(self._synonyms.get(old.name, ()), self._more_general.get(old.name, ()))

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form that `from_json` reads."""
        groups = [
            {
                "concept": group.concept,
                "kind": group.kind,
                "nouns": {noun.singular: noun.plural for noun in group.nouns if noun.singular is not None},
                "plural_only": [noun.plural for noun in group.nouns if noun.singular is None],
            }
            for group in self.groups.values()
        ]
        return {
            "format": FORMAT,
            "version": VERSION,
            "groups": groups,
            "synonyms": [list(words) for words in self._synonym_sets],
            "more_general": {noun: sorted(words) for noun, words in self._more_general.items()},
        }

    def hash(self) -> str:
        """Return the SHA-256 of everything that decides a replacement."""
        return hash_json(self.to_json())

    @classmethod
    def from_json(cls, value: Any, source: object = "lexicon") -> "Lexicon":
        """Read the form that this module describes. Raises InputError with `source` and the wrong field."""
        if not isinstance(value, dict) or value.get("format") != FORMAT:
            found = repr(value.get("format")) if isinstance(value, dict) else type(value).__name__
            raise InputError(source, "format", found, f'an object with "format": {FORMAT!r}')
        if value.get("version") != VERSION:
            raise InputError(source, "version", repr(value.get("version")), str(VERSION))
        entries = value.get("groups")
        if not isinstance(entries, list) or not entries:
            raise InputError(source, "groups", repr(entries)[:40], "a list of at least one concept group")
        groups = [_read_group(entry, number, source) for number, entry in enumerate(entries)]
        _check_distinct(groups, source)
        synonyms = _word_lists(value.get("synonyms", []), "synonyms", source)
        general = value.get("more_general", {})
        if not isinstance(general, dict):
            raise InputError(source, "more_general", type(general).__name__, "an object: noun -> list of nouns")
        lists = _word_lists(list(general.values()), "more_general", source)
        return cls(groups, synonyms, dict(zip(general, lists, strict=True)), name=Path(str(source)).stem)


def read_lexicon(path: str | os.PathLike) -> Lexicon:
    """Read a lexicon file. Raises InputError if it is missing or not a lexicon."""
    return Lexicon.from_json(read_json(path, "a lexicon file"), path)


@functools.cache
def shipped_lexicon() -> Lexicon:
    """Return the lexicon of the package: nouns of captions in WordNet's concept groups."""
    return read_lexicon(SHIPPED)


# Lexicons by name: module and function. The module is imported when its lexicon is opened.
_NAMED = {"demo": ("rococo_jax.demo.captions", "demo_lexicon")}


def open_lexicon(source: str = "") -> Lexicon:
    """Return the lexicon of a name (`demo`) or of a file, or the shipped one for an empty name.

    Raises InputError as `read_lexicon`.
    """
    if source in _NAMED:
        module, function = _NAMED[source]
        return getattr(importlib.import_module(module), function)()
    return read_lexicon(source) if source else shipped_lexicon()


def _read_group(entry: Any, number: int, source: object) -> Group:
    field = f"group {number}"
    if not isinstance(entry, dict) or not isinstance(entry.get("concept"), str):
        raise InputError(source, field, repr(entry)[:60], 'an object with "concept" and "nouns"')
    concept = entry["concept"]
    field = f"{field} ({concept!r})"
    kind = entry.get("kind", "thing")
    require_one_of(source, f"kind of {field}", kind, KINDS)
    nouns = entry.get("nouns", {})
    if isinstance(nouns, list):
        _check_words(nouns, f"nouns of {field}", source)
        nouns = {noun: plural_of(noun) for noun in nouns}
    if not isinstance(nouns, dict):
        found = type(nouns).__name__
        raise InputError(source, f"nouns of {field}", found, "singular -> plural, or a list of singulars")
    _check_words([*nouns, *(plural for plural in nouns.values() if plural is not None)], f"nouns of {field}", source)
    only = entry.get("plural_only", [])
    _check_words(only, f"plural_only of {field}", source)
    members = [Noun(singular, plural, concept) for singular, plural in nouns.items()]
    members += [Noun(None, plural, concept) for plural in only]
    if not members:
        raise InputError(source, f"nouns of {field}", "none", "at least one noun")
    return Group(concept, kind, tuple(members))


def _check_words(words: Any, field: str, source: object) -> None:
    if not isinstance(words, list):
        raise InputError(source, field, type(words).__name__, "a list of words")
    for word in words:
        if not isinstance(word, str) or not word.strip():
            raise InputError(source, field, repr(word), "words")


def _word_lists(value: Any, field: str, source: object) -> list[tuple[str, ...]]:
    if not isinstance(value, list):
        raise InputError(source, field, type(value).__name__, "lists of words")
    for words in value:
        _check_words(words, field, source)
    return [tuple(words) for words in value]


def _check_distinct(groups: Sequence[Group], source: object) -> None:
    concepts: set[str] = set()
    owner: dict[str, str] = {}
    for group in groups:
        if group.concept in concepts:
            raise InputError(source, "groups", f"concept {group.concept!r} twice", "each concept once")
        concepts.add(group.concept)
        for noun in group.nouns:
            if owner.setdefault(noun.name, group.concept) != group.concept:
                found = f"{noun.name!r} in {owner[noun.name]!r} and {group.concept!r}"
                raise InputError(source, "groups", found, "each noun in one group")
