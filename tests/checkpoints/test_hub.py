"""Hub names, revisions and what lies in the hub's cache, with a small hub that answers for commits alone."""

import json
import shutil

import pytest

from rococo_jax.checkpoints.formats import convert
from rococo_jax.data.tokenizer_files import read_huggingface_tokenizer
from rococo_jax.encoders import load_model
from tests.support import reference_models as hf
from tests.support.file_server import a_hub
from tests.support.models import assert_same_model, read_towers
from tests.support.open_clip_files import open_clip_folder
from tests.support.refusals import refused

OLD, NEW = "0123456789abcdef0123456789abcdef01234567", "fedcba9876543210fedcba9876543210fedcba98"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The cache of the hub, with two commits of one repository."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    snapshots = tmp_path / "hub" / "models--o--n" / "snapshots"
    snapshots.mkdir(parents=True)
    for seed, commit in enumerate((OLD, NEW)):
        hf.saved(hf.clip(seed=seed), snapshots / commit)
    return tmp_path / "hub" / "models--o--n"


@pytest.fixture
def hub(cache):
    """Serve a branch, a tag, a reference and the commits; the files are in the cache."""
    with a_hub() as server:
        for revision, commit in {"main": NEW, "v1.0": OLD, "refs%2Fpr%2F3": OLD, OLD: OLD, NEW: NEW}.items():
            about = {"id": "o/n", "sha": commit, "siblings": []}
            for path in (
                f"/api/models/o/n/revision/{revision}",
                f"/api/models/o/n/revision/{revision.replace('%2F', '/')}",
            ):
                server.files[path] = json.dumps(about).encode()
        yield server


@pytest.mark.parametrize(
    ("revision", "commit"),
    [
        ("", NEW),
        ("@v1.0", OLD),
        (f"@{OLD}", OLD),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (("@main", NEW), ("@refs/pr/3", OLD), (f"@{NEW}", NEW))
        ),
    ],
)
def test_a_branch_or_tag_or_commit_is_read_and_its_commit_is_recorded(revision, commit, hub, cache):
    model = load_model(f"o/n{revision}", tokenizer="none")
    expected = read_towers(cache / "snapshots" / commit)
    assert_same_model(model, expected)
    assert model.provenance["commit"] == commit
    assert model.fingerprint() == expected.fingerprint()


@pytest.mark.parametrize("revision", ["nothing", "0123", "abcdef0"])
def test_a_missing_revision_is_reported_in_one_line(revision, hub):
    refused("the hub answers: .*404", load_model, f"o/n@{revision}")


def test_a_branch_is_read_from_the_cache_if_the_hub_is_unreachable(cache):
    """`HF_HUB_OFFLINE` or no network: a branch is the commit that it last was."""
    message = "model: found no such folder; the name is not in the local cache, and the hub answers nothing"
    refused(message, load_model, "o/n@main")
    (cache / "refs").mkdir()
    (cache / "refs/main").write_text(OLD)
    for name in ("o/n", "o/n@main", f"o/n@{OLD}"):
        assert load_model(name, tokenizer="none").provenance["commit"] == OLD
    refused("nothing there", load_model, "o/n@../snapshots/main")


def test_the_requested_revision_is_passed_to_the_hub_so_that_it_is_cached(cache, monkeypatch):
    asked = []
    monkeypatch.setattr(
        "huggingface_hub.snapshot_download", lambda name, revision, **_: asked.append(revision) or 1 / 0
    )
    for revision in ("", "@v1.0", f"@{OLD}"):
        refused("the hub answers", load_model, f"o/n{revision}")
    assert asked == [None, "v1.0", OLD]


@pytest.mark.parametrize("name", ["o/n", f"o/n@{OLD}"])
def test_an_interrupted_download_is_not_reported_as_a_repository_without_weights(name, cache):
    (cache / "refs").mkdir()
    (cache / "refs/main").write_text(OLD)
    (cache / "snapshots" / OLD / "model.safetensors").unlink()
    said = r"model: found no model\*\.safetensors or .* in the cache, and the hub answers"
    refused(said, load_model, name)
    tokenizer = "tokenizer: found no tokenizer.json or .* in the cache, and the hub answers"
    refused(tokenizer, read_huggingface_tokenizer, "o/n", {"model_type": "clip"})
    shutil.rmtree(cache / "snapshots" / OLD)
    open_clip_folder("vit_gelu", cache / "snapshots" / OLD)
    (cache / "snapshots" / OLD / "open_clip_model.safetensors").unlink()
    refused("model: found no open_clip_model.* in the cache, and the hub answers", load_model, name)
    (cache / "snapshots" / OLD / "open_clip_config.json").unlink()
    refused("model: found no config.json or .* in the cache, and the hub answers", load_model, name)


def test_a_download_interrupted_between_two_shards_is_reported_in_one_line(cache):
    folder = cache / "snapshots" / OLD
    shutil.rmtree(folder)
    hf.saved(hf.clip(), folder, max_shard_size="20KB")
    shards = sorted(folder.glob("model-*.safetensors"))
    assert len(shards) > 1 and load_model(f"o/n@{OLD}", tokenizer="none").provenance["commit"] == OLD
    shards[-1].unlink()
    refused(f"model: found no {shards[-1].name} in the cache, and the hub answers", load_model, f"o/n@{OLD}")


def test_a_repository_without_weights_is_reported_as_such(hub, cache):
    (cache / "snapshots" / NEW / "model.safetensors").unlink()
    refused("weights: found no weight files", load_model, "o/n")


SUFFIXES = "safetensors ckpt pt pth bin npz npy json msgpack h5 onnx gguf pkl pth.tar tar.gz zip PT Safetensors".split()


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("folder", ["", "runs/"])
def test_a_name_with_the_suffix_of_a_file_is_reported_as_a_missing_file(folder, suffix, monkeypatch):
    def ask(*_, **__):
        raise AssertionError("the hub was asked")

    monkeypatch.setattr("huggingface_hub.HfApi.repo_info", ask)
    monkeypatch.setattr("huggingface_hub.snapshot_download", ask)
    refused(r"model: found nothing there \(no such file", load_model, f"{folder}model.{suffix}")
    refused(
        r"tokenizer: found nothing there \(no such file",
        read_huggingface_tokenizer,
        f"{folder}a.{suffix}",
        {"model_type": "clip"},
    )


@pytest.mark.parametrize(
    "name", ["timm/vit_base_patch32_clip_224.openai", "laion/CLIP-convnext_large_d.laion2B-s26B-b102K-augreg", "gpt2",
             "laion/CLIP-ViT-B-32-DataComp.M-s128M-b4K", "hf-hub:o/odd.bin", "o/odd.pt@main"]
)  # fmt: skip
def test_a_name_with_dots_is_looked_up_on_the_hub(name, cache):
    refused("the hub answers", convert, name)


@pytest.mark.parametrize("name", ["./runs/model", "../model", "/nowhere/model", "a/b/c", "o/n@", "o/n@a b", "o n"])
def test_a_path_that_cannot_be_a_name_of_the_hub_is_reported_as_missing(name):
    refused("model: found nothing there", convert, name)
