"""Where an image tower looks, and whether it looks at what was mixed in."""

from rococo_jax.studies.attention.page import write_attention_page
from rococo_jax.studies.attention.pairs import choose_pairs

__all__ = ["choose_pairs", "write_attention_page"]
