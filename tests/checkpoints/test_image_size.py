"""Images of another size than the checkpoint's: the vectors are those that its own library gives at that size."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from rococo_jax.checkpoints import export_open_clip
from rococo_jax.checkpoints.parameters import build_model, parameters_of, with_own_positions
from rococo_jax.cli import convert
from rococo_jax.encoders import LoadOptions, load_encoder, load_model
from rococo_jax.evaluation.options import ModelOptions
from rococo_jax.runtime import make_mesh
from tests.support.commands import run_command
from tests.support.open_clip_files import NAMES, golden, open_clip_folder
from tests.support.random_inputs import random_pixels
from tests.support.reference_models import (
    TEXT,
    assert_same_vectors,
    clip,
    perturbed,
    saved,
    siglip,
    torch,
    torch_pixels,
    transformers,
    unit,
)
from tests.support.refusals import refused

MESH = make_mesh(jax.devices()[:1])
SIZE = 56
pytestmark = pytest.mark.quick


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


def test_open_clips_models_resize_their_positions_as_open_clip_does(tmp_path):
    (tmp_path / "at_once").mkdir()
    theirs = open_clip_folder(golden("vit_gelu"), tmp_path / "at_once" / NAMES["vit_gelu"], resized_as_open_clip)
    expected = load_model(theirs, mesh=MESH, tokenizer="none").encode_image(random_pixels(SIZE))
    folder = open_clip_folder(golden("vit_gelu"), tmp_path / NAMES["vit_gelu"])
    encoder = load_encoder(str(folder), mesh=MESH, options=LoadOptions(tokenizer="none", image_size=SIZE))
    assert_same_vectors(encoder.encode_image(random_pixels(SIZE)), expected)
    # Through a model directory, at its own size, converted at another one, and at another one from then on.
    for name, at_first, later in (("small", None, SIZE), ("large", SIZE, None)):
        options = [] if at_first is None else ["--image-size", str(at_first)]
        run_command(convert, folder, tmp_path / name, "--tokenizer", "none", *options)
        again = load_model(tmp_path / name, mesh=MESH, image_size=later)
        assert again.preprocessing.image_size == (SIZE, SIZE) and again.preprocessing.shortest_edge == SIZE
        assert_same_vectors(again.encode_image(random_pixels(SIZE)), expected)
    export_open_clip(again, tmp_path / "out")
    exported = json.loads((tmp_path / "out" / "open_clip_config.json").read_text())["model_cfg"]
    assert exported["vision_cfg"]["image_size"] == SIZE
    assert_same_vectors(
        load_model(tmp_path / "out", mesh=MESH, tokenizer="none").encode_image(random_pixels(SIZE)), expected
    )


def test_a_resnet_may_have_positions_of_its_own_for_another_size(tmp_path):
    folder = open_clip_folder(golden("resnet_quick_gelu"), tmp_path / "rn")
    encoder = load_model(folder, mesh=MESH, tokenizer="none", image_size=96)
    expected = encoder.encode_image(random_pixels(96))
    spec, parameters = with_own_positions(encoder.spec, parameters_of(encoder.model))
    assert spec.vision.position_grid is None and parameters["vision.positions"].shape[0] == 10
    encoder.model = build_model(spec, parameters)
    assert_same_vectors(encoder.encode_image(random_pixels(96)), expected)


@pytest.mark.parametrize("make", [clip, siglip])
def test_models_of_transformers_resize_their_positions_as_transformers_does(make, tmp_path):
    reference = make()
    encoder = load_model(saved(reference, tmp_path / "theirs"), mesh=MESH, image_size=50)
    pixels = random_pixels(50)
    with torch.no_grad():
        theirs = reference.get_image_features(torch_pixels(pixels), interpolate_pos_encoding=True).pooler_output
    assert_same_vectors(encoder.encode_image(pixels), unit(theirs))


def test_a_model_that_another_library_reads_takes_its_size_from_there():
    options = LoadOptions(image_size=SIZE)
    for source in ("tests.checkpoints.test_image_size:Library", Library()):
        refused("image_size: found 56; wanted none: the model's own library", load_encoder, source, options=options)


class Library:
    encode_image = encode_text = staticmethod(np.asarray)


def test_a_text_tower_has_no_image_size(tmp_path):
    tower = perturbed(transformers.CLIPTextModel(transformers.CLIPTextConfig(**TEXT)))
    refused("image size: pixels: found 50; wanted none", load_model, saved(tower, tmp_path / "text"), image_size=50)


def test_all_options_of_the_command_line_reach_the_model():
    given = {"activation": "gelu", "heads": "16,8", "tokenizer": "none", "image_size": 48}
    options = ModelOptions(model_arg=("a=1",), **given).load_options()
    assert options == LoadOptions(arguments={"a": 1}, **given)
    assert given.keys() | {"arguments"} == {field.name for field in dataclasses.fields(LoadOptions)}
