"""The commands: one small module each, listed in `rococo_jax.cli.main.GROUPS`.

A module has `Options`, a dataclass whose docstring is the command's help (`rococo_jax.options`), `EXAMPLES`, and
`run(options)`, which returns the exit code or None. One that accepts `--config.KEY=VALUE` takes these words as a second
argument, `overrides`.

It imports nothing heavy at the top: `rococo --help` must not import JAX.
"""
