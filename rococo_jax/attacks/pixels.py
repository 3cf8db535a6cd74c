"""Attack pixels: make the best wrong caption more similar than the best true one within a ball, by APGD.

    margin   max_wrong s(I', T) - max_true s(I', T)         success: 0 or more, counted on 8-bit pixels
    ce       log-odds of the wrong captions against the true ones, with the model's scale: it rises with the
             cross-entropy, and does not saturate where the model is certain
    dlr      margin / (largest - third largest similarity)

APGD (Croce and Hein 2020, arXiv 2003.01690): steps of twice the radius along the gradient's sign (linf) or direction
(l2), with momentum 0.75. At checkpoints after 22 % of the steps, and then at shorter and shorter distances, an image
whose loss rose in at most 75 % of the steps, or whose best loss did not change, restarts from its best point with half
the step. Loss and gradient are those of the point rounded to 8 bits inside the ball, so what is counted is optimised.

So that a larger budget includes a smaller one, a run of N steps is a prefix of a longer one: stages of 10, 30, 60, 100,
100, ... steps, each a complete APGD of its own length that starts from the best point so far; restarts follow one
another; and a radius starts with the result of the next smaller one. Each image has random numbers of its own.

The gradient passes through the normalisation of pixels only: an image is attacked as the model sees it, resized.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from rococo_jax.errors import InputError, unknown_name

NORMS, LOSSES = ("linf", "l2"), ("margin", "ce", "dlr")
_STAGES = (10, 30, 60)
_LATER_STAGE = 100


@dataclasses.dataclass(frozen=True)
class PixelAttack:
    """An attack on pixels.

    Attributes:
        budgets: radii, ascending; pixels are from 0 to 1.
        norm: `linf` or `l2`.
        steps: gradient steps of each restart.
        restarts: random starts.
        loss: names among `LOSSES`, joined by +: for each the steps are taken from every random start.
        seed: seed of the random starts.

    Raises:
        InputError: a value out of its range.
    """

    unit: ClassVar[str] = "pixels"
    budgets: tuple[float, ...]
    norm: str = "linf"
    steps: int = 100
    restarts: int = 1
    loss: str = "ce+margin"
    seed: int = 0

    def __post_init__(self):
        for radius in self.budgets:
            if not 0 < radius <= (1 if self.norm == "linf" else np.inf):
                wanted = "a radius above 0" + (", at most 1" if self.norm == "linf" else "")
                raise InputError("attack", "`pixels`", f"{radius:g}", f"{wanted}, of pixels from 0 to 1")
        for name in self.loss.split("+"):
            if name not in LOSSES:
                raise unknown_name("attack", "`loss`", name, LOSSES)

    def as_json(self) -> dict[str, Any]:
        """Return everything that decides a result, besides model and data."""
        return {"unit": self.unit, **vars(self)}


Embed = Callable[[Float[Array, "b h w 3"]], Float[Array, "b dim"]]


class Target(NamedTuple):
    """Texts that images are compared with, and a mask of those that are true of each image."""

    texts: Float[Array, "texts dim"]
    is_true: Bool[Array, "b texts"]


class Best(NamedTuple):
    """The best 8-bit image so far, its margin, and after how many steps the margin reached 0 (0: not yet)."""

    image: Float[Array, "b h w 3"]
    margin: Float[Array, " b"]
    first: Int[Array, " b"]


def margins(similarities: Float[Array, "b texts"], is_true: Bool[Array, "b texts"]) -> Float[Array, " b"]:
    """Return the best wrong minus the best true similarity."""
    wrong = jnp.where(is_true, -jnp.inf, similarities).max(axis=1)
    return wrong - jnp.where(is_true, similarities, -jnp.inf).max(axis=1)


def losses(similarities: Float[Array, "b texts"], is_true: Bool[Array, "b texts"], loss: str, scale: float) -> Array:
    """Return the loss that is maximised; see the module."""
    margin = margins(similarities, is_true)
    if loss == "margin":
        return margin
    if loss == "dlr":
        top = jax.lax.top_k(similarities, 3)[0]
        return margin / (top[:, 0] - top[:, 2] + 1e-12)
    logits = scale * similarities
    wrong = jax.nn.logsumexp(jnp.where(is_true, -jnp.inf, logits), axis=1)
    return wrong - jax.nn.logsumexp(jnp.where(is_true, logits, -jnp.inf), axis=1)


def _norm(x: Float[Array, "b h w 3"]) -> Float[Array, "b 1 1 1"]:
    return jnp.sqrt(jnp.square(x).sum(axis=(1, 2, 3), keepdims=True))


def _project(x: Array, original: Array, radius: Array, norm: str) -> Float[Array, "b h w 3"]:
    """Return the nearest point of the ball, then of [0, 255]."""
    change = x - original
    if norm == "linf":
        change = jnp.clip(change, -radius, radius)
    else:
        change = change * jnp.minimum(1.0, radius / jnp.maximum(_norm(change), 1e-12))
    return jnp.clip(original + change, 0.0, 255.0)


def to_8_bits(x: Array, original: Array, radius: Array, norm: str) -> Float[Array, "b h w 3"]:
    """Return whole pixel values inside the ball: for l2, changes are rounded away from 0 while they fit, largest first.

    `original` has whole values, and `x` lies in the ball and in [0, 255].
    """
    change = x - original
    if norm == "linf":
        most = jnp.floor(radius + 1e-3)
        return original + jnp.clip(jnp.round(change), -most, most)
    size = jnp.abs(change)
    whole = jnp.floor(size + 1e-4)
    cost, left = 2 * whole + 1, jnp.square(radius) * (1 + 1e-5) - jnp.square(_norm(whole))

    def halve(_: Array, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = (low + high) / 2
        total = jnp.where(size - whole > middle, cost, 0.0).sum(axis=(1, 2, 3), keepdims=True)
        return jnp.where(total <= left, low, middle), jnp.where(total <= left, middle, high)

    # The smallest fraction from which on all changes may be rounded up; a sort would take most of the time.
    _, least = jax.lax.fori_loop(0, 16, halve, (jnp.zeros_like(left), jnp.ones_like(left)))
    return original + jnp.sign(change) * (whole + (size - whole > least).astype(jnp.float32))


def _direction(gradient: Array, norm: str) -> Array:
    return jnp.sign(gradient) if norm == "linf" else gradient / jnp.maximum(_norm(gradient), 1e-12)


def random_start(keys: Array, original: Array, radius: Array, norm: str) -> Float[Array, "b h w 3"]:
    """Return a random point of the ball of each image."""

    def draw(key: Array) -> Array:
        shape = original.shape[1:]
        if norm == "linf":
            change = jax.random.uniform(key, shape, minval=-1.0, maxval=1.0)
            return change / jnp.abs(change).max()
        change = jax.random.normal(key, shape)
        return change / jnp.sqrt(jnp.square(change).sum())

    return _project(original + radius * jax.vmap(draw)(keys), original, radius, norm)


def _keep_better(best: Best, image: Array, margin: Array, step: Array) -> Best:
    # The first success stays, so that it does not matter whether a run goes on for other images.
    better = (margin > best.margin) & (best.margin < 0)
    first = jnp.where((best.first == 0) & (margin >= 0), step, best.first)
    return Best(
        jnp.where(better[:, None, None, None], image, best.image), jnp.where(better, margin, best.margin), first
    )


def apgd_stage(
    evaluate: Callable[[Array], tuple[Array, Array, Array, Array]],
    start: Float[Array, "b h w 3"],
    original: Float[Array, "b h w 3"],
    best: Best,
    radius: Float[Array, ""],
    norm: str,
    length: Int[Array, ""],
    limit: Int[Array, ""],
    done: Int[Array, ""],
) -> tuple[Array, Best]:
    """Run the first `limit` steps of an APGD of `length` steps; return the point of the highest loss, and the best.

    Args:
        evaluate: returns the image that is counted, its margin, loss and gradient.
        done: number of steps before this stage.
    """

    def per_image(condition: Array, one: Array, other: Array) -> Array:
        return jnp.where(condition[:, None, None, None], one, other)

    image, margin, loss, gradient = evaluate(start)
    first_check, decrement, last_check = (jnp.maximum(1, length * part // 100) for part in (22, 3, 6))
    state = {
        "x": start, "old": start, "gradient": gradient, "best_x": start, "best_gradient": gradient, "best_loss": loss,
        "loss": loss, "checked_loss": loss, "step": jnp.full(loss.shape, 2.0) * radius, "rises": jnp.zeros(loss.shape),
        "halved": jnp.ones(loss.shape, bool), "every": first_check, "count": jnp.int32(0),
        "found": _keep_better(best, image, margin, done),
    }  # fmt: skip

    def step(number: Array, state: dict[str, Any]) -> dict[str, Any]:
        x, keep = state["x"], jnp.where(number > 0, 0.75, 1.0)
        along = state["step"][:, None, None, None] * _direction(state["gradient"], norm)
        moved = _project(x + along, original, radius, norm)
        new = _project(x + keep * (moved - x) + (1 - keep) * (x - state["old"]), original, radius, norm)
        image, margin, loss, gradient = evaluate(new)
        better = loss > state["best_loss"]
        best_x, best_gradient = (
            per_image(better, value, state[name]) for name, value in (("best_x", new), ("best_gradient", gradient))
        )
        best_loss = jnp.maximum(loss, state["best_loss"])
        rises = state["rises"] + (loss > state["loss"]).astype(jnp.float32)
        is_check = state["count"] + 1 == state["every"]
        is_stuck = ~state["halved"] & (state["checked_loss"] >= best_loss)
        halve = is_check & ((rises <= 0.75 * state["every"].astype(jnp.float32)) | is_stuck)
        return {
            "x": per_image(halve, best_x, new), "old": x, "gradient": per_image(halve, best_gradient, gradient),
            "best_x": best_x, "best_gradient": best_gradient, "best_loss": best_loss, "loss": loss,
            "checked_loss": jnp.where(is_check, best_loss, state["checked_loss"]),
            "step": jnp.where(halve, state["step"] / 2, state["step"]),
            "rises": jnp.where(is_check, 0.0, rises), "halved": jnp.where(is_check, halve, state["halved"]),
            "every": jnp.where(is_check, jnp.maximum(state["every"] - decrement, last_check), state["every"]),
            "count": jnp.where(is_check, 0, state["count"] + 1),
            "found": _keep_better(state["found"], image, margin, done + number + 1),
        }  # fmt: skip

    state = jax.lax.fori_loop(0, limit, step, state)
    return state["best_x"], state["found"]


def random_search(
    evaluate: Callable[[Array], tuple[Array, Array]],
    keys: Array,
    original: Float[Array, "b h w 3"],
    radius: Float[Array, ""],
    norm: str,
    steps: Int[Array, ""],
) -> Best:
    """Change random squares to random colours at the border of the ball, and keep what raises the margin.

    A light form of the Square Attack (Andriushchenko et al. 2020): it needs no gradient, so it shows masked ones.
    """
    start = random_start(keys, original, radius, norm)
    image, margin = evaluate(start)
    best = Best(image, margin, jnp.where(margin >= 0, 1, 0))
    height, width = original.shape[1:3]

    def propose(key: Array, number: Array) -> Array:
        places, colours = jax.random.split(jax.random.fold_in(key, number))
        side = jnp.sqrt(jnp.maximum(0.3 / (1 + number.astype(jnp.float32) / 10), 0.01))
        centre = jax.random.uniform(places, (2,))
        rows = jnp.abs((jnp.arange(height, dtype=jnp.float32) + 0.5) / height - centre[0]) <= side / 2
        columns = jnp.abs((jnp.arange(width, dtype=jnp.float32) + 0.5) / width - centre[1]) <= side / 2
        colour = jax.random.rademacher(colours, (3,), jnp.float32)
        return (rows[:, None] & columns[None, :])[:, :, None].astype(jnp.float32) * colour[None, None, :]

    def step(number: Array, state: tuple[Array, Best]) -> tuple[Array, Best]:
        x, best = state
        square = jax.vmap(propose, (0, None))(keys, number)
        changed = original + radius * square if norm == "linf" else x + radius * _direction(square, norm)
        new = _project(jnp.where(square != 0, changed, x), original, radius, norm)
        image, margin = evaluate(new)
        better = margin > best.margin
        return jnp.where(better[:, None, None, None], new, x), _keep_better(best, image, margin, number + 2)

    return jax.lax.fori_loop(0, steps, step, (start, best))[1]


def evaluator(
    embed: Embed,
    target: Target,
    original: Array,
    radius: Array,
    norm: str,
    loss: str = "margin",
    scale: float = 1.0,
    rounds: bool = True,
):
    """Return the functions that APGD and random search evaluate.

    They evaluate the point rounded to 8 bits; without `rounds`, the point itself.
    """

    def rounded(x: Array) -> Array:
        return to_8_bits(x, original, radius, norm) if rounds else x

    def loss_and_margin(x: Array) -> tuple[Array, tuple[Array, Array]]:
        similarities = embed(x) @ target.texts.T
        each = losses(similarities, target.is_true, loss, scale)
        return each.sum(), (each, margins(similarities, target.is_true))

    def with_gradient(x: Array) -> tuple[Array, Array, Array, Array]:
        image = rounded(x)
        (_, (each, margin)), gradient = jax.value_and_grad(loss_and_margin, has_aux=True)(image)
        return image, margin, each, gradient

    def without_gradient(x: Array) -> tuple[Array, Array]:
        image = rounded(x)
        return image, margins(embed(image) @ target.texts.T, target.is_true)

    return with_gradient, without_gradient


def stages(steps: int) -> Iterator[tuple[int, int, int]]:
    """Yield length, number of steps, and steps before of each stage of a run.

    >>> list(stages(50))
    [(10, 10, 0), (30, 30, 10), (60, 10, 40)]
    """
    done = 0
    for length in itertools.chain(_STAGES, itertools.repeat(_LATER_STAGE)):
        if done >= steps:
            return
        yield length, min(length, steps - done), done
        done += length
