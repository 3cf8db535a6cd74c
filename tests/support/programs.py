"""Choose how programs are compiled: as users compile them, or quickly where no digit depends on it."""

import os

import jax
from jax._src import compiler

# No test of these promises bits to users, who compile otherwise.
QUICK_FOLDERS = (
    *("benchmarks", "checkpoints", "cli", "data", "docs", "evaluation", "faults", "launch", "metrics", "report"),
    *("sweep", "training"),
)
# A fifth of the time of a compilation: LLVM's cheap passes alone, and no fusion emitters, which take more than LLVM
# does; a JAX from 0.11 on has no switch for these.
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
QUICK |= {"xla_cpu_use_fusion_emitters": False} if jax.__version_info__ < (0, 11) else {}

_own_options = compiler.get_compile_options
_own_flags = os.environ.get("XLA_FLAGS", "")


def compile_quickly(quick: bool) -> None:
    """Compile with `QUICK`, or as users do, here and in the commands that tests start."""
    set_options(quick)
    flags = (f"--{key}={str(value).lower()}" for key, value in QUICK.items() if quick)
    os.environ["XLA_FLAGS"] = " ".join([_own_flags, *flags])


def set_options(quick: bool) -> None:
    """Compile with `QUICK`, or as users do, in this process alone."""

    def quick_options(*given, env_options_overrides=None, **named):
        return _own_options(*given, env_options_overrides={**QUICK, **(env_options_overrides or {})}, **named)

    # JAX has no public setting of all programs' options that a process can change.
    compiler.get_compile_options = quick_options if quick else _own_options


def is_quick() -> bool:
    """Return whether programs are compiled with `QUICK` in this process."""
    return compiler.get_compile_options is not _own_options


def one_device() -> dict[str, str]:
    """The environment of a command with one device, as users have it, instead of the tests' eight."""
    flags = (flag for flag in os.environ["XLA_FLAGS"].split() if "device_count" not in flag)
    return os.environ | {"XLA_FLAGS": " ".join(flags)}
