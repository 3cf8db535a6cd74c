"""open_clip's models: `open_clip:ARCHITECTURE/TAG`, or `open_clip:hf-hub:NAME`."""

from collections.abc import Sequence
from typing import Any

from rococo_jax.encoders.adapters.torch_model import TorchModel, find_dtype
from rococo_jax.errors import InputError


def load(
    model: str, pretrained: str | None = None, device: str = "cpu", dtype: str = "float32", batch_size: int = 32
) -> "OpenClipModel":
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

    hub = model.startswith(("hf-hub:", "local-dir:"))
    if not hub and pretrained is None:
        model, slash, pretrained = model.partition("/")
        if not slash:
            wanted = "ARCHITECTURE/TAG, or --model-arg pretrained=TAG (a checkpoint's path; random)"
            raise InputError(f"open_clip:{model}", "weights", "no tag", wanted)
    find_dtype(dtype)
    weights = None if hub or pretrained == "random" else pretrained
    precision = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}[dtype]
    made, _, prepare = open_clip.create_model_and_transforms(model, weights, device=device, precision=precision)
    settings = {"open_clip": open_clip.__version__, "model": model, "images": repr(prepare), "dtype": dtype}
    return OpenClipModel(made, prepare, open_clip.get_tokenizer(model), device, dtype, settings, batch_size)


class OpenClipModel(TorchModel):
    """The towers, the transform of evaluation, and the tokenizer."""

    def __init__(
        self, module: Any, prepare: Any, tokenize: Any, device: str, dtype: str, settings: dict, batch_size: int
    ):
        super().__init__(module, settings, batch_size)
        self.prepare, self.tokenize, self.device, self.dtype = prepare, tokenize, device, find_dtype(dtype)

    def _image_vectors(self, images: Sequence) -> Any:
        import torch

        pixels = torch.stack([self.prepare(image) for image in images])
        return self.module.encode_image(pixels.to(self.device, self.dtype))

    def _text_vectors(self, texts: Sequence[str]) -> Any:
        return self.module.encode_text(self.tokenize(list(texts)).to(self.device))
