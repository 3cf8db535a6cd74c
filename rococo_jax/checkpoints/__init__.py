"""The model directory, conversion of checkpoints of other projects, and export."""

from rococo_jax.checkpoints.formats import convert
from rococo_jax.checkpoints.formats.huggingface import export_huggingface
from rococo_jax.checkpoints.formats.open_clip import export_open_clip
from rococo_jax.checkpoints.model_directory import save_model

__all__ = ["convert", "export_huggingface", "export_open_clip", "save_model"]
