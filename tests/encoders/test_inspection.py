"""`rococo inspect`: what it says of a model, and the traps it warns of."""

import dataclasses
import json

import pytest
import tokenizers

from rococo_jax.checkpoints import parameters, save_model
from rococo_jax.checkpoints.parameters import hash_parameters, parameters_of
from rococo_jax.cli import inspect
from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.encoders.inspection import inspect_model, warnings_of
from rococo_jax.models import HeadSpec
from tests.support.commands import run_command
from tests.support.models import encoder_of, read_model, read_towers
from tests.support.open_clip_files import open_clip_folder
from tests.support.tiny import tiny_spec, tiny_tokenizer

pytestmark = pytest.mark.quick  # counts, however the programs are compiled
PIXELS = ("resize", "interpolation", "mean", "std")


@pytest.fixture
def encoder():
    return encoder_of(tiny_spec(), Preprocessing(shortest_edge=32, crop_size=(32, 32)), tiny_tokenizer(), name="tiny")


def with_tokenizer(encoder, **changes):
    encoder.tokenizer.spec = dataclasses.replace(encoder.tokenizer.spec, **changes)
    return encoder


def with_spec(encoder, part, **changes):
    spec = encoder.model.spec
    encoder.model.spec = dataclasses.replace(spec, **{part: dataclasses.replace(getattr(spec, part), **changes)})
    return encoder


def test_a_correct_model_has_no_warnings(encoder):
    facts = inspect_model(encoder)
    assert facts["warnings"] == []
    assert facts["weights_sha256"] == hash_parameters(parameters_of(encoder.model))
    assert facts["parameters"]["total"] == sum(leaf.size for leaf in parameters_of(encoder.model).values())
    assert facts["flops"]["text_tokens"] == 24
    assert facts["embedding_dimensions"] == 16
    json.dumps(facts)


def keep_capitals(encoder):
    encoder.tokenizer.rust.normalizer = tokenizers.normalizers.NFC()


@pytest.mark.parametrize(
    ("trap", "words"),
    [
        (
            lambda e: e.provenance.update(source="laion/CLIP-ViT-B-32-laion2B-s34B-b79K"),
            "activation: the image tower has quick_",
        ),
        (lambda e: e.provenance.update(read_from={"text activation": "the argument activation"}),
         "activation: given by hand"),
        (lambda e: with_tokenizer(e, eos_id=3),
         "end of text: the tokenizer ends texts with id 3, the tower pools at 2"),
        (lambda e: with_spec(e, "text", pooling="highest_id", eos_id=None), "end of text: the tower pools at the high"),
        (lambda e: with_spec(e, "text", vocabulary_size=90), "vocabulary: "),
        (lambda e: with_spec(e, "text", context_length=20), "length: texts of 24 tokens for a tower of 20"),
        (lambda e: with_spec(e, "vision", image_size=64), "image size: images are made 32 x 32, the tower reads 64"),
        (lambda e: with_spec(e, "vision", position_grid=7), "image size: positions were trained for 7 x 7 patches"),
        (lambda e: with_spec(e, "vision", patch_size=5), "image size: 2 pixels at the right and bottom"),
        (lambda e: e.provenance.update(read_from=dict.fromkeys(PIXELS, "the family's default")),
         "preprocessing: the checkpoint has no file for it; it is the family's default"),
        (lambda e: e.provenance.update(weights_sha256="0" * 64), "weights: their hash differs"),
        (keep_capitals, "lower-casing: the tokenizer keeps capitals, and clip was trained on lower case"),
        (lambda e: keep_capitals(with_tokenizer(e, family="bert")), "lower-casing: capitals change the tokens"),
    ],
)  # fmt: skip
def test_each_pitfall_causes_a_warning(encoder, trap, words):
    trap(encoder)
    lines = warnings_of(encoder)
    assert any(line.startswith(words) for line in lines), lines


def test_the_inspect_command_prints_lines_or_json(tmp_path, capsys):
    arguments = open_clip_folder("resnet_quick_gelu", tmp_path / "rn.openai"), "--tokenizer", "none"
    run_command(inspect, *arguments)
    printed = capsys.readouterr().out
    for part in (
        "format          open_clip",
        "  text activation       quick_gelu (open_clip_config.json: quick_gelu)",
        "a ResNet of 2-1-3-1 blocks, 8 wide, pooling attention; 64 x 64",
        "GFLOP an image",
        "GFLOP a text of 12 tokens",
        "warning         tokenizer: the model has none, so only token ids can be encoded",
    ):
        assert part in printed
    run_command(inspect, *arguments, "--json")
    facts = json.loads(capsys.readouterr().out)
    assert facts["spec"]["vision"]["stage_layers"] == [2, 1, 3, 1]
    assert facts["rules"]["interpolation"] == {"value": "bicubic", "from": "open_clip's default"}
    assert facts["provenance"]["weights_sha256"] == facts["weights_sha256"]


@pytest.mark.parametrize("form", ["directory", "open_clip"])
def test_the_weights_are_hashed_once_even_if_their_hash_is_shown_several_times(form, encoder, tmp_path, monkeypatch):
    if form == "directory":
        folder, read = tmp_path / "tiny", read_model
        save_model(folder, encoder)
    else:
        folder, read = open_clip_folder("resnet_quick_gelu", tmp_path / "rn.openai"), read_towers
    times, hashed = [], parameters.hash_bytes
    monkeypatch.setattr(parameters, "hash_bytes", lambda *parts: times.append(1) or hashed(*parts))
    encoder = read(folder)
    facts, hash_for_matching = encoder.facts(), encoder.weights_sha256
    assert not any("hash" in warning for warning in facts["warnings"])
    assert len(times) == 1
    assert facts["weights_sha256"] == hash_for_matching == hash_parameters(parameters_of(encoder.model))


def test_a_single_tower_can_be_inspected():
    encoder = encoder_of(dataclasses.replace(tiny_spec(), text=None, text_head=HeadSpec()))
    facts = inspect_model(encoder)
    assert set(facts["flops"]) == {"image"}
    assert set(facts["parameters"]) == {"vision", "vision_head", "total"}  # no logits to scale
