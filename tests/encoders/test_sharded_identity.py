"""The identity of a model does not depend on the devices and processes that hold its parameters."""

import jax
import numpy as np
import pytest

from rococo_jax.checkpoints import save_model
from rococo_jax.checkpoints.parameters import build_model, hash_parameters, parameters_of
from rococo_jax.encoders import Encoder, load_model
from rococo_jax.runtime import make_mesh
from tests.support.processes import run_lines
from tests.support.tiny import tiny_encoder

SHARDED = """
import jax
from rococo_jax.checkpoints.parameters import parameters_of
from rococo_jax.encoders import load_model
from rococo_jax.models import fsdp
from rococo_jax.runtime import make_mesh

fsdp.LEAST_SHARDED = 256
encoder = load_model({folder!r}, mesh=make_mesh(fsdp=2))
assert not all(array.is_fully_replicated for array in parameters_of(encoder.model).values())
assert encoder.describe() == {description!r}, encoder.describe()
assert encoder.describe_tower("vision") == {tower!r}
# As a model without a hash in its provenance, and after a change of one value.
kernel = encoder.model.text_head.kernel
kernel[...] = kernel[...].at[0, 0].add(1.0)
assert encoder.weights_sha256 == {changed!r}
"""


@pytest.mark.slow
def test_a_model_sharded_over_two_processes_has_the_same_identity_as_on_one(tmp_path):
    encoder = tiny_encoder()
    save_model(tmp_path / "model", encoder)
    encoder = load_model(tmp_path / "model", mesh=make_mesh(jax.devices()[:1]))
    changed = dict(parameters_of(encoder.model))
    changed["text_head.kernel"] = np.array(changed["text_head.kernel"])
    changed["text_head.kernel"][0, 0] += 1
    lines = SHARDED.format(
        folder=str(tmp_path / "model"),
        description=encoder.describe(),
        tower=encoder.describe_tower("vision"),
        changed=hash_parameters(changed),
    )
    for code, said in run_lines(lines, 2, timeout=60):
        assert code == 0, said


def test_a_model_on_several_devices_has_the_same_identity_as_on_one():
    encoder = tiny_encoder()
    parts = encoder.preprocessing, encoder.tokenizer, None, "tiny"
    for mesh in (make_mesh(jax.devices()[:2]), make_mesh(jax.devices()[:2], fsdp=2)):
        other = Encoder(build_model(encoder.spec, parameters_of(encoder.model)), *parts, mesh)
        assert other.describe() == encoder.describe()
        assert other.describe_tower("text") == encoder.describe_tower("text")
