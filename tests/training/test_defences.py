"""Every term against altered captions in one run, pools of hard positives, and what stays put."""

import json

import numpy as np
import pytest

from rococo_jax.checkpoints import save_model
from rococo_jax.checkpoints.parameters import parameters_of
from rococo_jax.cli.main import main
from rococo_jax.encoders import load_model
from rococo_jax.errors import InputError
from rococo_jax.perturb.text.kinds import KindAlterer
from rococo_jax.perturb.text.lexicon import shipped_lexicon
from rococo_jax.training import run
from rococo_jax.training.init import interpolated, starting_encoder
from rococo_jax.training.inputs.batches import make_batches, open_source
from rococo_jax.training.inputs.field_maker import FieldContext
from tests.support.tiny import tiny_encoder
from tests.support.tiny_runs import CAPTIONS, FEATURES_ALONE, changed, metrics_of, tiny_config, trained_parameters
from tests.support.world import noise, write_world

pytestmark = pytest.mark.usefixtures("one_device")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    texts = (*CAPTIONS, "a dog near a car", "a cat near a tree")
    captions = [texts[number % 5 :][:3] for number in range(16)]
    start = tiny_encoder(name="start")
    return write_world(tmp_path_factory.mktemp("data"), captions, picture=noise(40, 48), start=start)


@pytest.fixture(scope="module")
def config(folder):
    return tiny_config(folder, steps=3, batch_size=8, **FEATURES_ALONE)


WEIGHTS = {"sc": 1.0, "blind": 0.3, "grounding": 0.5, "hard_positives": 0.5}


@pytest.fixture(scope="module")
def every_term(folder, config, tmp_path_factory):
    """The log and the model of a run with every term."""
    tmp_path = tmp_path_factory.mktemp("every_term")
    pairs = [{"caption": text, "hard_positive": f"{text} there", "hard_negative": f"no {text}"} for text in CAPTIONS]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(each) + "\n" for each in pairs))
    settings = {f"losses__{name}__weight": weight for name, weight in WEIGHTS.items()}
    settings["losses__contrastive__altered_columns"] = True
    settings |= {"losses__hard_positives__negatives": str(tmp_path / "pairs.jsonl"), "train__heads": "text"}
    config = changed(config, losses__sc__variants="rand_voca", losses__sc__count=2, **settings)
    done = run.run_training(config, tmp_path / "run")
    return metrics_of(tmp_path / "run"), done.model


def test_every_loss_trains_on_pools_of_altered_captions_and_hard_positives(folder, every_term):
    (first, *_), model = every_term
    hard = first["hard_positive"] + first["hard_negative"]
    parts = {**first, "hard_positives": hard}
    total = first["contrastive"] + sum(weight * parts[name] for name, weight in WEIGHTS.items())
    np.testing.assert_allclose(first["loss"], total, rtol=1e-5)
    # Of the heads the text's alone is trained, as LABCLIP does.
    before, after = (trained_parameters(path) for path in (folder / "start", model))
    moved = {path.split(".")[0] for path, array in before.items() if not np.array_equal(array, after[path])}
    assert moved == {"text_head", "logit_scale"}


def test_a_pool_of_altered_captions_alternates_between_the_configured_kinds(folder, config, tmp_path):
    kinds = {"losses__sc__weight": 1.0, "losses__sc__variants": "order,same_concept,relation"}
    config = changed(config, **kinds, losses__sc__select="random", data__feature_pool__captions=3)
    encoder, source = load_model(str(folder / "start")), open_source(config.data)
    stored = []
    make_batches(FieldContext(config, encoder, source, tmp_path), lambda _, make: stored.append(make()) or stored[0])
    (features,) = stored
    captions = [(text, sample.captions) for sample in source for text in sample.captions]
    for place, kind in ((0, "order"), (2, "relation")):
        pool, alterer = features.pools["altered"], KindAlterer(kind, shipped_lexicon())
        made = [[each.caption for each in alterer.alter(text, others)] for text, others in captions]
        assert pool.valid[:, place].tolist() == [bool(each) for each in made] and any(made)
        right = encoder.text_features([text for each in made for text in each])
        np.testing.assert_allclose(pool.features[pool.valid[:, place], place], right, atol=1e-5)


def test_interpolating_with_weight_one_quarter_keeps_three_quarters_of_the_first_model():
    first, second = tiny_encoder(), tiny_encoder(seed=1)
    ends = [parameters_of(encoder.model) for encoder in (first, second)]
    for path, array in parameters_of(interpolated(first, second, 0.25).model).items():
        right = 0.75 * np.asarray(ends[0][path]) + 0.25 * np.asarray(ends[1][path])
        np.testing.assert_allclose(array, right, rtol=1e-6, atol=1e-7, err_msg=path)


@pytest.mark.slow
def test_the_interpolate_command_writes_the_weighted_mean_of_two_models(folder, config, every_term, tmp_path, capsys):
    start, other = str(folder / "start"), str(tmp_path / "other")
    save_model(other, tiny_encoder(seed=1, name="other"))
    for second, weights in ((other, "0,0.25,1"), (str(every_term[1]), "0.5")):
        assert main(["interpolate", start, second, "--weight", weights, "--out", str(tmp_path / weights)]) == 0
        ends = [trained_parameters(path) for path in (start, second)]
        for weight in map(float, weights.split(",")):
            found = trained_parameters(tmp_path / weights / f"weight_{weight:g}")
            for path, array in found.items():
                right = np.float32(1 - weight) * ends[0][path] + np.float32(weight) * ends[1][path]
                np.testing.assert_array_equal(array, right)
    for wrong in ("0.5,0.5", "two", "1.5"):
        arguments = ["interpolate", start, other, "--weight", wrong, "--out", str(tmp_path / "none")]
        assert main(arguments) == 2 and not (tmp_path / "none").exists()
        assert "--weight" in capsys.readouterr().err
    grown = starting_encoder(changed(config, init__residual_head_width=4))
    with pytest.raises(InputError, match="spec"):
        interpolated(load_model(start), grown, 0.5)
