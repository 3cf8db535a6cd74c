"""Models that torch runs and that score pairs: matching heads of `transformers`, rerankers of sentence-transformers,
and models that answer a question about an image (VQAScore, arXiv 2404.01291).
"""

from collections.abc import Mapping
from typing import Any

from rococo_jax.encoders.adapters.torch_module import TorchModule, TorchOptions, taking_prompts
from rococo_jax.errors import InputError

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
    """A torch module that scores pairs in batches."""


def load_matching_head(model: str, architecture: str, processor: str | None, options: TorchOptions) -> TorchPairs:
    """A model of `transformers` with a matching head, whose logit of a match is the score."""
    import transformers

    arguments, field, column = MATCHING_HEADS[architecture]
    made = getattr(transformers, architecture).from_pretrained(model, dtype=options.torch_dtype, **options.hub)
    ready = transformers.AutoProcessor.from_pretrained(processor or model, **options.hub)
    module = made.to(options.device)

    def score(images: list, texts: list[str]) -> Any:
        inputs = ready(images=images, text=texts, padding=True, truncation=True, return_tensors="pt")
        logits = getattr(module(**inputs.to(options.device, module.dtype), **arguments), field)
        return logits[:, column]

    settings = {"head": architecture, "processor": ready}
    return TorchPairs(module, options, settings, score_pairs=score)


def load_cross_encoder(model: str, query: str = "text", **options: Any) -> TorchPairs:
    """A `CrossEncoder` of sentence-transformers that takes images; the `query` of a pair is its text or its image.

    Raises InputError: `query` is neither.
    """
    import sentence_transformers

    if query not in ("text", "image"):
        raise InputError("model argument", "query", repr(query), "text or image")
    options = TorchOptions(**options)
    how = {"device": options.device, "model_kwargs": {"dtype": options.torch_dtype}, **options.hub}
    made = sentence_transformers.CrossEncoder(model, **how)
    settings = {"query": query, "activation": made.activation_fn}

    def under(prompt: Mapping[str, str]) -> TorchPairs:
        def score(images: list, texts: list[str]) -> Any:
            pairs = zip(texts, images, strict=True) if query == "text" else zip(images, texts, strict=True)
            return made.predict(list(pairs), batch_size=len(texts), show_progress_bar=False, **prompt)

        return TorchPairs(made, options, settings | {"prompt": dict(prompt)}, score_pairs=score)

    return taking_prompts(under, made.prompts)


def load_vqascore(model: str, question: str = QUESTION, answer: str = ANSWER, **options: Any) -> TorchPairs:
    """A generating model of `transformers`; a pair's score is the probability that its next token is `answer`.

    Raises InputError: `question` has no place {} for the text, or `answer` is no single token.
    """
    import torch
    import transformers

    if "{}" not in question:
        raise InputError("model argument", "question", repr(question), "a text with {} in the place of the caption")
    options = TorchOptions(**{"batch_size": 8, **options})
    kind = transformers.AutoModelForImageTextToText
    module = kind.from_pretrained(model, dtype=options.torch_dtype, **options.hub).to(options.device)
    ready = transformers.AutoProcessor.from_pretrained(model, **options.hub)
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
        inputs = inputs.to(options.device, module.dtype)
        last = inputs["attention_mask"].sum(dim=1) - 1
        logits = module(**inputs).logits
        after = logits[torch.arange(len(texts), device=logits.device), last.to(logits.device)]
        return torch.softmax(after.float(), dim=-1)[:, ids[0]]

    settings = {"processor": ready, "question": question, "answer": answer}
    return TorchPairs(module, options, settings, score_pairs=score)
