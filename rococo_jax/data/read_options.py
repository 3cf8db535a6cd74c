"""The options with which captions and images are read, the same for every form and source."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

# The columns of a table by role: `image`, `caption`, `split`, and `name` of images inside the table.
Columns = Mapping[str, str]
# A text beside an image has a caption in each line, or is one caption of several lines.
TextFiles = Literal["lines", "whole"]


@dataclasses.dataclass(frozen=True)
class ReadOptions:
    """The options with which captions and images are read.

    Attributes:
        columns: columns of a table by role; by default those with usual names. For tars, `caption` is a key of
            NAME.json.
        split: the splits to read, separated by `+` or commas, or `all`.
        text_files: whether NAME.txt beside NAME.jpg has a caption in each line or is one caption (`whole`).
        allow_missing: skip images without a file, and samples of tars without an image or a caption, as long as others
            remain.
        image_folders: folders of images; absolute image names in a captions file may lie below them.
    """

    columns: Columns | None = None
    split: str = ""
    text_files: TextFiles = "lines"
    allow_missing: bool = False
    image_folders: tuple[Path, ...] = ()

    @property
    def requested_columns(self) -> Columns:
        """The columns that the user names; empty by default."""
        return self.columns or {}
