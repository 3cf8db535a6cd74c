"""The precision of towers is traced as asked and told apart; batches are as large as memory allows."""

import re
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rococo_jax.encoders import encoder as encoder_module
from rococo_jax.encoders import load_encoder, programs
from rococo_jax.encoders.programs import Compute, largest_unit
from rococo_jax.evaluation.options import EmbeddingOptions
from tests.support.refusals import refused
from tests.support.tiny import random_captions, tiny_encoder

# Programs are compared with each other, compiled alike.
pytestmark = pytest.mark.quick
IMAGES = np.random.default_rng(0).integers(0, 256, (19, 32, 32, 3), np.uint8)


CPU = SimpleNamespace(platform="cpu")
A100 = SimpleNamespace(platform="gpu", compute_capability="8.0")


def precisions(encoder, compute: Compute, device=CPU) -> set[str]:
    """Of the matrix products in the program of the image tower, from its StableHLO; algorithms by passes and dtype."""
    static = encoder.mesh, encoder._graph, encoder.preprocessing, compute.products_on(device)
    images = jax.ShapeDtypeStruct((16, 32, 32, 3), np.uint8)
    traced = programs.image_features.trace(*static, encoder._state, jnp.ones(1, bool), images)
    text = traced.lower(lowering_platforms=("cuda" if device is A100 else "cpu",)).as_text()
    products = [line for line in text.splitlines() if "stablehlo.dot_general" in line]
    algorithm = r"algorithm = <lhs_precision_type = (\w+), .* num_primitive_operations = (\d)"
    named = [re.search(algorithm, line) or re.search(r"precision = \[(\w+), \w+\]", line) for line in products]
    return {" x ".join(found.groups()) for found in named}


def test_products_of_the_towers_have_the_precision_asked_for():
    encoder = tiny_encoder()
    assert precisions(encoder, Compute()) == {"HIGHEST"}
    assert precisions(encoder, Compute("high")) == {"HIGH"}
    # There HIGH would be TF32.
    assert precisions(encoder, Compute("high"), A100) == {"bf16 x 3"}
    assert precisions(encoder, Compute(), A100) == {"HIGHEST"}
    features = jax.ShapeDtypeStruct((256, 32), np.float32)
    head = programs.projected.lower(encoder._graph, "project_image", encoder._state, features).as_text()
    assert set(re.findall(r"precision = \[(\w+), \w+\]", head)) == {"HIGHEST"}


def test_precision_is_part_of_the_key_and_float32_has_the_key_it_had():
    plain, high = tiny_encoder(), tiny_encoder()
    high.use(Compute("high"))
    assert set(plain.describe()) == {"name", "weights", "spec", "preprocessing", "tokenizer", "dtype"}
    assert plain.fingerprint() != high.fingerprint()
    few = tiny_encoder()
    few.use(Compute(images_at_once=3))
    for side in ("vision", "text"):
        assert plain.describe_tower(side) != high.describe_tower(side)
    # How many at once decides the last bits of images alone, and no result.
    assert few.fingerprint() == plain.fingerprint()
    assert few.describe_tower("vision") != plain.describe_tower("vision")
    assert few.describe_tower("text") == plain.describe_tower("text")
    # Processors without other units compute at full precision.
    texts = random_captions(9, longest=3)
    np.testing.assert_array_equal(high.encode_text(texts), plain.encode_text(texts))
    np.testing.assert_allclose(few.encode_image(IMAGES), plain.encode_image(IMAGES), atol=2e-6)


def test_evaluations_compute_in_high_where_its_products_are_known_and_the_first_lines_say_so(monkeypatch):
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


def test_choices_out_of_range_are_named():
    refused("precision: found 'float16'; wanted one of float32, high, bfloat16", Compute, "float16")
    refused("images_at_once: found 0", Compute, images_at_once=0)
    with pytest.raises(ValueError, match="bfloat16 for a model in float32"):
        tiny_encoder().use(Compute("bfloat16"))
    loaded = load_encoder("demo:plain", compute=Compute("bfloat16", 3))
    assert loaded.model.dtype == jnp.bfloat16 and loaded.compute == Compute("bfloat16", 3)


def test_the_largest_unit_is_found_with_few_programs():
    tried = []

    def needed(unit):
        tried.append(unit)
        return 1000 + 100 * unit

    assert largest_unit(64, needed, 10**6) == 64 and tried == [64]
    del tried[:]
    assert largest_unit(64, needed, 3000) == 16 and len(tried) <= 3
    assert largest_unit(24, needed, 2800) == 8
    assert largest_unit(64, needed, 1100) == 0


def bytes_needed(encoder, unit: int) -> int:
    """What the encoder asks of a device for a unit, by letting it look for room where there is none."""
    static = encoder.mesh, encoder._graph, encoder.preprocessing, encoder.compute.products_on(CPU)
    images = jax.ShapeDtypeStruct((unit, 32, 32, 3), np.uint8)
    compiled = programs.image_features.lower(*static, encoder._state, jnp.ones(1, bool), images).compile()
    memory = compiled.memory_analysis()
    return memory.temp_size_in_bytes + 3 * (unit * 32 * 32 * 3 + memory.output_size_in_bytes)


def test_a_batch_is_as_large_as_the_compiled_program_leaves_room_for(monkeypatch, capsys):
    encoder = tiny_encoder()
    expected = tiny_encoder().encode_image(IMAGES)
    monkeypatch.setattr(encoder_module, "free_bytes", lambda mesh: int(bytes_needed(encoder, 4) / 0.89))
    np.testing.assert_allclose(encoder.encode_image(IMAGES), expected, atol=2e-6)
    assert encoder._image_rows == 4
    assert "tiny: 4 images at once fit into 0.0 GB" in capsys.readouterr().err


def test_a_batch_that_cannot_fit_is_one_line(monkeypatch):
    encoder = tiny_encoder()
    encoder.use(Compute(images_at_once=16))
    monkeypatch.setattr(encoder_module, "free_bytes", lambda mesh: int(bytes_needed(encoder, 8) / 0.89))
    refused(r"tiny: images_at_once: found 16, which do not fit .*wanted at most 8", encoder.encode_image, IMAGES)
    encoder.use(Compute())
    monkeypatch.setattr(encoder_module, "free_bytes", lambda mesh: 1000)
    refused("wanted a larger device", encoder.encode_image, IMAGES)
