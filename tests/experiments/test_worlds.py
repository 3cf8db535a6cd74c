"""Numbers of the experiments on words, ties, hubs and bindings, against restatements image by image."""

import numpy as np
import pytest
from scipy import stats

torch = pytest.importorskip("torch")

GENERATOR = np.random.default_rng(5)


def unit(*shape):
    vectors = GENERATOR.normal(size=shape)
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


@pytest.fixture(scope="module")
def words(experiment):
    return experiment("single_words")


@pytest.fixture(scope="module")
def hubs(experiment):
    return experiment("hubs")


@pytest.fixture(scope="module")
def ties(experiment):
    return experiment("ties")


def test_recall_follows_its_definition_for_each_image(words):
    images, owner = unit(20, 8), np.repeat(np.arange(20), 3)
    captions, altered = images[owner] + 1.2 * unit(60, 8), images[:15] + 1.2 * unit(15, 8)
    outcome = words.recall(images, captions, altered, owner)
    for image in range(20):
        scores = captions @ images[image]
        own, other = scores[owner == image].max(), scores[owner != image].max()
        false = max(altered @ images[image])
        assert outcome["clean"][image] == (own > other)
        assert outcome["r1"][image] == (own > other and own > false)
        assert outcome["fr1"][image] == (false >= own and false >= other)
    assert 0 < outcome["fr1"].sum() < 20 and outcome["r1"].sum() < outcome["clean"].sum()


def test_grounding_against_nearest_images_counts_only_those_images(words):
    features, preferences = GENERATOR.normal(size=(9, 4)), GENERATOR.integers(0, 3, (5, 9)).astype(float)
    matching = np.array([0, 1, 1, 3, 5])
    nearest = words.order_by_distance(features, 6)
    for count in (1, 3, None):
        shares = words.grounding(preferences, matching, nearest, count)
        for pair, image in enumerate(matching):
            cosines = {
                other: -features[other] @ features[image] / np.linalg.norm(features[other])
                for other in range(9)
                if other != image
            }
            wrong = sorted(cosines, key=cosines.get)[:count]
            own = preferences[pair, image]
            wins = [1.0 if own > preferences[pair, each] else 0.5 * (own == preferences[pair, each]) for each in wrong]
            assert shares[pair] == pytest.approx(np.mean(wins))


def test_each_strategy_alters_the_same_captions_at_another_word(words, experiment):
    world = experiment("worlds").World(
        items=[words_of("a dog near a tree", "a cat"), words_of("a bird on a boat with a flower")],
        files=[], lexicon=demo_lexicon(), influence_model="", models={}, training_captions=[],
    )  # fmt: skip
    influences = [np.array([0.0, 0.3, 0.0, 0.0, 0.1]), np.array([0.0, 0.2]), np.arange(8) / 10]
    altered = words.alter_same_captions(world, influences, "same_concept", 0)
    # The caption with a single noun has no choice.
    assert {tuple(each.captions) for each in altered.values()} == {(0, 2)}
    lowest, highest = altered["lowest"].texts, altered["highest"].texts
    assert lowest[0].startswith("a dog near a") and highest[0].endswith("near a tree")
    assert lowest[1].endswith("on a boat with a flower") and highest[1].startswith("a bird on a boat with a")
    assert lowest[0] != world.captions[0] != highest[0]


def words_of(*captions):
    from rococo_jax.data.captions import CaptionedImage

    return CaptionedImage("image.png", captions)


def demo_lexicon():
    from rococo_jax.demo.captions import demo_lexicon

    return demo_lexicon()


def test_a_universal_text_is_chosen_on_one_half_and_tested_on_the_other(hubs):
    half = np.array([True, False, True, False, True, False])
    beats = np.array([[1, 0], [0, 1], [1, 0], [0, 1], [0, 0], [1, 1]], bool)
    assert hubs.beaten_by_chosen_text(beats, half).tolist() == [False, False, True]
    assert hubs.beaten_by_chosen_text(beats, ~half).tolist() == [False, False, False]


def test_a_search_over_lists_finds_the_nouns_that_fool_most_images(hubs):
    class Texts:
        """A text's vector counts its nouns; the images are drawn to two of them."""

        def texts(self, texts):
            return np.array([[text.count(noun) for noun in ("ant", "bee", "cat")] for text in texts], float)

    images = np.array([[0, 1, 1]] * 3 + [[0, 1, 0]] * 3, float)
    half = np.arange(6) % 2 == 0
    own = np.array([1.5, 1.5, 1.5, 1.5, 2.5, 2.5])
    beaten = hubs.beaten_by_list(Texts(), ["ant", "bee", "cat"], images, own, half)
    # No single noun beats an image; "bee" comes nearest. "bee, bee" is above 1.5, "bee, bee, bee" above 2.5 as well.
    assert beaten.tolist() == [True, True, True]


def test_the_largest_hub_is_first_for_most_queries(hubs):
    scores = np.array([[3, 1, 0], [3, 0, 1], [0, 1, 3], [0, 3, 1]], float)
    assert hubs.in_largest_hub(scores).tolist() == [True, True, False, False]
    scores = GENERATOR.normal(size=(30, 25))
    counts = np.zeros(25)
    for row in scores:
        counts[np.argsort(row)[-hubs.FIRST :]] += 1
    assert hubs.skewness(scores) == pytest.approx(stats.skew(counts))


def test_ties_count_as_defined_by_the_protocol(ties):
    outcome = ties.count(np.array([1.0, 1.0, 0.0]), np.array([0.0, 1.0, 1.0]))
    assert [outcome[rule].tolist() for rule in ("first", "half", "strict")] == [[1, 1, 0], [1, 0.5, 0], [1, 0, 0]]


@pytest.mark.parametrize("dtype, bits", [(torch.bfloat16, 8), (torch.float16, 11)])
def test_scores_computed_in_16_bits_are_rounded_and_those_of_stored_embeddings_are_not(ties, dtype, bits):
    images, texts = unit(200, 64).astype(np.float32), unit(200, 64).astype(np.float32)
    exact = (images * texts).sum(axis=1)
    kept = ties.scores(images, texts, (dtype, dtype, dtype))
    mantissas, _ = np.frexp(kept)
    assert (mantissas * 2**bits == np.round(mantissas * 2**bits)).all()
    stored = ties.scores(images, texts, (dtype, torch.float32, torch.float32))
    assert 2.0 ** -(bits + 5) < np.abs(stored - exact).max() < 2.0**-bits and len(np.unique(stored)) == 200
    assert np.abs(kept - exact).max() < 8 * 2.0**-bits
    rounded = ties.scores(images, texts, (torch.float32, torch.float32, dtype))
    assert (np.abs(rounded - exact) <= np.abs(exact) * 2.0**-bits + 1e-6).all() and (rounded != exact).any()
    assert ties.scores(images, texts, (torch.float32,) * 3) == pytest.approx(exact, abs=1e-6)


def test_intervals_match_a_bootstrap_over_images(experiment):
    counts = GENERATOR.integers(1, 6, 300).astype(float)
    sums = GENERATOR.binomial(counts.astype(int), 0.3).astype(float)
    value, low, high = experiment("worlds").mean_over_images(np.append(sums, 0.0), np.append(counts, 0.0))
    theirs = stats.bootstrap(
        (sums, counts), lambda a, b, axis: a.sum(axis) / b.sum(axis), paired=True, method="percentile",
        n_resamples=4000, rng=np.random.default_rng(3),
    ).confidence_interval  # fmt: skip
    assert value == pytest.approx(100 * sums.sum() / counts.sum())
    assert [low, high] == pytest.approx([100 * theirs.low, 100 * theirs.high], abs=0.3)


def test_a_text_counts_as_seen_if_training_contains_all_its_distinct_bindings(experiment):
    bindings, ties = experiment("bindings"), experiment("ties")
    training = ["a red dog on a boat", "a tree behind a cat", "a blue bird"]
    pairs = [
        ("a red dog", "a blue dog"),  # the false side is unseen
        ("a cat behind a tree", "a tree behind a cat"),
        ("a blue bird", "a red bird"),
        ("a red cat", "a blue cat"),
        ("a red dog", "a red lion"),
        ("a dog", "a cat"),  # no binding
        ("a red dog on a boat", "a red dog on a blue boat"),  # the true side has none of its own
    ]
    items = ties.Items(np.arange(7), [true for true, _ in pairs], [false for _, false in pairs])
    bound = bindings.classify(items, training, demo_lexicon())
    assert bound.classes == [
        "true seen, false unseen (known words)",
        "true unseen, false seen",
        "true seen, false unseen (known words)",
        "true unseen, false unseen (known words)",
        "true seen, false unseen (new word)",
    ]
    assert bound.items.images.tolist() == [0, 1, 2, 3, 4] and bound.items.false[1] == "a tree behind a cat"
