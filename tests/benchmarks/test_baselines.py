"""Baselines without images: what they prefer, what they must not have read, and the command on small and real files."""

import json
from pathlib import Path

import numpy as np
import pytest

from rococo_jax.benchmarks.baselines import read_text_pairs, text_baselines
from rococo_jax.benchmarks.sugarcrepe import PARTS
from rococo_jax.cli.main import main
from rococo_jax.perturb.text.ngrams import NgramModel, words_of

TEXTS = ("a dog on a bed", "a bed on a dog", "a dog on a weapon", "A dog, on a bed in the house.")
ONE = np.array([0])


def preferred(texts, training=None) -> dict[str, list[float]]:
    """What each baseline prefers of the first text and each of the others."""
    scorers = text_baselines(texts, None if training is None else tuple(training))
    return {name: [float(f(ONE, np.array([k]))[0]) for k in range(1, len(texts))] for name, f in scorers.items()}


def test_each_baseline_prefers_what_it_says():
    training = ["a dog on the bed", "the dog on a bed", "a bed", "a cat on a bed"]
    found = preferred(TEXTS, training)
    assert found["shorter"] == [0.5, 0.5, 1.0]
    assert found["bag_of_words"] == [0.5, 1.0, 1.0]
    model = NgramModel(map(words_of, training))
    scores = [model.log_probability(words_of(text)) for text in TEXTS]
    for order, name in enumerate(("bigram", "trigram")):
        assert found[name] == [float(scores[0][order] > other[order]) for other in scores[1:]]
    assert found["bigram"][1] == 1.0


def test_training_captions_that_are_asked_about_do_not_count_and_without_any_there_are_no_ngram_models():
    others = ["a dog on the bed", "a weapon on the house", "a cat"]
    leaked = [*others, "A dog on a bed.", "a dog on a weapon", "a dog on a weapon"]
    assert preferred(TEXTS, leaked) == preferred(TEXTS, others)
    assert set(preferred(TEXTS)) == {"shorter", "bag_of_words"}


@pytest.fixture
def folders(tmp_path) -> Path:
    """Altered captions beside plain ones, and benchmarks of choices with one right text and with two."""
    originals = [
        f"a dog on {what} {where}" for where in ("here", "there") for what in ("a bed", "the sea", "top", "it", "land")
    ]
    clean = [{"image": f"{n}.jpg", "caption": originals[5 * n : 5 * n + 5]} for n in range(2)]
    danger = [{**item, "caption": [*item["caption"], *map("{} weapon".format, item["caption"])]} for item in clean]
    plus = {"id": 0, "filename": "0.jpg", "caption": "a dog", "caption2": "one dog", "negative_caption": "a big cat"}
    made = {
        "rococo/coco_karpathy_test": clean,
        "rococo/danger": danger,
        "crepe/swap_att": {"0": {"filename": "0.jpg", "caption": "a red dog", "negative_caption": "a dog red"}},
        "plus/swap_att": [plus],
        "train": [{"image": "t.jpg", "caption": ["a red dog", "a blue sea here"]}],
    }
    for name, value in made.items():
        path = tmp_path / f"{name}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(value))
    return tmp_path


def test_the_command_reads_altered_captions_and_choices_among_texts(folders, capsys):
    given, out = [str(folders / name) for name in ("rococo", "crepe", "plus")], folders / "out.json"
    assert main(["baselines", *given, "--captions", str(folders / "train.json"), "--out", str(out)]) == 0
    written = json.loads(out.read_text())
    assert written["captions"]["captions"] == 2
    figures = {str(Path(part).relative_to(folders)): each for part, each in written["baselines"].items()}
    sizes = {part: len(each) for part, each in figures.items()}
    assert sizes == {"rococo/danger": 4, "crepe/swap_att": 4, "plus/swap_att": 4}
    assert figures["rococo/danger"]["shorter"]["preference"] == 100.0
    assert figures["rococo/danger"]["shorter"]["pairs"] == 10
    assert figures["crepe/swap_att"]["bag_of_words"]["preference"] == 50.0
    assert figures["plus/swap_att"]["shorter"] == {"preference": 100.0, "interval": [100.0, 100.0], "pairs": 2}
    assert "Shorter wins" in capsys.readouterr().out


def test_annotations_without_a_wrong_text_are_refused_in_one_line(tmp_path, refusal):
    (tmp_path / "captions.json").write_text(json.dumps([{"image": "a.jpg", "caption": ["one", "two"]}]))
    error = refusal("baselines", tmp_path)
    assert "pairs: found none; wanted a right and a wrong text" in error and error.count("\n") == 1


@pytest.mark.real_data
def test_published_texts_can_be_told_apart_without_images(real_data, tmp_path):
    """Figures of another bigram model, with other captions and smoothing: 89.5 (same_concept), 79.7 (SugarCrepe)."""
    captions = json.loads((real_data / "coco" / "captions_train.json").read_text())
    training = tuple(caption for item in captions for caption in item["caption"])
    for name in ("coco_karpathy_test.json", "same_concept.json"):
        (tmp_path / name).symlink_to(real_data / "rococo/annotations" / name)
    crepe = read_text_pairs(real_data / "compositionality/sugar_crepe")
    files = [read_text_pairs(tmp_path)["same_concept"], *(crepe[part] for part in PARTS)]
    # One table of all texts, so that n-gram models are fitted once.
    row = {text: number for number, text in enumerate(dict.fromkeys(text for each in files for text in each.texts))}
    scorers, preferences = text_baselines(tuple(row), training), []
    for pairs in files:
        place = np.array([row[text] for text in pairs.texts])
        sides = place[pairs.right], place[pairs.wrong]
        preferences.append({name: prefer(*sides) for name, prefer in scorers.items()})
    rococo, *crepe = preferences
    assert 100 * rococo["bigram"].mean() == pytest.approx(89.5, abs=2)
    mean = {name: 100 * np.concatenate([of_part[name] for of_part in crepe]).mean() for name in crepe[0]}
    assert mean["bigram"] == pytest.approx(79.7, abs=2)
    # 7.6 % have equal bags, of which each counts one half.
    assert mean["bag_of_words"] == pytest.approx(100 - 7.6 / 2, abs=0.05)
    added = [of_part["shorter"] for part, of_part in zip(PARTS, crepe, strict=True) if part.startswith("add")]
    assert 100 * np.concatenate(added).mean() == pytest.approx(98.5, abs=1)
