"""open_clip's towers: the vectors that open_clip itself gives (golden arrays), from its folders and from `.pt` files.

The golden files hold shapes and results; weights and inputs are made again from names, see tests/support/golden.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from rococo_jax.checkpoints import save_model
from rococo_jax.checkpoints.formats.activation import activation_of_open_clip
from rococo_jax.checkpoints.formats.open_clip_config import spec_from_open_clip
from rococo_jax.checkpoints.parameters import parameters_of
from rococo_jax.checkpoints.tensors import Tensors
from rococo_jax.encoders.inspection import warnings_of
from rococo_jax.models import parameter_counts
from tests.support.cases import further
from tests.support.golden.weights import pixels_for, weights_for
from tests.support.models import assert_same_model, read_model, read_towers
from tests.support.open_clip_files import CASES, GOLDEN, NAMES, assert_golden, golden, open_clip_folder
from tests.support.paths import CHECKOUT
from tests.support.refusals import refused

# Each of what the other cases try once: run with ROCOCO_THOROUGH=1.
REPEATED = (
    "siglip2", "eva01", "eva02_enormous", "pe_without_class", "convnext", "mobile_large", "vitamin_xlarge", "timm_bert",
    "vit_gelu",
)  # fmt: skip
# Towers of open_clip's own code and of timm; `vit_gelu` is tried below as well.
ALWAYS = ("vit_quick_gelu", "siglip", "roberta")


@pytest.mark.parametrize(
    "case",
    further([case for case in CASES if case not in REPEATED], ALWAYS) + further(REPEATED, (), pytest.mark.thorough),
)
def test_an_open_clip_folder_gives_the_embeddings_of_open_clip(case, tmp_path):
    encoder = read_towers(open_clip_folder(case, tmp_path / NAMES.get(case, case)))
    assert_golden(encoder, case)
    assert encoder.provenance["format"] == "open_clip"


@pytest.mark.slow
def test_padding_does_not_change_the_embedding_of_an_appended_token(tmp_path):
    """open_clip pads every text to the context; here the vectors are those of texts as short as they are."""
    record = golden("coca")
    encoder = read_towers(open_clip_folder("coca", tmp_path / NAMES["coca"]))
    ids = np.array(record["ids"], np.int32)
    run = jax.jit(lambda i, m: encoder.model.text_embeddings(i, m))
    for row, expected in zip(ids, record["texts"], strict=True):
        length = int((row != 0).sum())
        # What stands in the padding does not matter, nor how much there is of it.
        for more in {0, min(2, len(row) - length)}:
            given = np.concatenate([row[:length], np.full(more, 7, np.int32)])[None]
            mask = np.arange(length + more)[None] < length
            np.testing.assert_allclose(run(given, mask)[0], expected, rtol=0, atol=1e-5)


@pytest.mark.skipif(importlib.util.find_spec("open_clip") is None, reason="open_clip is not installed")
def test_the_recorded_arrays_match_the_installed_open_clip():
    """Check in another process: it imports torchvision, which `transformers` must not import here."""
    command = [sys.executable, str(GOLDEN / "make_open_clip.py"), "--check"]
    root = str(CHECKOUT)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
    subprocess.run(command, check=True, env=environment, cwd=root)


@pytest.mark.slow
def test_an_open_clip_model_is_the_same_after_saving_and_loading(tmp_path):
    """Statistics of batch norms are written and restored as parameters are."""
    first = read_towers(open_clip_folder("resnet_quick_gelu", tmp_path / "theirs"))
    save_model(tmp_path / "ours", first)
    second = read_model(tmp_path / "ours")
    assert_same_model(second, first)
    assert "vision.norm1.variance" in parameters_of(second.model)


@pytest.mark.parametrize(
    ("config", "name", "activation"),
    [
        ({"quick_gelu": True}, "mine", "quick_gelu"),
        ({"quick_gelu": False}, "mine", "gelu"),
        ({"quick_gelu": "TRUE"}, "mine", "quick_gelu"),  # FARE's and TeCoA's
        ({"pretrained_cfg": {"quick_gelu": True}}, "mine", "quick_gelu"),
        ({}, "timm/vit_base_patch32_clip_224.openai", "quick_gelu"),
        ({}, "apple/DFN2B-CLIP-ViT-B-16", "quick_gelu"),
        ({}, "apple/DFN2B-CLIP-ViT-L-14-39B", "gelu"),
        ({}, "timm/vit_base_patch16_clip_224.metaclip_400m", "quick_gelu"),
        ({}, "timm/vit_huge_patch14_clip_224.metaclip_altogether", "gelu"),
        ({}, "timm/vit_gigantic_patch14_clip_224.metaclip_2pt5b", "quick_gelu"),
        # MetaCLIP 2: open_clip's pretrained.py notes "not quick-gelu" beside all but H/14 of 224 pixels.
        ({}, "timm/vit_huge_patch14_clip_224.metaclip2_worldwide", "quick_gelu"),
        ({}, "timm/vit_huge_patch14_clip_378.metaclip2_worldwide", "gelu"),
        ({}, "timm/vit_gigantic_patch14_clip_224.metaclip2_worldwide", "gelu"),
        ({}, "timm/vit_base_patch32_clip_224.laion400m_e32", "quick_gelu"),
        ({}, "timm/vit_base_patch16_clip_224.laion400m_e32", "gelu"),
        ({}, "laion/CLIP-ViT-bigG-14-laion2B-39B-b160k", "gelu"),
        ({}, "checkpoints/laion/CLIP-ViT-B-32-DataComp.XL-s13B-b90K", "gelu"),
        # The folder's or the repository's own name counts, and no other part of the path.
        ({}, "vs-openai/CLIP-ViT-B-32-laion2B-s34B-b79K", "gelu"),
        ({}, "from_metaclip/ViT-B-16-quickgelu-dfn5b/", "quick_gelu"),
        ({}, "hub/models--laion--CLIP-ViT-B-32-laion2B-s34B-b79K/snapshots/0a1b2c", "gelu"),
        ({"vision_cfg": {"timm_model_name": "vit_base_patch16_siglip_224"}}, "mine", "gelu"),
    ],
)
def test_the_activation_is_inferred_from_configuration_and_name(config, name, activation):
    assert activation_of_open_clip(config, name, None)[0] == activation


@pytest.mark.parametrize(
    "name",
    [
        "my-datacomp-finetune-from-openai",
        "laion/run_metaclip_vs_gelu",
        "openai/mine",
        "laion/CLIP-ViT-B-32-roberta-base-laion2B-s12B-b32k",  # open_clip's table contradicts its architecture
    ],
)
def test_names_of_unpublished_models_imply_no_activation(name):
    refused("activation: found neither quick_gelu in the configuration", activation_of_open_clip, {}, name, None)


def test_an_activation_that_cannot_be_inferred_must_be_given(tmp_path):
    folder = open_clip_folder("vit_gelu", tmp_path / "mine")
    refused("activation: found neither .* the argument activation, quick_gelu or gelu", read_towers, folder)
    asked = read_towers(folder, activation="gelu")
    assert_same_model(asked, read_towers(open_clip_folder("vit_gelu", tmp_path / NAMES["vit_gelu"])))
    assert any(warning.startswith("activation: given by hand") for warning in warnings_of(asked))
    assert asked.spec.text.activation == "gelu"
    assert asked.provenance["read_from"]["text activation"] == "the argument activation"
    # It matters, or the cases here would show nothing.
    other = read_towers(folder, activation="quick_gelu").encode_image(pixels_for(32))
    assert np.abs(other - np.array(golden("vit_gelu")["images"])).max() > 1e-3
    refused(r"^activation: ", read_towers, folder, activation="relu")


def test_the_error_for_a_missing_tokenizer_explains_how_to_provide_one(tmp_path):
    folder = open_clip_folder("vit_quick_gelu", tmp_path / "theirs")
    # Tests run offline.
    refused(r"openai/clip-vit-base-patch32 cannot be read .*the argument tokenizer", read_model, folder)


def test_older_pickled_weights_are_read_without_running_them(tmp_path):
    torch = pytest.importorskip("torch")
    folder = open_clip_folder("vit_quick_gelu", tmp_path / "older")
    safe, pickled = read_towers(folder), folder / "open_clip_pytorch_model.bin"
    (folder / "open_clip_model.safetensors").unlink()
    tensors = weights_for(golden("vit_quick_gelu")["shapes"])
    torch.save({name: torch.from_numpy(array) for name, array in tensors.items()}, pickled)
    assert_same_model(read_towers(folder), safe)
    torch.save({"w": Path}, pickled)
    refused("pickle: found the name pathlib", read_towers, folder)
    pickled.unlink()
    refused("no weight files", read_towers, folder)


# (width, layers, head width, ratio, patch; text width, heads, layers; dim; millions of parameters) of LAION's and
# TinyCLIP's configurations; the totals are those of open_clip's own table of profiles, TinyCLIP's of its paper.
PUBLISHED = {
    "ViT-H-14": (1280, 32, 80, 4.0, 14, 1024, 16, 24, 1024, 986.11),
    "ViT-g-14": (1408, 40, 88, 4.3637, 14, 1024, 16, 24, 1024, 1366.68),
    "ViT-bigG-14": (1664, 48, 104, 4.9231, 14, 1280, 20, 32, 1280, 2539.57),
    "TinyCLIP-ViT-40M-32-Text-19M": (512, 12, 64, 4.0, 32, 512, 8, 6, 512, 84.2),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_architectures_have_their_published_sizes(name):
    width, layers, head, ratio, patch, text_width, heads, text_layers, dim, millions = PUBLISHED[name]
    vision = {"width": width, "layers": layers, "head_width": head, "mlp_ratio": ratio, "patch_size": patch}
    config = {"embed_dim": dim, "vision_cfg": vision, "text_cfg": {"width": text_width, "heads": heads}}
    config["text_cfg"]["layers"] = text_layers
    spec = spec_from_open_clip(config, Path(name), Tensors(Path(name), {}, dict), lambda: "gelu", None)
    assert spec.vision.heads == width // head
    assert sum(parameter_counts(spec).values()) / 1e6 == pytest.approx(millions, abs=0.01 * millions**0.5)


def change_vision(**fields):
    return lambda config, tensors: config["model_cfg"]["vision_cfg"].update(fields)


def change_text(**fields):
    return lambda config, tensors: config["model_cfg"]["text_cfg"].update(fields)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (change_vision(attentional_pool="parallel"), "vision_cfg.attentional_pool"),
        (change_vision(colour_norm=True), "vision_cfg.colour_norm"),
        (change_vision(timm_model_name="naflexvit_base_patch16_siglip"), "vision_cfg.timm_model_name"),
        (change_vision(pool_type="none"), "vision_cfg.pool_type"),
        (change_text(pool_type="last"), "text_cfg.pool_type"),
        (change_text(embed_cls=True, no_causal_mask=True), "text_cfg.embed_cls"),
        (change_text(embed_cls=True, correct_cls_mask=True), "text_cfg.correct_cls_mask"),
        (change_text(hf_model_name="nobody/nothing"), r"text_cfg.hf_model_name of \S+open_clip_config.json"),
        (lambda config, tensors: config["model_cfg"].pop("embed_dim"), "model_cfg.embed_dim"),
        (lambda config, tensors: config["model_cfg"].pop("vision_cfg"), "model_cfg"),
        (lambda config, tensors: config["preprocess_cfg"].update(resize_mode="longest"), "preprocess_cfg.resize_mode"),
        (lambda config, tensors: tensors.pop("visual.proj"), "tensors"),
    ],
)
def test_settings_that_the_towers_do_not_support_are_refused_by_their_field(change, field, tmp_path):
    folder = open_clip_folder("vit_quick_gelu", tmp_path / "changed", change)
    refused(f": {field}: found", read_towers, folder)


def test_the_preprocessing_is_read_from_the_configuration(tmp_path):
    def squash(config, tensors):
        config["preprocess_cfg"] = {"mean": [0.5] * 3, "std": [0.5] * 3, "resize_mode": "squash"}

    squashed = read_towers(open_clip_folder("vit_quick_gelu", tmp_path / "s", squash)).preprocessing
    assert (squashed.exact_size, squashed.crop_size, squashed.mean) == ((32, 32), None, (0.5, 0.5, 0.5))
    plain = read_towers(open_clip_folder("vit_quick_gelu", tmp_path / "p")).preprocessing
    assert (plain.shortest_edge, plain.crop_size, plain.resample) == (32, (32, 32), "bicubic")


def test_a_folder_of_both_libraries_is_read_as_open_clip_if_its_config_names_custom_code(tmp_path):
    """As Marqo's fashion models: open_clip's tensors below `model.` for its code, and open_clip's own files."""
    folder = open_clip_folder("vit_gelu", tmp_path / NAMES["vit_gelu"])
    config = {"model_type": "siglip", "architectures": ["SigLIP"], "auto_map": {"AutoModel": "modeling.SigLIP"}}
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {f"model.{name}": tensor for name, tensor in load_file(folder / "open_clip_model.safetensors").items()}
    save_file(tensors, folder / "model.safetensors")
    assert_golden(read_towers(folder), "vit_gelu")
