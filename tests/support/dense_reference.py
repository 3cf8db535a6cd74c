"""The losses as protocol and papers write them: dense, float64, NumPy, no cleverness. What the sharded ones must equal.

Gradients come from the complex step, d f / d x = Im f(x + i h) / h with h so small (1e-30) that nothing is cut off:
exact to float64, and no formula of a gradient that could be wrong. All functions here are analytic in their inputs.
"""

import numpy as np

_STEP = 1e-30


def log_share(positive, negatives, allowed):
    """-log e^p / (e^p + sum of e^negatives that are allowed), a number a row."""
    shift = np.maximum(positive.real, np.where(allowed, negatives.real, -np.inf).max(1, initial=-np.inf))
    total = np.exp(positive - shift) + np.where(allowed, np.exp(negatives - shift[:, None]), 0).sum(1)
    return np.log(total) + shift - positive


def log_sum_exp(logits, allowed):
    """log of the sum of e^logits that are allowed, a number a row."""
    shift = np.where(allowed, logits.real, -np.inf).max(1)
    return np.log(np.where(allowed, np.exp(logits - shift[:, None]), 0).sum(1)) + shift


def mean(values, counted):
    return values[counted].sum() / counted.sum()


def pairs_of_other_ids(ids):
    return ids[:, None] != ids[None, :]


def softmax_contrastive(images, texts, logit_scale, *, ids, negative_texts=None, negative_mask=None):
    logits, others = logit_scale * images @ texts.T, pairs_of_other_ids(ids)
    positive, columns, allowed = np.diag(logits), logits, others
    if negative_texts is not None:
        further = logit_scale * images @ negative_texts.reshape(-1, negative_texts.shape[-1]).T
        columns = np.concatenate([logits, further], 1)
        allowed = np.concatenate([others, np.broadcast_to(negative_mask.reshape(1, -1), further.shape)], 1)
    to_text, to_image = log_share(positive, columns, allowed), log_share(positive, logits.T, others.T)
    return (to_text.mean() + to_image.mean()) / 2


def sigmoid_contrastive(images, texts, logit_scale, logit_bias, *, ids):
    logits = logit_scale * images @ texts.T + logit_bias
    losses = np.log1p(np.exp(-np.diag(logits)))
    losses = losses + np.where(pairs_of_other_ids(ids), np.log1p(np.exp(logits)), 0).sum(1)
    return losses.mean()


def shares_beside_altered(queries, positives, altered, logit_scale, allowed_altered, scope):
    negatives = logit_scale * queries @ altered.reshape(-1, altered.shape[-1]).T
    allowed = np.broadcast_to(allowed_altered.reshape(1, -1), negatives.shape)
    if scope == "local":
        of_pair = np.repeat(np.arange(len(queries)), altered.shape[1])
        allowed = allowed & (of_pair[None, :] == np.arange(len(queries))[:, None])
    return log_share(logit_scale * (queries * positives).sum(1), negatives, allowed)


def semantic_contrastive(images, texts, altered_texts, logit_scale, *, altered_mask, scope):
    return shares_beside_altered(images, texts, altered_texts, logit_scale, altered_mask, scope).mean()


def visual_contrastive(images, texts, mixed_images, logit_scale, *, mixed_mask, scope):
    return shares_beside_altered(texts, images, mixed_images, logit_scale, mixed_mask, scope).mean()


def hard_positive(images, texts, positive_texts, logit_scale, *, ids, positive_mask):
    others = pairs_of_other_ids(ids) & positive_mask[:, None] & positive_mask
    to_positive = [logit_scale * queries @ positive_texts.T for queries in (images, texts)]
    return sum(mean(log_share(np.diag(logits), logits, others), positive_mask) for logits in to_positive) / 2


def hard_negative(images, texts, negative_texts, logit_scale, *, negative_mask):
    shares = shares_beside_altered(images, texts, negative_texts, logit_scale, negative_mask, "local")
    return mean(shares, negative_mask.any(1))


def differences(images, texts, altered_texts):
    """(wrong or own image, pair, altered): s(I_j, T_k) - s(I_j, T~_k)."""
    return (images @ texts.T)[:, :, None] - np.einsum("jd,kad->jka", images, altered_texts)


def blind_preference(images, texts, altered_texts, logit_scale, *, ids, altered_mask):
    d, others = logit_scale * differences(images, texts, altered_texts), pairs_of_other_ids(ids)
    found = []
    for k, a in zip(*np.nonzero(altered_mask), strict=True):
        if others[:, k].any():
            found.append((d[others[:, k], k, a].sum() / others[:, k].sum()) ** 2)
    return sum(found) / len(found)


def grounding_contrastive(images, texts, altered_texts, logit_scale, *, ids, altered_mask):
    d, others = logit_scale * differences(images, texts, altered_texts), pairs_of_other_ids(ids)
    found = [
        np.log(1 + np.exp(d[others[:, k], k, a] - d[k, k, a]).sum())
        for k, a in zip(*np.nonzero(altered_mask), strict=True)
    ]
    return sum(found) / len(found)


def mixed_differences(images, texts, mixed_images):
    """(wrong or own caption, pair, mixed): s(I_k, T_j) - s(I~_k, T_j)."""
    return np.einsum("jd,kad->jka", texts, images[:, None] - mixed_images)


def mixed_blind_preference(images, texts, mixed_images, logit_scale, *, ids, mixed_mask):
    d, others = logit_scale * mixed_differences(images, texts, mixed_images), pairs_of_other_ids(ids)
    means = (d * others[:, :, None]).sum(0) / np.maximum(others.sum(0), 1)[:, None]
    return mean(means**2, mixed_mask & others.any(0)[:, None])


def mixed_grounding_contrastive(images, texts, mixed_images, logit_scale, *, ids, mixed_mask):
    d, others = logit_scale * mixed_differences(images, texts, mixed_images), pairs_of_other_ids(ids)
    own = np.einsum("kka->ka", d)
    return mean(np.log(1 + (np.exp(d - own[None]) * others[:, :, None]).sum(0)), mixed_mask)


def negclip_columns(images, texts, altered_texts, logit_scale, *, ids, altered_mask):
    with_columns = softmax_contrastive(
        images, texts, logit_scale, negative_texts=altered_texts, negative_mask=altered_mask, ids=ids
    )
    return with_columns - softmax_contrastive(images, texts, logit_scale, ids=ids)


def intra_modal(images, texts, altered_texts, logit_scale, *, altered_mask):
    every = altered_texts[altered_mask]
    found = []
    for i in range(len(images)):
        own, near = np.exp(logit_scale * images[i] @ texts[i]), np.exp(logit_scale * every @ texts[i])
        found.append(-np.log(own / (own + near.sum())))
    return sum(found) / len(found)


def adaptive_rank(images, texts, altered_texts, logit_scale, *, altered_mask, upper):
    own = (images * texts).sum(1)[:, None]
    gaps = logit_scale * (own - np.einsum("id,iad->ia", images, altered_texts))[altered_mask]
    margin = min(max(gaps.real.mean(), 0), upper)
    return np.where(margin - gaps.real > 0, margin - gaps, 0).sum() / len(gaps)


def value_and_gradients(function, *inputs):
    """The value, and the derivative in every element of every input."""
    inputs = [np.asarray(array, np.complex128) for array in inputs]
    value = function(*inputs)
    assert np.imag(value) == 0
    gradients = []
    for place, array in enumerate(inputs):
        gradient = np.zeros(array.shape)
        for index in np.ndindex(array.shape):
            moved = array.copy()
            moved[index] += 1j * _STEP
            gradient[index] = np.imag(function(*inputs[:place], moved, *inputs[place + 1 :])) / _STEP
        gradients.append(gradient)
    return float(np.real(value)), gradients


def relative_error(found, wanted):
    """The largest difference, relative to the largest element of the array."""
    found, wanted = np.asarray(found, np.float64), np.asarray(wanted)
    return np.abs(found - wanted).max() / np.abs(wanted).max()
