"""`rococo convert`, and loading a folder without converting it first."""

import pytest

from rococo_jax.cli import convert
from rococo_jax.errors import InputError
from tests.support.commands import run_command
from tests.support.reference_models import clip, dinov2, saved, siglip
from tests.support.refusals import refused


def run_convert(*arguments):
    run_command(convert, *arguments)


def test_the_convert_command_says_what_it_read(tmp_path, capsys):
    gated = saved(dinov2(use_swiglu_ffn=True), tmp_path / "dino"), tmp_path / "out", "--pooling", "cls+mean"
    for arguments, parts in (
        (gated, "dinov2/30 x 30, patches of 10/gated silu/pooling cls+mean/48 dimensions/(the family's default)"),
        ((saved(siglip(), tmp_path / "siglip"), tmp_path / "out2"),
         "siglip/pooling attention/up to 13 tokens/gelu_tanh/24 dimensions/tokenizer: none came"),
    ):  # fmt: skip
        run_convert(*arguments)
        printed = capsys.readouterr().out
        assert [part for part in parts.split("/") if part not in printed] == []


def test_the_convert_command_refuses_before_it_works(tmp_path):
    folder = saved(clip(), tmp_path / "clip")
    no_file = dict.fromkeys(("openai", "big_vision"), "found no file")
    for kind, wanted in (no_file | {"open_clip": "open_clip_config"}).items():
        refused(wanted, run_convert, folder, tmp_path / "out", "--source-format", kind)
    with pytest.raises(InputError, match=r"^activation: .*fixed in the huggingface form"):
        run_convert(folder, tmp_path / "out", "--activation", "gelu")
    refused("something already there", run_convert, tmp_path / "absent", folder)
    refused(r"^pooling: ", run_convert, folder, tmp_path / "out", "--pooling", "mean")
    assert {path.name for path in tmp_path.iterdir()} == {"clip"}
