"""Files, names, commands and options that pages, docstrings and comments put in backticks are there."""

import functools
import importlib.util
import re
from collections import defaultdict
from pathlib import Path

import rococo_jax
from rococo_jax.cli.main import build_parser
from rococo_jax.training.config import default_config, flat
from tests.support.paths import CHECKOUT

PACKAGE = "rococo_jax"
FOLDERS = (PACKAGE, "configs", "docs", "experiments", "launch", "notebooks", "perf", "tests", "tools")
PATHS = [*CHECKOUT.glob("*.md"), *(path for folder in FOLDERS for path in (CHECKOUT / folder).rglob("*.*"))]
FILES = sorted(path.relative_to(CHECKOUT).as_posix() for path in PATHS if path.suffix != ".pyc")
CONTENTS = {name: (CHECKOUT / name).read_text(encoding="utf-8") for name in FILES if name.endswith((".md", ".py"))}
PROSE = re.compile(r'"""(?s:.*?)"""|#.*')
# Pages, and comments and docstrings of modules.
TEXTS = {name: "\n".join(PROSE.findall(text)) if name.endswith(".py") else text for name, text in CONTENTS.items()}
MODULES = [name for name in CONTENTS if name.startswith(f"{PACKAGE}/") and name.endswith(".py")]
# Of other projects, or of whoever follows the page.
OTHERS = {"train_retrieval.py", "params.py", "scheduler.py", "train.py", "NAME.py", "cifar10.py", "schedule.py"}
LIBRARIES = {*"mteb wandb imagecorruptions open_clip torch timm pandas peft axes Dataset DatasetDict Image".split()}
LIBRARIES.add("tokenizer_kwargs")  # of configurations of open_clip
SUFFIX = re.compile(
    r"\.(py|jsonl?|csv|tsv|txt|md|tex|toml|ya?ml|cfg|html|svg|png|jpg|np[yz]|parquet|tar|pth?|bin|safetensors)$"
)


def module_of(file: str) -> str:
    return ".".join(Path(file).with_suffix("").parts).removesuffix(".__init__")


@functools.cache
def names() -> dict[str, set[str]]:
    """Module of the package, or class in one -> every word of the module's code."""
    words: dict[str, set[str]] = defaultdict(set)
    for file in MODULES:
        code = PROSE.sub("", CONTENTS[file])
        for place in [module_of(file), *re.findall(r"^class (\w+)", code, re.MULTILINE)]:
            words[place].update(re.findall(r"[A-Za-z_]\w*", code))
    return words


@functools.cache
def keys() -> set[str]:
    """Return keys of a training config, and the sections that they are in."""
    parts = [key.split(".") for key in [*flat(default_config()), "losses.NAME"]]
    return {".".join(key[:end]) for key in parts for end in range(1, len(key) + 1)}


def is_there(name: str, file: str) -> bool:
    """A module, or something in one or in a class; a key of the config; a library's; or a local name of the file."""
    above, last = name.rsplit(".", 1)
    known, head, place = names(), name.split(".")[0], above.split(".")[-1]
    own = known.get(module_of(file), set())
    return (
        any(f".{module}".endswith(f".{name}") for module in known)
        or any(last in inside for module, inside in known.items() if f".{module}".endswith(f".{place}"))
        or name.removeprefix("config.") in keys()
        or head in LIBRARIES
        or (head != PACKAGE and importlib.util.find_spec(head) is not None)
        or {head, last} <= own
        or (above == PACKAGE and hasattr(rococo_jax, last))
    )


def test_files_named_in_texts_exist():
    there = {name[place:] for name in FILES for place in [0, *(match.end() for match in re.finditer("/", name))]}
    missing = {
        f"{file}: {path}"
        for file, text in TEXTS.items()
        # Readers of checkpoints name the files of the projects that wrote them.
        if not file.startswith(f"{PACKAGE}/checkpoints")
        for path in re.findall(r"`(?:\./)?([\w./-]+\.py)`", text)
        if path not in there and Path(path).name not in OTHERS
    }
    assert missing == set()


def test_dotted_names_in_texts_exist():
    missing = {
        f"{file}: {name}"
        for file, text in TEXTS.items()
        if not file.startswith((f"{PACKAGE}/checkpoints/formats", "experiments", "perf", "tools", "tests"))
        for name in re.findall(r"`([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+)(?:\([^`]*\))?`", text)
        if not SUFFIX.search(name) and not is_there(name, file)
    }
    assert missing == set()


def test_commands_and_options_in_texts_exist():
    commands = build_parser()._subparsers._group_actions[0].choices
    flags = {name: set(parser._option_string_actions) for name, parser in commands.items()}
    missing = []
    for name, text in TEXTS.items():
        if name == "CHANGELOG.md":  # names commands that were removed
            continue
        for command, rest in re.findall(r"(?:`|^)rococo ([a-z][a-z-]+)([^`\n]*)", text, re.MULTILINE):
            missing += [f"{name}: rococo {command}"] * (command not in flags)
            used = re.findall(r"(?<![\w-])--[a-z][a-z-]*(?![\w.-])", rest)
            missing += [f"{name}: rococo {command} {flag}" for flag in used if flag not in flags.get(command, used)]
    assert missing == []


def test_first_lines_of_docstrings_describe_the_object():
    """Not whose it is, or that it is like another."""
    empty = r'"""(?:Of |That |Those |Its |Itself|Nothing|As `[^`]+`\."""|The same on |From memory|From the index).*'
    assert [f"{name}: {line}" for name in MODULES for line in re.findall(empty, CONTENTS[name])] == []
