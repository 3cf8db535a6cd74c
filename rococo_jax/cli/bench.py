"""`rococo bench`: how fast a model and the kernels run on the devices at hand."""

import dataclasses
from typing import Annotated, Literal

from rococo_jax.cli.outputs import output_file
from rococo_jax.errors import InputError
from rococo_jax.options import Option

WHAT = ("images", "text", "influence", "ranks", "loss", "train")
EXAMPLES = """\
  rococo bench
  rococo bench models/clip-b32 --what images,text --dtype bfloat16
  rococo bench models/clip-b32 --what train --batch 512 --dtype bfloat16 --out bench.json
  rococo bench --what ranks --ranks 100000x500000
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Measure throughput on the devices at hand, as JSON: items a second, bytes, share of the peak.

    Attributes:
        model: model directory, Hugging Face folder, or hub name (default: the demo's)
        what: of images, text, influence, ranks, loss, train (default: all)
        dtype: dtype of the towers
        seconds: time for each, without compilation (default: 5)
        images: images a call (default: one step of the encoder)
        captions: captions a call, of text and influence
        ranks: queries and gallery items of ranks
        pairs: global batch of loss
        batch: global batch of train
        out: also write the figures to a file
    """

    model: Annotated[str, Option("MODEL", positional=True)] = "demo:plain"
    what: Annotated[tuple[str, ...], Option("A,B")] = WHAT
    dtype: Literal["float32", "bfloat16"] = "float32"
    seconds: float = 5.0
    images: Annotated[int | None, Option("N", least=1)] = None
    captions: Annotated[int | None, Option("N", least=1)] = None
    ranks: Annotated[tuple[int, int] | None, Option("NxM", least=1)] = None
    pairs: Annotated[int | None, Option("N", least=1)] = None
    batch: Annotated[int | None, Option("N", least=1)] = None
    out: Annotated[str | None, Option("F.json", check=output_file)] = None


def run(options: Options) -> None:
    import json

    import jax

    from rococo_jax.encoders import load_model
    from rococo_jax.runtime import enable_compilation_cache
    from rococo_jax.storage import write_json
    from rococo_jax.studies.bench import Sizes, bench
    from rococo_jax.version import __version__

    for name in options.what:
        if name not in WHAT:
            raise InputError("--what", "measurement", repr(name), f"some of {', '.join(WHAT)}")
    if not options.seconds >= 0:
        raise InputError("--seconds", "seconds", options.seconds, "0 or more")
    if options.ranks and options.ranks[0] > options.ranks[1]:
        raise InputError("--ranks", "numbers", options.ranks, "no fewer gallery items than queries")
    enable_compilation_cache()
    encoder = load_model(options.model, dtype=options.dtype)
    device = jax.devices()[0]
    given = {field.name: getattr(options, field.name) for field in dataclasses.fields(Sizes)}
    sizes = {name: value for name, value in given.items() if value is not None}
    sizes = dataclasses.replace(Sizes.of_platform(device.platform), **sizes)
    figures = {
        "model": encoder.name,
        "dtype": options.dtype,
        "device": device.device_kind,
        "devices": jax.device_count(),
        "jax": jax.__version__,
        "rococo_jax": __version__,
        "measurements": {what: bench(encoder, what, sizes, options.seconds) for what in options.what},
    }
    if options.out:
        write_json(options.out, figures)
    print(json.dumps(figures, indent=2))
