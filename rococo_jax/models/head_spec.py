"""Specification of the heads, which map pooled features of a tower to embeddings."""

import dataclasses
from typing import ClassVar, Literal

from rococo_jax.errors import InputError
from rococo_jax.models.checked_spec import CheckedSpec

HeadKind = Literal["none", "linear", "mlp"]


@dataclasses.dataclass(frozen=True)
class HeadSpec(CheckedSpec):
    """Map of pooled features to an embedding: none, an affine map into `dim` dimensions, or an MLP.

    With `hidden`, the kind `linear` has an additional residual MLP of that width: `x A + a + mlp(norm(x))`. The kind
    `mlp` is `gelu(x A + a) B` with `hidden` channels (open_clip); `hidden_bias` adds `a`.
    """

    label: ClassVar[str] = "head"
    omit_if_default: ClassVar[frozenset[str]] = frozenset(("hidden_bias",))

    kind: HeadKind = "none"
    dim: int | None = None
    bias: bool = False
    hidden: int | None = None
    hidden_bias: bool = False

    def __post_init__(self):
        if self.kind == "none" and self.hidden is not None:
            raise InputError("head spec", "hidden", self.hidden, "null for kind 'none'")
        if self.kind == "mlp" and self.hidden is None:
            raise InputError("head spec", "hidden", None, "a number of channels for kind 'mlp'")
        if (self.kind == "none") != (self.dim is None):
            raise InputError("head spec", "dim", self.dim, "null for kind 'none', a number of dimensions otherwise")
