"""`rococo demo`: altered captions, mixed galleries and their control, from drawing to report, without a network."""

import json
import subprocess
import sys

import pytest

from tests.support.programs import one_device

pytestmark = [pytest.mark.slow, pytest.mark.quick]  # figures stand well apart


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo")
    command = [sys.executable, "-m", "rococo_jax", "demo", "--scenes", "12", "--seed", "3", "--out", str(out)]
    done = subprocess.run(command, env=one_device(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    paths = (out / "12-scenes-seed-3" / "paper").glob("*/results.json")
    return out, {path.parent.name: json.loads(path.read_text(encoding="utf-8")) for path in paths}


def test_the_demo_asks_for_mixed_galleries_of_three_seeds_beside_the_control(demo):
    results = demo[1]["plain"]
    found = results["tasks"]["text_to_image"]
    assert list(found) == ["clean", "mix_0.9", "patch_0.9", "control"]
    sizes = results["sizes"]["text_to_image"]
    for variant in ("mix_0.9", "patch_0.9"):
        assert {"r1", "r1_std", "fr1", "fr1_std", "drop"} <= set(found[variant])
        assert sizes[variant]["seeds"] == [1, 10, 100] and sizes[variant]["gallery"] == 2 * 12
    assert sizes["clean"]["gallery"] == 12 and sizes["control"]["gallery"] == 2 * 12


def test_the_demo_asks_all_three_questions(demo):
    results = demo[1]["plain"]
    assert results["kinds"]["choices"] == "choice" and results["kinds"]["classes"] == "classify"
    assert set(results["tasks"]["choices"]) == {"same_concept", "danger", "mean"}
    assert results["sizes"]["classes"]["clean"] | {"classes": 0} == {"images": 12, "classes": 0, "templates": 5}
    page = (demo[0] / "report.html").read_text(encoding="utf-8")
    assert "Reliability" in page and "Which class does the image show" in page


def test_the_defended_model_is_fooled_less_by_mixed_pictures_than_the_plain_one(demo):
    _, results = demo
    assert results.keys() == {"plain", "sc-vc", "grounded"}
    plain, defended = (results[name]["tasks"]["text_to_image"]["mix_0.9"]["fr1"] for name in ("plain", "sc-vc"))
    # 36 and 2 % on 250 scenes; 3 x 60 captions of 12 scenes stand well apart still.
    assert defended < plain / 2


def test_the_grounded_model_does_not_recognise_altered_text_without_looking(demo):
    blind = {name: found["tasks"]["image_to_text"]["rand_voca"]["blind"] for name, found in demo[1].items()}
    # 50, 83 and 48 % on 250 scenes.
    assert blind["sc-vc"] > 70 and abs(blind["plain"] - 50) < 8 and abs(blind["grounded"] - 50) < 8


def test_the_demos_report_shows_mixed_galleries_and_control(demo):
    out, _ = demo
    page = (out / "report.html").read_text(encoding="utf-8")
    assert all(words in page for words in ("Mix 0.9", "Patch 0.9", "Control", "over seeds 1, 10, 100"))
