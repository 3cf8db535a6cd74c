"""OpenAI's `.pt` files, TorchScript archives and state dicts, read without torch; and what is refused in them."""

import os
import pickle
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest

from rococo_jax.checkpoints.formats.openai import _OTHER_PROJECTS, PUBLISHED, choose_heads, spec_from_tensors
from rococo_jax.checkpoints.parameters import parameters_of
from rococo_jax.checkpoints.tensors import Tensors, open_safetensors
from rococo_jax.checkpoints.torch_archive import open_torch_archive
from rococo_jax.checkpoints.zoo import find_published
from rococo_jax.data.tokenizers import read_rust_tokenizer
from rococo_jax.encoders import load_model
from rococo_jax.encoders.inspection import warnings_of
from rococo_jax.models import parameter_counts
from tests.support.cases import further
from tests.support.models import assert_same_arrays, read_towers
from tests.support.open_clip_files import open_clip_folder
from tests.support.openai_files import openai_file, tensors_of, torch
from tests.support.refusals import refused


def assert_towers_of(case, encoder, tmp_path):
    """The towers are those of open_clip's folder, whose vectors test_open_clip.py compares with open_clip's."""
    expected = read_towers(open_clip_folder(case, tmp_path / "folder"))
    assert encoder.spec == expected.spec
    assert_same_arrays(parameters_of(encoder.model), parameters_of(expected.model))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("case", "form"),
    [("vit_quick_gelu", "torchscript"), pytest.param("resnet_quick_gelu", "state_dict", marks=pytest.mark.slow)],
)
def test_an_archive_gives_the_towers_of_its_model(case, form, tmp_path):
    encoder = read_towers(openai_file(case, tmp_path / "model.pt", form))
    assert_towers_of(case, encoder, tmp_path)
    assert encoder.provenance["read_from"]["image activation"] == "OpenAI's archive"
    size = encoder.spec.vision.image_size
    assert encoder.preprocessing.shortest_edge == size and encoder.preprocessing.crop_size == (size, size)


def test_state_dicts_and_training_checkpoints_do_not_determine_the_activation(tmp_path):
    for form in ("state_dict", "checkpoint"):
        path = openai_file("vit_quick_gelu", tmp_path / f"{form}.pt", form, numbers=False)
        refused("activation: found a bare state dict", read_towers, path)
        for options in ({"source_format": "openai"}, {"activation": "quick_gelu", "heads": "2,1"}):
            encoder = read_towers(path, **options)
            assert encoder.spec.text.activation == "quick_gelu"
    assert_towers_of("vit_quick_gelu", encoder, tmp_path)


def test_half_precision_is_read_as_torch_reads_it(tmp_path):
    values = {
        "half": torch.randn(3, 5).half(),
        "bfloat16": torch.randn(4).bfloat16(),
        "transposed": torch.randn(5, 6).t(),
        "part": torch.randn(10, 4)[2:8:2],
        "scalar": torch.tensor(2.5),
    }
    torch.save(values, tmp_path / "values.pt")
    tensors = open_torch_archive(tmp_path / "values.pt")
    assert tensors.names == sorted(values)
    for name, value in values.items():
        np.testing.assert_array_equal(tensors.read(name), value.float().numpy())
        assert tensors.shape(name) == tuple(value.shape)


# The nine published architectures: (image size, ResNet's width and blocks or ViT's patch, width and layers; text width)
# from table 19 and 20 of arXiv 2103.00020, and the number of parameters that OpenAI's code counts for each.
NINE = {
    "RN50": ((224, 64, (3, 4, 6, 3)), 512, 1024, 102_007_137),
    "RN101": ((224, 64, (3, 4, 23, 3)), 512, 512, 119_688_033),
    "RN50x4": ((288, 80, (4, 6, 10, 6)), 640, 640, 178_300_601),
    "RN50x16": ((384, 96, (6, 8, 18, 8)), 768, 768, 290_979_217),
    "RN50x64": ((448, 128, (3, 15, 36, 10)), 1024, 1024, 623_258_305),
    "ViT-B/32": ((224, 32, 768, 12), 512, 512, 151_277_313),
    "ViT-B/16": ((224, 16, 768, 12), 512, 512, 149_620_737),
    "ViT-L/14": ((224, 14, 1024, 24), 768, 768, 427_616_513),
    "ViT-L/14@336px": ((336, 14, 1024, 24), 768, 768, 427_944_193),
}


def without_values(shapes):
    """Return tensors that cannot be read."""

    def read(name):
        raise AssertionError("nothing to read")

    return Tensors(Path("shapes"), {name: (shape, "F16") for name, shape in shapes.items()}, read)


@pytest.mark.parametrize("name", further(NINE, ("RN50", "RN101", "ViT-B/32", "ViT-L/14@336px")))
def test_the_nine_published_architectures_are_recognised_by_their_shapes(name):
    (size, *sizes), text_width, dim, parameters = NINE[name]
    assert name in PUBLISHED.values() and len(PUBLISHED) == 9
    shapes = {
        "text_projection": (text_width, dim), "positional_embedding": (77, text_width), "logit_scale": (),
        "token_embedding.weight": (49408, text_width), "ln_final.weight": (text_width,),
        **{f"transformer.resblocks.{i}.mlp.c_fc.weight": (4 * text_width, text_width) for i in range(12)},
    }  # fmt: skip
    if name.startswith("RN"):
        width, blocks = sizes
        shapes["visual.attnpool.positional_embedding"] = ((size // 32) ** 2 + 1, 32 * width)
        for stage, count in enumerate(blocks, start=1):
            shapes |= {f"visual.layer{stage}.{i}.conv1.weight": (width << (stage - 1), 1, 1, 1) for i in range(count)}
    else:
        patch, width, layers = sizes
        shapes |= {"visual.conv1.weight": (width, 3, patch, patch)}
        shapes["visual.positional_embedding"] = ((size // patch) ** 2 + 1, width)
        shapes |= {f"visual.transformer.resblocks.{i}.mlp.c_fc.weight": (4 * width, width) for i in range(layers)}
    # Nothing reads their values.
    tensors = Tensors(Path("shapes"), {name: (shape, "F16") for name, shape in shapes.items()}, {}.__getitem__)
    spec, _ = spec_from_tensors(tensors, "quick_gelu", lambda tower, width, layers: width // 64)
    assert spec.vision.image_size == size
    assert spec.vision.heads == {80: 40, 96: 48, 128: 64, 64: 32, 768: 12, 1024: 16}[spec.vision.width]
    assert sum(parameter_counts(spec).values()) == parameters


class Evil:
    def __reduce__(self):
        return os.system, ("touch /nowhere/at/all",)


def archive_with(path, pickled, extra=()):
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data.pkl", pickled)
        for name in extra:
            file.writestr(name, b"")
    return path


def test_a_pickle_that_contains_code_is_refused_and_the_code_does_not_run(tmp_path, monkeypatch):
    ran = []
    monkeypatch.setattr(os, "system", ran.append)
    monkeypatch.setattr("builtins.eval", ran.append)
    by_hand = b"c__builtin__\neval\n(S'1'\ntR."
    attributes = b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n}U\x01xK\x01sb."
    for number, code in enumerate((pickle.dumps({"w": Evil()}), by_hand, attributes)):
        path = archive_with(tmp_path / f"{number}.pt", code)
        refused(r"pickle: found .*; wanted tensors and nothing else", read_towers, path)
    assert not ran


def test_names_outside_the_archive_are_refused(tmp_path):
    for number, name in enumerate(("../escape", "archive/../../escape", "/etc/escape", "..\\escape", "C:/escape")):
        path = archive_with(tmp_path / f"{number}.pt", pickle.dumps({}), (name,))
        refused("wanted names inside the archive", open_torch_archive, path)


def test_files_that_are_truncated_or_have_wrong_storage_sizes_are_refused(tmp_path):
    path = tmp_path / "whole.pt"
    torch.save({"w": torch.randn(40, 50)}, path)
    cut = tmp_path / "cut.pt"
    for size in (0, 100, len(path.read_bytes()) // 2):
        cut.write_bytes(path.read_bytes()[:size])
        refused("archive", open_torch_archive, cut)
    with zipfile.ZipFile(path) as whole, zipfile.ZipFile(tmp_path / "lie.pt", "w") as lie:
        for name in whole.namelist():
            data = whole.read(name)
            lie.writestr(name, data[:100] if "/data/" in name else data)
    tensors = open_torch_archive(tmp_path / "lie.pt")
    refused("the storage of w is truncated", tensors.read, "w")
    legacy = tmp_path / "legacy.pt"
    torch.save({"w": torch.zeros(2)}, legacy, _use_new_zipfile_serialization=False)
    refused("found the format of torch before 1.6; wanted a zip archive.*torch.save", open_torch_archive, legacy)


@pytest.mark.parametrize(
    ("name", "read"), [("w.pt", open_torch_archive), ("w.safetensors", open_safetensors), ("w.npz", load_model)]
)
def test_a_pointer_of_git_lfs_is_reported_as_such(tmp_path, name, read):
    (tmp_path / name).write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{'4d' * 32}\nsize 12345\n")
    refused("a pointer of Git LFS .*`git lfs pull`.*(whole|complete|undamaged)", read, tmp_path / name)


@pytest.mark.parametrize(
    ("name", "read"), [("w.pt", open_torch_archive), ("w.safetensors", open_safetensors), ("w.npz", load_model)]
)
@pytest.mark.parametrize("page", ["<!DOCTYPE html>\n<html>Quota exceeded</html>", "\n <HTML><head></head></HTML>"])
def test_a_web_page_instead_of_weights_is_reported_as_such(tmp_path, name, read, page):
    (tmp_path / name).write_text(page)
    refused("a web page instead of the file", read, tmp_path / name)
    (tmp_path / "tokenizer.json").write_text(page)
    refused("tokenizer.json: tokenizer: found a web page", read_rust_tokenizer, tmp_path / "tokenizer.json")


@pytest.mark.parametrize("options", [{}, {"activation": "gelu", "heads": "1,1"}])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("text_model.embeddings.token_embedding.weight", "of transformers, .*; wanted the folder that save_pretrained"),
        ("bert.encoder.layer.0.attention.self.query.weight", "of transformers, .*; wanted the folder that"),
        ("visual.blocks.0.attn.q_bias", "EVA-CLIP's .*; wanted .* zoo:EVA02-L-14/merged2b_s4b_b131k"),
        (
            "image_encoder.model.patch_embed.0.rbr_conv.0.conv.weight",
            "MobileCLIP's .*; wanted .* zoo:MobileCLIP-B/",
        ),
        ("_image_encoder.visual.conv1.weight", "TinyCLIP's .*; wanted .* wkcn/TinyCLIP"),
        ("visual.attn_pool.probe", "PE-Core's .*; wanted .* zoo:PE-Core-L-14-336/meta"),
        ("visual.trunk.patch_embed.proj.weight", "open_clip .*; wanted the folder with its open_clip_config.json"),
    ],
)
def test_files_of_other_projects_are_recognised_by_their_names_before_settings_are_required(
    name, message, options, tmp_path
):
    for wrapper in ("", "module."):
        torch.save(
            {"state_dict": {f"{wrapper}{each}": torch.zeros(2) for each in (name, "logit_scale")}}, tmp_path / "x.pt"
        )
        refused(f"x.pt: tensors: found names of .*{message}", load_model, tmp_path / "x.pt", **options)


def test_models_that_a_message_recommends_are_in_the_table_of_published_models():
    names = re.findall(r"zoo:[\w./-]+", str(_OTHER_PROJECTS))
    assert len(names) == 3 and all(find_published(name) for name in names)


def test_the_error_for_an_archive_without_a_clip_lists_what_is_missing(tmp_path):
    path, message = tmp_path / "other.pt", "tensors: found no text_projection, .*wanted the weights of OpenAI's CLIP"
    torch.save({"w": torch.zeros(2)}, path)
    refused(message, read_towers, path, source_format="openai")
    torch.save({}, path)
    refused("tensors: found none", read_towers, path)


# (width, layers, heads) of towers in open_clip's configurations: model_configs/ViT-H-14.json and so on.
CONFIGURED = {
    "ViT-B-32": ((768, 12, 12), (512, 12, 8)),
    "ViT-H-14": ((1280, 32, 16), (1024, 24, 16)),
    "ViT-g-14": ((1408, 40, 16), (1024, 24, 16)),
    "ViT-bigG-14": ((1664, 48, 16), (1280, 32, 20)),
    "ViT-e-14": ((1792, 56, 16), (1280, 36, 20)),
    "ViT-S-32-alt": ((384, 12, 6), (256, 10, 4)),
}


@pytest.mark.parametrize("name", CONFIGURED)
def test_numbers_of_heads_follow_from_the_published_configuration_of_the_size(name):
    choose, how = choose_heads(name, None, None)
    for tower, (width, layers, heads) in zip(("vision", "text"), CONFIGURED[name], strict=True):
        assert choose(tower, width, layers) == heads
    assert how == "open_clip's configurations, by width and layers"


def test_texts_of_another_vocabulary_are_refused(tmp_path):
    path, state = tmp_path / "clipa.pt", tensors_of("vit_quick_gelu")
    state["token_embedding.weight"] = torch.zeros(32_000, state["token_embedding.weight"].shape[1])
    torch.save({"state_dict": state}, path)
    message = "found 32,000 words, as of CLIPA; .*open_clip_config.json"
    refused(message, read_towers, path, activation="gelu", heads="2,2")


def test_numbers_of_heads_that_cannot_be_inferred_must_be_given(tmp_path):
    path = openai_file("vit_quick_gelu", tmp_path / "run.pt", "checkpoint", numbers=False)
    options = {"activation": "quick_gelu"}
    refused("heads: found .* tower of .* layers of .*wanted the argument heads", read_towers, path, **options)
    refused("heads: .*found '8'; wanted two numbers", read_towers, path, heads="8", **options)
    encoder = read_towers(path, heads="1,2", **options)
    assert (encoder.spec.vision.heads, encoder.spec.text.heads) == (1, 2)
    assert encoder.provenance["read_from"]["text heads"] == "the argument heads"
    given = [warning.split(":")[0] for warning in warnings_of(encoder) if "given by hand" in warning]
    assert given == ["activation", "heads"]


def test_a_training_checkpoint_is_read_whatever_else_it_contains(tmp_path):
    weights = {"w": torch.ones(2), "b": torch.zeros(3)}
    average = {name: 0 * tensor for name, tensor in weights.items()}
    wrapped = {f"module._orig_mod.{name}": tensor for name, tensor in weights.items()}
    path = Path("data")
    forms = {
        "numpy": {"epoch": 3, "best": np.float64(0.5), "seen": np.arange(3), "out": path, "state_dict": weights},
        "optimizer": {"model_state_dict": wrapped, "optimizer_state_dict": {"state": {0: {"m": torch.ones(2)}}}},
        "averaged": {"model": weights, "model_ema": average, "rng_state": torch.zeros(4)},
        "swa": {"n_averaged": torch.tensor(3), **{f"module.{name}": tensor for name, tensor in weights.items()}},
        "inner": {"state_dict": {"_orig_mod.w": weights["w"], "b": weights["b"]}},
    }
    for name, content in forms.items():
        torch.save(content, tmp_path / f"{name}.pt")
        with open_torch_archive(tmp_path / f"{name}.pt").unwrapped() as tensors:
            assert tensors.names == ["b", "w"]
            np.testing.assert_array_equal(tensors.read("w"), [1, 1])
            if name == "averaged":
                assert tensors.origin == "averaged.pt: model, without the averages model_ema"
    torch.save({"model": weights, "state_dict": weights}, tmp_path / "two.pt")
    refused("weights: found several parts: state_dict, model; wanted one", open_torch_archive, tmp_path / "two.pt")


def test_long_clip_takes_twenty_positions_from_one_table_and_the_rest_from_another(tmp_path):
    """Long-CLIP's own: `positional_embedding * mask1 + positional_embedding_res * mask2`, `mask1[:20] = 1`."""
    state = tensors_of("vit_quick_gelu")
    width = state["positional_embedding"].shape[1]
    state["positional_embedding"], state["positional_embedding_res"] = torch.randn(2, 248, width)
    torch.save(state, tmp_path / "longclip.pt")
    encoder = read_towers(tmp_path / "longclip.pt")
    assert encoder.spec.text.context_length == 248
    expected = torch.cat([state["positional_embedding"][:20], state["positional_embedding_res"][20:]])
    np.testing.assert_array_equal(parameters_of(encoder.model)["text.positions"], expected.numpy())
    assert encoder.provenance["read_from"]["text activation"] == "Long-CLIP"
