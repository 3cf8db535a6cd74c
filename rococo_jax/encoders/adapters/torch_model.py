"""Load encoders that run in torch: models of open_clip, `transformers` and sentence-transformers."""

import functools
from collections.abc import Mapping
from typing import Any

from rococo_jax.data.pictures import as_8bit
from rococo_jax.data.tokenizers import TokenRows
from rococo_jax.encoders.adapters.pair_models import MATCHING_HEADS, load_matching_head
from rococo_jax.encoders.adapters.torch_module import TorchModule, TorchOptions, with_prompt_support
from rococo_jax.errors import InputError

# Trained on texts padded to one length without an attention mask, so padding is part of the input.
_PADDED_TO_CONTEXT = ("siglip", "siglip2")
# Return an embedding of every token; the contrastive one is the class token's (`FlavaForPreTraining`).
_RETURN_ALL_TOKENS = ("flava",)


def load_open_clip(
    model: str, pretrained: str | None = None, device: str = "cpu", dtype: str = "float32", batch_size: int = 32
) -> TorchModule:
    """Load `ARCHITECTURE/TAG`, an architecture with `pretrained`, `hf-hub:NAME` or `local-dir:PATH` with open_clip.

    `pretrained` is a tag, the path of a checkpoint such as `epoch_32.pt`, or `random`. Raises InputError if neither the
    name nor `pretrained` determines the weights.
    """
    import open_clip
    import torch

    options = TorchOptions(device, dtype, batch_size)
    hub = model.startswith(("hf-hub:", "local-dir:"))
    if not hub and pretrained is None:
        model, slash, pretrained = model.partition("/")
        if not slash:
            expected = "ARCHITECTURE/TAG, or the argument pretrained=TAG (a checkpoint's path; random)"
            raise InputError(f"open_clip:{model}", "weights", "no tag", expected)
    weights = None if hub or pretrained == "random" else pretrained
    precision = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}[dtype]
    module, _, prepare = open_clip.create_model_and_transforms(model, weights, device=device, precision=precision)
    tokenize = open_clip.get_tokenizer(model)
    settings = {"open_clip": open_clip.__version__, "images": prepare, "tokenizer": tokenize}

    def encode_images(images: list) -> Any:
        pixels = torch.stack([prepare(image) for image in images])
        return module.encode_image(pixels.to(device, options.torch_dtype))

    def encode_texts(texts: list[str]) -> Any:
        return module.encode_text(tokenize(texts).to(device))

    def token_rows(texts: list[str]) -> TokenRows:
        rows = tokenize(texts).numpy()
        # A text that is not truncated has the same tokens in a longer context.
        longer = tokenize(texts, context_length=rows.shape[1] + 1).numpy()
        return rows.tolist(), (longer[:, :-1] != rows).any(axis=1).tolist()

    encoder = TorchModule(module, options, settings, encode_image=encode_images, encode_text=encode_texts)
    encoder.token_rows = token_rows
    encoder.picture_for_library = as_8bit
    return encoder


def load_transformers(model: str, processor: str | None = None, **options: Any) -> TorchModule:
    """Load a hub name or folder with `transformers`; `processor` is the source of its processor if it differs.

    Raises InputError if the model has neither a matching head nor both `get_image_features` and `get_text_features`.
    """
    import transformers

    options = TorchOptions(**options)
    config = transformers.AutoConfig.from_pretrained(model, **options.hub)
    architecture = next(iter(config.architectures or ()), None)
    if architecture in MATCHING_HEADS:
        return load_matching_head(model, architecture, processor, options)
    module = transformers.AutoModel.from_pretrained(model, dtype=options.torch_dtype, **options.hub)
    for method in ("get_image_features", "get_text_features"):
        if not hasattr(module, method):
            raise InputError(model, "model", f"{type(module).__name__} without {method}", "a dual encoder")
    processor_object = transformers.AutoProcessor.from_pretrained(processor or model, **options.hub)
    module = module.to(options.device)
    config = module.config.to_dict()
    length = (config.get("text_config") or {}).get("max_position_embeddings")
    padding = {"padding": "max_length" if config["model_type"] in _PADDED_TO_CONTEXT else True}
    padding |= {"truncation": True, "max_length": length, "return_tensors": "pt"}
    settings = {"processor": processor_object, "padding": padding}

    # The processor instead of its parts, because it has its own defaults for both.
    def encode_images(images: list) -> Any:
        pixels = processor_object(images=images, return_tensors="pt").to(options.device, module.dtype)
        return _embeddings(module.get_image_features(**pixels), config["model_type"])

    def encode_texts(texts: list[str]) -> Any:
        tokens = processor_object(text=texts, **padding).to(options.device)
        return _embeddings(module.get_text_features(**tokens), config["model_type"])

    def token_rows(texts: list[str]) -> TokenRows:
        rows = processor_object.tokenizer(texts, truncation=True, max_length=length)["input_ids"]
        longer = processor_object.tokenizer(texts, truncation=True, max_length=length and length + 1)["input_ids"]
        return rows, [len(row) < len(longer_row) for row, longer_row in zip(rows, longer, strict=True)]

    encoder = TorchModule(module, options, settings, encode_image=encode_images, encode_text=encode_texts)
    encoder.token_rows = token_rows
    if getattr(processor_object.image_processor, "do_convert_rgb", None):
        encoder.picture_for_library = as_8bit
    return encoder


def _embeddings(output: Any, model_type: str) -> Any:
    """Return the tensor, which newer releases wrap in an output object."""
    embeddings = output if getattr(output, "pooler_output", None) is None else output.pooler_output
    return embeddings[:, 0] if model_type in _RETURN_ALL_TOKENS else embeddings


def load_sentence_transformers(model: str, **options: Any) -> TorchModule:
    """Load a `SentenceTransformer` from a hub name or folder."""
    import sentence_transformers

    options = TorchOptions(**options)
    kwargs = {"device": options.device, "model_kwargs": {"dtype": options.torch_dtype}, **options.hub}
    module = sentence_transformers.SentenceTransformer(model, **kwargs)

    def load(prompt: Mapping[str, str]) -> TorchModule:
        encode = functools.partial(module.encode, batch_size=options.batch_size, show_progress_bar=False, **prompt)
        return TorchModule(module, options, {"prompt": dict(prompt)}, encode_image=encode, encode_text=encode)

    return with_prompt_support(load, module.prompts)
