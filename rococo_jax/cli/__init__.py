"""The commands: one small module each, listed in `rococo_jax.cli.main.COMMANDS`.

A module has `HELP`, `EXAMPLES`, `add_arguments(parser)` and `run(arguments)`, which returns the exit code or None. It
may have `TAKES_OVERRIDES = True` where it accepts `--config.KEY=VALUE`; `arguments.overrides` then holds those words.

It imports nothing heavy at the top: `rococo --help` must not import JAX.
"""
