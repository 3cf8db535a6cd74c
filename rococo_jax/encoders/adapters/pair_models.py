"""Models that torch runs and that score pairs: matching heads of `transformers`, rerankers of sentence-transformers,
and models that answer a question about an image (VQAScore, arXiv 2404.01291).
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rococo_jax.encoders.adapters.torch_module import TorchModule, find_dtype, plain
from rococo_jax.encoders.foreign_object import as_numpy
from rococo_jax.errors import InputError

# Of one batch of images and as many texts.
Score = Callable[[list[Any], list[str]], Any]
# Architectures of transformers with a matching head: what its call is given beside the inputs, where the logits are,
# and the column of a match.
MATCHING_HEADS = {
    "BlipForImageTextRetrieval": ({"use_itm_head": True}, "itm_score", 1),
    "Blip2ForImageTextRetrieval": ({"use_image_text_matching_head": True}, "logits_per_image", 1),
    "BridgeTowerForImageAndTextRetrieval": ({}, "logits", 1),
    "ViltForImageAndTextRetrieval": ({}, "logits", 0),
}
# VQAScore's, as its paper and code have it.
QUESTION, ANSWER = 'Does this figure show "{}"? Please answer yes or no.', "Yes"


class TorchPairs(TorchModule):
    """A torch module that scores pairs in batches.

    Args:
        module: whose parameters and buffers decide the scores.
        score: the scores of one batch.
        settings: what else decides them, as JSON.
        batch_size: pairs of a batch.
    """

    def __init__(self, module: Any, score: Score, settings: Mapping[str, Any], batch_size: int):
        super().__init__(module, settings, batch_size)
        self._score = score

    def score_pairs(self, images: list[Any], texts: list[str]) -> np.ndarray:
        """How well each image fits the text beside it."""
        import torch

        with torch.inference_mode():
            return as_numpy(self._score(images, texts))


def load_matching_head(
    model: str, architecture: str, processor: str | None, device: str, dtype: str, batch_size: int, options: dict
) -> TorchPairs:
    """A model of `transformers` with a matching head, whose logit of a match is the score."""
    import transformers

    arguments, field, column = MATCHING_HEADS[architecture]
    made = getattr(transformers, architecture).from_pretrained(model, dtype=find_dtype(dtype), **options)
    ready = transformers.AutoProcessor.from_pretrained(processor or model, **options)
    module = made.to(device)

    def score(images: list, texts: list[str]) -> Any:
        inputs = ready(images=images, text=texts, padding=True, truncation=True, return_tensors="pt")
        logits = getattr(module(**inputs.to(device, module.dtype), **arguments), field)
        return logits[:, column]

    settings = {"transformers": transformers.__version__, "config": plain(made.config.to_dict()), "dtype": dtype}
    settings |= {"head": architecture, "processor": plain(ready.to_dict())}
    return TorchPairs(module, score, settings, batch_size)


def load_cross_encoder(
    model: str,
    revision: str | None = None,
    device: str = "cpu",
    dtype: str = "float32",
    batch_size: int = 32,
    trust_remote_code: bool = False,
    query: str = "text",
) -> TorchPairs:
    """A `CrossEncoder` of sentence-transformers that takes images; the `query` of a pair is its text or its image.

    Raises InputError: `query` is neither.
    """
    import sentence_transformers

    if query not in ("text", "image"):
        raise InputError("model argument", "query", repr(query), "text or image")
    options = {"trust_remote_code": trust_remote_code, "model_kwargs": {"dtype": find_dtype(dtype)}}
    made = sentence_transformers.CrossEncoder(model, revision=revision, device=device, **options)
    about = {"sentence_transformers": sentence_transformers.__version__, "modules": repr(made), "dtype": dtype}
    about |= {"query": query, "activation": repr(made.activation_fn), "prompts": made.prompts}

    def asked(prompt: Mapping[str, str]) -> TorchPairs:
        def score(images: list, texts: list[str]) -> Any:
            pairs = zip(texts, images, strict=True) if query == "text" else zip(images, texts, strict=True)
            return made.predict(list(pairs), batch_size=len(texts), show_progress_bar=False, **prompt)

        return TorchPairs(made, score, about | {"prompt": dict(prompt)}, batch_size)

    model = asked({})
    model.with_prompt = lambda prompt, role: asked(prompt_arguments(made.prompts, prompt))
    return model


def prompt_arguments(prompts: Mapping[str, str], prompt: str) -> dict[str, str]:
    """How sentence-transformers is told a prompt: by the name of one of its own, or as it is.

    >>> prompt_arguments({"query": "Find it: "}, "query"), prompt_arguments({}, "Represent: ")
    ({'prompt_name': 'query'}, {'prompt': 'Represent: '})
    """
    return {"prompt_name": prompt} if prompt in prompts else {"prompt": prompt}


def load_vqascore(
    model: str,
    revision: str | None = None,
    device: str = "cpu",
    dtype: str = "float32",
    batch_size: int = 8,
    trust_remote_code: bool = False,
    question: str = QUESTION,
    answer: str = ANSWER,
) -> TorchPairs:
    """A generating model of `transformers`; a pair's score is the probability that its next token is `answer`.

    Raises InputError: `question` has no place {} for the text, or `answer` is no single token.
    """
    import torch
    import transformers

    if "{}" not in question:
        raise InputError("model argument", "question", repr(question), "a text with {} in the place of the caption")
    options = {"revision": revision, "trust_remote_code": trust_remote_code}
    kind = transformers.AutoModelForImageTextToText
    module = kind.from_pretrained(model, dtype=find_dtype(dtype), **options).to(device)
    ready = transformers.AutoProcessor.from_pretrained(model, **options)
    # On the left, positions would depend on the other texts of the batch.
    ready.tokenizer.padding_side = "right"
    ids = ready.tokenizer(answer, add_special_tokens=False)["input_ids"]
    if len(ids) != 1:
        raise InputError("model argument", "answer", f"{answer!r}, {len(ids)} tokens", "a word of one token")

    def prompt_of(text: str) -> str:
        asked = question.replace("{}", text)
        if ready.chat_template is None:
            return asked
        content = [{"type": "image"}, {"type": "text", "text": asked}]
        return ready.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)

    def score(images: list, texts: list[str]) -> Any:
        prompts = [prompt_of(text) for text in texts]
        inputs = ready(images=[[image] for image in images], text=prompts, padding=True, return_tensors="pt")
        inputs = inputs.to(device, module.dtype)
        last = inputs["attention_mask"].sum(dim=1) - 1
        logits = module(**inputs).logits
        after = logits[torch.arange(len(texts), device=logits.device), last.to(logits.device)]
        return torch.softmax(after.float(), dim=-1)[:, ids[0]]

    settings = {"transformers": transformers.__version__, "config": plain(module.config.to_dict()), "dtype": dtype}
    settings |= {"processor": plain(ready.to_dict()), "template": ready.chat_template}
    settings |= {"question": question, "answer": answer}
    return TorchPairs(module, score, settings, batch_size)
