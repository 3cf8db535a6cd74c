"""Mutation testing: change one place of the code, run the tests that matter, and see one fail.

    python tools/mutants.py rococo_jax/losses/altered.py ...     mutants made by rules, of the files (or folders) named
    python tools/mutants.py --sample 100 rococo_jax/losses ...   some of them, drawn with --seed
    python tools/mutants.py --named [WORD]                       the lines of tools/mutants.toml (whose notes have WORD)

Each mutant runs in a copy of the checkout, in a process forked from one that has the libraries loaded, with a time
limit of four times what the unchanged code takes; compiled programs are kept between mutants. The result is one JSON
line each in --out; a mutant that has a line is not run again. `tools/mutants.toml` says which tests matter to a file,
and which mutants change nothing that can be seen, with the reason.
"""

import argparse
import ast
import contextlib
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

CHECKOUT = Path(__file__).resolve().parent.parent
TABLE = CHECKOUT / "tools" / "mutants.toml"
_COMPARE = {ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"), ast.Eq: ("==", "!="),
            ast.NotEq: ("!=", "=="), ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is"), ast.In: ("in", "not in"),
            ast.NotIn: ("not in", "in")}  # fmt: skip
_BINARY = {ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*"),
           ast.FloorDiv: ("//", "%"), ast.Mod: ("%", "//"), ast.Pow: ("**", "*"), ast.BitAnd: ("&", "|"),
           ast.BitOr: ("|", "&")}  # fmt: skip
_CALLS = {"min": "max", "max": "min", "any": "all", "all": "any", "argmin": "argmax", "argmax": "argmin",
          "minimum": "maximum", "maximum": "minimum", "floor": "ceil", "zeros": "ones", "ones": "zeros",
          "sum": "max", "mean": "sum", "exp": "abs"}  # fmt: skip
# Arguments of `zip` and `dataclass` that refuse what right code never does: without them nothing changes.
_GUARDS = ("strict", "frozen", "eq")
# A killed mutant fails a test; one that hangs or breaks the process is found too.
KILLED, SURVIVED, TIMEOUT = "killed", "survived", "timeout"


class Mutant(NamedTuple):
    """A place of a file, by character, what stands there, and what is put there; None for the rules' tests."""

    file: str
    start: int
    old: str
    new: str
    tests: tuple[str, ...]
    note: str

    @property
    def key(self) -> str:
        """Depends on the file's text, so that a changed file is tried again."""
        text = (CHECKOUT / self.file).read_bytes()
        return hashlib.sha256(json.dumps([self.file, self.start, self.old, self.new]).encode() + text).hexdigest()[:16]

    def applied(self) -> str:
        text = (CHECKOUT / self.file).read_text()
        assert text.startswith(self.old, self.start)
        return text[: self.start] + self.new + text[self.start + len(self.old) :]

    def line(self) -> tuple[int, str]:
        """Line number and the changed line."""
        number = self.applied().count("\n", 0, self.start)
        return number + 1, self.applied().splitlines()[number].strip()


def mutants_of(file: str, tests: tuple[str, ...]) -> Iterator[Mutant]:
    """All mutants of a file that the rules make."""
    text = (CHECKOUT / file).read_text()
    tree = ast.parse(text)
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def at(line: int, column: int) -> int:
        whole = text[starts[line - 1] : starts[line]]
        return starts[line - 1] + len(whole.encode()[:column].decode())

    def span(node: ast.AST) -> tuple[int, int]:
        return at(node.lineno, node.col_offset), at(node.end_lineno, node.end_col_offset)

    def made(start: int, old: str, new: str, rule: str) -> Mutant:
        return Mutant(file, start, old, new, tests, rule)

    def between(left: ast.AST, right: ast.AST, old: str, new: str, rule: str) -> Iterator[Mutant]:
        start, end = span(left)[1], span(right)[0]
        found = re.search(rf"(?<![\w<>=!*/]){re.escape(old)}(?![<>=*/])", text[start:end])
        if found:
            yield made(start + found.start(), old, new, rule)

    for node in _code(tree):
        if isinstance(node, ast.Compare):
            for left, operator, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
                yield from between(left, right, *_COMPARE[type(operator)], "comparison")
        elif isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
            yield from between(node.left, node.right, *_BINARY[type(node.op)], "operator")
        elif isinstance(node, ast.BoolOp):
            words = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
            yield from between(node.values[0], node.values[1], *words, "and, or")
        elif isinstance(node, ast.UnaryOp) and not isinstance(node.operand, ast.Constant):
            start, stop = span(node)[0], span(node.operand)[0]
            if text[start:stop].strip() in ("not", "-", "~"):
                yield made(start, text[start:stop], "", "sign or not dropped")
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
            start, end = span(node)
            if isinstance(node.value, bool):
                new = not node.value
            else:
                new = node.value + 1 if isinstance(node.value, int) else 2 * node.value or 1.0
            yield made(start, text[start:end], repr(new), "constant")
        elif isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in _CALLS:
                yield made(span(node.func)[1] - len(name), name, _CALLS[name], "function")
            for keyword in node.keywords:
                if keyword.arg and keyword.arg not in _GUARDS and len(node.args) + len(node.keywords) > 1:
                    start, end = at(keyword.lineno, keyword.col_offset), span(keyword)[1]
                    old = re.match(r"\s*,?\s*", text[end:]).group() if text[end:].lstrip().startswith(",") else ""
                    yield made(start, text[start:end] + old, "", "argument dropped")
        elif isinstance(node, ast.If | ast.IfExp):
            start, end = span(node.test)
            yield made(start, text[start:end], f"(not ({text[start:end]}))", "condition")


def _code(node: ast.AST) -> Iterator[ast.AST]:
    """Nodes that compute: no annotations, no messages of errors, no f-strings."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Raise | ast.JoinedStr | ast.Assert | ast.Import | ast.ImportFrom):
            continue
        if isinstance(child, ast.arg) or (isinstance(child, ast.keyword) and child.arg in _GUARDS):
            continue
        if isinstance(node, ast.AnnAssign) and child is node.annotation:
            continue
        if isinstance(node, ast.FunctionDef) and child is node.returns:
            continue
        yield child
        yield from _code(child)


def named_mutants(table: dict, word: str = "") -> Iterator[Mutant]:
    """The mutants of the table.

    Raises:
        ValueError: a line is no longer there, or is there twice.
    """
    for row in table["named"]:
        text = (CHECKOUT / row["file"]).read_text()
        if text.count(row["old"]) != 1 or row["old"] == row["new"]:
            raise ValueError(f"{row['file']}: {text.count(row['old'])} times {row['old']!r}; wanted once")
        if word in row["note"]:
            yield Mutant(row["file"], text.index(row["old"]), row["old"], row["new"], tuple(row["tests"]), row["note"])


def tests_of(file: str, table: dict) -> tuple[str, ...]:
    """The tests of the longest entry that the file's path starts with."""
    entry = max((prefix for prefix in table["tests"] if file.startswith(prefix)), key=len, default=None)
    if entry is None:
        raise ValueError(f"{file}: no tests in {TABLE.name}")
    return tuple(table["tests"][entry])


class Runner:
    """Runs tests in a copy of the checkout, in forked processes."""

    def __init__(self, work: Path, compiled: Path, limits: dict[tuple[str, ...], float]):
        self.tree, self.limits = work / "tree", limits
        for name in _tracked():
            (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(CHECKOUT / name, self.tree / name)
        os.environ.setdefault("ROCOCO_DATA", str(CHECKOUT.parent / "shared" / "data"))
        os.environ |= {"JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1", "ROCOCO_CACHE": str(work / "cache"),
                       "JAX_COMPILATION_CACHE_DIR": str(compiled.resolve()), "PYTHONPATH": str(self.tree),
                       "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1", "PYTHONDONTWRITEBYTECODE": "1"}  # fmt: skip
        for library in ("jax", "flax.nnx", "optax", "orbax.checkpoint", "torch", "transformers", "pyarrow", "beartype",
                        "grain.python", "scipy.stats", "matplotlib.pyplot", "pytest"):  # fmt: skip
            with contextlib.suppress(ImportError):
                __import__(library)
        sys.dont_write_bytecode = True
        sys.path = [str(self.tree), *(path for path in sys.path if Path(path or ".").resolve() != CHECKOUT)]

    def measure(self, tests: tuple[str, ...]) -> float:
        """Seconds that a mutant has. The unchanged code must pass."""
        start = time.monotonic()
        outcome, output = self._run(tests, 1800.0)
        if outcome != SURVIVED:
            raise SystemExit(f"the unchanged code fails {' '.join(tests)}:\n{output[-3000:]}")
        return max(60.0, 4 * (time.monotonic() - start))

    def try_mutant(self, mutant: Mutant) -> tuple[str, str]:
        """What became of it, and the test that failed."""
        limit, path = self.limits[mutant.tests], self.tree / mutant.file
        before = path.read_text()
        try:
            path.write_text(mutant.applied())
            outcome, output = self._run(mutant.tests, limit)
        finally:
            path.write_text(before)
        failed = re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
        return outcome, failed.group(1) if failed else ""

    def _run(self, tests: tuple[str, ...], limit: float) -> tuple[str, str]:
        with tempfile.TemporaryFile() as output:
            process = os.fork()
            if not process:
                self._become_pytest(tests, output.fileno())
            ended, deadline = False, time.monotonic() + limit
            while not ended and time.monotonic() < deadline:
                ended, status = os.waitpid(process, os.WNOHANG)
                time.sleep(0 if ended else 0.05)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process, signal.SIGKILL)
            if not ended:
                os.waitpid(process, 0)
                return TIMEOUT, ""
            output.seek(0)
            return SURVIVED if status == 0 else KILLED, output.read().decode(errors="replace")

    def _become_pytest(self, tests: tuple[str, ...], output: int) -> None:
        code = 1
        try:
            os.setpgid(0, 0)
            os.chdir(self.tree)
            for descriptor in (1, 2):
                os.dup2(output, descriptor)
            import pytest

            code = int(
                pytest.main(
                    [*tests, "-x", "-q", "-m", "not slow and not real_data", "-p", "no:cacheprovider", "--tb=line"]
                )
            )
        finally:
            sys.stdout.flush()
            os._exit(code)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", help="files or folders of the package")
    parser.add_argument("--named", nargs="?", const="", help="those of the table, all or whose note has this word")
    parser.add_argument("--sample", type=int, help="so many of them")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=CHECKOUT / "mutants.jsonl")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no mutant after so long")
    arguments = parser.parse_args()
    table, begun = tomllib.loads(TABLE.read_text()), time.monotonic()
    if arguments.named is not None:
        mutants = list(named_mutants(table, arguments.named))
    else:
        named = [Path(name).resolve().relative_to(CHECKOUT) for name in arguments.files]
        files = [each for path in named for each in (sorted((CHECKOUT / path).rglob("*.py")) or [CHECKOUT / path])]
        names = [str(path.relative_to(CHECKOUT)) for path in files if path.name != "__init__.py"]
        mutants = [mutant for name in names for mutant in mutants_of(name, tests_of(name, table))]
        mutants = [mutant for mutant in mutants if _compiles(mutant)]
    if arguments.sample:
        mutants = random.Random(arguments.seed).sample(mutants, min(arguments.sample, len(mutants)))
    done = {}
    if arguments.out.exists():
        done = {row["key"]: row for row in map(json.loads, arguments.out.read_text().splitlines())}
    left = [mutant for mutant in mutants if mutant.key not in done]
    print(f"{len(mutants)} mutants, {len(left)} to run", flush=True)
    left.sort(key=lambda each: (each.tests, each.file, each.start))
    with tempfile.TemporaryDirectory() as work, arguments.out.open("a") as file:
        for mutant, row in _outcomes(left, Path(work), arguments.out, done, begun + arguments.seconds):
            done[row["key"]] = row
            file.write(json.dumps(row) + "\n")
            file.flush()
            if mutant is not None:
                line = f"{row['file']}:{row['line']}  {row['text']}  [{row['note']}] {row['by']}"
                print(f"{row['outcome']:9}{row['seconds']:5.0f} s  {line}", flush=True)
    rows = [done[mutant.key] for mutant in mutants if mutant.key in done]
    survived = [row for row in rows if row["outcome"] == SURVIVED]
    print(f"{len(rows) - len(survived)} of {len(rows)} killed")
    reasons = {(row["file"], row["line"]): row["reason"] for row in table.get("equivalent", ())}
    unexplained = 0
    for row in survived:
        reason = reasons.get((row["file"], row["text"]), "")
        unexplained += not reason
        print(f"survived: {row['file']}:{row['line']}  {row['text']}  [{row['note']}: {row['old']!r}]  {reason}")
    return 1 if unexplained else 0


def _outcomes(
    mutants: list[Mutant], work: Path, out: Path, done: dict[str, dict], until: float
) -> Iterator[tuple[Mutant | None, dict]]:
    """Each mutant with its line for the results; before those of other tests, None and how long these take."""
    runner = Runner(work, out.with_suffix(".compiled"), {}) if mutants else None
    state = _hash_of_tree()
    for mutant in mutants:
        if time.monotonic() > until:
            print("out of time; the same command goes on", flush=True)
            return
        if mutant.tests not in runner.limits:
            key = hashlib.sha256(json.dumps([mutant.tests, state]).encode()).hexdigest()[:16]
            seconds = done[key]["limit"] if key in done else runner.measure(mutant.tests)
            runner.limits[mutant.tests] = seconds
            if key not in done:
                yield None, {"key": key, "tests": mutant.tests, "limit": seconds}
        start = time.monotonic()
        outcome, by = runner.try_mutant(mutant)
        number, line = mutant.line()
        yield mutant, {"key": mutant.key, "outcome": outcome, "seconds": time.monotonic() - start, "file": mutant.file,
                       "line": number, "text": line, "note": mutant.note, "old": mutant.old, "new": mutant.new,
                       "by": by}  # fmt: skip


def _tracked() -> list[str]:
    command = ["git", "ls-files", "-co", "--exclude-standard"]
    return subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=True).stdout.splitlines()


def _hash_of_tree() -> str:
    digest = hashlib.sha256()
    for name in sorted(_tracked()):
        digest.update(name.encode() + (CHECKOUT / name).read_bytes())
    return digest.hexdigest()


def _compiles(mutant: Mutant) -> bool:
    with contextlib.suppress(SyntaxError):
        return bool(compile(mutant.applied(), mutant.file, "exec"))
    return False


if __name__ == "__main__":
    sys.exit(main())
