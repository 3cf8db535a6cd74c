"""How well programs are compiled: as users compile them, or quickly where no digit depends on it."""

import os

import jax

# No test of these promises bits to users, who compile otherwise.
QUICK_ROOMS = (
    *("benchmarks", "cli", "data", "docs", "evaluation", "faults", "launch", "metrics", "report", "sweep", "training"),
)


def compile_quickly(quick: bool) -> None:
    """Has LLVM do what is cheap alone, or what it does for users; here and in the commands that tests start."""
    jax.config.update("jax_disable_most_optimizations", quick)
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = str(int(quick))
