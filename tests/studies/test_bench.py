"""`rococo bench` and the one-call script for accelerators: figures that agree with what was done, and bad sizes."""

import json
import subprocess
import sys
from dataclasses import replace

import jax
import pytest

from rococo_jax.cli.main import main
from rococo_jax.models.flops import image_flops
from rococo_jax.studies.bench import MEASUREMENTS, Sizes, bench
from tests.support.paths import CHECKOUT
from tests.support.tiny import tiny_encoder

pytestmark = pytest.mark.quick  # figures of whatever was compiled

SIZES = Sizes(images=3, captions=4, ranks=(20, 50), pairs=16, batch=4)


@pytest.fixture(scope="module")
def encoder():
    return tiny_encoder(devices=2)


@pytest.mark.parametrize(
    "what", [pytest.param(each, marks=pytest.mark.thorough) if each == "train" else each for each in MEASUREMENTS]
)
def test_figures_agree_with_what_was_done(encoder, what):
    figures = bench(encoder, what, SIZES, seconds=0.0)
    wanted = {"images": 3, "text": 4, "influence": 4, "ranks": 1000, "loss": 16, "train": 4}[what]
    assert figures["items"] == wanted and figures["rounds"] == 3
    assert figures["items_per_second"] == pytest.approx(wanted / figures["seconds"])
    operations = figures["flops_per_second"] * figures["seconds"]
    if what == "images":
        assert operations == pytest.approx(3 * image_flops(encoder.spec))
    if what == "ranks":
        assert operations == pytest.approx(2 * 20 * 50 * 512)
    if what == "loss":
        assert operations == pytest.approx(8 * 16 * 16 * 512)
    if what in ("loss", "train"):
        assert figures["memory_bytes_per_device"] > 0
    assert figures["share_of_peak"] is None and figures["share_of_product"] > 0, "a CPU has no published peak"


@pytest.mark.thorough
def test_texts_are_trained_at_the_one_length_that_a_tower_takes(encoder):
    text = replace(encoder.spec.text, attention="full", context_length=40)
    other = tiny_encoder(devices=2, spec=replace(encoder.spec, text=text))
    other.tokenizer.spec = replace(other.tokenizer.spec, context_length=40, fixed_length=40)
    assert bench(other, "train", SIZES, seconds=0.0)["text_length"] == 40


def test_the_command_prints_and_writes_json(tmp_path, capsys):
    out = tmp_path / "bench.json"
    sizes = ["--ranks", "8x16", "--seconds", "0", "--out", str(out)]
    assert main(["bench", "--what", "ranks", *sizes]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads(out.read_text()) and printed["devices"] == jax.device_count()
    assert printed["measurements"]["ranks"]["gallery"] == 16


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--what", "speed"], "--what: measurement: found 'speed'; wanted some of images, text"),
        (["--ranks", "many"], "--ranks: numbers: found many; wanted NxM"),
        (["--ranks", "0x3"], "--ranks: numbers: found 0x3; wanted NxM, whole numbers, 1 or more"),
        (["--ranks", "9x3"], "wanted no fewer gallery items than queries"),
        (["--batch", "0"], "--batch: number: found 0; wanted a whole number, 1 or more"),
        (["--seconds", "nan"], "--seconds"),
        (["no/such/model"], "no/such/model"),
    ],
)
def test_bad_options_are_one_line(options, said, refusal):
    lines = refusal("bench", *options).splitlines()
    assert len(lines) == 1 and said in lines[0]


def test_the_accelerator_script_does_what_is_left(tmp_path):
    """At toy size: a line that is done is not run again, one that failed is."""
    out = tmp_path / "toy.json"
    out.write_text(json.dumps({"mixing": {"kept": 1}, "loss_65536": {"error": "out of memory"}}))
    script = [sys.executable, str(CHECKOUT / "perf" / "accelerator.py"), "--toy", "--out", str(out)]
    ended = subprocess.run([*script, "--only", "mixing,loss_65536"], capture_output=True, text=True, check=True)
    found = json.loads(out.read_text())
    assert found["mixing"] == {"kept": 1} and found["loss_65536"]["strategies"]["ring"]["seconds"] > 0
    assert "2 of 10 lines" in ended.stdout
