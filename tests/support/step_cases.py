"""A few training steps of tiny models under configs that together leave no key of a step at its default.

`run(case)` is what the package does, `expect(case)` what the oracle says, each after steps 1 and 3.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping

import jax
import numpy as np

from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.losses import active_fields
from rococo_jax.models import HeadSpec, ModelSpec
from rococo_jax.training.batch import Batch, Images, Texts, place_batch
from rococo_jax.training.config import check_config, default_config, flat
from rococo_jax.training.freezing import split_parameters
from rococo_jax.training.optimizer import make_optimizer
from rococo_jax.training.state import make_state
from rococo_jax.training.step import make_step
from tests.support import step_oracle
from tests.support.programs import QUICK
from tests.support.random_inputs import random_texts
from tests.support.step_oracle import After
from tests.support.tiny import drawn_parameters, tiny_spec
from tests.support.tiny_runs import changed, mesh_of

PAIRS, TOKENS, SIDE, WIDTH, END = 8, 8, 16, 16, 2
PREPROCESSING = Preprocessing(exact_size=(SIDE, SIDE), mean=(0.3, 0.5, 0.6), std=(0.2, 0.3, 0.25))


# Keys whose every value changes what a step computes.
STEP_KEYS = (
    "seed", "steps", "ema", "dtype", "patch_dropout", "train.vision", "train.text", "losses.contrastive.kind",
    "losses.contrastive.altered_columns", "losses.blind.weight", "losses.grounding.weight", "losses.sc.weight",
    "losses.sc.scope", "losses.vc.weight", "losses.vc.scope", "losses.vc.methods",
    "losses.vc.ratio", "losses.vc.views", "losses.vc.partner_group",
    "losses.hard_positives.weight", "losses.hard_positives.negative_weight",
    "optimizer.learning_rate", "optimizer.warmup_fraction", "optimizer.final_lr_fraction", "optimizer.b1",
    "optimizer.b2", "optimizer.eps", "optimizer.weight_decay", "optimizer.grad_clip_norm", "optimizer.layer_decay",
    "optimizer.tower_lr_scale", "optimizer.pull_to_start",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Case:
    """A config, as differences from the default, and the model and devices it runs on."""

    settings: tuple[tuple[str, object], ...]
    bert: bool = False
    bias: bool = False
    log_scale: float = 2.7
    devices: int = 1

    def config(self):
        config = changed(default_config(), **dict(self.settings))
        check_config(config)
        return config

    def leaves(self) -> dict[str, object]:
        return flat(self.config())


def _case(settings: dict[str, object], **choices) -> Case:
    # A larger epsilon than Adam's usual one: the sign of a gradient that is all rounding moves no parameter.
    common = {"batch_size": PAIRS, "optimizer.eps": 1e-3, "losses.hard_positives.negatives": "unread.json"}
    return Case(tuple({**common, **settings}.items()), **choices)


CASES = {
    "features of frozen towers": _case(
        {
            "steps": 5, "train.vision": "none", "train.text": "none", "data.cached_features": True,
            "losses.sc.weight": 1.0, "losses.vc.weight": 1.0, "optimizer.learning_rate": 1e-2,
            "optimizer.warmup_fraction": 0.2, "optimizer.final_lr_fraction": 0.1,
        },
        devices=8, log_scale=4.7,
    ),
    "every loss and optimizer key": _case(
        {
            "seed": 5, "steps": 7, "ema": 0.6, "train.vision": "last:1", "init.residual_head_width": 12,
            "losses.sc.weight": 0.7, "losses.sc.count": 2, "losses.sc.scope": "local",
            "losses.contrastive.altered_columns": True, "losses.blind.weight": 1.5, "losses.grounding.weight": 0.8,
            "losses.vc.weight": 0.5, "losses.vc.ratio": 0.7, "losses.vc.views": "crop,resize",
            "losses.vc.partner_group": 2,
            "losses.hard_positives.weight": 0.3, "losses.hard_positives.negative_weight": 2.0,
            "losses.hard_positives.count": 2,
            "optimizer.learning_rate": 3e-2, "optimizer.warmup_fraction": 0.3, "optimizer.final_lr_fraction": 0.3,
            "optimizer.b1": 0.7, "optimizer.b2": 0.8, "optimizer.weight_decay": 0.4,
            "optimizer.grad_clip_norm": 0.5, "optimizer.layer_decay": 0.5, "optimizer.tower_lr_scale": 0.4,
            "optimizer.pull_to_start": 0.7,
        },
        devices=4,
    ),
    "parts and rematerialised blocks": _case(
        {
            "seed": 1, "steps": 20, "train.text": "last:2", "micro_batches": 4,
            "remat": "full", "unroll": True, "patch_dropout": 0.5,
            "losses.sc.weight": 1.5, "losses.sc.count": 2,
            "losses.vc.weight": 2.0, "losses.vc.scope": "local", "losses.vc.methods": "cutmix", "losses.vc.ratio": 0.4,
            "losses.vc.views": "resize", "losses.vc.partner_group": 2,
            "optimizer.warmup_fraction": 0.0, "optimizer.grad_clip_norm": 0.0, "optimizer.weight_decay": 0.0,
            "optimizer.eps": 1e-2, "optimizer.learning_rate": 1e-2, "optimizer.layer_decay": 0.7,
        }
    ),
    "sigmoid, BERT": _case(
        {
            "steps": 4, "losses.contrastive.kind": "sigmoid", "train.vision": "none", "ema": 0.9,
            "losses.sc.weight": 0.2, "losses.sc.scope": "local",
            "losses.vc.weight": 0.3, "losses.vc.methods": "mixup", "losses.vc.partner_group": 4,
            "optimizer.learning_rate": 2e-2, "optimizer.warmup_fraction": 0.0, "optimizer.tower_lr_scale": 0.5,
            "optimizer.layer_decay": 0.5, "optimizer.grad_clip_norm": 2.0,
        },
        bert=True, bias=True, log_scale=4.7,
    ),
}  # fmt: skip


def spec_of(case: Case) -> ModelSpec:
    """A tiny dual encoder: CLIP's towers, or BERT for the texts."""
    tiny = tiny_spec(WIDTH, "masked" if case.bert else "causal")
    vision = dataclasses.replace(tiny.vision, image_size=SIDE)
    text = dataclasses.replace(tiny.text, vocabulary_size=40, context_length=TOKENS)
    head = HeadSpec("linear", 8, hidden=case.config().init.residual_head_width or None)
    return ModelSpec(vision=vision, text=text, vision_head=head, text_head=head, logit_bias=case.bias)


# bfloat16 keeps 8 bits, and a compiler keeps more of them between operations than the oracle.
LOW = _case({"steps": 5, "dtype": "bfloat16", "optimizer.warmup_fraction": 0.0})


@functools.cache
def parameters_at_start(case: Case) -> dict[str, np.ndarray]:
    """Random parameters; norms, biases and residual heads are not at their usual start, where they would hide."""
    return {**drawn_parameters(spec_of(case)), "logit_scale": np.float32(case.log_scale)}


@functools.cache
def batches(case: Case) -> tuple[Batch, ...]:
    """Three batches with everything that any loss reads; one image comes twice, some texts are missing."""
    return tuple(_batch(case, number) for number in range(3))


def _batch(case: Case, seed: int) -> Batch:
    rng, cached = np.random.default_rng(seed), case.config().data.cached_features

    def texts(*shape: int) -> Texts:
        if cached:
            return Texts(features=rng.normal(size=(*shape, WIDTH)).astype(np.float32))
        ids, mask = random_texts(TOKENS, 40, END, count=math.prod(shape), seed=rng.integers(1000))
        return Texts(ids.reshape(*shape, TOKENS), mask.reshape(*shape, TOKENS))

    def images(*shape: int) -> Images:
        if cached:
            return Images(features=rng.normal(size=(*shape, WIDTH)).astype(np.float32))
        made = (rng.integers(0, 256, (*shape, SIDE, SIDE, 3), np.uint8) for _ in range(2))
        return Images(pixels=next(made), resized=next(made))

    ids = rng.permutation(np.array([0, 0, *range(1, PAIRS - 1)], np.int32))
    batch = Batch(images(PAIRS), texts(PAIRS), ids, {}, {})
    shapes = {"altered": (PAIRS, 2), "mixed": (PAIRS, 1), "positive": (PAIRS,), "negative": (PAIRS, 2)}
    for field in active_fields(case.config().losses):
        if field.name != "mixed" or cached:
            made = (images if field.tower == "vision" else texts)(*shapes[field.name])
            valid = rng.random(shapes[field.name]) < 0.6
            valid[0], valid[1] = False, True  # a pair without any, and one with all
            batch = batch.with_field(field, made, valid)
    return batch


@functools.cache
def run(case: Case) -> dict[int, After]:
    """The package's states after steps 1 and 3."""
    config, spec = case.config(), spec_of(case)
    mesh = mesh_of(case.devices)
    start = {path: jax.numpy.asarray(array) for path, array in parameters_at_start(case).items()}
    trained, frozen = split_parameters(start, spec, config.train)
    optimizer = make_optimizer(config.optimizer, config.steps, spec, trained)
    step = make_step(config, spec, PREPROCESSING, optimizer, mesh)
    state = make_state(trained, optimizer, mesh, averaged=config.ema > 0)
    placed = [place_batch(batch, mesh) for batch in batches(case)]
    compiled = step.lower(state, frozen, placed[0]).compile(QUICK)
    after = {}
    for number, batch in enumerate(placed, 1):
        state, metrics = compiled(state, frozen, batch)
        adam = state.moments[1]
        if number in (1, 3):
            assert int(state.step) == int(adam.count) == number
            kept = (metrics, state.parameters, adam.mu, adam.nu, state.average)
            after[number] = After(*(dict(each) for each in jax.device_get(kept)))
    return after


def expect(case: Case, changes: Mapping[str, object] | None = None, last: int = 3) -> dict[int, After]:
    """The oracle's states after steps 1 and 3, or 1 alone, with other settings where `changes` has some."""
    settings = {**case.leaves(), **(changes or {})}
    of_images = {"mean": PREPROCESSING.mean, "std": PREPROCESSING.std}
    model = step_oracle.Model(layers=2, heads=4, patch=8, end_id=END, bert=case.bert, **of_images)
    states = step_oracle.steps(settings, model, parameters_at_start(case), batches(case)[:last])
    return {number: states[number - 1] for number in (1, 3) if number <= last}


def differences(found: Mapping[int, After], expected: Mapping[int, After]) -> dict[str, float]:
    """The largest difference of every array and figure, relative to its largest element.

    Raises:
        AssertionError: other figures, or other parameters that are trained or averaged.
    """
    errors: dict[str, float] = {}
    for number, state in found.items():
        right = expected[number]
        assert state.metrics.keys() == right.metrics.keys()
        for name, value in right.metrics.items():
            errors[f"{number} {name}"] = abs(float(state.metrics[name]) - value) / max(abs(value), 1e-6)
        for kind in ("parameters", "first_moment", "second_moment", "average"):
            arrays = getattr(state, kind)
            wanted = {path: array.numpy() for path, array in getattr(right, kind).items()}
            assert {path: array.shape for path, array in arrays.items()} == {
                path: array.shape for path, array in wanted.items()
            }
            for path, array in arrays.items():
                scale = max(np.abs(wanted[path]).max(), 1e-7)
                errors[f"{number} {kind} {path}"] = float(np.abs(array - wanted[path]).max() / scale)
    return errors
