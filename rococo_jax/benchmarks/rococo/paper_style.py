"""The look of the published RoCOCO captions: words, punctuation and clitics apart, as the Penn Treebank writes them.

"A man's dog, on grass." -> "a man 's dog , on grass"       (same_concept, diff_concept, rand_voca)
                         -> "A man 's dog , on grass ."     (danger)
"""

import regex

_CLITIC = regex.compile(r"(?<=\w)(n['’]t|['’](?:s|re|ve|ll|d|m))(?!\w)", regex.IGNORECASE)
_PUNCTUATION = regex.compile(r"(?<!\d)[,:](?!\d)|(?<=\d)[,:](?!\d)|[;?!()\[\]{}\"“”]|\.(?=\s*$)")
_FINAL_STOP = regex.compile(r"[\s.]+$")


def in_paper_style(caption: str, keep_case: bool) -> str:
    """A caption as the published files write altered ones.

    Args:
        caption: the altered caption.
        keep_case: as Danger has it: case kept, the final full stop kept and set apart. Else lower case without it.
    """
    text = _CLITIC.sub(r" \1", caption)
    text = " ".join(_PUNCTUATION.sub(r" \g<0> ", text).split())
    return text if keep_case else _FINAL_STOP.sub("", text.lower())
