"""Entry point of the command line: find and run the command; report bad input in one line, with exit code 2."""

import argparse
import contextlib
import functools
import importlib
import inspect
import itertools
import os
import re
import shutil
import signal
import sys
import textwrap
import threading
from collections.abc import Iterator, Mapping
from types import FrameType, ModuleType
from typing import NoReturn

from rococo_jax.cli.outputs import hold_output, refuse_overwriting
from rococo_jax.errors import InputError, first_line, report_in_one_line, require_one_of, unknown_name
from rococo_jax.options import Group, add_options, parse, refuse_combinations, selected
from rococo_jax.progress import be_quiet
from rococo_jax.version import __version__

# Every command, in the order in which `rococo --help` lists them; `rococo_jax/cli/NAME.py` is its module.
GROUPS = {
    "Evaluate": (
        "demo benchmarks fetch evaluate leaderboard compare power score export-inputs report explore export-results "
        "history select factors correlate"
    ).split(),
    "Models": "convert export inspect join interpolate embed".split(),
    "Train": "train sweep pack".split(),
    "Alter": "alter-captions make-benchmark mix-images corrupt-images influence".split(),
    "Inspect": "verify attack attention".split(),
}
COMMANDS = tuple(name for names in GROUPS.values() for name in names)
EXAMPLES = """\
  rococo demo
  rococo evaluate models/clip-b32 --data DATA --out out
  rococo train --config scenes_tiny --workdir runs/first
  rococo COMMAND --help         options and examples of a command"""


def build_parser(*only: str, grouped: bool = False) -> argparse.ArgumentParser:
    """Build the parser of all commands, or of `only` these. The modules of commands import no JAX.

    With `grouped`, the help lists the commands by `GROUPS`, and not as the values of one argument.
    """
    modules = {name: importlib.import_module(f"rococo_jax.cli.{name.replace('-', '_')}") for name in only or COMMANDS}
    parser = _Parser(
        prog="rococo",
        usage=None if only else "rococo [--version] [--print-completion SHELL] COMMAND ...",
        description="Measure how robust image-text models are to altered captions and images, and train robust ones.",
        epilog=None if only else _epilog(modules),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"rococo_jax {__version__}")
    completion_help = "print a script that completes commands and options, for the shell to source"
    shells = ("bash", "zsh", "tcsh")
    parser.add_argument("--print-completion", choices=shells, action=_Completion, help=completion_help)
    commands_help = argparse.SUPPRESS if grouped else None
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", help=commands_help)
    for name, module in modules.items():
        command = commands.add_parser(
            name,
            help=_summary(module),
            description=_summary(module),
            epilog="examples:\n" + module.EXAMPLES,
            formatter_class=functools.partial(argparse.RawDescriptionHelpFormatter, max_help_position=30),
            allow_abbrev=False,  # a script with an abbreviation breaks when a second option begins like it
        )
        if only or not grouped:  # the list of commands shows none of their options
            add_options(command, module.Options)
            command.usage = _usage(command)
        command.set_defaults(module=module)
    return parser


def _epilog(modules: Mapping[str, ModuleType]) -> str:
    """Return the commands by group, wrapped to the width of the terminal, and examples."""
    wrapper = textwrap.TextWrapper(
        shutil.get_terminal_size().columns - 2, subsequent_indent=" " * 18, break_on_hyphens=False
    )
    parts = []
    for group, names in GROUPS.items():
        lines = [f"{group}:"]
        for name in names:
            wrapper.initial_indent = f"  {name:<16}"
            lines.append(wrapper.fill(_summary(modules[name])))
        parts.append("\n".join(lines))
    return "\n\n".join([*parts, f"examples:\n{EXAMPLES}"])


def _usage(command: argparse.ArgumentParser) -> str:
    """Return the usage in one line: positional arguments and required options; the help lists the others."""
    forms = {None: "{}", "?": "[{}]", "*": "[{} ...]", "+": "{} ..."}
    positional, required = [], []
    for action in command._actions:
        name = action.metavar or action.dest.upper()
        if not action.option_strings:
            positional.append(forms[action.nargs].format(name))
        elif action.required:
            required.append(f"{action.option_strings[0]} {name}")
    return " ".join([command.prog, *positional, *required, "[options]"])


def _summary(module: ModuleType) -> str:
    return module.Options.__doc__.splitlines()[0]


class _Completion(argparse.Action):
    """Action that prints a completion script and exits."""

    def __call__(self, parser, namespace, shell, option_string=None) -> NoReturn:
        import shtab

        print(shtab.complete(build_parser(), shell=shell))
        parser.exit(0)


class _Parser(argparse.ArgumentParser):
    """Parser of `rococo` and of each command, whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        usage = f"; usage: {self.usage}" if self.usage and "required" in message else ""
        self.exit(2, f"{self.prog}: {message}{usage}; see {self.prog} --help\n")


def main(arguments: list[str] | None = None) -> int:
    """Run a command. Returns the exit code: 0 success, 2 bad input, 130 interrupted."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    # transformers would print that PyTorch was not found, which no command needs.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    only = words[:1] if words and words[0] in COMMANDS else []
    parsed = None
    with _interrupts() as interrupted:
        try:
            if words and not words[0].startswith("-") and words[0] not in COMMANDS:
                raise unknown_name("rococo", "command", words[0], COMMANDS, "rococo --help")
            parser = build_parser(*only, grouped=True)
            if not words:
                parser.print_help()
                return 0
            if only:
                _refuse_unknown_options(*words)
            parsed, parsed.overrides = parser.parse_known_args(words)
            takes_overrides = _takes_overrides(parsed.module)
            if parsed.overrides and not takes_overrides:
                word = parsed.overrides[0]
                wanted = f"an option; `rococo {parsed.command} --help` lists them"
                raise InputError(parsed.command, "argument", repr(word), wanted)
            refuse_combinations(parsed.module.Options, vars(parsed), f"rococo {parsed.command}")
            options = parse(parsed.module.Options, vars(parsed))
            refuse_overwriting(parsed)
            _refuse_float64()
            _choose_device(getattr(parsed, "device", None))
            with be_quiet(getattr(parsed, "quiet", False)), hold_output(parsed):
                code = parsed.module.run(options, *([parsed.overrides] if takes_overrides else [])) or 0
            sys.stdout.flush()
            if interrupted:
                raise KeyboardInterrupt
            return code
        except BrokenPipeError:
            # The reader of the output, such as `head`, has closed it; the interpreter must not flush it again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        except BaseException as error:
            # An interruption while a library is imported can surface as an error of that library.
            code = report_in_one_line(KeyboardInterrupt() if interrupted else _for_the_command_line(error, parsed))
            if code is None:
                raise
            return code


def _takes_overrides(module: ModuleType) -> bool:
    """Return whether a command takes overrides of config keys, such as `--config.seed=1`, besides its options."""
    return "overrides" in inspect.signature(module.run).parameters


def _refuse_unknown_options(command: str, *words: str) -> None:
    """Raise InputError for the first unknown option, before argparse complains about what is then missing."""
    module = importlib.import_module(f"rococo_jax.cli.{command.replace('-', '_')}")
    flags = ["--help", *dict.fromkeys(flag for _, flag in _flags_by_argument(module.Options, Group()))]
    for word in itertools.takewhile(lambda word: word != "--", words):
        name, is_assignment, _ = word.partition("=")
        is_override = _takes_overrides(module) and (is_assignment or name.startswith("--config."))
        if name.startswith("--") and name not in flags and not is_override:
            raise unknown_name(command, "option", name, flags, f"rococo {command} --help")


@contextlib.contextmanager
def _interrupts() -> Iterator[list[int]]:
    """Within the block, SIGINT raises KeyboardInterrupt as usual, and is recorded in the list.

    During an import it ends the process instead: extension modules would print their own traceback for the exception.
    """
    received: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        received.append(number)
        while frame is not None and not frame.f_code.co_filename.startswith("<frozen importlib"):
            frame = frame.f_back
        if frame is not None:
            report_in_one_line(KeyboardInterrupt())
            sys.stderr.flush()
            os._exit(130)
        raise KeyboardInterrupt

    is_usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not is_usual or threading.current_thread() is not threading.main_thread():
        yield received
        return
    signal.signal(signal.SIGINT, interrupt)
    try:
        yield received
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _refuse_float64() -> None:
    """Raise InputError for JAX's switch to float64, which would mix precisions: all computations are in float32."""
    if os.environ.get("JAX_ENABLE_X64", "").lower() in ("1", "true", "yes", "on"):
        raise InputError("JAX_ENABLE_X64", "environment", os.environ["JAX_ENABLE_X64"], "0, or nothing: float32")


_DEVICES = {"cpu": "cpu", "gpu": "cuda", "cuda": "cuda", "rocm": "rocm", "tpu": "tpu"}


def _choose_device(kind: str | None) -> None:
    """Restrict JAX to one kind of device. Raises InputError for an unknown kind."""
    if kind is None:
        return
    require_one_of("--device", "kind", kind, _DEVICES)
    import jax

    jax.config.update("jax_platforms", _DEVICES[kind])


def _for_the_command_line(error: BaseException, parsed: argparse.Namespace | None) -> BaseException:
    """Return an error as a user of the command line should read it.

    JAX's error for a device that is not available becomes bad input. Arguments that a message names in backticks, such
    as `allow_missing_images`, are written as options of the command.
    """
    if parsed is None:
        return error
    if isinstance(error, InputError):
        # An argument of the command itself takes precedence over one of a group with the same name.
        flags = dict(reversed([*_flags_by_argument(parsed.module.Options, Group())]))
        error.args = (re.sub(r"`(\w+)(?:=(\w+))?`", lambda match: _as_option(match, flags), str(error)),)
        return error
    kind = getattr(parsed, "device", None)
    if kind is None or not isinstance(error, RuntimeError) or "backend" not in str(error).lower():
        return error
    return InputError("--device", "kind", f"no {kind} that JAX can use: {first_line(error)}", "an available kind")


def _flags_by_argument(options: type, group: Group) -> Iterator[tuple[str, str]]:
    """Yield the name of each argument that a command takes from a dataclass of options, and its flag."""
    for each in selected(options, group):
        if each.is_group:
            yield from _flags_by_argument(each.kind, each.option)
        elif not each.option.positional:
            yield each.name, each.flag


def _as_option(match: re.Match[str], flags: Mapping[str, str]) -> str:
    """Return the option for an argument in backticks, or the text unchanged if the command has no such option."""
    name, value = match.groups()
    if name not in flags:
        return match[0]
    return flags[name] if value is None else f"{flags[name]} {value}"
