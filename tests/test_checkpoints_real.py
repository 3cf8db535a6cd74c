"""The two real towers give the vectors of their reference on real photographs and captions."""

import json

import jax
import numpy as np
import pytest
from PIL import Image

from rococo_jax.checkpoints import load_model
from rococo_jax.runtime import make_mesh
from tests.reference_models import assert_same_vectors, torch, transformers, unit

pytestmark = pytest.mark.real_data
MESH = make_mesh(jax.devices()[:1])


def test_dinov2_gives_the_reference_vectors_on_photographs(real_data):
    folder = real_data / "towers" / "dinov2_vits14"
    images = [Image.open(path) for path in sorted((real_data / "coco/images/val2014").glob("*.jpg"))[:5]]
    reference = transformers.Dinov2Model.from_pretrained(folder, dtype=torch.float32).eval()
    processor = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
    with torch.no_grad():
        tokens = reference(**processor(images, return_tensors="pt")).last_hidden_state
    encoder = load_model(folder, mesh=MESH)
    assert_same_vectors(encoder.encode_image(images), unit(tokens[:, 0]))
    # Features reach 9 in absolute value: 1e-4 on unit vectors is 1e-3 here.
    np.testing.assert_allclose(encoder.image_features(images), tokens[:, 0].numpy(), rtol=0, atol=1e-3)


def test_minilm_gives_the_reference_vectors_on_captions(real_data):
    folder = real_data / "towers" / "minilm_l6_v2"
    images = json.loads((real_data / "coco" / "captions_test.json").read_text())[:6]
    captions = [caption for image in images for caption in image["caption"]]
    reference = transformers.BertModel.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    batch = tokenizer(captions, padding=True, return_tensors="pt")
    with torch.no_grad():
        tokens = reference(**batch).last_hidden_state
    weights = batch["attention_mask"][..., None].float()
    expected = unit((tokens * weights).sum(1) / weights.sum(1))
    encoder = load_model(folder, mesh=MESH)
    assert encoder.spec.text.pooling == "mean"  # as its sentence-transformers files say
    assert_same_vectors(encoder.encode_text(captions), expected)
