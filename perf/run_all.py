"""Run the measurements of this folder, each in a process of its own, and keep their results in one JSON file.

    python perf/run_all.py --data DATA --out build/perf.json            CPU: `make perf DATA=... BESIDE=...`
    python perf/run_all.py --data DATA --only ranking,loss --again
    python perf/run_all.py --device accelerator --minutes 8.5           everything that an accelerator decides
    python perf/run_all.py --device accelerator --toy --out toy.json    tiny sizes, to try it on a CPU
    python perf/run_all.py --device compiled --peers DIR --seconds 900  programs for TPUs that need not be here
    python perf/run_all.py --list                                       names of the measurements

A measurement that has a result is not run again without `--again`: the same command runs only what is missing, failed
or took too long. With `--minutes`, a measurement that would exceed the remaining time is left for the next call. The
file is `{name: {"command", "seconds", "machine", "figures"} or {"command", "failed"}}`, written after each measurement.
"""

import argparse
import dataclasses
import json
import os
import platform
import re
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import measuring

from rococo_jax.storage import write_json


@dataclasses.dataclass(frozen=True)
class Measurement:
    """A script of this folder with its arguments.

    Attributes:
        line: the command after `python perf/`. `{data}` is the folder of real data, `{beside}` that of open_clip,
            `{peers}` that of git directories named big_vision and jimm, and `{b32}`, `{b16}` and `{l14}` are model
            directories of CLIP's sizes with random weights.
        toy_line: the same at a tiny size; by default the measurement has no toy size.
        expected_seconds: time that it usually takes.
        most_seconds: time after which it is stopped; by default the option `--seconds`.
    """

    line: str
    toy_line: str | None = None
    expected_seconds: int = 0
    most_seconds: int | None = None


_INPUT = "input_rate.py --tokenizer {data}/towers/minilm_l6_v2 --workers 2 --rounds 3"
_TEST_CAPTIONS = "--captions {data}/coco/captions_test.json"

# Everything takes less than half an hour on two idle cores, a third of it the largest ranking.
ON_CPU = {
    "cold_start": Measurement("cold_start.py"),
    "input_small": Measurement(f"{_INPUT} --images {{data}}/coco/images --captions {{data}}/coco/captions_train.json"),
    "input_published_size": Measurement(
        f"{_INPUT} --images {{data}}/coco/originals {_TEST_CAPTIONS} --count 480 --batch-size 48"
    ),
    "image_tower": Measurement("towers.py images"),
    "text_tower": Measurement(f"towers.py captions {_TEST_CAPTIONS} --count 1000"),
    "text_open_clip": Measurement(
        f"towers.py captions-open-clip {_TEST_CAPTIONS} --beside {{beside}} --count 500 --reference-count 128"
    ),
    "files_to_vectors": Measurement("towers.py files --images {data}/coco/originals --beside {beside}"),
    "loss": Measurement("loss.py --pairs 8192 --repeats 3 --strategies all_gather,torch --memory"),
    "ranking": Measurement("ranking.py"),
    # Time and memory of 1, 2, 4 and 8 times the work.
    **{
        f"ranking_{times}": Measurement(f"ranking.py --images 5000 --captions {25_000 * times} --once 0.5")
        for times in (1, 2, 4, 8)
    },
    "ranking_large": Measurement("ranking.py --images 100000 --captions 500000 --once 0.05", most_seconds=1500),
}

# Training comes first: it matters most.
ON_ACCELERATOR = {
    **{
        f"train_{size}": Measurement(
            f"bench.py {{{size}}} --what train --batch {batch} --dtype bfloat16",
            f"bench.py {{{size}}} --what train --batch 8 --seconds 0",
            expected_seconds=75,
        )
        for size, batch in (("b32", 1024), ("b16", 512), ("l14", 192))
    },
    "loss_65536": Measurement(
        "loss.py --pairs 65536 --strategies all_gather", "loss.py --pairs 64 --width 8 --repeats 1", 30
    ),
    "ranks_1m_1m": Measurement(
        "bench.py --what ranks --ranks 1000000x1000000 --seconds 0",
        "bench.py --what ranks --ranks 50x200 --seconds 0",
        expected_seconds=60,
    ),
    "towers_bfloat16": Measurement(
        "bench.py {b32} --what images,text,influence --dtype bfloat16",
        "bench.py {b32} --what images,text --seconds 0 --images 8 --captions 4",
        expected_seconds=60,
    ),
    "towers_float32": Measurement(
        "bench.py {b32} --what images,text,influence",
        "bench.py {b32} --what influence --seconds 0 --captions 2",
        expected_seconds=60,
    ),
    "mixing": Measurement("mixing.py", "mixing.py --images 64 --repeats 1", 20),
    "corruptions": Measurement(
        "corruptions.py --batch 64 --severities 3",
        "corruptions.py --side 32 --batch 2 --severities 3 --repeats 1 --kinds contrast",
        expected_seconds=60,
    ),
    "evaluate": Measurement("evaluate_drawn.py {b32} --count 1000", "evaluate_drawn.py {b32} --count 4", 90),
}

_CORRUPTIONS = ("gaussian_noise", "defocus_blur", "glass_blur", "fog", "elastic_transform", "contrast")
_FUSION = (
    "xla_tpu_enable_async_collective_fusion=true,xla_tpu_enable_async_collective_fusion_fuse_all_reduce=true,"
    "xla_tpu_enable_async_collective_fusion_multiple_steps=true"
)
_CUBLAS = "xla_gpu_enable_triton_gemm=false"
# Programs for chips that need not be here; a compilation takes minutes.
COMPILED = {
    "ranks": Measurement("compiled.py ranks"),
    "mixing": Measurement("compiled.py mixing"),
    "texts_bfloat16": Measurement("compiled.py texts"),
    "images_bfloat16": Measurement("compiled.py images"),
    "influence_bfloat16": Measurement("compiled.py influence"),
    "step_128": Measurement("compiled.py step"),
    "gradients_float32": Measurement("compiled.py gradients"),
    "gradients_bfloat16": Measurement("compiled.py gradients --gradient-dtype bfloat16"),
    **{f"corruption_{kind}": Measurement(f"compiled.py corruption --kind {kind}") for kind in _CORRUPTIONS},
    "step_sc_vc_grounding": Measurement("compiled.py step --losses sc,vc,grounding --pairs 64"),
    "big_vision_128": Measurement("compiled.py big_vision --source {peers}/big_vision"),
    "step_512": Measurement("compiled.py step --pairs 512"),
    # An image tower of three billion parameters.
    "step_3b": Measurement("compiled.py step --topology v5e:4x4 --width 2560 --layers 38 --fsdp 16 --pairs 32"),
    "images_high": Measurement("compiled.py images --dtype float32"),
    "texts_high": Measurement("compiled.py texts --dtype float32"),
    "step_16_chips": Measurement("compiled.py step --topology v5e:4x4"),
    "step_v6e": Measurement("compiled.py step --topology v6e:2x2"),
    "big_vision_512": Measurement("compiled.py big_vision --pairs 512 --source {peers}/big_vision"),
    "big_vision_16_chips": Measurement("compiled.py big_vision --topology v5e:4x4 --source {peers}/big_vision"),
    "big_vision_v6e": Measurement("compiled.py big_vision --topology v6e:2x2 --source {peers}/big_vision"),
    # Without XLA's own kernels for products, of which one cannot be compiled for big_vision.
    "step_h100": Measurement(f"compiled.py step --topology h100:8 --options {_CUBLAS}"),
    "big_vision_h100": Measurement(
        f"compiled.py big_vision --topology h100:8 --options {_CUBLAS} --source {{peers}}/big_vision"
    ),
    # jimm recomputes nothing.
    "jimm_32": Measurement("compiled.py jimm --pairs 32 --source {peers}/jimm"),
    "step_32_none": Measurement("compiled.py step --pairs 32 --remat none"),
    "step_32_unrolled": Measurement("compiled.py step --pairs 32 --remat none --unroll"),
    # 576 and 1,024 tokens an image.
    "step_384_pixels": Measurement("compiled.py step --side 384 --pairs 64"),
    "step_384_pixels_splash": Measurement("compiled.py step --side 384 --pairs 64 --splash-from 1"),
    "step_512_pixels": Measurement("compiled.py step --side 512 --pairs 32"),
    "step_512_pixels_einsum": Measurement("compiled.py step --side 512 --pairs 32 --splash-from 10000"),
    "flags_asynchronous": Measurement("compiled.py step --options xla_enable_async_all_reduce=true"),
    "flags_fusion": Measurement(f"compiled.py step --options xla_enable_async_all_reduce=true,{_FUSION}"),
    "flags_data_parallel": Measurement(
        "compiled.py step --options xla_tpu_enable_data_parallel_all_reduce_opt=true,"
        "xla_tpu_data_parallel_opt_different_sized_ops=true"
    ),
    "flags_vmem": Measurement("compiled.py step --options xla_tpu_scoped_vmem_limit_kib=98304"),
}
DEVICES = {"cpu": ON_CPU, "accelerator": ON_ACCELERATOR, "compiled": COMPILED}
# Patch size, then width, layers and heads of the image tower, width, layers and heads of the text tower, dimensions.
_CLIP_SIZES = {
    "b32": (32, 768, 12, 12, 512, 12, 8, 512),
    "b16": (16, 768, 12, 12, 512, 12, 8, 512),
    "l14": (14, 1024, 24, 16, 768, 12, 12, 768),
}


def save_random_clip(size: str, folder: Path) -> None:
    """Save a CLIP of one of the usual sizes, with random weights and the demo's tokenizer, as a model directory."""
    from flax import nnx

    from rococo_jax.checkpoints import save_model
    from rococo_jax.data.preprocessing import Preprocessing
    from rococo_jax.encoders import Encoder, load_model
    from rococo_jax.models import DualEncoder

    tokenizer = load_model("demo:plain").tokenizer
    model = DualEncoder(clip_spec(size, tokenizer.spec.eos_id), rngs=nnx.Rngs(0))
    mean, std = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
    preprocessing = Preprocessing(shortest_edge=224, crop_size=(224, 224), mean=mean, std=std)
    save_model(folder, Encoder(model, preprocessing, tokenizer, name=f"random-{size}"))


def clip_spec(size: str, eos_id: int) -> Any:
    """Return the spec of a CLIP of one of the usual sizes."""
    from rococo_jax.models import HeadSpec, ModelSpec, TextSpec, VisionSpec

    patch, width, layers, heads, text_width, text_layers, text_heads, dimensions = _CLIP_SIZES[size]
    vision = VisionSpec(
        image_size=224, patch_size=patch, width=width, layers=layers, heads=heads, mlp_width=4 * width,
        activation="quick_gelu", norm_eps=1e-5, class_token=True, patch_bias=False, norm_before_blocks=True,
        layer_scale=False, pooling="cls",
    )  # fmt: skip
    text = TextSpec(
        vocabulary_size=49408, context_length=77, width=text_width, layers=text_layers, heads=text_heads,
        mlp_width=4 * text_width, activation="quick_gelu", norm_eps=1e-5, attention="causal", norm_after_blocks=False,
        pooling="first_eos", eos_id=eos_id,
    )  # fmt: skip
    head = HeadSpec("linear", dimensions)
    return ModelSpec(vision=vision, text=text, vision_head=head, text_head=head)


def model_paths(line: str, folder: Path, toy: bool) -> dict[str, str]:
    """Return the path of each random model that a line names, saved on first use; the demo's model at a toy size."""
    if toy:
        return dict.fromkeys(_CLIP_SIZES, "demo:plain")
    for size in _CLIP_SIZES:
        if f"{{{size}}}" in line and not (folder / size).exists():
            save_random_clip(size, folder / size)
    return {size: str(folder / size) for size in _CLIP_SIZES}


def run_measurement(line: str, places: Mapping[str, str], seconds: float) -> dict:
    """Return the result of a line, or why there is none. The recorded command contains no path of this machine."""
    script, *options = [word.format(**places) for word in line.split()]
    names = {place: place.upper() for place in places}
    record = {"command": f"python perf/{line.format(**names)}"}
    search_path = [str(measuring.CHECKOUT), str(measuring.HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    start = time.perf_counter()
    try:
        figures = measuring.run_script(
            [str(measuring.HERE / script), *options], seconds, {"PYTHONPATH": os.pathsep.join(search_path)}
        )
    except measuring.NoResult as error:
        return {**record, "failed": str(error)}
    machine = {"cores": len(os.sched_getaffinity(0)), "load": os.getloadavg()[0], "cpu": cpu_name()}
    return {**record, "seconds": round(time.perf_counter() - start, 1), "machine": machine, "figures": figures}


def cpu_name() -> str:
    """Return the processor's name on Linux, elsewhere its architecture."""
    if Path("/proc/cpuinfo").is_file():
        names = re.findall(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.M)
        if names:
            return names[0]
    return platform.processor() or platform.machine()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=DEVICES, default="cpu", help="which list of measurements (default: cpu)")
    parser.add_argument("--data", default="", metavar="DIR", help="real data: coco, towers (for cpu)")
    parser.add_argument("--beside", default="", metavar="DIR", help="where open_clip is installed (`measuring.py`)")
    parser.add_argument("--peers", default="", metavar="DIR", help="git directories big_vision and jimm (for compiled)")
    parser.add_argument("--out", type=Path, help="default: build/perf.json, accelerator.json, ...")
    parser.add_argument("--only", default="", help="names of measurements, separated by commas")
    parser.add_argument("--again", action="store_true", help="repeat measurements that have a result")
    parser.add_argument("--seconds", type=int, default=300, help="longest time of a measurement (default: 300)")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="time for all measurements of this call")
    parser.add_argument("--toy", action="store_true", help="tiny sizes")
    parser.add_argument("--list", action="store_true", help="print the names of the measurements")
    arguments = parser.parse_args()
    measurements = DEVICES[arguments.device]
    if arguments.list:
        print(*measurements, sep="\n")
        return
    if arguments.device == "cpu" and not arguments.data:
        parser.error("--data: needed for the measurements on a CPU")
    names = [name for name in arguments.only.split(",") if name] or list(measurements)
    if unknown := sorted(set(names) - measurements.keys()):
        parser.error(f"--only: no measurement {unknown[0]!r}; known are {', '.join(measurements)}")
    if arguments.toy and (without := [name for name in names if measurements[name].toy_line is None]):
        parser.error(f"--toy: {without[0]} has no tiny size")
    run_missing(measurements, names, arguments)


def run_missing(measurements: Mapping[str, Measurement], names: list[str], arguments: argparse.Namespace) -> None:
    """Run the measurements that have no result yet, and write the file after each."""
    out = arguments.out or Path("build/perf.json" if arguments.device == "cpu" else f"{arguments.device}.json")
    results = json.loads(out.read_text()) if out.is_file() else {}
    end = time.perf_counter() + 60 * arguments.minutes
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            measurement, remaining = measurements[name], end - time.perf_counter()
            if "figures" in results.get(name, {}) and not arguments.again:
                continue
            if remaining < measurement.expected_seconds:
                expected = f"{remaining:.0f} s remain, it takes about {measurement.expected_seconds} s"
                print(f"{name}: left for the next call ({expected})", flush=True)
                continue
            line = measurement.toy_line if arguments.toy else measurement.line
            places = {"data": arguments.data, "beside": arguments.beside, "peers": arguments.peers}
            places |= model_paths(line, Path(folder), arguments.toy)
            results[name] = run_measurement(line, places, min(measurement.most_seconds or arguments.seconds, remaining))
            write_json(out, results)
            print(name, json.dumps(results[name]), flush=True)
    complete = sum("figures" in results.get(name, {}) for name in measurements)
    print(f"{out}: {complete} of {len(measurements)} measurements")


if __name__ == "__main__":
    main()
