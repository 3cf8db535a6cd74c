"""`rococo embed-regions`: vectors of VSE-infinity over regions, from the features that a detector gave."""

import dataclasses
from typing import Annotated

from rococo_jax.cli.outputs import output_file
from rococo_jax.options import Option

EXAMPLES = """\
  rococo export-inputs --data DATA --benchmarks rococo --out inputs
  rococo embed-regions model_best.pth --regions regions.npz --captions inputs/captions.jsonl --out vectors.npz
  rococo score --embeddings vectors.npz --data DATA --benchmarks rococo --out out/vse

regions.npz holds what a detector made of the images of inputs/images.jsonl: image_names (n,), regions (n, k, d), and
counts (n,) where images have fewer than k regions. Images without regions are missing in the scores, and said so."""
_AT_ONCE = 128


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Embed the regions of images and their captions with a VSE-infinity checkpoint, for rococo score --embeddings.

    Attributes:
        model: checkpoint of VSE-infinity's release, over regions
        regions: features of the regions of each image
        captions: captions.jsonl of rococo export-inputs
        out: where the embeddings go
        tokenizer: folder or hub name (default: bert-base-uncased)
        quiet: no progress; errors and warnings are still printed
    """

    model: Annotated[str, Option("MODEL.pth", positional=True)]
    regions: Annotated[str, Option("F.npz")]
    captions: Annotated[str, Option("FILE")]
    out: Annotated[str, Option("F.npz", check=output_file)]
    tokenizer: Annotated[str | None, Option("NAME")] = None
    quiet: bool = False


def run(options: Options) -> None:
    import jax
    import numpy as np
    from flax import nnx

    from rococo_jax.checkpoints.formats.vse_infinity import read_region_pooling, read_vse_text
    from rococo_jax.checkpoints.parameters import Choices, assemble_parts
    from rococo_jax.encoders.encoder import Encoder
    from rococo_jax.errors import InputError, is_list_of
    from rococo_jax.progress import progress
    from rococo_jax.runtime import enable_compilation_cache, make_mesh
    from rococo_jax.storage import atomic_write
    from rococo_jax.texts import read_jsonl

    enable_compilation_cache()
    names, regions, counts = read_regions(options.regions)
    wanted = "a JSON string a line, as of export-inputs"
    captions = [caption for _, caption in read_jsonl(options.captions, wanted)]
    if not captions or not is_list_of(str, captions):
        raise InputError(options.captions, "captions", "lines that are no strings, or none", wanted)
    pooling = read_region_pooling(options.model)
    inputs = pooling.up.kernel.shape[0]
    if regions.shape[2] != inputs:
        raise InputError(options.regions, "regions", f"{regions.shape[2]} channels", f"{inputs}, as of the model")
    checkpoint = read_vse_text(options.model, Choices(tokenizer=options.tokenizer))
    text = Encoder(*assemble_parts(checkpoint), mesh=make_mesh())
    embed = nnx.jit(lambda model, x, mask: model(x, mask))
    vectors = []
    with progress("embedding regions", len(names), "images") as advance:
        for start in range(0, len(names), _AT_ONCE):
            # The last batch is filled up: one shape, one program.
            rows = np.minimum(np.arange(start, start + _AT_ONCE), len(names) - 1)
            mask = np.arange(regions.shape[1])[None] < counts[rows, None]
            batch = embed(pooling, jax.numpy.asarray(regions[rows], jax.numpy.float32), jax.numpy.asarray(mask))
            count = min(_AT_ONCE, len(names) - start)
            vectors.append(np.asarray(batch)[:count])
            advance(count)
    arrays = {
        "image_names": np.array(names),
        "image_embeddings": np.concatenate(vectors),
        "captions": np.array(captions),
        "text_embeddings": text.encode_text(captions),
    }
    with atomic_write(options.out) as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)
    dim = arrays["text_embeddings"].shape[1]
    print(f"{options.out}: {len(names):,} images, {len(captions):,} captions, {dim} dimensions")


def read_regions(path: str):
    """Names, features `(n, k, d)` and counts `(n,)`. Raises InputError where they do not fit together."""
    import numpy as np

    from rococo_jax.errors import InputError
    from rococo_jax.storage import load_arrays

    found = load_arrays(path, "an .npz with image_names, regions and perhaps counts")
    if not isinstance(found, dict) or (missing := {"image_names", "regions"} - set(found)):
        said = f"no {', '.join(sorted(missing))}" if isinstance(found, dict) else "one without a name"
        raise InputError(path, "arrays", said, "image_names (n,) and regions (n, k, d)")
    names, regions = [str(name) for name in found["image_names"]], found["regions"]
    counts = found.get("counts", np.full(len(names), regions.shape[1] if regions.ndim == 3 else 0))
    if regions.ndim != 3 or len(regions) != len(names) or len(counts) != len(names) or not names:
        shapes = f"{len(names)} names, regions {regions.shape}, {len(counts)} counts"
        raise InputError(path, "regions", shapes, "n names, (n, k, d) and n counts, n of 1 or more")
    if len(set(names)) != len(names):
        raise InputError(path, "image_names", "a name twice", "each image once")
    if not np.issubdtype(counts.dtype, np.integer) or counts.min() < 1 or counts.max() > regions.shape[1]:
        raise InputError(path, "counts", f"{counts.min()} to {counts.max()}", f"whole numbers, 1 to {regions.shape[1]}")
    if not np.isfinite(regions).all():
        raise InputError(path, "regions", "NaN or infinite values", "finite numbers")
    return names, regions, counts
