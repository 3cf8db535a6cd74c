"""Export after import gives the same tensors, import after export the same model; what would be lost is refused."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from rococo_jax.checkpoints import export_huggingface, export_open_clip
from rococo_jax.checkpoints.parameters import build_model, hash_parameters, parameters_of
from rococo_jax.cli import export
from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.data.tokenizer_files import for_transformers
from rococo_jax.encoders import Encoder, load_model
from rococo_jax.errors import InputError
from rococo_jax.models import HeadSpec, ModelSpec
from rococo_jax.runtime import make_mesh
from tests.support.commands import run_command
from tests.support.open_clip_files import golden, open_clip_folder
from tests.support.random_inputs import random_pixels
from tests.support.reference_models import (
    TEXT,
    VISION,
    assert_same_vectors,
    bert,
    clip,
    dinov2,
    perturbed,
    saved,
    siglip,
    torch,
    torch_pixels,
    transformers,
    unit,
)
from tests.support.tiny import drawn_parameters, tiny_spec, tiny_tokenizer

safetensors_torch = pytest.importorskip("safetensors.torch")
MESH = make_mesh(jax.devices()[:1])
pytestmark = pytest.mark.quick

SOURCES = {
    "clip": clip,
    "clip_legacy_end": lambda: clip(text={"eos_token_id": 2}, vision={"hidden_act": "gelu"}),
    "clip_vision": lambda: perturbed(
        transformers.CLIPVisionModelWithProjection(transformers.CLIPVisionConfig(**VISION))
    ),
    "clip_text": lambda: perturbed(transformers.CLIPTextModel(transformers.CLIPTextConfig(**TEXT))),
    "siglip": siglip,
    "siglip_text": lambda: perturbed(transformers.SiglipTextModel(transformers.SiglipTextConfig(**TEXT))),
    "dinov2": lambda: dinov2(mlp_ratio=3, qkv_bias=False),
    "dinov2_gated": lambda: dinov2(use_swiglu_ffn=True),
    "bert": bert,
}


@pytest.mark.parametrize("name", SOURCES)
def test_import_export_import_is_exact(name, tmp_path):
    first = load_model(saved(SOURCES[name](), tmp_path / "theirs"), mesh=MESH)
    export_huggingface(first, tmp_path / "ours")
    second = load_model(tmp_path / "ours", mesh=MESH)
    assert second.spec == first.spec and second.preprocessing == first.preprocessing
    assert hash_parameters(parameters_of(second.model)) == hash_parameters(parameters_of(first.model))
    theirs = safetensors_torch.load_file(tmp_path / "theirs" / "model.safetensors")
    ours = safetensors_torch.load_file(tmp_path / "ours" / "model.safetensors")
    # Neither the poolers that nothing here reads nor the token of masked pretraining come back.
    assert theirs.keys() - ours.keys() <= {"embeddings.mask_token", "pooler.dense.weight", "pooler.dense.bias"}
    for key, tensor in ours.items():
        assert torch.equal(tensor, theirs[key]), key


def test_transformers_reads_what_was_exported_and_gives_the_same_vectors(tmp_path):
    pixels = random_pixels(30)
    for name, kind in (("clip", transformers.CLIPModel), ("siglip", transformers.SiglipModel)):
        reference = SOURCES[name]()
        export_huggingface(load_model(saved(reference, tmp_path / name), mesh=MESH), tmp_path / f"{name}_out")
        again = kind.from_pretrained(tmp_path / f"{name}_out").eval()
        with torch.no_grad():
            vectors = [model.get_image_features(torch_pixels(pixels)).pooler_output for model in (again, reference)]
        assert torch.equal(*vectors)


def test_dinov2_used_at_another_size_than_it_was_stored_for_loses_no_position(tmp_path):
    """The published DINOv2: stored for 518 pixels, used at 224. Here 70 and 40."""
    reference = dinov2(image_size=70)
    folder = saved(reference, tmp_path / "theirs")
    processor = {"image_processor_type": "BitImageProcessor", "size": {"shortest_edge": 46}, "crop_size": 40}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    first = load_model(folder, mesh=MESH)
    assert (first.spec.vision.image_size, first.spec.vision.position_grid) == (40, 7)
    pixels = random_pixels(40)
    with torch.no_grad():
        assert_same_vectors(first.encode_image(pixels), unit(reference(torch_pixels(pixels)).pooler_output))
    export_huggingface(first, tmp_path / "ours")
    assert json.loads((tmp_path / "ours" / "config.json").read_text())["image_size"] == 70
    second = load_model(tmp_path / "ours", mesh=MESH)
    assert second.spec == first.spec and second.preprocessing == first.preprocessing
    assert hash_parameters(parameters_of(second.model)) == hash_parameters(parameters_of(first.model))


def test_clip_used_at_another_size_is_exported_with_its_positions_interpolated(tmp_path):
    encoder = load_model(saved(clip(), tmp_path / "theirs"), mesh=MESH, image_size=50)
    export_huggingface(encoder, tmp_path / "ours")
    again = load_model(tmp_path / "ours", mesh=MESH)
    assert (again.spec.vision.image_size, again.spec.vision.position_grid) == (50, None)
    pixels = random_pixels(50)
    # The same interpolation, compiled apart and inside the tower's program.
    np.testing.assert_allclose(again.encode_image(pixels), encoder.encode_image(pixels), rtol=0, atol=1e-5)


def test_tokenizer_and_preprocessing_come_back_the_same(tmp_path):
    for attention in ("causal", "masked"):
        spec, tokenizer = tiny_spec(attention=attention), tiny_tokenizer()
        preprocessing = Preprocessing(shortest_edge=36, crop_size=(32, 32), resample="bilinear", std=(0.5, 0.25, 0.2))
        if attention == "masked":
            spec = ModelSpec(None, dataclasses.replace(spec.text, eos_id=None))
            preprocessing, tokenizer.spec = None, dataclasses.replace(tokenizer.spec, family="bert")
        else:  # in the Hugging Face form the id 2 stands for the highest id of a text
            spec = dataclasses.replace(spec, text=dataclasses.replace(spec.text, eos_id=299))
            tokenizer = tiny_tokenizer(end=299)
        encoder = encoder_of(spec, preprocessing, tokenizer)
        export_huggingface(encoder, tmp_path / attention)
        again = load_model(tmp_path / attention, mesh=MESH)
        assert again.tokenizer.hash() == encoder.tokenizer.hash()
        assert again.preprocessing == encoder.preprocessing
        assert again.spec == spec


def encoder_of(spec, preprocessing=None, tokenizer=None):
    return Encoder(build_model(spec, drawn_parameters(spec)), preprocessing, tokenizer, name="mine", mesh=MESH)


def changed(part, **changes):
    spec = tiny_spec()
    return dataclasses.replace(spec, **{part: dataclasses.replace(getattr(spec, part), **changes)})


DINOV2 = dataclasses.replace(
    tiny_spec().vision, activation="gelu", patch_bias=True, norm_before_blocks=False, layer_scale=True,
    pooling="cls+mean",
)  # fmt: skip
BERT = dataclasses.replace(tiny_spec(attention="masked").text, eos_id=None)


@pytest.mark.parametrize("bias", [True, False])
def test_the_head_of_a_sentence_tower_becomes_a_dense_module_and_comes_back(bias, tmp_path):
    spec = ModelSpec(None, BERT, text_head=HeadSpec("linear", 5, bias=bias))
    encoder = encoder_of(spec)
    export_huggingface(encoder, tmp_path / "out")
    assert (tmp_path / "out" / "2_Dense" / "model.safetensors").is_file()
    again = load_model(tmp_path / "out", mesh=MESH)
    assert again.spec == spec
    assert hash_parameters(parameters_of(again.model)) == hash_parameters(parameters_of(encoder.model))


@pytest.mark.parametrize("case", ["vit_quick_gelu", "vit_gelu", "vit_options", "resnet_quick_gelu"])
def test_open_clip_folders_come_back_the_same(case, tmp_path):
    folder = open_clip_folder(golden(case), tmp_path / "theirs")
    first = load_model(folder, mesh=MESH, tokenizer="none", activation="gelu" if case == "vit_gelu" else None)
    assert export_open_clip(first, tmp_path / "ours") == "open_clip"
    second = load_model(tmp_path / "ours", mesh=MESH, tokenizer="none")
    assert second.spec == first.spec and second.preprocessing == first.preprocessing
    assert second.provenance["weights_sha256"] == first.provenance["weights_sha256"]
    theirs = safetensors_torch.load_file(folder / "open_clip_model.safetensors")
    ours = safetensors_torch.load_file(tmp_path / "ours" / "open_clip_model.safetensors")
    assert {name for name in theirs.keys() - ours.keys() if not name.endswith("num_batches_tracked")} == set()
    for key, tensor in ours.items():
        assert torch.equal(tensor, theirs[key]), key


def test_a_hugging_face_clip_becomes_an_open_clip_folder_with_its_tokenizer(tmp_path, capsys):
    spec = changed("text", eos_id=299)
    preprocessing = Preprocessing(shortest_edge=32, crop_size=(32, 32), std=(0.5, 0.25, 0.2))
    encoder = encoder_of(spec, preprocessing, tiny_tokenizer(end=299))
    export_open_clip(encoder, tmp_path / "out")
    assert "cleaned as open_clip does" in capsys.readouterr().err
    again = load_model(tmp_path / "out", mesh=MESH)
    assert (again.spec, again.preprocessing) == (spec, dataclasses.replace(preprocessing, library="open_clip"))
    texts = ["A dog on the  grass", "“Red” boat"]
    assert again.tokenizer.encode(texts[:1]) == encoder.tokenizer.encode(texts[:1])
    assert again.tokenizer.encode(texts[1:]) == encoder.tokenizer.encode(['"Red" boat'])
    assert for_transformers(again.tokenizer).encode(texts) == encoder.tokenizer.encode(texts)


@pytest.mark.parametrize(
    ("write", "spec", "field"),
    [
        (export_open_clip, changed("vision_head", hidden=8), "vision_head.hidden"),
        (export_open_clip, changed("vision", pooling="cls+mean"), "vision.pooling"),
        (export_open_clip, changed("vision", activation="gelu"), "vision.activation"),
        (export_open_clip, tiny_spec(attention="masked"), "towers"),
        (export_huggingface, changed("vision_head", hidden=8), "vision_head.hidden"),
        (export_huggingface, changed("text_head", bias=True), "text_head.bias"),
        (export_huggingface, changed("vision", pooling="mean"), "vision.pooling"),
        (export_huggingface, changed("vision", patch_bias=True), "vision.patch_bias"),
        (export_huggingface, changed("vision", layer_scale=True), "towers"),
        (export_huggingface, dataclasses.replace(changed("text", eos_id=3), logit_bias=True), "logit_bias"),
        (export_huggingface, tiny_spec(), "text.pooling"),
        (export_huggingface, tiny_spec(attention="masked"), "towers"),
        (export_huggingface, ModelSpec(None, BERT, text_head=HeadSpec("linear", 5, hidden=4)), "text_head.kind"),
        (export_huggingface, ModelSpec(DINOV2, None), "vision.pooling"),
    ],
)
def test_what_a_form_cannot_express_is_refused_by_its_field(write, spec, field, tmp_path):
    with pytest.raises(InputError) as caught:
        write(encoder_of(spec), tmp_path / "out")
    assert (caught.value.field, caught.value.source) == (field, "mine")
    assert not list(tmp_path.iterdir())


def test_the_export_command_writes_a_folder_and_never_over_one(tmp_path, capsys):
    arguments = saved(bert(), tmp_path / "theirs"), tmp_path / "out"
    run_command(export, *arguments)
    assert "bert from" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {"config.json", "model.safetensors", "modules.json"}
    with pytest.raises(InputError, match="something already there"):
        run_command(export, *arguments)
