"""An independent training step: the towers, losses and optimizer as papers and `docs` state them, in torch, float64.

Nothing here is imported from the package. Gradients are torch's, so no formula of a gradient can be wrong; losses are
torch's cross entropy and softplus over dense matrices; the images are mixed by loops over NumPy arrays. Random draws
that the package takes from `jax.random` are taken from it here too, restated from their definition.

A step is `steps(settings, model, parameters, batches)`. Settings are the leaves of a config by dotted path.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import jax
import numpy as np
import torch
import torch.nn.functional as F

Settings = Mapping[str, object]
Parameters = dict[str, torch.Tensor]


@dataclasses.dataclass(frozen=True)
class Model:
    """What the oracle knows of the model beside its parameters. `bert`: norms after blocks, padding mask, mean."""

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
    values = {path: torch.tensor(np.asarray(array), dtype=torch.float64) for path, array in parameters.items()}
    first = {path: torch.zeros_like(value) for path, value in values.items()}
    second, history = dict(first), []
    trained = {path: _trained(path, value, settings, model) for path, value in values.items()}
    done = []
    for number, batch in enumerate(batches):
        leaves = {path: value.clone().requires_grad_() for path, value in values.items()}
        total, parts = loss(settings, model, leaves, batch, number)
        total.backward()
        raw = {path: torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for path, leaf in leaves.items()}
        gradients = {path: raw[path] * trained[path] for path in raw}
        norm = math.sqrt(sum(float((gradient**2).sum()) for gradient in gradients.values()))
        most = settings["optimizer.grad_clip_norm"]
        factor = most / norm if most and norm > most else 1.0
        b1, b2 = settings["optimizer.b1"], settings["optimizer.b2"]
        rate = learning_rate(settings, number)
        moved = {}
        for path, value in values.items():
            gradient = factor * gradients[path]
            first[path] = b1 * first[path] + (1 - b1) * gradient
            second[path] = b2 * second[path] + (1 - b2) * gradient**2
            mean = first[path] / (1 - b1 ** (number + 1))
            spread = (second[path] / (1 - b2 ** (number + 1))).sqrt()
            change = mean / (spread + settings["optimizer.eps"])
            if value.ndim - (".blocks." in path) >= 2:
                change = change + settings["optimizer.weight_decay"] * value
            moved[path] = value - rate * _rate(path, value, settings, model) * trained[path] * change
        if settings["losses.contrastive.kind"] == "softmax":  # SigLIP's is free
            highest = max(math.log(100), float(parameters["logit_scale"]))
            moved["logit_scale"] = moved["logit_scale"].clamp(max=highest)
        keep = settings["ema"]
        values = moved
        history.append(values)
        shares = [keep**age for age in reversed(range(len(history)))]  # none of the starting parameters
        average = {
            path: sum(share * each[path] for share, each in zip(shares, history, strict=True)) / sum(shares)
            for path in values
        }
        metrics = {
            "loss": total.item(),
            **{name: part.item() for name, part in parts.items()},
            "gradient_norm": norm,
            "learning_rate": rate,
            "logit_scale": math.exp(float(values["logit_scale"])),
        }
        kept = (values, first, second, average if keep else {})
        done.append(
            After(
                metrics,
                *(
                    {path: _kept(array, trained[path]) for path, array in each.items() if trained[path].any()}
                    for each in kept
                ),
            )
        )
    return done


def _kept(array: torch.Tensor, trained: torch.Tensor) -> torch.Tensor:
    """The trained layers of a stack, anything else as it is."""
    if array.ndim == 0:
        return array
    return array[trained.reshape(len(array), -1).any(1)]


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


def _place(path: str, model: Model) -> tuple[str, str]:
    """The tower ("" for heads and scales), and "below", "blocks" or "above" within it."""
    tower = path.split(".")[0]
    if tower not in ("vision", "text"):
        return "", ""
    if ".blocks." in path:
        return tower, "blocks"
    above = path.startswith(f"{tower}.norm.") and not (tower == "text" and model.bert)
    return tower, "above" if above else "below"


def _trained(path: str, value: torch.Tensor, settings: Settings, model: Model) -> torch.Tensor:
    """1 where a parameter is trained, 0 where it is frozen."""
    tower, place = _place(path, model)
    what = settings[f"train.{tower}"] if tower else "all"
    if what in ("all", "none"):
        return torch.full_like(value, float(what == "all"))
    if place != "blocks":
        return torch.full_like(value, float(place == "above"))
    mask = torch.zeros_like(value)
    mask[model.layers - int(what.split(":")[1]) :] = 1
    return mask


def _rate(path: str, value: torch.Tensor, settings: Settings, model: Model) -> torch.Tensor:
    """The factor on the learning rate: one decay for each block above."""
    tower, place = _place(path, model)
    if not tower:
        return torch.ones((), dtype=torch.float64)
    decay, scale = settings["optimizer.layer_decay"], settings["optimizer.tower_lr_scale"]
    if place == "blocks":
        of_layers = [scale * decay ** (model.layers - 1 - layer) for layer in range(model.layers)]
        return torch.tensor(of_layers, dtype=torch.float64).reshape(-1, *[1] * (value.ndim - 1))
    return torch.tensor(scale * (1.0 if place == "above" else decay**model.layers), dtype=torch.float64)


# The towers


class Towers:
    """Embeddings, unit vectors. With `low` the products of the towers are those of bfloat16."""

    def __init__(self, model: Model, parameters: Parameters, low: bool):
        self.model, self.parameters, self.low = model, parameters, low

    def images(self, pixels: np.ndarray) -> torch.Tensor:
        """Of (..., h, w, 3) uint8."""
        mean, std = (torch.tensor(each, dtype=torch.float64) for each in (self.model.mean, self.model.std))
        x = (torch.tensor(pixels, dtype=torch.float64).flatten(0, -4) / 255 - mean) / std
        kernel, patch = self.parameters["vision.patch.kernel"], self.model.patch
        weights = self.cast(kernel.reshape(patch, patch, 3, -1).permute(3, 2, 0, 1))
        x = self.cast(F.conv2d(self.cast(x.permute(0, 3, 1, 2)), weights, stride=patch).flatten(2).transpose(1, 2))
        token = self.cast(self.parameters["vision.class_token"]).expand(len(x), 1, -1)
        x = self.cast(torch.cat([token, x], 1) + self.cast(self.parameters["vision.positions"]))
        x = self.cast(self.norm("vision.norm_before", x))
        features = self.norm("vision.norm", self.blocks("vision", x, None))[:, 0]
        return self.head("vision_head", features).reshape(*pixels.shape[:-3], -1)

    def texts(self, ids: np.ndarray, mask: np.ndarray) -> torch.Tensor:
        """Of (..., t) token ids."""
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
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=seen)
        return self.linear(f"{name}.attention.out", self.cast(mixed.transpose(1, 2).reshape(x.shape)), layer)

    def mlp(self, name: str, layer: int, x: torch.Tensor) -> torch.Tensor:
        hidden = self.linear(f"{name}.mlp.up", x, layer)
        return self.linear(f"{name}.mlp.down", self.cast(hidden * torch.sigmoid(1.702 * hidden)), layer)

    def linear(self, name: str, x: torch.Tensor, layer: int) -> torch.Tensor:
        kernel, bias = (self.cast(self.parameters[f"{name}.{part}"][layer]) for part in ("kernel", "bias"))
        return self.cast(self.cast(x) @ kernel + bias)

    def norm(self, name: str, x: torch.Tensor, layer: int | None = None, eps: float | None = None) -> torch.Tensor:
        scale, bias = (self.parameters[f"{name}.{part}"] for part in ("scale", "bias"))
        scale, bias = (scale, bias) if layer is None else (scale[layer], bias[layer])
        return F.layer_norm(x, x.shape[-1:], scale, bias, self.model.norm_eps if eps is None else eps)

    def head(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """Unit vectors of features, by an affine map and, where there is one, a residual MLP."""
        if f"{name}.up.kernel" in self.parameters:
            of = {part: self.parameters[f"{name}.{part}"] for part in ("affine.kernel", "up.kernel", "up.bias")}
            hidden = F.gelu(
                self.norm(f"{name}.norm", x, eps=self.model.head_norm_eps) @ of["up.kernel"] + of["up.bias"]
            )
            x = x @ of["affine.kernel"] + hidden @ self.parameters[f"{name}.down.kernel"]
        else:
            x = x @ self.parameters[f"{name}.kernel"]
        return F.normalize(x, dim=-1, eps=0)

    def cast(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(torch.bfloat16).to(torch.float64) if self.low else x


# The losses


def loss(settings: Settings, model: Model, parameters: Parameters, batch, step: int) -> tuple[torch.Tensor, dict]:
    """The total and its parts before their weights."""
    towers = Towers(model, parameters, settings["dtype"] == "bfloat16")
    scale, rows = parameters["logit_scale"].exp(), range(len(batch.image_id))

    def images(of) -> torch.Tensor:
        if of.pixels is not None:
            return towers.images(of.pixels)
        return towers.head("vision_head", torch.tensor(of.features, dtype=torch.float64))

    def texts(of) -> torch.Tensor:
        if of.ids is not None:
            return towers.texts(of.ids, of.mask)
        return towers.head("text_head", torch.tensor(of.features, dtype=torch.float64))

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
        losses = []
        for row in rows:
            chosen = others[valid] if scope == "global" else others[row][valid[row]]
            candidates = scale * torch.cat([positives[row : row + 1], chosen]) @ queries[row]
            losses.append(F.cross_entropy(candidates, torch.tensor(0)))
        return torch.stack(losses)

    if settings["losses.sc.weight"]:
        altered, valid = texts(batch.fields["altered"]), torch.tensor(batch.valid["altered"])
        parts["sc"] = own_against(image, text, altered, valid, settings["losses.sc.scope"]).mean()
        total = total + settings["losses.sc.weight"] * parts["sc"]
    if settings["losses.vc.weight"]:
        if "mixed" in batch.fields:  # features
            mixed, valid = images(batch.fields["mixed"]), torch.tensor(batch.valid["mixed"])
        else:
            pixels, changed = mix(settings, batch, step)
            mixed, valid = towers.images(pixels)[:, None], torch.tensor(changed)[:, None]
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
    return total, parts


# The mixed images


def mix(settings: Settings, batch, step: int) -> tuple[np.ndarray, np.ndarray]:
    """Each image mixed with another of its group, and whether the result differs from the image."""
    methods = settings["losses.vc.methods"].split(",")
    views = [{"crop": "pixels", "resize": "resized"}[name] for name in settings["losses.vc.views"].split(",")]
    key = jax.random.fold_in(jax.random.key(settings["seed"]), step)
    mixed, changed = np.zeros_like(batch.images.pixels), np.zeros(len(batch.image_id), bool)
    for row in range(len(mixed)):
        group = row // settings["losses.vc.partner_group"]
        images = getattr(batch.images, views[group // len(methods) % len(views)])
        method = methods[group % len(methods)]
        ratio, size = settings["losses.vc.ratio"], settings["losses.vc.partner_group"]
        mixed[row], partner, differs = mix_row(images, row, key, method, ratio, size)
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
