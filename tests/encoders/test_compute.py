"""The precision of towers is as requested in the compiled program, and is part of the identity."""

import re
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rococo_jax.encoders import load_encoder, programs
from rococo_jax.encoders.programs import Compute
from rococo_jax.evaluation.options import EmbeddingOptions
from tests.support.refusals import refused
from tests.support.tiny import random_captions, tiny_encoder

# Programs are compared with each other, compiled alike.
pytestmark = pytest.mark.quick
IMAGES = np.random.default_rng(0).integers(0, 256, (19, 32, 32, 3), np.uint8)


CPU = SimpleNamespace(platform="cpu")
A100 = SimpleNamespace(platform="gpu", compute_capability="8.0")


def precisions(encoder, compute: Compute, device=CPU) -> set[str]:
    """Return the precisions of the matrix products in the image tower's StableHLO; algorithms by dtype and passes."""
    graph, state = encoder.graph_and_state()
    static = encoder.mesh, graph, encoder.preprocessing, compute.products_on(device)
    images = jax.ShapeDtypeStruct((16, 32, 32, 3), np.uint8)
    traced = programs.image_features.trace(*static, state, images)
    text = traced.lower(lowering_platforms=("cuda" if device is A100 else "cpu",)).as_text()
    products = [line for line in text.splitlines() if "stablehlo.dot_general" in line]
    algorithm = r"algorithm = <lhs_precision_type = (\w+), .* num_primitive_operations = (\d)"
    matches = [re.search(algorithm, line) or re.search(r"precision = \[(\w+), \w+\]", line) for line in products]
    return {" x ".join(match.groups()) for match in matches}


def test_products_of_towers_have_the_requested_precision():
    encoder = tiny_encoder()
    assert precisions(encoder, Compute()) == {"HIGHEST"}
    assert precisions(encoder, Compute("high")) == {"HIGH"}
    # On GPUs, HIGH would be TF32.
    assert precisions(encoder, Compute("high"), A100) == {"bf16 x 3"}
    assert precisions(encoder, Compute(), A100) == {"HIGHEST"}
    features = jax.ShapeDtypeStruct((256, 32), np.float32)
    graph, state = encoder.graph_and_state()
    head = programs.projected.lower(graph, "project_image", state, features).as_text()
    assert set(re.findall(r"precision = \[(\w+), \w+\]", head)) == {"HIGHEST"}


def test_the_cache_key_contains_the_precision_unless_it_is_float32():
    plain, high = tiny_encoder(), tiny_encoder()
    high.use(Compute("high"))
    assert set(plain.describe()) == {"name", "weights", "spec", "preprocessing", "tokenizer", "dtype"}
    assert plain.fingerprint() != high.fingerprint()
    few = tiny_encoder()
    few.use(Compute(images_at_once=3))
    for side in ("vision", "text"):
        assert plain.describe_tower(side) != high.describe_tower(side)
    # The number of images at once decides only the last bits of image features.
    assert few.fingerprint() == plain.fingerprint()
    assert few.describe_tower("vision") != plain.describe_tower("vision")
    assert few.describe_tower("text") == plain.describe_tower("text")
    # Processors without other units compute at full precision.
    texts = random_captions(9, longest=3)
    np.testing.assert_array_equal(high.encode_text(texts), plain.encode_text(texts))
    np.testing.assert_allclose(few.encode_image(IMAGES), plain.encode_image(IMAGES), atol=2e-6)


def test_evaluations_use_precision_high_on_devices_that_have_its_products(monkeypatch):
    platforms = {
        ("cpu", ""): "float32", ("tpu", ""): "high", ("gpu", "8.0"): "high", ("gpu", "7.5"): "float32",
        ("gpu", "gfx90a"): "float32",
    }  # fmt: skip
    for (platform, capability), precision in platforms.items():
        device = SimpleNamespace(platform=platform, compute_capability=capability)
        monkeypatch.setattr(jax, "devices", lambda device=device: [device])
        chosen = EmbeddingOptions().compute()
        assert chosen.precision == precision
        assert ("(precision high)" in chosen.summary()) == (precision == "high")
        assert EmbeddingOptions(precision="float32").compute().precision == "float32"


def test_values_out_of_range_are_refused():
    refused("precision: found 'float16'; wanted one of float32, high, bfloat16", Compute, "float16")
    refused("images_at_once: found 0", Compute, images_at_once=0)
    with pytest.raises(ValueError, match="bfloat16 for a model in float32"):
        tiny_encoder().use(Compute("bfloat16"))
    loaded = load_encoder("demo:plain", compute=Compute("bfloat16", 3))
    assert loaded.model.dtype == jnp.bfloat16 and loaded.compute == Compute("bfloat16", 3)
