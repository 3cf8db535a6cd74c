"""Images become the pixels that the reference processors make of them, and bad image files are named."""

import functools
import io
import json
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image, ImageOps
from transformers.models.bit.image_processing_pil_bit import BitImageProcessorPil
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from rococo_jax.data.images import FileImages, run_tasks
from rococo_jax.data.pictures import open_image
from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.errors import InputError
from tests.support.refusals import refused

# The 8-bit half must agree exactly, so what is left is the rounding of three float32 operations on numbers below 8.
FLOAT32_ROUNDING = 2e-6
IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
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
    "clip lanczos, not normalised": CLIPImageProcessorPil(
        size={"shortest_edge": 50}, crop_size=50, resample=1, do_normalize=False
    ),
    "clip not rescaled": CLIPImageProcessorPil(
        size={"shortest_edge": 50},
        crop_size=50,
        do_rescale=False,
        image_mean=[99.0, 100.0, 101.0],
        image_std=[50.0] * 3,
    ),
}


def reference_pixels(processor, image: Image.Image) -> np.ndarray:
    return processor(image, return_tensors="np")["pixel_values"].transpose(0, 2, 3, 1)


@functools.cache
def normalising(preprocessing: Preprocessing):
    """One program for all images of a processor."""
    return jax.jit(preprocessing.normalise)


def our_pixels(processor, image: Image.Image) -> np.ndarray:
    preprocessing = Preprocessing.from_huggingface(processor.to_dict())
    return np.asarray(normalising(preprocessing)(jnp.asarray(preprocessing.resize(image))[None]))


def assert_equal_to_reference(processor, image: Image.Image) -> None:
    twin = Image.fromarray((np.asarray(image) // 257).astype(np.uint8)) if image.mode == "I;16" else image
    ours, theirs = our_pixels(processor, image), reference_pixels(processor, twin)
    assert ours.shape == theirs.shape and ours.dtype == theirs.dtype == np.float32
    scale = max(1.0, np.abs(theirs).max() / 8)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=FLOAT32_ROUNDING * scale)


def saved_and_opened(image: Image.Image, file_format: str, **settings) -> Image.Image:
    file = io.BytesIO()
    image.save(file, file_format, **settings)
    return Image.open(io.BytesIO(file.getvalue()))


def drawing(height: int, width: int, channels: int = 3, seed: int = 0) -> np.ndarray:
    """Smooth colours with some noise, so that resizing has both edges and gradients to get wrong."""
    generator = np.random.default_rng(seed)
    rows, columns = np.mgrid[0:height, 0:width] / max(height, width)
    waves = [np.sin(generator.uniform(2, 30) * rows + generator.uniform(2, 30) * columns) for _ in range(channels)]
    noisy = 127 + 100 * np.stack(waves, -1) + generator.normal(0, 20, (height, width, channels))
    return np.clip(noisy, 0, 255).astype(np.uint8)


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


@pytest.mark.parametrize("name", [name for name in PROCESSORS if name != "clip 336"])
def test_every_kind_of_image_equals_the_reference_processor(name):
    for kind, image in odd_images().items():
        try:
            assert_equal_to_reference(PROCESSORS[name], image)
        except AssertionError as error:
            raise AssertionError(f"{kind}: {error}") from None


@pytest.mark.real_data
@pytest.mark.parametrize("name", ["clip 336", "siglip 224", "dinov2 256 to 224"])
def test_real_photographs_equal_the_reference_processor(name, real_data):
    paths = sorted((real_data / "coco/originals/val2014").glob("*.jpg"))
    assert len(paths) == 48
    for path in paths[::4]:
        assert_equal_to_reference(PROCESSORS[name], open_image(path))


@pytest.mark.real_data
def test_the_preprocessor_file_of_a_real_tower_is_read(real_data):
    config = json.loads((real_data / "towers/dinov2_vits14/preprocessor_config.json").read_text())
    preprocessing = Preprocessing.from_huggingface(config)
    assert preprocessing.image_size == (224, 224) and preprocessing.mean == (0.485, 0.456, 0.406)


def test_the_exif_orientation_is_not_applied(tmp_path):
    rotated = Image.Exif()
    rotated[0x0112] = 6
    Image.fromarray(drawing(20, 30)).save(tmp_path / "rotated.jpg", exif=rotated)
    image = open_image(tmp_path / "rotated.jpg")
    assert image.size == (30, 20) and ImageOps.exif_transpose(image).size == (20, 30)


def open_clip_pixels(image: Image.Image, size: int, squash: bool) -> np.ndarray:
    """`Resize`, `CenterCrop` (`F.pad`, `F.crop`) and `convert("RGB")` of open_clip's `image_transform`."""
    short, long = sorted(image.size)
    other = int(size * long / short)
    wide = (size, size) if squash else (size, other) if image.width <= image.height else (other, size)
    image = image.resize(wide, Image.Resampling.BICUBIC)
    left, top = (round((side - size) / 2.0) for side in image.size)
    return np.asarray(image.crop((left, top, left + size, top + size)).convert("RGB"))


@pytest.mark.parametrize("squash", [False, True])
def test_the_rule_of_open_clip_resizes_in_the_own_mode_and_rounds_to_even(squash):
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
    assert "library" not in theirs.to_json() and ours.hash() != theirs.hash() and ours.view.key != theirs.view.key
    refused("library", Preprocessing, exact_size=(2, 2), library="timm")


def test_a_crop_larger_than_the_image_is_padded_after_it_by_torchvision():
    image = Image.new("RGB", (4, 4), "white")
    pixels = {library: Preprocessing(exact_size=(4, 4), crop_size=(7, 7), library=library).resize(image)[..., 0]
              for library in ("transformers", "open_clip")}  # fmt: skip
    assert np.argwhere(pixels["open_clip"])[[0, -1]].tolist() == [[1, 1], [4, 4]]
    assert np.argwhere(pixels["transformers"])[[0, -1]].tolist() == [[2, 2], [5, 5]]


def test_transparency_is_composited_onto_white():
    clear = Image.new("RGBA", (4, 4), (10, 20, 30, 0))
    assert Preprocessing(exact_size=(2, 2)).resize(clear).tolist() == [[[255] * 3] * 2] * 2


def test_older_spellings_of_a_processor_file_mean_the_same():
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
    with pytest.raises(InputError) as caught:
        Preprocessing.from_huggingface(config, "tower/preprocessor_config.json")
    assert caught.value.field == field and caught.value.source == "tower/preprocessor_config.json"


@pytest.mark.parametrize("name", PROCESSORS)
def test_preprocessing_survives_json(name):
    preprocessing = Preprocessing.from_huggingface(PROCESSORS[name].to_dict())
    again = Preprocessing.from_json(json.loads(json.dumps(preprocessing.to_json())))
    assert again == preprocessing and again.hash() == preprocessing.hash()


def test_the_hash_tells_preprocessings_apart():
    hashes = {Preprocessing.from_huggingface(each.to_dict()).hash() for each in PROCESSORS.values()}
    assert len(hashes) == len(PROCESSORS)


def test_whole_numbers_are_read_as_numbers():
    read = Preprocessing.from_json({"exact_size": [3, 3], "rescale_factor": 1, "mean": [0, 0, 0], "std": [1, 2, 1.5]})
    assert [type(each) for each in (read.rescale_factor, *read.mean, *read.std)] == [float] * 7


@pytest.mark.parametrize(
    "value",
    [
        {"exact_size": 3},
        {"exact_size": [3, 3], "mean": 0.5},
        {"exact_size": [3.0, 3]},
        {"exact_size": [3, 3], "rescale_factor": True},
    ],
)
def test_values_of_another_kind_are_refused(value):
    refused(r"model\.json", Preprocessing.from_json, value, "model.json")


def test_unknown_keys_are_refused():
    with pytest.raises(InputError, match=r"model\.json: preprocessing: found \['colour'\]"):
        Preprocessing.from_json({"exact_size": [3, 3], "colour": "sepia"}, "model.json")


@pytest.mark.parametrize("name", ["clip 224", "dinov2 256 to 224", "siglip 45 x 91"])
def test_another_image_size_keeps_the_proportions(name):
    preprocessing = Preprocessing.from_huggingface(PROCESSORS[name].to_dict()).with_image_size(448)
    assert preprocessing.image_size == (448, 448)
    assert preprocessing.shortest_edge == {"clip 224": 448, "dinov2 256 to 224": 512}.get(name)


def test_a_person_can_read_the_steps():
    said = Preprocessing.from_huggingface(PROCESSORS["dinov2 256 to 224"].to_dict()).describe()
    assert said.startswith("shortest edge to 256 (bicubic), centre crop 224 x 224, normalised by mean (0.485, 0.456")


def files_in(folder: Path, count: int) -> FileImages:
    """Pictures of different sizes."""
    names = tuple(f"{number:02}.png" for number in range(count))
    for number, name in enumerate(names):
        Image.fromarray(drawing(20 + number, 31, seed=number)).save(folder / name)
    return FileImages(names, tuple(folder / name for name in names))


@pytest.mark.parametrize("workers", [1, 2, 7])
@pytest.mark.parametrize("ahead", [1, 3, 11, 64])
def test_every_image_comes_in_order_whatever_is_loaded_ahead_and_the_workers(tmp_path, workers, ahead):
    resize, files = Preprocessing(shortest_edge=16, crop_size=(16, 16)).resize, files_in(tmp_path, 11)
    loaded = list(run_tasks(files.tasks(range(11), resize), ahead=ahead, workers=workers))
    assert all(image.dtype == np.uint8 for image in loaded)
    np.testing.assert_array_equal(loaded, [resize(open_image(path)) for path in files.paths])
    assert list(files.read([])) == []


def test_loading_runs_ahead_by_no_more_than_asked(tmp_path):
    files, opened, lock = files_in(tmp_path, 1), [], threading.Lock()

    def counted(image):
        with lock:
            opened.append(image)
        return image

    images = run_tasks(files.tasks([0] * 1000, counted), ahead=20, workers=4)
    next(images)
    assert len(opened) <= 20
    for _ in range(10):
        next(images)
    assert len(opened) <= 31
    images.close()
    assert len(opened) <= 31


def test_the_first_bad_file_in_order_is_named(tmp_path):
    files = files_in(tmp_path, 11)
    for number in (9, 6):
        files.paths[number].write_bytes(files.paths[number].read_bytes()[:60])
    images = files.read(range(11), Preprocessing(exact_size=(4, 4)).resize)
    assert len([next(images) for _ in range(6)]) == 6
    with pytest.raises(InputError, match=r"06\.png"):
        next(images)


def damaged_files(folder: Path) -> dict[str, Path]:
    """One file for each way in which an image file is no image."""
    whole = {kind: io.BytesIO() for kind in ("JPEG", "PNG", "GIF", "WEBP", "TIFF", "BMP")}
    for kind, file in whole.items():
        Image.fromarray(drawing(64, 64)).save(file, kind)
    contents = {f"cut short.{kind}": file.getvalue()[: len(file.getvalue()) // 2] for kind, file in whole.items()}
    contents |= {
        "header only.jpg": whole["JPEG"].getvalue()[:30],
        "empty.jpg": b"",
        "text.jpg": b"a photograph of a cat",
    }
    png = bytearray(whole["PNG"].getvalue())
    png[60:80] = b"\x00" * 20
    contents["damaged.png"] = bytes(png)
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    (folder / "folder.jpg").mkdir()
    return {name: folder / name for name in (*contents, "folder.jpg", "missing.jpg")}


def test_every_file_that_is_no_whole_image_is_named(tmp_path):
    for name, path in damaged_files(tmp_path).items():
        with pytest.raises(InputError, match="image: found") as caught:
            open_image(path)
        assert caught.value.source == str(path), name


def test_an_image_of_zero_size_is_refused(tmp_path):
    (tmp_path / "empty.ppm").write_bytes(b"P6 0 5 255 ")
    with pytest.raises(InputError, match=r"empty\.ppm"):
        list(FileImages(("a",), (tmp_path / "empty.ppm",)).read([0], Preprocessing(exact_size=(4, 4)).resize))
    with pytest.raises(InputError, match="0 x 5"):
        Preprocessing(exact_size=(4, 4)).resize(Image.new("RGB", (0, 5)))


def test_a_ribbon_that_would_not_fit_in_memory_is_refused_by_name(tmp_path):
    Image.new("L", (1, 60000)).save(tmp_path / "ribbon.png")
    with pytest.raises(InputError, match=r"ribbon\.png: aspect ratio"):
        whole = Preprocessing(shortest_edge=224, crop_size=(224, 224)).resize
        list(FileImages(("a",), (tmp_path / "ribbon.png",)).read([0], whole))


def test_an_image_too_large_to_decode_safely_is_refused(tmp_path, monkeypatch):
    Image.new("L", (100, 100)).save(tmp_path / "bomb.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    refused(r"bomb\.png", open_image, tmp_path / "bomb.png")


def test_rows_of_files_are_their_own_pictures_in_any_order(tmp_path):
    names = tuple(f"{shade}.png" for shade in (10, 60, 110, 160))
    for name in names:
        Image.new("RGB", (4, 3), (int(name[:-4]),) * 3).save(tmp_path / name)
    images = FileImages(names, tuple(tmp_path / name for name in names))
    for rows in ([0, 1, 2, 3], [2, 0, 3, 3]):
        expected = [int(names[row][:-4]) for row in rows]
        assert [np.asarray(image).max() for image in images.read(rows)] == expected
        assert list(images.read(rows, lambda image: image.getpixel((0, 0))[0])) == expected
    assert np.asarray(images.thumbnail(1)).max() == 60
