"""What follows from a batch size, so that points differ in it and in nothing that it brings along unasked.

    hold = samples        steps = steps of the base * batch size of the base / batch size
    rate = square-root    learning rate = that of the base * sqrt(batch size / batch size of the base)
    rate = linear         learning rate = that of the base * batch size / batch size of the base

The square root is the rule for Adam (Malladi et al., arXiv 2205.10287, who scale its betas and epsilon too; here they
stay), the linear one that for SGD (Goyal et al., 1706.02677). Warmup is a share of the steps and needs no rule. What
happens every so many steps (log, checkpoint, evaluation) happens as often in every point.
"""

import math
from collections.abc import Collection
from typing import Any

from ml_collections import ConfigDict

from rococo_jax.errors import InputError

HOLD = ("samples", "steps")
RATE = ("constant", "square-root", "linear")
_EVERY = ("log.every", "checkpoint.every", "eval.every")


def derived(
    base: ConfigDict, batch_size: int, taken: Collection[str], hold: str = "samples", rate: str = "constant"
) -> dict[str, Any]:
    """The keys that follow from a batch size, with their values.

    Args:
        base: the config that the sweep starts from, with its batch size.
        batch_size: of the point.
        taken: keys that the sweep or an arm sets; they follow from nothing.
        hold, rate: the rules.

    Raises:
        InputError: the samples cannot be had in whole batches.
    """
    keys: dict[str, Any] = {}
    share = batch_size / base.batch_size
    if hold == "samples" and "steps" not in taken and batch_size != base.batch_size:
        samples = base.steps * base.batch_size
        if samples % batch_size:
            seen = f"{samples:,} samples ({base.steps} steps of {base.batch_size})"
            wanted = f"a divisor of the {seen} that every point sees; or --hold steps"
            raise InputError("--over", "batch_size", batch_size, wanted)
        keys["steps"] = samples // batch_size
        for key in _EVERY:
            every = base[key.partition(".")[0]].every
            if key not in taken and every:
                keys[key] = max(1, round(every / share))
    if rate != "constant" and "optimizer.learning_rate" not in taken and batch_size != base.batch_size:
        factor = math.sqrt(share) if rate == "square-root" else share
        # Six digits: a rate that people can read, a millionth from the rule at most.
        keys["optimizer.learning_rate"] = float(f"{base.optimizer.learning_rate * factor:.6g}")
    return keys
