"""Hugging Face folders: read whatever release wrote them, and refused in one line where they do not fit."""

import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from rococo_jax.checkpoints import convert
from rococo_jax.checkpoints.families import FAMILIES, spec_from_config
from rococo_jax.encoders.inspection import warnings_of
from tests.support import reference_models as hf
from tests.support.models import assert_same_arrays, change_json, read_model
from tests.support.reference_models import torch, transformers
from tests.support.refusals import refused


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Return a saved reference per family, and a sharded one; tests copy them before changing them."""
    root = tmp_path_factory.mktemp("references")
    models = {"clip": hf.clip(), "siglip": hf.siglip(), "dinov2": hf.dinov2(), "bert": hf.bert()}
    folders = {family: hf.saved(model, root / family) for family, model in models.items()}
    return {**folders, "sharded": hf.saved(models["clip"], root / "sharded", max_shard_size="40KB")}


@pytest.fixture
def copy_of(folders, tmp_path):
    return lambda family: shutil.copytree(folders[family], tmp_path / family)


@pytest.fixture
def clip_copy(copy_of):
    return copy_of("clip")


def parameters(folder):
    return convert(folder).parameters


def test_sharded_folders_are_read_like_unsharded_ones(folders):
    folder = folders["sharded"]
    assert len(list(folder.glob("model-*.safetensors"))) > 2 and not (folder / "model.safetensors").exists()
    assert_same_arrays(parameters(folder), parameters(folders["clip"]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_of_any_precision_become_float32(folders, clip_copy, dtype):
    hf.change_tensors(clip_copy, lambda tensors: tensors.update({k: v.to(dtype) for k, v in tensors.items()}))
    arrays, whole = parameters(clip_copy), parameters(folders["clip"])
    assert {array.dtype for array in arrays.values()} == {np.dtype(np.float32)}
    rounded = {path: torch.from_numpy(array.copy()).to(dtype).float() for path, array in whole.items()}
    assert_same_arrays(arrays, rounded)


def test_names_of_older_releases_are_read(folders, copy_of):
    def age(tensors):
        for name in list(tensors):
            old = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
            tensors[f"bert.{old}"] = tensors.pop(name)
        tensors["bert.embeddings.position_ids"] = torch.arange(13)[None]
        tensors["cls.predictions.bias"] = torch.zeros(99)

    folder = copy_of("bert")
    hf.change_tensors(folder, age)
    assert_same_arrays(parameters(folder), parameters(folders["bert"]))


def test_missing_unknown_and_misshapen_tensors_are_listed_at_once(clip_copy):
    def spoil(tensors):
        del tensors["visual_projection.weight"]
        tensors["vision_model.surprise"] = torch.zeros(2)
        tensors["text_model.final_layer_norm.bias"] = torch.zeros(31)
        tensors["logit_scale"] = torch.tensor(3)

    hf.change_tensors(clip_copy, spoil)
    for part in (
        r"1 missing \(visual_projection.weight\)",
        r"1 unknown \(vision_model.surprise\)",
        r"text_model.final_layer_norm.bias of shape \(31,\) instead of \(32,\)",
        "logit_scale of type I64",
    ):
        refused(part, convert, clip_copy)


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("clip", {"model_type": "flava"}, "model_type: found"),
        ("clip", {"model_type": None}, "model_type: found"),
        ("clip", {"text_config": {"hidden_act": "mish"}}, "text_config.hidden_act: found"),
        ("clip", {"vision_config": {"image_size": "big"}}, "vision_config.image_size: found"),
        ("clip", {"vision_config": {"image_size": [30, 40]}}, "vision_config.image_size: found"),
        ("clip", {"text_config": {"num_hidden_layers": 0}}, "text_config.num_hidden_layers: found"),
        ("clip", {"text_config": {"num_hidden_layers": 1001}}, "text_config.num_hidden_layers: found"),
        ("clip", {"text_config": {"layer_norm_eps": -1}}, "text_config.layer_norm_eps: found"),
        ("clip", {"vision_config": 3}, "vision_config: found"),
        ("clip", {"quantization_config": {"bits": 8}}, "quantization_config: found"),
        (
            "siglip",
            {"model_type": "siglip2", "vision_config": {"num_patches": 200}},
            "vision_config.num_patches: found",
        ),
        ("siglip", {"vision_config": {"vision_use_head": False}}, "vision_config.vision_use_head: found"),
        ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type: found"),
        ("bert", {"is_decoder": True}, "is_decoder: found"),
    ],
)
def test_a_configuration_that_cannot_be_followed_is_refused_with_its_field(copy_of, family, changes, message):
    def change(config):
        for key, value in changes.items():
            config[key] = {**config.get(key, {}), **value} if isinstance(value, dict) else value
            if value is None:
                del config[key]

    folder = copy_of(family)
    change_json(folder / "config.json", change)
    refused(rf"config\.json: {message}", convert, folder)


def test_tensors_of_an_extra_layer_are_refused(clip_copy):
    change_json(clip_copy / "config.json", lambda config: config["text_config"].update(num_hidden_layers=2))
    refused(r"16 unknown \(text_model.encoder.layers.2.* and 8 more\)", convert, clip_copy)


def test_truncated_weights_are_refused(clip_copy):
    path = clip_copy / "model.safetensors"
    for rest in (path.read_bytes()[:-100], b""):
        path.write_bytes(rest)
        refused("a complete safetensors file", convert, clip_copy)


def save_shards(tensors, path):
    """An index in `path`, and half of the tensors in each of two files beside it."""
    names, weight_map = sorted(tensors), {}
    for number, part in enumerate((names[::2], names[1::2]), start=1):
        file = f"pytorch_model-0000{number}-of-00002.bin"
        torch.save({name: tensors[name] for name in part}, path.parent / file)
        weight_map |= dict.fromkeys(part, file)
    path.write_text(json.dumps({"weight_map": weight_map}))


@pytest.mark.parametrize(
    ("save", "name", "prefix"),
    [
        (torch.save, "pytorch_model.bin", ""),
        (torch.save, "pytorch_model.bin", "module._orig_mod."),
        (save_shards, "pytorch_model.bin.index.json", ""),
        (save_shards, "pytorch_model.bin.index.json", "model."),
        (hf.safetensors_torch.save_file, "model.fp16.safetensors", ""),
        (hf.safetensors_torch.save_file, "model.safetensors", "module."),
        (hf.safetensors_torch.save_file, "model.safetensors", "_orig_mod.module."),
    ],
)
def test_weights_are_read_from_any_file_and_below_any_wrapper(folders, clip_copy, save, name, prefix):
    tensors = hf.safetensors_torch.load_file(clip_copy / "model.safetensors")
    (clip_copy / "model.safetensors").unlink()
    save({f"{prefix}{each}": tensor for each, tensor in tensors.items()}, clip_copy / name)
    assert_same_arrays(parameters(clip_copy), parameters(folders["clip"]))


@pytest.mark.parametrize("prefixes", [("ema.", "module."), ("student.", "teacher.")])
def test_a_file_with_two_models_is_refused(prefixes, clip_copy):
    def doubled(tensors):
        both = {f"{prefix}{name}": tensors[name].clone() for prefix in prefixes for name in tensors}
        tensors.clear()
        tensors.update(both)

    hf.change_tensors(clip_copy, doubled)
    first, second = prefixes
    problem = (
        rf"tensors: found 2 models, with the prefixes '{first}', '{second}' before \d+ names each; wanted one model"
    )
    refused(problem, convert, clip_copy)


@pytest.mark.parametrize("change", [{"architectures": ["FGCLIPModel"]}, {"auto_map": {"AutoModel": "modeling.Model"}}])
def test_a_warning_reports_repository_code_that_is_not_run(change, clip_copy, capsys):
    assert not any(each.startswith("code:") for each in warnings_of(read_model(clip_copy)))
    change_json(clip_copy / "config.json", lambda config: config.update(change))
    capsys.readouterr()
    warnings = warnings_of(read_model(clip_copy))
    assert "has code of its own" in capsys.readouterr().err
    assert any(each.startswith("code: the repository has its own") for each in warnings)


def test_an_unknown_prefix_and_several_variants_of_weights_are_reported(clip_copy):
    hf.change_tensors(clip_copy, lambda tensors: tensors.update({f"tower.{n}": tensors.pop(n) for n in list(tensors)}))
    refused(r"tensors: found the prefix 'tower.' before \d+ names; wanted names without it", convert, clip_copy)
    shutil.copy(clip_copy / "model.safetensors", clip_copy / "model.fp16.safetensors")
    (clip_copy / "model.safetensors").rename(clip_copy / "model.bf16.safetensors")
    refused("weights: found variants alone: model.bf16.safetensors, model.fp16", convert, clip_copy)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update({"logit_scale": "absent.safetensors"}), "absent.safetensors: file: found nothing there"),
        (lambda m: m.update({"more": m["logit_scale"]}), "all tensors of the index"),
        (lambda m: m.update({"logit_scale": "../escape.safetensors"}), "file names inside the folder"),
    ],
)
def test_an_index_that_names_missing_files_is_refused(copy_of, change, message):
    folder = copy_of("sharded")
    change_json(folder / "model.safetensors.index.json", lambda index: change(index["weight_map"]))
    refused(message, convert, folder)


def test_a_source_that_is_neither_a_folder_nor_a_hub_name_is_refused(tmp_path, monkeypatch):
    """A name of the hub needs no owner; a name of a file is none."""
    (tmp_path / "file").write_text("")
    for source in (tmp_path / "absent", tmp_path / "file", "no such model"):
        refused("a model directory, a checkpoint's folder or file, or a hub name", convert, source)
    refused("the hub answers", convert, "nobody/nothing")  # tests run offline
    asked = []
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda name, **_: asked.append(name) or 1 / 0)
    for name in ("gpt2", "bert-base-uncased", "hf-hub:owner/name"):
        refused("the hub answers", convert, name)
    refused("nothing there", convert, "gone.pt")
    assert asked == ["gpt2", "bert-base-uncased", "owner/name"]


def with_pooling(folder, pooling, *modules):
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    kinds = [{"type": f"sentence_transformers.models.{kind}", "path": path} for kind, path in modules]
    if modules:
        (folder / "modules.json").write_text(json.dumps(kinds))
    return folder


@pytest.mark.parametrize(
    ("config", "pooling"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode": "mean"}, "mean"),
    ],
)
def test_the_pooling_of_sentence_transformers_folders_is_read(copy_of, config, pooling):
    modules = ("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")
    folder = with_pooling(copy_of("bert"), config, *modules)
    assert convert(folder).spec.text.pooling == pooling
    assert convert(folder, pooling="cls").spec.text.pooling == "cls"


def test_sentence_modules_that_would_change_embeddings_are_refused(copy_of):
    folder = with_pooling(copy_of("bert"), {"pooling_mode_max_tokens": True})
    refused("found max_tokens; wanted either cls or mean", convert, folder)
    with_pooling(folder, {"pooling_mode_mean_tokens": True}, ("Transformer", ""), ("Dense", "2_Dense"))
    refused(r"2_Dense/config\.json", convert, folder)


def test_the_pooling_can_be_chosen_only_if_the_family_does_not_fix_it(folders):
    assert convert(folders["dinov2"]).spec.vision.pooling == "cls"
    assert convert(folders["bert"]).spec.text.pooling == "cls"
    for family, pooling in (("clip", "mean"), ("siglip", "cls"), ("bert", "cls+mean"), ("dinov2", "attention")):
        refused(r"^pooling: ", convert, folders[family], pooling=pooling)


def test_absent_keys_of_a_configuration_have_the_defaults_of_the_reference(tmp_path):
    """An empty configuration gives the spec of an instance that the library makes without arguments."""
    assert len(FAMILIES) == 22
    for kind in FAMILIES:
        config = transformers.CONFIG_MAPPING[kind]
        names = ("vision_proj.weight", "text_proj.weight")  # what BLIP's retrieval form is known by
        written = spec_from_config(config().to_dict(), tmp_path, names)
        assert spec_from_config({"model_type": kind}, tmp_path, names) == written, kind


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [("dinov3_vit", "rope_theta", 0.5), ("dinov3_vit", "query_bias", False), ("dinov3_vit", "num_register_tokens", -1)],
)
def test_a_value_that_dinov3_cannot_follow_is_refused(kind, key, value, tmp_path):
    refused("value_bias|" + key, spec_from_config, {"model_type": kind, key: value}, tmp_path, ())
    refused("DINOv3's ConvNeXt", spec_from_config, {"model_type": "dinov3_convnext"}, tmp_path, ())


@pytest.mark.parametrize("ratio", [0, 0.0, -4, True, "4", None, [4]])
def test_the_mlp_ratio_must_be_a_number_above_0(ratio, tmp_path):
    config = {"model_type": "dinov2", "hidden_size": 48, "num_attention_heads": 4}
    assert spec_from_config(config | {"mlp_ratio": 1.5}, tmp_path, ()).vision.mlp_width == 72
    refused(
        "mlp_ratio: found .*; wanted a number above 0", spec_from_config, config | {"mlp_ratio": ratio}, tmp_path, ()
    )


def test_early_clip_configurations_are_read_as_the_reference_reads_them(tmp_path):
    early = {
        "model_type": "clip",
        "projection_dim": 768,
        "text_config": {"hidden_size": 64, "vocab_size": 7},
        "text_config_dict": {"hidden_size": 768, "num_attention_heads": 12},
        "vision_config": {"hidden_size": 48},
        "vision_config_dict": {"hidden_size": 1024, "num_attention_heads": 16, "patch_size": 14},
    }
    expected = transformers.CLIPConfig.from_dict(json.loads(json.dumps(early))).to_dict()
    assert spec_from_config(early, tmp_path, ()) == spec_from_config(expected, tmp_path, ())


def test_a_model_does_not_share_its_arrays_with_another_of_the_same_spec(folders):
    first, second = (read_model(folders["clip"]).model for _ in range(2))
    before = np.asarray(second.text.words[...])
    first.text.words[...] = jnp.zeros_like(first.text.words[...])
    np.testing.assert_array_equal(second.text.words[...], before)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(nnx.state(second)))


def test_images_are_preprocessed_as_usual_for_the_family_if_there_is_no_processor_file(folders):
    for family, shortest_edge in (("clip", True), ("siglip", False), ("dinov2", True)):
        checkpoint = convert(folders[family])
        spec, preprocessing = checkpoint.spec, checkpoint.preprocessing
        assert checkpoint.provenance["read_from"]["mean"] == "the family's default"
        assert preprocessing.image_size == (spec.vision.image_size,) * 2
        assert (preprocessing.shortest_edge is not None) == shortest_edge


def test_a_processor_for_another_size_is_refused_except_for_dinov2(copy_of, tmp_path):
    processor = {"image_processor_type": "BitImageProcessor", "size": {"shortest_edge": 64}, "crop_size": 64}
    for family in ("clip", "dinov2"):
        (copy_of(family) / "preprocessor_config.json").write_text(json.dumps(processor))
    refused("64 x 64 pixels", convert, tmp_path / "clip")
    assert convert(tmp_path / "dinov2").spec.vision.image_size == 64
