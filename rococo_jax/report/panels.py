"""Charts laid out: a panel for each variant with the models as rows, or the other way round where that reads better."""

from collections.abc import Sequence

from rococo_jax.report.charts import Bar, Stack, common_scale, interval_bars, stacked_bars
from rococo_jax.report.markup import Markup, element, isolated
from rococo_jax.report.scores import Run, altered_variants, by_clean_recall, variants_of
from rococo_jax.report.vocabulary import TOP1_SPLIT, metric, variant_label

# With more variants than this (corruptions), a panel a model keeps the page short.
_MOST_PANELS = 8
_WIDE = 900  # px, for stacked bars that have the page's width to themselves

# (run, variant, row label) of every row of a panel, under the panel's title.
_Panel = tuple[str, list[tuple[Run, str, str]]]


def interval_panels(runs: Sequence[Run], task: str, name: str, kind: str) -> Markup | None:
    """Bars with whiskers for one metric over all altered variants; None where no run has the metric."""
    panels = _panels(by_clean_recall(runs, task), task, altered_variants(runs, task, name))
    if not panels:
        return None
    scale = common_scale([run.figure(task, variant, name) for _, rows in panels for run, variant, _ in rows])
    label = metric(name).label
    drawn = [
        _panel(
            title,
            interval_bars(
                f"{label}: {title}",
                [Bar(row, run.figure(task, variant, name)) for run, variant, row in rows],
                scale,
                kind,
            ),
            len(panels),
        )
        for title, rows in panels
    ]
    return element("div", drawn, class_="panels")


def split_panels(runs: Sequence[Run], task: str) -> Markup | None:
    """Stacked bars of what stands first, with their legend; None where no run has the four-way split."""
    panels = _panels(by_clean_recall(runs, task), task, variants_of(runs, task, TOP1_SPLIT[0]))
    if not panels:
        return None
    drawn = [
        _panel(
            title,
            stacked_bars(
                f"What stands first: {title}",
                [Stack(row, _parts(run, task, variant)) for run, variant, row in rows],
                **({"width": _WIDE} if len(panels) == 1 else {}),
            ),
            len(panels),
        )
        for title, rows in panels
    ]
    return element("div", _legend(task), element("div", drawn, class_="panels"))


def _panels(runs: Sequence[Run], task: str, variants: Sequence[str]) -> list[_Panel]:
    if len(runs) == 1 or len(variants) > _MOST_PANELS:
        by_run = [(run.label, [(run, name, variant_label(name)) for name in variants]) for run in runs]
        return [panel for panel in by_run if panel[1]]
    return [(variant_label(name), [(run, name, run.label) for run in runs]) for name in variants]


def _panel(title: str, chart: Markup, panels: int) -> Markup:
    return element("div", element("h5", isolated(title)) if panels > 1 else None, chart, class_="panel")


def _parts(run: Run, task: str, variant: str) -> tuple[tuple[str, str, float | int], ...]:
    shares = ((name, run.figure(task, variant, name).value or 0.0) for name in TOP1_SPLIT)
    return tuple((name.removeprefix("top1_").replace("_", "-"), metric(name).label, share) for name, share in shares)


def _legend(task: str) -> Markup:
    one, other = ("caption", "caption of another image") if task == "image_to_text" else ("image", "other image")
    names = {
        "own": f"own {one}",
        "own-altered": f"own {one}, altered",
        "other-altered": f"{other}, altered",
        "other": other,
    }
    keys = [element("li", element("span", class_=f"key {kind}"), name) for kind, name in names.items()]
    return element("ul", keys, class_="legend")
