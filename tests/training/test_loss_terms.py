"""A loss is a file and a place in the sum: training finds its config keys, its fields and its function by itself."""

import re

import grain.python as grain
import jax.numpy as jnp
import numpy as np
import pytest

from rococo_jax import losses
from rococo_jax.config_fields import NOT_NEGATIVE, Key
from rococo_jax.losses.terms import Field, LossTerm
from rococo_jax.training import config_keys, inputs
from rococo_jax.training.config import check_config, default_config
from rococo_jax.training.inputs.field_maker import FieldMaker
from rococo_jax.training.program import step_flops
from rococo_jax.training.run import run_training
from rococo_jax.training.step import lower_step
from tests.support.paths import CHECKOUT
from tests.support.refusals import refused
from tests.support.tiny import tiny_encoder, tiny_spec
from tests.support.tiny_runs import FEATURES_ALONE, changed, mesh_of, metrics_of, tiny_config
from tests.support.training_pairs import captions_of, grey_of
from tests.support.world import write_world

REVERSED = Field("reversed", "text")


def uniformity(embeddings, settings, logits):
    """A loss of embeddings that exist already."""
    value = jnp.exp(-settings.sharpness * (embeddings.images * embeddings.texts).sum(-1)).mean()
    return value, {"uniformity": value}


def order_of_words(embeddings, settings, logits):
    """A loss that reads texts of its own."""
    other = embeddings[REVERSED]
    cosines = (embeddings.images[:, None] * other.vectors).sum(-1)
    value = jnp.where(other.valid, jnp.exp(cosines), 0.0).mean()
    return value, {"order_of_words": value}


class Reverse(grain.MapTransform):
    def map(self, sample):
        words = sample["caption"].split()
        return {**sample, "reversed_captions": (" ".join(reversed(words)), None)}


class Reversed(FieldMaker):
    fields = (REVERSED,)
    sample_texts = (("reversed_captions", REVERSED),)

    def shapes(self, config):
        return {REVERSED.name: (2,)}

    def transform(self, context):
        return Reverse()


@pytest.fixture
def more_losses(monkeypatch):
    """Two further losses, and the maker of a field."""
    weight = {"weight": Key(0.0, "Weight.", NOT_NEGATIVE)}
    first = LossTerm("uniformity", uniformity, {**weight, "sharpness": Key(2.0, "Sharpness.")})
    terms = (*losses.TERMS, first, LossTerm("order_of_words", order_of_words, weight, reads=(REVERSED,)))
    for module in (losses, config_keys):
        monkeypatch.setattr(module, "TERMS", terms)
    monkeypatch.setattr(inputs, "MAKERS", (*inputs.MAKERS, Reversed()))


@pytest.mark.slow
@pytest.mark.usefixtures("one_device")
def test_a_registered_loss_and_its_input_field_are_used_in_training(more_losses, tmp_path):
    captions = [captions_of(number) for number in range(12)]
    write_world(tmp_path, captions, picture=grey_of, start=tiny_encoder(spec=tiny_spec(16), name="start"))
    weights = {"losses__uniformity__weight": 0.5, "losses__order_of_words__weight": 2.0}
    config = tiny_config(tmp_path, steps=1, batch_size=8, train__vision="none", train__text="none", **weights)
    run_training(config, tmp_path / "run")
    (found,) = metrics_of(tmp_path / "run")
    weighted = found["contrastive"] + 0.5 * found["uniformity"] + 2 * found["order_of_words"]
    np.testing.assert_allclose(found["loss"], weighted, rtol=1e-6)
    assert found["uniformity"] > 0 and found["order_of_words"] > 0
    spec, without = tiny_encoder().spec, changed(config, losses__order_of_words__weight=0.0)
    assert step_flops(without, spec, 10) < step_flops(config, spec, 10)
    _, metrics = lower_step(without, tiny_spec(16), tiny_encoder().preprocessing, mesh_of(1), 8).out_info
    assert "uniformity" in metrics and "order_of_words" not in metrics


def test_keys_of_a_new_loss_are_checked_and_fields_without_a_pool_are_refused(more_losses):
    negative = changed(default_config(), losses__uniformity__weight=-1.0)
    refused(r"losses\.uniformity\.weight.*0 or more", check_config, negative)
    without_pool = changed(default_config(), losses__order_of_words__weight=1.0, **FEATURES_ALONE)
    refused(r"losses\.order_of_words\.weight.*no pool", check_config, without_pool)


def test_names_of_losses_and_fields_are_unique():
    names = [term.name for term in losses.TERMS]
    fields = [field.name for each in inputs.MAKERS for field in each.fields]
    assert len(set(names)) == len(names) and len(set(fields)) == len(fields)
    assert {field.name for term in losses.TERMS for field in term.reads} == set(fields)


def test_the_code_of_the_step_names_no_loss():
    names = "|".join(("sc", "vc", "hard_positives", "altered", "mixed", "positive", "negative"))
    for file in ("step", "batch", "grad_cache", "loop", "run", "program"):
        text = (CHECKOUT / "rococo_jax" / "training" / f"{file}.py").read_text()
        assert not re.findall(rf"losses\.(?:{names})\b|[\"'](?:{names})[\"']", text), file
