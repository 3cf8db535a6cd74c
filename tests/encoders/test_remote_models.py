"""Models are read from URLs; what would have to be written to one is refused at once, in one line."""

import sys

import pytest

from rococo_jax.checkpoints import save_model
from rococo_jax.data.captioned_images import open_pairs
from rococo_jax.encoders import load_model
from tests.support.models import assert_same_model, encoder_of
from tests.support.refusals import refused
from tests.support.tiny import tiny_spec


def test_a_model_behind_a_url_is_copied_once_and_again_when_it_changes(tmp_path, monkeypatch):
    memory = pytest.importorskip("fsspec").filesystem("memory")
    monkeypatch.setenv("ROCOCO_CACHE", str(tmp_path / "cache"))
    for seed in (0, 1):
        encoder, folder = encoder_of(tiny_spec(), name="tiny", seed=seed), tmp_path / f"{seed}"
        save_model(folder, encoder)
        for path in (path for path in folder.rglob("*") if path.is_file()):
            memory.pipe(f"/models/tiny/{path.relative_to(folder)}", path.read_bytes())
        for _ in range(2):
            found = load_model("memory://models/tiny")
            assert found.name == "tiny" and len(list((tmp_path / "cache" / "remote").iterdir())) == seed + 1
        assert_same_model(found, encoder)
    refused("memory://models/none: file: found nothing there; wanted a folder", load_model, "memory://models/none")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["train", "--config", "configs/scenes_tiny.py", "--workdir", "gs://bucket/run"], "gs://bucket/run: output"),
        (["pack", "--images", "a", "--out", "s3://bucket/shards"], "s3://bucket/shards: output: found a URL; wanted"),
        (["influence", "gs://bucket/model", "--captions", "a.json", "--out", "i.jsonl"], "gcsfs is not installed"),
        (["pack", "--images", "gs://bucket/images", "--captions", "a", "--out", "x"], "gs://bucket/images: images:"),
        (["pack", "--images", "gs://bucket/{0..3}.tar", "--out", "x"], "storage: found gcsfs is not installed"),
    ],
)
def test_commands_that_need_a_local_path_refuse_a_url_in_one_line(command, message, tmp_path, monkeypatch, refusal):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    (tmp_path / "a.json").write_text('[{"image": "a.jpg", "caption": ["a dog"]}]')
    # What a command understood of its captions is a line of its own, before.
    lines = [line for line in refusal(*command).splitlines() if line != "a.json: 1 images, 1 captions"]
    assert len(lines) == 1 and message in lines[0]
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
    said = "captions: found a URL; wanted a folder of this machine"
    refused(said, open_pairs, str(tmp_path), "s3://bucket/captions.json")
