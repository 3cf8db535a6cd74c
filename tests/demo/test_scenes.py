"""The demo's scenes, captions and alterations: the same everywhere, splits apart, grammatical, never a no-op."""

import itertools
import re
import subprocess
import sys

import numpy as np
import pytest
import scipy.interpolate
from PIL import Image

from rococo_jax.benchmarks.rococo.annotations import altered_pairs, is_no_op, read_annotation_folder
from rococo_jax.benchmarks.rococo.generate import alter_captions
from rococo_jax.checkpoints.zoo import shipped_models
from rococo_jax.data.caption_forms import read_captions
from rococo_jax.data.captioned_images import open_pairs
from rococo_jax.data.captions import CaptionedImage
from rococo_jax.demo import training_scenes
from rococo_jax.demo.benchmark import write_benchmark
from rococo_jax.demo.captions import article_of, captions_of, demo_lexicon, plural_of
from rococo_jax.demo.drawing import COLOURS, INK, Brush, smooth
from rococo_jax.demo.objects import OBJECTS, PLACES
from rococo_jax.demo.scenes import SPLITS, draw_scene, make_scene
from rococo_jax.encoders import load_model
from rococo_jax.perturb.text import VARIANTS
from rococo_jax.perturb.text import words as english
from rococo_jax.perturb.text.lexicon import open_lexicon
from tools.build_demo_tokenizer import make_tokenizer

COUNT = 200
FIRST_CAPTIONS = [
    "There is a yellow chair beneath a black dog in a sandy desert.",
    "A black puppy is on top of a yellow chair in a hot desert.",
    "A huge black dog among the dunes.",
    "A large black dog stands on top of a yellow chair in a sandy desert.",
    "A view of a dog near some furniture in a sandy desert",
]
BACKGROUND = (200, 220, 200)

pytestmark = pytest.mark.quick  # bounds leave room for another arithmetic


@pytest.fixture(scope="module")
def scenes():
    return [make_scene("test", 1, index) for index in range(COUNT)]


@pytest.fixture(scope="module")
def captioned(scenes):
    return [CaptionedImage(f"{scene.name}.png", tuple(captions_of(scene))) for scene in scenes]


@pytest.fixture(scope="module")
def texts(captioned):
    return [text for item in captioned for text in item.captions]


@pytest.fixture(scope="module")
def encoder():
    return load_model(shipped_models()["plain"])


@pytest.fixture(scope="module")
def alterations(captioned, encoder):
    """(altered captions, changes) of the first 15 images by variant."""
    return altered(captioned[:15], encoder)


def altered(items, encoder, seed=1, variants=VARIANTS):
    made = alter_captions(encoder, items, variants, lexicon=demo_lexicon(), seed=seed, fit_article=True)
    return {variant: (each.items, each.records()) for variant, each in made.items()}


def _words(text):
    return re.findall(r"[a-z]+", text.lower())


def _named(item):
    words = (*item.kind.nouns, *map(plural_of, item.kind.nouns))
    return re.compile(rf"\b({'|'.join(words)})\b")


FINGERPRINT = """
from rococo_jax.demo.captions import captions_of
from rococo_jax.demo.scenes import draw_scene, make_scene
from rococo_jax.storage import hash_bytes
def fingerprint(index):
    scene = make_scene("test", 1, index)
    return hash_bytes(draw_scene(scene, 64).tobytes(), "|".join(captions_of(scene)).encode())
"""


def test_a_scene_is_the_same_in_any_order_and_in_a_fresh_process():
    space = {}
    exec(FINGERPRINT, space)
    in_order = [space["fingerprint"](index) for index in range(6)]
    backwards = [space["fingerprint"](index) for index in reversed(range(6))][::-1]
    command = [sys.executable, "-c", f"{FINGERPRINT}print(*map(fingerprint, range(6)))"]
    # Another hash seed, so that no order of a set or address of an object can slip in.
    fresh = subprocess.run(command, env={"PYTHONHASHSEED": "77"}, capture_output=True, text=True, check=True)
    assert in_order == backwards == fresh.stdout.split() and len(set(in_order)) == 6


def test_the_captions_of_the_first_scene_never_change():
    # Written down when the scenes were made: a change of the stream would make old results incomparable.
    assert captions_of(make_scene("test", 1, 0)) == FIRST_CAPTIONS


def test_splits_have_no_composition_in_common():
    compositions = {
        split: {
            (scene.place.name, *sorted(item.kind.name for item in (scene.main, scene.other) if item))
            for scene in (make_scene(split, 0, index) for index in range(400))
        }
        for split in SPLITS
    }
    for one, other in itertools.combinations(compositions.values(), 2):
        assert not one & other


def test_training_scenes_contain_every_kind_of_object_and_every_place():
    train = [make_scene("train", 0, index) for index in range(2000)]
    assert {kind.name for kind in OBJECTS} == {scene.main.kind.name for scene in train}
    assert {place.name for place in PLACES} == {scene.place.name for scene in train}
    assert len(OBJECTS) >= 50


def test_only_flying_objects_are_above_others_and_standing_objects_are_on_the_ground():
    fliers, seen = {"bird", "butterfly", "airplane", "balloon", "kite"}, set()
    for scene in (make_scene("train", 0, index) for index in range(400)):
        names = [item and item.kind.name for item in (scene.main, scene.other, scene.extra)]
        seen.add((scene.relation, *(None if name is None else name in fliers for name in names)))
    grounded = {(relation, False, False, extra) for relation in ("left of", "right of", "on", "in front of")
                for extra in (None, True)}  # fmt: skip
    assert seen == grounded | {("above", True, False, None), ("alone", False, None, None), ("alone", True, None, None)}


@pytest.mark.parametrize(("old", "new"), [("duck", "bird"), ("owl", "bird"), ("fir", "tree"), ("boat", "ship")])
def test_a_noun_is_never_replaced_by_a_more_general_one(old, new):
    lexicon = demo_lexicon()
    assert not lexicon.alters(lexicon.find(old), lexicon.find(new))
    # A narrower word in place of a wider one may be false.
    assert lexicon.alters(lexicon.find("bird"), lexicon.find("duck"))


def test_an_unknown_split_is_refused():
    with pytest.raises(ValueError, match="holdout"):
        make_scene("holdout", 0, 0)


def drawn(kind, frame, colour, size, **options):
    picture = Image.new("RGB", (size, size), BACKGROUND)
    kind.draw(Brush(picture, *frame, **options), colour)
    return np.asarray(picture).astype(np.int32)


@pytest.mark.parametrize("kind", OBJECTS, ids=lambda kind: kind.name)
def test_every_object_is_drawn_large_in_its_colour_with_an_outline(kind):
    colour = COLOURS[kind.colours[0]]
    picture, outlined = (drawn(kind, (96, 170, 140), colour, 192, outline=each) for each in (None, (INK, 0.03)))
    painted, edge = ((each != BACKGROUND).any(axis=2) for each in (picture, outlined))
    assert painted.mean() > 0.06
    # The outline reaches beyond the paint on all sides and leaves none of it uncovered, but for a pixel of rounding.
    assert edge.sum() > painted.sum() and (painted & ~edge).mean() < 0.001
    assert (picture == colour).all(axis=2).sum() > 60


def test_flipping_an_object_mirrors_it():
    plain, flipped = (drawn(OBJECTS[1], (100, 180, 150), COLOURS["brown"], 201, flip=flip) for flip in (False, True))
    # Rasterised edges may differ by a pixel between the two directions.
    assert ((plain != flipped[:, ::-1]).any(axis=2)).mean() < 0.03
    assert ((plain != flipped).any(axis=2)).mean() > 0.1


@pytest.mark.parametrize("closed", [False, True])
def test_an_outline_is_the_catmull_rom_spline_through_its_points(closed):
    """A cubic with half the difference of the neighbours of a point as its slope; an end is its own neighbour."""
    points = np.random.default_rng(0).normal(size=(6, 2))
    padded = np.concatenate([points[-1:], points, points[:2]] if closed else [points[:1], points, points[-1:]])
    curve = scipy.interpolate.CubicHermiteSpline(range(len(padded) - 2), padded[1:-1], (padded[2:] - padded[:-2]) / 2)
    expected = curve(np.arange(0, len(padded) - 3 + (0 if closed else 1e-9), 1 / 4))
    np.testing.assert_allclose(smooth(list(map(tuple, points.tolist())), closed, steps=4), expected, atol=1e-12)


def test_an_image_has_the_requested_size_and_looks_the_same_at_any_size(scenes):
    small, large = draw_scene(scenes[0], 64), draw_scene(scenes[0], 256)
    assert small.size == (64, 64) and large.size == (256, 256) and small.mode == "RGB"
    difference = np.asarray(large.reduce(4), np.float32) - np.asarray(small, np.float32)
    # Lines a pixel wide round to another width; everything else agrees.
    assert np.abs(difference).mean() < 6


def test_every_image_has_five_different_captions_and_few_are_shared(captioned, texts):
    assert all(len(item.captions) == 5 == len(set(item.captions)) for item in captioned)
    assert len(set(texts)) > 0.98 * len(texts)


def test_captions_agree_in_article_and_number_and_start_with_a_capital(texts):
    for text in texts:
        assert text[0].isupper() and "  " not in text and " ." not in text and "{" not in text
        for article, word in itertools.pairwise(_words(text)):
            assert article not in ("a", "an") or article == article_of(word), text
        assert not re.search(r"\b(two|three|four) \S+ (is|stands|waits|flies)\b", text), text


def test_captions_with_left_or_right_describe_the_true_positions(captioned, scenes):
    found = 0
    for scene, item in ((s, i) for s, i in zip(scenes, captioned, strict=True) if s.relation == "left of"):
        main, other = _named(scene.main), _named(scene.other)
        for text in map(str.lower, item.captions):
            if match := re.search(r" (to|on) the (left|right) of ", text):
                first, second = (main, other) if match[2] == "left" else (other, main)
                assert first.search(text[: match.start()]) and second.search(text[match.end() :]), text
                found += 1
    assert found > 20


@pytest.mark.parametrize(
    ("noun", "plural"),
    [("cherry", "cherries"), ("bus", "buses"), ("boy", "boys"), ("woman", "women"), ("couch", "couches")],
)
def test_plurals_are_formed_correctly(noun, plural):
    assert plural_of(noun) == plural


def test_nearly_every_caption_can_be_altered(alterations):
    for variant, (items, _) in alterations.items():
        left = sum(text is None for item in items for text in item.altered)
        # After "an" the Danger words fit nowhere.
        assert left <= (3 if variant == "danger" else 0), variant


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_article_before_an_inserted_word_fits(alterations, variant):
    items, changes = alterations[variant]
    texts = [text for item in items for text in item.altered]
    for text, change in zip(texts, itertools.chain(*changes), strict=True):
        if text is not None and change["word_index"]:
            words = [word.text for word in english.split_words(text)][change["word_index"] - 1 :]
            assert words[0].lower() not in ("a", "an") or words[0].lower() == english.article_of(words[1]), text


def test_the_benchmark_on_disk_is_read_like_one_of_a_user(tmp_path):
    write_benchmark(tmp_path, count=8, seed=3)
    annotations = read_annotation_folder(tmp_path / "annotations")
    assert set(annotations.variants) == set(VARIANTS) and not annotations.ignored
    assert tuple(annotations.clean) == read_captions(tmp_path / "annotations" / "captions.json").items
    for variant in annotations.variants.values():
        assert not any(is_no_op(*pair, normalised=True) for _, *pair in altered_pairs(variant.items))
    for item in annotations.clean:
        with Image.open(tmp_path / "images" / item.image) as picture:
            assert picture.size == (256, 256) and picture.mode == "RGB"


def test_importing_the_demo_registers_its_scenes_and_its_lexicon(monkeypatch, tmp_path):
    monkeypatch.setenv("ROCOCO_CACHE", str(tmp_path))
    source = open_pairs("scenes:5")
    for index in range(5):
        assert source[index].captions == tuple(captions_of(make_scene("train", 0, index)))
    assert open_lexicon("demo").hash() == demo_lexicon().hash() != open_lexicon().hash()


def test_scenes_are_drawn_again_if_pictures_are_drawn_otherwise(monkeypatch, tmp_path):
    monkeypatch.setenv("ROCOCO_CACHE", str(tmp_path))
    before = open_pairs("scenes:3")[0].image
    monkeypatch.setattr(training_scenes, "_FINENESS", 1)
    assert open_pairs("scenes:3")[0].image != before


def test_the_tokenizer_knows_every_word_that_captions_and_alterations_use(texts, alterations):
    tokenizer = make_tokenizer(scenes=300)
    unknown = tokenizer.rust.token_to_id("[UNK]")
    altered_texts = [text for items, _ in alterations.values() for item in items for text in item.altered if text]
    for text, ids in zip([*texts, *altered_texts], tokenizer.encode([*texts, *altered_texts]), strict=True):
        # Whole words: brackets, words and full stop, nothing spelled.
        assert unknown not in ids and len(ids) <= 3 + len(_words(text)) + text.count(",")
    (spelled,) = tokenizer.encode(["Zyzzyva 42?"])
    assert unknown not in spelled and len(spelled) == 2 + 7 + 2 + 1


def test_the_shipped_model_retrieves_scenes_and_is_fooled_by_one_word(encoder):
    count = 100
    drawn = [make_scene("validation", 11, index) for index in range(count)]
    items = [CaptionedImage(f"{scene.name}.png", tuple(captions_of(scene))) for scene in drawn]
    images = encoder.encode_image([draw_scene(scene, 96) for scene in drawn])
    originals = encoder.encode_text([text for item in items for text in item.captions])
    owner = np.repeat(np.arange(count), 5)
    similarities = images @ originals.T
    # Chance is 1 %; the bounds leave room for another machine's arithmetic and another release of Pillow.
    assert (owner[similarities.argmax(axis=1)] == np.arange(count)).mean() > 0.4
    assert (similarities.argmax(axis=0) == owner).mean() > 0.3
    for variant, (altered_items, _) in altered(items[:20], encoder, seed=11).items():
        texts = encoder.encode_text([text for item in altered_items for text in item.altered if text])
        fooled = (images[:20] @ texts.T).max(axis=1) > similarities[:20, :100].max(axis=1)
        assert 0.05 < fooled.mean() < 0.9, variant
