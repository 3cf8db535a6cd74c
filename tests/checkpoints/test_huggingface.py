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
from rococo_jax.checkpoints.tensors import write_tensors
from rococo_jax.encoders import load_model
from rococo_jax.errors import InputError
from tests.support.reference_models import bert, clip, dinov2, saved, siglip, torch, transformers
from tests.support.refusals import refused

safetensors_torch = pytest.importorskip("safetensors.torch")

MAKERS = {"clip": clip, "siglip": siglip, "dinov2": dinov2, "bert": bert}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """One saved reference a family; tests that change one copy it first."""
    root = tmp_path_factory.mktemp("references")
    folders = {family: saved(make(), root / family) for family, make in MAKERS.items()}
    folders["dinov2_gated"] = saved(dinov2(use_swiglu_ffn=True), root / "gated")
    return folders


@pytest.fixture
def clip_copy(folders, tmp_path):
    return shutil.copytree(folders["clip"], tmp_path / "clip")


def change_tensors(folder, change):
    """Rewrites the folder's tensors through `change(dict)`."""
    path = folder / "model.safetensors"
    tensors = safetensors_torch.load_file(path)
    change(tensors)
    safetensors_torch.save_file(tensors, path)


def change_config(folder, change):
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))


def parameters(folder, **options):
    return {path: np.asarray(array) for path, array in convert(folder, **options).parameters.items()}


def assert_equal(ours, expected):
    assert ours.keys() == expected.keys()
    for path in ours:
        np.testing.assert_array_equal(ours[path], expected[path], err_msg=path)


@pytest.mark.parametrize("name", ["clip", "siglip", "dinov2", "dinov2_gated", "bert"])
def test_the_table_backwards_gives_the_checkpoint_bit_for_bit(folders, name):
    folder, family = folders[name], name.split("_")[0]
    model = convert(folder)
    prefixes = ("vision_model.", "text_model.") if family in ("clip", "siglip") else ("", "")
    written = write_tensors(parameters(folder), FAMILIES[family].table(model.spec, *prefixes))
    stored = safetensors_torch.load_file(folder / "model.safetensors")
    unused = {"embeddings.mask_token", "pooler.dense.weight", "pooler.dense.bias"}
    assert written.keys() == stored.keys() - unused
    for key, tensor in written.items():
        np.testing.assert_array_equal(tensor, stored[key].numpy(), err_msg=key)


def test_sharded_folders_read_like_whole_ones(folders, tmp_path):
    model = transformers.CLIPModel.from_pretrained(folders["clip"])
    folder = saved(model, tmp_path / "sharded", max_shard_size="40KB")
    assert len(list(folder.glob("model-*.safetensors"))) > 2 and not (folder / "model.safetensors").exists()
    assert_equal(parameters(folder), parameters(folders["clip"]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_of_any_precision_become_float32(folders, clip_copy, dtype):
    change_tensors(clip_copy, lambda tensors: tensors.update({k: v.to(dtype) for k, v in tensors.items()}))
    whole = parameters(folders["clip"])
    for path, array in parameters(clip_copy).items():
        assert array.dtype == np.float32
        expected = torch.from_numpy(whole[path].copy()).to(dtype).float().numpy()
        np.testing.assert_array_equal(array, expected, err_msg=path)


def test_names_of_older_releases_are_read(folders, tmp_path):
    folder = shutil.copytree(folders["bert"], tmp_path / "bert")

    def age(tensors):
        for name in list(tensors):
            old = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
            tensors[f"bert.{old}"] = tensors.pop(name)
        tensors["bert.embeddings.position_ids"] = torch.arange(13)[None]
        tensors["cls.predictions.bias"] = torch.zeros(99)

    change_tensors(folder, age)
    assert_equal(parameters(folder), parameters(folders["bert"]))


def test_missing_unknown_and_misshapen_tensors_are_listed_at_once(clip_copy):
    def spoil(tensors):
        del tensors["visual_projection.weight"]
        tensors["vision_model.surprise"] = torch.zeros(2)
        tensors["text_model.final_layer_norm.bias"] = torch.zeros(31)
        tensors["logit_scale"] = torch.tensor(3)

    change_tensors(clip_copy, spoil)
    with pytest.raises(InputError) as caught:
        convert(clip_copy)
    message = str(caught.value)
    assert "1 missing (visual_projection.weight)" in message
    assert "1 unknown (vision_model.surprise)" in message
    assert "text_model.final_layer_norm.bias of shape (31,) instead of (32,)" in message
    assert "logit_scale of type I64" in message
    assert "\n" not in message


def test_a_layer_too_many_is_unknown_not_ignored(clip_copy):
    change_config(clip_copy, lambda config: config["text_config"].update(num_hidden_layers=2))
    refused(r"16 unknown \(text_model.encoder.layers.2.* and 8 more\)", convert, clip_copy)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda c: c.update(model_type="flava"), "model_type"),
        (lambda c: c.pop("model_type"), "model_type"),
        (lambda c: c["text_config"].update(hidden_act="mish"), "text_config.hidden_act"),
        (lambda c: c["vision_config"].update(image_size="big"), "vision_config.image_size"),
        (lambda c: c["vision_config"].update(image_size=[30, 40]), "vision_config.image_size"),
        (lambda c: c["text_config"].update(num_hidden_layers=0), "text_config.num_hidden_layers"),
        (lambda c: c["text_config"].update(num_hidden_layers=1001), "text_config.num_hidden_layers"),
        (lambda c: c["text_config"].update(layer_norm_eps=-1), "text_config.layer_norm_eps"),
        (lambda c: c.update(vision_config=3), "vision_config"),
    ],
)
def test_a_configuration_that_cannot_be_followed_names_its_field(clip_copy, change, field):
    change_config(clip_copy, change)
    with pytest.raises(InputError) as caught:
        convert(clip_copy)
    assert caught.value.field == field
    assert "config.json" in caught.value.source


def test_towers_that_would_be_misread_are_refused(folders, tmp_path):
    cases = (
        ("siglip", {"model_type": "siglip2"}, "model_type: found 'siglip2', SigLIP 2 in its NaFlex form"),
        ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ("bert", {"is_decoder": True}, "is_decoder"),
        ("siglip", {"vision_config": {"vision_use_head": False}}, "vision_use_head"),
    )
    for index, (family, change, field) in enumerate(cases):
        folder = shutil.copytree(folders[family], tmp_path / str(index))
        change_config(folder, lambda config, change=change: config.update(change))
        refused(field, convert, folder)


def test_weights_cut_short_are_refused(clip_copy):
    path = clip_copy / "model.safetensors"
    for rest in (path.read_bytes()[:-100], b""):
        path.write_bytes(rest)
        refused("a whole safetensors file", convert, clip_copy)


def _as_pickle(folder, tensors):
    torch.save(tensors, folder / "pytorch_model.bin")


def _as_shards(folder, tensors):
    names, weight_map = sorted(tensors), {}
    for number, part in enumerate((names[::2], names[1::2]), start=1):
        file = f"pytorch_model-0000{number}-of-00002.bin"
        torch.save({name: tensors[name] for name in part}, folder / file)
        weight_map |= dict.fromkeys(part, file)
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))


def _as_variant(folder, tensors):
    safetensors_torch.save_file(tensors, folder / "model.fp16.safetensors")


def _as_safetensors(folder, tensors):
    safetensors_torch.save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("write", "prefix"),
    [
        (_as_pickle, ""),
        (_as_pickle, "module._orig_mod."),
        (_as_shards, ""),
        (_as_shards, "model."),
        (_as_variant, ""),
        (_as_safetensors, "module."),
        (_as_safetensors, "_orig_mod.module."),
    ],
)
def test_weights_are_read_from_any_file_and_below_any_wrapper(folders, clip_copy, write, prefix):
    tensors = safetensors_torch.load_file(clip_copy / "model.safetensors")
    (clip_copy / "model.safetensors").unlink()
    write(clip_copy, {f"{prefix}{name}": tensor for name, tensor in tensors.items()})
    assert_equal(parameters(clip_copy), parameters(folders["clip"]))


def test_a_prefix_of_another_name_and_several_variants_are_said(clip_copy):
    change_tensors(clip_copy, lambda tensors: tensors.update({f"tower.{n}": tensors.pop(n) for n in list(tensors)}))
    refused(r"tensors: found the prefix 'tower.' before \d+ names; wanted names without it", convert, clip_copy)
    shutil.copy(clip_copy / "model.safetensors", clip_copy / "model.fp16.safetensors")
    (clip_copy / "model.safetensors").rename(clip_copy / "model.bf16.safetensors")
    refused("weights: found variants alone: model.bf16.safetensors, model.fp16", convert, clip_copy)


def test_an_index_that_names_what_is_not_there_is_refused(folders, tmp_path):
    model = transformers.CLIPModel.from_pretrained(folders["clip"])
    folder = saved(model, tmp_path / "sharded", max_shard_size="40KB")
    index = folder / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    for change, wanted in (
        (lambda m: m.update({"logit_scale": "absent.safetensors"}), "absent.safetensors: file: found nothing there"),
        (lambda m: m.update({"more": m["logit_scale"]}), "all that the index names"),
        (lambda m: m.update({"logit_scale": "../escape.safetensors"}), "file names inside the folder"),
    ):
        changed = json.loads(json.dumps(content))
        change(changed["weight_map"])
        index.write_text(json.dumps(changed))
        refused(wanted, convert, folder)


def test_what_is_no_folder_and_no_hub_name_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for source in (tmp_path / "absent", tmp_path / "file", "no such model"):
        refused("a model directory, a checkpoint's folder or file, or a hub name", convert, source)
    with pytest.raises(InputError, match="the hub answers"):
        convert("nobody/nothing")  # tests run offline


def pooling_folder(folders, tmp_path, pooling, modules=None):
    folder = shutil.copytree(folders["bert"], tmp_path / "sentences", dirs_exist_ok=True)
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    if modules is not None:
        kinds = [{"type": f"sentence_transformers.models.{kind}", "path": path} for kind, path in modules]
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
def test_sentence_transformers_folders_say_how_they_pool(folders, tmp_path, config, pooling):
    modules = [("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")]
    folder = pooling_folder(folders, tmp_path, config, modules)
    assert convert(folder).spec.text.pooling == pooling
    assert convert(folder, pooling="cls").spec.text.pooling == "cls"


def test_sentence_modules_that_change_the_vectors_are_refused(folders, tmp_path):
    folder = pooling_folder(folders, tmp_path, {"pooling_mode_max_tokens": True})
    refused("found max_tokens; wanted either cls or mean", convert, folder)
    modules = [("Transformer", ""), ("Pooling", "1_Pooling"), ("Dense", "2_Dense")]
    folder = pooling_folder(folders, tmp_path, {"pooling_mode_mean_tokens": True}, modules)
    refused(r"2_Dense/config\.json", convert, folder)


def test_pooling_is_a_choice_only_where_the_family_leaves_it_open(folders):
    assert convert(folders["dinov2"]).spec.vision.pooling == "cls"
    assert convert(folders["bert"]).spec.text.pooling == "cls"
    for family, pooling in (("clip", "mean"), ("siglip", "cls"), ("bert", "cls+mean"), ("dinov2", "attention")):
        refused(r"^pooling: ", convert, folders[family], pooling=pooling)


def test_what_a_configuration_leaves_out_is_the_default_of_the_reference(tmp_path):
    """An empty configuration gives the spec of an instance that the library makes without arguments."""
    assert len(FAMILIES) == 15
    for kind in FAMILIES:
        config = transformers.CONFIG_MAPPING[kind]
        names = ("vision_proj.weight", "text_proj.weight")  # what BLIP's retrieval form is known by
        written = spec_from_config(config().to_dict(), tmp_path, names)
        assert spec_from_config({"model_type": kind}, tmp_path, names) == written, kind


def test_the_early_form_of_clip_configurations_is_read_as_the_reference_reads_it(tmp_path):
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
    first, second = (load_model(folders["clip"]).model for _ in range(2))
    before = np.asarray(second.text.words[...])
    first.text.words[...] = jnp.zeros_like(first.text.words[...])
    np.testing.assert_array_equal(second.text.words[...], before)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(nnx.state(second)))


def test_without_a_processor_file_images_are_prepared_as_the_family_does(folders):
    for family, shortest_edge in (("clip", True), ("siglip", False), ("dinov2", True)):
        spec, _, preprocessing, _, provenance = convert(folders[family])
        assert provenance["read_from"]["mean"] == "the family's default"
        assert preprocessing.image_size == (spec.vision.image_size,) * 2
        assert (preprocessing.shortest_edge is not None) == shortest_edge


def test_a_processor_for_another_size_is_refused_but_resizes_dinov2_as_the_reference_does(folders, tmp_path):
    for family in ("clip", "dinov2"):
        folder = shutil.copytree(folders[family], tmp_path / family)
        processor = {"image_processor_type": "BitImageProcessor", "size": {"shortest_edge": 64}, "crop_size": 64}
        (folder / "preprocessor_config.json").write_text(json.dumps(processor))
        if family == "clip":
            refused("64 x 64 pixels", convert, folder)
        else:
            assert convert(folder).spec.vision.image_size == 64


def test_names_of_the_hub_need_no_owner(monkeypatch):
    """The hub is asked as it would be for a name with one; a name of a file is not."""
    asked = []
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda name, **_: asked.append(name) or 1 / 0)
    for name in ("gpt2", "bert-base-uncased", "hf-hub:owner/name"):
        refused("the hub answers", convert, name)
    refused("nothing there", convert, "gone.pt")
    assert asked == ["gpt2", "bert-base-uncased", "owner/name"]
