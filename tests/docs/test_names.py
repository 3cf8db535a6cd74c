"""Files, names, commands and options that pages, docstrings and comments put in backticks are there."""

import functools
import importlib.util
import re
from pathlib import Path

import rococo_jax
from rococo_jax.cli.main import build_parser
from rococo_jax.training.config import default_config, flat
from tests.support.paths import CHECKOUT

PACKAGE = "rococo_jax"
# Of other projects, or of whoever follows the page.
OTHERS = {"train_retrieval.py", "NAME.py", "cifar10.py", "schedule.py"}
LIBRARIES = set("mteb wandb imagecorruptions open_clip torch timm pandas peft axes Dataset DatasetDict Image".split())
PROSE = re.compile(r'"""(?s:.*?)"""|#.*')
FILE = re.compile(
    r"\.(py|jsonl?|csv|tsv|txt|md|toml|ya?ml|cfg|html|svg|png|jpg|np[yz]|parquet|tar|pth?|bin|safetensors)$"
)


@functools.cache
def files() -> list[str]:
    folders = (PACKAGE, "configs", "docs", "experiments", "launch", "notebooks", "perf", "tests", "tools")
    paths = [*CHECKOUT.glob("*.md"), *(path for folder in folders for path in (CHECKOUT / folder).rglob("*.*"))]
    return sorted(path.relative_to(CHECKOUT).as_posix() for path in paths if path.suffix != ".pyc")


@functools.cache
def texts() -> dict[str, str]:
    """The prose of each file: pages, and comments and docstrings of modules."""
    contents = {
        name: (CHECKOUT / name).read_text(encoding="utf-8") for name in files() if name.endswith((".md", ".py"))
    }
    return {name: text if name.endswith(".md") else "\n".join(PROSE.findall(text)) for name, text in contents.items()}


@functools.cache
def names() -> dict[str, set[str]]:
    """Module of the package, or class in one -> every word of the module's code."""
    found: dict[str, set[str]] = {}
    for file in (name for name in files() if name.startswith(f"{PACKAGE}/") and name.endswith(".py")):
        code = PROSE.sub("", (CHECKOUT / file).read_text(encoding="utf-8"))
        words = set(re.findall(r"[A-Za-z_]\w*", code))
        module = ".".join(Path(file).with_suffix("").parts).removesuffix(".__init__")
        for place in [module, *re.findall(r"^class (\w+)", code, re.MULTILINE)]:
            found[place] = found.get(place, set()) | words
    return found


def is_there(name: str, file: str) -> bool:
    """A module, or something in one or in a class; a key of the config; a library's; or a local name of the file."""
    above, last = name.rsplit(".", 1)
    known, head = names(), name.split(".")[0]
    if any(f".{module}".endswith(f".{name}") for module in known):
        return True
    places = [inside for place, inside in known.items() if f".{place}".endswith(f".{above.split('.')[-1]}")]
    if any(last in inside for inside in places) or name.removeprefix("config.") in keys():
        return True
    if head in LIBRARIES or (head != PACKAGE and importlib.util.find_spec(head) is not None):
        return True
    own = known.get(".".join(Path(file).with_suffix("").parts), set())
    return (head in own and last in own) or (above == PACKAGE and hasattr(rococo_jax, last))


@functools.cache
def keys() -> set[str]:
    """Keys of a training config, and the sections that they are in."""
    parts = [key.split(".") for key in [*flat(default_config()), "losses.NAME"]]
    return {".".join(key[:end]) for key in parts for end in range(1, len(key) + 1)} | {"losses"}


def test_files_are_there():
    there = {name[place:] for name in files() for place in [0, *(found.end() for found in re.finditer("/", name))]}
    missing = {
        f"{file}: {path}"
        for file, text in texts().items()
        # Readers of checkpoints name the files of the projects that wrote them.
        if not file.startswith(f"{PACKAGE}/checkpoints")
        for path in re.findall(r"`(?:\./)?([\w./-]+\.py)`", text)
        if path not in there and Path(path).name not in OTHERS
    }
    assert missing == set()


def test_dotted_names_are_there():
    missing = {
        f"{file}: {name}"
        for file, text in texts().items()
        if not file.startswith((f"{PACKAGE}/checkpoints/formats", "experiments", "perf", "tools", "tests"))
        for name in re.findall(r"`([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+)(?:\([^`]*\))?`", text)
        if not FILE.search(name) and not is_there(name, file)
    }
    assert missing == set()


def test_commands_and_their_options_are_there():
    commands = build_parser()._subparsers._group_actions[0].choices
    flags = {
        name: {flag for each in parser._actions for flag in each.option_strings} for name, parser in commands.items()
    }
    missing = []
    for name, text in texts().items():
        for command, rest in re.findall(r"(?:`|^)rococo ([a-z][a-z-]+)([^`\n]*)", text, re.MULTILINE):
            missing += [f"{name}: rococo {command}"] * (command not in flags)
            used = re.findall(r"(?<![\w-])--[a-z][a-z-]*(?![\w.-])", rest)
            missing += [f"{name}: rococo {command} {flag}" for flag in used if flag not in flags.get(command, used)]
    assert missing == []


def test_first_lines_of_docstrings_say_what_a_thing_is():
    """Not whose it is, or that it is like another."""
    empty = r'"""(?:Of |That |Those |Its |Itself|Nothing|As `[^`]+`\."""|The same on |From memory|From the index).*'
    code = {name: (CHECKOUT / name).read_text(encoding="utf-8") for name in files() if name.endswith(".py")}
    lines = {name: re.findall(empty, text) for name, text in code.items() if name.startswith(f"{PACKAGE}/")}
    assert {name: each for name, each in lines.items() if each} == {}
