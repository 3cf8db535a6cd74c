"""Every config key of the input: two values give two batches, each the expected one, from the files on.

Draws of the order and of mixed images are restated from their definition; other draws are checked by what they may
give, and that all of it occurs.
"""

import dataclasses
import json
from collections.abc import Callable

import jax
import numpy as np
import pytest
from PIL import Image

from rococo_jax.checkpoints.parameters import parameters_of
from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.errors import InputError
from rococo_jax.training.config import check_config, default_config, flat, read_config
from rococo_jax.training.init import starting_encoder
from rococo_jax.training.inputs import batches
from rococo_jax.training.inputs.batches import make_input, text_length, workers_of
from rococo_jax.training.inputs.feature_pool import FeatureInput
from tests.support.input_world import (
    ADJECTIVES,
    COLUMNS,
    IMAGES,
    SIDE,
    captions_of,
    make_world,
    order,
    pixels_of,
    resized,
)
from tests.support.paths import CHECKOUT
from tests.support.step_cases import STEP_KEYS
from tests.support.step_oracle import mix_row
from tests.support.tiny import tiny_encoder, tiny_spec
from tests.support.tiny_runs import FEATURES_ALONE, with_a_broken_image

# The result is the same for all values, which other tests show.
SAME_RESULT = {
    "micro_batches": "the same gradients in parts: test_step_oracle, whose case has 4; test_step",
    "kept_micro_batches": "the same gradients, embedded once: test_step_oracle, whose case has 2; test_grad_cache",
    "remat": "the same gradients, computed again: test_step_oracle, whose case has it; test_step",
    "fsdp": "the same losses on parts of the parameters: test_run",
    "data.workers": "the same batches: data/test_training_input",
    "data.prefetch": "the same batches: data/test_training_input",
    "log.every": "which steps are written",
    "log.tensorboard": "whether curves are written",
    "log.wandb": "where curves are written",
    "profile.steps": "which steps are traced",
    "checkpoint.every": "which steps are saved",
    "checkpoint.keep": "how many are kept",
    "checkpoint.keep_every": "which are kept",
    "checkpoint.minutes": "when they are saved",
    "eval.every": "which steps are evaluated",
    **{f"eval.{name}": "what is evaluated" for name in default_config().eval if name != "every"},
}
# Told from another value by tests beside the dense definitions of their losses, and by a run with all of them.
OF_DEFENCES = {
    **dict.fromkeys(("losses.blind.weight", "losses.grounding.weight", "losses.negclip.weight", "losses.ce_clip.weight",
                     "losses.mixed_blind.weight", "losses.mixed_grounding.weight",
                     "train.heads", "optimizer.pull_to_start"),
                    "training/test_defences.py"),
    **dict.fromkeys(("losses.ce_clip.intra", "losses.ce_clip.rank", "losses.ce_clip.upper"), "losses/test_devices.py"),
}  # fmt: skip
# Told from another value beside NumPy restatements.
OF_RECIPES = {
    **dict.fromkeys(("data.color_jitter", "data.color_jitter_prob", "data.grayscale_prob", "patch_dropout",
                     "init.image_size"), "training/test_web_recipes.py"),
    **dict.fromkeys(("data.order", "data.weights"), "data/test_tar_pairs.py"),
    **dict.fromkeys(("optimizer.name", "optimizer.moments", "optimizer.schedule", "optimizer.warmup_steps",
                     "optimizer.cooldown_fraction"), "training/test_recipes.py"),
}  # fmt: skip
INPUT_KEYS: dict[str, Callable] = {}


def of(*keys: str) -> Callable:
    """Registers the test of some keys."""

    def register(test: Callable) -> Callable:
        INPUT_KEYS.update(dict.fromkeys(keys, test))
        return test

    return register


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("world"))


def pairs(batches: list) -> list[tuple[int, np.ndarray]]:
    """Image number and pixels of every pair."""
    return [pair for batch in batches for pair in zip(batch.image_id.tolist(), batch.images.pixels, strict=True)]


def test_processes_read_a_part_each_of_the_same_batch_of_features(world):
    context = world.context(**FEATURES_ALONE)
    features = make_input(context).features
    # Rows of devices that take turns on the mesh.
    parts = [FeatureInput(features, context, np.arange(start, context.config.batch_size, 2)) for start in range(2)]
    for batch in world.take(2, **FEATURES_ALONE):
        for start, part in enumerate(parts):
            np.testing.assert_array_equal(next(part).images.features, batch.images.features[start::2])


@of("seed", "batch_size")
def _(world):
    for seed, size in ((3, 4), (4, 4), (3, 6)):
        seen = [batch.image_id for batch in world.take(2, seed=seed, batch_size=size)]
        np.testing.assert_array_equal(np.concatenate(seen), order(seed)[: 2 * size])


@of("data.images", "data.captions")
def _(world):
    other = world.folder / "other"
    other.mkdir()
    for number in range(IMAGES):
        Image.fromarray(pixels_of(number, np.arange(COLUMNS), lift=5)).save(other / f"{number:02}.png")
    lines = [{"image": f"{n:02}.png", "caption": [f"a big cat {ADJECTIVES[n % 5]}"]} for n in range(IMAGES)]
    (world.folder / "other.json").write_text(json.dumps(lines))
    for number, pixels in pairs(world.take()):
        np.testing.assert_array_equal(pixels, pixels_of(number))
    for number, pixels in pairs(world.take(data__images=str(other))):
        np.testing.assert_array_equal(pixels, pixels_of(number, lift=5))
    batches = world.take(data__captions=str(world.folder / "other.json"))
    numbers = [int(number) for batch in batches for number in batch.image_id]
    assert world.texts(batches) == [f"a big cat {ADJECTIVES[number % 5]}" for number in numbers]


@of("data.split")
def _(world):
    word = dict(zip(("train", "test"), ADJECTIVES, strict=False))
    lines = [{"image": f"{n:02}.png", "split": split, "caption": [f"a big cat {word[split]}"]}
             for n, split in enumerate(["train", "test"] * (IMAGES // 2))]  # fmt: skip
    (world.folder / "split.json").write_text(json.dumps(lines))
    for split in word:
        batches = world.take(data__captions=str(world.folder / "split.json"), data__split=split)
        assert {*world.texts(batches)} == {f"a big cat {word[split]}"}
        assert max(number for batch in batches for number in batch.image_id.tolist()) < IMAGES // 2


@of("data.captions_per_image")
def _(world):
    def drawn(choice: str) -> list[tuple[int, str]]:
        batches = world.take(9, data__captions_per_image=choice)
        return list(
            zip(np.concatenate([batch.image_id for batch in batches]).tolist(), world.texts(batches), strict=True)
        )

    every = sorted((number, caption) for number in range(IMAGES) for caption in captions_of(number))
    assert sorted(drawn("all")) == every
    assert set(drawn("one")) < set(every)


@of("data.random_crop_min_scale")
def _(world):
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


@of("data.flip")
def _(world):
    mirrored = []
    for number, pixels in pairs(world.take(data__flip=True)):
        mirrored.append(bool((pixels == pixels_of(number)[:, ::-1]).all()))
        assert mirrored[-1] or (pixels == pixels_of(number)).all()
    assert 4 < sum(mirrored) < 20


@of("data.resize_prob")
def _(world):
    for probability, low, high in ((0.0, 0, 0), (0.5, 5, 19), (1.0, 24, 24)):
        whole = 0
        for number, pixels in pairs(world.take(data__resize_prob=probability)):
            whole += bool((pixels == resized(number)).all())
            assert (pixels == pixels_of(number)).all() or (pixels == resized(number)).all()
        assert low <= whole <= high


@of("data.on_decode_error")
def _(world):
    broken = with_a_broken_image(world.folder / "images", world.folder / "broken")
    batches = make_input(world.context(data__images=broken))
    numbers = np.concatenate([next(batches).image_id for _ in range(3)])
    assert batches.counts["skipped_images"] == 1 and 7 not in numbers
    with pytest.raises(InputError, match=r"07\.png"):
        world.take(3, data__images=broken, data__on_decode_error="raise")


@of("data.text_length")
def _(world):
    whole, cut = (world.take(1, data__text_length=length)[0].texts for length in (0, 5))
    assert whole.ids.shape == (4, 24) and cut.ids.shape == (4, 5)
    np.testing.assert_array_equal(cut.ids, np.concatenate([whole.ids[:, :4], np.full((4, 1), 2)], 1))
    longer = dataclasses.replace(world.spec, text=dataclasses.replace(world.spec.text, context_length=77))
    assert [text_length(length, tiny_encoder(spec=longer)) for length in (0, 60)] == [48, 60]


def altered(world, count: int = 6, **settings) -> list[tuple[str, str]]:
    """What was replaced by what in every altered caption."""
    batches = world.take(count, losses__sc__weight=1.0, **settings)
    texts, found = world.texts(batches), []
    for number, text in enumerate(world.texts(batches, "altered")):
        own = texts[number // (len(world.texts(batches, "altered")) // len(texts))].split()
        changed = [(old, new) for old, new in zip(own, text.split(), strict=True) if old != new]
        assert len(changed) == 1
        found += changed
    return found


ANIMALS, PLACES = {("dog", "cat"), ("dog", "owl")}, {("house", "boat"), ("house", "igloo")}


@of("losses.sc.variants")
def _(world):
    assert set(altered(world)) == ANIMALS
    assert set(altered(world, losses__sc__variants="diff_concept")) == {("dog", "boat"), ("dog", "igloo")}
    assert set(altered(world, losses__sc__variants="danger")) == {("dog", "weapon")}
    assert set(altered(world, losses__sc__variants="danger,same_concept")) == {("dog", "weapon"), *ANIMALS}
    words = {new for _, new in altered(world, losses__sc__variants="rand_voca")}
    assert len(words) > 5 and words < {"the", "two", "cat", "car", "man", "woman", "tree", "ball", "boat", *ADJECTIVES}


@of("losses.sc.select", "losses.sc.influence")
def _(world):
    other = str(world.folder / "lowest_house.jsonl")
    assert set(altered(world, losses__sc__select="highest")) == PLACES
    assert set(altered(world, losses__sc__influence=other)) == PLACES
    assert set(altered(world, losses__sc__influence=other, losses__sc__select="highest")) == ANIMALS
    assert set(altered(world, losses__sc__select="random")) == ANIMALS | PLACES


@pytest.mark.parametrize("select", ["lowest", "highest"])
def test_without_a_table_the_starting_model_says_which_word_changes_its_caption_least(world, select):
    settings = {"losses__sc__select": select, "losses__sc__influence": ""}
    batches = world.take(6, losses__sc__weight=1.0, **settings)
    assert (world.folder / "influence.jsonl").is_file()
    for text, other in zip(world.texts(batches), world.texts(batches, "altered"), strict=True):
        without = [" ".join(word for word in text.split() if word != noun) for noun in ("dog", "house")]
        whole, *others = world.encoder.encode_text([text, *without])
        wanted = {"lowest": np.argmax, "highest": np.argmin}[select]([whole @ each for each in others])
        assert [noun for noun in ("dog", "house") if noun not in other.split()] == [("dog", "house")[wanted]]


@of("losses.sc.lexicon", "losses.sc.fit_article")
def _(world):
    assert set(altered(world, losses__sc__lexicon=str(world.folder / "other_lexicon.json"))) == {("dog", "sheep")}
    assert set(altered(world, losses__sc__fit_article=True)) == {("dog", "cat")}


@of("losses.sc.count")
def _(world):
    for count in (1, 2):
        (batch,) = world.take(1, losses__sc__weight=1.0, losses__sc__count=count)
        assert batch.valid["altered"].shape == (4, count) and batch.valid["altered"].all()
    assert {*altered(world, 1, losses__sc__count=2)[:2]} == ANIMALS


@of("losses.hard_positives.negatives", "losses.hard_positives.count")
def _(world):
    captions = [caption for number in range(IMAGES) for caption in captions_of(number)]
    triples = []
    for caption in captions:
        for noun in ("cat", "man", "car"):
            negative = caption.replace("dog", noun)
            triples.append({"caption": caption, "hard_positive": f"the {caption}", "hard_negative": negative})
    (world.folder / "one.json").write_text(json.dumps(triples))
    hard = {"losses__hard_positives__weight": 1.0, "losses__hard_positives__negatives": str(world.folder / "one.json")}
    for count in (1, 2):
        batches = world.take(losses__hard_positives__count=count, **hard)
        own = world.texts(batches)
        assert world.texts(batches, "positive") == [f"the {caption}" for caption in own]
        negatives = world.texts(batches, "negative")
        for number, caption in enumerate(own):
            drawn = negatives[count * number : count * (number + 1)]
            assert len(set(drawn)) == count
            assert set(drawn) < {caption.replace("dog", noun) for noun in ("cat", "man", "car")}


@of("data.cached_features", "data.feature_noise")
def _(world):
    def take(**settings) -> list:
        return world.take(2, **FEATURES_ALONE, **settings)

    quiet, noisy = take(), take(data__feature_noise=0.5)
    everything = world.encoder.image_features(np.stack([pixels_of(number) for number in range(IMAGES)]))
    captions = [caption for number in range(IMAGES) for caption in captions_of(number)]
    texts = world.encoder.text_features(captions)
    for step, (batch, loud) in enumerate(zip(quiet, noisy, strict=True)):
        assert batch.images.pixels is None and batch.texts.ids is None
        np.testing.assert_array_equal(batch.image_id, order(3)[4 * step :][:4])
        np.testing.assert_allclose(batch.images.features, everything[batch.image_id], atol=1e-5)
        for number, row in zip(batch.image_id, batch.texts.features, strict=True):
            assert np.abs(texts[3 * number : 3 * number + 3] - row).max(1).min() < 1e-5
        random = np.random.default_rng([3, step, 3])
        for found, still, every in (
            (loud.images, batch.images, everything), (loud.texts, batch.texts, texts)):  # fmt: skip
            noise = 0.5 * every.std(0) * random.standard_normal(still.features.shape, np.float32)
            np.testing.assert_allclose(found.features - still.features, noise, atol=1e-4)


@of("data.feature_pool.captions", "data.feature_pool.mixed")
def _(world):
    pools = {"captions": 3, "mixed": 4}
    settings = {f"data__feature_pool__{name}": size for name, size in pools.items()}
    chosen = {"losses__sc__weight": 1.0, "losses__vc__weight": 1.0, "losses__vc__views": "crop,resize"}
    made = make_input(world.context(**FEATURES_ALONE, **settings, **chosen, losses__vc__ratio=0.6))
    features = made.features
    assert features.pools["altered"].valid.all()
    possible = [[c.replace("dog", new) for new in ("cat", "owl")] for n in range(IMAGES) for c in captions_of(n)]
    right = world.encoder.text_features([text for each in possible for text in each]).reshape(len(possible), 2, -1)
    distance = np.abs(features.pools["altered"].features[:, :, None] - right[:, None]).max(-1)
    assert distance.shape[1] == 3 and distance.min(-1).max() < 1e-5
    which = distance.argmin(-1)
    assert (which == which[:, :1]).all(1).mean() < 0.6  # draws of a pool differ
    drawn = {"altered": set(), "mixed": set()}
    for batch in (next(made) for _ in range(6)):
        for row, number in enumerate(batch.image_id):
            caption = int(np.abs(features.texts - batch.texts.features[row]).max(1).argmin())
            assert features.first[number] <= caption < features.first[number + 1]
            for field, item in (("altered", caption), ("mixed", number)):
                (of_row,) = batch.fields[field].features[row]
                (places,) = np.nonzero((features.pools[field].features[item] == of_row).all(1))
                drawn[field] |= set(places.tolist())
                assert len(places)
    assert drawn == {"altered": {0, 1, 2}, "mixed": {0, 1, 2, 3}}
    views = [np.stack([view(number) for number in range(IMAGES)]) for view in (pixels_of, resized)]
    mixed = features.pools["mixed"].features
    assert mixed.shape[1] == 4
    for place in range(4):
        images = views[place // 2]
        shuffled = np.random.default_rng([0, place]).permutation(IMAGES)
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(0), place), 0)
        method = ("mixup", "cutmix")[place % 2]
        rows = [mix_row(images[shuffled], row, key, method, 0.6, IMAGES)[0] for row in range(IMAGES)]
        np.testing.assert_allclose(mixed[shuffled, place], world.encoder.image_features(np.stack(rows)), atol=1e-4)


def test_workers_are_started_where_a_run_is_long(world, monkeypatch):
    monkeypatch.setattr(batches, "usable_cores", lambda: 6)
    assert [workers_of("auto", images) for images in (2_000, 19_999, 20_000, 2 * 10**8)] == [0, 0, 6, 6]
    assert [workers_of(number, 2 * 10**8) for number in (0, 3)] == [0, 3]
    for value in (-1, "some", 1.5, True):
        with pytest.raises(InputError, match=r"config.data.workers: found .*; wanted 'auto', or 0 or more"):
            check_config(world.config_of(data__workers=value))
    assert read_config(CHECKOUT / "configs" / "coco_finetune.py", ["config.data.workers=3"]).data.workers == 3


@of("init.model", "init.spec", "init.preprocessing", "init.tokenizer", "init.residual_head_width")
def _(world):
    start = str(world.folder / "start")
    taken, right = starting_encoder(world.config_of(init__model=start)), parameters_of(world.encoder.model)
    for path, array in parameters_of(taken.model).items():
        np.testing.assert_array_equal(array, right[path])
    preprocessing = Preprocessing(exact_size=(SIDE, SIDE), mean=(0.1, 0.2, 0.3))
    config = world.config_of(init__tokenizer=start)
    config.init.spec, config.init.preprocessing = tiny_spec(8).to_json(), preprocessing.to_json()
    made = starting_encoder(config)
    assert (made.spec, made.preprocessing) == (tiny_spec(8), preprocessing) and made.spec != taken.spec
    assert made.tokenizer.encode(["a red dog"]) == world.encoder.tokenizer.encode(["a red dog"])
    grown = starting_encoder(world.config_of(init__model=start, init__residual_head_width=6))
    added = parameters_of(grown.model).keys() - right.keys()
    assert "vision_head.up.kernel" in added and parameters_of(grown.model)["vision_head.up.kernel"].shape == (16, 6)


@pytest.mark.parametrize(
    "test", {test: key for key, test in reversed(INPUT_KEYS.items())}.items(), ids=lambda each: each[1]
)
def test_two_values_give_two_inputs_each_the_expected_one(test, world):
    test[0](world)


@pytest.mark.parametrize("key", flat(default_config()))
def test_every_key_has_a_test_that_tells_two_values_apart(key):
    known = [key in group for group in (STEP_KEYS, INPUT_KEYS, SAME_RESULT, OF_DEFENCES, OF_RECIPES)]
    assert any(known), f"{key}: add a case to tests/support/step_cases.py, or a test to this file"
    assert not (key in SAME_RESULT and sum(known) > 1)


def test_no_test_is_of_a_key_that_does_not_exist():
    assert {*STEP_KEYS, *INPUT_KEYS, *SAME_RESULT, *OF_DEFENCES, *OF_RECIPES} <= flat(default_config()).keys()
    assert all((CHECKOUT / "tests" / test).exists() for test in (*OF_DEFENCES.values(), *OF_RECIPES.values()))
