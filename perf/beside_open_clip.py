"""open_clip's own model for measurements, and ours converted from it.

    pip install --no-deps --target DIR open_clip_torch timm ftfy wcwidth torchvision==0.28.0
    python perf/... --beside DIR

DIR keeps torchvision, whose compiled operators cannot load beside the CPU build of torch, out of the environment.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[1]


def add_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--beside", metavar="DIR", help="where open_clip is installed, if not in the environment")
    parser.add_argument("--model", default="ViT-B-32", help="an architecture of open_clip")


def make(arguments: argparse.Namespace) -> tuple[Any, Any, Any]:
    """open_clip, the model with random weights, and its transform of images. SystemExit where it is not installed.

    Its text tower is that of `CustomTextCLIP`, whose positions can be cut; that of `CLIP` takes 77 tokens alone.
    """
    sys.path[:0] = [str(CHECKOUT), *([arguments.beside] if arguments.beside else [])]
    try:
        from tests.support.golden.make_open_clip import import_open_clip

        open_clip = import_open_clip()
    except ImportError as error:
        raise SystemExit(f"open_clip: found none ({error}); wanted it installed, or --beside DIR") from None
    import torch

    torch.manual_seed(0)
    model, _, transform = open_clip.create_model_and_transforms(
        arguments.model, pretrained=None, force_custom_text=True
    )
    return open_clip, model.eval(), transform


def converted(open_clip: Any, model: Any, name: str) -> Any:
    """The same as an `Encoder`, through a folder on disk, as a checkpoint from the hub would be."""
    from safetensors.torch import save_file

    from rococo_jax.encoders import load_model

    with tempfile.TemporaryDirectory() as folder:
        config = {"model_cfg": {"quick_gelu": False, **open_clip.get_model_config(name)}, "preprocess_cfg": {}}
        (Path(folder) / "open_clip_config.json").write_text(json.dumps(config))
        save_file(model.state_dict(), Path(folder) / "open_clip_model.safetensors")
        return load_model(folder, tokenizer="none")
