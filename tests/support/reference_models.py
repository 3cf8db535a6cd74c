"""Randomly initialised models of `transformers`, odd in every size, every parameter perturbed, saved as folders.

A fresh model has zero biases and unit norms, under which a forgotten bias or swapped norms would go unnoticed; so each
parameter gets noise of its own.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from flax import nnx

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
safetensors_torch = pytest.importorskip("safetensors.torch")

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

images = nnx.jit(lambda model, pixels: model.image_embeddings(pixels))
texts = nnx.jit(lambda model, ids, mask: model.text_embeddings(ids, mask))
pairs = nnx.jit(lambda model, pixels, ids, mask: (model.image_embeddings(pixels), model.text_embeddings(ids, mask)))


def perturbed(model, seed: int = 0):
    """The model in evaluation mode, all its parameters moved a little. Matrices keep their spread."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            spread = 0.05 if parameter.ndim > 1 else 0.2
            if name.endswith(("logit_scale", "temperature")):
                spread = 0.5 if name.endswith("logit_scale") else 0.01
            parameter.add_(spread * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def saved(model, folder: Path, **options) -> Path:
    """Write the model as `transformers` does, and return its folder."""
    model.save_pretrained(folder, **options)
    return folder


def change_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """Rewrite the folder's weights through `change(tensors by name)`."""
    path = folder / "model.safetensors"
    tensors = safetensors_torch.load_file(path)
    change(tensors)
    safetensors_torch.save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)


def save_words(folder: Path, words: Sequence[str], start: str, end: str) -> Path:
    """Write a tokenizer of words between spaces, where unknown ones are `a`; a text stands between two marks."""
    vocabulary = {word: number for number, word in enumerate(words)}
    rust = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="a"))
    rust.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    marks = [(word, vocabulary[word]) for word in (start, end)]
    rust.post_processor = tokenizers.processors.TemplateProcessing(single=f"{start} $A {end}", special_tokens=marks)
    rust.save(str(folder / "tokenizer.json"))
    return folder


VISION = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 3}
VISION = {**VISION, "image_size": 30, "patch_size": 10}
BARE_TEXT = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4}
BARE_TEXT = {**BARE_TEXT, "vocab_size": 99, "max_position_embeddings": 13}
TEXT = {**BARE_TEXT, "bos_token_id": 97, "eos_token_id": 98}


def clip(text=None, vision=None, projection_dim: int = 16, seed: int = 0) -> transformers.CLIPModel:
    config = transformers.CLIPConfig(
        text_config={**TEXT, **(text or {})}, vision_config={**VISION, **(vision or {})}, projection_dim=projection_dim
    )
    return perturbed(transformers.CLIPModel(config), seed)


def metaclip2(text=None) -> transformers.MetaClip2Model:
    """Texts end with the id 2, as those of the published models."""
    text = {**TEXT, "eos_token_id": 2, **(text or {})}
    config = transformers.MetaClip2Config(text_config=text, vision_config=VISION, projection_dim=16)
    return perturbed(transformers.MetaClip2Model(config))


def siglip(text=None, vision=None, seed: int = 0) -> transformers.SiglipModel:
    text = {**TEXT, "projection_size": {**VISION, **(vision or {})}["hidden_size"], **(text or {})}
    config = transformers.SiglipConfig(text_config=text, vision_config={**VISION, **(vision or {})})
    return perturbed(transformers.SiglipModel(config), seed)


def siglip2(text=None, patches: int = 9, patch_size: int = 10, seed: int = 0) -> transformers.Siglip2Model:
    """SigLIP 2 NaFlex, whose positions are stored for so many patches."""
    vision = {key: value for key, value in VISION.items() if key != "image_size"}
    vision |= {"patch_size": patch_size, "num_patches": patches}
    text = {**TEXT, "projection_size": vision["hidden_size"], **(text or {})}
    return perturbed(
        transformers.Siglip2Model(transformers.Siglip2Config(text_config=text, vision_config=vision)), seed
    )


def dinov2(seed: int = 0, **changes) -> transformers.Dinov2Model:
    sizes = {key: value for key, value in VISION.items() if key != "intermediate_size"}
    return perturbed(transformers.Dinov2Model(transformers.Dinov2Config(**{**sizes, **changes})), seed)


def dinov2_with_registers(seed: int = 0, **changes) -> transformers.Dinov2WithRegistersModel:
    sizes = {**{key: value for key, value in VISION.items() if key != "intermediate_size"}, **changes}
    return perturbed(transformers.Dinov2WithRegistersModel(transformers.Dinov2WithRegistersConfig(**sizes)), seed)


def dinov3(seed: int = 0, **changes) -> transformers.DINOv3ViTModel:
    sizes = {**VISION, "num_register_tokens": 3, **changes}
    return perturbed(transformers.DINOv3ViTModel(transformers.DINOv3ViTConfig(**sizes)), seed)


def tipsv2(text=None, vision=None) -> transformers.Tipsv2Model:
    sizes = {**{key: value for key, value in VISION.items() if key != "intermediate_size"}, "mlp_ratio": 2.3}
    text = {**BARE_TEXT, "hidden_size": sizes["hidden_size"], **(text or {})}
    config = transformers.Tipsv2Config(
        text_config=text, vision_config={**sizes, **(vision or {})}, temperature_init_value=0.1
    )
    return perturbed(transformers.Tipsv2Model(config))


def bert(seed: int = 0, **changes) -> transformers.BertModel:
    return perturbed(transformers.BertModel(transformers.BertConfig(**{**BARE_TEXT, **changes})), seed)


def roberta(kind: str = "Roberta") -> transformers.PreTrainedModel:
    config = getattr(transformers, f"{kind}Config")(**BARE_TEXT, pad_token_id=1, type_vocab_size=1)
    return perturbed(getattr(transformers, f"{kind}Model")(config))


def torch_pixels(pixels: np.ndarray) -> torch.Tensor:
    """(n, h, w, 3) as the reference wants it, (n, 3, h, w)."""
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)))


def torch_ids(ids: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(ids.astype(np.int64))


def mean_pooled(tokens: torch.Tensor, mask: np.ndarray) -> torch.Tensor:
    """The mean of the tokens under the mask."""
    weights = torch.from_numpy(mask).float()[..., None]
    return (tokens * weights).sum(1) / weights.sum(1)


def unit(vectors: torch.Tensor) -> np.ndarray:
    return torch.nn.functional.normalize(vectors, dim=-1).numpy()


def assert_same_vectors(ours, reference, tolerance: float = 1e-4) -> None:
    """Unit vectors agree: within 1e-4 absolute (float32 sums in another order, over a few layers) and in direction."""
    ours, reference = np.asarray(ours, np.float64), np.asarray(reference, np.float64)
    assert ours.shape == reference.shape
    np.testing.assert_allclose(ours, reference, rtol=0, atol=tolerance)
    cosine = (ours * reference).sum(-1) / np.linalg.norm(ours, axis=-1) / np.linalg.norm(reference, axis=-1)
    assert cosine.min() >= 0.99999
