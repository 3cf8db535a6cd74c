"""TIPSv2 beside `transformers`: vectors, logits, tokens and pixels, and the way back."""

import jax.numpy as jnp
import numpy as np
import pytest
import sentencepiece
from PIL import Image

from rococo_jax.checkpoints import convert, export_huggingface
from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.encoders.inspection import inspect_model
from tests.data.test_tokenizers import sentences
from tests.support import reference_models as hf
from tests.support.cases import further
from tests.support.models import assert_same_arrays, assert_same_model, change_json, read_model, read_towers
from tests.support.random_inputs import random_pixels, random_texts
from tests.support.reference_models import torch, transformers
from tests.support.refusals import refused
from tests.support.world import drawing


def outputs(reference, ids, mask, pixels):
    """Unit vectors of images and texts, and their logits."""
    with torch.no_grad():
        mask = torch.from_numpy(mask).long()
        output = reference(hf.torch_ids(ids), hf.torch_pixels(pixels), attention_mask=mask)
    return [output[name].numpy() for name in ("image_embeds", "text_embeds", "logits_per_image")]


CASES = {
    "two class tokens": ({}, {}),
    "gated, three registers": ({"scale_sqrt_depth": False, "hidden_act": "gelu"}, {
        "use_swiglu_ffn": True, "num_register_tokens": 3, "qkv_bias": False, "image_size": 50,
    }),
    "no register": ({}, {"num_register_tokens": 0, "hidden_act": "relu"}),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("case", further(CASES, ("gated, three registers",), pytest.mark.thorough))
def test_a_pair_matches_the_reference_at_every_image_size_and_after_an_export(case, tmp_path):
    reference = hf.tipsv2(*CASES[case])
    folder = hf.saved(reference, tmp_path / "theirs")
    ids, mask = random_texts(13, 99, 5)
    for size in (30, 20, 50, 47):
        encoder, pixels = read_towers(folder, image_size=size), random_pixels(size)
        of_images, of_texts = map(np.asarray, hf.pairs(encoder.model, pixels, ids, mask))
        *vectors, logits = outputs(reference, ids, mask, pixels)
        hf.assert_same_vectors(of_images, vectors[0], 1e-5)
        hf.assert_same_vectors(of_texts, vectors[1], 1e-5)
        scale = np.exp(np.asarray(encoder.model.logit_scale[...]))
        np.testing.assert_allclose(scale * of_images @ of_texts.T, logits, rtol=0, atol=1e-5 * scale)
    assert export_huggingface(encoder, tmp_path / "ours") == "tipsv2"
    assert_same_model(read_towers(tmp_path / "ours", image_size=47), encoder)
    theirs, ours = (
        hf.safetensors_torch.load_file(tmp_path / each / "model.safetensors") for each in ("theirs", "ours")
    )
    # The exponential of a logarithm: rounded to float32 twice.
    np.testing.assert_allclose(ours.pop("temperature"), theirs.pop("temperature"), rtol=5e-7)
    theirs.pop("vision_encoder.mask_token")
    assert_same_arrays(ours, {name: tensor for name, tensor in theirs.items() if tensor.numel()})
    again = outputs(transformers.Tipsv2Model.from_pretrained(tmp_path / "ours").eval(), ids, mask, pixels)
    np.testing.assert_allclose(again[2], logits, rtol=1e-6)


def test_an_image_tower_exported_at_another_size_keeps_its_resampling_of_positions(tmp_path):
    encoder = read_towers(hf.saved(hf.tipsv2().vision_model, tmp_path / "theirs"), image_size=50)
    assert export_huggingface(encoder, tmp_path / "ours") == "tipsv2"


def test_the_temperature_is_read_from_the_configuration_if_the_checkpoint_has_none(tmp_path):
    """No published checkpoint has a temperature; `transformers` reads it from the configuration."""
    folder = hf.saved(hf.tipsv2(), tmp_path)
    hf.change_tensors(folder, lambda tensors: tensors.pop("temperature"))
    scale = read_towers(folder).model.logit_scale[...]
    theirs = transformers.Tipsv2Model.from_pretrained(folder).temperature.item()
    np.testing.assert_allclose(np.exp(-np.asarray(scale)), theirs, rtol=1e-6)
    hf.change_tensors(folder, lambda tensors: tensors.update(temperature=torch.tensor(0.0)))
    refused("temperature: found 0.0; wanted a number above 0", read_towers, folder)


@pytest.mark.parametrize(("part", "key", "value"), [("vision", "head_dim", 4), ("text", "pooling_epsilon", 1e-6)])
def test_settings_that_the_towers_do_not_support_are_refused(part, key, value, tmp_path):
    folder = hf.saved(hf.tipsv2(), tmp_path)
    change_json(folder / "config.json", lambda config: config[f"{part}_config"].update({key: value}))
    refused(f"{part}_config.{key}: found", convert, folder, tokenizer="none")


TEXTS = ["A Dog on the Grass.", "Zwei Hünde  spielen, schön!", "猫 dog <pad> x", "a\tb", "a dog " * 40]


@pytest.mark.parametrize("form", [pytest.param("tokenizer.model", marks=pytest.mark.slow), "tokenizer.json"])
def test_texts_have_the_tokens_and_embeddings_of_the_reference(form, tmp_path):
    reference = hf.tipsv2(text={"vocab_size": 400, "max_position_embeddings": 64})
    folder = hf.saved(reference, tmp_path / "theirs")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences(300)), model_prefix=str(folder / "tokenizer"), model_type="bpe",
        vocab_size=400, pad_id=0, unk_id=1, bos_id=2, eos_id=3, byte_fallback=True, minloglevel=2,
    )  # fmt: skip
    library = transformers.Tipsv2Tokenizer.from_pretrained(folder)
    if form == "tokenizer.json":
        (folder / "tokenizer.model").unlink()
        library.save_pretrained(folder)
    encoder = read_model(folder)
    theirs = library(TEXTS, return_tensors="np", **transformers.Tipsv2Processor.text_kwargs)
    ids, mask = encoder.tokenizer.pad(encoder.tokenizer.encode(TEXTS), 64)
    np.testing.assert_array_equal(ids, theirs["input_ids"])
    np.testing.assert_array_equal(mask, theirs["attention_mask"])
    expected = outputs(reference, theirs["input_ids"], theirs["attention_mask"], random_pixels(30))[1]
    hf.assert_same_vectors(encoder.encode_text(TEXTS), expected, 1e-5)
    refused("zero vectors in 1 of 2 rows", encoder.encode_text, ["", "a"])  # no token at all: NaN in the reference
    rules = inspect_model(encoder)["rules"]
    assert rules["lower case"]["value"] and "end id" not in rules
    export_huggingface(encoder, tmp_path / "ours")
    assert_same_model(read_model(tmp_path / "ours"), encoder)


def test_images_have_the_pixels_of_the_reference_processor_except_for_rounding():
    """Compare with the function that torchvision's `resize` calls for 8-bit images; torchvision is not imported."""
    preprocessing = Preprocessing.from_huggingface({"image_processor_type": "Tipsv2ImageProcessor"})
    for shape in ((120, 171), (480, 640), (448, 448), (9, 7)):
        image = drawing(*shape)
        theirs = torch.nn.functional.interpolate(
            torch.from_numpy(image).permute(2, 0, 1)[None], (448, 448), mode="bilinear", antialias=True
        )
        ours = preprocessing.normalise(jnp.asarray(preprocessing.resize(Image.fromarray(image))[None]))[0]
        levels = 255 * np.abs(np.asarray(ours) - theirs[0].permute(1, 2, 0).numpy() / 255)
        # Pillow and torch round products of 8-bit numbers with weights of 22 and 16 bits.
        assert levels.max() < 1.01 and (levels > 0.01).mean() < 0.003
