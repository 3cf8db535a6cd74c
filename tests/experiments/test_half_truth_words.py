"""Half-truths on unseen false words: the lexicon that never puts them in, and the items."""

import json

import pytest

from rococo_jax.perturb.text.lexicon import read_lexicon, shipped_lexicon
from rococo_jax.perturb.text.replacement import CaptionAlterer
from tests.support.paths import CHECKOUT
from tests.support.scripts import run_script

SCRIPT = CHECKOUT / "experiments/half_truth_words.py"
CAPTIONS = ["A dog on a bed near a lamp", "Two men ride horses", "a woman with a hat in front of a red bus"]


@pytest.fixture(scope="module")
def script(experiment):
    return experiment("half_truth_words")


@pytest.fixture
def prepared(tmp_path, monkeypatch):
    (tmp_path / "coco/images").mkdir(parents=True)
    images = [{"image": f"{number}.jpg", "caption": [caption]} for number, caption in enumerate(CAPTIONS)]
    (tmp_path / "coco/captions_test.json").write_text(json.dumps(images))
    run_script(monkeypatch, SCRIPT, "prepare", "--data", tmp_path, "--out", tmp_path / "half")
    return tmp_path / "half"


@pytest.mark.parametrize("variant", ["same_concept", "diff_concept"])
def test_the_lexicon_excludes_the_objects_and_keeps_all_other_replacements(script, prepared, variant):
    lexicons = shipped_lexicon(), read_lexicon(prepared / "held.json")
    objects = {noun.name for word in script.ADDED_OBJECTS if (noun := lexicons[0].find(word))}
    assert len(objects) == 49
    left_out = 0
    for caption in CAPTIONS:
        shipped, held = (
            [
                (each.caption, lexicon.find(each.new).name)
                for each in CaptionAlterer(variant, lexicon, select="random").alter(caption, [caption], count=10_000)
            ]
            for lexicon in lexicons
        )
        assert held == [(altered, noun) for altered, noun in shipped if noun not in objects]
        left_out += len(shipped) - len(held)
    assert left_out > 0


def test_an_item_consists_of_a_caption_with_and_without_a_detail(prepared):
    items = [json.loads(line) for line in (prepared / "data/choices/items.jsonl").read_text().splitlines()]
    assert {item["part"] for item in items} == {"object", "attribute", "first"}
    for item in items:
        right, wrong = item["texts"]
        added = wrong.split()
        for word in right.split():
            added.remove(word)
        # "A dog" becomes "a dog and a cat", or "A red dog".
        assert len(added) == (1 if item["part"] == "attribute" else 3) or item["part"] == "first"
        assert right in CAPTIONS
    assert len({item["id"] for item in items}) == len(items)
