"""What somebody new tries: listing the keys of training, a bare weights file, captions with 'a' and 'an'."""

import json
import re

import pytest

from rococo_jax.cli.main import main
from tests.support.paths import CHECKOUT

CONFIG = str(CHECKOUT / "configs" / "scenes_tiny.py")


def test_a_dry_run_prints_every_key_and_trains_nothing(tmp_path, capsys):
    asked = ["train", "--config", CONFIG, "--workdir", str(tmp_path / "run"), "--dry-run"]
    assert main([*asked, "--config.steps", "7", "--config.losses.sc.weight=0.25"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "steps = 7" in lines and "losses.sc.weight = 0.25" in lines and lines == sorted(lines)
    assert len(lines) > 60 and not (tmp_path / "run").exists()


def test_an_override_without_a_value_is_still_refused(tmp_path, refusal):
    asked = ["train", "--config", CONFIG, "--workdir", str(tmp_path), "--dry-run"]
    assert "no '='; wanted --config.key=value" in refusal(*asked, "--config.steps")


@pytest.mark.parametrize(
    ("name", "said"),
    [("model.safetensors", "weights without an architecture; wanted its folder"), ("epoch_32.bin2", "a file .bin2")],
)
def test_a_weights_file_that_says_too_little_gets_a_hint(tmp_path, refusal, name, said):
    (tmp_path / name).write_bytes(b"x")
    assert said in refusal("inspect", tmp_path / name)


def test_articles_fit_the_new_word(tmp_path):
    captions, out = tmp_path / "captions.json", tmp_path / "same_concept.json"
    texts = [f"a {word} on the grass" for word in ("dog", "cat", "man", "woman", "child", "horse", "car", "boat") * 4]
    captions.write_text(json.dumps([{"image": f"{k}.jpg", "caption": [text]} for k, text in enumerate(texts)]))
    asked = ["alter-captions", "demo:plain", "--captions", str(captions), "--variant", "same_concept"]
    assert main([*asked, "--select", "random", "--seed", "1", "--out", str(out)]) == 0
    text = out.read_text()
    assert not re.search(r"\ba [aeio]\w+|\ban [^aeiouh]\w+", text)
