"""Models of `transformers` with `get_image_features` and `get_text_features`, run by torch: `transformers:NAME`."""

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
) -> TorchModel:
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
    module, config = made.to(device), made.config.to_dict()
    settings = {"transformers": transformers.__version__, "config": _plain(config), "dtype": dtype}
    settings["processor"] = _plain({"images": ready.image_processor.to_dict(), "texts": ready.tokenizer.init_kwargs})
    padding = {"padding": "max_length" if made.config.model_type in _PADDED else True, "truncation": True}
    if length := (config.get("text_config") or {}).get("max_position_embeddings"):
        padding["max_length"] = length

    def encode_images(images: list) -> Any:
        pixels = ready.image_processor(images=images, return_tensors="pt").to(device, module.dtype)
        return _vectors(module.get_image_features(**pixels))

    def encode_texts(texts: list[str]) -> Any:
        tokens = ready.tokenizer(texts, return_tensors="pt", **padding).to(device)
        return _vectors(module.get_text_features(**tokens))

    return TorchModel(module, encode_images, encode_texts, settings, batch_size)


def _plain(value: Any) -> Any:
    """The value with whatever JSON does not know as text; paths, which differ between machines, left out."""
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items() if "path" not in str(key)}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _vectors(output: Any) -> Any:
    """Older releases return the tensor, newer ones an output that holds it."""
    return output if getattr(output, "pooler_output", None) is None else output.pooler_output
