"""Make one line of the package wrong at a time, and run the tests that should notice.

    python experiments/wrong_lines.py --out build/wrong_lines [--only similarity] [--again survived] [--check]

A wrong line is a piece of a file's text and its replacement. The tracked files of the checkout are copied below
`--out`; each line is changed there, its tests run until the first failure (those of `make test`, then those that
`make test-full` adds), and the line is restored. `results.jsonl` has one line for each, with the command that
noticed and the test that failed, or `survived`. An interrupted run resumes; a line whose text has changed since, or
whose result `--again` names, runs again. `--check` only checks that each piece of text occurs exactly once.
"""

import argparse
import contextlib
import importlib
import json
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest

CHECKOUT = Path(__file__).resolve().parents[1]
MINUTES = 10  # for the tests of a line
COMMANDS = {"make test": "not slow", "make test-full": "slow"}
# Imported once, for all lines; the package itself is imported by the process that tests a line.
PACKAGES = ("flax.nnx", "optax", "orbax.checkpoint", "scipy.stats", "torch", "transformers")


class WrongLine(NamedTuple):
    """A piece of a file's text, its replacement, and the tests that should fail, below `tests/`.

    `place` is a folder or file of `rococo_jax`; one file there has the text, once.
    """

    place: str
    text: str
    replacement: str
    tests: str


LINES = [WrongLine(*line) for line in (
    # attacks
    ("attacks", "most = jnp.floor(radius + 1e-3)", "most = jnp.ceil(radius + 1e-3)", "attacks"),
    ("attacks", "jnp.sign(gradient) if norm", "-jnp.sign(gradient) if norm", "attacks"),
    ("attacks", 'record["smallest"] <= changes:', 'record["smallest"] < changes:', "attacks"),
    ("attacks", '"r1": 100.0 * float((right & ~fooled).mean())', '"r1": 100.0 * float((~fooled).mean())', "attacks"),
    # benchmarks
    ("benchmarks", "other = place + int(draw) % (count - place)", "other = int(draw) % count", "benchmarks/rococo"),
    ("benchmarks", "entropy = np.maximum(np.log(total) - weighted / total, 0.0)",
     "entropy = np.maximum(np.log(total) + weighted / total, 0.0)", "similarity/test_softmax.py"),
    ("benchmarks", "wrong = np.where(~right & valid, values, -np.inf).argmax(2)",
     "wrong = np.where(~right & valid, values, np.inf).argmin(2)", "benchmarks/test_readers.py"),
    ("benchmarks", "blind, looking = won & (statistics.blind > _BLIND)",
     "blind, looking = won & (statistics.blind < _BLIND)", "benchmarks evaluation report"),
    ("benchmarks", "is_kept = _kept_in_strict(item) if strict", "is_kept = _kept_in_strict(item) if not strict",
     "benchmarks evaluation"),
    ("benchmarks", "np.where(bag[right] == bag[wrong], 0.5, 1.0)", "np.where(bag[right] == bag[wrong], 1.0, 1.0)",
     "benchmarks"),
    # checkpoints
    ("checkpoints", "tower.context_length - self.unused_positions)", "tower.context_length)", "checkpoints"),
    ("checkpoints", "return (int(hidden * 2 / 3) + 7) // 8 * 8", "return int(hidden * 2 / 3) // 8 * 8", "checkpoints"),
    ("checkpoints", "not is_number(value) or value <= 0", "not is_number(value) or value < 0",
     "checkpoints/test_huggingface.py"),
    ("checkpoints", "array.view(ml_dtypes.bfloat16) if", "array.view(np.float16) if",
     "checkpoints/test_families.py"),
    # cli
    ("cli", "0 <= value <= 100)", "0 <= value <= 1)", "report cli"),
    ("cli", "if (out / JOURNAL).is_file() else []", "if not (out / JOURNAL).is_file() else []",
     "evaluation/test_resume.py"),
    # data
    ("data", "h = max(1, min(height, round(width / ratio[0])))", "h = max(1, min(height, round(width * ratio[0])))",
     "data/test_samples.py"),
    ("data", "(self.rescale_factor * v - m) / s for v in (0, 255)",
     "(self.rescale_factor * v + m) / s for v in (0, 255)", "data encoders"),
    ("data", "while high - low >= _TOLERANCE:", "while high - low >= 100 * _TOLERANCE:",
     "checkpoints/test_siglip2.py"),
    ("data", "if (number + 1) * (total - numerator) // total == count_of_rest:",
     "if number * (total - numerator) // total == count_of_rest:", "data"),
    ("data", "lane * self.images // self.lanes + place", "lane * self.images // self.lanes", "data training"),
    ("data", "end = (chunk_of_batch + 1) * len(self.rows) // self.per_batch",
     "end = (chunk_of_batch + 1) * len(self.rows)", "data training"),
    # demo
    ("demo", "if not kind.flies and not kind.backdrop", "if not kind.backdrop", "demo"),
    ("demo", "v = 2 - 5 * t**2 + 3 * t**3", "v = 2 - 4 * t**2 + 3 * t**3", "demo"),
    # encoders
    ("encoders", "nearest = np.minimum(nearest, len(self._digests) - 1)", "nearest = np.minimum(nearest, 0)",
     "encoders"),
    ("encoders", "return (array / norms).astype(np.float32)", "return array.astype(np.float32)", "encoders"),
    ("encoders", "[:, None] > np.arange(length)", "[:, None] >= np.arange(length)", "evaluation/test_pairs.py"),
    ("encoders", "members = np.flatnonzero((images >= start) & (images < start + len(tokens)))",
     "members = np.flatnonzero((images >= start) & (images <= start))", "evaluation/test_reranking.py"),
    ("encoders", "if tokens <= length < context_length:", "if tokens < length < context_length:",
     "encoders/test_encoder.py"),
    # evaluation
    ("evaluation", "below = np.maximum(_UNSCORED_OFFSET, 2 - lowest)", "below = np.maximum(0, 2 - lowest)",
     "docs/test_doctests.py"),
    ("evaluation", "return top + np.log(np.exp(logits - top).mean(axis=1, keepdims=True))",
     "return top + np.log(np.exp(logits - top).sum(axis=1, keepdims=True))", "evaluation"),
    ("evaluation", "np.exp(block) if are_logarithms else block / total", "np.exp(block) if are_logarithms else block",
     "evaluation"),
    ("evaluation", "return list(models[int(number) - 1 :: int(count)])",
     "return list(models[int(number) :: int(count)])", "docs/test_doctests.py"),
    ("evaluation", "not low - _TOLERANCE <= value <= high + _TOLERANCE:", "not value <= high + _TOLERANCE:",
     "evaluation/test_score.py"),
    # losses
    ("losses", "nll += jax.nn.softplus(negative - positive - nll)", "nll += jax.nn.softplus(negative - positive)",
     "losses"),
    ("losses", "return (0.5 * (image_to_text + text_to_image)).mean()", "return (image_to_text).mean()", "losses"),
    ("losses", "total / jnp.maximum(mask.sum(), 1)", "total / mask.size", "losses"),
    ("losses", "negative_logits = jnp.where(negatives.valid, negative_logits, -jnp.inf)",
     "negative_logits = jnp.where(negatives.valid, negative_logits, 0.0)", "losses"),
    # metrics
    ("metrics", "low, high = (middle - half) / shrink, (middle + half) / shrink",
     "low, high = middle - half, middle + half", "metrics"),
    ("metrics", '"auroc": (ins * (below + outs / 2))', '"auroc": (ins * (below + outs))', "metrics"),
    ("metrics", "p = _p_of_student(rho, models - 2 - (controlling_for is not None))",
     "p = _p_of_student(rho, models - 2)", "metrics"),
    ("metrics", "np.maximum.accumulate(p[tests][order] * np.arange(len(order), 0, -1))",
     "np.maximum.accumulate(p[tests][order] * len(order))", "metrics"),
    ("metrics", "(z >= right_logit[:, None]).sum(axis=1)", "(z > right_logit[:, None]).sum(axis=1)", "metrics"),
    ("metrics", "lowest, highest = 1 + is_better.sum(axis=0), len(values) - is_better.sum(axis=1)",
     "lowest, highest = 1 + is_better.sum(axis=1), len(values) - is_better.sum(axis=0)", "metrics"),
    ("metrics", "return (int((swapped >= observed * (1 - _TIE)).sum()) + 1) / (len(swapped) + 1)",
     "return int((swapped >= observed * (1 - _TIE)).sum()) / len(swapped)", "metrics"),
    ("metrics", "rank <= cutoff for cutoff", "rank < cutoff for cutoff", "metrics evaluation"),
    ("metrics", 'hesitation": before.right & after.right & (after.uncertainty > before.uncertainty)',
     'hesitation": before.right & after.right & (after.uncertainty >= before.uncertainty)', "metrics"),
    ("metrics", "100.0 * points / clean if clean", "100.0 * points / altered if clean", "metrics evaluation"),
    # models
    ("models", "jnp.asarray(1.702, x.dtype) * x)", "jnp.asarray(1.72, x.dtype) * x)", "models"),
    ("models", "end = jnp.argmax((ids == self.spec.eos_id) & mask, axis=1)",
     "end = jnp.argmin((ids == self.spec.eos_id) & mask, axis=1)", "models"),
    ("models", "weights = _keys_kernel(centre - neighbour, -0.75)", "weights = _keys_kernel(centre - neighbour, -0.5)",
     "models checkpoints"),
    ("models", "second * cosine + first * sine]", "second * cosine - first * sine]", "models"),
    ("models", "total += 2 * math.prod(kernel[2:]) * math.prod(", "total += math.prod(kernel[2:]) * math.prod(",
     "models"),
    ("models", "centred = c - c.mean(-1, keepdims=True) - normalised", "centred = c - normalised", "models training"),
    # perturb
    ("perturb", "area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])",
     "area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 2] - boxes[:, 0])", "perturb"),
    ("perturb", "return (rounded(mixed * 255.0) + 0.5).astype(jnp.uint8)",
     "return rounded(mixed * 255.0).astype(jnp.uint8)", "perturb"),
    ("perturb", "jnp.where(uniform < amount / 2, jnp.uint8(255)", "jnp.where(uniform < amount, jnp.uint8(255)",
     "perturb"),
    ("perturb", "words & np.uint32(0xFFFF)", "words & np.uint32(0xFFF)", "perturb"),
    ("perturb", "lines = np.minimum(first + tap, image.shape[0] - 1)",
     "lines = np.minimum(first + tap, image.shape[0] - 2)", "perturb"),
    ("perturb", "np.square(complete - next(embeddings)).sum() / 2",
     "np.abs(complete - next(embeddings)).sum() / 2", "perturb"),
    # report
    ("report", "root = math.sqrt(max(0.0, spread**2 - effect**2))", "root = spread", "report"),
    ("report", "stored - recomputed) <= _CLOSE", "stored - recomputed) <= 1e9 * _CLOSE",
     "report/test_verification.py"),
    ("report", "freedom = of_seeds**2 / denominator", "freedom = of_seeds / denominator",
     "metrics/test_intervals.py"),
    ("report", "if not self.low <= 0 <= self.high:", "if self.low <= 0 <= self.high:",
     "report/test_comparison.py"),
    # similarity
    ("similarity", "ties_for_best = jnp.any(_count(strip_has_best) > 1)",
     "ties_for_best = jnp.any(_count(strip_has_best) > 2)", "similarity"),
    ("similarity", "score = jnp.where(is_altered == is_altered_tile, score, -jnp.inf)",
     "score = jnp.where(is_altered, score, -jnp.inf)", "similarity"),
    ("similarity", "preferring[entries] = 2 * unrelated[entries] - twice_below[0, column]",
     "preferring[entries] = twice_below[0, column]", "similarity"),
    ("similarity", "overlaps &= queries.last_group[:, None] >= gallery.first_group",
     "overlaps &= queries.last_group[:, None] > gallery.first_group", "similarity"),
    ("similarity", "raised, total * jnp.exp(highest - shift) + jnp.exp(", "raised, total + jnp.exp(", "similarity"),
    ("similarity", "(score == other_score) & (score > -np.inf) & (index > other_index)",
     "(score == other_score) & (score > -np.inf) & (index < other_index)", "similarity"),
    # studies
    ("studies", "np.round(weight * inconsistency + (1 - weight) * spread, 12)", "np.round(inconsistency + spread, 12)",
     "studies"),
    ("studies", "weights = np.minimum(1.0, _HUBER * scale / np.maximum(residual, 1e-12))",
     "weights = np.ones_like(residual)", "studies report"),
    ("studies", "(rows / rows.sum(1, keepdims=True))", "(rows / rows.max(1, keepdims=True))", "studies"),
    # sweep
    ("sweep", "max(1, round(base.optimizer.warmup_steps / share))",
     "max(1, round(base.optimizer.warmup_steps * share))", "sweep"),
    ("sweep", "return 100 * (1 - altered / clean) if", "return 100 * (1 - clean / altered) if", "sweep"),
    # texts
    ("texts", "newline = \"\\r\" if \"\\r\" in first_text and \"\\n\" not in first_text",
     "newline = \"\\r\" if \"\\r\" in first_text", "test_texts.py data"),
    ("texts", "if self._remaining < 0:", "if self._remaining < -1e12:", "test_bounded_files.py"),
    # training
    ("training", "(final + (1 - final) * falling)", "(final + falling)", "training"),
    ("training", "else decay**layers)", "else decay)", "training"),
    ("training", "by_device = by_micro_batch.swapaxes(0, 1).reshape(", "by_device = by_micro_batch.reshape(",
     "training/test_grad_cache.py"),
    ("training", "similarities.argmax(axis=1)] == np.arange(len(images))",
     "similarities.argmin(axis=1)] == np.arange(len(images))", "training/test_cca.py"),
    ("training", "if line.endswith(\"\\n\") and json.loads(line)[\"step\"] <= step:", "if line.endswith(\"\\n\"):",
     "training/test_run_log.py"),
    ("training", "(end - first)).astype(np.int64)", "(end - first - 1)).astype(np.int64)",
     "training/test_feature_input.py"),
    ("training", "(1 - weight) * array + weight * second_parameters[path]",
     "weight * array + (1 - weight) * second_parameters[path]", "training/test_defences.py"),
    # files of the package itself
    ("storage.py", "            _flush_to_disk(temporary)\n            temporary.replace(path)",
     "            shutil.copy(temporary, path)", "test_storage.py faults"),
    ("storage.py", "indent=2, ensure_ascii=False, allow_nan=False)", "indent=2, ensure_ascii=False)",
     "test_storage.py"),
    ("locks.py", "if not wait or _locks[lock] == this_thread:", "if not wait:", "test_storage.py"),
    ("process_group.py", "isinstance(error, jax.errors.JaxRuntimeError | ValueError)", "isinstance(error, ValueError)",
     "test_processes.py"),
    ("runtime.py", 'return Path(of_user) / "rococo_jax"', "return Path(of_user)",
     "faults/test_outputs.py"),
)]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=CHECKOUT / "build" / "wrong_lines")
    parser.add_argument("--only", default="", help="lines of places whose name contains this")
    parser.add_argument("--again", default="", help="also run again what has this result: survived, make test, ...")
    parser.add_argument("--check", action="store_true", help="only check that each text is in one file once")
    options = parser.parse_args()
    lines = [line for line in LINES if options.only in line.place]
    if stale := [line for line in lines if file_of(line, CHECKOUT) is None]:
        sys.exit("not exactly once in its place:\n" + "\n".join(f"{line.place}: {line.text}" for line in stale))
    if not options.check:
        run_lines(lines, options.out, options.again)


def file_of(line: WrongLine, checkout: Path) -> Path | None:
    """Return the file that has the text once; None if no file has it, or it occurs more often."""
    place = checkout / "rococo_jax" / line.place
    counts = {path: path.read_text().count(line.text) for path in ([place] if place.is_file() else place.rglob("*.py"))}
    return next((path for path in counts if counts[path]), None) if sum(counts.values()) == 1 else None


def run_lines(lines: list[WrongLine], out: Path, again: str) -> None:
    """Run the lines that have no result yet, and print how many of all were noticed by which command."""
    copy, path = out / "checkout", out / "results.jsonl"
    # As tests/conftest.py sets them before it imports JAX, torch and the hub.
    os.environ |= {"JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    os.environ["ROCOCO_CACHE"] = str(out / "cache")
    sys.modules["triton"] = None
    for name in PACKAGES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    copy_checkout(copy)
    stored = [json.loads(text) for text in path.read_text().splitlines()] if path.is_file() else []
    results = {(each["place"], each["text"], each["replacement"]): each["result"] for each in stored}
    for number, line in enumerate(lines, 1):
        key = line[:3]
        if results.get(key) in (None, again):
            start = time.monotonic()
            results[key], test = result_of(line, copy)
            with path.open("a") as file:
                about = {"result": results[key], "test": test, "seconds": round(time.monotonic() - start)}
                file.write(json.dumps(line._asdict() | about) + "\n")
        print(f"{number}/{len(lines)} {results[key]}: {line.place}: {line.replacement}", flush=True)
    for result in (*COMMANDS, "survived"):
        print(f"{result}: {sum(results[line[:3]] == result for line in lines)}")


def copy_checkout(copy: Path) -> None:
    """Copy the tracked files, without what an interrupted run has changed."""
    shutil.rmtree(copy, ignore_errors=True)
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=CHECKOUT, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(CHECKOUT / name, copy / name)


def result_of(line: WrongLine, copy: Path) -> tuple[str, str]:
    """Return the command that notices a wrong line, or `survived`, and the last test that failed.

    Files that name the module run before the others.
    """
    path = file_of(line, copy)
    text = path.read_text()
    paths = [copy / "tests" / name for name in line.tests.split()]
    files = sorted({file for each in paths for file in ([each] if each.is_file() else each.rglob("test_*.py"))})
    near = [file for file in files if re.search(rf"\b{path.stem}\b", file.stem.replace("_", " ") + file.read_text())]
    others = [file for file in files if file not in near]
    path.write_text(text.replace(line.text, line.replacement))
    try:
        for name, marks in COMMANDS.items():
            if fails(near, marks, copy) or fails(others, marks, copy):
                ends = re.findall(r"^(?:FAILED|ERROR) (\S+)", (copy.parent / "output.txt").read_text(), re.MULTILINE)
                return name, ends[-1] if ends else "did not end, or could not start"
        return "survived", ""
    finally:
        path.write_text(text)


def fails(files: list[Path], marks: str, copy: Path) -> bool:
    """Return whether a test of the files fails, or whether they cannot be collected at all."""
    process = multiprocessing.get_context("fork").Process(target=run_tests, args=(files, marks, copy))
    process.start()
    process.join(MINUTES * 60)
    process.kill()  # a wrong line can be an endless loop
    process.join()
    no_tests = 5  # pytest's exit code where the marks select none
    return process.exitcode not in (0, no_tests)


def run_tests(files: list[Path], marks: str, copy: Path) -> None:
    """Run the tests of files in this process, which has imported the packages that take longest, and end it."""
    os.chdir(copy)
    sys.path.insert(0, str(copy))
    os.environ["PYTHONPATH"] = str(copy)  # for the commands that tests start
    with (copy.parent / "output.txt").open("w") as output:
        for descriptor in (1, 2):
            os.dup2(output.fileno(), descriptor)
        words = ["-x", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", "-m", marks]
        code = pytest.main([*words, *map(str, files)]) if files else 0
    os._exit(code)


if __name__ == "__main__":
    main()
