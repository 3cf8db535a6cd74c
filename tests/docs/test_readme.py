"""The README's class for a model of another framework works as printed, on a tiny CLIP in `transformers`.

The checkpoint is our own tiny model, exported: both must embed alike.
"""

import dataclasses
import importlib.util
import json
import re

import numpy as np
import pytest
import tokenizers
from flax import nnx
from PIL import Image

from rococo_jax import draw_benchmark
from rococo_jax.checkpoints import export_huggingface
from rococo_jax.cli.main import main
from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.data.tokenizers import Tokenizer, TokenizerSpec
from rococo_jax.encoders import Encoder
from rococo_jax.models import DualEncoder
from tests.support.paths import CHECKOUT
from tests.support.tiny import WORDS, random_captions, tiny_spec

pytest.importorskip("torch")

TOKENS = ["<pad>", "<unk>", *WORDS, "<s>", "</s>"]
END = len(TOKENS) - 1


def exportable_encoder() -> Encoder:
    """A tiny encoder that the Hugging Face form of CLIP can express: it pools at the highest id, which ends a text."""
    rust = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({token: place for place, token in enumerate(TOKENS)}, "<unk>")
    )
    rust.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    rust.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", END - 1), ("</s>", END)]
    )
    spec = tiny_spec()
    text = dataclasses.replace(spec.text, pooling="highest_id", eos_id=None, vocabulary_size=len(TOKENS))
    return Encoder(
        DualEncoder(dataclasses.replace(spec, text=text), rngs=nnx.Rngs(0)),
        Preprocessing(shortest_edge=32, crop_size=(32, 32), mean=(0.5,) * 3, std=(0.25,) * 3),
        Tokenizer(rust, TokenizerSpec(family="clip", cleaning="none", context_length=24, pad_id=0, eos_id=END)),
        name="tiny",
    )


@pytest.mark.slow
def test_the_class_of_the_readme_is_evaluated_and_embeds_as_our_own_reader(tmp_path):
    ours, folder = exportable_encoder(), tmp_path / "tiny-clip"
    export_huggingface(ours, folder)
    # CLIPTokenizer builds a byte-pair tokenizer; this one knows whole words.
    config = folder / "tokenizer_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}))
    readme = (CHECKOUT / "README.md").read_text(encoding="utf-8")
    (source,) = re.findall(r"^```py\n(# my_models\.py\n.*?)^```$", readme, re.DOTALL | re.MULTILINE)
    path = tmp_path / "my_models.py"
    path.write_text(source.replace('"kakaobrain/align-base"', repr(str(folder))), encoding="utf-8")

    images, annotations = draw_benchmark(tmp_path / "scenes", scenes=4)
    out = tmp_path / "out"
    asked = ["--images", str(images), "--annotations", str(annotations), "--seeds", "1", "--out", str(out)]
    assert main(["evaluate", f"{path}:make_align", *asked, "--no-report"]) == 0
    tasks = json.loads((out / "results.json").read_text())["tasks"]
    assert {"clean", "same_concept"} <= tasks["image_to_text"].keys()

    spec = importlib.util.spec_from_file_location("my_models", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    theirs = module.make_align()
    pictures, captions = [Image.open(each) for each in sorted(images.iterdir())], random_captions(8)
    for mine, foreign in (
        (ours.encode_image(pictures), theirs.encode_image(pictures)),
        (ours.encode_text(captions), theirs.encode_text(captions)),
    ):
        foreign = np.asarray(foreign)
        # float32 in two frameworks: products in another order.
        np.testing.assert_allclose(foreign / np.linalg.norm(foreign, axis=1, keepdims=True), mine, atol=1e-5)
