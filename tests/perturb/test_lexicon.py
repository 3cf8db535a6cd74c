"""The lexicon: forms, numbers, synonyms and user files."""

import json

import pytest

from rococo_jax.errors import InputError
from rococo_jax.perturb.text.lexicon import SHIPPED, Group, Lexicon, Noun, read_lexicon, shipped_lexicon
from tests.support.refusals import refused
from tools.build_lexicon import CONCEPTS, LEFT_OUT, OTHER_MEANING


def written(tmp_path, groups, **more):
    path = tmp_path / "nouns.json"
    path.write_text(json.dumps({"format": "rococo_jax.lexicon", "version": 1, "groups": groups, **more}))
    return path


@pytest.fixture(scope="module")
def lexicon() -> Lexicon:
    return shipped_lexicon()


def test_a_word_is_found_in_either_number_and_any_case(lexicon):
    assert lexicon.find("Dogs") is lexicon.find("dog") is not None
    assert lexicon.find("MEN").singular == "man"
    assert lexicon.find("dogged") is lexicon.find("") is lexicon.find("狗") is None


def test_plurals_are_recognised_by_form_or_by_the_preceding_words(lexicon):
    assert [lexicon.is_plural(text.split(), -1 + len(text.split())) for text in ("a dog", "two dogs")] == [False, True]
    assert not lexicon.is_plural(["a", "white", "sheep"], 2)
    assert lexicon.is_plural(["three", "sheep"], 1)
    assert lexicon.is_plural(["people"], 0)


def test_synonyms_and_more_general_words_are_not_alterations(lexicon):
    sofa, couch, bed, dog, animal, cat = map(lexicon.find, ("sofa", "couch", "bed", "dog", "animal", "cat"))
    assert not lexicon.alters(sofa, couch) and not lexicon.alters(couch, sofa) and lexicon.alters(sofa, bed)
    assert not lexicon.alters(dog, animal) and lexicon.alters(animal, dog) and lexicon.alters(dog, cat)
    assert not lexicon.alters(dog, dog)


def test_the_shipped_lexicon_is_complete(lexicon):
    assert len(lexicon.nouns) > 750 and len(lexicon.groups) > 30
    assert {group.kind for group in lexicon.groups.values()} == {"person", "place", "action", "thing"}
    names = [noun.name for noun in lexicon.nouns]
    assert len(set(names)) == len(names)
    assert "Princeton University" in (SHIPPED.parent / "WORDNET_LICENCE.txt").read_text()
    for absent in ("photo", "picture", "view", "image", "white", "two", "riding", "next"):
        assert lexicon.find(absent) is None


def test_the_shipped_lexicon_matches_the_script_that_builds_it(lexicon):
    assert not {noun.name for noun in lexicon.nouns} & set(LEFT_OUT)
    for noun in lexicon.nouns:
        assert OTHER_MEANING.get(noun.name, noun.concept) == noun.concept
    assert {(name, group.kind) for name, group in lexicon.groups.items()} <= {
        (concept, kind) for concept, (kind, _) in CONCEPTS.items()
    }


def test_every_group_has_a_replacement_for_each_noun(lexicon):
    for group in lexicon.groups.values():
        for noun in group.nouns:
            assert any(lexicon.alters(noun, other) for other in group.nouns), noun


def test_a_lexicon_is_unchanged_by_writing_and_reading(lexicon, tmp_path):
    path = tmp_path / "copy.json"
    path.write_text(json.dumps(lexicon.to_json()))
    copy = read_lexicon(path)
    assert copy.hash() == lexicon.hash() and copy.nouns == lexicon.nouns


def test_plurals_are_added_to_a_list_of_singulars_from_the_user(tmp_path):
    lexicon = read_lexicon(written(tmp_path, [{"concept": "animal", "nouns": ["wolf", "mouse", "sheep"]}]))
    assert [noun.plural for noun in lexicon.nouns] == ["wolves", "mice", "sheep"]
    assert lexicon.kind(lexicon.find("wolves")) == "thing"


@pytest.mark.parametrize(
    ("groups", "field"),
    [
        ([], "groups"),
        ([{"nouns": ["dog"]}], "group 0"),
        ([{"concept": "animal", "nouns": []}], "nouns of group 0"),
        ([{"concept": "animal", "nouns": [3]}], "nouns of group 0"),
        ([{"concept": "animal", "nouns": ["dog"], "kind": "beast"}], "kind of group 0"),
        ([{"concept": "animal", "nouns": ["dog"]}, {"concept": "animal", "nouns": ["cat"]}], "groups"),
        ([{"concept": "animal", "nouns": ["dog"]}, {"concept": "food", "nouns": ["dog"]}], "groups"),
    ],
)
def test_an_invalid_lexicon_is_refused_with_its_field(tmp_path, groups, field):
    with pytest.raises(InputError) as error:
        read_lexicon(written(tmp_path, groups))
    assert error.value.field.startswith(field)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "format: found list; wanted an object with "),
        ({"format": "another"}, "format: found 'another'; wanted an object with "),
        ({"format": "rococo_jax.lexicon", "version": 2}, "version: found 2; wanted 1"),
    ],
)
def test_other_files_are_refused_as_a_lexicon(tmp_path, value, message):
    (tmp_path / "other.json").write_text(json.dumps(value))
    refused(message, read_lexicon, tmp_path / "other.json")


def test_a_noun_without_a_singular_is_identified_by_its_plural():
    people = Noun(None, "people", "people")
    lexicon = Lexicon([Group("people", "person", (people,))])
    assert people.name == "people" and lexicon.find("People") is people and lexicon.is_plural(["people"], 0)
