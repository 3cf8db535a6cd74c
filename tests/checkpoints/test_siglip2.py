"""SigLIP 2 NaFlex beside `transformers`: images of any shape, padded to one number of patches."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image
from transformers.models.siglip2 import image_processing_pil_siglip2

from rococo_jax.checkpoints import export_huggingface, export_open_clip, save_model
from rococo_jax.cli import inspect
from rococo_jax.data.preprocessing import Preprocessing, naflex_image_size
from rococo_jax.models.flops import image_flops
from tests.support import reference_models as hf
from tests.support.commands import run_command
from tests.support.models import assert_same_arrays, assert_same_model, change_json, read_model
from tests.support.random_inputs import random_texts
from tests.support.reference_models import torch, transformers
from tests.support.refusals import refused
from tests.support.world import drawing

# Height and width: 1:1, 3:4, 4:3, 9:16, 1:8, a line of 256 patches, below a patch, a page, a large photograph.
SHAPES = ((224, 224), (48, 64), (64, 48), (90, 160), (40, 320), (900, 1), (33, 17), (7, 7), (297, 210), (1200, 1600))
IMAGES = [Image.fromarray(drawing(*shape, seed=number)) for number, shape in enumerate(SHAPES)]
STORED, PATCH = 256, 16
# Beside `transformers`, of unit vectors, absolute: float32 sums in another order over two layers leave 2e-7.
CLOSE = 1e-5


@pytest.fixture(scope="module")
def reference():
    return hf.siglip2(patches=STORED, patch_size=PATCH)


@pytest.fixture(scope="module")
def folder_of(reference, tmp_path_factory):
    """The folder of the model with an image processor for so many patches."""
    folders = {}

    def folder(most):
        if most not in folders:
            folders[most] = hf.saved(reference, tmp_path_factory.mktemp(f"naflex{most}"))
            processor(most).save_pretrained(folders[most])
        return folders[most]

    return folder


def processor(most):
    return transformers.Siglip2ImageProcessorPil(max_num_patches=most, patch_size=PATCH)


def vectors(reference, images, most):
    with torch.no_grad():
        return hf.unit(reference.get_image_features(**processor(most)(images, return_tensors="pt")).pooler_output)


@pytest.mark.parametrize(
    "most", [64, pytest.param(200, marks=pytest.mark.thorough), pytest.param(256, marks=pytest.mark.thorough)]
)
def test_images_of_ten_shapes_give_the_embeddings_of_the_reference(most, reference, folder_of):
    encoder = read_model(folder_of(most))
    assert (encoder.preprocessing.patch_size, encoder.preprocessing.max_patches) == (PATCH, most)
    expected = vectors(reference, IMAGES, most)
    np.testing.assert_allclose(encoder.encode_image(IMAGES), expected, rtol=0, atol=CLOSE)
    # No two shapes are alike, and what the reference's processor makes here without torchvision is Pillow's.
    assert np.abs(expected - expected[:1])[1:].max(1).min() > 100 * CLOSE
    assert isinstance(transformers.AutoImageProcessor.from_pretrained(folder_of(most)), type(processor(most)))


def test_images_are_resized_to_the_sizes_of_the_reference():
    random, reference = np.random.default_rng(0), image_processing_pil_siglip2.get_image_size_for_max_num_patches
    for height, width in np.exp(random.uniform(0, 10, (300, 2))).astype(int).tolist():
        for patch, most in ((16, 256), (14, 100), (32, 1)):
            assert naflex_image_size(height, width, patch, most) == reference(height, width, patch, most)


def test_patch_sequences_contain_the_patches_and_grids_of_the_reference(folder_of):
    preprocessing = read_model(folder_of(64)).preprocessing
    inputs = processor(64)(IMAGES, return_tensors="np")
    strips = np.stack([preprocessing.resize(image) for image in IMAGES])
    normalised = np.asarray(preprocessing.normalise(jnp.asarray(strips))).reshape(len(IMAGES), 65, -1)
    for strip, values, mask, grid in zip(
        normalised, inputs["pixel_values"], inputs["pixel_attention_mask"], inputs["spatial_shapes"], strict=True
    ):
        count = np.prod(grid)
        assert mask.sum() == count
        # One rounding apart, of numbers from -1 to 1.
        np.testing.assert_allclose(strip[:count], values[:count], rtol=0, atol=2e-7)
        assert strip[64][:6].tolist() == [0, grid[0], 0, 0, grid[1], 0]


def test_text_embeddings_scale_and_bias_match_the_reference(reference, folder_of):
    model = read_model(folder_of(64)).model
    ids, mask = random_texts(hf.TEXT["max_position_embeddings"], 99, 5, padding=1)
    with torch.no_grad():
        expected = hf.unit(reference.get_text_features(hf.torch_ids(ids)).pooler_output)
    np.testing.assert_allclose(hf.texts(model, ids, np.ones_like(mask)), expected, rtol=0, atol=CLOSE)
    assert float(model.logit_scale[...]) == reference.logit_scale.item()
    assert float(model.logit_bias[...]) == reference.logit_bias.item()


def test_an_embedding_does_not_depend_on_its_batch_or_its_padding(folder_of):
    encoder = read_model(folder_of(64))
    together = encoder.encode_image(IMAGES)
    backwards = encoder.encode_image([*IMAGES[3:], *IMAGES, *IMAGES][::-1])[::-1]
    np.testing.assert_array_equal(backwards[-len(IMAGES) :], together)
    np.testing.assert_array_equal(encoder.encode_image(IMAGES[4:5]), together[4:5])
    strips = np.stack([encoder.prepare(image) for image in IMAGES])
    np.testing.assert_array_equal(encoder.encode_image(strips), together)
    for strip in strips:
        rows, columns = strip[-PATCH, :2, 1]
        strip[int(rows) * int(columns) * PATCH : -PATCH] = 77
    np.testing.assert_array_equal(encoder.encode_image(strips), together)


def test_square_images_of_training_are_read_without_patch_sequences(reference, folder_of):
    """Also another square than the positions are stored for, and some of its patches."""
    encoder = read_model(folder_of(64))
    squashed = encoder.preprocessing.with_fixed_grid
    assert (squashed.pixel_shape, encoder.preprocessing.image_size) == ((128, 128, 3), (128, 128))
    squares = np.stack([squashed.resize(image) for image in IMAGES])
    pixels, tower = encoder.preprocessing.normalise(jnp.asarray(squares)), jax.jit(encoder.model.image_embeddings)
    expected = vectors(reference, [Image.fromarray(square) for square in squares], 64)
    np.testing.assert_allclose(tower(pixels), expected, rtol=0, atol=CLOSE)
    backwards = jnp.asarray(np.tile(np.arange(64)[::-1], (len(IMAGES), 1)))
    np.testing.assert_allclose(tower(pixels, backwards), expected, rtol=0, atol=CLOSE)


@pytest.mark.parametrize(("size", "most"), [(48, 9), pytest.param(256, STORED, marks=pytest.mark.slow)])
def test_an_image_size_chooses_the_number_of_patches_and_keeps_the_positions(
    size, most, reference, folder_of, tmp_path
):
    save_model(tmp_path / "ours", read_model(folder_of(64)))
    encoder = read_model(tmp_path / "ours", image_size=size)
    assert encoder.spec.vision.position_grid == 16 and encoder.preprocessing.max_patches == most
    np.testing.assert_allclose(encoder.encode_image(IMAGES), vectors(reference, IMAGES, most), rtol=0, atol=CLOSE)
    export_huggingface(encoder, tmp_path / "out")
    assert_same_model(read_model(tmp_path / "out"), encoder)
    refused("whole patches", read_model, folder_of(64), image_size=50)


def test_a_model_directory_and_an_export_contain_the_complete_model(reference, folder_of, tmp_path):
    encoder = read_model(folder_of(200))
    save_model(tmp_path / "ours", encoder)
    assert_same_model(read_model(tmp_path / "ours"), encoder)
    export_huggingface(read_model(tmp_path / "ours"), tmp_path / "out")
    assert_same_model(read_model(tmp_path / "out"), encoder)
    theirs, ours = (hf.safetensors_torch.load_file(f / "model.safetensors") for f in (folder_of(200), tmp_path / "out"))
    assert_same_arrays(ours, theirs)
    again = transformers.Siglip2Model.from_pretrained(tmp_path / "out").eval()
    inputs = transformers.AutoImageProcessor.from_pretrained(tmp_path / "out")(IMAGES, return_tensors="pt")
    with torch.no_grad():
        exported = hf.unit(again.get_image_features(**inputs).pooler_output)
    np.testing.assert_array_equal(exported, vectors(reference, IMAGES, 200))
    refused("flexible_grid|towers", export_open_clip, encoder, tmp_path / "open_clip")


WORDS = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "▁", *map(chr, range(33, 127)), "▁d", "og", "▁dog"]
TEXTS = ["A Dog, a DOG!", "", "  two  dogs ", "naïve 猫", "a long dog " * 9]


def test_texts_have_the_ids_of_the_reference_before_and_after_an_export(tmp_path):
    """`AutoTokenizer` makes `Siglip2Tokenizer` of every folder, which pads before a text unless told otherwise."""
    text = {"vocab_size": 128, "pad_token_id": 0, "eos_token_id": 1}
    folder = hf.saved(hf.siglip2(text, STORED, PATCH), tmp_path / "theirs")
    words = {word: number for number, word in enumerate(WORDS)}
    merges = [("▁", "d"), ("o", "g"), ("▁d", "og")]
    tokenizer = transformers.Siglip2Tokenizer(vocab=words, merges=merges, add_eos_token=True, padding_side="right")
    tokenizer.save_pretrained(folder)
    encoder = read_model(folder)
    export_huggingface(encoder, tmp_path / "out")
    ids, _ = encoder.tokenizer.pad(encoder.tokenizer.encode(TEXTS))
    for each in (folder, tmp_path / "out"):
        reference = transformers.AutoTokenizer.from_pretrained(each)
        expected = reference(TEXTS, padding="max_length", max_length=13, truncation=True)["input_ids"]
        assert ids.tolist() == expected
    change_json(folder / "tokenizer_config.json", lambda settings: settings.pop("padding_side"))
    refused("padding_side: found 'left'; wanted 'right'", read_model, folder)


def test_a_single_image_tower_is_read_and_written(reference, tmp_path):
    folder = hf.saved(reference.vision_model, tmp_path / "theirs")
    encoder = read_model(folder)  # without a file of its image processor, whose default is as many patches as stored
    expected = vectors(reference, IMAGES, 256)
    np.testing.assert_allclose(encoder.encode_image(IMAGES), expected, rtol=0, atol=CLOSE)
    export_huggingface(encoder, tmp_path / "ours")
    assert json.loads((tmp_path / "ours" / "config.json").read_text())["model_type"] == "siglip2_vision_model"
    assert_same_model(read_model(tmp_path / "ours"), encoder)


def test_inspect_reports_patches_and_counts_padding(folder_of, tmp_path, capsys):
    save_model(tmp_path / "model", encoder := read_model(folder_of(200)))
    run_command(inspect, str(tmp_path / "model"))
    printed = capsys.readouterr().out
    assert (
        "aspect ratio kept, at most 200 patches of 16 x 16" in printed
        and "16 x 16, interpolated: antialiased_linear" in printed
    )
    facts = encoder.facts()["flops"]["image"]
    # Beside the 196 patches of a square; positions are a product over the 256 stored ones, there one of each axis.
    spec = dataclasses.replace(encoder.spec.vision, image_size=14 * PATCH)
    square = image_flops(dataclasses.replace(encoder.spec, vision=spec))
    width, mlp, layers = 24, 40, 2
    of_a_patch = 2 * 3 * PATCH**2 * width + layers * (8 * width**2 + 4 * mlp * width) + 4 * width**2
    attention = layers * 4 * width * (200**2 - 196**2) + 4 * width * (200 - 196)
    positions = 2 * width * (200 * 256 - 14 * 16 * 16 - 14 * 14 * 16)
    assert facts - square == 4 * of_a_patch + attention + positions


PLAIN = {"image_processor_type": "SiglipImageProcessor", "size": {"height": 128, "width": 128}}


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        ("config.json", {"vision_config": {"num_patches": 200}}, "vision_config.num_patches: found 200"),
        ("preprocessor_config.json", {"patch_size": 8}, "preprocessing.patch_size: found 8; wanted 16"),
        ("preprocessor_config.json", PLAIN, "preprocessing.patch_size: found None; wanted 16"),
        ("preprocessor_config.json", {"max_num_patches": 0}, "max_num_patches: found .*0; wanted whole numbers"),
        ("preprocessor_config.json", {"do_resize": False}, "do_resize: found false"),
    ],
)
def test_unsupported_settings_are_refused_by_name(file, changes, message, reference, tmp_path):
    folder = hf.saved(reference, tmp_path / "theirs")
    processor(64).save_pretrained(folder)
    change_json(folder / file, lambda config: config.update(changes))
    refused(message, read_model, folder)


def test_a_description_that_does_not_fit_any_tower_is_refused(folder_of):
    spec, preprocessing = read_model(folder_of(64)).spec.vision, read_model(folder_of(64)).preprocessing
    for name, value in (
        ("pooling", "mean"),
        ("class_token", True),
        ("position_grid", None),
        ("stem_width", 64),
        ("position_rule", "bicubic"),
    ):
        refused("flexible_grid: found true", dataclasses.replace, spec, **{name: value})
    for changes in ({"max_patches": 81}, {"crop_size": (128, 128)}, {"patch_size": None}):
        value = {**preprocessing.to_json(), **changes}
        refused("size|patches", Preprocessing.from_json, value)
