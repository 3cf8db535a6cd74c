"""`rococo convert`, and loading a folder without converting it first."""

import pytest

from rococo_jax.cli import convert
from tests.support.commands import run_command
from tests.support.reference_models import clip, dinov2, saved, siglip
from tests.support.refusals import refused


@pytest.mark.parametrize(
    ("make", "options", "parts"),
    [
        (lambda: dinov2(use_swiglu_ffn=True), ["--pooling", "cls+mean"],
         "dinov2/30 x 30, patches of 10/gated silu/pooling cls+mean/48 dimensions/(the family's default)"),
        (siglip, [], "siglip/pooling attention/up to 13 tokens/gelu_tanh/24 dimensions/tokenizer: the model has none"),
    ],
    ids=["dinov2", "siglip"],
)  # fmt: skip
def test_the_convert_command_reports_what_it_read(make, options, parts, tmp_path, capsys):
    run_command(convert, saved(make(), tmp_path / "theirs"), tmp_path / "out", *options)
    printed = capsys.readouterr().out
    assert [part for part in parts.split("/") if part not in printed] == []


def test_the_convert_command_refuses_bad_input_before_it_starts(tmp_path):
    folder = saved(clip(), tmp_path / "clip")
    for options, message in (
        (["--source-format", "openai"], "found no file"),
        (["--source-format", "big_vision"], "found no file"),
        (["--source-format", "open_clip"], "open_clip_config"),
        (["--activation", "gelu"], "^activation: .*the huggingface format fixes it"),
        (["--pooling", "mean"], "^pooling: "),
    ):
        refused(message, run_command, convert, folder, tmp_path / "out", *options)
    refused("something already there", run_command, convert, tmp_path / "absent", folder)
    assert {path.name for path in tmp_path.iterdir()} == {"clip"}
