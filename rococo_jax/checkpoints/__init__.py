"""Models in and out: the model directory, converters from checkpoints of other projects, and export."""

from rococo_jax.checkpoints.export import export_huggingface
from rococo_jax.checkpoints.huggingface import convert_huggingface
from rococo_jax.checkpoints.model_directory import save_model
from rococo_jax.checkpoints.sources import convert

__all__ = ["convert", "convert_huggingface", "export_huggingface", "save_model"]
