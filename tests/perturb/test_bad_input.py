"""Bad input about altered images: commands refuse it in one line, exit code 2 and no result; Python by InputError."""

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from rococo_jax.benchmarks.rococo.published_mixing import make_plan
from rococo_jax.perturb.images.corruptions import check_images, check_severity
from rococo_jax.perturb.images.mixing import Mixing, apply_mixing
from tests.support.refusals import refused
from tests.support.world import noise, write_pictures


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """Two small images and their captions, and the same with one that only looks like an image or is cut short."""
    for folder in ("images", "broken", "cut"):
        write_pictures(tmp_path / folder, ("a.png", "b.png"), noise(36, 40))
    (tmp_path / "broken" / "b.png").write_text("not an image")
    (tmp_path / "cut" / "a.png").write_bytes((tmp_path / "images" / "a.png").read_bytes()[:60])
    captions = [{"image": name, "caption": ["red"]} for name in ("a.png", "b.png")]
    (tmp_path / "captions.json").write_text(json.dumps(captions))
    (tmp_path / "one.json").write_text(json.dumps(captions[:1]))
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


MIX = "mix-images --images images --captions captions.json --out out"
CORRUPT = "corrupt-images --images images --corruption contrast --severity 1 --out out"
EVALUATE = "evaluate MODEL --images images --annotations . --out out"


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (f"{MIX} --ratio 1.2", "ratio: found 1.2; wanted a share of own content from 0 to 1"),
        (f"{MIX} --ratio=-0.1", "ratio: found -0.1"),
        (f"{MIX} --ratio nan", "ratio: found nan"),
        (f"{MIX} --seed -1", "--seed: number: found -1; wanted a whole number, 0 or more"),
        (MIX.replace("captions.json", "one.json"), "one.json: images: found 1; wanted at least two images to mix"),
        (MIX.replace("captions.json", "none.json"), "none.json"),
        (MIX.replace("--images images", "--images empty"), "json: images: found none of its 2 images in empty"),
        (MIX.replace("--images images", "--images broken"), "b.png"),
        (MIX.replace("--images images", "--images cut"), "a.png"),
        (f"{CORRUPT} --corruption gausian_noise", "did you mean gaussian_noise?"),
        (f"{CORRUPT} --severity 0", "severity: found 0; wanted a whole number from 1 to 5"),
        (f"{CORRUPT} --severity 6", "severity: found 6; wanted a whole number from 1 to 5"),
        (f"{CORRUPT} --size 8", "size: found 8"),
        (f"{CORRUPT} --seed -1", "seed: number: found -1"),
        (f"{CORRUPT} --seed 4294967296", "corruption: seed: found 4294967296; wanted a whole number"),
        (CORRUPT.replace("--out out", "--out images/out"), "wanted a folder outside the images"),
        (CORRUPT.replace("--images images", "--images nowhere"), "found nothing there; wanted a folder of images"),
        (CORRUPT.replace("--images images", "--images empty"), "no image files"),
        (CORRUPT.replace("--images images", "--images captions.json"), "found a file; wanted a folder of images"),
        (CORRUPT.replace("--images images", "--images broken"), "b.png"),
        (CORRUPT.replace("--images images", "--images cut"), "a.png"),
        (f"{EVALUATE} --mixed-galleries mix_1.2", "mix_1.2"),
        (f"{EVALUATE} --mixed-galleries blend_0.9", "blend_0.9"),
        (f"{EVALUATE} --corruptions fogg", "did you mean fog?"),
        (f"{EVALUATE} --corruptions fog --severities 0", "severity: found 0"),
        (f"{EVALUATE} --corruptions fog --severities 1,6", "severity: found 6"),
        (f"{EVALUATE} --corruptions fog --severities high", "--severities"),
        (f"{EVALUATE} --corrupted-benchmarks rococo", "corrupted_benchmarks: found rococo, but no corruptions"),
    ],
)
def test_commands_refuse_bad_input_in_one_line_with_code_2_and_write_no_result(folder, refusal, command, expected):
    error = refusal(*command.split())
    (line,) = [line for line in error.splitlines() if line.startswith("rococo:")]
    assert expected in line and "Traceback" not in error
    written = {path.name for path in (folder / "out").rglob("*")}
    assert not written & {"manifest.json", "results.json"}
    # What is wrong with the arguments is known before anything is written.
    assert not written or "broken" in command or "cut" in command or command.startswith("evaluate")


@pytest.mark.parametrize("ratio", [-0.01, 1.01, float("nan"), float("inf")])
def test_a_ratio_outside_zero_to_one_is_refused_everywhere(ratio):
    images, nobody = jnp.zeros((2, 4, 4, 3), jnp.uint8), jnp.zeros((2, 4), jnp.int32)
    for attempt in (
        lambda: Mixing(ratio=ratio),
        lambda: make_plan(["a", "b"], ratio=ratio),
        lambda: apply_mixing(images, jnp.array([1, 0]), ratio, nobody, "mix"),
    ):
        refused(f"ratio: found {ratio}; wanted a share of own content from 0 to 1", attempt)


@pytest.mark.parametrize(
    ("images", "found"),
    [
        ([np.zeros((40, 40, 3), np.uint8)] * 2, "found list"),
        (np.zeros((40, 40, 3), np.uint8), r"found uint8 of shape \(40, 40, 3\)"),
        (np.zeros((1, 40, 40, 1), np.uint8), r"found uint8 of shape \(1, 40, 40, 1\)"),
        (np.zeros((1, 40, 40, 3), np.float32), "found float32"),
        (np.zeros((1, 40, 31, 3), np.uint8), "40 x 31; wanted at least 32"),
    ],
)
def test_only_batches_of_rgb_bytes_can_be_corrupted(images, found):
    refused(found, check_images, images)


@pytest.mark.parametrize("severity", [0, 6, -1, True, 2.0, "3"])
def test_a_severity_that_is_not_a_whole_number_from_one_to_five_is_refused(severity):
    refused("severity: found", check_severity, severity)
