"""BLIP, RoBERTa, sentence towers with a dense module, SigLIP 2 and big_vision's SigLIP beside `transformers`."""

import ast
import json

import numpy as np
import pytest
import tokenizers

from rococo_jax.checkpoints import convert
from rococo_jax.checkpoints.families import FAMILIES
from rococo_jax.checkpoints.formats.big_vision import open_npz
from tests.support import reference_models as hf
from tests.support.models import assert_same_model, change_json, read_model, read_towers
from tests.support.paths import CHECKOUT
from tests.support.random_inputs import random_pixels, random_texts
from tests.support.reference_models import torch, transformers
from tests.support.refusals import refused


def blip():
    text = {**hf.TEXT, "encoder_hidden_size": hf.VISION["hidden_size"], "pad_token_id": 0, "sep_token_id": 5}
    config = transformers.BlipConfig(text_config=text, vision_config=hf.VISION, image_text_hidden_size=11)
    return hf.perturbed(transformers.BlipForImageTextRetrieval(config))


def test_the_contrastive_towers_of_blip_give_the_embeddings_of_the_reference(tmp_path):
    reference = blip()
    folder = hf.saved(reference, tmp_path / "theirs")
    processor = {"image_processor_type": "BlipImageProcessor", "size": {"height": 30, "width": 30}, "resample": 3}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    encoder = read_model(folder)
    ids, mask = random_texts(13, 99, 5)
    pixels = random_pixels(30)
    with torch.no_grad():
        tokens = reference.vision_model(hf.torch_pixels(pixels)).last_hidden_state
        image_vectors = reference.vision_proj(tokens[:, 0])
        tokens = reference.text_encoder(
            hf.torch_ids(ids), attention_mask=torch.from_numpy(mask).long()
        ).last_hidden_state
        text_vectors = reference.text_proj(tokens[:, 0])
        cosines = reference(hf.torch_ids(ids), hf.torch_pixels(pixels), False, torch.from_numpy(mask).long()).itm_score
    ours = hf.pairs(encoder.model, pixels, ids, mask)
    hf.assert_same_vectors(ours[0], hf.unit(image_vectors))
    hf.assert_same_vectors(ours[1], hf.unit(text_vectors))
    np.testing.assert_allclose(np.asarray(ours[0]) @ np.asarray(ours[1]).T, cosines.numpy(), rtol=0, atol=1e-4)
    assert (encoder.preprocessing.exact_size, encoder.preprocessing.mean[0]) == ((30, 30), 0.48145466)
    assert "the checkpoint has none" in encoder.provenance["logit_scale"]


def test_a_blip_for_another_task_is_refused(tmp_path):
    folder = hf.saved(blip(), tmp_path / "blip")
    hf.change_tensors(folder, lambda tensors: [tensors.pop(name) for name in list(tensors) if "text_proj" in name])
    refused("a BLIP for image-text retrieval", read_model, folder)


@pytest.mark.parametrize("kind", ["Roberta", "XLMRoberta"])
def test_roberta_gives_the_embeddings_of_the_reference(kind, tmp_path):
    reference = hf.roberta(kind)
    model = read_model(hf.saved(reference, tmp_path / "theirs"), pooling="mean").model
    assert model.spec.text.context_length == 11  # its first two positions are of no token
    ids, mask = random_texts(11, 99, 7, padding=1)
    ids = np.where(mask & (ids == 1), 3, ids)  # the padding id stands for padding alone
    with torch.no_grad():
        tokens = reference(hf.torch_ids(ids), attention_mask=torch.from_numpy(mask).long()).last_hidden_state
    hf.assert_same_vectors(hf.texts(model, ids, mask), hf.unit(hf.mean_pooled(tokens, mask)))


def test_a_roberta_reads_as_many_tokens_as_it_has_positions(tmp_path):
    folder = hf.save_words(
        hf.saved(hf.roberta(), tmp_path / "theirs"), ["<s>", "<pad>", "</s>", "a", "dog"], "<s>", "</s>"
    )
    encoder = read_model(folder)
    assert encoder.tokenizer.spec.context_length == encoder.spec.text.context_length == 11
    assert (encoder.tokenizer.spec.eos_id, encoder.tokenizer.spec.pad_id) == (2, 1)
    assert encoder.encode_text(["a dog", "a dog " * 20]).shape == (2, 32)


IDENTITY = "torch.nn.modules.linear.Identity"


def sentence_folder(tmp_path):
    reference = hf.bert()
    folder = hf.saved(reference, tmp_path / "sentences")
    kinds = [("Transformer", ""), ("Pooling", "1_Pooling"), ("Dense", "2_Dense"), ("Normalize", "3_Normalize")]
    modules = [{"type": f"sentence_transformers.models.{kind}", "path": path} for kind, path in kinds]
    (folder / "modules.json").write_text(json.dumps(modules))
    dense_config = {"in_features": 32, "out_features": 9, "bias": True, "activation_function": IDENTITY}
    for name, config in (("1_Pooling", {"pooling_mode_mean_tokens": True}), ("2_Dense", dense_config)):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(config))
    dense = hf.perturbed(torch.nn.Linear(32, 9))
    state = {f"linear.{name}": tensor for name, tensor in dense.state_dict().items()}
    hf.safetensors_torch.save_file(state, folder / "2_Dense" / "model.safetensors")
    return folder, reference, dense


def test_a_dense_module_after_the_pooling_is_read_as_the_head(tmp_path):
    folder, reference, dense = sentence_folder(tmp_path)
    ids, mask = random_texts(13, 99, 7)
    with torch.no_grad():
        tokens = reference(hf.torch_ids(ids), attention_mask=torch.from_numpy(mask)).last_hidden_state
        expected = dense(hf.mean_pooled(tokens, mask))
    hf.assert_same_vectors(hf.texts(read_model(folder).model, ids, mask), hf.unit(expected))


@pytest.mark.parametrize(
    ("file", "key", "value"),
    [
        ("config_sentence_transformers.json", "default_prompt_name", "query"),
        ("2_Dense/config.json", "module_input_name", "token_embeddings"),
        ("2_Dense/config.json", "module_output_name", "other"),
        ("2_Dense/config.json", "activation_function", "torch.nn.modules.activation.Tanh"),
    ],
)
def test_a_prompt_before_texts_and_other_dense_modules_are_refused(file, key, value, tmp_path):
    folder, _, _ = sentence_folder(tmp_path)
    (folder / "config_sentence_transformers.json").write_text('{"prompts": {"query": "query: "}}')
    change_json(folder / file, lambda config: config.setdefault(key))
    convert(folder)
    change_json(folder / file, lambda config: config.update({key: value}))
    refused(f"{file}: {key}: found", convert, folder)


def test_a_dense_module_outside_the_folder_is_refused(tmp_path):
    folder, _, _ = sentence_folder(tmp_path)
    modules = json.loads((folder / "modules.json").read_text())
    modules[2]["path"] = "../2_Dense"
    (folder / "modules.json").write_text(json.dumps(modules))
    refused("inside the folder", convert, folder)


def test_siglip_2_of_fixed_resolution_is_read_as_a_siglip_with_the_tokenizer_of_gemma(tmp_path):
    """A byte-pair vocabulary: lower-cased, punctuation kept, and padded to the full length like every SigLIP."""
    reference = hf.siglip(text={"pad_token_id": 0, "eos_token_id": 1})
    folder = hf.saved(reference, tmp_path / "theirs")
    words = ["<pad>", "<eos>", "<bos>", "<unk>", "▁", *"abcdefghijklmnopqrstuvwxyz,.!"]
    vocabulary = {word: number for number, word in enumerate(words)}
    rust = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, [], unk_token="<unk>"))
    rust.normalizer = tokenizers.normalizers.Replace(" ", "▁")
    rust.post_processor = tokenizers.processors.TemplateProcessing(single="$A <eos>", special_tokens=[("<eos>", 1)])
    rust.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": "<eos>", "pad_token": "<pad>", "tokenizer_class": "GemmaTokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    assert transformers.GemmaTokenizer.padding_side == "left"
    refused("padding_side: found 'left'", read_model, folder)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"padding_side": "right"}))
    encoder = read_model(folder)
    assert encoder.tokenizer.spec.fixed_length == 13 and "Lowercase" in repr(encoder.tokenizer.rust.normalizer)
    ids, _ = encoder.tokenizer.pad(encoder.tokenizer.encode(["A cat, A dog!", "hi"]))
    assert [words[i] for i in ids[1]] == ["h", "i", "<eos>"] + ["<pad>"] * 10
    with torch.no_grad():
        expected = reference.get_text_features(hf.torch_ids(ids)).pooler_output
    hf.assert_same_vectors(encoder.encode_text(["A cat, A dog!", "hi"]), hf.unit(expected))


# The names of transformers, and big_vision's.
BIG_VISION = {
    "vision_model.embeddings.patch_embedding": "img/embedding", "vision_model.head": "img/MAPHead_0",
    "vision_model.embeddings.position_embedding.weight": "img/pos_embedding",
    "vision_model.post_layernorm": "img/Transformer/encoder_norm",
    "vision_model.encoder.layers.": "img/Transformer/encoderblock_",
    "text_model.embeddings.token_embedding.weight": "txt/Embed_0/embedding", "text_model.head": "txt/head",
    "text_model.embeddings.position_embedding.weight": "txt/pos_embedding",
    "text_model.final_layer_norm": "txt/Encoder_0/encoder_norm",
    "text_model.encoder.layers.": "txt/Encoder_0/encoderblock_", "logit_scale": "t", "logit_bias": "b",
    "self_attn": "MultiHeadDotProductAttention_0", "attention": "MultiHeadDotProductAttention_0", "mlp": "MlpBlock_0",
    "layer_norm1": "LayerNorm_0", "layer_norm2": "LayerNorm_1", "layernorm": "LayerNorm_0", "fc1": "Dense_0",
    "fc2": "Dense_1", "q_proj": "query", "k_proj": "key", "v_proj": "value", "out_proj": "out", ".": "/",
}  # fmt: skip


def big_vision_arrays(reference, stacked):
    """The reference's tensors under big_vision's names and in Flax's layouts."""
    state, arrays = {name: tensor.numpy() for name, tensor in reference.state_dict().items()}, {}
    for kind in ("weight", "bias"):
        parts = np.split(state.pop(f"vision_model.head.attention.in_proj_{kind}"), 3)
        state |= {f"vision_model.head.attention.{n}_proj.{kind}": part for n, part in zip("qkv", parts, strict=True)}
    for name, array in state.items():
        for theirs, ours in BIG_VISION.items():
            name = name.replace(theirs, ours)
        heads = (hf.VISION if name.startswith("img") else hf.TEXT)["num_attention_heads"]
        *_, layer, last = ("", *name.split("/"))
        if last == "pos_embedding":
            array = array[None]
        elif last == "weight":
            norm = "orm" in layer
            array = array if norm else array.transpose(2, 3, 1, 0) if array.ndim == 4 else array.T
            name = name.removesuffix("weight") + ("scale" if norm else "kernel")
        if layer in ("query", "key", "value"):
            array = array.reshape(*array.shape[:-1], heads, -1)
        elif (layer, last) == ("out", "weight"):
            array = array.reshape(heads, -1, array.shape[-1])
        arrays[name] = array
    for name in [name for name in arrays if "encoderblock_0/" in name and stacked]:
        names = [name.replace("encoderblock_0/", f"encoderblock_{layer}/") for layer in range(9)]
        layers = [arrays.pop(each) for each in names if each in arrays]
        arrays[name.replace("encoderblock_0/", "encoderblock/")] = np.stack(layers)
    return {f"params/{name}": np.array(array) for name, array in arrays.items()}


def test_a_big_vision_siglip_with_stacked_or_separate_layers_matches_the_reference(tmp_path):
    reference = hf.siglip()
    np.savez(tmp_path / "siglip.npz", **big_vision_arrays(reference, stacked=False))
    np.savez(tmp_path / "stacked.npz", **big_vision_arrays(reference, stacked=True))
    encoder = read_towers(tmp_path / "siglip.npz")
    assert_same_model(read_towers(tmp_path / "stacked.npz"), encoder)
    pixels, (ids, mask) = random_pixels(30), random_texts(13, 99, 98)
    with torch.no_grad():
        output = reference(hf.torch_ids(ids), hf.torch_pixels(pixels))
    of_images, of_texts = hf.pairs(encoder.model, pixels, ids, np.ones_like(mask))
    hf.assert_same_vectors(of_images, output.image_embeds)
    hf.assert_same_vectors(of_texts, output.text_embeds)
    assert float(encoder.model.logit_bias[...]) == reference.logit_bias.item()
    assert encoder.preprocessing.exact_size == (30, 30)


def test_bfloat16_numbers_that_numpy_stores_as_two_opaque_bytes_are_read(tmp_path):
    """As NumPy stores the bfloat16 of JAX."""
    bits = np.random.default_rng(0).normal(size=(3, 2, 5)).astype(np.float32).view(np.uint32) >> 16
    stored = bits.astype(np.uint16).view("V2")
    np.savez(tmp_path / "low.npz", **{"params/img/kernel": stored[0], "params/encoderblock/kernel": stored})
    with open_npz(tmp_path / "low.npz") as tensors:
        found = [tensors.read(name) for name in ("img/kernel", *(f"encoderblock_{layer}/kernel" for layer in range(3)))]
    numbers = (bits << 16).view(np.float32)
    np.testing.assert_array_equal([each.astype(np.float32) for each in found], [numbers[0], *numbers])


def test_npz_files_that_contain_objects_or_are_truncated_or_of_another_model_are_refused(tmp_path):
    path = tmp_path / "model.npz"
    np.savez(path, w=np.array([{"a": 1}], object))
    refused("array 'w': found Python objects", read_model, path)
    np.savez(path, w=np.zeros(1000))
    refused("the parameters of a SigLIP of big_vision", read_model, path)
    path.write_bytes(path.read_bytes()[:500])
    refused(r"a \.npz file of numbers, undamaged", read_model, path)


def test_only_the_code_of_families_mentions_their_names():
    """Skip `data`, where families of tokenizers have the same names."""
    names = {*FAMILIES, *(family.name for family in FAMILIES.values())}
    found = []
    for path in sorted((CHECKOUT / "rococo_jax").rglob("*.py")):
        package = path.relative_to(CHECKOUT / "rococo_jax").parts
        if package[:2] == ("checkpoints", "families") or package[0] == "data":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Compare):
                constants = {each.value for each in ast.walk(node) if isinstance(each, ast.Constant)}
                found += [f"{path.name}:{node.lineno}"] if constants & names else []
    assert not found
