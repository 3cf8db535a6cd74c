"""What the commands give, recorded from one checkout and compared with what another one gives.

    python tools/guard.py record --tree CHECKOUT --out RECORD --model JOINED [--only demo,mix] [--data DIR]
    python tools/guard.py compare OLD_RECORD NEW_RECORD [--only demo,mix]

`record` runs `python -m rococo_jax` of CHECKOUT and nothing else of it; one that was stopped goes on after its last
whole command. `compare` prints each difference (file, field, old, new; tabs between) and exits 1, or prints nothing.
JOINED is a model of `rococo join`. Model, data, Python and machine must be the same for both records.
"""

import argparse
import csv
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image
from pyarrow import parquet

# Searched in addresses, CASE/COMMAND/FILE:FIELD, never in values. Dates, durations and how fast training was; and the
# digest of a whole results file, in which paths of its record stand.
SKIPPED: list[str] = [
    r"/journal\.jsonl:\[\d+\]\.(time|seconds|estimate)(?=\[|$)",
    r"/metrics\.jsonl:\[\d+\]\.(images_per_second|images_per_second_per_device|seconds_per_step|share_of_peak|mfu)$",
    r"/metrics\.jsonl:\[\d+\]\.(seconds_waiting_for_data|goodput)$",
    r"/results\.json:sha256$",
]
# What is not read: inputs and logs of this script, caches (but see `cached_rows`), and checkpoints of unfinished runs.
IGNORED = re.compile(r"^[^/]+/(inputs|logs|cache)/|^[^/]+/seconds\.json$|/(checkpoints|tensorboard)/|/params/.")
PHOTOS, CAPTIONS, ANNOTATIONS = "coco/images", "coco/captions_test.json", "rococo/annotations"
KINDS = "fog,gaussian_noise,jpeg_compression"
RECORD, STEPS, DONE, CLIPPED = "record.json", "seconds.json", "done", 160
# A case yields its commands: a name, and the arguments. What a command writes is below the folder of its name, and is
# there when the yield returns.
Step = tuple[str, list[Any]]


class Place(NamedTuple):
    """Where a case finds its inputs and leaves its outputs."""

    folder: Path
    tree: Path
    data: Path
    model: Path

    def some(self, file: str, count: int) -> Path:
        """The first entries of a JSON list of the data, as a file."""
        path = self.folder / "inputs" / f"{count}_of_{Path(file).name}"
        path.write_text(json.dumps(json.loads((self.data / file).read_text())[:count]))
        return path


def demo(place: Place) -> Iterator[Step]:
    """The demo as it is, then both its models on its scenes, with corruptions."""
    yield "scenes", ["demo", "--out", place.folder / "scenes"]
    folder = sorted((place.folder / "scenes").rglob("annotations"))[0]
    read = ["--images", folder.parent / "images", "--annotations", folder]
    for protocol in ("paper", "strict"):
        out = ["--protocol", protocol, "--out", place.folder / protocol]
        yield protocol, ["evaluate", "demo:plain", "demo:sc-vc", *read, "--corruptions", KINDS, *out]


def real(place: Place) -> Iterator[Step]:
    """The joined model on the photographs that are there."""
    read = ["--images", place.data / PHOTOS, "--annotations", place.data / ANNOTATIONS, "--allow-missing-images"]
    altered = ["--mixed-galleries", "mix_0.9,patch_0.9", "--seeds", "1", "--corruptions", KINDS, "--severities", "3"]
    for protocol in ("paper", "strict"):
        out = ["--protocol", protocol, "--out", place.folder / protocol]
        yield protocol, ["evaluate", place.model, *read, *altered, *out]


def train(place: Place) -> Iterator[Step]:
    """Both towers from nothing, then heads on features that are kept; each with SC and VC."""
    short = {"steps": 20, "batch_size": 64, "log.every": 1, "losses.sc.weight": 1, "losses.vc.weight": 1}
    lit = {"data.images": "scenes:256", "init.model": "demo:plain", "data.resize_prob": 0.5}
    for name, values in {"scenes_tiny": {"data.images": "scenes:512"}, "coco_lit": lit}.items():
        run = ["train", "--config", place.tree / f"configs/{name}.py", "--workdir", place.folder / name]
        yield name, [*run, *(f"--config.{key}={value}" for key, value in (short | values).items())]


def alter(place: Place) -> Iterator[Step]:
    """Altered captions: of all test captions by the demo's model, of some by the joined one."""
    runs = {name: [name, "--seed", "0"] for name in ("same_concept", "diff_concept", "rand_voca", "danger")}
    runs |= {"same_concept_7": ["same_concept", "--seed", "7"], "highest": ["danger", "--select", "highest"]}
    runs["joined"] = ["same_concept"]
    whole, some = ("demo:plain", place.data / CAPTIONS), (place.model, place.some(CAPTIONS, 40))
    for name, options in runs.items():
        model, captions = some if name == "joined" else whole
        out = ["--captions", captions, "--out", place.folder / name / "altered.json"]
        yield name, ["alter-captions", model, "--variant", *options, *out]


def mix(place: Place) -> Iterator[Step]:
    """Mixed images as files."""
    read = ["--images", place.data / PHOTOS, "--captions", place.some(CAPTIONS, 100)]
    for name in ("mix_paper", "mix_strict", "patch_paper", "patch_strict", "mix_control"):
        method, protocol = name.split("_")
        yield name, ["mix-images", *read, "--method", method, "--protocol", protocol, "--out", place.folder / name]


def cheap(place: Place) -> Iterator[Step]:
    """Corrupted images, influence, vectors, what is said of annotations, and scores of made-up similarities."""
    inputs, images = place.folder / "inputs", place.data / "coco" / "originals"
    runs = {"gaussian_noise": ["--severity", "3", "--size", "224"], "fog": ["--severity", "5", "--format", "jpeg"]}
    for name, options in runs.items():
        run = ["corrupt-images", "--images", images, "--corruption", name, *options]
        yield name, [*run, "--out", place.folder / name]
    run = ["influence", place.model, "--captions", place.some(CAPTIONS, 40)]
    yield "remove", [*run, "--out", place.folder / "remove" / "influence.jsonl"]
    run = ["embed", place.model, "--images", place.data / PHOTOS, "--captions", place.some(CAPTIONS, 24)]
    yield "embed", [*run, "--out", place.folder / "embed" / "embeddings.npz"]
    run = ["verify", "--annotations", place.data / ANNOTATIONS, "--images", place.data / PHOTOS]
    yield "verify", [*run, "--out", place.folder / "verify" / "report.json"]
    annotation, random = place.some(f"{ANNOTATIONS}/same_concept.json", 100), np.random.default_rng(0)
    owner = [image for image, item in enumerate(json.loads(annotation.read_text())) for _ in item["caption"]]
    # In steps of 1/64, so that many tie.
    similarities = random.integers(-64, 65, (100, len(owner))) + 48 * (np.arange(100)[:, None] == owner)
    vectors = random.standard_normal((100, 32))
    texts = vectors[owner] + 1.5 * random.standard_normal((len(owner), 32))
    for name, array in {"similarities": similarities / 64, "images": vectors, "texts": texts}.items():
        np.save(inputs / f"{name}.npy", array.astype(np.float32))
    given = {"similarities": ["--similarities", inputs / "similarities.npy"]}
    given["embeddings"] = ["--image-embeddings", inputs / "images.npy", "--text-embeddings", inputs / "texts.npy"]
    for name in ("similarities_paper", "similarities_strict", "embeddings_paper", "embeddings_strict"):
        kind, protocol = name.split("_")
        out = ["--out", place.folder / name / "results.json", "--per-query", place.folder / name / "per_query.parquet"]
        yield name, ["score", *given[kind], "--annotation", annotation, "--protocol", protocol, *out]


CASES = {case.__name__: case for case in (cheap, mix, alter, train, demo, real)}


def record(tree: Path, out: Path, data: Path, model: Path, only: list[str]) -> bool:
    """Runs the cases; says whether all went well."""
    places = {"out": out, "tree": tree, "data": data, "model": model}
    about: dict[str, Any] = {"places": {str(path): f"<{name}>" for name, path in places.items()}}
    about["machine"] = f"{os.uname().machine}, {len(os.sched_getaffinity(0))} cores, Python {sys.version}"
    out.mkdir(parents=True, exist_ok=True)
    if (out / RECORD).exists() and json.loads((out / RECORD).read_text()) != about:
        sys.exit(f"guard: {out} was begun with another tree, data, model or machine")
    (out / RECORD).write_text(json.dumps(about, indent=2))
    made = [Place(out / case, tree, data, model) for case in only]
    return all([_run_case(place, CASES[place.folder.name](place)) for place in made])


def _run_case(place: Place, steps: Iterator[Step]) -> bool:
    for folder in ("inputs", "logs"):
        (place.folder / folder).mkdir(parents=True, exist_ok=True)
    steps_done = place.folder / STEPS
    seconds = json.loads(steps_done.read_text()) if steps_done.exists() else {}
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("JAX_", "XLA_", "ROCOCO_"))}
    environment |= {"PYTHONPATH": str(place.tree), "ROCOCO_CACHE": str(place.folder / "cache"), "JAX_PLATFORMS": "cpu"}
    for name, arguments in steps:
        if name in seconds:
            continue
        # Of a command that was stopped; what it left in the cache is whole.
        shutil.rmtree(place.folder / name, ignore_errors=True)
        command = [sys.executable, "-m", "rococo_jax", *map(str, arguments)]
        started = time.time()
        with (place.folder / "logs" / f"{name}.log").open("w") as log:
            ended = subprocess.run(command, cwd=place.tree, env=environment, stdout=log, stderr=log, check=False)
        if ended.returncode:
            print(f"guard: {place.folder.name}/{name} failed, see {log.name}", file=sys.stderr)
            return False
        seconds[name] = round(time.time() - started, 1)
        print(f"{place.folder.name}/{name}: {seconds[name]} s", flush=True)
        steps_done.write_text(json.dumps(seconds))
    (place.folder / DONE).touch()
    return True


def compare(old: Path, new: Path, only: list[str]) -> Iterator[tuple[str, ...]]:
    """Each difference: file, field, old and new."""
    abouts = [json.loads((each / RECORD).read_text()) for each in (old, new)]
    if abouts[0]["machine"] != abouts[1]["machine"]:
        yield RECORD, "machine", *(about["machine"] for about in abouts)
    for case in only:
        whole = [(each / case / DONE).exists() for each in (old, new)]
        if not all(whole):
            yield case, "record", *("whole" if each else "not whole" for each in whole)
            continue
        one, other = _files(old, case), _files(new, case)
        for name in sorted(one.keys() | other.keys()):
            if name in one and name in other:
                yield from _field_differences(name, _fields(one[name], abouts[0]), _fields(other[name], abouts[1]))
            else:
                yield name, "file", *("there" if name in files else "missing" for files in (one, other))
        kept = [cached_rows(each / case / "cache") for each in (old, new)]
        if kept[0] != kept[1]:
            said = (f"{(a - b).total()} of {a.total()} rows only here" for a, b in (kept, kept[::-1]))
            yield f"{case}/cache", "cached arrays", *said


def _files(folder: Path, case: str) -> dict[str, Path]:
    """What is compared, by its address. A model's parameters are one file."""
    paths = [path for path in (folder / case).rglob("*") if (path.suffix or path.name) in READERS]
    names = {path.relative_to(folder).as_posix(): path for path in paths}
    return {name: path for name, path in names.items() if not IGNORED.search(name)}


def _field_differences(name: str, old: dict[str, Any], new: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for field in dict.fromkeys([*old, *new]):
        if not any(re.search(pattern, f"{name}:{field}") for pattern in SKIPPED):
            said = _difference(old.get(field, "missing"), new.get(field, "missing"))
            yield from [(name, field, *said)] if said else []


def _difference(old: Any, new: Any) -> tuple[str, str] | None:
    """What to say of two values; None where they are the same to the last bit."""
    if isinstance(old, str) or isinstance(new, str) or (old.dtype, old.shape) != (new.dtype, new.shape):
        same = isinstance(old, str) and isinstance(new, str) and old == new
        return None if same else (_shown(old), _shown(new))
    flat = [each if each.dtype == object else np.frombuffer(each.tobytes(), np.uint8) for each in (old, new)]
    width = 1 if old.dtype == object else old.dtype.itemsize
    places = np.flatnonzero((flat[0] != flat[1]).reshape(old.size, width).any(axis=1))
    if not len(places):
        return None
    said = [_shown(each.ravel()[places[:1]]) for each in (old, new)]
    return f"{len(places)} of {old.size} values, number {places[0]} in {old.shape}: {said[0]}", said[1]


def _rows(array: np.ndarray) -> np.ndarray:
    return array.reshape(len(array) if array.ndim and array.size else 1, -1)


def _shown(value: Any) -> str:
    if isinstance(value, np.ndarray):
        value = f"{value.dtype} {value.shape}: " + ", ".join(map(repr, value.ravel()[:6].tolist()))
    return value if len(value) <= CLIPPED else f"{value[:CLIPPED]}..."


def _fields(path: Path, about: dict[str, Any]) -> dict[str, Any]:
    """A file as arrays and exact texts, by field. The record's folders are called the same in all records."""
    fields = READERS[path.suffix or path.name](path)
    for place, name in sorted(about["places"].items(), reverse=True):
        fields = {key: each.replace(place, name) if isinstance(each, str) else each for key, each in fields.items()}
    return fields


def _leaves(value: Any, field: str = "") -> dict[str, Any]:
    """The leaves of a JSON value by path; an empty list or object is one."""
    if not isinstance(value, dict | list) or not value:
        return {field: json.dumps(value, ensure_ascii=False)}
    is_list, leaves = isinstance(value, list), {}
    for key, inner in enumerate(value) if is_list else value.items():
        leaves |= _leaves(inner, f"{field}[{key}]" if is_list else f"{field}.{key}".lstrip("."))
    return leaves


def _table(path: Path) -> dict[str, Any]:
    """Columns as text, which repr makes exact, and equal where both are NaN."""
    table = parquet.read_table(path)
    columns = {name: np.array(list(map(repr, column)), object) for name, column in table.to_pydict().items()}
    return columns | {f"{field.name} (type)": str(field.type) for field in table.schema}


def _parameters(path: Path) -> dict[str, Any]:
    from orbax.checkpoint import StandardCheckpointer

    restored = StandardCheckpointer().restore(path.absolute())
    return {name: np.asarray(array) for name, array in restored.items()}


def _image(path: Path) -> dict[str, Any]:
    return {"bytes": hashlib.sha256(path.read_bytes()).hexdigest(), "pixels": np.asarray(Image.open(path))}


READERS: dict[str, Callable[[Path], dict[str, Any]]] = {
    ".json": lambda path: _leaves(json.loads(path.read_text())),
    ".jsonl": lambda path: _leaves([json.loads(line) for line in path.read_text().splitlines()]),
    ".csv": lambda path: _leaves(list(csv.DictReader(path.read_text().splitlines()))),
    ".parquet": _table,
    ".npy": lambda path: {"array": np.load(path)},
    ".npz": lambda path: dict(np.load(path)),
    **dict.fromkeys((".png", ".jpg"), _image),
    "params": _parameters,  # a folder
}


def cached_rows(folder: Path) -> Counter[str]:
    """How often each row is among the arrays of a cache, however they are cut and called."""
    rows: Counter[str] = Counter()
    paths = [path for path in folder.rglob("*") if path.suffix in (".npy", ".npz")]
    for array in (array for path in paths for array in READERS[path.suffix](path).values()):
        about = f"{array.dtype} {array.shape[1:]} ".encode()
        rows.update(hashlib.sha256(about + row.tobytes()).hexdigest() for row in _rows(array))
    return rows


def main() -> int:
    """The command line."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    recording, comparing = commands.add_parser("record"), commands.add_parser("compare")
    for name, said in {"tree": "the checkout to run", "out": "the record", "model": "a joined model"}.items():
        recording.add_argument(f"--{name}", type=Path, required=True, help=said)
    recording.add_argument("--data", type=Path, default=Path(os.environ.get("ROCOCO_DATA", beside)), help="real data")
    comparing.add_argument("records", nargs=2, type=Path, metavar="RECORD", help="the old one, the new one")
    for command in (recording, comparing):
        command.add_argument("--only", default=",".join(CASES), help="cases (default: %(default)s)")
    given = parser.parse_args()
    if given.command == "record":
        places = (each.resolve() for each in (given.tree, given.out, given.data, given.model))
        return 0 if record(*places, given.only.split(",")) else 1
    difference = None
    for difference in compare(*given.records, given.only.split(",")):
        print(*difference, sep="\t")
    return 1 if difference else 0


if __name__ == "__main__":
    sys.exit(main())
