"""Altered captions: what is never done, what depends on nothing else, and the commands."""

import json

import grain.python as grain
import numpy as np
import pytest

from rococo_jax.benchmarks.audit import find_edits
from rococo_jax.benchmarks.rococo.annotations import read_annotation
from rococo_jax.benchmarks.rococo.generate import alter_captions, alter_images
from rococo_jax.data.caption_forms import read_captions
from rococo_jax.data.captions import CaptionedImage
from rococo_jax.perturb.text import VARIANTS
from rococo_jax.perturb.text.lexicon import Lexicon, shipped_lexicon
from rococo_jax.perturb.text.replacement import DANGER, AlterCaptions, CaptionAlterer, find_candidates, vocabulary_words
from rococo_jax.perturb.text.words import article_of, plain, split_words
from tests.support.commands import run_command
from tests.support.refusals import refused
from tests.support.tiny import tiny_encoder, tiny_tokenizer

pytestmark = pytest.mark.quick  # words, however the programs are compiled

LEXICON = shipped_lexicon()
VOCABULARY = ("dreamed", "river", "because", "dog", "seven", "harbor", "quick")
AWKWARD = {
    "empty": "",
    "white space": " \t ",
    "no noun": "It is very, very nice!",
    "emoji": "🐕 🏖️ 👩🏽‍🚀",
    "Chinese": "一只狗在海滩上",
    "entities": "a dog &amp; a cat&#39;s &lt;tail&gt; in a caf&eacute;",
    "long": "a very big dog " * 50,
    "capitals": "A DOG ON THE BEACH.",
    "clitics": "the man's dogs' T-shirt-clad friend doesn't sit",
}


THREE = "a dog near a boat under a tree"


def alterer(variant: str, **choices) -> CaptionAlterer:
    return CaptionAlterer(variant, LEXICON, vocabulary=VOCABULARY, **choices)


def rising(caption: str) -> np.ndarray:
    return np.linspace(0.1, 0.9, len(split_words(caption)))


def altered(variant: str, caption: str, originals=None, **choices):
    count = choices.pop("count", 1)
    return alterer(variant, **choices).alter(caption, originals or [caption], rising(caption), count=count)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("caption", AWKWARD.values(), ids=AWKWARD.keys())
def test_difficult_captions_are_altered_in_one_word_or_not_at_all(variant, caption):
    made = altered(variant, caption)
    assert len(made) == bool(find_candidates(split_words(caption), LEXICON))
    for each in made:
        word = split_words(caption)[each.word_index]
        assert each.caption == caption[: word.start] + each.new + caption[word.end :] != caption


def replaced(select: str, influence) -> str:
    """The word that is replaced in a caption of three nouns, of which the influence is given."""
    values = np.zeros(8)
    values[[1, 4, 7]] = influence
    return alterer("same_concept", select=select).alter(THREE, [THREE], values)[0].old


def test_the_word_of_lowest_or_highest_influence_is_replaced_and_ties_go_to_the_first():
    assert replaced("lowest", [0.3, 0.1, 0.9]) == "boat" and replaced("highest", [0.3, 0.1, 0.9]) == "tree"
    for select, other in (("lowest", 0.5), ("highest", 0.0)):
        # A difference of 1e-7 is rounding, on either side; one of 1e-4 is none.
        for dog, boat in ((0.2, 0.2), (0.2, 0.2000001), (0.2000001, 0.2)):
            assert replaced(select, [dog, boat, other]) == "dog"
    assert replaced("lowest", [0.2001, 0.2, 0.5]) == replaced("highest", [0.2, 0.2001, 0.0]) == "boat"


def loaded(transform: AlterCaptions, samples: list[dict], start: int = 0) -> list[dict]:
    """Samples as training loads them."""
    data = grain.MapDataset.source(samples).seed(7).random_map(transform)
    return [data[i] for i in range(start, len(samples))]


def test_training_draws_other_replacements_for_the_same_caption():
    transform = AlterCaptions([alterer("diff_concept", select="random")], None, count=1)
    made = loaded(transform, [{"caption": "a dog near a boat"}] * 30)
    assert len({sample["altered_captions"] for sample in made}) > 20


def test_random_selection_needs_no_influence_and_selects_every_candidate():
    chosen = [alterer("danger", select="random", seed=seed).alter(THREE, [THREE])[0].old for seed in range(60)]
    # 60 fair draws of three: fewer than 8 of one has a chance below 1 in 1,000.
    assert all(chosen.count(word) >= 8 for word in ("dog", "boat", "tree"))
    refused("influence", alterer("danger").alter, THREE, [THREE])


def test_same_concept_replaces_within_a_group_and_diff_concept_across_groups():
    caption = "two dogs on the beach"
    for each in altered("same_concept", caption, count=20):
        assert LEXICON.find(each.new).concept == LEXICON.find(each.old).concept == each.concept
    for each in altered("diff_concept", caption, count=200):
        assert LEXICON.find(each.new).concept != each.concept == "animal"


def test_replacements_keep_singular_and_plural():
    for caption, plural in (("a dog", False), ("dogs", True)):
        for each in altered("same_concept", caption, count=30):
            noun = LEXICON.find(each.new)
            assert each.new == noun.form(plural)


def test_the_article_fits_the_inserted_noun_if_requested():
    for caption, article in (("a dog", "a"), ("an elephant", "an"), ("A dog", "a")):
        made = altered("same_concept", caption, count=30, fit_article=True)
        assert made and all(article_of(each.new) == article for each in made)
    assert {article_of(each.new) for each in altered("same_concept", "a dog", count=60)} == {"a", "an"}
    # Only right before the noun: "a" belongs to "big".
    big = altered("same_concept", "a big dog", count=60, fit_article=True)
    assert {article_of(each.new) for each in big} == {"a", "an"}


def test_words_of_the_original_captions_are_never_inserted_in_singular_or_plural():
    animals = [noun for noun in LEXICON.groups["animal"].nouns if noun.name not in ("dog", "zebra")]
    originals = ["a dog", " ".join(noun.plural or noun.singular for noun in animals)]
    assert [each.new for each in altered("same_concept", "a dog", originals, count=50)] == ["zebra"]
    assert altered("danger", "a dog", ["a dog", "a weapon"])[0].new == "criminal"


def test_the_next_noun_is_replaced_if_a_noun_has_no_replacement():
    small = {"groups": [{"concept": "a", "nouns": ["dog"]}, {"concept": "b", "nouns": ["hat", "cap"]}]}
    lexicon = Lexicon.from_json({"format": "rococo_jax.lexicon", "version": 1, **small})
    made = CaptionAlterer("same_concept", lexicon).alter("a dog, a hat", ["a dog, a hat"], np.arange(4) / 4)
    assert [(each.old, each.new) for each in made] == [("hat", "cap")]


def test_the_danger_replacement_depends_on_the_kind_of_noun():
    for caption, word in (("a man", "criminal"), ("a kitchen", "minefield"), ("a trick", "committing crime")):
        assert altered("danger", caption)[0].new == word
    assert altered("danger", "a vase")[0].new == "weapon"
    assert set(DANGER) == {group.kind for group in LEXICON.groups.values()}


def test_alterations_requested_together_are_different_and_draws_differ():
    caption = "a dog near a boat"
    many = [each.caption for each in altered("diff_concept", caption, count=100)]
    assert len(set(many)) == 100
    rule, given = alterer("diff_concept"), (caption, [caption], rising(caption))
    assert rule.alter(*given, draw=0)[0].new != rule.alter(*given, draw=1)[0].new
    assert {each.new for each in altered("danger", caption, count=10)} == set(DANGER.values())


def rising_of(images) -> list[np.ndarray]:
    return [rising(caption) for image in images for caption in image.captions]


def test_the_alteration_of_a_caption_does_not_depend_on_other_captions_or_their_order():
    images = [CaptionedImage(f"{i}.jpg", (f"a dog near {i} boats", f"{i} men in a kitchen")) for i in range(20)]

    def run(images, seed=0):
        made = alter_images(images, rising_of(images), alterer("diff_concept", seed=seed))
        return {item.image: item for item in made.items}

    assert run(images) == run(images[::-1]) == {**run(images[:7]), **run(images[7:])} != run(images, seed=1)


def test_unaltered_captions_are_counted_by_reason():
    every_part = " ".join(noun.name for noun in LEXICON.groups["part of a building"].nouns)
    captions = [("", "very nice", "a dog"), ("a cat",), ("a balcony", every_part)]
    images = [CaptionedImage(f"{number}.jpg", texts) for number, texts in enumerate(captions)]
    made = alter_images(images, rising_of(images), alterer("same_concept"))
    unaltered = [[text is None for text in item.altered] for item in made.items]
    assert unaltered == [[True, True, False], [False], [True, True]]
    assert sorted(made.unaltered.values()) == [2, 2]


def test_rand_voca_inserts_complete_words_of_the_tokenizer():
    words = vocabulary_words(tiny_tokenizer())
    assert "dog" in words and not any(word.startswith("#") or len(word) < 3 for word in words)
    assert altered("rand_voca", "a dog")[0].new in VOCABULARY
    refused("vocabulary", CaptionAlterer, "rand_voca", LEXICON)


def test_unknown_choices_are_refused():
    for choice in ({"variant": "worse_concept"}, {"select": "lower"}):
        ((name, value),) = choice.items()
        refused(
            f"{name}: found '{value}'; wanted one of ",
            CaptionAlterer,
            **{"variant": "danger", "lexicon": LEXICON, **choice},
        )


def test_training_has_k_altered_captions_per_sample_and_the_same_ones_after_a_resume():
    samples = [{"caption": f"a dog near {i} boats", "image": i} for i in range(12)] + [{"caption": "very nice"}]
    table = {sample["caption"]: rising(sample["caption"]) for sample in samples}
    transform = AlterCaptions([alterer("same_concept"), alterer("danger")], table, count=3)

    whole = loaded(transform, samples)
    assert [each["altered_captions"] for each in loaded(transform, samples, 5)] == [
        each["altered_captions"] for each in whole[5:]
    ]
    for sample in whole[:-1]:
        assert len(set(sample["altered_captions"])) == 3 and sample["altered_valid"].all()
        assert all(len(find_edits(sample["caption"], text).replaced) == 1 for text in sample["altered_captions"])
    assert whole[-1]["altered_captions"] == ("", "", "") and not whole[-1]["altered_valid"].any()


def test_all_kinds_of_alterations_are_drawn_with_one_altered_caption_per_sample():
    samples = [{"caption": f"a dog near {i} boats"} for i in range(40)]
    table = {sample["caption"]: rising(sample["caption"]) for sample in samples}
    transform = AlterCaptions([alterer("same_concept"), alterer("danger")], table, count=1)
    dangerous = sum("weapon" in each["altered_captions"][0] for each in loaded(transform, samples))
    # Half of 40 on average; outside 8 to 32 once in twenty thousand seeds.
    assert 8 <= dangerous <= 32
    refused("no line for 'a cat'", transform.random_map, {"caption": "a cat"}, np.random.default_rng(0))


@pytest.fixture(scope="module")
def encoder():
    return tiny_encoder()


def test_all_variants_replace_the_same_word_and_files_record_the_changes(tmp_path, encoder):
    from rococo_jax.benchmarks.rococo.generate import write_altered

    images = [CaptionedImage("a.jpg", ("a red dog near a boat", "the man on a house."))]
    made = alter_captions(encoder, images, ["same_concept", "danger"])
    indices = [[each.word_index for each in one.alterations[0]] for one in made.values()]
    assert indices[0] == indices[1]
    write_altered(tmp_path / "danger.json", made["danger"], {"seed": 0})
    read = read_annotation(tmp_path / "danger.json")
    assert read.variant == "danger" and read.items == made["danger"].items
    changes = json.loads((tmp_path / "danger.json").read_text())["items"][0]["changes"]
    assert [sorted(change) for change in changes] == [["concept", "influence", "new", "old", "word_index"]] * 2


def test_the_command_writes_an_annotation(tmp_path, capsys, monkeypatch, encoder):
    import rococo_jax.encoders
    from rococo_jax.cli import alter_captions as command

    monkeypatch.setattr(rococo_jax.encoders, "load_model", lambda *_, **__: encoder)
    (tmp_path / "captions.json").write_text(json.dumps([{"image": "a.jpg", "caption": ["a dog", "very nice"]}]))
    out = tmp_path / "danger.json"
    captions = tmp_path / "captions.json"
    run_command(command, "model", "--captions", captions, "--variant", "danger", "--out", out)
    assert read_annotation(out).items[0].altered == ("a weapon", None)
    assert "1 of 2 captions altered" in capsys.readouterr().out


@pytest.fixture(scope="module")
def real_images(real_data):
    return read_captions(real_data / "rococo" / "annotations" / "coco_karpathy_test.json").items


@pytest.mark.real_data
@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("variant", VARIANTS)
def test_alterations_of_25010_real_captions_are_never_no_ops_or_words_of_the_originals(real_images, variant):
    """Words are chosen at random here: what holds for every candidate holds for those of lowest influence."""
    made = alter_images(real_images, [None] * 25010, alterer(variant, select="random"))
    assert sum(made.unaltered.values()) < 0.03 * 25010
    for item, alterations in zip(made.items, made.alterations, strict=True):
        present = {plain(word.text) for caption in item.originals for word in split_words(caption)}
        for original, text, each in zip(item.originals, item.altered, alterations, strict=True):
            if each is None:
                continue
            words, new_words = split_words(original), split_words(text)
            word = words[each.word_index]
            # The rest is the same to the letter, and what stands in the gap is a word that no original has.
            assert text.startswith(original[: word.start]) and text.endswith(original[word.end :])
            assert len(new_words) == len(words) + each.new.count(" ")
            assert not present & {plain(part.text) for part in split_words(each.new)}
            if variant == "same_concept":
                assert LEXICON.alters(LEXICON.find(each.old), LEXICON.find(each.new))


@pytest.mark.slow
@pytest.mark.real_data
def test_a_shuffled_order_gives_the_same_altered_captions(real_images):
    images = real_images[:100]
    order = np.random.default_rng(0).permutation(len(images))
    rule = alterer("same_concept", select="random")
    straight = alter_images(images, [None] * 1000, rule).items
    shuffled = alter_images([images[i] for i in order], [None] * 1000, rule).items
    assert tuple(straight[i] for i in order) == shuffled
