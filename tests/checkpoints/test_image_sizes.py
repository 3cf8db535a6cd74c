"""The image size of checkpoints without a configuration is that of their own library, or is asked for."""

import numpy as np
import pytest

pytest.importorskip("torch")

from rococo_jax.checkpoints.image_sizes import BIG_VISION_SIZES, OPEN_CLIP_SIZES, image_size_of
from rococo_jax.encoders.inspection import library_settings
from tests.checkpoints.test_families import big_vision_arrays
from tests.support import reference_models as hf
from tests.support.models import read_model, read_towers
from tests.support.openai_files import openai_file, tensors_of, torch
from tests.support.random_inputs import random_pixels
from tests.support.refusals import refused

# Patch and size of big_vision's published SigLIP and SigLIP 2: VANITY_NAMES of models/proj/image_text/two_towers.py.
VANITY_NAMES = [
    *((16, size) for size in (224, 256, 384, 512)), (32, 256), (14, 224), (14, 384),
]  # fmt: skip


@pytest.mark.parametrize(("patch", "size"), VANITY_NAMES)
def test_every_published_model_of_big_vision_is_read_at_its_size(patch, size):
    """Its towers have a position for each whole patch: a convolution without padding drops the pixels after them."""
    assert image_size_of("x", "positions", patch, (size // patch) ** 2, BIG_VISION_SIZES, None)[0] == size


@pytest.mark.parametrize(
    ("patch", "size"), [(32, 224), (32, 256), (16, 224), (16, 240), (14, 224), (14, 336), (14, 378)]
)
def test_every_published_clip_is_read_at_its_size(patch, size):
    """`image_size` of open_clip's model_configs without a tower of timm."""
    assert image_size_of("x", "positions", patch, (size // patch) ** 2, OPEN_CLIP_SIZES, None)[0] == size


@pytest.mark.slow
def test_the_big_vision_so400m_of_384_pixels_matches_the_reference(tmp_path):
    reference = hf.siglip(vision={"image_size": 384, "patch_size": 14})
    np.savez(tmp_path / "so400m.npz", **big_vision_arrays(reference, stacked=True))
    encoder = read_towers(tmp_path / "so400m.npz")
    assert encoder.spec.vision.image_size == 384 and encoder.preprocessing.exact_size == (384, 384)
    assert library_settings(encoder)["image size"]["from"].startswith("27 x 27 patches of 14 pixels in VANITY_NAMES")
    pixels = random_pixels(384)
    with torch.no_grad():
        expected = reference.get_image_features(hf.torch_pixels(pixels)).pooler_output
    hf.assert_same_vectors(encoder.encode_image(pixels), hf.unit(expected))
    # As the folder of `transformers`, whose configuration has the size.
    folder = read_model(hf.saved(reference, tmp_path / "theirs"))
    assert folder.spec.vision == encoder.spec.vision
    assert library_settings(folder)["image size"]["from"] == "config.json: vision_config.image_size"


def test_the_image_size_must_be_given_if_positions_fit_several_sizes(tmp_path):
    reference = hf.siglip(vision={"image_size": 256, "patch_size": 14})
    np.savez(tmp_path / "mine.npz", **big_vision_arrays(reference, stacked=False))
    said = "image_size: found 18 x 18 positions of patches of 14 pixels, which fit images of 252 or 256 pixels"
    refused(said, read_towers, tmp_path / "mine.npz")
    for size in (252, 256):
        encoder = read_towers(tmp_path / "mine.npz", image_size=size)
        assert (encoder.spec.vision.image_size, encoder.spec.vision.position_grid) == (size, None)
        assert library_settings(encoder)["image size"] == {"value": size, "from": "the argument image_size"}
    smaller = read_towers(tmp_path / "mine.npz", image_size=224)
    assert (smaller.spec.vision.image_size, smaller.spec.vision.position_grid) == (224, 18)


def test_positions_that_do_not_form_a_square_are_refused():
    refused(
        "positions: found 730 positions of patches", image_size_of, "x", "positions", 14, 730, BIG_VISION_SIZES, None
    )


def test_an_openai_archive_is_read_at_its_stored_size(tmp_path):
    encoder = read_towers(openai_file("vit_quick_gelu", tmp_path / "a.pt", "state_dict"))
    assert library_settings(encoder)["image size"] == {"value": 32, "from": "input_resolution"}
    bare = openai_file("vit_quick_gelu", tmp_path / "b.pt", "state_dict", numbers=False)
    encoder = read_towers(bare, source_format="openai")
    assert library_settings(encoder)["image size"] == {"value": 32, "from": "4 x 4 positions of patches of 8 pixels"}
    numbers = {"context_length": torch.tensor(12), "vocab_size": torch.tensor(60)}
    for stored, expected in ((37, 37), (64, 32)):  # build_model goes by the positions where they do not fit
        torch.save({**tensors_of("vit_quick_gelu"), **numbers, "input_resolution": torch.tensor(stored)}, bare)
        assert read_towers(bare).spec.vision.image_size == expected
