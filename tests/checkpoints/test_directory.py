"""The model directory: written whole, read back bit for bit onto any mesh, refused in one line where it is broken."""

import shutil

import jax
import numpy as np
import pytest
from flax import nnx
from PIL import Image

from rococo_jax.checkpoints import model_directory, save_model
from rococo_jax.checkpoints.model_directory import restore_parameters
from rococo_jax.checkpoints.parameters import hash_parameters, parameters_of
from rococo_jax.encoders import load_model
from rococo_jax.runtime import make_mesh
from tests.support.models import assert_same_arrays, assert_same_model, change_json
from tests.support.refusals import refused
from tests.support.tiny import random_captions, tiny_encoder


@pytest.fixture(scope="module")
def encoder():
    return tiny_encoder()


@pytest.fixture(scope="module")
def written(encoder, tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "tiny"
    save_model(path, encoder)
    return path


@pytest.fixture
def copy(written, tmp_path):
    return shutil.copytree(written, tmp_path / "copy")


def test_a_saved_model_is_loaded_with_the_same_bits_and_embeddings(encoder, written):
    assert {path.name for path in written.iterdir()} == {"model.json", "params", "tokenizer.json"}
    assert [*written.parent.iterdir()] == [written]
    loaded = load_model(written, mesh=encoder.mesh)
    assert_same_model(loaded, encoder)
    assert loaded.name == "tiny"
    assert loaded.provenance["weights_sha256"] == hash_parameters(parameters_of(encoder.model))
    captions = random_captions(3, longest=3)
    images = [Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 50, 3), np.uint8))]
    np.testing.assert_array_equal(loaded.encode_text(captions), encoder.encode_text(captions))
    np.testing.assert_array_equal(loaded.encode_image(images), encoder.encode_image(images))


@pytest.mark.parametrize("count", [1, 8])
def test_parameters_are_restored_directly_onto_a_mesh(encoder, written, count):
    mesh = make_mesh(jax.devices()[:count])
    restored = restore_parameters(written, encoder.spec, mesh)
    assert_same_arrays(restored, parameters_of(encoder.model))
    for array in restored.values():
        assert array.sharding.device_set == set(mesh.devices.flat) and array.is_fully_replicated
    assert len(load_model(written, mesh=mesh).model.text.words[...].sharding.device_set) == count


def test_parameters_are_restored_in_shards_if_the_mesh_splits_them(encoder, written, monkeypatch):
    monkeypatch.setattr("rococo_jax.models.fsdp.LEAST_SHARDED", 1)
    mesh = make_mesh(fsdp=4)
    name = "text.blocks.block.mlp.up.kernel"
    restored = restore_parameters(written, encoder.spec, mesh)
    assert {shard.data.shape for shard in restored[name].addressable_shards} == {(2, 32, 16)}
    np.testing.assert_array_equal(restored[name], parameters_of(encoder.model)[name])


def test_the_dtype_is_chosen_at_loading_and_not_stored(written):
    loaded = load_model(written, dtype="bfloat16")
    assert {leaf.dtype.name for leaf in jax.tree.leaves(nnx.state(loaded.model))} == {"float32"}
    assert loaded.describe()["dtype"] == "bfloat16"


def test_another_image_size_changes_tower_and_preprocessing(written):
    loaded = load_model(written, image_size=48)
    assert loaded.spec.vision.image_size == 48
    assert loaded.preprocessing.image_size == (48, 48)
    assert loaded.encode_image(np.zeros((1, 70, 60, 3), np.uint8)).shape == (1, 16)
    for size in (0, 7):
        refused("image size", load_model, written, image_size=size)


NO_HEAD = {"kind": "none", "dim": None, "bias": False}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(format="something"), r"model\.json: format: found"),
        (lambda d: d.update(version=2), r"model\.json: version: found"),
        (lambda d: d.pop("provenance"), r"model\.json: fields: found"),
        (lambda d: d.update(provenance=None), r"model\.json: provenance: found"),
        (lambda d: d["spec"]["vision"].pop("width"), r"model\.json: vision: found"),
        (lambda d: d["spec"]["text"].update(layers="two"), r"model\.json: text\.layers: found"),
        (lambda d: d["spec"]["text"].update(heads=7), r"model\.json: heads: found"),
        (lambda d: d["preprocessing"].update(colour=1), r"model\.json: preprocessing: found"),
        (lambda d: d["tokenizer"].pop("cleaning"), r"model\.json: tokenizer: found"),
        # Parameters that do not fit the description are listed.
        (
            lambda d: d["spec"]["text"].update(vocabulary_size=301),
            r"1 wrong \(text.words of \(300, 32\) instead of \(301, 32\)\)",
        ),
        (
            lambda d: d["spec"].update(text=None, text_head=NO_HEAD),
            r"unknown \(logit_scale, text.blocks.block.attention.out.bias",
        ),
    ],
)
def test_a_description_that_cannot_be_followed_is_refused_with_its_field(copy, change, message):
    change_json(copy / "model.json", change)
    refused(message, load_model, copy)


def test_a_directory_with_truncated_or_missing_files_is_refused(copy):
    data = max(copy.glob("params/**/d/*"), key=lambda path: path.stat().st_size)
    data.write_bytes(data.read_bytes()[:100])
    refused("a folder that Orbax can read", load_model, copy)
    shutil.rmtree(copy / "params")
    refused("the parameters of the model", load_model, copy)
    path = copy / "model.json"
    path.write_text(path.read_text()[:200])
    refused(r"model\.json, complete", load_model, copy)
    path.unlink()
    refused(r"neither model.json nor config.json", load_model, copy)
    refused("nothing there", load_model, path)


def test_a_failed_save_leaves_no_files(encoder, tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(model_directory, "write_json", fail)
    with pytest.raises(OSError, match="No space left"):
        save_model(tmp_path / "model", encoder)
    assert not list(tmp_path.iterdir())


def test_saving_never_overwrites_files(encoder, written):
    before = (written / "model.json").read_bytes()
    refused("something already there", save_model, written, encoder)
    assert (written / "model.json").read_bytes() == before
