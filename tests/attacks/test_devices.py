"""`rococo attack` writes the same bytes on any number of devices, with programs as users compile them."""

import json
import os
import subprocess
import sys

import pytest

from rococo_jax import read_results
from rococo_jax.cli.main import main
from tests.attacks.worlds import words, write_files
from tests.support.paths import CHECKOUT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def both(paths, tmp_path_factory):
    """The folders of one attack on words and pixels, by number of devices, with a batch size each."""
    world = write_files(tmp_path_factory.mktemp("world"), paths)
    options, folders = "--words 1 --pixels 1/255,6/255 --steps 2 --loss margin --batch-size".split(), {}
    for count, batch in ((1, 2), (2, 3), (8, 5)) if os.environ.get("ROCOCO_THOROUGH") else ((1, 2), (8, 5)):
        folders[count] = world / f"on_{count}"
        command = [*words(world, "demo:plain", f"on_{count}"), *options, str(batch)]
        if count == 8:
            assert main(command) == 0
            continue
        flags = f"--xla_force_host_platform_device_count={count} --xla_cpu_parallel_codegen_split_count=1"
        environment = {**os.environ, "XLA_FLAGS": flags}
        module = [sys.executable, "-m", "rococo_jax"]
        subprocess.run([*module, *command], check=True, cwd=CHECKOUT, env=environment, capture_output=True)
    return folders


def test_results_have_the_same_bytes_on_any_number_of_devices_and_for_any_batch(both):
    names = sorted(path.relative_to(both[1]) for path in both[1].rglob("*") if path.is_file())
    assert {path.suffix for path in names} == {".json", ".parquet", ".png"}
    for count in both:
        assert [name for name in names if (both[count] / name).read_bytes() != (both[1] / name).read_bytes()] == []


def test_evaluate_counts_the_attacked_images_alike(both, tmp_path):
    results = json.loads((both[1] / "attack.json").read_text())["results"]["pixels"]
    attacked, out = both[1] / "attacked_images", tmp_path / "evaluated_pixels"
    command = f"evaluate demo:plain --images {attacked}/images --annotations {attacked}/annotations --out {out}"
    assert main([*command.split(), *"--mixed-galleries none --no-report".split()]) == 0
    frame = read_results(out)
    rows = frame[(frame.metric == "r1") & (frame.task == "image_to_text")].set_index("variant").value
    assert rows["clean"] == pytest.approx(results["values"]["r1_6/255"]) and rows["clean"] < results["values"]["r1"]
    assert results["values"]["r1_6/255"] <= results["values"]["r1_1/255"]
