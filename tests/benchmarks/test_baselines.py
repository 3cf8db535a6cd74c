"""Text-only baselines: what they prefer, and captions that they must not have seen."""

import json

import numpy as np
import pytest

from rococo_jax.benchmarks.baselines import NgramModel, plain_words, text_baselines
from rococo_jax.benchmarks.benchmark import find_benchmark
from rococo_jax.benchmarks.rococo.annotations import altered_pairs, read_annotation_folder

TEXTS = ("a dog on a bed", "a bed on a dog", "a dog on a weapon", "A dog, on a bed in the house.")
ONE = np.array([0])


def preferred(texts, training=None) -> dict[str, list[float]]:
    """Return the preferences of each baseline between the first text and each other text."""
    scorers = text_baselines(texts, None if training is None else tuple(training))
    return {name: [float(f(ONE, np.array([k]))[0]) for k in range(1, len(texts))] for name, f in scorers.items()}


def test_each_baseline_prefers_texts_by_its_definition():
    training = ["a dog on the bed", "the dog on a bed", "a bed", "a cat on a bed"]
    found = preferred(TEXTS, training)
    assert found["shorter"] == [0.5, 0.5, 1.0]
    assert found["bag_of_words"] == [0.5, 1.0, 1.0]
    model = NgramModel(map(plain_words, training))
    scores = [model.log_probability(plain_words(text)) for text in TEXTS]
    for order, name in enumerate(("bigram", "trigram")):
        assert found[name] == [float(scores[0][order] > other[order]) for other in scores[1:]]
    assert found["bigram"][1] == 1.0


def test_ngram_models_exclude_evaluated_captions_and_need_training_captions():
    others = ["a dog on the bed", "a weapon on the house", "a cat"]
    leaked = [*others, "A dog on a bed.", "a dog on a weapon", "a dog on a weapon"]
    assert preferred(TEXTS, leaked) == preferred(TEXTS, others)
    assert set(preferred(TEXTS)) == {"shorter", "bag_of_words"}


@pytest.mark.slow
@pytest.mark.real_data
def test_baselines_without_images_recognise_published_altered_texts(real_data, tmp_path):
    """The expected numbers are those of another bigram model: 89.5 (same_concept), 79.7 (SugarCrepe)."""
    captions = json.loads((real_data / "coco" / "captions_train.json").read_text())
    training = tuple(caption for item in captions for caption in item["caption"])
    for name in ("coco_karpathy_test.json", "same_concept.json"):
        (tmp_path / name).symlink_to(real_data / "rococo/annotations" / name)
    variant = read_annotation_folder(tmp_path).variants["same_concept"]
    pairs = {"rococo": [(original, altered) for _, original, altered in altered_pairs(variant.items)]}
    sugarcrepe = find_benchmark("sugarcrepe")
    tables, *_ = sugarcrepe.reader.read(real_data / "compositionality/sugar_crepe", sugarcrepe.files)
    pairs |= {part: [item.texts for item in items] for part, items in tables.parts.items()}
    # One table of all texts, so that the n-gram models are fitted once.
    texts = dict.fromkeys(text for part in pairs.values() for pair in part for text in pair)
    row = {text: number for number, text in enumerate(texts)}
    scorers = text_baselines(tuple(row), training)

    def preference(baseline, parts):
        rows = np.array([[row[right], row[wrong]] for part in parts for right, wrong in pairs[part]])
        return 100 * scorers[baseline](*rows.T).mean()

    parts = list(tables.parts)
    assert preference("bigram", ["rococo"]) == pytest.approx(89.5, abs=2)
    assert preference("bigram", parts) == pytest.approx(79.7, abs=2)
    # 7.6 % of the pairs have the same words, and each counts one half.
    assert preference("bag_of_words", parts) == pytest.approx(100 - 7.6 / 2, abs=0.05)
    added = [part for part in parts if part.startswith("add")]
    assert preference("shorter", added) == pytest.approx(98.5, abs=1)
