"""The commands: one small file each, with `HELP`, `EXAMPLES`, `add_arguments(parser)` and `run(arguments)`.

A command's module imports nothing heavy at the top: `rococo --help` must not import JAX.
"""
