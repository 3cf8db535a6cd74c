"""The greedy attack: the altered caption that a model prefers most, against a search written out by hand."""

import json

import numpy as np
import pytest

from rococo_jax import load_model
from rococo_jax.benchmarks.rococo import greedy_attack
from rococo_jax.benchmarks.rococo.greedy_attack import attack_captions
from rococo_jax.cli.main import main
from rococo_jax.data.captions import CaptionedImage
from rococo_jax.demo.scenes import draw_scene, make_scene
from rococo_jax.perturb.text.lexicon import Lexicon
from rococo_jax.perturb.text.replacement import CaptionAlterer

ANIMALS = {"dog": "dogs", "cat": "cats", "cow": "cows", "owl": "owls", "puppy": "puppies"}
THINGS = {"car": "cars", "tree": "trees", "house": "houses"}
LEXICON = {
    "format": "rococo_jax.lexicon",
    "version": 1,
    "groups": [{"concept": "animal", "nouns": ANIMALS}, {"concept": "object", "nouns": THINGS}],
    "synonyms": [["dog", "puppy"]],
}
IMAGES = (
    CaptionedImage("0.png", ("A dog near a car.", "Two dogs", "Nothing to alter")),
    CaptionedImage("1.png", ("There is a cat under the tree", "An owl")),
)
# What may replace one word, listed by hand: no synonym, no word of the image's captions, the same number and article.
SAME_CONCEPT = {
    "A dog near a car.": [
        *("A cat near a car.", "A cow near a car."),
        *("A dog near a tree.", "A dog near a house."),
    ],
    "Two dogs": ["Two cats", "Two cows", "Two owls"],
    "Nothing to alter": [],
    "There is a cat under the tree": [
        *(f"There is a {animal} under the tree" for animal in ("dog", "cow", "puppy")),
        *(f"There is a cat under the {thing}" for thing in ("car", "house")),
    ],
    "An owl": [],
}


@pytest.fixture(scope="module")
def model():
    return load_model("demo:plain")


@pytest.fixture(scope="module")
def pictures():
    return [draw_scene(make_scene("test", 3, number), size=96, fineness=1) for number in range(len(IMAGES))]


@pytest.fixture(scope="module")
def image_embeddings(model, pictures):
    return np.asarray(model.encode_image(pictures))


def alterer_of(seed=0, variant="same_concept"):
    return CaptionAlterer(variant, Lexicon.from_json(LEXICON), seed, fit_article=True)


def search_by_hand(model, image_embeddings):
    """Return the worst alteration of every caption, each text embedded on its own, and the number preferred."""
    worst, preferred = {}, 0
    for image, embedding in zip(IMAGES, image_embeddings, strict=True):
        true = [float(model.encode_text([text])[0] @ embedding) for text in image.captions]
        for caption in image.captions:
            scores = {text: float(model.encode_text([text])[0] @ embedding) for text in SAME_CONCEPT[caption]}
            worst[caption] = max(scores, key=scores.get, default=None)
            preferred += bool(scores) and max(scores.values()) > max(true)
    return worst, preferred


def captions_of(attack):
    return {
        original: altered
        for item in attack.altered.items
        for original, altered in zip(item.originals, item.altered, strict=True)
    }


@pytest.mark.parametrize("seed", [0, 7])
def test_the_attack_finds_what_a_search_over_all_replacements_finds(model, image_embeddings, seed):
    attack = attack_captions(model, IMAGES, image_embeddings, alterer_of(seed), budget=100)
    worst, preferred = search_by_hand(model, image_embeddings)
    assert captions_of(attack) == worst and attack.preferred == preferred
    assert attack.tried == sum(map(len, SAME_CONCEPT.values()))
    assert sum(attack.altered.unaltered.values()) == 2


def test_a_budget_tries_so_many_of_each_caption_and_the_seed_draws_them(model, image_embeddings):
    alterers = [alterer_of(seed) for seed in range(8)]
    attacks = [attack_captions(model, IMAGES, image_embeddings, alterer, budget=1) for alterer in alterers]
    assert {attack.tried for attack in attacks} == {3}
    drawn = {captions_of(attack)["Two dogs"] for attack in attacks}
    assert drawn <= set(SAME_CONCEPT["Two dogs"]) and len(drawn) > 1
    # Two of a caption with two nouns are one of each.
    two = alterers[0].alter_in_turn("A dog near a car.", IMAGES[0].captions, 2)
    assert sorted(each.old for each in two) == ["car", "dog"]


def test_the_result_depends_on_no_other_image_and_on_no_batch(model, image_embeddings, monkeypatch):
    whole = captions_of(attack_captions(model, IMAGES, image_embeddings, alterer_of(), budget=4))
    alone = [
        attack_captions(model, IMAGES[i : i + 1], image_embeddings[i : i + 1], alterer_of(), budget=4) for i in (0, 1)
    ]
    assert {text: altered for attack in alone for text, altered in captions_of(attack).items()} == whole
    monkeypatch.setattr(greedy_attack, "_TEXTS_AT_ONCE", 4)
    assert captions_of(attack_captions(model, IMAGES, image_embeddings, alterer_of(), budget=4)) == whole


@pytest.fixture
def folder(tmp_path, pictures):
    for image, picture in zip(IMAGES, pictures, strict=True):
        picture.save(tmp_path / image.image)
    items = [{"image": image.image, "caption": list(image.captions)} for image in IMAGES]
    (tmp_path / "captions.json").write_text(json.dumps(items))
    (tmp_path / "lexicon.json").write_text(json.dumps(LEXICON))
    return tmp_path


def run(folder, options):
    start = f"alter-captions demo:plain --captions {folder}/captions.json --lexicon {folder}/lexicon.json"
    return main([*start.split(), *options.split()])


def test_the_command_writes_an_annotation_that_names_the_attack(model, image_embeddings, folder, capsys):
    out = folder / "same_concept.json"
    assert run(folder, f"--attack greedy --images {folder} --variant same_concept --budget 50 --out {out}") == 0
    written = json.loads(out.read_text())
    assert written["made_by"]["attack"] == {"name": "greedy", "budget": 50}
    assert written["made_by"]["model"]["weights"] == model.describe()["weights"]
    worst, preferred = search_by_hand(model, image_embeddings)
    altered = dict(pair for item in written["items"] for pair in zip(item["originals"], item["altered"], strict=True))
    assert altered == worst
    assert f"12 altered captions tried; {preferred} of 3 are more similar" in capsys.readouterr().out
    first = out.read_bytes()
    assert run(folder, f"--attack greedy --images {folder} --variant same_concept --budget 50 --out {out}") == 0
    assert out.read_bytes() == first


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--attack greedy --variant danger", "--images: option: found none; wanted the folder of the images"),
        ("--variant danger --budget 3", "--images, --budget: option: found one without --attack"),
        ("--attack greedy --images . --variant half_truth", "--attack: option: found greedy with half_truth"),
        ("--attack greedy --images . --variant danger --select random", "--select, --influence: option: found one"),
        ("--attack greedy --images . --variant danger --budget 0", "--budget"),
    ],
)
def test_options_that_do_not_go_together_are_one_line(folder, options, message, capsys):
    try:
        code = run(folder, f"{options} --out {folder}/out.json")
    except SystemExit as stopped:
        code = stopped.code
    error = capsys.readouterr().err.strip()
    assert code == 2 and message in error and not (folder / "out.json").exists()
