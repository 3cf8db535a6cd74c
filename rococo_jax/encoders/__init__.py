"""Images and strings in, unit vectors out: batched, bucketed by length, sharded over a mesh, kept on disk if asked."""

from rococo_jax.encoders.encoder import Encoder
from rococo_jax.encoders.loading import load_model

__all__ = ["Encoder", "load_model"]
