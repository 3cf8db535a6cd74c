"""Compare defences against altered captions at equal budget: heads on the features of two frozen towers.

    python experiments/defences.py run --model models/joined --data DATA --out OUT/held --held 400 --seeds 0,1 --trials
    python experiments/defences.py run --model models/joined --data DATA --out OUT/test --seeds 0,1,2,3,4
    python experiments/defences.py table --out OUT/test [--figure docs/figures/defences_interpolated.svg]
    python experiments/defences.py export --model models/joined --out OUT/test --arm SC --seed 0 models/sc

DATA is a folder in the documented layout (`coco`, `rococo`, `flickr8k`, `cue_conflict`, `sugar_crepe`, `sugarcrepe_pp`,
`hard_positives`). Towers run once, captions are altered once, and every finished run is kept, so that the same command
goes on. With `--held N` nothing but `captions_train.json` is read: N of its images are held out, the heads are joined
anew on the others, and the held-out images are what models are judged by; settings are chosen so. Each arm is also
judged between the plain model of its seed and itself (WiSE-FT).
"""

import argparse
import time
from pathlib import Path

import numpy as np
from defence_figures import draw_frontier, judge, markdown, read_runs, summarise, write_table
from defence_material import Material

from rococo_jax.checkpoints import save_model
from rococo_jax.checkpoints.parameters import parameters_of
from rococo_jax.encoders import Encoder, load_model
from rococo_jax.runtime import enable_compilation_cache, make_mesh
from rococo_jax.training.batch import place_batch
from rococo_jax.training.config import check_config, default_config
from rococo_jax.training.freezing import split_parameters, with_teacher
from rococo_jax.training.init import trained_encoder, with_residual_heads
from rococo_jax.training.inputs.feature_pool import FeatureInput, Features
from rococo_jax.training.inputs.loss_input import InputContext
from rococo_jax.training.optimizer import make_optimizer
from rococo_jax.training.state import make_state, place_parameters
from rococo_jax.training.step import make_step, reads_teacher

WEIGHTS = (0.25, 0.5, 0.75)
SC, VC = {"losses.sc.weight": 1.5}, {"losses.vc.weight": 7.0, "data.resize_prob": 0.5}
# Arm -> (pool of altered captions, settings). Weights of published terms are their authors'; the others were chosen on
# held-out training images.
ARMS: dict[str, tuple[str, dict]] = {
    "plain": ("ordinary", {}),
    "SC": ("ordinary", SC),
    "VC": ("ordinary", VC),
    "SC + VC": ("ordinary", SC | VC),
    "SC, balanced": ("balanced", SC),
    "SC + blind": ("ordinary", SC | {"losses.blind.weight": 1.0}),
    "grounding": ("ordinary", {"losses.grounding.weight": 1.0}),
    "SC + grounding, balanced": ("balanced", SC | {"losses.grounding.weight": 2.0}),
    "NegCLIP": ("ordinary", {"losses.negclip.weight": 1.0}),
    "CE-CLIP": ("ordinary", {"losses.negclip.weight": 1.0, "losses.ce_clip.weight": 1.0}),
    "focal (FSC-CLIP)": ("ordinary", {"losses.focal.weight": 0.5}),
    "hard positives + negatives": ("ordinary", {"losses.hard_positives.weight": 1.0}),
    "SC + distillation": ("ordinary", SC | {"losses.distillation.weight": 0.1}),
    "SC + distillation, KL": (
        "ordinary",
        SC | {"losses.distillation.weight": 1.0, "losses.distillation.kind": "kl"},
    ),
    "SC + pull to start": ("ordinary", SC | {"optimizer.pull_to_start": 20.0}),
    # Chosen on held-out training images; the default of configs/coco_lit.py.
    "SC + grounding + blind + pull": (
        "ordinary",
        {
            "losses.sc.weight": 2.0,
            "losses.grounding.weight": 1.0,
            "losses.blind.weight": 2.0,
            "optimizer.pull_to_start": 20.0,
        },
    ),
    "linear map of texts (LABCLIP)": (
        "ordinary",
        SC | {"train.heads": "text", "init.residual_head_width": 0},
    ),
}
# What was tried on held-out training images.
_BLIND, _GROUNDING, _DISTILLATION = (f"losses.{name}.weight" for name in ("blind", "grounding", "distillation"))
TRIALS: dict[str, tuple[str, dict]] = {
    "SC": ("ordinary", SC),
    "SC 0.5": ("ordinary", {"losses.sc.weight": 0.5}),
    "SC, balanced": ("balanced", SC),
    **{f"SC + blind {weight}": ("ordinary", SC | {_BLIND: weight}) for weight in (0.1, 1.0, 10.0)},
    **{f"grounding {weight}": ("ordinary", {_GROUNDING: weight}) for weight in (1.0, 4.0)},
    **{f"grounding {weight}, balanced": ("balanced", {_GROUNDING: weight}) for weight in (1.0,)},
    **{f"SC + distillation {weight}": ("ordinary", SC | {_DISTILLATION: weight}) for weight in (0.1, 1.0)},
    **{
        f"SC + distillation, KL {weight}": ("ordinary", SC | {_DISTILLATION: weight, "losses.distillation.kind": "kl"})
        for weight in (0.3, 1.0, 3.0)
    },
    **{f"SC + pull {weight}": ("ordinary", SC | {"optimizer.pull_to_start": weight}) for weight in (20.0, 200.0)},
    "SC + grounding 1 + blind 1": ("ordinary", SC | {_GROUNDING: 1.0, _BLIND: 1.0}),
    "SC + grounding 2 + blind 10": ("ordinary", SC | {_GROUNDING: 2.0, _BLIND: 10.0}),
    "SC + grounding 2, balanced": ("balanced", SC | {_GROUNDING: 2.0}),
    **{f"SC + grounding {weight}": ("ordinary", SC | {_GROUNDING: weight}) for weight in (0.5, 1.0)},
    "SC + grounding 0.5 + blind 1": ("ordinary", SC | {_GROUNDING: 0.5, _BLIND: 1.0}),
    "SC + grounding 1 + distillation 0.1": ("ordinary", SC | {_GROUNDING: 1.0, _DISTILLATION: 0.1}),
    **{
        f"SC {sc} + grounding 1 + blind {blind} + pull 20": (
            "ordinary",
            {"losses.sc.weight": sc, _GROUNDING: 1.0, _BLIND: blind, "optimizer.pull_to_start": 20.0},
        )
        for sc, blind in ((1.5, 1.0), (2.0, 2.0))
    },
    "SC 3 + grounding 1 + blind 1": ("ordinary", {"losses.sc.weight": 3.0, _GROUNDING: 1.0, _BLIND: 1.0}),
}


def config_of(settings: dict, seed: int, steps: int):
    """The config of an arm; the budget is the same for all."""
    config = default_config()
    config.seed, config.steps, config.batch_size = seed, steps, 256
    config.init.residual_head_width = 512
    config.train.vision = config.train.text = "none"
    config.data.cached_features, config.data.feature_noise = True, 0.5
    config.optimizer.learning_rate = 2e-4
    config.losses.sc.count, config.losses.sc.scope = 2, "global"
    config.losses.vc.scope, config.losses.vc.views = "local", "resize"
    for key, value in settings.items():
        *path, last = key.split(".")
        part = config
        for name in path:
            part = part[name]
        part[last] = value
    return config


def starting(material: Material, config) -> Encoder:
    """The joined model, with residual heads where the arm trains any."""
    width = config.init.residual_head_width
    return with_residual_heads(material.start, width, config.seed) if width else material.start


def train_arm(material: Material, pool: str, settings: dict, seed: int, steps: int, plain: Encoder | None) -> Encoder:
    """The encoder that an arm trains; distillation is to the plain model."""
    config = config_of(settings, seed, steps)
    check_config(config)
    encoder = starting(material, config)
    made = material.training
    pools = made.pools | {"altered": made.pools[pool], "negative": made.pools[pool]}
    resized = made.resized if config.data.resize_prob else None
    features = Features(made.images, made.texts, made.first, pools, resized, None, 0, {})
    mesh = make_mesh()
    batches = FeatureInput(features, InputContext(config, encoder, None, material.folder))
    trained, frozen = split_parameters(parameters_of(encoder.model), encoder.spec, config.train)
    optimizer = make_optimizer(config.optimizer, config.steps, encoder.spec, trained)
    step = make_step(config, encoder.spec, encoder.preprocessing, optimizer, mesh)
    state = make_state(trained, optimizer, mesh, averaged=False)
    frozen = place_parameters(frozen, mesh)
    if reads_teacher(config.losses):
        teacher = parameters_of(plain.model)
        frozen = with_teacher(frozen, place_parameters({path: teacher[path] for path in trained}, mesh))
    for _ in range(steps):
        state, metrics = step(state, frozen, place_batch(next(batches), mesh))
    assert np.isfinite(float(metrics["loss"]))
    heads = {path: np.asarray(array) for path, array in state.parameters.items()}
    return trained_encoder(encoder, {**parameters_of(encoder.model), **heads}, {})


def between(first: Encoder, second: Encoder, weight: float) -> Encoder:
    """As `rococo interpolate`, of the parameters that differ."""
    ends = parameters_of(first.model), parameters_of(second.model)
    heads = {
        path: (1 - weight) * array + weight * ends[1][path]
        for path, array in ends[0].items()
        if not path.startswith(("vision.", "text."))
    }
    return trained_encoder(first, {**ends[0], **heads}, {})


def run(arguments: argparse.Namespace) -> None:
    enable_compilation_cache()
    arms = {"plain": ARMS["plain"]} | (TRIALS if arguments.trials else ARMS)
    if arguments.arms:
        arms = {name: arms[name] for name in dict.fromkeys(["plain", *arguments.arms.split(";")])}
    with_mixed = any("losses.vc.weight" in settings for _, settings in arms.values())
    material = Material(arguments.model, arguments.data, arguments.out / "features", arguments.held, with_mixed)
    folder, heads = arguments.out / "runs", arguments.out / "heads"
    folder.mkdir(exist_ok=True)
    heads.mkdir(exist_ok=True)

    def judged(name: str, seed: int, encoder: Encoder) -> None:
        if not (folder / f"{name}_{seed}.npz").exists():
            np.savez(folder / f"{name}_{seed}.npz", **judge(encoder, material.tests))

    judged("joined", 0, material.start)
    for seed in map(int, arguments.seeds.split(",")):
        plain = None
        for arm, (pool, settings) in arms.items():
            weights = WEIGHTS if seed < arguments.interpolated else ()
            names = [f"{arm} @{weight}_{seed}.npz" for weight in weights] + [f"{arm}_{seed}.npz"]
            if arm != "plain" and all((folder / name).exists() for name in names):
                continue
            start, kept = time.time(), heads / f"{arm}_{seed}.npz"
            if kept.exists():
                encoder = starting(material, config_of(settings, seed, arguments.steps))
                encoder = trained_encoder(encoder, {**parameters_of(encoder.model), **np.load(kept)}, {})
            else:
                encoder = train_arm(material, pool, settings, seed, arguments.steps, plain)
                found = parameters_of(encoder.model).items()
                np.savez(kept, **{path: a for path, a in found if not path.startswith(("vision.", "text."))})
            plain = plain or encoder
            trained = time.time()
            judged(arm, seed, encoder)
            # What has no residual heads starts from the joined model, and is interpolated with it.
            first = plain if encoder.spec == plain.spec else material.start
            for weight in weights if arm != "plain" else ():
                judged(f"{arm} @{weight}", seed, between(first, encoder, weight))
            print(f"{arm}, seed {seed}: trained {trained - start:.0f} s, all {time.time() - start:.0f} s", flush=True)


def export(arguments: argparse.Namespace) -> None:
    """Writes the model directory of an arm, for `rococo evaluate`."""
    settings = (ARMS | TRIALS)[arguments.arm][1]
    encoder, config = load_model(arguments.model), config_of(settings, arguments.seed, 1)
    if config.init.residual_head_width:
        encoder = with_residual_heads(encoder, config.init.residual_head_width, arguments.seed)
    heads = np.load(arguments.out / "heads" / f"{arguments.arm}_{arguments.seed}.npz")
    record = {"arm": arguments.arm, "seed": arguments.seed}
    save_model(arguments.to, trained_encoder(encoder, {**parameters_of(encoder.model), **heads}, record))


FIGURES = ("R@1", "FR@1", "blind", "grounding")
RETRIEVAL = ("i2t R@1", "t2i R@1")
ELSEWHERE = ("sugar_crepe accuracy", "sugar_crepe blind", "sugar_crepe grounding", "sugarcrepe_pp accuracy",
             "REPLACE text-only brittleness")  # fmt: skip
TRANSFER = ("Flickr8k i2t R@1", "Flickr8k t2i R@1", "cues shape", "cues shape or texture")


def table(arguments: argparse.Namespace) -> None:
    runs = read_runs(arguments.out / "runs", tuple(arguments.seeds.split(",")) if arguments.seeds else ())
    made = summarise(runs, "plain")
    write_table(made, arguments.out / "table.json")
    order = [arm for arm in dict.fromkeys(("joined", *ARMS, *TRIALS)) if arm in runs]
    order += sorted(arm for arm in runs if "@" in arm) if arguments.interpolated else []
    groups = ("published",) if "published FR@1" in runs["plain"] else ("ordinary", "balanced")
    first = [*RETRIEVAL, *(f"{group} {figure}" for group in groups for figure in FIGURES)]
    second = [f"{group} {figure}" for group in ("balanced", "mixed") for figure in FIGURES[1:]]
    for columns in (first, second, ELSEWHERE, TRANSFER):
        print(markdown(made, order, columns, "plain"), "\n")
    if arguments.figure:
        shown = [*order, *(arm for arm in runs if "@" in arm and arm not in order)]
        draw_frontier({arm: made[arm] for arm in shown}, groups[0], arguments.figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    runner = commands.add_parser("run")
    runner.add_argument("--model", required=True, help="a joined model")
    runner.add_argument("--data", type=Path, required=True)
    runner.add_argument("--out", type=Path, required=True)
    runner.add_argument("--seeds", default="0,1,2,3,4")
    runner.add_argument("--steps", type=int, default=200)
    runner.add_argument("--held", type=int, default=0, help="training images to hold out and judge by instead")
    runner.add_argument("--trials", action="store_true", help="what was tried on held-out images, instead of the arms")
    runner.add_argument("--interpolated", type=int, default=3, help="seeds below this also get interpolated models")
    runner.add_argument("--arms", default="", help="names, separated by semicolons (default: all)")
    shown = commands.add_parser("table")
    shown.add_argument("--out", type=Path, required=True)
    shown.add_argument("--seeds", default="", help="of these seeds alone (default: all there are)")
    shown.add_argument("--figure", type=Path)
    shown.add_argument("--interpolated", action="store_true", help="also rows of interpolated models")
    exporter = commands.add_parser("export")
    exporter.add_argument("--model", required=True, help="the joined model")
    exporter.add_argument("--out", type=Path, required=True)
    exporter.add_argument("--arm", required=True)
    exporter.add_argument("--seed", type=int, default=0)
    exporter.add_argument("to", type=Path)
    arguments = parser.parse_args()
    {"run": run, "table": table, "export": export}[arguments.command](arguments)


if __name__ == "__main__":
    main()
