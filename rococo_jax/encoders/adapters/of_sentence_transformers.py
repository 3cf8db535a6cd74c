"""Models of sentence-transformers that encode images and texts: `sentence_transformers:clip-ViT-B-32`."""

import functools

from rococo_jax.encoders.adapters.torch_model import TorchModel, find_dtype


def load(
    model: str, device: str = "cpu", dtype: str = "float32", batch_size: int = 32, trust_remote_code: bool = False
) -> TorchModel:
    """A `SentenceTransformer` from a hub name or folder."""
    import sentence_transformers

    kwargs = {"dtype": find_dtype(dtype)}
    made = sentence_transformers.SentenceTransformer(
        model, device=device, trust_remote_code=trust_remote_code, model_kwargs=kwargs
    )
    settings = {"sentence_transformers": sentence_transformers.__version__, "modules": repr(made), "dtype": dtype}
    encode = functools.partial(made.encode, batch_size=batch_size, show_progress_bar=False)
    return TorchModel(made, encode, encode, settings, batch_size)
