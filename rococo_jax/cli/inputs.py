"""The options of captioned images, the same for every command."""

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any, Literal

from rococo_jax.options import Group, Option

if TYPE_CHECKING:  # imports NumPy
    from rococo_jax.data.captions import CaptionedImage
    from rococo_jax.data.pair_source import CaptionedImages, PairSource


@dataclasses.dataclass(frozen=True)
class CaptionOptions:
    """A captions file.

    Attributes:
        captions: Karpathy JSON, JSON lines, CSV, TSV, Parquet, a folder with metadata.* or with NAME.txt beside
            NAME.jpg, or hf:NAME?split=test
        columns: columns of a table: image=photo,caption=title (default: columns with usual names)
        split: splits to read: test, train+restval, or all
        text_files: NAME.txt beside NAME.jpg has a caption in each line, or is one caption of several lines (whole)
    """

    captions: Annotated[str, Option("FILE")]
    columns: Annotated[str, Option("A=B,C=D")] = ""
    split: Annotated[str, Option("A+B")] = ""
    text_files: Literal["lines", "whole"] = "lines"

    def read(self) -> "list[CaptionedImage]":
        """The captions. Raises InputError as `read_captions`."""
        from rococo_jax.data.caption_forms import read_captions
        from rococo_jax.data.caption_tables import parse_columns

        columns = parse_columns(self.columns)
        return list(read_captions(self.captions, columns=columns, split=self.split, text_files=self.text_files).items)


@dataclasses.dataclass(frozen=True)
class PairOptions:
    """Images and their captions.

    Attributes:
        images: folders of images, separated by commas; or sources with captions: tars, Parquet, hf:NAME, tfds:NAME
        captions: captions files, separated by commas (default: the captions in the sources of --images): Karpathy JSON,
            JSON lines, CSV, TSV, Parquet, a folder with metadata.* or with NAME.txt beside NAME.jpg, or
            hf:NAME?split=test
        columns: columns of a table: image=photo,caption=title (default: columns with usual names); in tars,
            caption=KEY is a key of NAME.json
        split: splits to read: test, train+restval, or all
        text_files: NAME.txt beside NAME.jpg has a caption in each line, or is one caption of several lines (whole)
        allow_missing_images: skip images that have no file
    """

    images: Annotated[str, Option("DIR")]
    captions: Annotated[str, Option("FILE")] = ""
    columns: Annotated[str, Option("A=B,C=D")] = ""
    split: Annotated[str, Option("A+B")] = ""
    text_files: Literal["lines", "whole"] = "lines"
    allow_missing_images: bool = False

    def read(self) -> "CaptionedImages":
        """Read the captioned images. Raises InputError as `read_captioned_images`."""
        from rococo_jax.data.captioned_images import read_captioned_images

        return read_captioned_images(self.images, self.captions, **self._options())

    def open(self) -> "PairSource":
        """Open the pairs. Raises InputError as `open_pairs`."""
        from rococo_jax.data.captioned_images import open_pairs

        return open_pairs(self.images, self.captions, **self._options())

    def _options(self) -> dict[str, Any]:
        """Return the attributes of `ReadOptions`."""
        from rococo_jax.data.caption_tables import parse_columns

        return {
            "columns": parse_columns(self.columns),
            "split": self.split,
            "text_files": self.text_files,
            "allow_missing": self.allow_missing_images,
        }


# The options of commands that need every image.
ALL_IMAGES = Group(only=("images", "captions", "columns", "split", "text_files"))
