"""A stand-in for open_clip, for where it is not installed: its functions that the adapter calls, on tiny models.

As there, a model has no configuration but attributes of its modules, an image transform is a chain of objects, and a
tokenizer is an object with tables, a cache and a cleaning function, or one that wraps a tokenizer of `transformers`.
"""

import importlib.machinery
import itertools
import json
import re
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from PIL import Image

torch = pytest.importorskip("torch")
safetensors_torch = pytest.importorskip("safetensors.torch")
load_file, save_file = safetensors_torch.load_file, safetensors_torch.save_file

CONFIG = {
    "model_cfg": {"embed_dim": 8, "heads": 1, "eps": 1e-5, "context_length": 6, "vocab_size": 64, "image_size": 8},
    "preprocess_cfg": {"mean": [0.5, 0.4, 0.5], "std": [0.25, 0.3, 0.25], "interpolation": 3, "resize_longest": False},
    "tokenizer_cfg": {"clean": "lower"},
}
CLEANING = {"lower": str.lower, "whitespace": lambda text: " ".join(text.split())}


class Tower(torch.nn.Module):
    """Attention over rows of a table, whose number of heads no parameter shows."""

    def __init__(self, rows: int, width: int, heads: int, eps: float):
        super().__init__()
        self.table = torch.nn.Embedding(rows, width)
        self.attention = torch.nn.MultiheadAttention(width, heads, batch_first=True)
        self.norm = torch.nn.LayerNorm(width, eps)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.table(ids))
        return self.attention(x, x, x, need_weights=False)[0].mean(1)


class Clip(torch.nn.Module):
    """Two towers."""

    def __init__(self, embed_dim: int, heads: int, eps: float, context_length: int, vocab_size: int, image_size: int):
        super().__init__()
        self.visual, self.text = (Tower(rows, embed_dim, heads, eps) for rows in (256, vocab_size))
        self.logit_scale = torch.nn.Parameter(torch.ones([]))
        self.context_length, self.image_size = context_length, image_size
        self.register_buffer("shift", torch.linspace(-1, 1, 8), persistent=False)

    def encode_image(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.visual((pixels.flatten(1) * 20).long() % 256) + self.shift

    def encode_text(self, ids: torch.Tensor) -> torch.Tensor:
        return self.text(ids)


class Compose:
    """A chain of steps."""

    def __init__(self, steps: list[Any]):
        self.transforms = steps

    def __call__(self, image: Any) -> Any:
        for step in self.transforms:
            image = step(image)
        return image


class Resize(torch.nn.Module):
    """Without parameters, as torchvision's."""

    def __init__(self, size: int, interpolation: int, longest: bool):
        super().__init__()
        self.size, self.interpolation, self.longest = size, interpolation, longest

    def forward(self, image: Image.Image) -> Image.Image:
        sides = (self.size, self.size // 2 if self.longest else self.size)
        return image.convert("RGB").resize(sides, self.interpolation)


class Normalize:
    """Normalise pixels from 0 to 1."""

    def __init__(self, mean: list[float], std: list[float]):
        self.mean, self.std = mean, std

    def __call__(self, image: Image.Image) -> torch.Tensor:
        pixels = torch.from_numpy(np.array(image, np.float32) / 255)
        return (pixels - torch.tensor(self.mean)) / torch.tensor(self.std)


class SimpleTokenizer:
    """Byte pairs, with the cache that open_clip's keeps."""

    def __init__(self, vocabulary: dict[str, int], merges: list[list[str]], context_length: int, clean: str):
        self.encoder, self.bpe_ranks = vocabulary, {tuple(pair): rank for rank, pair in enumerate(merges)}
        self.cache = {"</s>": "</s>"}
        self.pat = re.compile(r"\w+", re.IGNORECASE)
        self.context_length, self.clean_fn = context_length, CLEANING[clean]

    def _split(self, word: str) -> list[str]:
        if word not in self.cache:
            parts = list(word)
            while pairs := [pair for pair in itertools.pairwise(parts) if pair in self.bpe_ranks]:
                at = list(itertools.pairwise(parts)).index(min(pairs, key=self.bpe_ranks.get))
                parts[at : at + 2] = ["".join(parts[at : at + 2])]
            self.cache[word] = parts
        return self.cache[word]

    def __call__(self, texts: list[str], context_length: int | None = None) -> torch.Tensor:
        length = context_length or self.context_length
        rows = torch.zeros(len(texts), length, dtype=torch.long)
        for row, text in zip(rows, texts, strict=True):
            parts = [part for word in self.pat.findall(self.clean_fn(text)) for part in self._split(word)]
            ids = torch.tensor([self.encoder.get(part, 3) for part in parts][:length], dtype=torch.long)
            row[: len(ids)] = ids
        return rows


class HFTokenizer:
    """A tokenizer of `transformers`."""

    def __init__(self, place: str, context_length: int, clean: str):
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(place)
        self.context_length, self.clean_fn = context_length, CLEANING[clean]

    def __call__(self, texts: list[str], context_length: int | None = None) -> torch.Tensor:
        length = context_length or self.context_length
        how = {"max_length": length, "padding": "max_length", "truncation": True, "return_tensors": "pt"}
        return self.tokenizer([self.clean_fn(text) for text in texts], **how)["input_ids"]


def make() -> types.ModuleType:
    """The module to put into `sys.modules`."""
    module = types.ModuleType("open_clip")
    module.__version__, module.__spec__ = "3.3.0", importlib.machinery.ModuleSpec("open_clip", None)
    module.create_model_and_transforms, module.get_tokenizer = _create_model_and_transforms, _get_tokenizer
    return module


def save(folder: Path, tokenizer: Any) -> Path:
    """Write a folder for `local-dir:`: with byte pairs, and those of `tokenizer` where that is one of transformers."""
    torch.manual_seed(0)
    save_file(Clip(**CONFIG["model_cfg"]).state_dict(), folder / "open_clip_model.safetensors", {"format": "pt"})
    (folder / "open_clip_config.json").write_text(json.dumps(CONFIG))
    if isinstance(tokenizer, dict):
        (folder / "byte_pairs.json").write_text(json.dumps(tokenizer))
    else:
        tokenizer.save_pretrained(folder)
    return folder


def _create_model_and_transforms(model: str, pretrained: Any, device: str, precision: str) -> tuple[Any, Any, Any]:
    folder = Path(model.removeprefix("local-dir:"))
    config = json.loads((folder / "open_clip_config.json").read_text())
    clip, pixels = Clip(**config["model_cfg"]), config["preprocess_cfg"]
    clip.load_state_dict(load_file(folder / "open_clip_model.safetensors"))
    resize = Resize(config["model_cfg"]["image_size"], pixels["interpolation"], pixels["resize_longest"])
    prepare = Compose([resize, Normalize(pixels["mean"], pixels["std"])])
    dtype = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[precision]
    return clip.to(device, dtype), None, prepare


def _get_tokenizer(model: str) -> Any:
    folder = Path(model.removeprefix("local-dir:"))
    config = json.loads((folder / "open_clip_config.json").read_text())
    choices = config["model_cfg"]["context_length"], config["tokenizer_cfg"]["clean"]
    if (folder / "tokenizer.json").is_file():
        return HFTokenizer(str(folder), *choices)
    pairs = json.loads((folder / "byte_pairs.json").read_text())
    return SimpleTokenizer(pairs["vocab"], pairs["merges"], *choices)
