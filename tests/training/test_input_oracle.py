"""Every config key of the input: two values give two batches, each the expected one, from the files on.

Draws of the order and of mixed images are restated from their definition; other draws are checked by what they may
give, and that all of it occurs.
"""

import dataclasses
import json

import jax
import numpy as np
import pytest
from PIL import Image

from rococo_jax.checkpoints.parameters import parameters_of
from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.errors import InputError
from rococo_jax.training.config import check_config, read_config
from rococo_jax.training.init import starting_encoder
from rococo_jax.training.inputs import batches
from rococo_jax.training.inputs.batches import text_length, workers_of
from tests.support.input_world import ADJECTIVES, COLUMNS, IMAGES, SIDE, captions_of, order, pixels_of, resized
from tests.support.paths import CHECKOUT
from tests.support.tiny import tiny_encoder, tiny_spec
from tests.support.world import write_world


def pairs(batches: list) -> list[tuple[int, np.ndarray]]:
    """Image number and pixels of every pair."""
    return [pair for batch in batches for pair in zip(batch.image_id.tolist(), batch.images.pixels, strict=True)]


@pytest.mark.parametrize(("seed", "size"), [(3, 4), (4, 4), (3, 6)])
def test_seed_and_batch_size_determine_the_order_of_images(world, seed, size):
    seen = [batch.image_id for batch in world.take(2, seed=seed, batch_size=size)]
    np.testing.assert_array_equal(np.concatenate(seen), order(seed)[: 2 * size])


def test_batches_contain_the_pixels_and_captions_of_the_configured_files(world, tmp_path):
    def picture(number: int, _: np.random.Generator) -> Image.Image:
        return Image.fromarray(pixels_of(number, np.arange(COLUMNS), lift=5))

    write_world(tmp_path, [[f"a big cat {ADJECTIVES[number % 5]}"] for number in range(IMAGES)], picture=picture)
    others = world.take(data__images=str(tmp_path / "images"), data__captions=str(tmp_path / "captions.json"))
    for taken, lift in ((world.take(), 0), (others, 5)):
        for number, pixels in pairs(taken):
            np.testing.assert_array_equal(pixels, pixels_of(number, lift=lift))
    assert world.texts(others) == [f"a big cat {ADJECTIVES[number % 5]}" for number, _ in pairs(others)]


def test_only_pairs_of_the_configured_split_are_read(world):
    word = dict(zip(("train", "test"), ADJECTIVES, strict=False))
    lines = [{"image": f"{n:02}.png", "split": split, "caption": [f"a big cat {word[split]}"]}
             for n, split in enumerate(["train", "test"] * (IMAGES // 2))]  # fmt: skip
    (world.folder / "split.json").write_text(json.dumps(lines))
    for split in word:
        batches = world.take(data__captions=str(world.folder / "split.json"), data__split=split)
        assert {*world.texts(batches)} == {f"a big cat {word[split]}"}
        assert max(number for batch in batches for number in batch.image_id.tolist()) < IMAGES // 2


def test_captions_per_image_selects_one_or_all_captions(world):
    def drawn(choice: str) -> list[tuple[int, str]]:
        taken = world.take(9, data__captions_per_image=choice)
        return list(zip([number for number, _ in pairs(taken)], world.texts(taken), strict=True))

    every = sorted((number, caption) for number in range(IMAGES) for caption in captions_of(number))
    assert sorted(drawn("all")) == every
    assert set(drawn("one")) < set(every)


def test_random_crop_min_scale_bounds_the_area_of_crops(world):
    def areas(least: float) -> list[float]:
        found, crops = [], {}
        for number, pixels in pairs(world.take(9, data__random_crop_min_scale=least)):
            assert (pixels[..., 2] == 10 * number).all()
            crops.setdefault(number, set()).add(pixels.tobytes())
            across, down = (np.ptp(pixels[..., axis]) / step * 32 / 31 for axis, step in ((0, 5), (1, 7)))
            found.append(across * down / (COLUMNS * SIDE))
        # Three epochs: an image has another crop in each.
        assert all(len(each) == (3 if least else 1) for each in crops.values())
        return found

    assert min(areas(0.6)) > 0.55 and len({round(area, 3) for area in areas(0.6)}) > 9
    assert min(areas(0.1)) < 0.3
    assert np.allclose(areas(0.0), 2 / 3, atol=0.03)


def test_flip_mirrors_about_half_of_the_images(world):
    mirrored = []
    for number, pixels in pairs(world.take(data__flip=True)):
        mirrored.append(bool((pixels == pixels_of(number)[:, ::-1]).all()))
        assert mirrored[-1] or (pixels == pixels_of(number)).all()
    assert 4 < sum(mirrored) < 20


@pytest.mark.parametrize(("probability", "low", "high"), [(0.0, 0, 0), (0.5, 5, 19), (1.0, 24, 24)])
def test_resize_prob_is_the_share_of_images_that_are_not_cropped(world, probability, low, high):
    whole = 0
    for number, pixels in pairs(world.take(data__resize_prob=probability)):
        is_whole = (pixels == resized(number)).all()
        assert is_whole or (pixels == pixels_of(number)).all()
        whole += is_whole
    assert low <= whole <= high


def test_text_length_truncates_texts_and_keeps_their_end_token(world):
    whole, cut = (world.take(1, data__text_length=length)[0].texts for length in (0, 5))
    assert whole.ids.shape == (4, 24) and cut.ids.shape == (4, 5)
    np.testing.assert_array_equal(cut.ids, np.concatenate([whole.ids[:, :4], np.full((4, 1), 2)], 1))
    longer = dataclasses.replace(world.spec, text=dataclasses.replace(world.spec.text, context_length=77))
    assert [text_length(length, tiny_encoder(spec=longer)) for length in (0, 60)] == [48, 60]


ANIMALS, PLACES = {("dog", "cat"), ("dog", "owl")}, {("house", "boat"), ("house", "igloo")}
OTHER_TABLE = {"influence": "lowest_house.jsonl"}


@pytest.mark.parametrize(
    ("settings", "changes"),
    [
        ({}, ANIMALS),
        ({"variants": "diff_concept"}, {("dog", "boat"), ("dog", "igloo")}),
        ({"variants": "danger"}, {("dog", "weapon")}),
        ({"variants": "danger,same_concept"}, {("dog", "weapon"), *ANIMALS}),
        ({"variants": "rand_voca"}, None),
        ({"select": "highest"}, PLACES),
        (OTHER_TABLE, PLACES),
        ({**OTHER_TABLE, "select": "highest"}, ANIMALS),
        ({"select": "random"}, ANIMALS | PLACES),
        ({"lexicon": "other_lexicon.json"}, {("dog", "sheep")}),
        ({"fit_article": True}, {("dog", "cat")}),
    ],
)
def test_keys_of_altered_captions_determine_which_words_are_replaced(world, settings, changes):
    for key in {"influence", "lexicon"} & settings.keys():
        settings = {**settings, key: str(world.folder / settings[key])}
    batches = world.take(losses__sc__weight=1.0, **{f"losses__sc__{key}": value for key, value in settings.items()})
    pairs_of_words = [
        (old, new)
        for text, other in zip(world.texts(batches), world.texts(batches, "altered"), strict=True)
        for old, new in zip(text.split(), other.split(), strict=True) if old != new
    ]  # fmt: skip
    assert len(pairs_of_words) == len(world.texts(batches))  # one word of each
    words = {new for _, new in pairs_of_words}
    if changes is None:
        assert len(words) > 5 and words < {*"the two cat car man woman tree ball boat".split(), *ADJECTIVES}
    else:
        assert {*pairs_of_words} == changes


@pytest.mark.parametrize("select", ["lowest", "highest"])
def test_influence_is_computed_with_the_starting_model_if_no_table_is_configured(world, select):
    settings = {"losses__sc__select": select, "losses__sc__influence": ""}
    batches = world.take(6, losses__sc__weight=1.0, **settings)
    assert (world.folder / "influence.jsonl").is_file()
    for text, other in zip(world.texts(batches), world.texts(batches, "altered"), strict=True):
        without = [" ".join(word for word in text.split() if word != noun) for noun in ("dog", "house")]
        whole, *others = world.encoder.encode_text([text, *without])
        wanted = {"lowest": np.argmax, "highest": np.argmin}[select]([whole @ each for each in others])
        assert [noun for noun in ("dog", "house") if noun not in other.split()] == [("dog", "house")[wanted]]


def test_each_caption_has_the_configured_number_of_altered_captions(world):
    for count in (1, 2):
        batches = world.take(1, losses__sc__weight=1.0, losses__sc__count=count)
        assert batches[0].valid["altered"].shape == (4, count) and batches[0].valid["altered"].all()
    others = world.texts(batches, "altered")
    for number, text in enumerate(world.texts(batches)):
        assert {*others[2 * number : 2 * number + 2]} == {text.replace("dog", new) for new in ("cat", "owl")}


def test_hard_positives_and_negatives_are_those_of_their_caption(world):
    def negatives_of(caption: str) -> list[str]:
        return [caption.replace("dog", noun) for noun in ("cat", "man", "car")]

    triples = [
        {"caption": caption, "hard_positive": f"the {caption}", "hard_negative": negative}
        for number in range(IMAGES) for caption in captions_of(number) for negative in negatives_of(caption)
    ]  # fmt: skip
    (world.folder / "one.json").write_text(json.dumps(triples))
    hard = {"losses__hard_positives__weight": 1.0, "losses__hard_positives__negatives": str(world.folder / "one.json")}
    for count in (1, 2):
        taken = world.take(losses__hard_positives__count=count, **hard)
        own, negatives = world.texts(taken), world.texts(taken, "negative")
        assert world.texts(taken, "positive") == [f"the {caption}" for caption in own]
        for number, caption in enumerate(own):
            drawn = set(negatives[count * number : count * (number + 1)])
            assert len(drawn) == count and drawn < {*negatives_of(caption)}


def test_worker_processes_start_only_for_long_runs(world, monkeypatch):
    monkeypatch.setattr(batches, "usable_cores", lambda: 6)
    assert [workers_of("auto", images) for images in (2_000, 19_999, 20_000, 2 * 10**8)] == [0, 0, 6, 6]
    assert [workers_of(number, 2 * 10**8) for number in (0, 3)] == [0, 3]
    for value in (-1, "some", 1.5, True):
        with pytest.raises(InputError, match=r"config.data.workers: found .*; wanted 'auto', or 0 or more"):
            check_config(world.config_of(data__workers=value))
    assert read_config(CHECKOUT / "configs" / "coco_finetune.py", ["config.data.workers=3"]).data.workers == 3


def test_a_run_starts_from_the_configured_model_or_from_new_towers(world):
    start = str(world.folder / "start")
    taken, right = starting_encoder(world.config_of(init__model=start)), parameters_of(world.encoder.model)
    jax.tree.map(np.testing.assert_array_equal, parameters_of(taken.model), right)
    preprocessing = Preprocessing(exact_size=(SIDE, SIDE), mean=(0.1, 0.2, 0.3))
    config = world.config_of(init__tokenizer=start)
    config.init.spec, config.init.preprocessing = tiny_spec(8).to_json(), preprocessing.to_json()
    made = starting_encoder(config)
    assert (made.spec, made.preprocessing) == (tiny_spec(8), preprocessing) and made.spec != taken.spec
    assert made.tokenizer.encode(["a red dog"]) == world.encoder.tokenizer.encode(["a red dog"])
    grown = starting_encoder(world.config_of(init__model=start, init__residual_head_width=6))
    added = parameters_of(grown.model).keys() - right.keys()
    assert "vision_head.up.kernel" in added and parameters_of(grown.model)["vision_head.up.kernel"].shape == (16, 6)
