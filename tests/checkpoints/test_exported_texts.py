"""`transformers` alone, used as its documentation says, gives the text embeddings of the model that was exported."""

import dataclasses
import json

import numpy as np
import pytest
from PIL import Image
from transformers.convert_slow_tokenizer import import_protobuf

from rococo_jax.checkpoints import export_huggingface, export_open_clip, save_model
from rococo_jax.encoders import load_encoder
from rococo_jax.training.init import interpolated
from tests.support import reference_models as hf
from tests.support.models import assert_same_model, encoder_of, read_model
from tests.support.open_clip_files import open_clip_folder
from tests.support.reference_models import torch, transformers
from tests.support.refusals import refused
from tests.support.tiny import tiny_spec, tiny_tokenizer
from tests.support.tokenizer_files import (
    ODD_TEXTS,
    sentences,
    write_clip,
    write_gemma,
    write_siglip,
    write_unigram,
    write_xlm_roberta,
)
from tests.support.world import drawing

pytestmark = pytest.mark.slow

LENGTH = 64
TEXTS = [*ODD_TEXTS, "A Dog, on the GRASS!", "the man's ΟΔΟΣ", "snake_case “quotes” 'n’ all", *sentences(20)]
SIZE, PIXELS = 30, {"height": 30, "width": 30}


def sentencepiece_siglip(folder):
    """The files of `google/siglip-base-patch16-224`."""
    settings = {"tokenizer_class": "SiglipTokenizer", "model_input_names": ["input_ids"], "model_max_length": LENGTH}
    hf.saved(hf.siglip({"vocab_size": 240, "max_position_embeddings": LENGTH, "pad_token_id": 1}), folder)
    write_siglip(folder, sentences(800), "nmt_nfkc")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    transformers.SiglipImageProcessorPil(size=PIXELS).save_pretrained(folder)
    return folder


def fixed_siglip2(folder):
    """The files of `google/siglip2-base-patch16-224`, of which `transformers` before 5 makes a Gemma tokenizer."""
    words = write_gemma(folder, model_max_length=LENGTH)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "tokenizer_class": "GemmaTokenizer"}))
    hf.saved(hf.siglip({"vocab_size": words, "max_position_embeddings": LENGTH, "pad_token_id": 0}), folder)
    transformers.SiglipImageProcessorPil(size=PIXELS).save_pretrained(folder)
    return folder


def naflex(folder):
    words = write_gemma(folder, model_max_length=LENGTH)
    hf.saved(hf.siglip2({"vocab_size": words, "max_position_embeddings": LENGTH, "pad_token_id": 0}), folder)
    transformers.Siglip2ImageProcessorPil(max_num_patches=9, patch_size=10).save_pretrained(folder)
    return folder


def clip(folder):
    write_clip(folder, sentences(800))
    words = json.loads((folder / "vocab.json").read_text())
    ids = {"bos_token_id": words["<|startoftext|>"], "eos_token_id": words["<|endoftext|>"], "vocab_size": len(words)}
    hf.saved(hf.clip({**ids, "max_position_embeddings": 77}), folder)
    transformers.CLIPImageProcessorPil(size={"shortest_edge": SIZE}, crop_size=SIZE).save_pretrained(folder)
    return folder


def metaclip2(folder):
    words = write_xlm_roberta(folder)
    hf.saved(hf.metaclip2({"vocab_size": words, "max_position_embeddings": 40, "bos_token_id": 0}), folder)
    transformers.CLIPImageProcessorPil(size={"shortest_edge": SIZE}, crop_size=SIZE).save_pretrained(folder)
    return folder


def of_transformers(folder, texts, **options):
    """Unit text features by the steps of the documentation, and the inputs of the model."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    inputs = tokenizer(texts, padding="max_length", truncation=True, return_tensors="pt", **options)
    with torch.no_grad():
        return hf.unit(model.get_text_features(**inputs).pooler_output), inputs


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "theirs").mkdir()
    return tmp_path / "theirs"


@pytest.mark.parametrize(
    ("make", "keys"),
    [
        pytest.param(sentencepiece_siglip, {"input_ids"}, marks=pytest.mark.thorough),
        pytest.param(fixed_siglip2, {"input_ids"}, marks=pytest.mark.thorough),
        pytest.param(naflex, {"input_ids"}, marks=pytest.mark.thorough),
        (clip, {"input_ids", "attention_mask"}),
        pytest.param(metaclip2, {"input_ids", "attention_mask"}, marks=pytest.mark.thorough),
    ],
)
def test_transformers_tokenises_texts_like_the_exported_model(make, keys, folder, tmp_path):
    encoder, out = read_model(make(folder)), tmp_path / "out"
    export_huggingface(encoder, out)
    vectors, inputs = of_transformers(out, TEXTS)
    assert inputs.keys() == keys and inputs["input_ids"].shape == (len(TEXTS), encoder.tokenizer.spec.context_length)
    hf.assert_same_vectors(encoder.encode_text(TEXTS), vectors)
    # Special tokens are those of the vocabulary; the library's defaults are ids of CLIP's.
    ids, text = encoder.tokenizer.encode([""])[0], transformers.AutoConfig.from_pretrained(out).text_config
    start = ids[0] if len(ids) == 2 else None
    assert (text.bos_token_id, text.pad_token_id) == (start, encoder.tokenizer.spec.pad_id)
    adapted = load_encoder(f"transformers:{out}")
    hf.assert_same_vectors(adapted.encode_text(TEXTS), vectors)
    # The export, its copy in our form and the original are one model; so is an export of the export.
    save_model(tmp_path / "copy", read_model(out))
    export_huggingface(read_model(tmp_path / "copy"), tmp_path / "again")
    for each in (tmp_path / "copy", tmp_path / "again"):
        assert_same_model(read_model(each), encoder)


@pytest.mark.parametrize(
    "make",
    [
        sentencepiece_siglip,
        *(pytest.param(make, marks=pytest.mark.thorough) for make in (fixed_siglip2, clip, metaclip2)),
    ],
)
def test_auto_processor_prepares_images_and_texts_of_an_export(make, folder, tmp_path):
    encoder = read_model(make(folder))
    export_huggingface(encoder, tmp_path / "out")
    processor = transformers.AutoProcessor.from_pretrained(tmp_path / "out")
    images = [Image.fromarray(drawing(40, 56, seed=number)) for number in range(3)]
    inputs = processor(text=TEXTS, images=images, padding="max_length", truncation=True, return_tensors="pt")
    with torch.no_grad():
        outputs = transformers.AutoModel.from_pretrained(tmp_path / "out").eval()(**inputs)
    hf.assert_same_vectors(encoder.encode_image(images), outputs.image_embeds)
    hf.assert_same_vectors(encoder.encode_text(TEXTS), outputs.text_embeds)


def test_a_sentencepiece_siglip_is_the_same_after_export_and_import(folder, tmp_path):
    """Not every float that `tokenizers` writes for a score is read back as the same float."""
    sentencepiece_siglip(folder)
    pieces, random = import_protobuf().ModelProto(), np.random.default_rng(0)
    pieces.ParseFromString((folder / "spiece.model").read_bytes())
    for piece, score in zip(pieces.pieces[3:], random.uniform(-20, -3, 237).astype(np.float32), strict=True):
        piece.score = score
    (folder / "spiece.model").write_bytes(pieces.SerializeToString())
    encoder = read_model(folder)
    save_model(tmp_path / "copy", encoder)
    export_huggingface(encoder, tmp_path / "out")
    for each in ("copy", "out"):
        again = read_model(tmp_path / each)
        assert_same_model(again, encoder)
        assert interpolated(encoder, again, 0.5).tokenizer.hash() == encoder.tokenizer.hash()


def test_an_exported_open_clip_siglip_keeps_its_cleaning_of_texts(tmp_path):
    def change(config, tensors):
        config["model_cfg"]["text_cfg"]["hf_tokenizer_name"] = "timm/ViT-B-16-SigLIP"

    folder = open_clip_folder("siglip2", tmp_path / "theirs", change)
    write_unigram(folder, "abcdefghijklmnopqrstuvwxyzABCDEFGHIKLM_.,-'")
    encoder = read_model(folder)
    assert encoder.tokenizer.spec.cleaning == "canonicalize"
    export_huggingface(encoder, tmp_path / "out")
    texts = ["A red_dog, on the  GRASS!", " it's two-\ttone. ", "", "''", "it’s ‘all’ “fine”", "long " * 9]
    vectors, _ = of_transformers(tmp_path / "out", texts)
    hf.assert_same_vectors(encoder.encode_text(texts), vectors)


def test_an_open_clip_export_needs_the_vocabulary_of_open_clip(tmp_path):
    tokenizer = tiny_tokenizer()
    tokenizer.spec = dataclasses.replace(tokenizer.spec, family="roberta")
    refused(
        "tokenizer: family: found roberta", export_open_clip, encoder_of(tiny_spec(), None, tokenizer), tmp_path / "x"
    )
