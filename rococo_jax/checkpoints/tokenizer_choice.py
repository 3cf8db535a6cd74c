"""The tokenizer of a checkpoint that has none inside: from a folder or hub name that is given, or the family's own."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rococo_jax.errors import InputError

if TYPE_CHECKING:
    from rococo_jax.data.tokenizers import Tokenizer

NONE = "none"
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "sentence_bert_config.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "spiece.model",
)


def choose_tokenizer(
    source: object, asked: str | None, folder: Path | None, default: str, config: Mapping[str, Any]
) -> tuple["Tokenizer | None", str]:
    """The tokenizer, and where it was read from.

    Args:
        source: the checkpoint, for the error line.
        asked: a folder, a hub name, `none`, or None for the default.
        folder: where the checkpoint may have tokenizer files of its own.
        default: the hub name that the family's checkpoints share.
        config: as a `config.json`: `model_type`, and `text_config` with `max_position_embeddings`.

    Raises:
        InputError: it cannot be read; where the default is not at hand, the line says how to give one.
    """
    if asked == NONE:
        return None, "none, as asked"
    if asked is not None:
        return _read(asked, config), asked
    if folder is not None and any((folder / name).is_file() for name in TOKENIZER_FILES):
        return _read(folder, config), "the checkpoint's folder"
    try:
        return _read(default, config), default
    except InputError as error:
        found = f"none in the checkpoint, and {default} cannot be read ({error.found})"
        wanted = "rococo convert --tokenizer with a folder or hub name that has its files (or --tokenizer none)"
        raise InputError(source, "tokenizer", found, wanted) from None


def _read(source: str | Path, config: Mapping[str, Any]) -> "Tokenizer":
    if config["model_type"] in ("roberta", "xlm-roberta"):
        return _read_roberta(Path(source), config)
    from rococo_jax.data.tokenizer_sources import read_huggingface_tokenizer

    return read_huggingface_tokenizer(source, config)


def _read_roberta(folder: Path, config: Mapping[str, Any]) -> "Tokenizer":
    """RoBERTa's special tokens are those of its `tokenizer.json`; nothing else is left open."""
    from rococo_jax.data.tokenizers import Tokenizer, TokenizerSpec, first_line, read_rust_tokenizer

    if not folder.is_dir():
        from huggingface_hub import snapshot_download

        try:
            folder = Path(snapshot_download(str(folder), allow_patterns=list(TOKENIZER_FILES)))
        except Exception as error:  # no network, no such name, no right to read it
            wanted = "a folder, or a name on the Hugging Face hub"
            raise InputError(folder, "tokenizer", first_line(error), wanted) from None
    rust = read_rust_tokenizer(folder / "tokenizer.json")
    ends = {token: rust.token_to_id(token) for token in ("</s>", "<pad>")}
    if None in ends.values():
        raise InputError(folder, "tokenizer", "no </s> or <pad>", "the special tokens of a RoBERTa")
    length = int(config["text_config"]["max_position_embeddings"])
    spec = TokenizerSpec("roberta", "none", length, pad_id=ends["<pad>"], eos_id=ends["</s>"])
    return Tokenizer(rust, spec)
