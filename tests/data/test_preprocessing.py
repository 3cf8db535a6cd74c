"""Images become the pixels that the reference processors make of them."""

import io
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image
from transformers.models.bit.image_processing_pil_bit import BitImageProcessorPil
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from rococo_jax.data.pictures import open_image
from rococo_jax.data.preprocessing import Preprocessing
from tests.support.cases import further
from tests.support.refusals import refused
from tests.support.world import drawing

# The 8-bit half must agree exactly, so what is left is the rounding of three float32 operations on numbers below 8.
FLOAT32_ROUNDING = 2e-6
IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
FIFTY = {"size": {"shortest_edge": 50}, "crop_size": 50}
PROCESSORS = {
    "clip 224": CLIPImageProcessorPil(),
    "clip 336": CLIPImageProcessorPil(size={"shortest_edge": 336}, crop_size={"height": 336, "width": 336}),
    "clip 33 odd": CLIPImageProcessorPil(size={"shortest_edge": 33}, crop_size={"height": 33, "width": 33}),
    "clip crop larger than the resized image": CLIPImageProcessorPil(size={"shortest_edge": 40}, crop_size=57),
    "clip crop not square": CLIPImageProcessorPil(size={"shortest_edge": 64}, crop_size={"height": 63, "width": 90}),
    "siglip 224": SiglipImageProcessorPil(),
    "siglip 45 x 91": SiglipImageProcessorPil(size={"height": 45, "width": 91}),
    "dinov2 256 to 224": BitImageProcessorPil(size={"shortest_edge": 256}, **IMAGENET),
    "vit 72 bilinear": ViTImageProcessorPil(size={"height": 72, "width": 72}, do_convert_rgb=True),
    "clip lanczos, not normalised": CLIPImageProcessorPil(**FIFTY, resample=1, do_normalize=False),
    "clip not rescaled": CLIPImageProcessorPil(
        **FIFTY, do_rescale=False, image_mean=[99.0, 100.0, 101.0], image_std=[50.0] * 3
    ),
}


def assert_equal_to_reference(name: str, images: dict[str, Image.Image]) -> None:
    processor = PROCESSORS[name]
    preprocessing = Preprocessing.from_huggingface(processor.to_dict())
    normalise = jax.jit(preprocessing.normalise)
    for kind, image in images.items():
        twin = Image.fromarray((np.asarray(image) // 257).astype(np.uint8)) if image.mode == "I;16" else image
        theirs = processor(twin, return_tensors="np")["pixel_values"].transpose(0, 2, 3, 1)
        ours = np.asarray(normalise(jnp.asarray(preprocessing.resize(image))[None]))
        assert ours.shape == theirs.shape and ours.dtype == theirs.dtype == np.float32
        scale = max(1.0, np.abs(theirs).max() / 8)
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=FLOAT32_ROUNDING * scale, err_msg=kind)


def saved_and_opened(image: Image.Image, file_format: str, **settings) -> Image.Image:
    file = io.BytesIO()
    image.save(file, file_format, **settings)
    return Image.open(io.BytesIO(file.getvalue()))


def odd_images() -> dict[str, Image.Image]:
    rgb = Image.fromarray(drawing(120, 171))
    rotated = Image.Exif()
    rotated[0x0112] = 6
    palette = rgb.quantize(17)
    rgba = Image.fromarray(drawing(97, 64, 4), "RGBA")
    sixteen = Image.fromarray(drawing(80, 91, 1)[..., 0].astype(np.uint16) * 257)
    return {
        "landscape": rgb,
        "portrait": Image.fromarray(drawing(171, 120)),
        "already the right size": Image.fromarray(drawing(224, 224)),
        "smaller than the crop": Image.fromarray(drawing(7, 9)),
        "one pixel": Image.fromarray(drawing(1, 1)),
        "one pixel wide": Image.fromarray(drawing(60, 1)),
        "one pixel high": Image.fromarray(drawing(1, 75)),
        "greyscale JPEG": saved_and_opened(rgb.convert("L"), "JPEG"),
        "greyscale with alpha": saved_and_opened(rgba.convert("LA"), "PNG"),
        "1 bit": saved_and_opened(rgb.convert("1"), "PNG"),
        "16 bit": saved_and_opened(sixteen, "PNG"),
        "palette": saved_and_opened(palette, "PNG"),
        "palette with a transparent colour": saved_and_opened(palette, "PNG", transparency=3),
        "palette with alpha": saved_and_opened(palette, "PNG", transparency=bytes(range(0, 255, 15))),
        "RGB with a transparent colour": saved_and_opened(rgb, "PNG", transparency=rgb.getpixel((3, 3))),
        "RGBA": saved_and_opened(rgba, "PNG"),
        "GIF": saved_and_opened(rgb, "GIF"),
        "CMYK JPEG": saved_and_opened(rgb.convert("CMYK"), "JPEG"),
        "YCbCr": rgb.convert("YCbCr"),
        "rotated by EXIF": saved_and_opened(rgb, "JPEG", exif=rotated),
        "progressive JPEG": saved_and_opened(rgb, "JPEG", progressive=True, quality=31),
        "WebP": saved_and_opened(rgb, "WEBP"),
    }


@pytest.mark.parametrize(
    "name",
    further(
        [name for name in PROCESSORS if name != "clip 336"],
        ("clip 224", "siglip 45 x 91", "clip crop not square", "clip 33 odd"),
    ),
)
def test_every_kind_of_image_equals_the_reference_processor(name):
    assert_equal_to_reference(name, odd_images())


@pytest.mark.real_data
@pytest.mark.parametrize("name", further(["clip 336", "siglip 224", "dinov2 256 to 224"], ("siglip 224",)))
def test_real_photographs_equal_the_reference_processor(name, real_data):
    paths = sorted((real_data / "coco/originals/val2014").glob("*.jpg"))
    assert len(paths) == 48
    assert_equal_to_reference(name, {path.name: open_image(path) for path in paths[::4]})


@pytest.mark.real_data
def test_the_preprocessor_file_of_a_real_tower_is_read(real_data):
    config = json.loads((real_data / "towers/dinov2_vits14/preprocessor_config.json").read_text())
    preprocessing = Preprocessing.from_huggingface(config)
    assert preprocessing.image_size == (224, 224) and preprocessing.mean == (0.485, 0.456, 0.406)


def open_clip_pixels(image: Image.Image, size: int, squash: bool) -> np.ndarray:
    """`Resize`, `CenterCrop` (`F.pad`, `F.crop`) and `convert("RGB")` of open_clip's `image_transform`."""
    short, long = sorted(image.size)
    other = int(size * long / short)
    wide = (size, size) if squash else (size, other) if image.width <= image.height else (other, size)
    image = image.resize(wide, Image.Resampling.BICUBIC)
    left, top = (round((side - size) / 2.0) for side in image.size)
    return np.asarray(image.crop((left, top, left + size, top + size)).convert("RGB"))


@pytest.mark.parametrize("squash", [False, True])
def test_the_open_clip_resizing_keeps_the_image_mode_and_rounds_to_even(squash):
    size = {"exact_size": (33, 33)} if squash else {"shortest_edge": 33, "crop_size": (33, 33)}
    theirs, ours = Preprocessing(**size), Preprocessing(**size, library="open_clip")
    others = set()
    for kind, image in odd_images().items():
        if image.mode != "I;16":  # scaled, not clipped
            pixels = ours.resize(image)
            np.testing.assert_array_equal(pixels, open_clip_pixels(image, 33, squash), err_msg=kind)
            others |= {kind} if (pixels != theirs.resize(image)).any() else set()
    assert others >= {"palette", "GIF", "1 bit", "RGBA"} and ("one pixel wide" in others) == (not squash)
    assert Preprocessing.from_json(json.loads(json.dumps(ours.to_json()))) == ours
    assert (
        "library" not in theirs.to_json()
        and ours.hash() != theirs.hash()
        and ours.pixel_view.key != theirs.pixel_view.key
    )
    refused("library", Preprocessing, exact_size=(2, 2), library="timm")


def test_a_crop_larger_than_the_image_is_padded_as_in_torchvision():
    image = Image.new("RGB", (4, 4), "white")
    pixels = {library: Preprocessing(exact_size=(4, 4), crop_size=(7, 7), library=library).resize(image)[..., 0]
              for library in ("transformers", "open_clip")}  # fmt: skip
    assert np.argwhere(pixels["open_clip"])[[0, -1]].tolist() == [[1, 1], [4, 4]]
    assert np.argwhere(pixels["transformers"])[[0, -1]].tolist() == [[2, 2], [5, 5]]


def test_older_spellings_in_a_processor_file_have_the_same_meaning():
    old = {"feature_extractor_type": "CLIPFeatureExtractor", "size": 224, "crop_size": 224, "resample": 3}
    new = {"image_processor_type": "CLIPImageProcessorFast", "size": {"shortest_edge": 224, "longest_edge": None}}
    nested = {"image_processor": {"image_processor_type": "CLIPImageProcessor"}, "processor_class": "CLIPProcessor"}
    assert Preprocessing.from_huggingface(old) == Preprocessing.from_huggingface(new)
    assert Preprocessing.from_huggingface(old) == Preprocessing.from_huggingface(nested)
    assert Preprocessing.from_huggingface(old) == Preprocessing.from_huggingface(PROCESSORS["clip 224"].to_dict())


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"image_processor_type": "DonutImageProcessor"}, "image_processor_type"),
        ({"do_pad": True}, "steps"),
        ({"do_resize": False}, "do_resize"),
        ({"resample": 9}, "resample"),
        ({"size": {"longest_edge": 300}}, "size"),
        ({"size": {"shortest_edge": 0}}, "size"),
        ({"size": {"shortest_edge": "224"}}, "size"),
        ({"do_center_crop": False}, "crop_size"),
        ({"image_mean": [0.5, 0.5]}, "mean and std"),
        ({"image_mean": "half"}, "mean and std"),
        ({"image_std": [0.5, 0.0, 0.5]}, "mean and std"),
        ({"rescale_factor": None, "do_rescale": True, "image_std": [float("nan")] * 3}, "mean and std"),
    ],
)
def test_a_processor_that_cannot_be_followed_is_refused(changes, field):
    config = {"image_processor_type": "CLIPImageProcessor", **changes}
    refused(rf"tower/config\.json: {field}: found", Preprocessing.from_huggingface, config, "tower/config.json")


def test_preprocessings_are_unchanged_by_json_and_have_distinct_hashes():
    preprocessings = [Preprocessing.from_huggingface(each.to_dict()) for each in PROCESSORS.values()]
    again = [Preprocessing.from_json(json.loads(json.dumps(each.to_json()))) for each in preprocessings]
    hashes = [each.hash() for each in preprocessings]
    assert again == preprocessings and [each.hash() for each in again] == hashes and len(set(hashes)) == len(hashes)
    whole = Preprocessing.from_json({"exact_size": [3, 3], "rescale_factor": 1, "mean": [0, 0, 0], "std": [1, 2, 1.5]})
    assert [type(each) for each in (whole.rescale_factor, *whole.mean, *whole.std)] == [float] * 7


def test_values_of_another_kind_and_unknown_keys_are_refused():
    for wrong in ({"exact_size": 3}, {"mean": 0.5}, {"exact_size": [3.0, 3]}, {"rescale_factor": True}):
        refused(r"model\.json", Preprocessing.from_json, {"exact_size": [3, 3], **wrong}, "model.json")
    unknown = r"model\.json: preprocessing: found \['colour'\]"
    refused(unknown, Preprocessing.from_json, {"exact_size": [3, 3], "colour": "sepia"}, "model.json")


@pytest.mark.parametrize("name", ["clip 224", "dinov2 256 to 224", "siglip 45 x 91"])
def test_another_image_size_keeps_the_proportions(name):
    preprocessing = Preprocessing.from_huggingface(PROCESSORS[name].to_dict()).with_image_size(448)
    assert preprocessing.image_size == (448, 448)
    assert preprocessing.shortest_edge == {"clip 224": 448, "dinov2 256 to 224": 512}.get(name)


def test_the_preprocessing_is_described_in_readable_steps():
    summary = Preprocessing.from_huggingface(PROCESSORS["dinov2 256 to 224"].to_dict()).describe()
    assert summary.startswith("shortest edge to 256 (bicubic), centre crop 224 x 224, normalised by mean (0.485, 0.456")
