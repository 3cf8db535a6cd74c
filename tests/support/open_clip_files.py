"""open_clip's golden records (tests/support/golden), and checkpoints as open_clip writes them."""

import json

import jax
import numpy as np
from safetensors.numpy import save_file

from tests.support.golden.weights import pixels_for, weights_for
from tests.support.paths import CHECKOUT

GOLDEN = CHECKOUT / "tests" / "support" / "golden"
CASES = sorted(path.stem.removeprefix("open_clip_") for path in GOLDEN.glob("open_clip_*.json"))
# Their configurations say nothing of the activation; the names of their folders do.
NAMES = {
    "vit_gelu": "CLIP-ViT-g-14-laion2B-s12B-b42K",
    "clipa": "ViT-L-14-CLIPA-datacomp1B",
    "coca": "CoCa-ViT-B-32-laion2B-s13B-b90k",
    "mobile_large": "MobileCLIP2-L-14-OpenCLIP",
}


def golden(case):
    return json.loads((GOLDEN / f"open_clip_{case}.json").read_text())


def open_clip_folder(case, folder, change=lambda config, tensors: None):
    """The folder as open_clip's own upload writes it."""
    folder.mkdir()
    record = golden(case)
    config, tensors = {"model_cfg": record["model_cfg"], "preprocess_cfg": {}}, weights_for(record["shapes"])
    change(config, tensors)
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "open_clip_model.safetensors")
    if record["text_config"]:
        text = folder / record["model_cfg"]["text_cfg"]["hf_model_name"]
        text.mkdir()
        (text / "config.json").write_text(json.dumps(record["text_config"]))
    return folder


def assert_golden(encoder, case):
    """1e-4 absolute and 0.99999 cosine: float32 sums in another order, over a few layers."""
    record = golden(case)
    ids, size = np.array(record["ids"], np.int32), record["model_cfg"]["vision_cfg"]["image_size"]
    text_config = record["text_config"] or {}
    mask = ids != text_config["pad_token_id"] if text_config else np.ones(ids.shape, bool)
    run = jax.jit(lambda x, i, m: (encoder.model.image_embeddings(x), encoder.model.text_embeddings(i, m)))
    for ours, key in zip(run(pixels_for(size), ids, mask), ("images", "texts"), strict=True):
        theirs = np.array(record[key])
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)
        assert (np.asarray(ours) * theirs).sum(1).min() >= 0.99999
