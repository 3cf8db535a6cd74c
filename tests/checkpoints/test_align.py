"""ALIGN beside `transformers`: vectors, logits, preprocessing, the commands, and configurations that are refused."""

import json
import shutil
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image
from transformers.models.efficientnet.image_processing_pil_efficientnet import EfficientNetImageProcessorPil

from rococo_jax.checkpoints import export_huggingface, save_model
from rococo_jax.checkpoints.families import spec_from_config
from rococo_jax.checkpoints.families.align import ALIGN
from rococo_jax.cli.main import main
from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.encoders.inspection import inspect_model
from rococo_jax.models import EfficientNetSpec, parameter_counts
from tests.support import reference_models as hf
from tests.support.models import assert_same_model, change_json, read_model
from tests.support.random_inputs import random_pixels, random_texts
from tests.support.reference_models import torch, transformers
from tests.support.refusals import refused
from tests.support.world import noise, write_world

# 9 blocks on maps of 30, 30, 15, 7, 4, 2 and 2 cells: strides of 2 on odd and even maps, with kernels of both sizes,
# the last two padded alike on all sides. Channels are rounded up, down, and not down by more than a tenth.
# The last stage reads maps of its own shape, and still has no shortcut in its first block.
VISION = {
    "image_size": 61, "width_coefficient": 0.3, "depth_coefficient": 0.6, "depth_divisor": 4,
    "in_channels": [32, 16, 24, 40, 20, 24], "out_channels": [16, 24, 40, 20, 24, 24], "strides": [1, 2, 2, 2, 2, 1],
    "num_block_repeats": [2, 4, 1, 1, 1, 1], "kernel_sizes": [3, 5, 3, 5, 3, 5], "expand_ratios": [1, 2, 3, 2, 1, 2],
    "depthwise_padding": [3, 6, 7], "hidden_dim": 4,
}  # fmt: skip
# What its processor makes is smaller than `image_size`, as that of kakaobrain/align-base may be.
SMALL = {
    "image_size": 40, "width_coefficient": 1.0, "depth_coefficient": 1.0, "in_channels": [32, 8], "strides": [2, 2],
    "out_channels": [8, 8], "num_block_repeats": [1, 2], "kernel_sizes": [5, 3], "expand_ratios": [1, 4],
    "pooling_type": "max", "batch_norm_eps": 0.1, "hidden_act": "gelu", "squeeze_expansion_ratio": 0.6,
}  # fmt: skip
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "dog", "cat", "on", "the", "grass", "red", "##s", "."]


def align(vision, seed=0, **text):
    """A random ALIGN with batch norms whose means and variances differ, and are far from 0 and 1; its convolutions keep
    the spread of what they read, so that images still differ at the end.
    """
    config = transformers.AlignConfig(text_config={**hf.BARE_TEXT, **text}, vision_config=vision, projection_dim=8)
    reference = hf.perturbed(transformers.AlignModel(config), seed)
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for name, buffer in reference.named_buffers():
            if name.endswith("running_mean"):
                buffer.copy_(0.5 * torch.randn(buffer.shape, generator=generator))
            elif name.endswith("running_var"):
                buffer.copy_(0.02 + 0.5 * torch.rand(buffer.shape, generator=generator))
        for parameter in reference.vision_model.parameters():
            if parameter.ndim == 4:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / parameter[0].numel() ** 0.5)
        reference.temperature.fill_(0.31)
    return reference


def processor(**settings):
    """As kakaobrain/align-base has it, but for the sizes."""
    sizes = {"size": {"height": 30, "width": 30}, "crop_size": {"height": 25, "width": 25}, "do_center_crop": True}
    values = {"rescale_factor": 1 / 127.5, "rescale_offset": True, "do_normalize": False, "include_top": False}
    return EfficientNetImageProcessorPil(**{**sizes, **values, "resample": 2, **settings})


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """The reference, its processor, the folder of both as `transformers` writes it, and the folder as we read it."""
    folder = tmp_path_factory.mktemp("align") / "theirs"
    reference = align(SMALL, vocab_size=len(WORDS), max_position_embeddings=70)
    hf.saved(reference, folder)
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    tokenizer = transformers.BertTokenizerFast(vocab=vocabulary, model_max_length=512)
    both = transformers.AlignProcessor(image_processor=processor(), tokenizer=tokenizer)
    both.save_pretrained(folder)
    return reference, both, folder, read_model(folder)


def assert_same_pixels(settings, reference):
    picture = Image.fromarray(np.random.default_rng(1).integers(0, 256, (97, 131, 3), np.uint8))
    preprocessing = Preprocessing.from_huggingface(settings)
    ours = np.asarray(preprocessing.normalise(jnp.asarray(preprocessing.resize(picture))[None]))
    theirs = reference(picture, return_tensors="np")["pixel_values"].transpose(0, 2, 3, 1)
    # float32 rounding of numbers as large as these
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6 * max(1.0, np.abs(theirs).max()))


@pytest.mark.parametrize("vision", [VISION, SMALL], ids=["strides, kernels and rounding", "maximum, large eps, gelu"])
def test_align_gives_the_reference_vectors_and_logits(vision, tmp_path):
    reference = align(vision, seed=3)
    model = read_model(hf.saved(reference, tmp_path / "theirs")).model
    ids, mask = random_texts(13, 99, 7)
    colours = np.random.default_rng(1).normal(0, 2, (3, 1, 1, 3)).astype(np.float32)
    pixels = random_pixels(vision["image_size"]) + colours
    with torch.no_grad():
        output = reference(hf.torch_ids(ids), hf.torch_pixels(pixels), torch.from_numpy(mask).long())
    ours = [np.asarray(vectors) for vectors in hf.pairs(model, pixels, ids, mask)]
    hf.assert_same_vectors(ours[0], output.image_embeds)
    hf.assert_same_vectors(ours[1], output.text_embeds)
    assert (ours[0] @ ours[0].T).min() < 0.98  # images differ, so that equal vectors say something
    logits = np.exp(float(model.logit_scale[...])) * ours[0] @ ours[1].T
    np.testing.assert_allclose(logits, output.logits_per_image.numpy(), rtol=0, atol=4e-4)


def test_pictures_and_captions_give_the_reference_vectors_through_a_model_directory(world, tmp_path):
    reference, both, _, encoder = world
    save_model(tmp_path / "ours", encoder)
    back = read_model(tmp_path / "ours")
    assert_same_model(back, encoder)
    colours = np.random.default_rng(0).integers(0, 256, (6, 9, 3), np.uint8).repeat(9, 0).repeat(11, 1)
    pictures = [Image.fromarray(colours), Image.fromarray(colours[:, ::-2])]
    captions = ["A dog on the grass.", "the red cat", "cats and dogs"]
    inputs = both(text=captions, return_tensors="pt")
    assert inputs["input_ids"].shape == (3, 64)  # its padding, of which ours needs none
    pixels = both.image_processor(pictures, return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        output = reference(**inputs, pixel_values=pixels)
    hf.assert_same_vectors(back.encode_image(pictures), output.image_embeds)
    hf.assert_same_vectors(back.encode_text(captions), output.text_embeds)
    assert back.tokenizer.spec.context_length == 64 and len(back.tokenizer.encode(["cat " * 80])[0]) == 64
    assert "cut at 64" in back.provenance["text_length"]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"do_center_crop": False, "resample": 3},
        {"rescale_offset": False, "rescale_factor": 1 / 255, "do_normalize": True, "include_top": True},
        {"do_normalize": True, "include_top": True, "image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]},
        {"include_top": True, "image_std": [0.4, 0.5, 0.6]},
        {"do_rescale": False},
    ],
)
def test_pixels_equal_those_of_the_reference_processor(settings):
    made = processor(**settings)
    assert_same_pixels(made.to_dict(), made)


def test_the_default_processors_of_the_reference_and_of_the_family():
    """Without a file, images are made as for kakaobrain/align-base; what a file leaves out is the reference's."""
    bare = Preprocessing.from_huggingface({"image_processor_type": "EfficientNetImageProcessor"})
    assert bare == Preprocessing.from_huggingface(EfficientNetImageProcessorPil().to_dict())
    published = Preprocessing.from_huggingface(ALIGN.processor)
    assert (published.image_size, published.limits) == ((289, 289), (-1.0, 1.0))
    sizes = {"size": {"height": 346, "width": 346}, "crop_size": {"height": 289, "width": 289}}
    assert_same_pixels(ALIGN.processor, processor(**sizes))


def test_an_empty_configuration_has_the_sizes_of_efficientnet_b7(tmp_path):
    """A B7 of 55 blocks, with as many parameters as the reference."""
    spec = spec_from_config({"model_type": "align", "vision_config": {"image_size": 289}}, tmp_path, ())
    assert (sum(spec.vision.stage_layers), spec.vision.widths[-1], spec.vision.grid) == (55, 640, 9)
    with torch.device("meta"):
        theirs = transformers.AlignVisionModel(transformers.AlignVisionConfig())
    assert parameter_counts(spec)["vision"] == sum(each.numel() for each in theirs.parameters())


def test_the_commands_convert_embed_and_inspect(world, tmp_path, capsys):
    _, _, folder, encoder = world
    ours = str(tmp_path / "ours")
    assert main(["convert", str(folder), ours]) == 0
    captions = [["a dog on the red grass", "a cat"], ["the cat on red"], ["dog"], ["grass grass grass"]]
    write_world(tmp_path, captions, name="{}.png", picture=noise(70, 90))
    given = ["--images", str(tmp_path / "images"), "--captions", str(tmp_path / "captions.json"), "--no-cache"]
    assert main(["embed", ours, *given, "--out", str(tmp_path / "E.npz")]) == 0
    direct = encoder.encode_image([Image.open(tmp_path / "images" / f"{number}.png") for number in range(4)])
    texts = encoder.encode_text([text for each in captions for text in each])
    with np.load(tmp_path / "E.npz") as stored:
        np.testing.assert_allclose(stored["image_embeddings"], direct, rtol=0, atol=1e-5)
        np.testing.assert_allclose(stored["text_embeddings"], texts, rtol=0, atol=1e-5)
    capsys.readouterr()
    assert main(["inspect", ours]) == 0
    page = capsys.readouterr().out
    assert "an EfficientNet of 1-2 blocks, 8-8 wide" in page and "GFLOP an image" in page
    assert "squashed to 30 x 30" in page and "trained on -1 to 1" not in page


def test_inspect_warns_of_images_that_are_made_otherwise_than_in_training(world, tmp_path):
    """The processor's own defaults divide by the std twice."""
    *_, folder, _ = world
    copy = shutil.copytree(folder, tmp_path / "copy")
    change_json(copy / "processor_config.json", lambda config: config["image_processor"].update(include_top=True))
    warnings = inspect_model(read_model(copy))["warnings"]
    assert any("numbers from -2 to 2" in warning and "trained on -1 to 1" in warning for warning in warnings)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"strides": [1, 2, 3, 2, 2, 1]}, "strides"),
        ({"kernel_sizes": [3, 4, 3, 5, 3, 5]}, "kernel_sizes"),
        ({"expand_ratios": [1, 2]}, "expand_ratios"),
        ({"in_channels": [64, 16, 24, 40, 20, 24]}, "in_channels"),  # maps that do not meet
        ({"out_channels": [16, 24, 40, 20, 24, 99]}, "projection_dim"),  # another embedding
        ({"pooling_type": "gem"}, "pooling_type"),
        ({"num_channels": 1}, "num_channels"),
        ({"squeeze_expansion_ratio": 1.5}, "squeeze_expansion_ratio"),
        ({"depth_coefficient": "deep"}, "depth_coefficient"),
        ({"image_size": 0}, "image_size"),
    ],
)
def test_what_cannot_be_followed_is_refused_by_the_name_of_the_field(changes, field):
    config = {"model_type": "align", "projection_dim": 8, "vision_config": {**VISION, **changes}}
    refused(rf"^config\.json: (\w+\.)?{field}: found", spec_from_config, config, Path("config.json"), ())


@pytest.mark.parametrize(
    ("field", "value"),
    [("stages", None), ("strides", [1, 3]), ("kernel_sizes", [3, 1]), ("image_size", 1), ("centred", [0])],
)
def test_a_changed_description_of_a_tower_is_refused(field, value, tmp_path):
    config = {"model_type": "align", "projection_dim": 8, "vision_config": SMALL}
    spec = spec_from_config(config, tmp_path, ()).vision
    written = json.loads(json.dumps(spec.to_json()))
    assert EfficientNetSpec.from_json(written) == spec
    changed = {"centred": [True]} if field == "stages" else {field: value}
    refused(rf": (\w+\.)?{field}: found", EfficientNetSpec.from_json, {**written, **changed})


def test_a_temperature_of_zero_missing_tensors_and_exports_are_refused(world, tmp_path, refusal):
    *_, folder, encoder = world
    copy = shutil.copytree(folder, tmp_path / "copy")
    hf.change_tensors(copy, lambda tensors: tensors.update(temperature=torch.tensor(0.0)))
    refused(r"temperature: found 0\.0; wanted a number above 0", read_model, copy)
    gone = "vision_model.encoder.blocks.2.depthwise_conv.depthwise_norm.running_var"
    hf.change_tensors(copy, lambda tensors: [tensors.pop(gone), tensors.update(temperature=torch.tensor(1.0))])
    error = refusal("convert", copy, tmp_path / "out").strip()
    assert gone in error and "\n" not in error
    refused("towers of one family", export_huggingface, encoder, tmp_path / "out")
    assert not (tmp_path / "out").exists()
