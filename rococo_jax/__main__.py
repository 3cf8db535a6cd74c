"""`python -m rococo_jax ...` is the command `rococo ...`."""

from rococo_jax.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
