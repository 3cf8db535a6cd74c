"""Models of sentence-transformers that encode images and texts: `sentence_transformers:clip-ViT-B-32`."""

from collections.abc import Sequence
from typing import Any

from rococo_jax.encoders.adapters.torch_model import TorchModel, find_dtype


def load(
    model: str, device: str = "cpu", dtype: str = "float32", batch_size: int = 32, trust_remote_code: bool = False
) -> "SentenceTransformersModel":
    """A `SentenceTransformer` from a hub name or folder."""
    import sentence_transformers

    kwargs = {"dtype": find_dtype(dtype)}
    made = sentence_transformers.SentenceTransformer(
        model, device=device, trust_remote_code=trust_remote_code, model_kwargs=kwargs
    )
    settings = {"sentence_transformers": sentence_transformers.__version__, "modules": repr(made), "dtype": dtype}
    return SentenceTransformersModel(made, settings, batch_size)


class SentenceTransformersModel(TorchModel):
    """Images and texts both go through `encode`."""

    def _image_vectors(self, images: Sequence) -> Any:
        return self._text_vectors(images)

    def _text_vectors(self, texts: Sequence) -> Any:
        return self.module.encode(list(texts), batch_size=self.batch_size, show_progress_bar=False)
