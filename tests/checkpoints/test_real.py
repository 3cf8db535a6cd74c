"""The two real towers give the vectors of their reference on real photographs and captions, and survive an export.

With ROCOCO_THOROUGH=1 on 100 photographs instead of 8, which takes a minute of one core more.
"""

import gc
import json
import os

import jax
import numpy as np
import pytest
from PIL import Image

from rococo_jax.checkpoints import export_huggingface
from rococo_jax.encoders import Encoder, load_encoder, load_model
from rococo_jax.encoders.programs import Compute
from rococo_jax.runtime import make_mesh
from tests.support.reference_models import assert_same_vectors, mean_pooled, torch, transformers, unit

pytestmark = [pytest.mark.real_data, pytest.mark.quick, pytest.mark.usefixtures("nothing_is_kept")]
COUNT = 100 if os.environ.get("ROCOCO_THOROUGH") else 8
MESH = make_mesh(jax.devices()[:1])


def test_dinov2_gives_the_reference_vectors_on_photographs(real_data):
    folder = real_data / "towers" / "dinov2_vits14"
    images = [Image.open(path) for path in sorted((real_data / "coco/images/val2014").glob("*.jpg"))[:COUNT]]
    reference = transformers.Dinov2Model.from_pretrained(folder, dtype=torch.float32).eval()
    processor = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
    first = []
    with torch.no_grad():
        for start in range(0, len(images), 10):
            batch = processor(images[start : start + 10], return_tensors="pt")
            first.append(reference(**batch).last_hidden_state[:, 0])
    first = torch.cat(first)
    del reference  # one of the two at a time in memory
    encoder = load_encoder(folder, mesh=MESH, compute=Compute(images_at_once=8))
    features = encoder.image_features(images)
    assert_same_vectors(features / np.linalg.norm(features, axis=1, keepdims=True), unit(first))
    # Features reach 9 in absolute value: 1e-4 on unit vectors is 1e-3 here.
    np.testing.assert_allclose(features, first.numpy(), rtol=0, atol=1e-3)


@pytest.mark.parametrize("count", [60, pytest.param(1000, marks=pytest.mark.thorough)])
def test_minilm_gives_the_reference_vectors_on_captions(count, real_data):
    folder = real_data / "towers" / "minilm_l6_v2"
    images = json.loads((real_data / "coco" / "captions_test.json").read_text())
    captions = [caption for image in images for caption in image["caption"]][:count]
    reference = transformers.BertModel.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    expected = []
    for start in range(0, len(captions), 100):
        batch = tokenizer(captions[start : start + 100], padding=True, return_tensors="pt")
        with torch.no_grad():
            tokens = reference(**batch).last_hidden_state
        expected.append(unit(mean_pooled(tokens, batch["attention_mask"].numpy())))
    del reference
    encoder = load_model(folder, mesh=MESH)
    assert encoder.spec.text.pooling == "mean"  # as its sentence-transformers files say
    assert_same_vectors(encoder.encode_text(captions), np.concatenate(expected))


@pytest.mark.parametrize("name", ["dinov2_vits14", "minilm_l6_v2"])
def test_an_export_of_a_real_tower_converts_back_to_the_same(name, real_data, tmp_path):
    def identity(encoder: Encoder) -> tuple:
        tokenizer = encoder.tokenizer and encoder.tokenizer.hash()
        return encoder.spec, encoder.preprocessing, encoder.provenance["weights_sha256"], tokenizer

    # One of the two at a time in memory.
    encoder = load_model(real_data / "towers" / name, mesh=MESH)
    export_huggingface(encoder, tmp_path / "out")
    expected = identity(encoder)
    del encoder
    gc.collect()
    assert identity(load_model(tmp_path / "out", mesh=MESH)) == expected
