"""The section of a task that chooses between a right and a wrong text: accuracy by part, and the mean over parts."""

from collections.abc import Sequence

from rococo_jax.report.blocks import Note, Part, Tiles
from rococo_jax.report.collection import Run, variants_of
from rococo_jax.report.sections.generic import BOARD_NOTE, TABLE_NOTE, Blocks, TaskSection, results_part
from rococo_jax.report.tables import extreme, interval_panels, leaderboard, tile

MEAN = "mean"
_LEAD = (MEAN, "ota")
_MEAN_NOTE = " Mean: over the parts, each with the same weight, whatever its size."


def _tiles(runs: Sequence[Run], task: str) -> Tiles | None:
    """The mean accuracy, and the accuracy of the parts at both ends."""
    parts = [name for name in variants_of(runs, task) if name != MEAN]

    def of(label: str, variants: Sequence[str], name: str, end):
        return tile(label, runs, [extreme(run, task, variants, name, end) for run in runs], MEAN)

    shown = [of("Mean accuracy", [MEAN], "ota", max)]
    if len(parts) > 1:
        shown += [of("Hardest part", parts, "ota", min), of("Easiest part", parts, "ota", max)]
    else:
        shown.append(of("Accuracy", parts, "ota", max))
    shown = [each for each in shown if each is not None]
    return Tiles(shown) if shown else None


def _results(runs: Sequence[Run], task: str) -> Part:
    variants = variants_of(runs, task)
    tied = any(run.figure(task, name, "ties").value for run in runs for name in variants)
    groups = [(name, ("ota", "ties") if tied else ("ota",)) for name in variants]
    note = TABLE_NOTE + (BOARD_NOTE if len(runs) > 1 else "") + (_MEAN_NOTE if MEAN in variants else "")
    return results_part(runs, task, leaderboard(runs, task, groups, _LEAD, CHOICE.figures), [Note(note)])


def _charts(runs: Sequence[Run], task: str) -> Blocks:
    charts = interval_panels(runs, task, variants_of(runs, task, "ota"), "ota", "own")
    note = "OTA: share of items whose right text scores strictly higher, in per cent. Whiskers span the 95 % interval."
    return [] if charts is None else [Part("Accuracy by part", [Note(note), charts])]


def _errors(task: str) -> tuple[str, str]:
    return (
        "Examples of wrong choices",
        "Items whose wrong text scored at least as high as the right one, by its lead: the most confident errors. "
        "Parts take turns.",
    )


CHOICE = TaskSection(
    lead=_LEAD,
    compared=("ota",),
    figures=("ota", "ties", "drop"),
    alters=False,
    question="Of two texts, which belongs to the image? A tie counts as an error; guessing gives 50 %.",
    tiles=_tiles,
    results=_results,
    charts=_charts,
    errors=_errors,
)
