"""Test images of another size than the checkpoint's: the vectors are those that its own library gives at that size."""

import dataclasses
import json

import numpy as np
import pytest

from rococo_jax.checkpoints import export_open_clip
from rococo_jax.checkpoints.parameters import (
    build_model,
    checkpoint_of,
    parameters_of,
    with_image_size,
    with_interpolated_positions,
)
from rococo_jax.cli import convert
from rococo_jax.encoders import LoadOptions, load_encoder
from rococo_jax.evaluation.options import ModelOptions
from tests.support import reference_models as hf
from tests.support.commands import run_command
from tests.support.models import MESH, read_model, read_towers
from tests.support.open_clip_files import NAMES, open_clip_folder
from tests.support.random_inputs import random_pixels
from tests.support.reference_models import torch, transformers
from tests.support.refusals import refused
from tests.support.tiny import tiny_encoder

SIZE = 56


def resized_as_open_clip(config, tensors):
    """`resize_pos_embed` of open_clip/model.py, with antialiasing, and the size that `force_image_size` sets."""
    vision = config["model_cfg"]["vision_cfg"]
    vision["image_size"] = SIZE
    stored = torch.from_numpy(tensors["visual.positional_embedding"].copy())
    side, grid = round((len(stored) - 1) ** 0.5), SIZE // vision["patch_size"]
    square = stored[1:].reshape(1, side, side, -1).permute(0, 3, 1, 2)
    square = torch.nn.functional.interpolate(square, size=(grid, grid), mode="bicubic", antialias=True)
    square = square.permute(0, 2, 3, 1).reshape(grid * grid, -1)
    tensors["visual.positional_embedding"] = torch.cat([stored[:1], square]).numpy()


@pytest.mark.slow
def test_open_clip_models_resample_positions_as_open_clip_does(tmp_path):
    pixels, name = random_pixels(SIZE), NAMES["vit_gelu"]
    (tmp_path / "at_once").mkdir()
    theirs = open_clip_folder("vit_gelu", tmp_path / "at_once" / name, resized_as_open_clip)
    expected = read_towers(theirs).encode_image(pixels)
    folder = open_clip_folder("vit_gelu", tmp_path / name)
    encoder = load_encoder(str(folder), mesh=MESH, options=LoadOptions(tokenizer="none", image_size=SIZE))
    hf.assert_same_vectors(encoder.encode_image(pixels), expected)
    # Through a model directory, at its own size, converted at another one, and at another one from then on.
    for directory, options, later in (("small", (), SIZE), ("large", ("--image-size", SIZE), None)):
        run_command(convert, folder, tmp_path / directory, "--tokenizer", "none", *options)
        again = read_model(tmp_path / directory, image_size=later)
        assert again.preprocessing.image_size == (SIZE, SIZE) and again.preprocessing.shortest_edge == SIZE
        hf.assert_same_vectors(again.encode_image(pixels), expected)
    export_open_clip(again, tmp_path / "out")
    exported = json.loads((tmp_path / "out" / "open_clip_config.json").read_text())["model_cfg"]
    assert exported["vision_cfg"]["image_size"] == SIZE
    hf.assert_same_vectors(read_towers(tmp_path / "out").encode_image(pixels), expected)


@pytest.mark.slow
def test_a_resnet_can_store_positions_for_another_size(tmp_path):
    encoder = read_towers(open_clip_folder("resnet_quick_gelu", tmp_path / "rn"), image_size=96)
    expected = encoder.encode_image(random_pixels(96))
    spec, parameters = with_interpolated_positions(encoder.spec, parameters_of(encoder.model))
    assert spec.vision.position_grid is None and parameters["vision.positions"].shape[0] == 10
    encoder.model = build_model(spec, parameters)
    hf.assert_same_vectors(encoder.encode_image(random_pixels(96)), expected)


def test_the_resampling_of_positions_is_known_after_trainings_and_a_join():
    """OpenAI's and open_clip's positions are resampled with antialiasing, others' without."""
    encoder = tiny_encoder()
    once = {"trained": {}, "started_from": {"format": "open_clip"}}
    twice = {"trained": {}, "started_from": once}
    joined = {"trained": {}, "started_from": {"joined": {"vision": twice, "text": {"format": "huggingface"}}}}
    size = encoder.spec.vision.image_size + encoder.spec.vision.patch_size
    for provenance in ({"format": "open_clip"}, once, twice, joined):
        resized = with_image_size(checkpoint_of(encoder)._replace(provenance=provenance), size)
        assert resized.spec.vision.position_rule == "antialiased"
    resized = with_image_size(checkpoint_of(encoder)._replace(provenance={"trained": {}, "started_from": {}}), size)
    assert resized.spec.vision.position_rule == "bicubic"


@pytest.mark.parametrize("make", [hf.clip, hf.siglip])
def test_transformers_models_resample_positions_as_transformers_does(make, tmp_path):
    reference = make()
    encoder = read_model(hf.saved(reference, tmp_path / "theirs"), image_size=50)
    pixels = random_pixels(50)
    with torch.no_grad():
        theirs = reference.get_image_features(hf.torch_pixels(pixels), interpolate_pos_encoding=True).pooler_output
    hf.assert_same_vectors(encoder.encode_image(pixels), hf.unit(theirs))


def test_the_image_size_of_a_model_read_by_another_library_cannot_be_changed():
    options = LoadOptions(image_size=SIZE)
    for source in ("tests.checkpoints.test_image_size:Library", Library()):
        refused("image_size: found 56; wanted none: the model's own library", load_encoder, source, options=options)


class Library:
    encode_image = encode_text = staticmethod(np.asarray)


def test_a_text_tower_has_no_image_size(tmp_path):
    tower = hf.perturbed(transformers.CLIPTextModel(transformers.CLIPTextConfig(**hf.TEXT)))
    refused("image size: pixels: found 50; wanted none", read_model, hf.saved(tower, tmp_path / "text"), image_size=50)


def test_all_loading_options_of_the_command_line_are_applied():
    given = {"activation": "gelu", "heads": "16,8", "tokenizer": "none", "image_size": 48}
    given |= {"by": "pairs", "candidates": "demo:plain", "query_prompt": "find", "document_prompt": "file"}
    options = ModelOptions(model_arg=("a=1",), **given).load_options()
    assert options == LoadOptions(arguments={"a": 1}, **given)
    assert given.keys() | {"arguments"} == {field.name for field in dataclasses.fields(LoadOptions)}
