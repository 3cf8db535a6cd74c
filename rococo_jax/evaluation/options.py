"""Command-line options of commands that evaluate or embed: data, source of the model, embedding. Imports no JAX."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from rococo_jax.benchmarks.settings import Settings
from rococo_jax.options import Group, Option

# For commands that only compute embeddings.
LOADING = Group(only=("activation", "heads", "tokenizer", "image_size", "model_arg"))
# Not for commands without a model: they cannot rerank, and there are no training images to exclude.
_NEEDS_MODEL = ("rerank", "require_clean")
QUESTIONS = Group(only=tuple(field.name for field in dataclasses.fields(Settings) if field.name not in _NEEDS_MODEL))

if TYPE_CHECKING:  # JAX takes a second
    from rococo_jax.benchmarks.benchmark import Benchmark
    from rococo_jax.encoders import LoadOptions
    from rococo_jax.encoders.cache import EmbeddingCache
    from rococo_jax.encoders.programs import Compute


@dataclasses.dataclass(frozen=True)
class DataOptions:
    """Benchmarks and their folders.

    Attributes:
        data: folder of benchmarks in the documented layout; see rococo benchmarks
        benchmarks: names of benchmarks to evaluate (default: all whose files are under --data)
        data_dir: another location of a folder of the layout (such as coco/images=DIR) or of a benchmark's annotations;
            may be repeated
        images: images of one benchmark, instead of --data
        annotations: annotation files of that benchmark, which is recognised by them
    """

    data: Annotated[str | None, Option("DIR")] = None
    benchmarks: Annotated[tuple[str, ...], Option("A,B")] = ()
    data_dir: Annotated[tuple[tuple[str, str], ...], Option("NAME=DIR")] = ()
    images: Annotated[str | None, Option("DIR")] = None
    annotations: Annotated[str | None, Option("DIR")] = None

    def open(self, settings: Settings) -> "list[Benchmark]":
        """Open the benchmarks. Raises InputError as `open_benchmarks`."""
        from rococo_jax.evaluation.inputs import open_benchmarks

        places = {"images": self.images, "annotations": self.annotations, "data": self.data}
        return open_benchmarks(settings, **places, names=self.benchmarks, folders=dict(self.data_dir))


@dataclasses.dataclass(frozen=True)
class CheckpointOptions:
    """Parts of a model that its source may not specify.

    Attributes:
        activation: activation of an OpenAI or open_clip checkpoint that does not name it
        heads: heads of image and text tower, such as 16,8, for a state dict of no published size
        tokenizer: folder or hub name of the tokenizer, for a checkpoint without one; 'none' for no tokenizer
        image_size: side of the images in pixels, if not the checkpoint's; position embeddings are interpolated as in
            its own library
    """

    activation: Literal["quick_gelu", "gelu"] | None = None
    heads: Annotated[str | None, Option("IMAGE,TEXT")] = None
    tokenizer: Annotated[str | None, Option("DIR_OR_NAME")] = None
    image_size: Annotated[int | None, Option("PIXELS", least=1)] = None


@dataclasses.dataclass(frozen=True)
class SourceOptions(CheckpointOptions):
    """Settings that a checkpoint of another project may not specify, as arguments of `load_model`.

    Attributes:
        source_format: huggingface, openai, open_clip or big_vision (default: recognised by its files)
        pooling: pooling of a DINOv2, DINOv3 or BERT tower (default: as the checkpoint specifies, else cls)
    """

    source_format: Annotated[str, Option("FORMAT")] = "auto"
    pooling: Literal["cls", "mean", "cls+mean"] | None = None


@dataclasses.dataclass(frozen=True)
class ModelOptions(CheckpointOptions):
    """Options for models of any library.

    Attributes:
        model_arg: argument of the function or adapter that MODEL names; may be repeated
        by: scoring mode of a model that has embeddings and also scores pairs (default: vectors, its embeddings)
        candidates: another model, whose embeddings choose the candidates of --rerank
        query_prompt: instruction for queries, for models that support one, or the name of one of the model's prompts
        document_prompt: the same for gallery items and answers
    """

    model_arg: Annotated[tuple[str, ...], Option("KEY=VALUE", repeated=True)] = ()
    by: Literal["vectors", "pairs"] | None = None
    candidates: Annotated[str | None, Option("MODEL", excludes=("by=vectors",))] = None
    query_prompt: Annotated[str | None, Option("TEXT")] = None
    document_prompt: Annotated[str | None, Option("TEXT")] = None

    def load_options(self) -> "LoadOptions":
        """Return options for `load_encoder`. Raises InputError for an argument that is not KEY=VALUE."""
        from rococo_jax.encoders import LoadOptions
        from rococo_jax.encoders.adapters import parse_arguments

        options = {name: value for name, value in vars(self).items() if name != "model_arg"}
        return LoadOptions(arguments=parse_arguments(self.model_arg), **options)


@dataclasses.dataclass(frozen=True)
class EmbeddingOptions:
    """Computation and cache of embeddings.

    Attributes:
        precision: precision of the towers; high is float32 with products in 3 passes of bfloat16 (default: high on TPUs
            and on GPUs from the A100 on, else float32)
        images_at_once: images per batch on each device (default: a fixed number, halved when its memory runs out)
        device: cpu, gpu (cuda, rocm) or tpu (default: the fastest available)
        quiet: no progress; errors and warnings are still printed
        cache: folder of the embedding cache (default: $ROCOCO_CACHE/embeddings, else ~/.cache/rococo_jax/embeddings)
        no_cache: do not read or write cached embeddings
    """

    precision: Literal["float32", "high", "bfloat16"] | None = None
    images_at_once: Annotated[int | None, Option("N", flag="batch-size", least=1)] = None
    device: Annotated[str | None, Option("KIND")] = None
    quiet: bool = False
    cache: Annotated[str | None, Option("DIR")] = None
    no_cache: bool = False

    def compute(self) -> "Compute":
        """Return precision and batch size of the towers. Initialises the devices."""
        from rococo_jax.encoders.programs import Compute, precision_of_evaluations

        return Compute(self.precision or precision_of_evaluations(), self.images_at_once)

    def open_cache(self) -> "EmbeddingCache":
        """Open the cache of embeddings."""
        from rococo_jax.encoders.cache import EmbeddingCache
        from rococo_jax.runtime import cache_folder

        if self.no_cache:
            return EmbeddingCache(None)
        return EmbeddingCache(Path(self.cache) if self.cache else cache_folder() / "embeddings")


# For commands with an option of their own for several image sizes.
ANY_SIZE = Group(only=tuple(field.name for field in dataclasses.fields(ModelOptions) if field.name != "image_size"))
