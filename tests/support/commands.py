"""A command's module, run as the command line runs it, in this process and without its reporting of errors."""

import argparse
from collections.abc import Iterable
from types import ModuleType
from typing import Any

from rococo_jax.options import add_options, parse


def run_command(module: ModuleType, *arguments: Any) -> Any:
    """Run a module of `rococo_jax.cli` on words of the command line."""
    return module.run(options_of(module, arguments))


def options_of(module: ModuleType, arguments: Iterable[Any]) -> Any:
    """The options of a command of these words."""
    parser = argparse.ArgumentParser()
    add_options(parser, module.Options)
    return parse(module.Options, vars(parser.parse_args([str(argument) for argument in arguments])))
