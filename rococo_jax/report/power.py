"""How many images a comparison needs to find an effect, and the effect that so many images show.

Both come from the spread of the difference of one image and the critical value of the test (`metrics.paired`). A pilot,
two models that were compared, gives both; without one, the spread is that of two models which differ on a share of the
images, and the test is alone.
"""

import dataclasses
import math
from collections.abc import Sequence
from statistics import NormalDist

from rococo_jax.errors import InputError, unknown_name
from rococo_jax.metrics import metric_of
from rococo_jax.metrics.paired import ALPHA, POWER, minimum_detectable_effect
from rococo_jax.report.collection import Group
from rococo_jax.report.comparison import compare_groups
from rococo_jax.report.difference import Difference
from rococo_jax.report.vocabulary import Place, count, percent, task_label, variant_label

# Images of the test split of COCO.
USUAL_IMAGES = 5000
# Critical value of a test alone, of many images.
ALONE = NormalDist().inv_cdf(1 - ALPHA / 2)
_ROUNDING = 1e-9


@dataclasses.dataclass(frozen=True)
class Pilot:
    """What a plan starts from.

    Attributes:
        spread: root mean square of the difference of one image, in points.
        critical: number of standard deviations beyond which a difference is significant.
        images: number of images it was measured on, or the usual number.
        family: number of tests that are corrected together.
        source: where the numbers are from, in words.
    """

    spread: float
    critical: float
    images: int
    family: int
    source: str

    @property
    def discordance(self) -> float:
        """Mean squared difference of an image in percent: where images have one query, the share that differs."""
        return self.spread**2 / 100.0


def pilot_of_rates(rate: float, discordance: float | None, effect: float) -> Pilot:
    """Return the pilot of two models of which one has this rate, in percent, and the other one `effect` points more or
    less.

    Args:
        discordance: share of images on which exactly one of the two is right, in percent; None for the share of models
            whose errors are independent, which is about the largest.

    Raises InputError: there are no such models.
    """
    others = [other for other in (rate + effect, rate - effect) if 0 <= other <= 100]
    if not others:
        raise InputError(
            "`effect`", "points", f"{effect:g}", f"at most {max(rate, 100 - rate):g}, with a rate of {rate:g} %"
        )
    most = max(min(rate + other, 200 - rate - other) for other in others)
    if discordance is None:
        discordance = max(rate + other - rate * other / 50 for other in others)
        source = f"given: rate {rate:g} %; discordance {discordance:.1f} %, as if errors were independent"
    elif not effect <= discordance <= most:
        wanted = f"a share from {effect:g} (the effect) to {most:g} (as the rate allows)"
        raise InputError("`discordance`", "percent", f"{discordance:g}", wanted)
    else:
        source = f"given: rate {rate:g} %, discordance {discordance:g} %"
    return Pilot(10.0 * discordance**0.5, ALONE, USUAL_IMAGES, 1, source)


def pilot_of_results(groups: Sequence[Group], number: str | None = None, reference: str | None = None) -> Pilot:
    """Return the pilot of models that were evaluated: of the pair with the largest spread.

    Args:
        number: `TASK/VARIANT/METRIC`; by default the headline of the first task that was compared.
        reference: label of the model that others are compared with; the first by default.

    Raises InputError: no two models can be compared in that number, or no image differs.
    """
    compared = [(row, each) for each in compare_groups(groups, reference).values() for row in each.rows]
    places = {_path(row): row for row, _ in compared}
    if not places:
        raise InputError("`source`", "models", "no two that can be compared", "results of two models on one benchmark")
    if number is None:
        primary = [_path(row) for row, _ in compared if row.is_primary]
        leads = {each.task: each.reference.headline(each.task) for _, each in compared}
        headlines = [f"{task}/{lead.variant}/{lead.metric}" for task, lead in leads.items() if lead is not None]
        number = next((each for each in headlines if each in primary), (primary or [*places])[0])
    elif number not in places:
        raise unknown_name("`number`", "compared number", number, places, "rococo report")
    row, comparison = max((each for each in compared if _path(each[0]) == number), key=lambda each: each[0].spread)
    if not row.spread:
        raise InputError("`number`", number, "identical answers to all images", "models that differ")
    family = len(comparison.primary) if row.is_primary else 1
    pilot = Pilot(row.spread, row.critical, row.images, family, "")
    name = f"{metric_of(row.metric).label}, {variant_label(row.variant)}, {task_label(row.task)}"
    measured = f"discordance {percent(pilot.discordance)} % of {count(row.images)} images"
    return dataclasses.replace(pilot, source=f"{row.model} and {row.reference}, {name}: {measured}")


def _path(row: Difference) -> str:
    return Place(row.task, row.variant, row.metric).path


def images_needed(effect: float, spread: float, critical: float = ALONE) -> int:
    """Return the smallest number of images whose minimum detectable effect is at most `effect`.

    The formula of the MDE (`metrics.paired`), solved for the number of images.

    Args:
        effect: in the unit of the metric.
        spread: root mean square of the difference of one image. Where an image has one query, its square is the share
            of images on which the models differ, in the squared unit.
        critical: of the test; 1.96 for a test alone.

    >>> images_needed(5.0, 100 * 0.25**0.5), images_needed(5.0, 100 * 0.25**0.5, critical=3.0)
    (783, 1473)
    """
    root = math.sqrt(max(0.0, spread**2 - effect**2))
    needed = ((critical * spread + NormalDist().inv_cdf(POWER) * root) / effect) ** 2
    return max(1, math.ceil(needed - _ROUNDING))


def power_lines(pilot: Pilot, effect: float, images: int | None = None) -> list[str]:
    """Return the images that an effect needs, the effect that images show, and where the numbers are from.

    Args:
        effect: in points.
        images: number to plan with; by default that of the pilot.
    """
    images = images or pilot.images
    detectable = minimum_detectable_effect(pilot.spread / math.sqrt(images), images, pilot.critical)
    needed = images_needed(effect, pilot.spread, pilot.critical)
    test = f"corrected over {pilot.family} primary differences" if pilot.family > 1 else "of one test"
    return [
        f"images needed: {count(needed)} find an effect of {effect:g} points in 80 % of samples (p below 0.05, {test})",
        f"minimum detectable effect: {detectable:.1f} points with {count(images)} images",
        f"from {pilot.source}; critical value {pilot.critical:.2f}",
    ]
