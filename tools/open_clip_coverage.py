"""Print which of open_clip's pretrained tags convert, and why the others do not; a page of the docs lists the others.

    pip install open_clip_torch timm            (beside torch; see tests/support/golden/make_open_clip.py for how)
    python tools/open_clip_coverage.py [--markdown docs/reference/model-formats.md] [--tags]

With `--tags` it writes the package's table for `zoo:ARCHITECTURE/TAG` instead: the hub name of each tag, the activation
that it was trained with, the image size of its architecture, and its preprocessing.

open_clip builds every architecture without memory (torch's `meta` device). The names and shapes of its tensors, its
configuration and the tag's preprocessing go through the converter like those of a folder from the hub. So a tag that
"converts" has no tensor that is unread, missing or misshapen. tests/checkpoints/test_open_clip.py compares the
embeddings with open_clip's for one architecture of each kind. Architectures that differ by `-quickgelu` alone are
aliases in open_clip's list and counted once.
"""

import argparse
import contextlib
import io
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rococo_jax.checkpoints.formats.open_clip import preprocessing_of_open_clip, towers_of_open_clip
from rococo_jax.checkpoints.names import check_tensors
from rococo_jax.checkpoints.tensors import Tensors
from rococo_jax.checkpoints.zoo import TAG_COLUMNS, TAGS
from rococo_jax.errors import InputError
from rococo_jax.storage import write_csv_rows, write_json

# The published sizes of Hugging Face text towers, of which open_clip stores only the names.
TEXT_TOWERS: dict[str, dict[str, Any]] = {
    "roberta-base": {
        "model_type": "roberta", "vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1,
    },
    "xlm-roberta-base": {
        "model_type": "xlm-roberta", "vocab_size": 250002, "max_position_embeddings": 514, "type_vocab_size": 1,
    },
    "xlm-roberta-large": {
        "model_type": "xlm-roberta", "vocab_size": 250002, "max_position_embeddings": 514, "type_vocab_size": 1,
        "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096,
    },
    "facebook/nllb-200-distilled-600M": {
        "model_type": "m2m_100", "vocab_size": 256206, "max_position_embeddings": 1024, "encoder_layers": 12,
    },
    "facebook/nllb-200-distilled-1.3B": {
        "model_type": "m2m_100", "vocab_size": 256206, "max_position_embeddings": 1024, "encoder_layers": 24,
        "encoder_ffn_dim": 8192, "decoder_layers": 24, "decoder_ffn_dim": 8192,
    },
}  # fmt: skip


def import_open_clip() -> Any:
    """Import open_clip, also with a torch that lacks torchvision's compiled operators."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.support.golden.make_open_clip import import_open_clip as with_torchvision

    return with_torchvision()


def published_tags(open_clip: Any) -> Iterator[tuple[str, str]]:
    """Yield architecture and tag, without aliases."""
    tags = open_clip.list_pretrained()
    plain = {pair for pair in tags if not pair[0].endswith("-quickgelu")}
    return iter(pair for pair in tags if pair in plain)


def tag_rows(open_clip: Any) -> Iterator[tuple[object, ...]]:
    """Yield the package's table: the settings of `create_model_and_transforms(ARCHITECTURE, pretrained=TAG)`."""
    yield f"open_clip {open_clip.__version__}", *TAG_COLUMNS
    for architecture, tag in published_tags(open_clip):
        published = open_clip.get_pretrained_cfg(architecture, tag)
        config = open_clip.get_model_config(architecture)
        hub = "/".join(published["hf_hub"].split("/")[:2])  # what follows is a file
        colours = (" ".join(map(repr, published[key])) for key in ("mean", "std"))
        rules = (published["interpolation"], published["resize_mode"])
        size = config["vision_cfg"]["image_size"]
        yield f"{architecture}/{tag}", hub, activation_of_tag(config, published), size, *colours, *rules


def activation_of_tag(config: Mapping[str, Any], published: Mapping[str, Any]) -> str:
    """Return the activation that a tag was trained with; empty if its architecture has QuickGELU and the tag has not.

    The opposite case is clear: open_clip lists a tag with QuickGELU under the `-quickgelu` architecture, too, and
    warns if the plain one is requested.
    """
    if published.get("quick_gelu"):
        return "quick_gelu"
    return "" if config.get("quick_gelu") else "gelu"


def shapes_of(open_clip: Any, config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the names and shapes of all tensors of an architecture."""
    import torch

    arguments = {key: value for key, value in config.items() if key != "custom_text"}
    with tempfile.TemporaryDirectory() as folder:
        text = dict(arguments["text_cfg"])
        if name := text.get("hf_model_name"):
            write_json(Path(folder) / "config.json", TEXT_TOWERS[name])
            text |= {"hf_model_name": folder, "hf_model_pretrained": False}
        custom = config.get("custom_text") or "hf_model_name" in text
        kind = open_clip.CoCa if "multimodal_cfg" in config else open_clip.CustomTextCLIP if custom else open_clip.CLIP
        with torch.device("meta"), contextlib.redirect_stderr(io.StringIO()):
            model = kind(**{**arguments, "text_cfg": text})
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def why_not(open_clip: Any, architecture: str, tag: str, shapes: Mapping[str, tuple[int, ...]]) -> str | None:
    """Return why a tag does not convert, None if it does."""
    config = open_clip.get_model_config(architecture)
    published = open_clip.get_pretrained_cfg(architecture, tag)
    source = published.get("hf_hub", "").rstrip("/") or f"{architecture}.{tag}"
    if published.get("quick_gelu"):
        config = {**config, "quick_gelu": True}
    info = {name: (shape, "float32") for name, shape in shapes.items()}
    tensors = Tensors(Path(source), info, lambda name: np.zeros(shapes[name], np.float32))
    hf = TEXT_TOWERS.get(config["text_cfg"].get("hf_model_name"))
    try:
        spec, table, _ = towers_of_open_clip(config, config, Path(source), tensors, source, None, hf)
        check_tensors(tensors, table)
        preprocess_cfg = {key: published[key] for key in ("mean", "std", "interpolation", "resize_mode")}
        preprocessing_of_open_clip(preprocess_cfg, Path(source), spec)
    except InputError as error:
        return f"{error.field}: {error.found}"
    return None


def main() -> None:
    """Print every tag, and write those that do not convert to a page if requested."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--markdown", type=Path, help="also write what does not convert to this file")
    parser.add_argument("--tags", action="store_true", help=f"write {TAGS.name} of the package, and end")
    arguments = parser.parse_args()
    open_clip = import_open_clip()
    if arguments.tags:
        write_csv_rows(TAGS, tag_rows(open_clip))
        return
    rows: dict[str, tuple[list[str], str | None]] = {}
    shapes: dict[str, Mapping[str, tuple[int, ...]]] = {}
    total = converts = 0
    for architecture, tag in published_tags(open_clip):
        if architecture not in shapes:
            shapes[architecture] = shapes_of(open_clip, open_clip.get_model_config(architecture))
        reason = why_not(open_clip, architecture, tag, shapes[architecture])
        total, converts = total + 1, converts + (reason is None)
        key = architecture if reason is None else f"{architecture} "
        rows.setdefault(key, ([], reason))[0].append(tag)
    refused = [(name.strip(), tags, reason) for name, (tags, reason) in rows.items() if reason is not None]
    for name, (tags, reason) in rows.items():
        print(f"{name.strip()}: {', '.join(tags)}: {reason or 'converts'}")
    lines = [f"{converts} of {total} pretrained tags of open_clip {open_clip.__version__} convert: all but these.", "",
             "| architecture | tags | what is not read |", "| --- | --- | --- |"]  # fmt: skip
    lines += [f"| {name} | {', '.join(tags)} | {re.sub(r'[|]', '/', reason)} |" for name, tags, reason in refused]
    print("\n".join(["", *lines]))
    if arguments.markdown:
        text = arguments.markdown.read_text()
        marker = "<!-- table -->\n"
        arguments.markdown.write_text(text.partition(marker)[0] + marker + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
