"""Run all measurements by one call: skip those with a result, and repeat those that failed."""

import json
import re
import subprocess
import sys

import pytest

from tests.support.paths import CHECKOUT

SCRIPT = [sys.executable, str(CHECKOUT / "perf" / "run_all.py")]


@pytest.mark.slow
def test_measurements_with_a_result_are_not_repeated(tmp_path):
    out = tmp_path / "toy.json"
    out.write_text(json.dumps({"mixing": {"figures": 1}, "loss_65536": {"failed": "out of memory"}}))
    options = ["--device", "accelerator", "--toy", "--out", str(out), "--only", "mixing,loss_65536"]
    process = subprocess.run([*SCRIPT, *options], capture_output=True, text=True, check=True)
    results = json.loads(out.read_text())
    assert results["mixing"] == {"figures": 1}
    assert results["loss_65536"]["figures"]["strategies"]["all_gather"]["seconds"] > 0
    assert "2 of 10 measurements" in process.stdout


def test_every_measurement_names_a_script_that_exists():
    for device in ("cpu", "accelerator"):
        names = subprocess.run([*SCRIPT, "--device", device, "--list"], capture_output=True, text=True, check=True)
        assert len(names.stdout.split()) >= 10
    text = (CHECKOUT / "perf" / "run_all.py").read_text()
    scripts = set(re.findall(r"\"(\w+\.py)[ \"]", text))
    assert len(scripts) >= 6 and all((CHECKOUT / "perf" / name).is_file() for name in scripts)


def test_a_measurement_is_left_for_the_next_call_when_time_is_short(tmp_path):
    out = tmp_path / "toy.json"
    options = ["--device", "accelerator", "--toy", "--out", str(out), "--minutes", "0.1", "--only", "loss_65536"]
    process = subprocess.run([*SCRIPT, *options], capture_output=True, text=True, check=True)
    assert "loss_65536: left for the next call" in process.stdout and not out.exists()
