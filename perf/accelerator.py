"""Measure all that an accelerator decides in one call of under nine minutes; the same call again does what is left.

    python perf/accelerator.py [--out accelerator.json] [--minutes 8.5]
    python perf/accelerator.py --toy --out toy.json        tiny sizes, to try it on a CPU
    python perf/accelerator.py --list

Each line is a process of its own: a script of this folder, or `rococo bench`, on the devices at hand; its JSON is kept
in the output file as soon as it ends. Lines that are there are not run again, and a line is not started when the time
left is less than it took (or is expected to take). A line that fails keeps its last line of error, and is run again.
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

import measuring

from rococo_jax.storage import write_json

# Name -> expected seconds, the line, and the line that makes it tiny. Training stands first: it matters most.
LINES = {
    **{f"train_{size}": (75, f"train.py --model {size} --batch {batch} --dtype bfloat16 --steps 10 --open-clip",
                         "train.py --model s32 --batch 8 --rounds 1 --steps 1")
       for size, batch in (("b32", 1024), ("b16", 512), ("l14", 192))},
    "loss_65536": (30, "loss.py --pairs 65536 --strategies all_gather,ring",
                   "loss.py --pairs 64 --width 8 --repeats 1"),
    "ranks_1m_1m": (60, "bench --what ranks --ranks 1000000x1000000 --seconds 0",
                    "bench --what ranks --ranks 50x200 --seconds 0"),
    "towers_bfloat16": (60, "bench {model} --what images,text,influence --dtype bfloat16",
                        "bench {model} --what images,text --seconds 0 --images 8 --captions 4"),
    "towers_float32": (60, "bench {model} --what images,text,influence",
                       "bench {model} --what influence --seconds 0 --captions 2"),
    "mixing": (20, "mixing.py", "mixing.py --images 64 --repeats 1"),
    "corruptions": (60, "corruptions.py --batch 64 --severities 3",
                    "corruptions.py --side 32 --batch 2 --severities 3 --repeats 1 --kinds contrast"),
    "evaluate": (90, "accelerator.py --evaluate 1000 {model}", "accelerator.py --evaluate 4 {model}"),
}  # fmt: skip


def save_random_b32(folder: Path) -> None:
    """A CLIP ViT-B/32 with random weights and the demo's tokenizer, as a model directory."""
    from flax import nnx
    from train import spec_of

    from rococo_jax.checkpoints import save_model
    from rococo_jax.data.preprocessing import Preprocessing
    from rococo_jax.encoders import Encoder, load_model
    from rococo_jax.models import DualEncoder

    mean, std = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
    preprocessing = Preprocessing(shortest_edge=224, crop_size=(224, 224), mean=mean, std=std)
    model = DualEncoder(spec_of("b32"), rngs=nnx.Rngs(0))
    save_model(folder, Encoder(model, preprocessing, load_model("demo:plain").tokenizer, name="random-b32"))


def evaluate(count: int, model: str) -> dict:
    """Seconds of `rococo evaluate` with its default galleries on `count` drawn images, files to results."""
    import numpy as np
    from PIL import Image

    from rococo_jax.cli.main import main

    random = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        images, annotations = Path(folder, "images"), Path(folder, "annotations")
        images.mkdir(), annotations.mkdir()
        items = []
        for number in range(count):
            coarse = Image.fromarray(random.integers(0, 256, (12, 16, 3), dtype=np.uint8))
            coarse.resize((640, 480), Image.Resampling.BICUBIC).save(images / f"{number}.jpg")
            captions = [f"scene {number} seen by {who}" for who in ("a man", "a dog", "a bird", "two men", "a cat")]
            items.append({"image": f"{number}.jpg", "caption": [*captions, *(f"{text} alone" for text in captions)]})
        (annotations / "danger.json").write_text(json.dumps(items))
        asked = ["--images", str(images), "--annotations", str(annotations), "--out", str(Path(folder, "out"))]
        start = time.perf_counter()
        if main(["evaluate", model, *asked, "--no-cache"]):
            raise SystemExit("rococo evaluate failed")
        seconds = time.perf_counter() - start
    return {"images": count, "seconds": round(seconds, 2), "images_per_second": round(count / seconds, 2)}


def run_line(line: str, seconds: float) -> dict:
    """The JSON object that a line prints, or the last line of its error."""
    name, *options = line.split()
    script = ["-m", "rococo_jax", name] if name == "bench" else [str(measuring.HERE / name)]
    path = map(str, filter(None, [measuring.CHECKOUT, measuring.HERE, os.environ.get("PYTHONPATH")]))
    try:
        return measuring.printed([*script, *options], seconds, {"PYTHONPATH": os.pathsep.join(path)})
    except measuring.NoFigures as error:
        return {"error": str(error)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("accelerator.json"))
    parser.add_argument("--minutes", type=float, default=8.5, help="no line is started that would end later")
    parser.add_argument("--only", help="names of lines, by commas")
    parser.add_argument("--toy", action="store_true", help="tiny sizes")
    parser.add_argument("--list", action="store_true", help="print the names of the lines")
    parser.add_argument("--evaluate", nargs=2, metavar=("N", "MODEL"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.evaluate:
        print(json.dumps(evaluate(int(options.evaluate[0]), options.evaluate[1])))
        return
    if options.list:
        print(*LINES, sep="\n")
        return
    started = time.perf_counter()
    found = json.loads(options.out.read_text()) if options.out.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        model = "demo:plain" if options.toy else str(Path(folder, "b32"))
        for name, (expected, full, toy) in LINES.items():
            left = 60 * options.minutes - (time.perf_counter() - started)
            if "error" not in found.get(name, {"error": ""}) or (options.only and name not in options.only.split(",")):
                continue
            if left < expected:
                print(f"{name}: left for the next call ({left:.0f} s left, takes about {expected})", flush=True)
                continue
            if "{model}" in full and not options.toy and not Path(model).exists():
                save_random_b32(Path(model))
            start = time.perf_counter()
            line = run_line((toy if options.toy else full).format(model=model), left)
            found[name] = line | {"seconds_of_the_line": round(time.perf_counter() - start, 1)}
            write_json(options.out, found)
            print(f"{name}: {line.get('error', 'done')} ({found[name]['seconds_of_the_line']} s)", flush=True)
    missing = [name for name in LINES if "error" in found.get(name, {"error": ""})]
    print(f"{options.out}: {len(LINES) - len(missing)} of {len(LINES)} lines")


if __name__ == "__main__":
    main()
