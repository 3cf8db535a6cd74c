"""An independent training step: the towers, losses and optimizer as papers and `docs` state them, in torch, float64.

Nothing here is imported from the package. Gradients are torch's, so no formula of a gradient can be wrong; losses are
torch's cross entropy and softplus over dense matrices; the images are mixed by loops over NumPy arrays. Random draws
that the package takes from `jax.random` are taken from it here too, restated from their definition.

A step is `steps(settings, model, parameters, batches)`. Settings are the leaves of a config by dotted path.
"""

import dataclasses
import math
import zlib
from collections.abc import Iterable, Mapping, Sequence

import jax
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the oracle of the step runs on torch")
F = torch.nn.functional

Settings = Mapping[str, object]
Parameters = dict[str, torch.Tensor]


@dataclasses.dataclass(frozen=True)
class Model:
    """Settings of the model beside its parameters. `bert`: norms after blocks, padding mask, mean."""

    layers: int
    heads: int
    patch: int
    end_id: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    bert: bool = False
    norm_eps: float = 1e-5
    head_norm_eps: float = 1e-6


@dataclasses.dataclass
class After:
    """The state after a step: of the trained parameters, and of stacks of blocks the trained ones."""

    metrics: dict[str, float]
    parameters: Parameters
    first_moment: Parameters
    second_moment: Parameters
    average: Parameters


def steps(settings: Settings, model: Model, parameters: Mapping[str, np.ndarray], batches: Sequence) -> list[After]:
    """The states after each batch. A batch has the attributes of the package's typed batch, as NumPy arrays."""
    leaves = {path: torch.tensor(np.asarray(array), dtype=torch.float64) for path, array in parameters.items()}
    trained = {path: _trained(path, value, settings, model) for path, value in leaves.items()}
    shares = {path: mask * _rate(path, leaves[path], settings, model) for path, mask in trained.items()}
    decays = {path: value.ndim - (".blocks." in path) >= 2 for path, value in leaves.items()}
    groups = [
        {"params": [leaf.requires_grad_() for path, leaf in leaves.items() if decays[path] == decay],
         "weight_decay": decay * settings["optimizer.weight_decay"]}
        for decay in (False, True)
    ]  # fmt: skip
    betas = settings["optimizer.b1"], settings["optimizer.b2"]
    optimizer = torch.optim.AdamW(groups, betas=betas, eps=settings["optimizer.eps"])
    most, highest = (
        settings["optimizer.grad_clip_norm"] or math.inf,
        max(math.log(100), float(parameters["logit_scale"])),
    )
    history, states = [], []
    for number, batch in enumerate(batches):
        total, parts = loss(settings, model, leaves, batch, number)
        gradients = torch.autograd.grad(total, [*leaves.values()], materialize_grads=True)
        gradients = [gradient * mask for gradient, mask in zip(gradients, trained.values(), strict=True)]
        norm = _norm(gradients)
        for leaf, gradient in zip(leaves.values(), gradients, strict=True):
            leaf.grad = gradient * min(1, most / norm)
        rate = optimizer.param_groups[0]["lr"] = optimizer.param_groups[1]["lr"] = learning_rate(settings, number)
        before = {path: leaf.detach().clone() for path, leaf in leaves.items()}
        optimizer.step()
        with torch.no_grad():
            for path, leaf in leaves.items():
                start = torch.tensor(np.asarray(parameters[path]), dtype=torch.float64)
                moved = leaf - rate * settings["optimizer.pull_to_start"] * (before[path] - start)
                leaf.copy_(torch.lerp(before[path], moved, shares[path].expand(leaf.shape)))
            if settings["losses.contrastive.kind"] == "softmax":  # SigLIP's is free
                leaves["logit_scale"].clamp_(max=highest)
        values = {path: leaf.detach().clone() for path, leaf in leaves.items()}
        history.append(values)
        moments = [{path: optimizer.state[leaf][name].clone() for path, leaf in leaves.items()}
                   for name in ("exp_avg", "exp_avg_sq")]  # fmt: skip
        metrics = {name: part.item() for name, part in {"loss": total, **parts}.items()}
        metrics |= {"gradient_norm": norm, "learning_rate": rate, "logit_scale": math.exp(values["logit_scale"])}
        metrics["parameter_norm"] = _norm(values[path] * mask for path, mask in trained.items())
        metrics["update_norm"] = _norm(values[path] - before[path] for path in trained)
        kept = [
            {path: _kept(array, trained[path]) for path, array in arrays.items() if trained[path].any()}
            for arrays in (values, *moments, mean_of(history, settings["ema"]) if settings["ema"] else {})
        ]
        states.append(After(metrics, *kept))
    return states


def _norm(arrays: Iterable[torch.Tensor]) -> float:
    return math.sqrt(sum(float((array**2).sum()) for array in arrays))


def mean_of(history: Sequence[Parameters], decay: float) -> Parameters:
    """The mean of the parameters after every step, the last weighted 1, those before by powers of the decay."""
    weights = decay ** torch.arange(len(history), dtype=torch.float64).flip(0)
    weights = weights / weights.sum()
    return {path: torch.tensordot(weights, torch.stack([each[path] for each in history]), 1) for path in history[0]}


def _kept(array: torch.Tensor, trained: torch.Tensor) -> torch.Tensor:
    """The trained layers of a stack, anything else as it is."""
    return array if array.ndim == 0 else array[trained.reshape(len(array), -1).any(1)]


# The optimizer


def learning_rate(settings: Settings, step: int) -> float:
    """A linear rise over the warmup, then half a cosine down to the final fraction."""
    peak, total = settings["optimizer.learning_rate"], settings["steps"]
    warmup = round(settings["optimizer.warmup_fraction"] * total)
    if step < warmup:
        return peak * step / warmup
    share = min((step - warmup) / (total - warmup), 1.0)
    final = settings["optimizer.final_lr_fraction"]
    return peak * (final + (1 - final) * (1 + math.cos(math.pi * share)) / 2)


def _blocks_above(path: str, value: torch.Tensor, model: Model) -> torch.Tensor | None:
    """Return the number of blocks of its tower above each part of a parameter; None for heads and scales."""
    tower = path.split(".")[0]
    if tower not in ("vision", "text"):
        return None
    if ".blocks." in path:
        return torch.arange(model.layers).flip(0).reshape(-1, *[1] * (value.ndim - 1))
    is_last = path.startswith(f"{tower}.norm.") and not (tower == "text" and model.bert)
    return torch.tensor(0 if is_last else model.layers)


def _trained(path: str, value: torch.Tensor, settings: Settings, model: Model) -> torch.Tensor:
    """True where a parameter is trained, False where it is frozen."""
    above = _blocks_above(path, value, model)
    if above is None:
        return torch.ones_like(value, dtype=torch.bool)
    what = settings[f"train.{path.split('.')[0]}"]
    blocks = {"all": math.inf, "none": 0}.get(what) if ":" not in what else int(what.split(":")[1])
    return (above < blocks).expand(value.shape)


def _rate(path: str, value: torch.Tensor, settings: Settings, model: Model) -> torch.Tensor:
    """The factor on the learning rate: one decay for each block above."""
    above = _blocks_above(path, value, model)
    if above is None:
        return torch.ones((), dtype=torch.float64)
    return settings["optimizer.tower_lr_scale"] * settings["optimizer.layer_decay"] ** above.double()


# The towers


class Towers:
    """Embeddings, unit vectors. With `low` the products of the towers are those of bfloat16."""

    def __init__(self, model: Model, parameters: Parameters, low: bool):
        self.model, self.parameters, self.low = model, parameters, low

    def images(self, pixels: np.ndarray, seen: torch.Tensor | None) -> torch.Tensor:
        """Embed (n, h, w, 3) uint8 images, of which the tower sees the patches `seen` (n, kept)."""
        mean, std = (torch.tensor(each, dtype=torch.float64) for each in (self.model.mean, self.model.std))
        x = (torch.tensor(pixels, dtype=torch.float64) / 255 - mean) / std
        kernel, patch = self.parameters["vision.patch.kernel"], self.model.patch
        weights = self.cast(kernel.reshape(patch, patch, 3, -1).permute(3, 2, 0, 1))
        x = self.cast(F.conv2d(self.cast(x.permute(0, 3, 1, 2)), weights, stride=patch).flatten(2).transpose(1, 2))
        token = self.cast(self.parameters["vision.class_token"]).expand(len(x), 1, -1)
        x = self.cast(torch.cat([token, x], 1) + self.cast(self.parameters["vision.positions"]))
        if seen is not None:
            x = torch.cat([x[:, :1], x[torch.arange(len(x))[:, None], 1 + seen]], 1)
        x = self.cast(self.norm("vision.norm_before", x))
        return self.head("vision_head", self.norm("vision.norm", self.blocks("vision", x, None))[:, 0])

    def texts(self, ids: np.ndarray, mask: np.ndarray) -> torch.Tensor:
        """Embed (..., t) token ids."""
        shape, length = ids.shape[:-1], ids.shape[-1]
        ids, mask = (torch.tensor(each).reshape(-1, length) for each in (ids, mask))
        x = self.parameters["text.words"][ids.long()] + self.parameters["text.positions"][:length]
        if self.model.bert:
            x = self.norm("text.norm", x + self.parameters["text.types"][0])
            tokens = self.blocks("text", self.cast(x), mask[:, None, None, :])
            features = torch.stack([row[keep].mean(0) for row, keep in zip(tokens, mask, strict=True)])
        else:
            seen = torch.ones(length, length, dtype=torch.bool).tril()
            tokens = self.norm("text.norm", self.blocks("text", self.cast(x), seen))
            ends = [row.tolist().index(self.model.end_id) for row in ids]
            features = tokens[torch.arange(len(ids)), ends]
        return self.head("text_head", features).reshape(*shape, -1)

    def blocks(self, tower: str, x: torch.Tensor, seen: torch.Tensor | None) -> torch.Tensor:
        for layer in range(self.model.layers):
            name = f"{tower}.blocks.block"
            if tower == "text" and self.model.bert:
                x = self.cast(self.norm(f"{name}.norm1", x + self.attention(name, layer, x, seen), layer))
                x = self.cast(self.norm(f"{name}.norm2", x + self.mlp(name, layer, x), layer))
            else:
                change = self.attention(name, layer, self.norm(f"{name}.norm1", x, layer), seen)
                x = self.cast(x + change)
                x = self.cast(x + self.mlp(name, layer, self.norm(f"{name}.norm2", x, layer)))
        return x

    def attention(self, name: str, layer: int, x: torch.Tensor, seen: torch.Tensor | None) -> torch.Tensor:
        count, length, _ = x.shape
        qkv = self.linear(f"{name}.attention.qkv", x, layer).reshape(count, length, 3, self.model.heads, -1)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        logits = self.cast(query @ key.transpose(-1, -2)) * query.shape[-1] ** -0.5
        weights = (logits if seen is None else logits.where(seen, -torch.inf)).softmax(-1)
        mixed = self.cast(weights) @ value
        return self.linear(f"{name}.attention.out", self.cast(mixed.transpose(1, 2).reshape(x.shape)), layer)

    def mlp(self, name: str, layer: int, x: torch.Tensor) -> torch.Tensor:
        hidden = self.linear(f"{name}.mlp.up", x, layer)
        return self.linear(f"{name}.mlp.down", self.cast(hidden * torch.sigmoid(1.702 * hidden)), layer)

    def linear(self, name: str, x: torch.Tensor, layer: int) -> torch.Tensor:
        kernel, bias = (self.cast(self.parameters[f"{name}.{part}"][layer]) for part in ("kernel", "bias"))
        return self.cast(self.cast(x) @ kernel + bias)

    def norm(self, name: str, x: torch.Tensor, layer: int | None = None, eps: float | None = None) -> torch.Tensor:
        place = ... if layer is None else layer
        scale, bias = (self.parameters[f"{name}.{part}"][place] for part in ("scale", "bias"))
        return F.layer_norm(x, x.shape[-1:], scale, bias, eps or self.model.norm_eps)

    def head(self, name: str, features: torch.Tensor | np.ndarray) -> torch.Tensor:
        """Unit vectors of features, by an affine map and, where there is one, a residual MLP."""
        x = torch.as_tensor(features, dtype=torch.float64)
        if f"{name}.up.kernel" not in self.parameters:
            return F.normalize(x @ self.parameters[f"{name}.kernel"], dim=-1, eps=0)
        affine, up, down = (self.parameters[f"{name}.{part}.kernel"] for part in ("affine", "up", "down"))
        hidden = self.norm(f"{name}.norm", x, eps=self.model.head_norm_eps) @ up + self.parameters[f"{name}.up.bias"]
        return F.normalize(x @ affine + F.gelu(hidden) @ down, dim=-1, eps=0)

    def cast(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(torch.bfloat16).to(torch.float64) if self.low else x


# The losses


def loss(settings: Settings, model: Model, parameters: Parameters, batch, step: int) -> tuple[torch.Tensor, dict]:
    """The total and its parts before their weights."""
    towers = Towers(model, parameters, settings["dtype"] == "bfloat16")
    scale = parameters["logit_scale"].exp()

    def images(of, name: str = "images") -> torch.Tensor:
        if of.pixels is None:
            return towers.head("vision_head", of.features)
        return towers.images(of.pixels, seen_patches(settings, model, name, of.pixels, step))

    def texts(of) -> torch.Tensor:
        return towers.texts(of.ids, of.mask) if of.ids is not None else towers.head("text_head", of.features)

    image, text = images(batch.images), texts(batch.texts)
    logits = scale * image @ text.T
    ids = torch.tensor(np.asarray(batch.image_id))
    # The own pair, and pairs that show another image.
    counted = (ids[:, None] != ids[None, :]) | torch.eye(len(ids), dtype=torch.bool)
    hard = settings["losses.hard_positives.weight"]
    parts, extra = {}, []
    if hard:
        negatives, there = texts(batch.fields["negative"]), torch.tensor(batch.valid["negative"])
        extra = [scale * image @ negatives[there].T]
    if settings["losses.contrastive.altered_columns"]:
        altered, valid = texts(batch.fields["altered"]), torch.tensor(batch.valid["altered"])
        extra.append(scale * image @ altered[valid].T)
    if settings["losses.contrastive.kind"] == "sigmoid":
        signs = 2 * torch.eye(len(ids), dtype=torch.float64) - 1
        pairs = F.softplus(-signs * (logits + parameters["logit_bias"]))
        parts["contrastive"] = pairs[counted].sum() / len(ids)
    else:
        hidden, others = logits.masked_fill(~counted, -math.inf), torch.arange(len(ids))
        to_text = F.cross_entropy(torch.cat([hidden, *extra], 1), others)
        parts["contrastive"] = (to_text + F.cross_entropy(hidden.T, others)) / 2
    total = parts["contrastive"]

    def own_against(queries, positives, others, valid, scope) -> torch.Tensor:
        """Each query's positive in a cross entropy with its own negatives, or with those of the whole batch."""
        local = torch.eye(len(ids), dtype=torch.bool).repeat_interleave(others.shape[1], 1)
        allowed = valid.flatten() & (local if scope == "local" else True)
        negatives = (scale * queries @ others.flatten(0, 1).T).masked_fill(~allowed, -math.inf)
        candidates = torch.cat([scale * (queries * positives).sum(1, keepdim=True), negatives], 1)
        return F.cross_entropy(candidates, torch.zeros(len(ids), dtype=torch.long), reduction="none")

    if settings["losses.sc.weight"]:
        altered, valid = texts(batch.fields["altered"]), torch.tensor(batch.valid["altered"])
        parts["sc"] = own_against(image, text, altered, valid, settings["losses.sc.scope"]).mean()
        total = total + settings["losses.sc.weight"] * parts["sc"]
    if settings["losses.vc.weight"]:
        if "mixed" in batch.fields:  # features
            mixed, valid = images(batch.fields["mixed"]), torch.tensor(batch.valid["mixed"])
        else:
            pixels, changed = mix(settings, batch, step)
            seen = seen_patches(settings, model, "mixed", pixels[:, None], step)
            mixed = towers.images(pixels, None if seen is None else seen[:, 0])[:, None]
            valid = torch.tensor(changed)[:, None]
        parts["vc"] = own_against(text, image, mixed, valid, settings["losses.vc.scope"]).mean()
        total = total + settings["losses.vc.weight"] * parts["vc"]
    if hard:
        positives, has = texts(batch.fields["positive"]), torch.tensor(batch.valid["positive"])
        among = counted[has][:, has]
        columns = scale * positives[has].T
        ways = [(queries[has] @ columns).masked_fill(~among, -math.inf) for queries in (image, text)]
        own = torch.arange(int(has.sum()))
        parts["hard_positive"] = sum(F.cross_entropy(way, own) for way in ways) / 2
        parts["hard_negative"] = own_against(image, text, negatives, there, "local")[there.any(1)].mean()
        weighted = parts["hard_positive"] + settings["losses.hard_positives.negative_weight"] * parts["hard_negative"]
        total = total + hard * weighted
    if settings["losses.blind.weight"] or settings["losses.grounding.weight"]:
        altered, valid = texts(batch.fields["altered"]), torch.tensor(batch.valid["altered"])
        unrelated = ids[:, None] != ids[None, :]
        # By how much image j prefers caption k over its altered caption a: (j, k, a).
        preference = scale * torch.einsum("jd,kad->jka", image, text[:, None] - altered)
        if settings["losses.blind.weight"]:
            means = (preference * unrelated[..., None]).sum(0) / unrelated.sum(0)[:, None]
            parts["blind"] = (means[valid] ** 2).mean()
            total = total + settings["losses.blind.weight"] * parts["blind"]
        if settings["losses.grounding.weight"]:
            above_own = preference - torch.einsum("kka->ka", preference)
            parts["grounding"] = (above_own.exp() * unrelated[..., None]).sum(0).log1p()[valid].mean()
            total = total + settings["losses.grounding.weight"] * parts["grounding"]
    return total, parts


# Random draws


def seen_patches(settings: Settings, model: Model, name: str, pixels: np.ndarray, step: int) -> torch.Tensor | None:
    """The patches of every image of a field that the tower sees, in ascending order; None for all."""
    count, dropped = (pixels.shape[-2] // model.patch) ** 2, settings["patch_dropout"]
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(settings["seed"]), step), zlib.crc32(name.encode()))
    order = np.argsort(jax.random.uniform(key, (*pixels.shape[:-3], count)), -1)
    return torch.tensor(np.sort(order[..., : round((1 - dropped) * count)], -1)) if dropped else None


def mix(settings: Settings, batch, step: int) -> tuple[np.ndarray, np.ndarray]:
    """Each image mixed with another of its group, and whether the result differs from the image."""
    methods = settings["losses.vc.methods"].split(",")
    views = [{"crop": "pixels", "resize": "resized"}[name] for name in settings["losses.vc.views"].split(",")]
    key = jax.random.fold_in(jax.random.key(settings["seed"]), step)
    ratio, size = settings["losses.vc.ratio"], settings["losses.vc.partner_group"]
    mixed, changed = np.zeros_like(batch.images.pixels), np.zeros(len(batch.image_id), bool)
    for row in range(len(mixed)):
        turn, group = divmod(row // size, len(methods))
        images = getattr(batch.images, views[turn % len(views)])
        mixed[row], partner, differs = mix_row(images, row, key, methods[group], ratio, size)
        changed[row] = differs and batch.image_id[row] != batch.image_id[partner]
    return mixed, changed


def mix_row(
    images: np.ndarray, row: int, key: jax.Array, method: str, ratio: float, size: int
) -> tuple[np.ndarray, int, bool]:
    """Image `row` with content of another of its group of `size`, which one, and whether any of it came in."""
    of_partner, _, of_box = jax.random.split(key, 3)
    group, place = divmod(row, size)
    # A random cycle through the group: every image takes from the next.
    cycle = np.asarray(jax.random.permutation(jax.random.fold_in(of_partner, group), size)).tolist()
    partner = group * size + cycle[(cycle.index(place) + 1) % size]
    own, other, side = images[row], images[partner], images.shape[1]
    if method == "mixup":
        unit = np.float32(ratio) * (own / np.float32(255)) + np.float32(1 - ratio) * (other / np.float32(255))
        return np.floor(unit * np.float32(255) + np.float32(0.5)).astype(np.uint8), partner, ratio < 1
    cut, spans = math.floor(side * math.sqrt(1 - ratio)), []
    for of_axis in jax.random.split(jax.random.fold_in(of_box, row)):
        centre = int(jax.random.randint(of_axis, (), 0, side))
        spans.append(slice(max(centre - cut // 2, 0), min(centre + cut // 2, side)))
    mixed = own.copy()
    mixed[spans[0], spans[1]] = other[spans[0], spans[1]]
    return mixed, partner, all(span.stop > span.start for span in spans)
