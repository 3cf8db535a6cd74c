"""BLIP, RoBERTa, sentence towers with a dense module, SigLIP 2 and big_vision's SigLIP beside `transformers`."""

import ast
import json

import jax
import numpy as np
import pytest
import tokenizers

from rococo_jax.checkpoints import convert
from rococo_jax.checkpoints.families import FAMILIES
from rococo_jax.encoders import load_model
from rococo_jax.runtime import make_mesh
from tests.support.paths import CHECKOUT
from tests.support.random_inputs import random_pixels, random_texts
from tests.support.reference_models import (
    TEXT,
    VISION,
    assert_same_vectors,
    bert,
    mean_pooled,
    pairs,
    perturbed,
    saved,
    siglip,
    texts,
    torch,
    torch_ids,
    torch_pixels,
    transformers,
    unit,
)
from tests.support.refusals import refused

safetensors_torch = pytest.importorskip("safetensors.torch")
MESH = make_mesh(jax.devices()[:1])
pytestmark = pytest.mark.quick


def blip():
    text = {**TEXT, "encoder_hidden_size": VISION["hidden_size"], "pad_token_id": 0, "sep_token_id": 5}
    config = transformers.BlipConfig(text_config=text, vision_config=VISION, image_text_hidden_size=11)
    return perturbed(transformers.BlipForImageTextRetrieval(config))


def test_the_contrastive_pair_of_blip_gives_the_reference_vectors(tmp_path):
    reference = blip()
    folder = saved(reference, tmp_path / "theirs")
    processor = {"image_processor_type": "BlipImageProcessor", "size": {"height": 30, "width": 30}, "resample": 3}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    encoder = load_model(folder, mesh=MESH)
    ids, mask = random_texts(13, 99, 5)
    pixels = random_pixels(30)
    with torch.no_grad():
        tokens = reference.vision_model(torch_pixels(pixels)).last_hidden_state
        image_vectors = reference.vision_proj(tokens[:, 0])
        tokens = reference.text_encoder(torch_ids(ids), attention_mask=torch.from_numpy(mask).long()).last_hidden_state
        text_vectors = reference.text_proj(tokens[:, 0])
        cosines = reference(torch_ids(ids), torch_pixels(pixels), False, torch.from_numpy(mask).long()).itm_score
    ours = pairs(encoder.model, pixels, ids, mask)
    assert_same_vectors(ours[0], unit(image_vectors))
    assert_same_vectors(ours[1], unit(text_vectors))
    np.testing.assert_allclose(np.asarray(ours[0]) @ np.asarray(ours[1]).T, cosines.numpy(), rtol=0, atol=1e-4)
    assert (encoder.preprocessing.exact_size, encoder.preprocessing.mean[0]) == ((30, 30), 0.48145466)
    assert "the checkpoint has none" in encoder.provenance["logit_scale"]


def test_a_blip_for_another_task_is_refused(tmp_path):
    folder = saved(blip(), tmp_path / "blip")
    tensors = safetensors_torch.load_file(folder / "model.safetensors")
    safetensors_torch.save_file(
        {k: v for k, v in tensors.items() if "text_proj" not in k}, folder / "model.safetensors"
    )
    refused("a BLIP for image-text retrieval", load_model, folder, mesh=MESH)


@pytest.mark.parametrize("kind", ["Roberta", "XLMRoberta"])
def test_roberta_gives_the_reference_vectors(kind, tmp_path):
    sizes = {key: value for key, value in TEXT.items() if not key.endswith("_token_id")}
    config = getattr(transformers, f"{kind}Config")(**sizes, pad_token_id=1, type_vocab_size=1)
    reference = perturbed(getattr(transformers, f"{kind}Model")(config))
    model = load_model(saved(reference, tmp_path / "theirs"), mesh=MESH, pooling="mean").model
    assert model.spec.text.context_length == 11  # its first two positions are of no token
    ids, mask = random_texts(11, 99, 7, padding=1)
    ids = np.where(mask & (ids == 1), 3, ids)  # the padding id stands for padding alone
    with torch.no_grad():
        tokens = reference(torch_ids(ids), attention_mask=torch.from_numpy(mask).long()).last_hidden_state
    assert_same_vectors(texts(model, ids, mask), unit(mean_pooled(tokens, mask)))


def sentence_folder(tmp_path, activation):
    reference = bert()
    folder = saved(reference, tmp_path / "sentences")
    kinds = [("Transformer", ""), ("Pooling", "1_Pooling"), ("Dense", "2_Dense"), ("Normalize", "3_Normalize")]
    modules = [{"type": f"sentence_transformers.models.{kind}", "path": path} for kind, path in kinds]
    (folder / "modules.json").write_text(json.dumps(modules))
    for name, config in (
        ("1_Pooling", {"pooling_mode_mean_tokens": True}),
        ("2_Dense", {"in_features": 32, "out_features": 9, "bias": True, "activation_function": activation}),
    ):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(config))
    dense = perturbed(torch.nn.Linear(32, 9))
    state = {f"linear.{name}": tensor for name, tensor in dense.state_dict().items()}
    safetensors_torch.save_file(state, folder / "2_Dense" / "model.safetensors")
    return folder, reference, dense


def test_a_dense_module_after_the_pooling_is_the_head(tmp_path):
    folder, reference, dense = sentence_folder(tmp_path, "torch.nn.modules.linear.Identity")
    ids, mask = random_texts(13, 99, 7)
    with torch.no_grad():
        tokens = reference(torch_ids(ids), attention_mask=torch.from_numpy(mask)).last_hidden_state
        expected = dense(mean_pooled(tokens, mask))
    assert_same_vectors(texts(load_model(folder, mesh=MESH).model, ids, mask), unit(expected))


@pytest.mark.parametrize(
    ("file", "changes"),
    [
        ("config_sentence_transformers.json", {"default_prompt_name": "query", "prompts": {"query": "query: "}}),
        ("2_Dense/config.json", {"module_input_name": "token_embeddings"}),
        ("2_Dense/config.json", {"module_output_name": "other"}),
    ],
)
def test_a_prompt_before_texts_and_other_places_of_a_dense_module_are_refused(file, changes, tmp_path):
    folder, _, _ = sentence_folder(tmp_path, "torch.nn.modules.linear.Identity")
    path = folder / file
    given = json.loads(path.read_text()) if path.exists() else {"prompts": {"query": "query: "}}
    path.write_text(json.dumps({**given, **dict.fromkeys(changes)}))
    convert(folder)
    path.write_text(json.dumps({**given, **changes}))
    refused(rf"{file}: {next(iter(changes))}: found", convert, folder)


def test_a_dense_module_with_an_activation_or_outside_the_folder_is_refused(tmp_path):
    folder, _, _ = sentence_folder(tmp_path, "torch.nn.modules.activation.Tanh")
    refused(r"activation_function: found .*Tanh", load_model, folder, mesh=MESH)
    modules = json.loads((folder / "modules.json").read_text())
    modules[2]["path"] = "../2_Dense"
    (folder / "modules.json").write_text(json.dumps(modules))
    refused("inside the folder", load_model, folder, mesh=MESH)


def test_siglip_2_of_fixed_resolution_is_a_siglip_with_gemmas_tokenizer(tmp_path):
    """A byte-pair vocabulary: lower-cased, punctuation kept, and padded to the full length like every SigLIP."""
    reference = siglip(text={"pad_token_id": 0, "eos_token_id": 1})
    folder = saved(reference, tmp_path / "theirs")
    words = ["<pad>", "<eos>", "<bos>", "<unk>", "▁", *"abcdefghijklmnopqrstuvwxyz,.!"]
    vocabulary = {word: number for number, word in enumerate(words)}
    rust = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, [], unk_token="<unk>"))
    rust.normalizer = tokenizers.normalizers.Replace(" ", "▁")
    rust.post_processor = tokenizers.processors.TemplateProcessing(single="$A <eos>", special_tokens=[("<eos>", 1)])
    rust.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<eos>", "pad_token": "<pad>"}))
    encoder = load_model(folder, mesh=MESH)
    assert (encoder.tokenizer.spec.cleaning, encoder.tokenizer.spec.fixed_length) == ("lowercase", 13)
    ids, _ = encoder.tokenizer.pad(encoder.tokenizer.encode(["A cat, A dog!", "hi"]))
    assert [words[i] for i in ids[1]] == ["h", "i", "<eos>"] + ["<pad>"] * 10
    with torch.no_grad():
        expected = reference.get_text_features(torch_ids(ids)).pooler_output
    assert_same_vectors(encoder.encode_text(["A cat, A dog!", "hi"]), unit(expected))


def big_vision_arrays(reference, stacked):
    """The reference's tensors under big_vision's names and in Flax's layouts."""
    state = {name: tensor.numpy() for name, tensor in reference.state_dict().items()}
    arrays = {
        "img/embedding/kernel": state["vision_model.embeddings.patch_embedding.weight"].transpose(2, 3, 1, 0),
        "img/embedding/bias": state["vision_model.embeddings.patch_embedding.bias"],
        "img/pos_embedding": state["vision_model.embeddings.position_embedding.weight"][None],
        "img/MAPHead_0/probe": state["vision_model.head.probe"],
        "txt/Embed_0/embedding": state["text_model.embeddings.token_embedding.weight"],
        "txt/pos_embedding": state["text_model.embeddings.position_embedding.weight"][None],
        "txt/head/kernel": state["text_model.head.weight"].T,
        "txt/head/bias": state["text_model.head.bias"],
        "t": state["logit_scale"],
        "b": state["logit_bias"],
    }

    def norm(ours, theirs):
        arrays.update({f"{ours}/scale": state[f"{theirs}.weight"], f"{ours}/bias": state[f"{theirs}.bias"]})

    def mlp(ours, theirs):
        for number in (0, 1):
            arrays[f"{ours}/Dense_{number}/kernel"] = state[f"{theirs}.fc{number + 1}.weight"].T
            arrays[f"{ours}/Dense_{number}/bias"] = state[f"{theirs}.fc{number + 1}.bias"]

    def attention(ours, weights, biases, out, heads):
        for name, weight, bias in zip(("query", "key", "value"), weights, biases, strict=True):
            arrays[f"{ours}/{name}/kernel"] = weight.T.reshape(len(weight), heads, -1)
            arrays[f"{ours}/{name}/bias"] = bias.reshape(heads, -1)
        weight = state[f"{out}.weight"]
        arrays[f"{ours}/out/kernel"] = weight.T.reshape(heads, -1, len(weight))
        arrays[f"{ours}/out/bias"] = state[f"{out}.bias"]

    for tower, theirs, prefix, heads in (
        ("img/Transformer", "vision_model", "post_layernorm", VISION["num_attention_heads"]),
        ("txt/Encoder_0", "text_model", "final_layer_norm", TEXT["num_attention_heads"]),
    ):
        norm(f"{tower}/encoder_norm", f"{theirs}.{prefix}")
        layers = VISION["num_hidden_layers"] if theirs == "vision_model" else TEXT["num_hidden_layers"]
        for layer in range(layers):
            ours, block = f"{tower}/encoderblock_{layer}", f"{theirs}.encoder.layers.{layer}"
            norm(f"{ours}/LayerNorm_0", f"{block}.layer_norm1")
            norm(f"{ours}/LayerNorm_1", f"{block}.layer_norm2")
            mlp(f"{ours}/MlpBlock_0", f"{block}.mlp")
            parts = [[state[f"{block}.self_attn.{n}_proj.{kind}"] for n in "qkv"] for kind in ("weight", "bias")]
            attention(f"{ours}/MultiHeadDotProductAttention_0", *parts, f"{block}.self_attn.out_proj", heads)
    head = "vision_model.head"
    parts = [np.split(state[f"{head}.attention.in_proj_{kind}"], 3) for kind in ("weight", "bias")]
    name = "img/MAPHead_0/MultiHeadDotProductAttention_0"
    attention(name, *parts, f"{head}.attention.out_proj", VISION["num_attention_heads"])
    norm("img/MAPHead_0/LayerNorm_0", f"{head}.layernorm")
    mlp("img/MAPHead_0/MlpBlock_0", f"{head}.mlp")
    if stacked:
        for name in [name for name in arrays if "encoderblock_0/" in name]:
            names = [name.replace("encoderblock_0/", f"encoderblock_{layer}/") for layer in range(9)]
            layers = [arrays.pop(each) for each in names if each in arrays]
            arrays[name.replace("encoderblock_0/", "encoderblock/")] = np.stack(layers)
    return {f"params/{name}": np.array(array) for name, array in arrays.items()}


def test_big_visions_siglip_gives_the_reference_vectors_layers_stacked_or_apart(tmp_path):
    reference = siglip()
    np.savez(tmp_path / "siglip.npz", **big_vision_arrays(reference, stacked=False))
    np.savez(tmp_path / "stacked.npz", **big_vision_arrays(reference, stacked=True))
    encoder = load_model(tmp_path / "siglip.npz", mesh=MESH, tokenizer="none")
    stacked = load_model(tmp_path / "stacked.npz", mesh=MESH, tokenizer="none")
    assert stacked.spec == encoder.spec
    assert stacked.provenance["weights_sha256"] == encoder.provenance["weights_sha256"]
    pixels, (ids, mask) = random_pixels(30), random_texts(13, 99, 98)
    with torch.no_grad():
        output = reference(torch_ids(ids), torch_pixels(pixels))
    of_images, of_texts = pairs(encoder.model, pixels, ids, np.ones_like(mask))
    assert_same_vectors(of_images, output.image_embeds)
    assert_same_vectors(of_texts, output.text_embeds)
    assert float(encoder.model.logit_bias[...]) == reference.logit_bias.item()
    assert encoder.preprocessing.exact_size == (30, 30)


def test_npz_files_with_objects_cut_short_or_of_another_model_are_refused(tmp_path):
    path = tmp_path / "model.npz"
    np.savez(path, w=np.array([{"a": 1}], object))
    refused(r"a \.npz file of numbers, whole", load_model, path, mesh=MESH)
    np.savez(path, w=np.zeros(1000))
    refused("the parameters of a SigLIP of big_vision", load_model, path, mesh=MESH)
    path.write_bytes(path.read_bytes()[:500])
    refused(r"a \.npz file of numbers, whole", load_model, path, mesh=MESH)


def test_a_roberta_with_its_tokenizer_reads_as_many_tokens_as_it_has_positions_for(tmp_path):
    sizes = {key: value for key, value in TEXT.items() if not key.endswith("_token_id")}
    config = transformers.RobertaConfig(**sizes, pad_token_id=1, type_vocab_size=1)
    folder = saved(perturbed(transformers.RobertaModel(config)), tmp_path / "theirs")
    words = {word: number for number, word in enumerate(["<s>", "<pad>", "</s>", "<unk>", "a", "dog"])}
    rust = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    rust.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    rust.save(str(folder / "tokenizer.json"))
    encoder = load_model(folder, mesh=MESH)
    assert encoder.tokenizer.spec.context_length == encoder.spec.text.context_length == 11
    assert (encoder.tokenizer.spec.eos_id, encoder.tokenizer.spec.pad_id) == (2, 1)
    assert encoder.encode_text(["a dog", "a dog " * 20]).shape == (2, 32)


def test_no_file_outside_the_families_compares_with_the_name_of_a_family():
    """Families of tokenizers, which `data` names alike, aside."""
    names = {*FAMILIES, *(family.name for family in FAMILIES.values())}
    found = []
    for path in sorted((CHECKOUT / "rococo_jax").rglob("*.py")):
        room = path.relative_to(CHECKOUT / "rococo_jax").parts
        if room[:2] == ("checkpoints", "families") or room[0] == "data":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Compare):
                constants = {each.value for each in ast.walk(node) if isinstance(each, ast.Constant)}
                found += [f"{path.name}:{node.lineno}"] if constants & names else []
    assert not found
