"""Test adapters of PEFT beside a model, alone, or unmerged in its weights; the formula is restated from the paper."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from rococo_jax.checkpoints import convert
from rococo_jax.checkpoints.lora import _alpha, check_adapter
from tests.support.reference_models import change_tensors, clip, safetensors_torch, saved, torch, transformers
from tests.support.refusals import refused

QUERY, VALUE = (f"text_model.encoder.layers.1.self_attn.{name}_proj" for name in "qv")
WORDS, PATCHES = "text_model.embeddings.token_embedding", "vision_model.embeddings.patch_embedding"
CONFIG = {"peft_type": "LORA", "r": 2, "lora_alpha": 5, "target_modules": ["q_proj"], "megatron_core": "megatron.core"}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return saved(clip(), tmp_path_factory.mktemp("lora") / "base")


@pytest.fixture(scope="module")
def weights(base):
    return safetensors_torch.load_file(base / "model.safetensors")


def matrices(weights, name, rank):
    torch.manual_seed(rank)
    outputs, *inputs = weights[f"{name}.weight"].shape
    return torch.randn(rank, *inputs), torch.randn(outputs, rank, *(1 for _ in inputs[1:]))


def assert_parameters(folder, expected):
    expected = dict(convert(expected).parameters)
    for path, array in convert(folder).parameters.items():
        # Two products of float32 that sum in another order.
        np.testing.assert_allclose(array, expected.pop(path), rtol=0, atol=1e-5, err_msg=path)
    assert not expected


def merged(base, folder, changes):
    """The model whose weights are changed by hand."""
    shutil.copytree(base, folder)
    change_tensors(
        folder, lambda tensors: tensors.update({name: make(tensors[name]) for name, make in changes.items()})
    )
    return folder


def write_adapter(folder, tensors, **config):
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps({**CONFIG, **config}))
    stored = {f"base_model.model.{name}": tensor.contiguous() for name, tensor in tensors.items()}
    safetensors_torch.save_file(stored, folder / "adapter_model.safetensors")
    return folder


def unmerge(tensors, adapter):
    """Tensors as PEFT names them while an adapter called `default` is at work."""
    for name in (QUERY, VALUE):
        tensors |= {f"{name}.base_layer.{part}": tensors.pop(f"{name}.{part}") for part in ("weight", "bias")}
    tensors |= {name.replace(".weight", ".default.weight"): each for name, each in adapter.items() if "lora" in name}
    tensors["visual_projection.original_module.weight"] = tensors.pop("visual_projection.weight")
    tensors["visual_projection.modules_to_save.default.weight"] = adapter["visual_projection.weight"]


@pytest.mark.parametrize("place", ["alone", "named", "beside", "unmerged"])
def test_an_adapter_is_merged_into_the_weights(base, weights, place, tmp_path):
    a, b = matrices(weights, QUERY, 2)
    c, d = matrices(weights, VALUE, 3)
    adapter = {f"{QUERY}.lora_A.weight": a, f"{QUERY}.lora_B.weight": b, f"{VALUE}.lora_A.weight": c}
    adapter |= {f"{VALUE}.lora_B.weight": d, "visual_projection.weight": 2 * weights["visual_projection.weight"]}
    config = {"rank_pattern": {"v_proj": 3}, "alpha_pattern": {"1.self_attn.v_proj": 7}}
    folder = tmp_path / "adapter"
    if place in ("beside", "unmerged"):
        shutil.copytree(base, folder)
    if place == "unmerged":
        change_tensors(folder, lambda tensors: unmerge(tensors, adapter))
        refused("matrices of LoRA that are not merged; wanted adapter_config.json beside", convert, folder)
        (folder / "adapter_config.json").write_text(json.dumps({**CONFIG, **config}))
    else:
        named = base if place in ("alone", "named") else None
        folder.mkdir(exist_ok=True)
        adapter_folder = folder / "style" if place == "named" else folder  # where PEFT writes adapters with names
        write_adapter(adapter_folder, adapter, **config, base_model_name_or_path=named and str(named))
    changes = {
        f"{QUERY}.weight": lambda weight: weight + 5 / 2 * b @ a,
        f"{VALUE}.weight": lambda weight: weight + 7 / 3 * d @ c,
        "visual_projection.weight": lambda weight: 2 * weight,
    }
    assert_parameters(folder, merged(base, tmp_path / "merged", changes))


def test_a_folder_of_several_named_adapters_is_refused(tmp_path):
    for name in ("style", "colour"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "adapter_config.json").write_text("{}")
    refused("adapters: found colour, style; wanted the folder of one adapter, such as .*colour", convert, tmp_path)


def test_adapters_of_embeddings_convolutions_and_biases_and_rslora_are_merged(base, weights, tmp_path):
    c, d = matrices(weights, PATCHES, 3)
    e, f = torch.randn(2, weights[f"{WORDS}.weight"].shape[0]), torch.randn(weights[f"{WORDS}.weight"].shape[1], 2)
    adapter = {f"{WORDS}.lora_embedding_A": e, f"{WORDS}.lora_embedding_B": f, f"{QUERY}.bias": torch.ones(32)}
    adapter |= {f"{PATCHES}.lora_A.weight": c, f"{PATCHES}.lora_B.weight": d}
    folder = write_adapter(tmp_path / "a", adapter, use_rslora=True, bias="all", base_model_name_or_path=str(base))
    changes = {
        f"{WORDS}.weight": lambda weight: weight + 5 / 2**0.5 * (f @ e).T,
        f"{PATCHES}.weight": lambda weight: weight + 5 / 3**0.5 * torch.einsum("or,rihw->oihw", d[:, :, 0, 0], c),
        f"{QUERY}.bias": torch.ones_like,
    }
    assert_parameters(folder, merged(base, tmp_path / "merged", changes))


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"use_dora": True}, "use_dora"),
        ({"lora_bias": True}, "lora_bias"),
        ({"layer_replication": [[0, 2]]}, "layer_replication"),
        ({"peft_type": "IA3"}, "peft_type"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights"),
        ({"trainable_token_indices": [3]}, "trainable_token_indices"),
        ({"a_key_of_the_future": 1}, "a_key_of_the_future"),
        ({"base_model_name_or_path": None}, "base_model_name_or_path"),
    ],
)
def test_settings_that_would_change_the_result_are_refused_by_their_key(base, weights, config, field, tmp_path):
    a, b = matrices(weights, QUERY, 2)
    adapter = {f"{QUERY}.lora_A.weight": a, f"{QUERY}.lora_B.weight": b}
    folder = write_adapter(tmp_path / "a", adapter, **{"base_model_name_or_path": str(base), **config})
    refused(rf"adapter_config.json: {field}: found", convert, folder)


def test_every_key_of_peft_has_no_effect_or_is_refused():
    config, path = pytest.importorskip("peft").LoraConfig(r=2).to_dict(), Path("adapter_config.json")
    check_adapter(config, path)
    prefixes = ("use_", "target_p", "layer_r", "lora_b", "trainable", "arrow", "kasa")
    for key in config.keys() - {"use_rslora"}:
        if key.startswith(prefixes):
            refused(f"{key}: found", check_adapter, {**config, key: True}, path)


def test_a_merged_adapter_equals_merge_and_unload_of_peft(base, tmp_path):
    peft = pytest.importorskip("peft")
    model = transformers.CLIPModel.from_pretrained(base)
    config = peft.LoraConfig(
        r=4, lora_alpha=6, target_modules=["q_proj", "v_proj", "token_embedding", "patch_embedding"], bias="lora_only",
        modules_to_save=["visual_projection"], init_lora_weights=False, rank_pattern={"text.*q_proj": 2},
        alpha_pattern={"0.self_attn.v_proj": 3}, use_rslora=True, fan_in_fan_out=True,
    )  # fmt: skip
    adapted = peft.get_peft_model(model, config)
    adapted.save_pretrained(tmp_path / "adapter")
    adapted.merge_and_unload().save_pretrained(tmp_path / "merged")
    assert_parameters(tmp_path / "adapter", tmp_path / "merged")


@pytest.mark.parametrize(
    ("pattern", "fits"),
    [
        ("v_proj", True),
        ("1.self_attn.v_proj", True),
        (r"layers\.(0|1)\..*v_proj", True),
        ("proj", False),
        (".*q_proj", False),
    ],
)
def test_patterns_of_layers_are_compared_as_peft_does(pattern, fits, tmp_path):
    """PEFT: `re.match(rf"(.*\\.)?({key})$", module)`."""
    module = "text_model.encoder.layers.1.self_attn.v_proj"
    assert fits == bool(re.match(rf"(.*\.)?({pattern})$", module))
    assert _alpha({"alpha_pattern": {pattern: 7}, "lora_alpha": 1}, module, tmp_path) == (7 if fits else 1)


@pytest.mark.parametrize(
    ("pattern", "said"),
    [("(", "a regular expression"), (r"((a|aa)+)+\1b", "which takes too long"), ([1], "an object of numbers")],
)
def test_patterns_of_layers_that_cannot_be_used_are_refused(pattern, said, tmp_path, monkeypatch):
    monkeypatch.setattr("rococo_jax.checkpoints.lora._SECONDS", 0.1)
    patterns = {pattern: 2} if isinstance(pattern, str) else pattern
    refused(said, _alpha, {"alpha_pattern": patterns, "lora_alpha": 1}, "a" * 60, tmp_path)
