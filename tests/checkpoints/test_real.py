"""The two real towers give the vectors of their reference on real photographs and captions, and survive an export.

With ROCOCO_THOROUGH=1 on 100 photographs instead of 4, which takes a minute of one core more, and 1000 captions.
"""

import json
import os

import numpy as np
import pytest
from PIL import Image

from rococo_jax.checkpoints import export_huggingface
from rococo_jax.encoders import load_encoder
from rococo_jax.encoders.programs import Compute
from tests.support.models import MESH, assert_same_model, read_model
from tests.support.reference_models import assert_same_vectors, mean_pooled, torch, transformers, unit

pytestmark = [pytest.mark.real_data, pytest.mark.usefixtures("nothing_is_kept")]
PHOTOGRAPHS, CAPTIONS = (100, 1000) if os.environ.get("ROCOCO_THOROUGH") else (4, 24)


@pytest.mark.thorough
@pytest.mark.slow
def test_dinov2_gives_the_embeddings_of_the_reference_on_photographs(real_data, tmp_path):
    folder = real_data / "towers" / "dinov2_vits14"
    images = [Image.open(path) for path in sorted((real_data / "coco/images/val2014").glob("*.jpg"))[:PHOTOGRAPHS]]
    reference = transformers.Dinov2Model.from_pretrained(folder, dtype=torch.float32).eval()
    processor = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
    first = []
    with torch.no_grad():
        for start in range(0, len(images), 10):
            batch = processor(images[start : start + 10], return_tensors="pt")
            first.append(reference(**batch).last_hidden_state[:, 0])
    first = torch.cat(first)
    del reference  # one of the two at a time in memory
    encoder = load_encoder(folder, mesh=MESH, compute=Compute(images_at_once=4))
    features = encoder.image_features(images)
    assert_same_vectors(features / np.linalg.norm(features, axis=1, keepdims=True), unit(first))
    # Features reach 9 in absolute value: 1e-4 on unit vectors is 1e-3 here.
    np.testing.assert_allclose(features, first.numpy(), rtol=0, atol=1e-3)
    export_huggingface(encoder, tmp_path / "out")
    assert_same_model(read_model(tmp_path / "out"), encoder)


@pytest.mark.slow
def test_minilm_gives_the_embeddings_of_the_reference_on_captions(real_data, tmp_path):
    folder = real_data / "towers" / "minilm_l6_v2"
    images = json.loads((real_data / "coco" / "captions_test.json").read_text())
    captions = [caption for image in images for caption in image["caption"]][:CAPTIONS]
    reference = transformers.BertModel.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    expected = []
    for start in range(0, len(captions), 100):
        batch = tokenizer(captions[start : start + 100], padding=True, return_tensors="pt")
        with torch.no_grad():
            tokens = reference(**batch).last_hidden_state
        expected.append(unit(mean_pooled(tokens, batch["attention_mask"].numpy())))
    del reference
    encoder = read_model(folder)
    assert encoder.spec.text.pooling == "mean"  # as its sentence-transformers files say
    assert_same_vectors(encoder.encode_text(captions), np.concatenate(expected))
    export_huggingface(encoder, tmp_path / "out")
    assert_same_model(read_model(tmp_path / "out"), encoder)
