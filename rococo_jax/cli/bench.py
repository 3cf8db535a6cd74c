"""`rococo bench`: how fast a model and the kernels run on the devices at hand."""

import argparse

WHAT = ("images", "text", "influence", "ranks", "loss", "train")
HELP = "Measure throughput on the devices at hand, as JSON: items a second, bytes, share of the peak."
EXAMPLES = """\
  rococo bench
  rococo bench models/clip-b32 --what images,text --dtype bfloat16
  rococo bench models/clip-b32 --what train --batch 512 --dtype bfloat16 --out bench.json
  rococo bench --what ranks --ranks 100000x500000
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", default="demo:plain", metavar="MODEL",
                        help="model directory, Hugging Face folder, or hub name (default: the demo's)")  # fmt: skip
    parser.add_argument("--what", default=",".join(WHAT), metavar="A,B", help=f"of {', '.join(WHAT)} (default: all)")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="dtype of the towers")
    parser.add_argument("--seconds", type=float, default=5.0, help="time for each, without compilation (default: 5)")
    parser.add_argument("--images", type=int, metavar="N", help="images a call (default: one step of the encoder)")
    parser.add_argument("--captions", type=int, metavar="N", help="captions a call, of text and influence")
    parser.add_argument("--ranks", metavar="NxM", help="queries and gallery items of ranks")
    parser.add_argument("--pairs", type=int, metavar="N", help="global batch of loss")
    parser.add_argument("--batch", type=int, metavar="N", help="global batch of train")
    parser.add_argument("--out", metavar="F.json", help="also write the figures to a file")


def run(arguments: argparse.Namespace) -> None:
    import dataclasses
    import json

    import jax

    from rococo_jax.encoders import load_model
    from rococo_jax.runtime import enable_compilation_cache
    from rococo_jax.storage import atomic_write
    from rococo_jax.studies.bench import Sizes, bench
    from rococo_jax.version import __version__

    asked, given = _asked(arguments), _given(arguments)
    enable_compilation_cache()
    encoder = load_model(arguments.model, dtype=arguments.dtype)
    device = jax.devices()[0]
    sizes = dataclasses.replace(Sizes.of_platform(device.platform), **given)
    figures = {
        "model": encoder.name,
        "dtype": arguments.dtype,
        "device": device.device_kind,
        "devices": jax.device_count(),
        "jax": jax.__version__,
        "rococo_jax": __version__,
        "measurements": {what: bench(encoder, what, sizes, arguments.seconds) for what in asked},
    }
    text = json.dumps(figures, indent=1)
    if arguments.out:
        with atomic_write(arguments.out) as temporary:
            temporary.write_text(text + "\n")
    print(text)


def _asked(arguments: argparse.Namespace) -> list[str]:
    from rococo_jax.errors import InputError

    asked = [name.strip() for name in arguments.what.split(",") if name.strip()]
    for name in asked:
        if name not in WHAT:
            raise InputError("--what", "measurement", repr(name), f"some of {', '.join(WHAT)}")
    if not arguments.seconds >= 0:
        raise InputError("--seconds", "seconds", arguments.seconds, "0 or more")
    return asked


def _given(arguments: argparse.Namespace) -> dict:
    """The sizes that were asked for."""
    from rococo_jax.errors import InputError

    given = {}
    for name in ("images", "captions", "pairs", "batch"):
        value = getattr(arguments, name)
        if value is not None:
            if value < 1:
                raise InputError(f"--{name}", "number", value, "at least 1")
            given[name] = value
    if arguments.ranks is not None:
        try:
            queries, items = map(int, arguments.ranks.split("x"))
        except ValueError:
            raise InputError("--ranks", "sizes", repr(arguments.ranks), "NxM, such as 5000x50000") from None
        if not 1 <= queries <= items:
            raise InputError("--ranks", "sizes", arguments.ranks, "at least one query, and no fewer gallery items")
        given["ranks"] = (queries, items)
    return given
