"""The entry point of the command line: finds the command, runs it, and reports bad input in one line, exit code 2."""

import argparse
import contextlib
import functools
import importlib
import inspect
import os
import shutil
import signal
import sys
import textwrap
import threading
from collections.abc import Iterator, Mapping
from types import FrameType, ModuleType
from typing import NoReturn

from rococo_jax.cli.outputs import hold_output, refuse_overwriting
from rococo_jax.errors import InputError, first_line, report_in_one_line, unknown_name
from rococo_jax.options import add_options, parse
from rococo_jax.progress import be_quiet
from rococo_jax.version import __version__

# Every command, in the order in which `rococo --help` lists them; `rococo_jax/cli/NAME.py` is its module.
GROUPS = {
    "Evaluate": "demo benchmarks fetch evaluate compare score export-inputs report select factors correlate".split(),
    "Models": "convert export inspect join interpolate embed".split(),
    "Train": "train sweep pack".split(),
    "Alter": "alter-captions make-benchmark mix-images corrupt-images influence".split(),
    "Inspect": "verify baselines attention".split(),
}
COMMANDS = tuple(name for names in GROUPS.values() for name in names)
EXAMPLES = """\
  rococo demo
  rococo evaluate models/clip-b32 --data DATA --out out
  rococo train --config configs/scenes_tiny.py --workdir runs/first
  rococo COMMAND --help         options and examples of a command"""


def build_parser(*only: str, grouped: bool = False) -> argparse.ArgumentParser:
    """Builds the parser of all commands, or of `only` these. Imports their modules, none of which imports JAX.

    `grouped` commands are listed by `GROUPS` below the help, and not as one argument's values.
    """
    modules = {name: importlib.import_module(f"rococo_jax.cli.{name.replace('-', '_')}") for name in only or COMMANDS}
    parser = _Parser(
        prog="rococo",
        usage=None if only else "rococo [--version] [--print-completion SHELL] COMMAND ...",
        description="How robust is an image-text model when a word is wrong, or another image is mixed in?",
        epilog=None if only else _epilog(modules),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"rococo_jax {__version__}")
    parser.add_argument("--print-completion", choices=("bash", "zsh", "tcsh"), action=_Completion,
                        help="print a script that completes commands and options, for the shell to source")  # fmt: skip
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND",
                                     help=argparse.SUPPRESS if grouped else None)  # fmt: skip
    for name, module in modules.items():
        command = commands.add_parser(
            name,
            help=_summary(module),
            description=_summary(module),
            epilog="examples:\n" + module.EXAMPLES,
            formatter_class=functools.partial(argparse.RawDescriptionHelpFormatter, max_help_position=30),
        )
        if only or not grouped:  # the list of commands shows none of their options
            add_options(command, module.Options)
            command.usage = _usage(command)
        command.set_defaults(
            module=module,
            flags=[option for action in command._actions for option in action.option_strings],
        )
    return parser


def _epilog(modules: Mapping[str, ModuleType]) -> str:
    """The commands by group, as wide as the terminal, and examples."""
    width, parts = shutil.get_terminal_size().columns - 2, []
    for group, names in GROUPS.items():
        lines = [textwrap.fill(_summary(modules[name]), width, initial_indent=f"  {name:<16}",
                               subsequent_indent=" " * 18, break_on_hyphens=False) for name in names]  # fmt: skip
        parts.append("\n".join([f"{group}:", *lines]))
    return "\n\n".join([*parts, f"examples:\n{EXAMPLES}"])


def _usage(command: argparse.ArgumentParser) -> str:
    """One line: positional arguments and what must be given; the options are listed below it."""
    forms = {None: "{}", "?": "[{}]", "*": "[{} ...]", "+": "{} ..."}
    needed = [
        f"{each.option_strings[0]} {each.metavar or each.dest.upper()}" if each.option_strings
        else forms[each.nargs].format(each.metavar or each.dest.upper())
        for each in sorted(command._actions, key=lambda each: bool(each.option_strings))
        if each.required or not each.option_strings
    ]  # fmt: skip
    return " ".join([command.prog, *needed, "[options]"])


def _summary(module: ModuleType) -> str:
    return module.Options.__doc__.splitlines()[0]


class _Completion(argparse.Action):
    """Prints a completion script and ends."""

    def __call__(self, parser, namespace, shell, option_string=None) -> NoReturn:
        import shtab

        print(shtab.complete(build_parser(), shell=shell))
        parser.exit(0)


class _Parser(argparse.ArgumentParser):
    """A parser, also of each command, whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def main(arguments: list[str] | None = None) -> int:
    """Runs a command. Returns the exit code: 0 done, 2 bad input, 130 interrupted."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    only = words[:1] if words and words[0] in COMMANDS else []
    parsed = None
    with _interrupts() as interrupted:
        try:
            if words and not words[0].startswith("-") and words[0] not in COMMANDS:
                raise unknown_name("rococo", "command", words[0], COMMANDS, "rococo --help")
            parser = build_parser(*only, grouped=True)
            parsed, parsed.overrides = parser.parse_known_args(words)
            takes_overrides = "overrides" in inspect.signature(parsed.module.run).parameters
            if parsed.overrides and not takes_overrides:
                _refuse_unknown(parsed)
            options = parse(parsed.module.Options, vars(parsed))
            refuse_overwriting(parsed)
            _refuse_float64()
            _choose_device(getattr(parsed, "device", None))
            be_quiet(getattr(parsed, "quiet", False))
            with hold_output(parsed):
                code = parsed.module.run(options, *([parsed.overrides] if takes_overrides else [])) or 0
            sys.stdout.flush()
            if interrupted:
                raise KeyboardInterrupt
            return code
        except BrokenPipeError:
            # Whoever read the output has seen enough, as `head` does; the interpreter must not flush it again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        except BaseException as error:
            # Libraries turn an interruption while they are imported into errors of their own.
            code = report_in_one_line(KeyboardInterrupt() if interrupted else _of_device(error, parsed))
            if code is None:
                raise
            return code


def _refuse_unknown(parsed: argparse.Namespace) -> None:
    """Raises InputError for the first argument that the command does not know."""
    source, word = f"rococo {parsed.command}", parsed.overrides[0]
    if not word.startswith("-"):
        raise InputError(source, "argument", repr(word), f"an option; `{source} --help` lists them")
    raise unknown_name(source, "option", word.partition("=")[0], parsed.flags, f"{source} --help")


@contextlib.contextmanager
def _interrupts() -> Iterator[list[int]]:
    """Within the block SIGINT raises KeyboardInterrupt as usual, and is noted in the list.

    During an import it ends the process instead: extension modules print a traceback of their own for the exception.
    """
    noted: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        noted.append(number)
        while frame is not None and not frame.f_code.co_filename.startswith("<frozen importlib"):
            frame = frame.f_back
        if frame is not None:
            report_in_one_line(KeyboardInterrupt())
            sys.stderr.flush()
            os._exit(130)
        raise KeyboardInterrupt

    is_usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not is_usual or threading.current_thread() is not threading.main_thread():
        yield noted
        return
    signal.signal(signal.SIGINT, interrupt)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _refuse_float64() -> None:
    """Everything here is float32, by name or by default; JAX's switch for float64 would mix the two."""
    if os.environ.get("JAX_ENABLE_X64", "").lower() in ("1", "true", "yes", "on"):
        raise InputError("JAX_ENABLE_X64", "environment", os.environ["JAX_ENABLE_X64"], "0, or nothing: float32")


_DEVICES = {"cpu": "cpu", "gpu": "cuda", "cuda": "cuda", "rocm": "rocm", "tpu": "tpu"}


def _choose_device(kind: str | None) -> None:
    """Has JAX use one kind of device alone, from its first use on. Raises InputError for an unknown kind."""
    if kind is None:
        return
    if kind not in _DEVICES:
        raise InputError("--device", "kind", repr(kind), f"one of {', '.join(_DEVICES)}")
    import jax

    jax.config.update("jax_platforms", _DEVICES[kind])


def _of_device(error: BaseException, parsed: argparse.Namespace | None) -> BaseException:
    """Turn JAX's error for a device that is not there into bad input; other errors stay."""
    kind = getattr(parsed, "device", None)
    if kind is None or not isinstance(error, RuntimeError) or "backend" not in str(error).lower():
        return error
    return InputError("--device", "kind", f"no {kind} that JAX can use: {first_line(error)}", "a kind that is there")
