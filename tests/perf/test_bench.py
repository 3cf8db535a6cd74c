"""The throughput script `perf/bench.py`: results agree with the work that was done, and bad sizes are refused."""

import importlib
import json
from dataclasses import replace

import pytest

from rococo_jax.models.flops import image_flops
from tests.support.paths import CHECKOUT
from tests.support.scripts import run_script
from tests.support.tiny import tiny_encoder

pytestmark = pytest.mark.quick  # the rates do not matter, only what was compiled


@pytest.fixture(scope="module")
def bench():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(CHECKOUT / "perf")
        yield importlib.import_module("bench")


@pytest.fixture(scope="module")
def encoder():
    return tiny_encoder(devices=2)


def sizes(bench):
    return bench.Sizes(images=3, captions=4, ranks=(20, 50), pairs=16, batch=4)


NAMES = ["images", "text", "influence", "ranks", "loss", pytest.param("train", marks=pytest.mark.thorough)]


@pytest.mark.parametrize("name", NAMES)
def test_measured_numbers_match_the_amount_of_work(bench, encoder, name):
    result = bench.bench(encoder, name, sizes(bench), seconds=0.0)
    items = {"images": 3, "text": 4, "influence": 4, "ranks": 1000, "loss": 16, "train": 4}[name]
    assert result["items"] == items and result["rounds"] == 3
    assert result["items_per_second"] == pytest.approx(items / result["seconds"])
    operations = result["flops_per_second"] * result["seconds"]
    if name == "images":
        assert operations == pytest.approx(3 * image_flops(encoder.spec))
    if name == "ranks":
        assert operations == pytest.approx(2 * 20 * 50 * 512)
    if name == "loss":
        assert operations == pytest.approx(8 * 16 * 16 * 512)
    if name in ("loss", "train"):
        assert result["memory_bytes_per_device"] > 0
    assert result["share_of_peak"] is None and result["share_of_product"] > 0, "a CPU has no published peak"


@pytest.mark.thorough
def test_texts_are_trained_at_the_fixed_length_of_a_tower(bench, encoder):
    text = replace(encoder.spec.text, attention="full", context_length=40)
    other = tiny_encoder(devices=2, spec=replace(encoder.spec, text=text))
    other.tokenizer.spec = replace(other.tokenizer.spec, context_length=40, fixed_length=40)
    assert bench.bench(other, "train", sizes(bench), seconds=0.0)["text_length"] == 40


def test_the_script_prints_json(monkeypatch, capsys):
    run_script(monkeypatch, CHECKOUT / "perf/bench.py", "--what", "ranks", "--ranks", "8x16", "--seconds", "0")
    assert json.loads(capsys.readouterr().out)["measurements"]["ranks"]["gallery"] == 16


@pytest.mark.parametrize(
    "options", [["--what", "speed"], ["--ranks", "many"], ["--ranks", "0x3"], ["--ranks", "9x3"], ["--batch", "few"]]
)
def test_bad_options_are_refused(options, monkeypatch, capsys):
    with pytest.raises(SystemExit) as ended:
        run_script(monkeypatch, CHECKOUT / "perf/bench.py", *options)
    assert ended.value.code == 2 and f"{options[0]}: " in capsys.readouterr().err
