"""The image side of half-truths: a distractor shows the shared object and never the right image's own one."""

import json

import pytest

from rococo_jax.benchmarks.readers.half_truths import image_side
from rococo_jax.benchmarks.readers.plain_choices import as_json
from rococo_jax.data.caption_forms import read_captions
from rococo_jax.data.captions import CaptionedImage
from rococo_jax.perturb.text.kinds import KindAlterer
from rococo_jax.perturb.text.lexicon import shipped_lexicon
from rococo_jax.perturb.text.words import split_words

LEXICON = shipped_lexicon()


def captioned(*captions):
    return [CaptionedImage(f"{number}.jpg", (caption,)) for number, caption in enumerate(captions)]


def nouns_of(image):
    words = (word.text for caption in image.captions for word in split_words(caption))
    return [noun for word in words if (noun := LEXICON.find(word)) is not None]


def shared_and_own(item):
    return [LEXICON.find(side.split(" ", 1)[1]) for side in item.texts[0].split(" and ", 1)]


def assert_no_distractor_shows_the_own_object(images, items):
    by_name = {image.image: image for image in images}
    for item in items:
        shared, own = shared_and_own(item)
        right, *wrong = (nouns_of(by_name[picture.file]) for picture in item.images)
        assert {shared, own} <= set(right) and 2 <= len(wrong) <= 5
        for nouns in wrong:
            assert shared in nouns and all(LEXICON.alters(noun, own) for noun in nouns)


def test_a_special_case_and_a_synonym_show_the_object():
    others = ["a bench and a car", "a bench and a tree", "a bench"]
    special = captioned("a kid on a bench", "a boy on a bench", *others)
    synonym = captioned("a sofa near a bench", "a couch near a bench", *others)
    for images in (special, synonym):
        for seed in range(40):
            items = list(image_side(images, LEXICON, seed))
            assert_no_distractor_shows_the_own_object(images, items)
            assert {len(item.images) for item in items if item.images[0].file == "0.jpg"} == {4}


@pytest.mark.real_data
def test_no_distractor_of_real_captions_shows_the_own_object(real_data):
    images = read_captions(real_data / "coco" / "captions_test.json").items
    items = list(image_side(images, LEXICON, 0))
    assert len(items) == len(images) == 281
    assert_no_distractor_shows_the_own_object(images, items)
    lines = [json.dumps(as_json(item)) for item in items]
    assert lines == [json.dumps(as_json(item)) for item in image_side(images, LEXICON, 0)]
    assert lines != [json.dumps(as_json(item)) for item in image_side(images, LEXICON, 1)]


def test_an_added_detail_is_none_that_a_caption_says_in_another_word():
    caption, others = "a dog on a rug", ["a mug near a poodle", "a large grey animal"]
    alterer = KindAlterer("addition", LEXICON)
    made = alterer.alter(caption, [caption, *others], count=500)
    added = {each.new.split()[-1] for each in made}
    assert added.isdisjoint({"gray", "grey", "large", "big", "huge", "dog"}) and "small" in added
    for noun in filter(None, map(LEXICON.find, sorted(added))):
        said = [LEXICON.find(word) for word in ("dog", "rug", "mug", "poodle", "animal")]
        assert all(LEXICON.alters(each, noun) for each in said if each is not None)
