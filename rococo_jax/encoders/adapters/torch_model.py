"""Models that torch runs as encoders: open_clip's, those of `transformers` and of sentence-transformers."""

import functools
from collections.abc import Mapping
from typing import Any

from rococo_jax.data.pictures import as_8bit
from rococo_jax.data.tokenizers import TokenRows
from rococo_jax.encoders.adapters.pair_models import MATCHING_HEADS, TorchPairs, load_matching_head
from rococo_jax.encoders.adapters.torch_module import TorchModule, TorchOptions, taking_prompts
from rococo_jax.errors import InputError

# Trained on texts padded to one length, and without an attention mask: padding is part of the input.
_PADDED = ("siglip", "siglip2")
# Give a vector for every token; the contrastive one is the class token's (`FlavaForPreTraining`).
_OF_ALL_TOKENS = ("flava",)


class TorchModel(TorchModule):
    """A torch module that encodes in batches."""


def load_open_clip(
    model: str, pretrained: str | None = None, device: str = "cpu", dtype: str = "float32", batch_size: int = 32
) -> TorchModel:
    """Load `ARCHITECTURE/TAG`, an architecture with `pretrained`, `hf-hub:NAME` or `local-dir:PATH` by open_clip.

    `pretrained` is a tag, the path of a checkpoint such as `epoch_32.pt`, or `random`. Raises InputError where neither
    says which weights.
    """
    import open_clip
    import torch

    options = TorchOptions(device, dtype, batch_size)
    hub = model.startswith(("hf-hub:", "local-dir:"))
    if not hub and pretrained is None:
        model, slash, pretrained = model.partition("/")
        if not slash:
            wanted = "ARCHITECTURE/TAG, or the argument pretrained=TAG (a checkpoint's path; random)"
            raise InputError(f"open_clip:{model}", "weights", "no tag", wanted)
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
        # A text that fits keeps its tokens where there is room for one more.
        longer = tokenize(texts, context_length=rows.shape[1] + 1).numpy()
        return rows.tolist(), (longer[:, :-1] != rows).any(axis=1).tolist()

    encoder = TorchModel(module, options, settings, encode_image=encode_images, encode_text=encode_texts)
    encoder.token_rows = token_rows
    encoder.picture_for_library = as_8bit
    return encoder


def load_transformers(model: str, processor: str | None = None, **options: Any) -> TorchModel | TorchPairs:
    """A hub name or folder of `transformers`, and its processor, which may lie elsewhere.

    Raises InputError where the model has no `get_image_features` or no `get_text_features`, and no matching head.
    """
    import transformers

    options = TorchOptions(**options)
    config = transformers.AutoConfig.from_pretrained(model, **options.hub)
    architecture = next(iter(config.architectures or ()), None)
    if architecture in MATCHING_HEADS:
        return load_matching_head(model, architecture, processor, options)
    made = transformers.AutoModel.from_pretrained(model, dtype=options.torch_dtype, **options.hub)
    for method in ("get_image_features", "get_text_features"):
        if not hasattr(made, method):
            raise InputError(model, "model", f"{type(made).__name__} without {method}", "a dual encoder")
    ready = transformers.AutoProcessor.from_pretrained(processor or model, **options.hub)
    module, config = made.to(options.device), made.config.to_dict()
    length = (config.get("text_config") or {}).get("max_position_embeddings")
    padding = {"padding": "max_length" if made.config.model_type in _PADDED else True}
    padding |= {"truncation": True, "max_length": length, "return_tensors": "pt"}
    settings = {"processor": ready, "padding": padding}

    # The processor and not its parts, as it has defaults of its own for both.
    def encode_images(images: list) -> Any:
        pixels = ready(images=images, return_tensors="pt").to(options.device, module.dtype)
        return _vectors(module.get_image_features(**pixels), config["model_type"])

    def encode_texts(texts: list[str]) -> Any:
        tokens = ready(text=texts, **padding).to(options.device)
        return _vectors(module.get_text_features(**tokens), config["model_type"])

    def token_rows(texts: list[str]) -> TokenRows:
        rows = ready.tokenizer(texts, truncation=True, max_length=length)["input_ids"]
        longer = ready.tokenizer(texts, truncation=True, max_length=length and length + 1)["input_ids"]
        return rows, [len(one) < len(other) for one, other in zip(rows, longer, strict=True)]

    encoder = TorchModel(module, options, settings, encode_image=encode_images, encode_text=encode_texts)
    encoder.token_rows = token_rows
    if getattr(ready.image_processor, "do_convert_rgb", None):
        encoder.picture_for_library = as_8bit
    return encoder


def _vectors(output: Any, model_type: str) -> Any:
    """Older releases return the tensor, newer ones an output that holds it."""
    vectors = output if getattr(output, "pooler_output", None) is None else output.pooler_output
    return vectors[:, 0] if model_type in _OF_ALL_TOKENS else vectors


def load_sentence_transformers(model: str, **options: Any) -> TorchModel:
    """A `SentenceTransformer` from a hub name or folder."""
    import sentence_transformers

    options = TorchOptions(**options)
    how = {"device": options.device, "model_kwargs": {"dtype": options.torch_dtype}, **options.hub}
    made = sentence_transformers.SentenceTransformer(model, **how)

    def under(prompt: Mapping[str, str]) -> TorchModel:
        encode = functools.partial(made.encode, batch_size=options.batch_size, show_progress_bar=False, **prompt)
        return TorchModel(made, options, {"prompt": dict(prompt)}, encode_image=encode, encode_text=encode)

    return taking_prompts(under, made.prompts)
