"""A map of attention over its image: the picture in grey, a glow where the model looks.

The colours run from dark violet over orange to pale yellow, ever lighter, so that they are read without colour vision.
"""

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image

# Of the glow from none to most; lightness rises all the way.
GLOW = ((26, 12, 56), (112, 28, 109), (203, 63, 82), (247, 139, 41), (252, 244, 170))
_BRIGHTEST_SHARE = 0.98


def top_of_maps(*maps: Float[np.ndarray, "grid grid"]) -> float:
    """The weight that gets the brightest colour, as a multiple of the average patch's: all but the top 2 % lie below.

    A few outlying patches often take far more than all others; scaled to them, everything else would be dark.
    """
    relative = np.concatenate([each.ravel() * each.size for each in maps])
    return float(max(1.5, np.quantile(relative, _BRIGHTEST_SHARE)))


def overlay(
    image: UInt8[np.ndarray, "size size 3"], attention: Float[np.ndarray, "grid grid"], top: float
) -> UInt8[np.ndarray, "size size 3"]:
    """The image with its map laid over, smoothly between the patches' centres.

    Args:
        image: as the model sees it.
        attention: a weight a patch, of sum 1.
        top: the multiple of the average weight that gets the brightest colour.
    """
    height, width, _ = image.shape
    relative = Image.fromarray((attention * attention.size).astype(np.float32))
    smooth = np.asarray(relative.resize((width, height), Image.Resampling.BICUBIC))
    strength = np.clip(smooth / top, 0.0, 1.0)[..., None]
    stops = np.linspace(0, 1, len(GLOW))
    glow = np.concatenate([np.interp(strength, stops, channel) for channel in np.array(GLOW).T], axis=-1)
    grey = np.asarray(Image.fromarray(image).convert("L"), np.float64)[..., None]
    # More opaque where more is seen, and darker where the picture is, so that its drawing shows through the glow.
    opacity = 0.5 + 0.35 * strength
    mixed = (1 - opacity) * grey + opacity * glow * (0.6 + 0.4 * grey / 255)
    return np.clip(np.round(mixed), 0, 255).astype(np.uint8)
