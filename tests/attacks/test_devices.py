"""`rococo attack` writes the same bytes on any number of devices; thorough: with programs as users compile them."""

import json
import os

import pytest

from rococo_jax import read_results
from rococo_jax.cli.main import main
from tests.attacks.worlds import words, write_files
from tests.support.devices import all_devices_are

THOROUGH = bool(os.environ.get("ROCOCO_THOROUGH"))
pytestmark = [pytest.mark.slow, *[pytest.mark.quick] * (not THOROUGH)]


@pytest.fixture(scope="module")
def both(paths, tmp_path_factory):
    """The folders of one attack on words and pixels, by number of devices, with a batch size each."""
    world = write_files(tmp_path_factory.mktemp("world"), paths)
    options, folders = "--words 1 --pixels 1/255,6/255 --steps 2 --loss margin --batch-size".split(), {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rococo_jax.attacks.pixel_attack._CPU_IMAGES", 2)
        for count, batch in ((1, 2), (2, 3), (8, 5)) if THOROUGH else ((1, 2), (8, 5)):
            folders[count] = world / f"on_{count}"
            with all_devices_are(count):
                assert main([*words(world, "demo:plain", f"on_{count}"), *options, str(batch)]) == 0
    return folders


def test_results_have_the_same_bytes_on_any_number_of_devices_and_for_any_batch(both):
    names = sorted(path.relative_to(both[1]) for path in both[1].rglob("*") if path.is_file())
    assert {path.suffix for path in names} == {".json", ".parquet", ".png"}
    for count in both:
        assert [name for name in names if (both[count] / name).read_bytes() != (both[1] / name).read_bytes()] == []


def test_evaluate_computes_the_same_results_for_attacked_images(both, tmp_path):
    results = json.loads((both[1] / "attack.json").read_text())["results"]["pixels"]
    attacked, out = both[1] / "attacked_images", tmp_path / "evaluated_pixels"
    command = f"evaluate demo:plain --images {attacked}/images --annotations {attacked}/annotations --out {out}"
    assert main([*command.split(), *"--mixed-galleries none --no-report".split()]) == 0
    frame = read_results(out)
    rows = frame[(frame.metric == "r1") & (frame.task == "image_to_text")].set_index("variant").value
    assert rows["clean"] == pytest.approx(results["values"]["r1_6/255"]) and rows["clean"] < results["values"]["r1"]
    assert results["values"]["r1_6/255"] <= results["values"]["r1_1/255"]
