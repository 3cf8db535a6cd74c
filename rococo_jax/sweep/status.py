"""Lines for people: how many points a sweep has, how many are done, what is left to do."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from rococo_jax.sweep.plan import Plan, written
from rococo_jax.sweep.running import Evaluation, is_begun, is_evaluated, is_trained

NEW, BEGUN, TRAINED, DONE = "to train", "begun", "trained", "done"


def states_of(plan: Plan, workdir: Path, evaluated: bool) -> dict[str, str]:
    """How far each run is; `evaluated` says whether that belongs to being done."""
    states = {}
    for point in plan.runs:
        folder = plan.folder(workdir, point)
        if is_trained(folder):
            states[point.run] = DONE if is_evaluated(folder) or not evaluated else TRAINED
        else:
            states[point.run] = BEGUN if is_begun(folder) else NEW
    return states


def plan_lines(plan: Plan, workdir: Path, evaluation: Evaluation | None, launch: str | None) -> Iterator[str]:
    """The grid, what is done, and what will happen."""
    grid = [f"{len(plan.values(place))} of {axis.name}" for place, axis in enumerate(plan.axes)]
    arms = f"{len(plan.arms)} arms ({', '.join(arm.name for arm in plan.arms)})"
    parts = [arms] * bool(plan.arms[0].name) + grid + [f"{len(plan.seeds)} seed(s)"]
    same = len(plan.points) - len(plan.runs)
    runs = f", {len(plan.runs)} runs: {same} have the config of another" if same else ""
    yield f"sweep of {len(plan.points)} points: {' x '.join(parts)}{runs}"
    states = list(states_of(plan, workdir, evaluation is not None).values())
    counted = ", ".join(f"{states.count(state)} {state}" for state in (DONE, TRAINED, BEGUN, NEW) if state in states)
    how = f"one command a run: {launch}" if launch else "one run after another in this process"
    yield f"{counted}; {how}"
    if evaluation is None:
        yield "no evaluation: neither --images and --annotations nor the config's eval.images is given"
    else:
        data = "; ".join(benchmark.summary() for benchmark in evaluation.benchmarks)
        yield f"every model is evaluated on {data}; protocol {evaluation.settings.protocol}"


def point_lines(plan: Plan, workdir: Path, evaluated: bool) -> Iterator[str]:
    """A line for each point: its name, its length, and how far it is."""
    states = states_of(plan, workdir, evaluated)
    width = max(len(point.name) for point in plan.points)
    for point in plan.points:
        config = point.config
        rate = written(config.optimizer.learning_rate)
        length = f"{config.steps} steps of {config.batch_size}, learning rate {rate}"
        same = "" if point.run == point.name else f" (as {point.run})"
        yield f"{point.name:{width}}  {length}: {states[point.run]}{same}"


def waiting_line(states: Mapping[str, str], failed: Mapping[str, str]) -> str | None:
    """What is still to come; None where nothing is."""
    left = [name for name, state in states.items() if state != DONE and name not in failed]
    if not left:
        return None
    told = f"{len(left)} of {len(states)} runs are not done yet"
    return f"{told}: --collect tabulates what is there, the same command goes on"
