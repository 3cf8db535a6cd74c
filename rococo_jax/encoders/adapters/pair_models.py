"""Pair scorers that run in torch.

These are matching heads of `transformers`, rerankers of sentence-transformers, and models that answer a question about
an image (VQAScore, arXiv 2404.01291).
"""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from PIL import Image

from rococo_jax.encoders.adapters.torch_module import TorchModule, TorchOptions, with_prompt_support
from rococo_jax.errors import InputError

# Architectures of transformers with a matching head: additional arguments of the call, the field of the output with the
# logits, and the column of a match.
MATCHING_HEADS = {
    "BlipForImageTextRetrieval": ({"use_itm_head": True}, "itm_score", 1),
    "Blip2ForImageTextRetrieval": ({"use_image_text_matching_head": True}, "logits_per_image", 1),
    "BridgeTowerForImageAndTextRetrieval": ({}, "logits", 1),
    "ViltForImageAndTextRetrieval": ({}, "logits", 0),
}
# Padding of texts to one length. With padding on the left, positions would depend on the other texts of the batch. The
# `max_length` in a saved tokenizer comes from an earlier call; it is not the context length of the model.
PADDING = {"padding": True, "padding_side": "right", "max_length": None, "return_tensors": "pt"}
# Largest difference between the scores of a pair alone and in a batch that is rounding, in log-odds or log-probability:
# in float32, and in units of the dtype's precision.
_TOLERANCE, _TOLERANCE_UNITS = 1e-2, 100
# Special tokens that nobody writes by chance, unlike a pad token "!".
_IS_MARKUP = re.compile(r"[<>\[\]|]")
# From the paper and code of VQAScore.
QUESTION, ANSWER = 'Does this figure show "{}"? Please answer yes or no.', "Yes"


def torch_pair_scorer(
    module: Any,
    options: TorchOptions,
    settings: Mapping[str, Any],
    score: Callable[[list, list[str]], Any],
    in_logs: bool = False,
) -> TorchModule:
    """Return a module that scores pairs; it is an error if the score of a pair depends on its batch.

    Args:
        module, options, settings: see `TorchModule`.
        score: function of a list of images and a list of texts that returns the score of each pair.
        in_logs: whether scores are probabilities.
    """
    import torch

    scorer = TorchModule(module, options, settings, score_pairs=score)
    scorer.in_logs = in_logs
    scorer.score_tolerance = max(_TOLERANCE, _TOLERANCE_UNITS * torch.finfo(options.torch_dtype).eps)
    return scorer


def load_matching_head(model: str, architecture: str, processor: str | None, options: TorchOptions) -> TorchModule:
    """Load a model of `transformers` with a matching head; its logit of a match is the score."""
    import transformers

    arguments, field, column = MATCHING_HEADS[architecture]
    module = getattr(transformers, architecture).from_pretrained(model, dtype=options.torch_dtype, **options.hub)
    module = module.to(options.device)
    processor_object = transformers.AutoProcessor.from_pretrained(processor or model, **options.hub)

    def score(images: list, texts: list[str]) -> Any:
        inputs = processor_object(images=images, text=texts, truncation=True, **PADDING)
        logits = getattr(module(**inputs.to(options.device, module.dtype), **arguments), field)
        return logits[:, column]

    settings = {"head": architecture, "processor": processor_object}
    return torch_pair_scorer(module, options, settings, score)


def load_cross_encoder(model: str, query: str = "text", **options: Any) -> TorchModule:
    """Load a `CrossEncoder` of sentence-transformers that reads images; the `query` of a pair is its text or its image.

    The score is the output of `predict`, but log-odds where `predict` applies a sigmoid. In float32 a sigmoid is 1 for
    all log-odds above 17, so that pairs with different scores would tie.

    Raises InputError if `query` is neither.
    """
    import sentence_transformers
    import torch

    if query not in ("text", "image"):
        raise InputError("model argument", "query", repr(query), "text or image")
    options = TorchOptions(**options)
    kwargs = {"device": options.device, "model_kwargs": {"dtype": options.torch_dtype}, **options.hub}
    module = sentence_transformers.CrossEncoder(model, **kwargs)
    saturates = isinstance(module.activation_fn, torch.nn.Sigmoid | torch.nn.Tanh)
    activation = torch.nn.Identity() if saturates else module.activation_fn
    settings = {"query": query, "activation": activation, "prompts": module.prompts}

    def load(prompt: Mapping[str, str]) -> TorchModule:
        def score(images: list, texts: list[str]) -> Any:
            pairs = zip(texts, images, strict=True) if query == "text" else zip(images, texts, strict=True)
            call = {"batch_size": len(texts), "activation_fn": activation, "show_progress_bar": False}
            return module.predict(list(pairs), **call, **prompt)

        return torch_pair_scorer(module, options, settings | {"prompt": dict(prompt)}, score)

    return with_prompt_support(load, module.prompts)


def load_vqascore(model: str, question: str = QUESTION, answer: str = ANSWER, **options: Any) -> TorchModule:
    """Load a generating model of `transformers`; the score is the probability that its next token is `answer`.

    Raises InputError if `question` has no {} for the text, `answer` is not a single token, or neither the model's chat
    template nor the question contains the image.
    """
    import torch
    import transformers

    if "{}" not in question:
        raise InputError("model argument", "question", repr(question), "a text with {} in the place of the caption")
    options = TorchOptions(**{"batch_size": 8, **options})
    kind = transformers.AutoModelForImageTextToText
    module = kind.from_pretrained(model, dtype=options.torch_dtype, **options.hub).to(options.device)
    processor = transformers.AutoProcessor.from_pretrained(model, **options.hub)
    ids = processor.tokenizer(answer, add_special_tokens=False)["input_ids"]
    if len(ids) != 1:
        raise InputError("model argument", "answer", f"{answer!r}, {len(ids)} tokens", "a word of one token")
    _check_template(model, module, processor, question)
    start = _decoder_start(module)

    def score(images: list, texts: list[str]) -> Any:
        check_texts(texts)
        inputs = _inputs(processor, images, [question.replace("{}", text) for text in texts])
        inputs = inputs.to(options.device, module.dtype)
        if start:
            inputs["decoder_input_ids"] = torch.tensor([start] * len(texts), device=options.device)
            logits = module(**inputs).logits[:, -1]
        else:
            logits = module(**inputs).logits
            last = logits.shape[1] - 1 - _count_padding_after(inputs["attention_mask"]).to(logits.device)
            logits = logits[torch.arange(len(texts), device=logits.device), last]
        return torch.softmax(logits.float(), dim=-1)[:, ids[0]]

    def check_texts(texts: Sequence[str]) -> None:
        for text in texts:
            if token := next((token for token in control_tokens if token in text), None):
                expected = f"a text without {token}, a token of the model"
                raise InputError(pairs.name or model, "caption", repr(text), expected)

    control_tokens = _control_tokens(processor)
    settings = {"processor": processor, "question": question, "answer": answer}
    pairs = torch_pair_scorer(module, options, settings, score, in_logs=True)
    pairs.check_texts = check_texts
    return pairs


def _inputs(processor: Any, images: list, questions: Sequence[str]) -> Any:
    """Return a processor's inputs for a question about each image, formatted by the chat template if it has one.

    Template and tokenizer are applied in one call: many templates begin with the start token, and a tokenizer that
    reads their text would add it again.
    """
    if processor.chat_template is None:
        return processor(images=[[image] for image in images], text=list(questions), **PADDING)
    conversations = [
        [{"role": "user", "content": [{"type": "image", "image": image}, {"type": "text", "text": text}]}]
        for image, text in zip(images, questions, strict=True)
    ]
    apply = processor.apply_chat_template
    # Releases before 5.2 take the arguments of the processor as arguments of the template.
    is_nested = "processor_kwargs" in inspect.signature(apply).parameters
    kwargs = {"processor_kwargs": dict(PADDING)} if is_nested else PADDING
    return apply(conversations, add_generation_prompt=True, tokenize=True, return_dict=True, **kwargs)


def _check_template(model: str, module: Any, processor: Any, question: str) -> None:
    """Raise InputError if the model has an image token and the tokens of a question do not contain it."""
    names = ("image_token_id", "image_token_index")
    token = next((number for name in names if (number := getattr(module.config, name, None)) is not None), None)
    if token is None:
        return
    error = None
    try:
        inputs = _inputs(processor, [Image.new("RGB", (224, 224))], [question])
        if bool((inputs["input_ids"] == token).any()):
            return
    except ValueError as raised:  # some processors check the number of image tokens themselves
        if processor.chat_template is not None:
            raise
        error = raised
    problem = "none" if processor.chat_template is None else "one without a place for images"
    text = getattr(processor, "image_token", None) or processor.tokenizer.convert_ids_to_tokens(token)
    expected = f"a chat template that writes the image token {text}, or a question that contains it"
    raise InputError(model, "chat template", problem, expected) from error


def _decoder_start(module: Any) -> list[int]:
    """Return the start tokens of an encoder-decoder's answer; none for a model without a decoder."""
    text_config = module.config.get_text_config(decoder=True)
    if not (module.config.is_encoder_decoder or text_config.is_encoder_decoder):
        return []
    settings = [module.generation_config, text_config, module.config]

    def first_setting(name: str) -> int | None:
        values = [getattr(each, name, None) for each in settings]
        return next((value for value in values if value is not None), None)

    tokens = [first_setting("decoder_start_token_id"), first_setting("forced_bos_token_id")]
    return [token for token in tokens if token is not None]


def _count_padding_after(mask: Any) -> Any:
    """Return the number of padding tokens after the last token of each row, on whichever side the padding is.

    Positions are counted from the end, because some models (GIT) put the image's logits before those of the text.
    """
    return mask.flip(1).argmax(dim=1)


def _control_tokens(processor: Any) -> list[str]:
    """Return the special tokens of a processor that a text must not contain, such as the image's."""
    tokens = {str(token) for token in processor.tokenizer.added_tokens_decoder.values() if token.special}
    tokens |= set(processor.tokenizer.all_special_tokens)
    tokens |= {
        str(getattr(processor, name)) for name in ("image_token", "video_token") if getattr(processor, name, None)
    }
    return sorted(token for token in tokens if _IS_MARKUP.search(token))
