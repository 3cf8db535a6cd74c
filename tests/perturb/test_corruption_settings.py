"""The settings of every kind and severity, as the reference's source has them; edges beside OpenCV's."""

import ast
import inspect
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from rococo_jax.perturb.images.corruptions import CORRUPTIONS, SEVERITIES, blur, digital, noise, weather

# Where a kind's settings stand; `spatter` and `zoom_blur` below have another form there.
TABLES = {
    "gaussian_noise": noise.GAUSSIAN, "shot_noise": noise.SHOT, "impulse_noise": noise.IMPULSE,
    "speckle_noise": noise.SPECKLE, "gaussian_blur": blur.GAUSSIAN, "glass_blur": blur.GLASS,
    "defocus_blur": blur.DEFOCUS, "motion_blur": blur.MOTION, "fog": weather.FOG, "frost": weather.FROST,
    "snow": weather.SNOW, "contrast": digital.CONTRAST, "brightness": digital.BRIGHTNESS,
    "saturate": digital.SATURATE, "jpeg_compression": digital.JPEG, "pixelate": digital.PIXELATE,
    "zoom_blur": tuple((1, end, step) for end, step in blur.ZOOM),
    "spatter": tuple((*row, int(place >= weather.MUD_FROM)) for place, row in enumerate(weather.SPATTER, 1)),
}  # fmt: skip


@pytest.fixture(scope="module")
def reference():
    return pytest.importorskip("imagecorruptions.corruptions")


@pytest.mark.parametrize("name", TABLES)
def test_settings_match_the_reference(reference, name):
    source = inspect.getsource(getattr(reference, name))
    listed = re.search(r"(?:c|alpha) = \[(.*?)\]\s*\[\s*severity - 1\]", source, re.DOTALL)[1]
    listed = re.sub(r"(\d+) \* (0\.\d+)", lambda found: str(int(found[1]) * float(found[2])), listed)
    settings = ast.literal_eval(f"[{listed.replace('np.arange', '')}]")
    assert len(settings) == len(TABLES[name]) == len(SEVERITIES)
    for wanted, ours in zip(settings, TABLES[name], strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=1e-12)


def test_settings_of_the_elastic_transform_match_imagenet_c():
    """Compare with hendrycks/robustness for images of 224 pixels; imagecorruptions has another transform."""
    published = [
        (244 * 2, 244 * 0.7, 244 * 0.1),
        (244 * 2, 244 * 0.08, 244 * 0.2),
        (244 * 0.05, 244 * 0.01, 244 * 0.02),
        (244 * 0.07, 244 * 0.01, 244 * 0.02),
        (244 * 0.12, 244 * 0.01, 244 * 0.02),
    ]
    ours = np.array(digital.ELASTIC) * digital._ELASTIC_UNIT * 224
    np.testing.assert_allclose(ours, published, rtol=1e-12)
    assert set(CORRUPTIONS) == {*TABLES, "elastic_transform"}


@pytest.mark.parametrize("side", range(32, 100))
def test_pixels_are_enlarged_like_the_box_filter_of_pillow(side):
    line = np.random.default_rng(side).integers(0, 256, (1, side), np.uint8)
    for small in {int(side * share) for share in digital.PIXELATE}:
        image = Image.fromarray(line[:, :small])
        wanted = np.asarray(image.resize((side, 1), Image.Resampling.BOX))
        np.testing.assert_array_equal(line[:, digital._repeated_lines(small, side)], wanted)


@pytest.mark.thorough
def test_every_pane_of_frost_but_the_sixth_is_drawn():
    """Count tints: 600 draws of five tints, two of them equal, give 120 each up to 35 by chance (3.5 sd)."""
    keys = jax.random.split(jax.random.key(0), 600)
    panes = jax.vmap(lambda key: weather.draw_frost(key, 32, 32, 1).mean((0, 1)))(keys)
    tints = np.unique(np.array(weather.TINTS)[:, :3], axis=0)
    nearest = np.abs(np.asarray(panes)[:, None] - tints).sum(-1).argmin(1)
    counts = dict(zip(map(tuple, tints), np.bincount(nearest, minlength=len(tints)), strict=True))
    assert len(tints) == 4 and (71.0, 95.0, 105.0) not in counts
    assert all(abs(count - 120 * (2 if tint[0] == 201 else 1)) < 42 for tint, count in counts.items())


@pytest.mark.parametrize("levels", [6, 40, 256])
def test_edges_match_opencv(levels):
    """Few levels make plateaus, where a ridge is as high as its neighbour; smooth planes make weak edges that go on."""
    cv2 = pytest.importorskip("cv2")
    rng = np.random.default_rng(levels)
    for blurred in (0, 1.0, 2.5):
        plane = rng.normal(128, 90, (48, 40))
        plane = cv2.GaussianBlur(plane, (0, 0), blurred) if blurred else plane
        plane = (np.clip((plane - plane.min()) / np.ptp(plane), 0, 1) * (levels - 1)).round() * (255 // (levels - 1))
        found = np.asarray(weather._edges(jnp.asarray(plane, jnp.int32)))
        wanted = cv2.Canny(plane.astype(np.uint8), 50, 150) > 0
        assert wanted.any() and not wanted.all()
        np.testing.assert_array_equal(found, wanted)
