"""The sections of tasks that classify: accuracy and calibration, what the model is sure of, shape against texture."""

from collections.abc import Sequence

from rococo_jax.metrics import ood
from rococo_jax.report.blocks import Note, Part, Tiles
from rococo_jax.report.class_charts import reliability_part, roc_part, shape_part
from rococo_jax.report.collection import Run, variants_of
from rococo_jax.report.sections.generic import BOARD_NOTE, TABLE_NOTE, Blocks, TaskSection, results_part
from rococo_jax.report.tables import extreme, leaderboard, tile

CLEAN = "clean"
_LEAD = (CLEAN, "top1")
_FIGURES = (
    *("top1", "shape_bias", "saw_texture", "top5", "per_class", "prior", "confidence", "ece", "ece_mass", "ece_scaled"),
    *("nll", "nll_scaled", "brier"),
)
_SHORT = ("top1", "shape_bias", "per_class", "ece", "ece_scaled", "nll", "drop")
_READ = (
    " NLL and Brier are plain numbers. Class prior answers the most frequent class without looking. Scaled: at the "
    "temperature of lowest NLL on the other half of the images; it never changes which class comes first."
)


def _tiles(runs: Sequence[Run], task: str) -> Tiles | None:
    def of(label: str, name: str):
        return tile(label, runs, [extreme(run, task, [CLEAN], name, max) for run in runs], CLEAN)

    named = (("Top-1", "top1"), ("Shape bias", "shape_bias"), ("ECE", "ece"), ("ECE, scaled", "ece_scaled"))
    return Tiles.of([of(*pair) for pair in named])


def _results(runs: Sequence[Run], task: str) -> Part:
    variants = variants_of(runs, task)
    groups = [(name, _FIGURES if name == CLEAN else _SHORT) for name in variants]
    note = TABLE_NOTE + _READ + (BOARD_NOTE if len(runs) > 1 else "")
    return results_part(runs, task, leaderboard(runs, task, groups, _LEAD, _FIGURES), [Note(note)])


def _charts(runs: Sequence[Run], task: str) -> Blocks:
    return [reliability_part(runs, task, CLEAN), shape_part(runs, task, CLEAN)]


def _errors(task: str) -> tuple[str, str]:
    del task
    return "Examples of wrong classes", "Images of whose wrong class the model was most sure."


def _section(question: str) -> TaskSection:
    return TaskSection(
        lead=_LEAD,
        compared=("top1",),
        figures=_SHORT,
        correlated=("top1", "shape_bias", "ece"),
        alters=False,
        question=f"{question} Classes are compared as texts; a tie counts as an error.",
        tiles=_tiles,
        results=_results,
        charts=_charts,
        errors=_errors,
    )


_OOD = ("auroc_mcm", "aupr_in_mcm", "aupr_out_mcm", "fpr95_mcm")


def _out_of_distribution() -> TaskSection:
    names = [metric.name for metric in ood.METRICS]

    def results(runs: Sequence[Run], task: str) -> Part:
        board = leaderboard(runs, task, [(name, _OOD) for name in variants_of(runs, task)], ("", _OOD[0]), names)
        note = TABLE_NOTE + " The others are images of none of the classes; guessing has an AUROC of 50."
        return results_part(runs, task, board, [Note(note + (BOARD_NOTE if len(runs) > 1 else ""))])

    return TaskSection(
        lead=("", _OOD[0]),
        compared=(),
        figures=tuple(name for name in names if not name.startswith("aupr")),
        correlated=_OOD[:1],
        alters=False,
        question="Does the model know images of its classes from others, by how sure it is of any class?",
        tiles=lambda runs, task: None,
        results=results,
        charts=lambda runs, task: [roc_part(runs, task, variants_of(runs, task))],
        errors=_errors,
    )


CLASSES = {
    "out_of_distribution": _out_of_distribution(),
    "classify": _section("Which class does the image show, and how sure is the model?"),
    "shape": _section("The shape is of one class, the texture of another: which of them does the model see?"),
}
