"""Nouns and claims of the experiment with all parameters trained."""

import json

import pytest

from rococo_jax.benchmarks.rococo.generate import alter_captions
from rococo_jax.data.captions import CaptionedImage
from rococo_jax.demo.captions import captions_of, demo_lexicon
from rococo_jax.demo.scenes import make_scene
from rococo_jax.perturb.text.lexicon import Lexicon
from rococo_jax.perturb.text.words import caption_words


@pytest.fixture(scope="module")
def script(experiment):
    return experiment("end_to_end")


@pytest.fixture(scope="module")
def scenes():
    scenes = [make_scene("test", 2, index) for index in range(60)]
    return [CaptionedImage(f"{scene.name}.png", tuple(captions_of(scene))) for scene in scenes]


def inserted_words(lexicon, items, variants):
    sets = alter_captions(None, items, variants, lexicon=lexicon, seed=3, select="random", fit_article=True)
    records = [each for altered in sets.values() for item in altered.records() for each in item if each is not None]
    return {lexicon.find(each["new"]).name for each in records}


def test_training_never_inserts_held_out_nouns_and_the_test_inserts_only_them(script, scenes):
    training = Lexicon.from_json(script.training_lexicon())
    assert not inserted_words(training, scenes, script.VARIANTS) & script.HELD_OUT
    unseen = inserted_words(script.lexicon_of(script.HELD_OUT, "unseen"), scenes, script.VARIANTS)
    assert unseen and unseen <= script.HELD_OUT


def test_nouns_of_captions_are_replaced_by_other_nouns_that_change_the_meaning(script, scenes):
    known = Lexicon.from_json(script.demo_lexicon_with(script.nouns_of_captions().__contains__))
    inserted = inserted_words(known, scenes, script.VARIANTS)
    assert inserted and inserted <= script.nouns_of_captions()
    car, automobile, bird, duck = (known.find(word) for word in ("car", "automobile", "bird", "duck"))
    assert not known.alters(car, automobile) and not known.alters(duck, bird) and known.alters(bird, duck)


def test_no_caption_contains_a_held_out_noun(script):
    words = {word for index in range(500) for word in caption_words(captions_of(make_scene("train", 0, index)))}
    forms = {
        form for noun in demo_lexicon().nouns if noun.name in script.HELD_OUT for form in (noun.singular, noun.plural)
    }
    assert len(script.HELD_OUT) == 22 and not words & forms


def test_runs_of_several_sweeps_are_found_by_arm(script, tmp_path):
    for seed in (2, 1):
        points = [{"run": f"{arm}-{seed}", "arm": arm} for arm in ("recipe", "plain", "another")]
        (tmp_path / f"seed-{seed}").mkdir()
        (tmp_path / f"seed-{seed}" / "sweep.json").write_text(json.dumps({"points": points}))
    sweeps = [tmp_path / "seed-1", tmp_path / "seed-2"]
    assert script.folders_by_arm(sweeps, ("plain", "recipe")) == {
        arm: [tmp_path / f"seed-{seed}" / "points" / f"{arm}-{seed}" for seed in (1, 2)] for arm in ("plain", "recipe")
    }
    # Twice the same sweep is no further seed.
    with pytest.raises(ValueError, match="not one run of each arm and seed"):
        script.table([sweeps[0], sweeps[0]], tmp_path, tmp_path / "out.csv")
