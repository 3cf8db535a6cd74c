"""open_clip's models: `open_clip:ARCHITECTURE/TAG`, or `open_clip:hf-hub:NAME`."""

from typing import Any

from rococo_jax.encoders.adapters.torch_model import TorchModel, find_dtype
from rococo_jax.errors import InputError


def load(
    model: str, pretrained: str | None = None, device: str = "cpu", dtype: str = "float32", batch_size: int = 32
) -> TorchModel:
    """A model of open_clip.

    Args:
        model: `ARCHITECTURE/TAG`, an architecture alone with `pretrained`, `hf-hub:NAME` or `local-dir:PATH`.
        pretrained: a tag, or the path of a checkpoint such as `epoch_32.pt`; `random` for random weights.
        device, dtype: of the towers.
        batch_size: images or texts at once.

    Raises:
        InputError: neither the name nor `pretrained` says which weights.
    """
    import open_clip
    import torch

    hub = model.startswith(("hf-hub:", "local-dir:"))
    if not hub and pretrained is None:
        model, slash, pretrained = model.partition("/")
        if not slash:
            wanted = "ARCHITECTURE/TAG, or --model-arg pretrained=TAG (a checkpoint's path; random)"
            raise InputError(f"open_clip:{model}", "weights", "no tag", wanted)
    find_dtype(dtype)
    weights = None if hub or pretrained == "random" else pretrained
    precision = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}[dtype]
    module, _, prepare = open_clip.create_model_and_transforms(model, weights, device=device, precision=precision)
    tokenize, settings = open_clip.get_tokenizer(model), {"open_clip": open_clip.__version__, "model": model}

    def encode_images(images: list) -> Any:
        pixels = torch.stack([prepare(image) for image in images])
        return module.encode_image(pixels.to(device, find_dtype(dtype)))

    def encode_texts(texts: list[str]) -> Any:
        return module.encode_text(tokenize(texts).to(device))

    settings |= {"images": repr(prepare), "dtype": dtype}
    return TorchModel(module, encode_images, encode_texts, settings, batch_size)
