"""Options of commands that evaluate or embed: the data, the model's source, the embedding. Imports no JAX."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from rococo_jax.benchmarks.settings import Settings
from rococo_jax.options import Group, Option

# Of commands that embed and ask nothing.
LOADING = Group(only=("activation", "heads", "tokenizer", "image_size", "model_arg"))
# Of commands that have no model to rerank with, and none that could tell its training images.
_NOT_ASKED = ("rerank", "require_clean")
QUESTIONS = Group(only=tuple(field.name for field in dataclasses.fields(Settings) if field.name not in _NOT_ASKED))

if TYPE_CHECKING:  # JAX takes a second
    from rococo_jax.benchmarks.benchmark import Benchmark
    from rococo_jax.encoders import LoadOptions
    from rococo_jax.encoders.cache import EmbeddingCache
    from rococo_jax.encoders.programs import Compute


@dataclasses.dataclass(frozen=True)
class DataOptions:
    """Names of benchmarks, and their folders.

    Attributes:
        data: folder of benchmarks in the documented layout; see rococo benchmarks
        benchmarks: which of them (default: all whose files are under --data)
        data_dir: another place for a folder of the layout, such as coco/images, or for a benchmark's annotations; may
            be repeated
        images: instead of --data: the images of one benchmark
        annotations: with --images: its annotation files, by which the benchmark is recognised
    """

    data: Annotated[str | None, Option("DIR")] = None
    benchmarks: Annotated[tuple[str, ...], Option("A,B")] = ()
    data_dir: Annotated[tuple[tuple[str, str], ...], Option("NAME=DIR")] = ()
    images: Annotated[str | None, Option("DIR")] = None
    annotations: Annotated[str | None, Option("DIR")] = None

    def open(self, settings: Settings) -> "list[Benchmark]":
        """The benchmarks, opened. Raises InputError as `open_benchmarks`."""
        from rococo_jax.evaluation.inputs import open_benchmarks

        places = {"images": self.images, "annotations": self.annotations, "data": self.data}
        return open_benchmarks(settings, **places, names=self.benchmarks, folders=dict(self.data_dir))


@dataclasses.dataclass(frozen=True)
class CheckpointOptions:
    """Parts of a model that its source may leave open.

    Attributes:
        activation: activation of an OpenAI or open_clip checkpoint that does not name it
        heads: heads of image and text tower, such as 16,8, for a state dict of no published size
        tokenizer: folder or hub name of the tokenizer, for a checkpoint without one; 'none' to go without
        image_size: pixels of a side of the images, where not the checkpoint's: positions are interpolated as by its
            own library
    """

    activation: Literal["quick_gelu", "gelu"] | None = None
    heads: Annotated[str | None, Option("IMAGE,TEXT")] = None
    tokenizer: Annotated[str | None, Option("DIR_OR_NAME")] = None
    image_size: Annotated[int | None, Option("PIXELS", least=1)] = None


@dataclasses.dataclass(frozen=True)
class SourceOptions(CheckpointOptions):
    """Settings that a checkpoint of another project may not record, as `load_model` takes them.

    Attributes:
        source_format: huggingface, openai, open_clip or big_vision (default: recognised by its files)
        pooling: how a DINOv2, DINOv3 or BERT tower is pooled (default: as the checkpoint names it, else cls)
    """

    source_format: Annotated[str, Option("FORMAT")] = "auto"
    pooling: Literal["cls", "mean", "cls+mean"] | None = None


@dataclasses.dataclass(frozen=True)
class ModelOptions(CheckpointOptions):
    """The same for models of any library.

    Attributes:
        model_arg: argument of the function or adapter that MODEL names; may be repeated
        by: how a model is asked that has vectors and scores pairs (default: vectors)
        candidates: a further model, whose vectors choose the candidates of --rerank
        query_prompt: instruction for queries, for models that take one, or the name of one of the model's own
        document_prompt: the same for what is ranked or chosen
    """

    model_arg: Annotated[tuple[str, ...], Option("KEY=VALUE", repeated=True)] = ()
    by: Literal["vectors", "pairs"] | None = None
    candidates: Annotated[str | None, Option("MODEL")] = None
    query_prompt: Annotated[str | None, Option("TEXT")] = None
    document_prompt: Annotated[str | None, Option("TEXT")] = None

    def load_options(self) -> "LoadOptions":
        """Options for `load_encoder`. Raises InputError for an argument that is no KEY=VALUE."""
        from rococo_jax.encoders import LoadOptions
        from rococo_jax.encoders.adapters import parse_arguments

        options = {name: value for name, value in vars(self).items() if name != "model_arg"}
        return LoadOptions(arguments=parse_arguments(self.model_arg), **options)


@dataclasses.dataclass(frozen=True)
class EmbeddingOptions:
    """How embeddings are computed and kept.

    Attributes:
        precision: precision of the towers; high is float32 with products in 3 passes of bfloat16 (default: high on TPUs
            and on GPUs from the A100 on, else float32)
        images_at_once: images at once on each device (default: what fits into its memory)
        device: cpu, gpu (cuda, rocm) or tpu (default: the fastest there is)
        quiet: no progress; errors and warnings are still printed
        cache: where embeddings are kept (default: $ROCOCO_CACHE/embeddings, else ~/.cache/rococo_jax/embeddings)
        no_cache: neither read nor keep embeddings
    """

    precision: Literal["float32", "high", "bfloat16"] | None = None
    images_at_once: Annotated[int | None, Option("N", flag="batch-size", least=1)] = None
    device: Annotated[str | None, Option("KIND")] = None
    quiet: bool = False
    cache: Annotated[str | None, Option("DIR")] = None
    no_cache: bool = False

    def compute(self) -> "Compute":
        """How towers compute. Starts the devices."""
        from rococo_jax.encoders.programs import Compute, precision_of_evaluations

        return Compute(self.precision or precision_of_evaluations(), self.images_at_once)

    def open_cache(self) -> "EmbeddingCache":
        """The cache of embeddings."""
        from rococo_jax.encoders.cache import EmbeddingCache
        from rococo_jax.runtime import cache_folder

        if self.no_cache:
            return EmbeddingCache(None)
        return EmbeddingCache(Path(self.cache) if self.cache else cache_folder() / "embeddings")
