"""The model directory: written whole, read back bit for bit onto any mesh, refused in one line where it is broken."""

import json
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
from rococo_jax.errors import InputError
from rococo_jax.runtime import make_mesh
from tests.support.refusals import refused
from tests.support.tiny import random_captions, tiny_encoder

pytestmark = pytest.mark.quick  # what goes through a file, however the programs are compiled


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


def change_description(folder, change):
    path = folder / "model.json"
    description = json.loads(path.read_text())
    change(description)
    path.write_text(json.dumps(description))


def test_a_directory_gives_back_the_same_bits(encoder, written):
    loaded = load_model(written, mesh=encoder.mesh)
    before, after = parameters_of(encoder.model), parameters_of(loaded.model)
    assert before.keys() == after.keys()
    for path in before:
        np.testing.assert_array_equal(after[path], before[path], err_msg=path)
    assert loaded.spec == encoder.spec
    assert loaded.preprocessing == encoder.preprocessing
    assert loaded.tokenizer.hash() == encoder.tokenizer.hash()
    assert loaded.name == "tiny"
    assert loaded.provenance["weights_sha256"] == hash_parameters(before)


def test_a_loaded_model_encodes_like_the_one_that_was_saved(encoder, written):
    loaded = load_model(written, mesh=encoder.mesh)
    captions = random_captions(9)
    images = [Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 50, 3), np.uint8))]
    np.testing.assert_array_equal(loaded.encode_text(captions), encoder.encode_text(captions))
    np.testing.assert_array_equal(loaded.encode_image(images), encoder.encode_image(images))


def test_a_directory_holds_what_the_design_says_and_no_more(written):
    assert {path.name for path in written.iterdir()} == {"model.json", "params", "tokenizer.json"}
    assert not [path for path in written.parent.iterdir() if path != written]


@pytest.mark.parametrize("count", [1, 8])
def test_parameters_are_restored_straight_onto_a_mesh(encoder, written, count):
    mesh = make_mesh(jax.devices()[:count])
    restored = restore_parameters(written, encoder.spec, mesh)
    for path, array in parameters_of(encoder.model).items():
        assert restored[path].sharding.device_set == set(mesh.devices.flat)
        assert restored[path].is_fully_replicated
        np.testing.assert_array_equal(restored[path], array)
    assert len(load_model(written, mesh=mesh).model.text.words[...].sharding.device_set) == count


def test_parameters_are_restored_in_parts_where_the_mesh_splits_them(encoder, written, monkeypatch):
    monkeypatch.setattr("rococo_jax.models.fsdp.LEAST_SHARDED", 1)
    mesh = make_mesh(fsdp=4)
    name = "text.blocks.block.mlp.up.kernel"
    restored = restore_parameters(written, encoder.spec, mesh)
    assert {shard.data.shape for shard in restored[name].addressable_shards} == {(2, 32, 16)}
    np.testing.assert_array_equal(restored[name], parameters_of(encoder.model)[name])


def test_bfloat16_is_a_matter_of_loading_not_of_the_directory(written):
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


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda d: d.update(format="something"), "format"),
        (lambda d: d.update(version=2), "version"),
        (lambda d: d.pop("provenance"), "fields"),
        (lambda d: d.update(provenance=None), "provenance"),
        (lambda d: d["spec"]["vision"].pop("width"), "vision"),
        (lambda d: d["spec"]["text"].update(layers="two"), "text.layers"),
        (lambda d: d["spec"]["text"].update(heads=7), "heads"),
        (lambda d: d["preprocessing"].update(colour=1), "preprocessing"),
        (lambda d: d["tokenizer"].pop("cleaning"), "tokenizer"),
    ],
)
def test_a_description_that_cannot_be_followed_names_its_field(copy, change, field):
    change_description(copy, change)
    with pytest.raises(InputError) as caught:
        load_model(copy)
    assert caught.value.field == field
    assert caught.value.source == str(copy / "model.json")


def test_a_description_cut_short_is_refused(copy):
    path = copy / "model.json"
    path.write_text(path.read_text()[:200])
    refused(r"model\.json, whole", load_model, copy)
    path.unlink()
    refused("nothing there", load_model, copy)


def test_parameters_that_do_not_fit_the_spec_are_listed(copy):
    change_description(copy, lambda d: d["spec"]["text"].update(vocabulary_size=301))
    refused(r"1 wrong \(text.words of \(300, 32\) instead of \(301, 32\)\)", load_model, copy)
    no_head = {"kind": "none", "dim": None, "bias": False}
    change_description(copy, lambda d: d["spec"].update(text=None, text_head=no_head))
    refused(r"unknown \(logit_scale, text.blocks.block.attention.out.bias", load_model, copy)


def test_parameters_that_are_missing_or_broken_are_refused(copy):
    data = max(copy.glob("params/**/d/*"), key=lambda path: path.stat().st_size)
    data.write_bytes(data.read_bytes()[:100])
    refused("a folder that Orbax can read", load_model, copy)
    shutil.rmtree(copy / "params")
    refused("the parameters of the model", load_model, copy)


def test_a_save_that_fails_leaves_nothing_behind(encoder, tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(model_directory, "write_json", fail)
    with pytest.raises(OSError, match="No space left"):
        save_model(tmp_path / "model", encoder)
    assert not list(tmp_path.iterdir())


def test_a_save_never_writes_over_anything(encoder, written):
    before = (written / "model.json").read_bytes()
    refused("something already there", save_model, written, encoder)
    assert (written / "model.json").read_bytes() == before


def test_a_folder_that_holds_no_model_is_refused(tmp_path):
    refused(r"neither model.json nor config.json", load_model, tmp_path)
