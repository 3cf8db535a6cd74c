"""`rococo power`: how many images a comparison needs, before it is made."""

import dataclasses
import math
from typing import Annotated

from rococo_jax.errors import InputError
from rococo_jax.options import Option

EXAMPLES = """\
  rococo power --rate 60 --discordance 20 --effect 3
  rococo power --from out --effect 3
  rococo power --from out --number image_to_text/danger/fr1 --effect 5 --n 1000

An effect is found if the paired test of `rococo compare` is significant. With --from the test is corrected as there.
Rates, discordances and effects are in percent and percentage points."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Plan a comparison: the images that an effect needs, and the effect that a number of images shows.

    Attributes:
        source: results of at least two models, such as of a first evaluation on few images
        number: the number to plan for (default: the headline of the first task)
        reference: the model to compare the others with (default: the first result)
        rate: without results: the rate of one of the models in percent, such as its R@1 or FR@1
        discordance: images in percent on which exactly one of the two models is right (default: as many
            as if their errors were independent)
        effect: difference to find, in points
        n: number of images whose detectable effect is printed (default: those of the results, or 5000)
    """

    effect: Annotated[float, Option("POINTS")]
    source: Annotated[str | None, Option("OUT", flag="from", excludes=("rate",))] = None
    number: Annotated[str | None, Option("TASK/VARIANT/METRIC", needs=("source",))] = None
    reference: Annotated[str | None, Option("NAME", needs=("source",))] = None
    rate: Annotated[float | None, Option("PERCENT")] = None
    discordance: Annotated[float | None, Option("PERCENT", needs=("rate",))] = None
    n: Annotated[int | None, Option("IMAGES", least=1)] = None

    def __post_init__(self):
        if self.source is None and self.rate is None:
            raise InputError("rococo power", "input", "neither", "--from OUT or --rate PERCENT")
        if not 0 < self.effect <= 100:
            raise InputError("rococo power", "--effect", self.effect, "points above 0, at most 100")
        for name in ("rate", "discordance"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and 0 <= value <= 100):
                raise InputError("rococo power", f"--{name}", value, "a percentage from 0 to 100")


def run(options: Options) -> None:
    """Print the images, the effect, and where the numbers are from."""
    from rococo_jax.report.collection import group_by_fingerprint, load_results
    from rococo_jax.report.power import pilot_of_rates, pilot_of_results, power_lines

    if options.source is None:
        pilot = pilot_of_rates(options.rate, options.discordance, options.effect)
    else:
        groups = group_by_fingerprint(load_results([options.source]))
        pilot = pilot_of_results(groups, options.number, options.reference)
    print(*power_lines(pilot, options.effect, options.n), sep="\n")
