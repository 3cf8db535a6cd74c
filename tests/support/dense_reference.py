"""Dense reference of the losses in torch and float64, written from the papers and the protocol.

Gradients are those of torch's autograd and share no code with ours.
"""

import numpy as np
import pytest

torch = pytest.importorskip("torch")


def log_share(positive, negatives, allowed):
    """-log e^p / (e^p + sum of e^negatives that are allowed), a number a row."""
    return torch.cat([positive[:, None], negatives.masked_fill(~allowed, -torch.inf)], 1).logsumexp(1) - positive


def of_others(ids):
    return ids[:, None] != ids


def softmax_contrastive(images, texts, logit_scale, *, ids, negative_texts=None, negative_mask=None):
    logits, others = logit_scale * images @ texts.T, of_others(ids)
    columns, allowed = logits, others
    if negative_texts is not None:
        columns = torch.cat([logits, logit_scale * images @ negative_texts.flatten(0, 1).T], 1)
        allowed = torch.cat([others, negative_mask.flatten().expand(len(ids), -1)], 1)
    to_text = log_share(logits.diag(), columns, allowed)
    return (to_text.mean() + log_share(logits.diag(), logits.T, others).mean()) / 2


def sigmoid_contrastive(images, texts, logit_scale, logit_bias, *, ids):
    logits, log_sigmoid = logit_scale * images @ texts.T + logit_bias, torch.nn.functional.logsigmoid
    return -(log_sigmoid(logits.diag()) + (log_sigmoid(-logits) * of_others(ids)).sum(1)).mean()


def shares_beside_altered(queries, positives, altered, logit_scale, allowed, scope):
    if scope == "local":
        negatives = torch.einsum("id,iad->ia", queries, altered)
    else:
        negatives, allowed = queries @ altered.flatten(0, 1).T, allowed.flatten().expand(len(queries), -1)
    return log_share(logit_scale * (queries * positives).sum(1), logit_scale * negatives, allowed)


def semantic_contrastive(images, texts, altered_texts, logit_scale, *, altered_mask, scope):
    return shares_beside_altered(images, texts, altered_texts, logit_scale, altered_mask, scope).mean()


def visual_contrastive(images, texts, mixed_images, logit_scale, *, mixed_mask, scope):
    return shares_beside_altered(texts, images, mixed_images, logit_scale, mixed_mask, scope).mean()


def hard_positive(images, texts, positive_texts, logit_scale, *, ids, positive_mask):
    others = of_others(ids) & positive_mask[:, None] & positive_mask
    to_positive = [logit_scale * queries @ positive_texts.T for queries in (images, texts)]
    return sum(log_share(logits.diag(), logits, others)[positive_mask].mean() for logits in to_positive) / 2


def hard_negative(images, texts, negative_texts, logit_scale, *, negative_mask):
    shares = shares_beside_altered(images, texts, negative_texts, logit_scale, negative_mask, "local")
    return shares[negative_mask.any(1)].mean()


def differences(queries, own, altered):
    """(wrong or own query, pair, altered): of an image j, s(I_j, T_k) - s(I_j, T~_k); of a text, with images mixed."""
    return torch.einsum("jd,kad->jka", queries, own[:, None] - altered)


def blind(queries, own, altered, logit_scale, ids, mask):
    """Mean of squares of what queries of other pairs say of the two, over altered ones that have such queries."""
    d, others = logit_scale * differences(queries, own, altered), of_others(ids)
    means = (d * others[..., None]).sum(0) / others.sum(0).clamp(min=1)[:, None]
    return (means[mask & others.any(0)[:, None]] ** 2).mean()


def grounding(queries, own, altered, logit_scale, ids, mask):
    """log(1 + sum of e^(a wrong query's difference - the own one's)), averaged."""
    d = logit_scale * differences(queries, own, altered)
    beyond_own = (d - torch.einsum("kka->ka", d)).exp() * of_others(ids)[..., None]
    return beyond_own.sum(0).log1p()[mask].mean()


def blind_preference(images, texts, altered_texts, logit_scale, *, ids, altered_mask):
    return blind(images, texts, altered_texts, logit_scale, ids, altered_mask)


def grounding_contrastive(images, texts, altered_texts, logit_scale, *, ids, altered_mask):
    return grounding(images, texts, altered_texts, logit_scale, ids, altered_mask)


def value_and_gradients(name, embeddings, masks, settings):
    """A loss, and its derivative in every element of each of the embeddings."""
    leaves = {key: torch.tensor(array, dtype=torch.float64, requires_grad=True) for key, array in embeddings.items()}
    value = globals()[name](**leaves, **{key: torch.tensor(mask) for key, mask in masks.items()}, **settings)
    value.backward()
    return value.item(), [leaf.grad.numpy() for leaf in leaves.values()]


def relative_error(values, expected):
    """The largest difference, relative to the largest element of the array."""
    values, expected = np.asarray(values, np.float64), np.asarray(expected)
    return np.abs(values - expected).max() / np.abs(expected).max()
