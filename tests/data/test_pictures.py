"""A picture of any mode is the same 8-bit RGB wherever it is read; the right values are computed here by NumPy."""

import colorsys
import io
import re
import struct
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

import rococo_jax
from rococo_jax.benchmarks.image_sets import CorruptedImages, CroppedImages
from rococo_jax.benchmarks.rococo.mixed_galleries import MixedImages
from rococo_jax.benchmarks.rococo.published_mixing import SIDE, decode_jpeg, encode_jpeg, make_plan, resize_to_square
from rococo_jax.data import pictures
from rococo_jax.data.augmentation import Augmentation
from rococo_jax.data.images import FileImages
from rococo_jax.data.pair_source import PairSample
from rococo_jax.data.pictures import as_8bit, as_rgb, decode_image, has_exif_rotation, image_size, open_image
from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.encoders.foreign_model import ForeignModel
from rococo_jax.encoders.programs import as_pixels
from rococo_jax.perturb.images.image_folders import rgb_pixels
from tests.support.refusals import refused

S = 32  # of the pictures, and of the towers that read them: nothing is resized
WHOLE = Preprocessing(exact_size=(S, S))
RNG = np.random.default_rng(0)
RGB = RNG.integers(0, 256, (S, S, 3), np.uint8)
ALPHA = np.repeat(np.linspace(0, 255, S).astype(np.uint8)[None], S, 0)
GREY = RGB[..., 0]
DEEP = RNG.integers(0, 65536, (S, S), np.uint16)
INDEX = RNG.integers(0, 16, (S, S), np.uint8)
PALETTE = RNG.integers(0, 256, (16, 3), np.uint8)


def over_white(colours: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    share = alpha[..., None] / 255
    return colours * share + 255 * (1 - share)


def three(grey: np.ndarray) -> np.ndarray:
    return np.dstack([grey] * 3)


def palette(alpha: bool = False, **settings) -> Image.Image:
    image = Image.fromarray(INDEX).convert("P")
    image.putdata(INDEX.ravel().tolist())
    colours = np.concatenate([PALETTE, ALPHA[0, :16, None]], 1) if alpha else PALETTE
    image.putpalette(colours.tobytes(), "RGBA" if alpha else "RGB")
    image.info.update(settings)
    return image


def in_mode(mode: str, *bands: np.ndarray) -> Image.Image:
    return Image.frombytes(mode, (S, S), np.stack(bands, -1).astype(np.uint8).tobytes())


def with_key(pixels: np.ndarray) -> Image.Image:
    """The colour of the first pixel is transparent."""
    image = Image.fromarray(pixels)
    image.info["transparency"] = tuple(pixels[0, 0].tolist()) if pixels.ndim == 3 else int(pixels[0, 0])
    return image


def clear_where(colours: np.ndarray, clear: np.ndarray) -> np.ndarray:
    return np.where(clear[..., None], 255, colours)


def cases() -> dict[str, tuple[Image.Image, np.ndarray, str]]:
    """Name -> the picture, its RGB, and the suffix of files that keep the mode."""
    rgba, la, black = np.dstack([RGB, ALPHA]), np.dstack([GREY, ALPHA]), np.where(GREY > 127, 255, 0)
    table = np.arange(0, 160, 10, dtype=np.uint8)
    c, m, y, k = RNG.integers(0, 256, (4, S, S))
    ycc = RNG.integers(90, 160, (3, S, S))
    hsv = RNG.integers(0, 256, (3, S, S))
    jfif = [1.402 * (ycc[2] - 128), -0.344136 * (ycc[1] - 128) - 0.714136 * (ycc[2] - 128), 1.772 * (ycc[1] - 128)]
    turned = np.vectorize(lambda h, s, v: colorsys.hsv_to_rgb(h / 255, s / 255, v / 255))(*hsv)
    return {
        "1": (Image.fromarray(GREY > 127), three(black), ".png"),
        "L": (Image.fromarray(GREY), three(GREY), ".png"),
        "L with a key": (with_key(GREY), clear_where(three(GREY), GREY[0, 0] == GREY), ".png"),
        "LA": (Image.fromarray(la, "LA"), over_white(three(GREY), ALPHA), ".png"),
        "La": (in_mode("La", GREY, np.full((S, S), 255)), three(GREY), ""),
        "P": (palette(), PALETTE[INDEX], ".png"),
        "P with an index": (palette(transparency=3), clear_where(PALETTE[INDEX], INDEX == 3), ".png"),
        "P with bytes": (palette(transparency=table.tobytes()), over_white(PALETTE[INDEX], table[INDEX]), ".png"),
        "P with alpha in the palette": (palette(alpha=True), over_white(PALETTE[INDEX], ALPHA[0, INDEX]), ""),
        "PA": (palette(alpha=True).convert("PA"), over_white(PALETTE[INDEX], ALPHA[0, INDEX]), ""),
        "RGB": (Image.fromarray(RGB), RGB, ".png"),
        "RGB with a key": (with_key(RGB), clear_where(RGB, (RGB[0, 0] == RGB).all(-1)), ".png"),
        "RGBA": (Image.fromarray(rgba, "RGBA"), over_white(RGB, ALPHA), ".png"),
        "RGBA in WebP": (Image.fromarray(rgba, "RGBA"), over_white(RGB, ALPHA), ".webp"),
        "RGBa": (in_mode("RGBa", *np.moveaxis(RGB, -1, 0), np.full((S, S), 255)), RGB, ""),
        "RGBX": (in_mode("RGBX", *np.moveaxis(RGB, -1, 0), ALPHA), RGB, ""),
        "CMYK": (in_mode("CMYK", c, m, y, k), np.stack([(255 - x) * (255 - k) / 255 for x in (c, m, y)], -1), ".tif"),
        "YCbCr": (in_mode("YCbCr", *ycc), np.clip(np.stack([ycc[0] + shift for shift in jfif], -1), 0, 255), ""),
        "HSV": (in_mode("HSV", *hsv), 255 * np.stack(turned, -1), ""),
        "LAB": (in_mode("LAB", black, *np.zeros((2, S, S))), three(black), ".tif"),
        "I": (Image.fromarray(GREY.astype(np.int32)), three(GREY), ".tif"),
        "I;16": (Image.fromarray(DEEP), three(DEEP / 257), ".png"),
        "I;16 with a key": (with_key(DEEP), clear_where(three(DEEP / 257), DEEP[0, 0] == DEEP), ".png"),
        "I;16 in TIFF": (Image.fromarray(DEEP), three(DEEP / 257), ".tif"),
        "I;16B": (Image.frombytes("I;16B", (S, S), DEEP.astype(">u2").tobytes()), three(DEEP / 257), ".tif"),
        "I;16L": (Image.frombytes("I;16L", (S, S), DEEP.tobytes()), three(DEEP / 257), ""),
        "I from PGM": (Image.fromarray(DEEP // 300), three(DEEP // 300 / 257), ".pgm"),
    }  # fmt: skip


CASES = cases()
# Pillow rounds compositing and CMYK once more; its tables of YCbCr, HSV and LAB are of 8 bits.
CLOSE = {"YCbCr": 2.0, "HSV": 3.0, "LAB": 1.0, "I;16": 0.5 + 1e-6, "I;16 in TIFF": 0.5 + 1e-6}


class Recorder:
    """A user's model that keeps what it was given."""

    name = "recorder"

    def encode_image(self, images):
        self.images = images
        return np.ones((len(images), 2), np.float32)

    encode_text = encode_image


def readings(name: str, folder: Path):
    """Every way in which the picture becomes pixels, each with its uint8 pixels."""
    image, _, suffix = CASES[name]
    recorder = Recorder()
    list(ForeignModel(recorder).image_batches([image]))
    yield "encode_image of PIL", next(as_pixels([image], WHOLE))
    yield "a user's model", np.asarray(recorder.images[0])
    yield "the adapter of transformers", transformers_pixels(as_8bit(image))
    yield "corruption", rgb_pixels(image, None)
    yield "training", Augmentation().apply(image, WHOLE, np.random.default_rng(0))
    if not suffix:
        return
    path = folder / f"x{suffix}"
    saved = {"transparency": image.info["transparency"]} if "transparency" in image.info else {}
    image.save(path, **saved, **({"lossless": True, "exact": True} if suffix == ".webp" else {}))
    files = FileImages(("x",), (path,))
    yield "encode_image of an opened file", next(as_pixels([Image.open(path)], WHOLE))
    yield "evaluation", next(files.read([0], WHOLE.resize))
    yield "thumbnail", np.asarray(files.thumbnail(0))
    yield "crop", np.asarray(CroppedImages(files, (0,), ((0, 0, S, S),)).thumbnail(0))
    yield "training of bytes", WHOLE.resize(PairSample(path.read_bytes(), "x", ("a",)).open())
    yield "the adapter, from a file", transformers_pixels(open_image(path))
    cut = np.asarray(CorruptedImages(files, None, 0).thumbnail(0))
    np.testing.assert_array_equal(cut, rgb_pixels(Image.fromarray(WHOLE.resize(open_image(path))), 224))
    two = FileImages(("x", "y"), (path, path))
    for protocol, alpha in (("strict", "white"), ("paper", "dropped")):
        mixed = MixedImages(two, make_plan(("x", "y"), "mix", 1.0, 1, protocol)).thumbnail(0)
        squashed = resize_to_square(as_rgb(open_image(path), alpha))
        squashed = decode_jpeg(encode_jpeg(squashed)) if protocol == "paper" else squashed
        np.testing.assert_array_equal(np.asarray(mixed), squashed, protocol)


def transformers_pixels(image: Image.Image) -> np.ndarray:
    processor = CLIPImageProcessorPil(do_resize=False, do_center_crop=False, do_rescale=False, do_normalize=False)
    return processor(image, return_tensors="np")["pixel_values"][0].transpose(1, 2, 0)


@pytest.mark.parametrize("name", CASES)
def test_images_of_every_mode_have_the_same_colours_in_every_reader(name, tmp_path):
    right = CASES[name][1]
    first = None
    for place, pixels in readings(name, tmp_path):
        np.testing.assert_allclose(pixels, right, atol=CLOSE.get(name, 1.01), err_msg=place)
        first = pixels if first is None else first
        np.testing.assert_array_equal(pixels, first, place)


@pytest.mark.parametrize("name", ["LA", "P with bytes", "RGBA", "RGB with a key", "L"])
def test_the_published_script_drops_transparency(name):
    image = CASES[name][0]
    dropped = image.convert("RGB")
    np.testing.assert_array_equal(
        resize_to_square(image), np.asarray(dropped.resize((SIDE, SIDE), Image.Resampling.BICUBIC))
    )
    # Nor is a transparent colour composited later.
    np.testing.assert_array_equal(np.asarray(as_rgb(as_rgb(image, "dropped"))), np.asarray(dropped))


@pytest.mark.parametrize(("mode", "plain", "bands"), [("La", "LA", (GREY, ALPHA)), ("RGBa", "RGBA", (RGB, ALPHA))])
def test_premultiplied_colours_are_composited(mode, plain, bands):
    image = Image.fromarray(np.dstack(bands), plain)
    # Colours of 8 bits times alpha lose bits where alpha is small, where white outweighs them.
    np.testing.assert_allclose(np.asarray(as_rgb(image.convert(mode))).astype(int), np.asarray(as_rgb(image)), atol=2)


def test_a_tiff_of_twelve_bits_is_scaled_by_its_range(tmp_path):
    values = np.array([[0, 1000, 2048, 4095]])
    packed = int("".join(f"{value:012b}" for value in values[0]), 2).to_bytes(6, "big")
    tags = [(256, 4), (257, 1), (258, 12), (259, 1), (262, 1), (273, 8), (277, 1), (278, 1), (279, 6)]
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags)
    data = struct.pack("<2sHI", b"II", 42, 14) + packed + struct.pack("<H", len(tags)) + entries + bytes(4)
    (tmp_path / "x.tif").write_bytes(data)
    for image in (open_image(tmp_path / "x.tif"), as_8bit(Image.open(tmp_path / "x.tif"))):
        np.testing.assert_allclose(np.asarray(image), values / 4095 * 255, atol=0.5)


ARRAYS = {
    "uint8": (RGB, RGB),
    "int32": (RGB.astype(np.int32), RGB),
    "int64": (RGB.astype(np.int64), RGB),
    "grey": (GREY, three(GREY)),
    "grey in one channel": (GREY[..., None], three(GREY)),
    "with alpha": (np.dstack([RGB, ALPHA]), over_white(RGB, ALPHA)),
    "jax": (jnp.asarray(RGB), RGB),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_of_whole_numbers_are_read_as_pixels(name):
    array, right = ARRAYS[name]
    recorder, seven = Recorder(), Preprocessing(exact_size=(7, 7))
    for batch in [[array], np.asarray(array)[None]][: array.ndim - 1]:
        np.testing.assert_allclose(next(as_pixels(batch, WHOLE)), right, atol=1.01)
        list(ForeignModel(recorder).image_batches(batch))
        np.testing.assert_allclose(np.asarray(recorder.images[0]), right, atol=1.01)
    np.testing.assert_array_equal(next(as_pixels([np.asarray(array)], seven)), seven.resize(as_8bit(array)))


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (RGB[None].astype(np.uint16), "image 0: pixels: found uint16, whose range is not known; wanted whole numbers"),
        ([RGB, RGB > 4], "image 1: pixels: found bool"),
        (RGB[None].astype(np.int64) + 1, "found int64 from 1 to 256; wanted whole numbers from 0 to 255"),
        (RGB[None].astype(np.int8), "found int8 from -128"),
        (RGB[None].astype(complex), "found complex128"),
        (RGB[None].astype(np.float32), "float pixels: found values up to 255; wanted normalised values"),
        (RGB[None, :20].astype(np.float32) / 255, r"found (20, 32, 3); wanted (32, 32, 3), the model's input size"),
        (np.moveaxis(RGB, -1, 0)[None], r"image 0: shape: found (3, 32, 32)"),
        (RGB, r"images: shape: found (32, 32, 3); wanted (images, height, width, 3)"),
        (Image.fromarray(RGB), "images: type: found one Image; wanted a list of PIL images"),
        ("a.png", "images: type: found one str"),
        (None, "images: type: found one NoneType"),
        (["a.png"], "image 0: pixels: found a str; wanted a PIL image or an array"),
        (np.zeros((1, 0, 5, 3), np.uint8), "image 0: size: found 5 x 0"),
        ([Image.fromarray(DEEP.astype(np.int32))], "scale an image of mode I to whole numbers"),
        ([Image.fromarray(GREY.astype(np.float32))], "scale an image of mode F to whole numbers from 0 to 255"),
    ],
)
def test_numbers_of_unknown_range_are_refused(images, message):
    limited = Preprocessing(exact_size=(S, S), mean=(0.5,) * 3, std=(0.25,) * 3)
    refused(re.escape(message), lambda: list(as_pixels(images, limited)))


def test_a_damaged_image_from_any_source_is_named(tmp_path):
    file = io.BytesIO()
    Image.fromarray(RGB).save(file, "PNG")
    cut = Image.open(io.BytesIO(file.getvalue()[:900]))
    refused("image 0: image: found a damaged file", lambda: list(as_pixels([cut], WHOLE)))
    Image.new("L", (1, 3000)).save(tmp_path / "line.png")
    refused(r"line\.png: aspect ratio: found 1 x 3000", open_image, tmp_path / "line.png")
    Image.fromarray(np.linspace(0, 1, 20, dtype=np.float32).reshape(4, 5)).save(tmp_path / "deep.tif")
    refused(r"deep\.tif: image: found values from 0 to 1; wanted 8 or 16 bits", open_image, tmp_path / "deep.tif")


@pytest.mark.parametrize("kind", ["GIF", "PNG", "TIFF", "WEBP"])
def test_the_first_of_several_frames_is_read_and_reported(kind, tmp_path, capsys):
    pictures._say_once.cache_clear()
    first, second = (Image.new("RGB", (8, 8), colour) for colour in ("red", "blue"))
    lossless = {"lossless": True} if kind == "WEBP" else {}
    first.save(tmp_path / "x", kind, save_all=True, append_images=[second], **lossless)
    for _ in range(2):
        assert np.asarray(as_rgb(open_image(tmp_path / "x")))[3, 3].tolist() == [255, 0, 0]
    whole = (tmp_path / "x").read_bytes()
    for length in range(len(whole) // 2, len(whole), 5):  # a damaged second frame changes nothing
        try:
            plain = Image.open(io.BytesIO(whole[:length])).convert("RGB").tobytes()
        except Exception:
            refused("x: image: found", decode_image, whole[:length], "x")
        else:
            assert as_rgb(decode_image(whole[:length], "x")).tobytes() == plain
    assert capsys.readouterr().err.count("only the first frame or page of images with several is read") == 1


def test_an_exif_rotation_is_recognised_without_decoding(tmp_path):
    for orientation in (None, 1, 6):
        exif = Image.Exif()
        if orientation:
            exif[0x0112] = orientation
        for suffix in ("jpg", "png", "webp", "tif"):
            Image.fromarray(RGB[:20]).save(tmp_path / f"x.{suffix}", exif=exif)
            assert has_exif_rotation(tmp_path / f"x.{suffix}") == (orientation == 6)
    assert image_size(tmp_path / "x.jpg") == open_image(tmp_path / "x.jpg").size == (S, 20)


def test_only_one_module_opens_images_and_converts_them_to_rgb():
    package = Path(rococo_jax.__file__).parent
    own_pixels = {"data/augmentation.py"}  # grey and hue of arrays that it made itself
    places = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if re.search(r"Image\.open\(|\.convert\([\"']RGBA?[\"']\)", path.read_text())
    }
    assert places - own_pixels == {"data/pictures.py"}


@pytest.mark.parametrize("form", ["BMP", "TIFF", "JPEG2000", "PNG", "PPM", "JPEG"])
def test_16_bits_per_channel_are_reported_only_for_files_that_have_them(form, capsys):
    """The result does not depend on the width, although the length of a row or file may contain the digits 16."""

    def warns(picture: Image.Image) -> bool:
        file = io.BytesIO()
        picture.save(file, form)
        pictures._say_once.cache_clear()
        decode_image(file.getvalue(), "x")
        return "16 bits per channel" in capsys.readouterr().err

    assert not any(warns(Image.new("RGB", (width, height))) for width in (16, 53, 160, 538, 720) for height in (1, 16))
    if form not in ("BMP", "JPEG"):
        assert warns(Image.fromarray(DEEP))


def test_a_bmp_of_16_bits_per_pixel_is_not_reported_as_16_bits_per_channel(capsys):
    """A BMP of 5, 6 and 5 bits, as Windows wrote them."""
    masks = b"".join(mask.to_bytes(4, "little") for mask in (0xF800, 0x07E0, 0x001F))
    about = b"".join(each.to_bytes(4, "little") for each in (40, 4, 2)) + b"\1\0\x10\0" + (3).to_bytes(4, "little")
    data = about + bytes(20) + masks + bytes(16)
    file = b"BM" + (14 + len(data)).to_bytes(4, "little") + bytes(4) + (66).to_bytes(4, "little") + data
    pictures._say_once.cache_clear()
    assert decode_image(file, "x").size == (4, 2)
    assert "16 bits" not in capsys.readouterr().err
