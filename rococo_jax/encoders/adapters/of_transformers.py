"""Models of `transformers` with `get_image_features` and `get_text_features`, run by torch: `transformers:NAME`."""

from collections.abc import Sequence
from typing import Any

from rococo_jax.encoders.adapters.torch_model import TorchModel, find_dtype
from rococo_jax.errors import InputError

# Trained on texts padded to one length, and without an attention mask: padding is part of the input.
_PADDED = ("siglip", "siglip2")


def load(
    model: str,
    processor: str | None = None,
    revision: str | None = None,
    device: str = "cpu",
    dtype: str = "float32",
    batch_size: int = 32,
    trust_remote_code: bool = False,
) -> "TransformersModel":
    """A model of `transformers` and its processor.

    Args:
        model: a hub name or folder.
        processor: where image processor and tokenizer are, if not with the model.
        revision, trust_remote_code: as of `from_pretrained`.
        device, dtype: of the towers.
        batch_size: images or texts at once.

    Raises:
        InputError: the model has no features of images or of texts.
    """
    import transformers

    options = {"revision": revision, "trust_remote_code": trust_remote_code}
    made = transformers.AutoModel.from_pretrained(model, dtype=find_dtype(dtype), **options)
    for method in ("get_image_features", "get_text_features"):
        if not hasattr(made, method):
            raise InputError(model, "model", f"{type(made).__name__} without {method}", "a dual encoder")
    ready = transformers.AutoProcessor.from_pretrained(processor or model, **options)
    settings = {"transformers": transformers.__version__, "config": made.config.to_dict(), "dtype": dtype}
    settings["processor"] = _plain({"images": ready.image_processor.to_dict(), "texts": ready.tokenizer.init_kwargs})
    return TransformersModel(made.to(device), ready, device, settings, batch_size)


def _plain(value: Any) -> Any:
    """The value with whatever JSON does not know as text; paths, which differ between machines, left out."""
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items() if "path" not in str(key)}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)


class TransformersModel(TorchModel):
    """A dual encoder and its processor."""

    def __init__(self, module: Any, processor: Any, device: str, settings: dict, batch_size: int):
        settings["config"] = _plain(settings["config"])
        super().__init__(module, settings, batch_size)
        self.processor, self.device = processor, device
        padded = module.config.model_type in _PADDED
        self.padding = {"padding": "max_length"} if padded else {"padding": True}
        length = getattr(getattr(module.config, "text_config", None), "max_position_embeddings", None)
        self.padding |= {"truncation": True} | ({"max_length": length} if length else {})

    def _image_vectors(self, images: Sequence) -> Any:
        pixels = self.processor.image_processor(images=list(images), return_tensors="pt")
        pixels = pixels.to(self.device, self.module.dtype)
        return _vectors(self.module.get_image_features(**pixels))

    def _text_vectors(self, texts: Sequence[str]) -> Any:
        tokens = self.processor.tokenizer(list(texts), return_tensors="pt", **self.padding).to(self.device)
        return _vectors(self.module.get_text_features(**tokens))


def _vectors(output: Any) -> Any:
    """Older releases return the tensor, newer ones an output that holds it."""
    return output if getattr(output, "pooler_output", None) is None else output.pooler_output
