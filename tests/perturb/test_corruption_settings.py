"""The settings of every kind and severity, as the reference package's source has them; edges beside OpenCV's."""

import ast
import inspect
import re

import jax.numpy as jnp
import numpy as np
import pytest

from rococo_jax.perturb.images.corruptions import CORRUPTIONS, SEVERITIES, blur, digital, noise, weather

# Where a kind's settings stand; `spatter` and `zoom_blur` below have another form there.
TABLES = {
    "gaussian_noise": noise.GAUSSIAN, "shot_noise": noise.SHOT, "impulse_noise": noise.IMPULSE,
    "speckle_noise": noise.SPECKLE, "gaussian_blur": blur.GAUSSIAN, "glass_blur": blur.GLASS,
    "defocus_blur": blur.DEFOCUS, "motion_blur": blur.MOTION, "fog": weather.FOG, "frost": weather.FROST,
    "snow": weather.SNOW, "contrast": digital.CONTRAST, "brightness": digital.BRIGHTNESS,
    "saturate": digital.SATURATE, "jpeg_compression": digital.JPEG, "pixelate": digital.PIXELATE,
    "elastic_transform": digital.ELASTIC,
    "zoom_blur": tuple((1, end, step) for end, step in blur.ZOOM),
    "spatter": tuple((*row, int(place >= weather.MUD_FROM)) for place, row in enumerate(weather.SPATTER, 1)),
}  # fmt: skip


@pytest.fixture(scope="module")
def reference():
    return pytest.importorskip("imagecorruptions.corruptions")


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_settings_are_those_of_the_reference(reference, name):
    source = inspect.getsource(getattr(reference, name))
    listed = re.search(r"(?:c|alpha) = \[(.*?)\]\s*\[\s*severity - 1\]", source, re.DOTALL)[1]
    listed = re.sub(r"(\d+) \* (0\.\d+)", lambda found: str(int(found[1]) * float(found[2])), listed)
    settings = ast.literal_eval(f"[{listed.replace('np.arange', '')}]")
    assert len(settings) == len(TABLES[name]) == len(SEVERITIES)
    for wanted, ours in zip(settings, TABLES[name], strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=1e-12)


@pytest.mark.parametrize("levels", [6, 40, 256])
def test_edges_are_those_of_opencv(levels):
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
