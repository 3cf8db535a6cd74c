"""Models that torch runs and that score pairs: matching heads of `transformers`, rerankers of sentence-transformers,
and models that answer a question about an image (VQAScore, arXiv 2404.01291).
"""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from rococo_jax.encoders.adapters.torch_module import TorchModule, TorchOptions, taking_prompts
from rococo_jax.encoders.foreign_object import as_numpy
from rococo_jax.errors import InputError

# Architectures of transformers with a matching head: what its call is given beside the inputs, where the logits are,
# and the column of a match.
MATCHING_HEADS = {
    "BlipForImageTextRetrieval": ({"use_itm_head": True}, "itm_score", 1),
    "Blip2ForImageTextRetrieval": ({"use_image_text_matching_head": True}, "logits_per_image", 1),
    "BridgeTowerForImageAndTextRetrieval": ({}, "logits", 1),
    "ViltForImageAndTextRetrieval": ({}, "logits", 0),
}
# How texts become rows of one length. With padding on the left, positions would depend on the other texts of the batch.
# A `max_length` that a tokenizer was saved with is a setting of some past call, not the length of the model.
PADDING = {"padding": True, "padding_side": "right", "max_length": None, "return_tensors": "pt"}
# The largest difference in log-odds or log-probability of a pair alone and in a batch that is rounding: in float32, and
# in units of the dtype's precision.
_SAME, _SAME_UNITS = 1e-2, 100
# Of a tokenizer's special tokens, those that nobody writes by chance: not a pad token "!".
_IS_MARKUP = re.compile(r"[<>\[\]|]")
# VQAScore's, as its paper and code have it.
QUESTION, ANSWER = 'Does this figure show "{}"? Please answer yes or no.', "Yes"


class TorchPairs(TorchModule):
    """A torch module that scores pairs in batches.

    Args:
        score: of a list of images and a list of texts, the score of each pair.
        in_logs: whether scores are probabilities, which are compared by their logarithms.
        others: as of `TorchModule`.

    Its method `score_pairs` raises InputError where a pair's score depends on the batch that it is in, which is tried
    on the shortest and the longest text of the first batch with texts of several lengths.
    """

    def __init__(
        self,
        module: Any,
        options: TorchOptions,
        settings: Mapping[str, Any],
        score: Callable[[list, list[str]], Any],
        in_logs: bool = False,
    ):
        super().__init__(module, options, settings, score_pairs=self._score_batch)
        self._score, self._in_logs, self._is_compared = score, in_logs, False
        self._most_apart = max(_SAME, _SAME_UNITS * _precision(options.torch_dtype))

    def _score_batch(self, images: list, texts: list[str]) -> np.ndarray:
        scores, lengths = as_numpy(self._score(images, texts)), [len(text) for text in texts]
        if not self._is_compared and len(set(lengths)) > 1:
            for row in (int(np.argmin(lengths)), int(np.argmax(lengths))):
                alone = as_numpy(self._score([images[row]], [texts[row]]))
                self._refuse_apart(texts, row, float(scores[row]), float(alone[0]))
            self._is_compared = True
        return scores

    def _refuse_apart(self, texts: list[str], row: int, in_batch: float, alone: float) -> None:
        """Raise InputError if the two scores of a pair differ by more than rounding."""
        pair, scale = np.array([in_batch, alone]), 1.0
        if self._in_logs:
            pair = np.log(np.maximum(pair, np.finfo(np.float32).tiny))
        else:
            scale = max(scale, float(np.abs(pair).max()))
        if np.abs(pair[0] - pair[1]) > self._most_apart * scale:
            found = f"{in_batch:.6g} for {texts[row]!r} in a batch of {len(texts)}, {alone:.6g} alone"
            wanted = "one score (the model argument batch_size=1 scores pairs one by one)"
            raise InputError(self.name, "score_pairs", found, wanted)


def _precision(dtype: Any) -> float:
    """The relative precision of a dtype of torch."""
    import torch

    return torch.finfo(dtype).eps


def load_matching_head(model: str, architecture: str, processor: str | None, options: TorchOptions) -> TorchPairs:
    """A model of `transformers` with a matching head, whose logit of a match is the score."""
    import transformers

    arguments, field, column = MATCHING_HEADS[architecture]
    made = getattr(transformers, architecture).from_pretrained(model, dtype=options.torch_dtype, **options.hub)
    ready = transformers.AutoProcessor.from_pretrained(processor or model, **options.hub)
    module = made.to(options.device)

    def score(images: list, texts: list[str]) -> Any:
        inputs = ready(images=images, text=texts, truncation=True, **PADDING)
        logits = getattr(module(**inputs.to(options.device, module.dtype), **arguments), field)
        return logits[:, column]

    settings = {"head": architecture, "processor": ready}
    return TorchPairs(module, options, settings, score)


def load_cross_encoder(model: str, query: str = "text", **options: Any) -> TorchPairs:
    """A `CrossEncoder` of sentence-transformers that takes images; the `query` of a pair is its text or its image.

    The score is what `predict` gives, but the log-odds where that applies a sigmoid, which in float32 is 1 for all
    log-odds above 17: pairs would tie that the model tells apart.

    Raises InputError: `query` is neither.
    """
    import sentence_transformers
    import torch

    if query not in ("text", "image"):
        raise InputError("model argument", "query", repr(query), "text or image")
    options = TorchOptions(**options)
    how = {"device": options.device, "model_kwargs": {"dtype": options.torch_dtype}, **options.hub}
    made = sentence_transformers.CrossEncoder(model, **how)
    saturates = isinstance(made.activation_fn, torch.nn.Sigmoid | torch.nn.Tanh)
    activation = torch.nn.Identity() if saturates else made.activation_fn
    settings = {"query": query, "activation": activation, "prompts": made.prompts}

    def under(prompt: Mapping[str, str]) -> TorchPairs:
        def score(images: list, texts: list[str]) -> Any:
            pairs = zip(texts, images, strict=True) if query == "text" else zip(images, texts, strict=True)
            call = {"batch_size": len(texts), "activation_fn": activation, "show_progress_bar": False}
            return made.predict(list(pairs), **call, **prompt)

        return TorchPairs(made, options, settings | {"prompt": dict(prompt)}, score)

    return taking_prompts(under, made.prompts)


def load_vqascore(model: str, question: str = QUESTION, answer: str = ANSWER, **options: Any) -> TorchPairs:
    """A generating model of `transformers`; a pair's score is the probability that its next token is `answer`.

    Raises InputError: `question` has no place {} for the text, `answer` is no single token, or the model has no chat
    template and the question no image.
    """
    import torch
    import transformers

    if "{}" not in question:
        raise InputError("model argument", "question", repr(question), "a text with {} in the place of the caption")
    options = TorchOptions(**{"batch_size": 8, **options})
    kind = transformers.AutoModelForImageTextToText
    module = kind.from_pretrained(model, dtype=options.torch_dtype, **options.hub).to(options.device)
    ready = transformers.AutoProcessor.from_pretrained(model, **options.hub)
    ids = ready.tokenizer(answer, add_special_tokens=False)["input_ids"]
    if len(ids) != 1:
        raise InputError("model argument", "answer", f"{answer!r}, {len(ids)} tokens", "a word of one token")
    _check_template(model, module, ready, question)
    start = _decoder_start(module)

    def score(images: list, texts: list[str]) -> Any:
        check_texts(texts)
        inputs = _inputs(ready, images, [question.replace("{}", text) for text in texts])
        inputs = inputs.to(options.device, module.dtype)
        if start:
            inputs["decoder_input_ids"] = torch.tensor([start] * len(texts), device=options.device)
            logits = module(**inputs).logits[:, -1]
        else:
            logits = module(**inputs).logits
            last = logits.shape[1] - 1 - _padding_after(inputs["attention_mask"]).to(logits.device)
            logits = logits[torch.arange(len(texts), device=logits.device), last]
        return torch.softmax(logits.float(), dim=-1)[:, ids[0]]

    def check_texts(texts: Sequence[str]) -> None:
        for text in texts:
            if token := next((token for token in control_tokens if token in text), None):
                wanted = f"a text without {token}, a token of the model"
                raise InputError(pairs.name or model, "caption", repr(text), wanted)

    control_tokens = _control_tokens(ready)
    settings = {"processor": ready, "question": question, "answer": answer}
    pairs = TorchPairs(module, options, settings, score, in_logs=True)
    pairs.check_texts = check_texts
    return pairs


def _inputs(ready: Any, images: list, questions: Sequence[str]) -> Any:
    """Return a processor's inputs for a question about each image, in the words of the chat template if it has one.

    The template and the tokenizer are one call: many templates begin with the token that begins a sequence, which a
    tokenizer that is given their text would add again.
    """
    if ready.chat_template is None:
        return ready(images=[[image] for image in images], text=list(questions), **PADDING)
    conversations = [
        [{"role": "user", "content": [{"type": "image", "image": image}, {"type": "text", "text": text}]}]
        for image, text in zip(images, questions, strict=True)
    ]
    apply = ready.apply_chat_template
    # Releases before 5.2 take the processor's arguments beside the template's.
    nested = "processor_kwargs" in inspect.signature(apply).parameters
    how = {"processor_kwargs": dict(PADDING)} if nested else PADDING
    return apply(conversations, add_generation_prompt=True, tokenize=True, return_dict=True, **how)


def _check_template(model: str, module: Any, ready: Any, question: str) -> None:
    """Raise InputError if no token of a question stands for the image, in a model that has such a token."""
    names = ("image_token_id", "image_token_index")
    token = next((number for name in names if (number := getattr(module.config, name, None)) is not None), None)
    if token is None:
        return
    error = None
    try:
        inputs = _inputs(ready, [Image.new("RGB", (224, 224))], [question])
        if bool((inputs["input_ids"] == token).any()):
            return
    except ValueError as raised:  # some processors count the image's tokens themselves
        if ready.chat_template is not None:
            raise
        error = raised
    found = "none" if ready.chat_template is None else "one without a place for images"
    text = getattr(ready, "image_token", None) or ready.tokenizer.convert_ids_to_tokens(token)
    wanted = f"a chat template that writes the token of an image, {text}, or a question that contains it"
    raise InputError(model, "chat template", found, wanted) from error


def _decoder_start(module: Any) -> list[int]:
    """Return the tokens that an encoder-decoder's answer begins after; none for a model without a decoder."""
    text_config = module.config.get_text_config(decoder=True)
    if not (module.config.is_encoder_decoder or text_config.is_encoder_decoder):
        return []
    settings = [module.generation_config, text_config, module.config]

    def first(name: str) -> int | None:
        return next((number for each in settings if (number := getattr(each, name, None)) is not None), None)

    return [number for number in (first("decoder_start_token_id"), first("forced_bos_token_id")) if number is not None]


def _padding_after(mask: Any) -> Any:
    """Return how much padding follows the last token of each row, whichever side is padded.

    Positions are counted from the end, because some models (GIT) put the image's logits before those of the text.
    """
    return mask.flip(1).argmax(dim=1)


def _control_tokens(ready: Any) -> list[str]:
    """Return the special tokens of a processor that a text must not contain, such as the image's."""
    tokens = {str(token) for token in ready.tokenizer.added_tokens_decoder.values() if token.special}
    tokens |= set(ready.tokenizer.all_special_tokens)
    tokens |= {str(getattr(ready, name)) for name in ("image_token", "video_token") if getattr(ready, name, None)}
    return sorted(token for token in tokens if _IS_MARKUP.search(token))
