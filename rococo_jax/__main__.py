"""The command `rococo ...`, or `python -m rococo_jax ...`."""

import os
import signal
import sys


def main() -> int:
    """Run the command of the command line and return its exit code; handle Ctrl-C during imports, too."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
    from rococo_jax.cli.main import main as run_command

    if signal.getsignal(signal.SIGINT) is _interrupt:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return run_command()


def _interrupt(*_: object) -> None:
    """End after Ctrl-C as `rococo_jax.errors` does, which may not be imported yet."""
    print("rococo: interrupted; run the same command again to continue", file=sys.stderr, flush=True)
    os._exit(130)


if __name__ == "__main__":
    raise SystemExit(main())
