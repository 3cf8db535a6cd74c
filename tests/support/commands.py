"""A command's module, run as the command line runs it, in this process and without its reporting of errors."""

import argparse
from types import ModuleType
from typing import Any

from rococo_jax.options import add_options, parse


def run_command(module: ModuleType, *arguments: Any) -> Any:
    """Run a module of `rococo_jax.cli` on words of the command line."""
    parser = argparse.ArgumentParser()
    add_options(parser, module.Options)
    return module.run(parse(module.Options, vars(parser.parse_args([*map(str, arguments)]))))
