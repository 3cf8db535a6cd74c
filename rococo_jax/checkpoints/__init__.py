"""Models in and out: the model directory, and converters from checkpoints of other projects."""

from rococo_jax.checkpoints.huggingface import convert_huggingface
from rococo_jax.checkpoints.loading import load_model
from rococo_jax.checkpoints.model_directory import save_model

__all__ = ["convert_huggingface", "load_model", "save_model"]
