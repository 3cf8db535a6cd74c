"""Compare models of other libraries by `LIBRARY:MODEL` with conversions of their weights."""

import json

import numpy as np
import pytest
from PIL import Image

from rococo_jax.encoders import LoadOptions, load_encoder
from rococo_jax.encoders.adapters import load_adapted, parse_arguments
from rococo_jax.encoders.adapters.of_mteb import AsMteb, FromMteb
from tests.support.refusals import refused
from tests.support.tiny import exportable_encoder, random_captions
from tests.support.world import write_world

pytest.importorskip("torch")
pytestmark = pytest.mark.quick


@pytest.fixture(scope="module")
def tiny():
    return exportable_encoder()


@pytest.fixture(scope="module")
def pictures():
    rng = np.random.default_rng(0)
    return [Image.fromarray(rng.integers(0, 256, (40, 48, 3), np.uint8)) for _ in range(5)]


def assert_alike(theirs, ours, pictures):
    captions = random_captions(7, longest=3)
    for method, items in (("encode_image", pictures), ("encode_text", captions)):
        # float32 in two frameworks: products in another order.
        np.testing.assert_allclose(getattr(theirs, method)(items), getattr(ours, method)(items), atol=1e-5)


@pytest.mark.parametrize("library", ["transformers", "sentence_transformers"])
def test_a_clip_of_another_library_gives_the_embeddings_of_its_conversion(library, tiny, exported, pictures, tmp_path):
    pytest.importorskip(library)
    theirs = load_encoder(f"{library}:{exported}", options=LoadOptions(arguments={"batch_size": 2}))
    assert theirs.name == exported.name and theirs.model.batch_size == 2
    assert_alike(theirs, tiny, pictures)
    # And of pictures of every mode.
    rng = np.random.default_rng(0)
    rgba = Image.fromarray(rng.integers(0, 256, (40, 48, 4), np.uint8), "RGBA")
    deep = Image.fromarray(rng.integers(0, 65536, (40, 48), np.uint16))
    rgba.convert("RGB").quantize(16).save(tmp_path / "p.png", transparency=bytes(range(0, 255, 16)))
    modes = [rgba, rgba.convert("LA"), Image.open(tmp_path / "p.png"), deep, rgba.convert("CMYK"), rgba.convert("La")]
    np.testing.assert_allclose(theirs.encode_image(modes), tiny.encode_image(modes), atol=1e-5)


def test_a_clip_of_transformers_reads_the_same_tokens_as_its_conversion(tiny, exported):
    context = tiny.tokenizer.spec.context_length
    texts = [" ".join(["dog"] * words) for words in (1, context - 2, context - 1, 2 * context)]
    rows = load_encoder(f"transformers:{exported}").token_rows(texts)
    assert rows == tiny.token_rows(texts) and rows[1] == [False, False, True, True]


def test_embeddings_of_flava_are_those_of_its_class_token(tmp_path, pictures):
    import torch
    from transformers import BertTokenizerFast, FlavaConfig, FlavaModel

    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    towers = {"image_config": {**small, "image_size": 16, "patch_size": 8}, "text_config": {**small, "vocab_size": 8}}
    FlavaModel(FlavaConfig(**towers, multimodal_config=small, projection_dim=8)).save_pretrained(tmp_path)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "dog", "cat"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    BertTokenizerFast(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path)
    side = {"height": 16, "width": 16}
    processor = {"image_processor_type": "FlavaImageProcessor", "size": side, "crop_size": side}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({**processor, "processor_class": "FlavaProcessor"}))
    flava = load_adapted(f"transformers:{tmp_path}")
    ids = torch.tensor([[2, 5, 6, 3]])
    with torch.inference_mode():
        hidden = flava.module.text_model(ids, attention_mask=torch.ones_like(ids)).last_hidden_state
        expected = flava.module.text_projection(hidden[:, 0])
    np.testing.assert_allclose(flava.encode_text(["a dog"]), expected, atol=1e-6)
    assert flava.encode_image(pictures).shape == (5, 8)


def test_mteb_encoders_are_evaluated_here_and_our_encoders_in_mteb(tiny, pictures):
    ours = AsMteb(tiny)
    assert_alike(load_encoder(FromMteb(ours, batch_size=2)), tiny, pictures)
    batches = [{"text": ["a dog"], "image": pictures[:1]}, {"text": ["a cat"], "image": pictures[1:2]}]
    both = ours.encode(batches, task_metadata=None, hf_split="test", hf_subset="default")
    summed = tiny.encode_text(["a dog", "a cat"]) + tiny.encode_image(pictures[:2])
    np.testing.assert_allclose(both, summed, atol=1e-6)
    assert ours.similarity(both, both).diagonal() == pytest.approx(ours.similarity_pairwise(both, both))


def test_a_missing_library_is_reported_in_one_line_with_its_package(tmp_path, monkeypatch, refusal):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "open_clip" else object())
    write_world(tmp_path, [["a dog"]])
    images, captions = tmp_path / "images", tmp_path / "captions.json"
    source, out = "open_clip:ViT-B-32/openai", tmp_path / "E.npz"
    error = refusal("embed", source, "--images", images, "--captions", captions, "--out", out)
    said = f"rococo: {source}: library: found no open_clip installed; wanted pip install 'open_clip_torch>=3'"
    assert said in error


def test_bad_arguments_are_refused():
    for entry in ("batch_size", "=3", "a-b=3"):
        refused("key=value", parse_arguments, [entry])
    refused("each key once", parse_arguments, ["a=1", "a=2"])


def test_the_error_for_an_unknown_argument_names_the_model(exported):
    refused("unexpected keyword argument 'colour'", load_adapted, f"transformers:{exported}", {"colour": "red"})
