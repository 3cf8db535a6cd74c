"""Published fine-tunes and tags of open_clip by name, read from a local copy of the hub's cache."""

import hashlib
import re
import shutil

import pytest

from rococo_jax.checkpoints import zoo as zoo_module
from rococo_jax.checkpoints.formats.activation import ACTIVATIONS, activation_hint
from rococo_jax.checkpoints.formats.openai import PUBLISHED
from rococo_jax.checkpoints.zoo import Published, find_published, open_clip_tags, zoo
from rococo_jax.encoders import load_model
from rococo_jax.encoders.inspection import library_settings
from rococo_jax.evaluation.model_list import read_models
from tests.support.models import MESH, assert_same_model, read_towers
from tests.support.open_clip_files import open_clip_folder
from tests.support.openai_files import openai_file
from tests.support.paths import CHECKOUT
from tests.support.refusals import refused

REVISION = "0123456789abcdef0123456789abcdef01234567"
OPTIONS = {"heads": "2,1", "tokenizer": "none", "mesh": MESH}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))


@pytest.fixture
def publish(monkeypatch):
    """Make a checkpoint the zoo's `tiny`."""
    return lambda **facts: monkeypatch.setattr(zoo_module, "zoo", lambda: {"tiny": Published(name="tiny", **facts)})


@pytest.fixture
def weights(tmp_path):
    return openai_file("vit_quick_gelu", tmp_path / "weights.pt", "checkpoint", numbers=False)


@pytest.mark.parametrize("name", zoo())
def test_every_row_has_valid_sources_and_facts(name):
    row = zoo()[name]
    assert row.sources and all(re.fullmatch(r"https://(github\.com|huggingface\.co)/\S+", each) for each in row.sources)
    assert re.fullmatch(r"https://huggingface\.co/\S+", row.address) and re.fullmatch(r"[\w.-]+/[\w.-]+", row.hub)
    assert re.fullmatch(r"\d{4}\.\d{5}", row.paper) and row.activation in ("", *ACTIVATIONS)
    assert re.fullmatch(r"[0-9a-f]{40}", row.revision) and re.fullmatch(r"([0-9a-f]{64})?", row.sha256)
    assert row.file or not row.sha256
    known = {architecture.partition("/")[0] for architecture in open_clip_tags()[1]}
    # Heads of a file alone are known for OpenAI's sizes.
    assert row.architecture in ({each.replace("/", "-") for each in PUBLISHED.values()} if row.file else known)
    assert "have not been verified" in row.terms


def test_tags_match_the_documented_table_and_activations_match_their_names():
    version, tags = open_clip_tags()
    page = (CHECKOUT / "docs/reference/model-formats.md").read_text()
    assert f"of {len(tags)} pretrained tags of {version} convert" in page
    assert {"/".join(row) for row in re.findall(r"^\| (\S+) \| (\w+) \| vision_cfg", page, re.MULTILINE)} < tags.keys()
    assert [tag for tag, row in tags.items() if not row.activation] == ["roberta-ViT-B-32/laion2b_s12b_b32k"]
    for tag, row in tags.items():
        hint = activation_hint(row.hub)
        assert (hint is None) == (not row.activation) and (hint is None or hint[0] == row.activation), tag
    models = read_models(["zoo:fare2", "zoo:ViT-B-32/openai", "demo:plain"])
    assert [model.name for model in models] == ["fare2", "ViT-B-32-openai", "plain"]


def test_rows_have_the_size_and_preprocessing_of_open_clip():
    """Compare with open_clip 3.3.0: `image_size` of its model_configs, and `_pcfg`, `_slpcfg`, ... of pretrained.py."""
    _, tags = open_clip_tags()
    clip = {"mean": [0.48145466, 0.4578275, 0.40821073], "std": [0.26862954, 0.26130258, 0.27577711]}
    half = {"mean": [0.5] * 3, "std": [0.5] * 3, "interpolation": "bicubic", "resize_mode": "squash"}
    expected = {
        "ViT-B-32/openai": (224, {**clip, "interpolation": "bicubic", "resize_mode": "shortest"}),
        "ViT-SO400M-14-SigLIP-384/webli": (384, half),
        "ViT-SO400M-14-SigLIP-378/webli": (378, half),
        "ViT-H-14-378/dfn5b": (378, {**clip, "interpolation": "bicubic", "resize_mode": "squash"}),
        "MobileCLIP-B/datacompdr": (224, {"mean": [0.0] * 3, "std": [1.0] * 3, "interpolation": "bilinear",
                                          "resize_mode": "shortest"}),
        "convnext_base_w_320/laion_aesthetic_s13b_b82k": (320, {**clip, "interpolation": "bicubic",
                                                                "resize_mode": "shortest"}),
        "ViT-L-14-CLIPA-336/datacomp1b": (336, {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225],
                                                "interpolation": "bilinear", "resize_mode": "squash"}),
    }  # fmt: skip
    assert {tag: (tags[tag].image_size, dict(tags[tag].preprocessing)) for tag in expected} == expected


def test_quickgelu_architectures_have_the_tags_that_were_trained_with_it():
    """Derive the list from the `quick_gelu` of tags, as open_clip does."""
    _, tags = open_clip_tags()
    for name, row in tags.items():
        quick = f"zoo:{row.architecture}-quickgelu/{name.partition('/')[2]}"
        if row.activation == "quick_gelu":
            found = find_published(quick)
            assert (found.hub, found.activation, found.image_size) == (row.hub, "quick_gelu", row.image_size)
            assert f"zoo:{found.name}" == quick and find_published(f"zoo:{name}") is row
        else:
            refused("has QuickGELU, and .* was not trained with it; wanted ", find_published, quick)
    said = (
        "ViT-H-14-quickgelu has QuickGELU, and ViT-H-14/laion2b_s32b_b79k was not .*wanted ViT-H-14/laion2b_s32b_b79k"
    )
    refused(said, find_published, "zoo:ViT-H-14-quickgelu/laion2b_s32b_b79k")


@pytest.mark.parametrize(
    ("name", "near"),
    [("ViT-B-32-256/openai", "ViT-B-32/openai"), ("ViT-L-16-SigLIP-512/webli", "ViT-L-16-SigLIP2?-512/webli"),
     ("ViT-B-16/laion2b_s34b_b79k", "ViT-B-16/laion2b_s34b_b88k"), ("vit-b-32/OpenAI", "ViT-B-32")],
)  # fmt: skip
def test_a_combination_that_open_clip_does_not_list_is_refused_with_the_nearest_one(name, near):
    refused(f"tag of open_clip .*: found '{name}'; .*did you mean .*{near}", find_published, f"zoo:{name}")


@pytest.fixture
def tagged(publish, tmp_path):
    """Make `zoo:tiny` a tag of open_clip whose repository is the golden case."""
    snapshot = tmp_path / "hub" / "models--o--n" / "snapshots" / REVISION

    def tagged(case, change=lambda config, tensors: None, **facts):
        snapshot.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(snapshot, ignore_errors=True)
        publish(hub="o/n", revision=REVISION, **facts)
        return open_clip_folder(case, snapshot, change)

    return tagged


def test_a_tag_is_run_at_the_image_size_of_the_named_architecture(tagged, capsys):
    """The weights of a repository have positions for 2 x 2 patches of 16 pixels, at 32 pixels as at 40."""
    folder = tagged("siglip", architecture="ViT-B-16-SigLIP-40", image_size=40)
    model, plain = load_model("zoo:tiny", **{**OPTIONS, "heads": None}), read_towers(folder)
    assert "zoo:tiny: read at 40 pixels, the size of ViT-B-16-SigLIP-40" in capsys.readouterr().err
    assert (plain.spec.vision.image_size, model.spec.vision.image_size) == (32, 40)
    assert model.preprocessing == plain.preprocessing.with_image_size(40) and model.spec.vision.position_grid is None
    assert model.weights_sha256 == plain.weights_sha256 and model.fingerprint() != plain.fingerprint()
    assert library_settings(model)["image size"]["from"] == "zoo:tiny: ViT-B-16-SigLIP-40 of open_clip"
    larger = load_model("zoo:tiny", **{**OPTIONS, "heads": None, "image_size": 64})
    assert library_settings(larger)["image size"] == {"value": 64, "from": "the argument image_size"}


def test_a_tag_is_run_with_the_preprocessing_of_its_row(tagged, capsys):
    preprocessing = {"mean": [0.5] * 3, "std": [0.25] * 3, "interpolation": "bilinear", "resize_mode": "squash"}
    tagged("vit_gelu", activation="gelu", image_size=32, preprocessing=preprocessing)
    model = load_model("zoo:tiny", **{**OPTIONS, "heads": None})
    assert "mean, std, interpolation, resize, crop as open_clip's tag has it" in capsys.readouterr().err
    images = model.preprocessing
    assert (images.mean, images.std, images.resample) == ((0.5,) * 3, (0.25,) * 3, "bilinear")
    assert (images.exact_size, images.shortest_edge, images.crop_size) == ((32, 32), None, None)
    assert library_settings(model)["mean"]["from"] == "zoo:tiny"


def test_the_activation_of_the_repository_takes_precedence_over_the_table(tagged, capsys):
    options = {**OPTIONS, "heads": None}
    tagged("vit_quick_gelu", activation="gelu")  # says so in its configuration, which goes first
    assert load_model("zoo:tiny", **options).spec.text.activation == "quick_gelu"
    assert "quick_gelu in the repository's configuration is used; the table has gelu" in capsys.readouterr().err
    off = {"quick_gelu": False}
    tagged(
        "vit_gelu",
        lambda config, _: config["model_cfg"].update(off),
        activation="quick_gelu",
        architecture="ViT-quickgelu",
    )
    refused(
        "activation: found gelu in the repository's configuration; wanted quick_gelu", load_model, "zoo:tiny", **options
    )
    assert load_model("zoo:tiny", **options, activation="quick_gelu").spec.text.activation == "quick_gelu"
    tagged("vit_gelu", activation="")  # the table is not sure either
    refused(
        "activation: found neither quick_gelu in the configuration nor the name of a published",
        load_model,
        "zoo:tiny",
        **options,
    )


def test_an_unknown_name_is_refused_with_the_nearest_one(refusal):
    refused(r"'fare3'; .*`rococo inspect zoo:` lists \(did you mean fare", find_published, "zoo:fare3")
    version = re.escape(open_clip_tags()[0])
    refused(
        rf"tag of {version}: found 'ViT-B-32/laion2b_e61'; .*ViT-B-32/laion2b_e16",
        load_model,
        "zoo:ViT-B-32/laion2b_e61",
    )
    assert all(name in refusal("inspect", "zoo:") for name in zoo())


@pytest.mark.parametrize(
    ("facts", "address"),
    [
        (
            {"file": "a.pt", "hub": "o/n"},
            "a.pt that can be downloaded from https://huggingface.co/o/n/resolve/main/a.pt",
        ),
        (
            {"hub": "o/n", "revision": REVISION},
            f"a repository that can be downloaded from https://huggingface.co/o/n/tree/{REVISION}",
        ),
    ],
)
def test_the_error_without_network_names_the_address_and_how_to_use_a_copy(facts, address, publish, refusal):
    publish(**facts)
    terms, line = refusal("inspect", "zoo:tiny").splitlines()
    assert "licence: unknown; the published files have not been verified by this project" in terms
    assert line.startswith("rococo: zoo:tiny: file: found ")
    assert line.endswith(f"; wanted {address}; or a copy of it, by its path instead of zoo:tiny")


def test_a_repository_is_read_at_its_revision_and_its_activation_takes_precedence(publish, tmp_path, weights):
    snapshot = tmp_path / "hub" / "models--o--n" / "snapshots" / REVISION
    snapshot.parent.mkdir(parents=True)
    publish(hub="o/n", revision=REVISION, activation="gelu")
    open_clip_folder("vit_quick_gelu", snapshot)
    model = load_model("zoo:tiny", **{**OPTIONS, "heads": None})
    assert_same_model(model, read_towers(snapshot))
    assert model.spec.text.activation == "quick_gelu" and model.provenance["read_from"]["text activation"] != "zoo:tiny"
    assert_same_model(model, read_towers(f"o/n@{REVISION}"))
    refused("the hub answers", read_towers, f"o/n@{REVISION[::-1]}")
    shutil.rmtree(snapshot)
    open_clip_folder("vit_gelu", snapshot)
    model = load_model("zoo:tiny", **{**OPTIONS, "heads": None})
    assert (model.spec.text.activation, model.provenance["read_from"]["image activation"]) == ("gelu", "zoo:tiny")
    shutil.copy(weights, snapshot / "own.pt")
    publish(hub="o/n", revision=REVISION, file="own.pt", activation="quick_gelu")
    assert_same_model(load_model("zoo:tiny", **OPTIONS), read_towers(weights, activation="quick_gelu", heads="2,1"))
    sha256 = hashlib.sha256(weights.read_bytes()).hexdigest()
    publish(hub="o/n", revision=REVISION, file="own.pt", activation="quick_gelu", sha256=sha256)
    load_model("zoo:tiny", **OPTIONS)
    publish(hub="o/n", revision=REVISION, file="own.pt", sha256="0" * 64)
    refused(f"own.pt: sha256: found {sha256}; wanted 0000", load_model, "zoo:tiny", **OPTIONS)
    publish(hub="o/n", revision=REVISION, file="own.pt")
    refused("activation: found a bare state dict", load_model, "zoo:tiny", **OPTIONS)
