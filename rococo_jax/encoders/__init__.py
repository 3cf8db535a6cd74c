"""Encode images and texts by models of this project, or by objects of any framework."""

from rococo_jax.encoders.encoder import Encoder
from rococo_jax.encoders.foreign_model import ForeignModel
from rococo_jax.encoders.loading import LoadOptions, load_encoder, load_model
from rococo_jax.encoders.protocol import ImageTextEncoder

__all__ = ["Encoder", "ForeignModel", "ImageTextEncoder", "LoadOptions", "load_encoder", "load_model"]
