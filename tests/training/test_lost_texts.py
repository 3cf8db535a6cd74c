"""Altered captions that are cut to their originals are no negatives, and are counted."""

import json

import numpy as np
import pytest

from rococo_jax.training.inputs.batches import make_batches
from rococo_jax.training.run import run_training
from tests.support.input_world import IMAGES, features_and_batches
from tests.support.tiny_runs import FEATURES_ALONE, changed, mesh_of, metrics_of

# Of "<s> a dog sits red blue house </s>" four tokens and the end: the dog is read, the house is not.
CUT = {"data__text_length": 5, "losses__sc__count": 2}


def first_batch(world, field: str, **settings):
    """The first batch, which texts of a field are their captions, and the counts of the input."""
    batches = make_batches(world.context(**CUT, **settings))
    batch = next(batches)
    batches.close()
    same = (batch.fields[field].ids == batch.texts.ids[:, None]).all(-1)
    np.testing.assert_array_equal(batch.valid[field], ~same)
    return batch, same, batches.counts


@pytest.mark.parametrize(("word", "is_cut_off"), [("dog", False), ("house", True)])
def test_an_altered_caption_with_equal_tokens_is_not_used_as_a_negative(world, word, is_cut_off):
    table = str(world.folder / f"lowest_{word}.jsonl")
    _, same, counts = first_batch(world, "altered", losses__sc__weight=1.0, losses__sc__influence=table)
    assert (same == is_cut_off).all()
    assert counts == {"skipped_images": 0, "cut_texts": 4 * 3, "equal_altered_texts": 8 * is_cut_off}


def test_hard_negatives_with_equal_tokens_are_excluded_and_hard_positives_are_used(world, tmp_path):
    lines = []
    for item in json.loads((world.folder / "captions.json").read_text()):
        for caption in item["caption"]:
            far, near = caption.replace("house", "boat"), caption.replace("dog", "cat")
            lines += [{"caption": caption, "hard_positive": far, "hard_negative": each} for each in (far, near)]
    (tmp_path / "hard.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    keys = {"losses__hard_positives__weight": 1.0, "losses__hard_positives__count": 2}
    keys |= {"losses__hard_positives__negatives": str(tmp_path / "hard.jsonl")}
    batch, same, counts = first_batch(world, "negative", **keys)
    assert (same.sum(1) == 1).all() and batch.valid["positive"].all() and counts["equal_altered_texts"] == 4


@pytest.fixture(scope="module")
def long_captions(world) -> dict[str, str]:
    """Return captions that are one when cut to the model's 24 tokens; the dog comes later."""
    items = [{"image": f"{number:02}.png", "caption": ["a " * 30 + "dog"]} for number in range(IMAGES)]
    (world.folder / "long.json").write_text(json.dumps(items))
    keys = {"data__captions": str(world.folder / "long.json"), "losses__sc__influence": ""}
    return keys | {"losses__sc__select": "random", "losses__sc__weight": 1.0}


def test_pools_of_features_exclude_altered_captions_with_equal_tokens(world, long_captions):
    for keys, counts in ((long_captions, False), ({"losses__sc__weight": 1.0}, True)):
        features, _ = features_and_batches(world.context(**keys, **FEATURES_ALONE))
        pool = features.pools["altered"]
        assert pool.valid.shape[1] > 1 and (pool.valid == counts).all()


@pytest.mark.slow
def test_a_run_warns_once_of_truncated_texts_and_logs_their_number(world, long_captions, tmp_path, capsys):
    keys = {"init__model": str(world.folder / "start"), "steps": 2, "batch_size": 8, "log__every": 1}
    keys |= {"train__vision": "none", "train__text": "none"}
    run_training(changed(world.config_of(**long_captions), **keys), tmp_path / "run", mesh=mesh_of(1))
    lines = metrics_of(tmp_path / "run")
    # As negatives they were as near as the caption itself: ln (1 + 8).
    assert [line["sc"] for line in lines] == [0.0, 0.0]
    assert [(line["cut_texts"], line["equal_altered_texts"]) for line in lines] == [(16, 8), (32, 16)]
    assert capsys.readouterr().err.count("texts are truncated to 24 tokens") == 1
