"""Options that name captioned images, the same for every command (`data.captioned_images` reads them)."""

import argparse


def add_captions_arguments(parser: argparse.ArgumentParser, *, required: bool = True, use: str = "") -> None:
    """`--captions` and `--columns`."""
    parser.add_argument(
        "--captions",
        required=required,
        default="",
        metavar="FILE",
        help=f"{use}Karpathy JSON, JSON lines, CSV, TSV, Parquet, a folder with metadata.* or with NAME.txt beside "
        "NAME.jpg, or hf:NAME?split=test",
    )
    parser.add_argument(
        "--columns", default="", metavar="A=B,C=D", help="columns of a table: image=photo,caption=title (default: "
        "those of usual names)"
    )  # fmt: skip


def add_pair_arguments(parser: argparse.ArgumentParser, *, use: str = "", may_miss: bool = True) -> None:
    """`--images` and `--captions` of commands that read both, and whether images may be missing."""
    parser.add_argument(
        "--images",
        required=True,
        metavar="DIR",
        help="folders of images, separated by commas; or what holds captions, too: tars, Parquet, hf:NAME, tfds:NAME",
    )
    add_captions_arguments(parser, required=False, use=f"{use}several by commas, by default in what --images names: ")
    parser.set_defaults(allow_missing_images=False)
    if may_miss:
        parser.add_argument("--allow-missing-images", action="store_true", help="leave out images that have no file")


def read_pairs(arguments: argparse.Namespace):
    """The captioned images that `add_pair_arguments` names."""
    from rococo_jax.data.caption_tables import parse_columns
    from rococo_jax.data.pairs import read_all_pairs

    columns, may_miss = parse_columns(arguments.columns), arguments.allow_missing_images
    return read_all_pairs(arguments.images, arguments.captions, allow_missing=may_miss, columns=columns)


def read_captions_of(arguments: argparse.Namespace):
    """The captions that `add_captions_arguments` names."""
    from rococo_jax.data.caption_tables import parse_columns
    from rococo_jax.data.captioned_images import read_captions

    return read_captions(arguments.captions, parse_columns(arguments.columns))
