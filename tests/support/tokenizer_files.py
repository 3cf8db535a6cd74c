"""Write tokenizers of invented words in the files in which each family was first published, and texts for them."""

import json
import random
from pathlib import Path

import sentencepiece
import tokenizers
from tokenizers import models, pre_tokenizers, processors, trainers
from transformers import Siglip2Tokenizer, XLMRobertaTokenizer

LETTERS = [chr(code) for code in range(33, 127)]
ODD_TEXTS = [
    "", "   ", " leading and trailing ", "two  spaces\tand a tab\nand a line", "!! bang", "'''", "A. B. C.",
    "don't, they'll, it's", "two dogs, 3 cats & 1,000 birds.", "ein schönes Café, naïve façade",
    "a\u0301 combining accent", "ﬁne ① Ⅳ ｆｕｌｌ　ｗｉｄｔｈ", "两只猫在沙发上", "猫 and dog", "😀 smile 👨‍👩‍👧",
    "İstanbul ΟΔΟΣ straße SS", "fish &amp; chips &lt;b&gt; &amp;amp;", "schÃ¶n mojibake",
    "\u00a0no-break\u3000ideographic\u200bzero", "▁ a word mark", "…ellipsis — dash", "a" * 700, "many words " * 150,
    "one two three four five. " * 60,
]  # fmt: skip


def sentences(count: int) -> list[str]:
    """Return captions of invented words, enough to train a tokenizer."""
    generator = random.Random(7)
    syllables = [first + vowel + last for first in "bcdfghklmnprstvw" for vowel in "aeiou" for last in ("", "n", "st")]
    words = ["".join(generator.choices(syllables, k=generator.randint(1, 3))) for _ in range(250)]
    captions = (generator.choices(["a", "the", "on", "with", *words], k=generator.randint(4, 14)) for _ in range(count))
    return [" ".join(caption).capitalize() + generator.choice([".", " .", "", "!"]) for caption in captions]


def write_clip(folder: Path, texts: list[str]) -> None:
    """A byte-level BPE with word ends."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trained = tokenizers.Tokenizer(models.BPE(end_of_word_suffix="</w>"))
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=700, initial_alphabet=alphabet, end_of_word_suffix="</w>", show_progress=False
    )
    trained.train_from_iterator((word.lower() for text in texts for word in text.split()), trainer)
    model = json.loads(trained.to_str())["model"]
    vocabulary = dict(model["vocab"])
    for token in (*(letter + "</w>" for letter in alphabet), "<|startoftext|>", "<|endoftext|>"):
        vocabulary.setdefault(token, len(vocabulary))
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(" ".join(pair) for pair in model["merges"]) + "\n")


def write_bert(folder: Path, texts: list[str]) -> None:
    """A WordPiece vocabulary, one token a line."""
    words = sorted({word.lower().strip(".") for text in texts for word in text.split()} - {""})
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = [*LETTERS, *("##" + letter for letter in LETTERS), "猫", "##s", "##ing", "é", "##é"]
    (folder / "vocab.txt").write_text("\n".join(dict.fromkeys([*special, *pieces, *words])) + "\n", encoding="utf-8")


def write_siglip(folder: Path, texts: list[str], rule: str) -> None:
    """A unigram sentencepiece model laid out as SigLIP's: pad 0 unused, `</s>` 1, `<unk>` 2, no start token."""
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([text.lower().strip(" .") for text in texts]), model_prefix=str(folder / "spiece"),
        vocab_size=240, model_type="unigram", normalization_rule_name=rule, pad_id=0, eos_id=1, unk_id=2, bos_id=-1,
        minloglevel=2,
    )  # fmt: skip


def write_gemma(folder: Path, **settings) -> int:
    """SigLIP 2's byte-pair vocabulary, as `transformers` saves it. Returns its size."""
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", *(f"<0x{byte:02X}>" for byte in range(256))]
    vocabulary = {token: number for number, token in enumerate([*special, "▁", *LETTERS, "▁d", "og", "▁dog"])}
    merges = [("▁", "d"), ("o", "g"), ("▁d", "og")]
    tokenizer = Siglip2Tokenizer(vocab=vocabulary, merges=merges, add_eos_token=True, padding_side="right", **settings)
    tokenizer.save_pretrained(folder)
    return len(vocabulary)


def write_xlm_roberta(folder: Path) -> int:
    """A unigram vocabulary of letters with the special tokens of XLM-R and XLM-V. Returns its size."""
    special = [(token, 0.0) for token in ("<s>", "<pad>", "</s>", "<unk>")]
    vocabulary = [*special, ("▁", -2.0), *((letter, -3.0) for letter in LETTERS), ("<mask>", 0.0)]
    XLMRobertaTokenizer(vocab=vocabulary).save_pretrained(folder)
    return len(vocabulary)


def write_unigram(folder: Path, pieces: str) -> None:
    """A `tokenizer.json` of single letters laid out as T5's, as open_clip's SigLIPs have it."""
    vocabulary = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0), *((piece, -3.0) for piece in pieces)]
    rust = tokenizers.Tokenizer(models.Unigram(vocabulary, unk_id=2))
    rust.pre_tokenizer = pre_tokenizers.Metaspace()
    rust.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    rust.save(str(folder / "tokenizer.json"))
