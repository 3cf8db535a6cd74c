"""`demo:NAME`: the models of the package. `zoo:NAME`: published fine-tunes, and tags of open_clip (`ARCHITECTURE/TAG`).

shipped/zoo.toml             fine-tunes by family; each fact was read in one of the family's `sources`, or is missing
shipped/open_clip_tags.csv   one row per tag, written by tools/open_clip_coverage.py: the hub repository, and the
                             settings that open_clip uses; the first cell is open_clip's version

All files lie on the Hugging Face hub and are downloaded into its cache. A checkpoint from elsewhere is converted like
any other file or folder.
"""

import csv
import dataclasses
import difflib
import functools
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rococo_jax.errors import InputError, unknown_name
from rococo_jax.hub_files import hub_snapshot
from rococo_jax.progress import say
from rococo_jax.storage import hash_file

ASSETS = Path(__file__).parent / "shipped"
PREFIX = "demo:"
_DESCRIPTION = "model.json"
ZOO = "zoo:"
TAGS = ASSETS / "open_clip_tags.csv"
TAG_COLUMNS = ("hub", "activation", "image_size", "mean", "std", "interpolation", "resize_mode")
QUICK_GELU = "-quickgelu"
_PLAIN_NOTE = "trained with QuickGELU, which is used; open_clip itself runs this architecture with GELU and warns"


def shipped_models() -> dict[str, Path]:
    """Return the model directories of the package by name; `plain`, the one without a defence, is first."""
    folders = sorted((path.parent for path in ASSETS.glob(f"*/{_DESCRIPTION}")), key=lambda path: path.name != "plain")
    return {path.name: path for path in folders}


def demo_folder(source: str | os.PathLike) -> Path | None:
    """Return the model directory of `demo:NAME`; None for other sources, InputError for an unknown NAME.

    >>> demo_folder("demo:plain").name
    'plain'
    """
    if not str(source).startswith(PREFIX):
        return None
    models = shipped_models()
    name = str(source).removeprefix(PREFIX)
    if name not in models:
        raise unknown_name(source, "model", f"{PREFIX}{name}", [f"{PREFIX}{model}" for model in models])
    return models[name]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Published:
    """A published checkpoint on the hub. Facts that are not known are empty.

    Attributes:
        name: the text after `zoo:`.
        family: the method, as its authors call it.
        hub: the repository.
        file: the checkpoint inside the repository; empty if the whole repository is the checkpoint.
        revision: the commit of the repository, 40 digits; empty for tags of open_clip, which follow the main branch.
        sha256: hash of the file.
        architecture: open_clip's name of the towers.
        activation: used if the checkpoint does not record one. The configuration of a whole repository wins.
        image_size: image size of open_clip's architecture, which overrides the repository's; 0 for the repository's.
        preprocessing: `preprocess_cfg` of open_clip's tag, which overrides the repository's.
        paper: arXiv number.
        licence: licence of the weights or, if they have none, of the repository that links to them.
        note: a warning about the checkpoint.
        sources: pages where the facts were read.
    """

    name: str
    hub: str
    family: str = ""
    file: str = ""
    revision: str = ""
    sha256: str = ""
    architecture: str = ""
    activation: str = ""
    image_size: int = 0
    preprocessing: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    paper: str = ""
    licence: str = ""
    note: str = ""
    sources: tuple[str, ...] = ()

    @property
    def address(self) -> str:
        """The web page of the repository, or the address of the file."""
        kind = "resolve" if self.file else "tree"
        return f"https://huggingface.co/{self.hub}/{kind}/{self.revision or 'main'}/{self.file}".rstrip("/")

    @property
    def terms(self) -> str:
        """The licence, for the line that is printed before a download."""
        return f"licence: {self.licence or 'unknown'}; the published files have not been verified by this project"

    def resolve(self) -> str | Path:
        """Return the hub name or the path that `convert` reads; download the file if it is not in the hub's cache.

        Raises InputError: the hub cannot be reached, or the file differs from the published hash.
        """
        source = f"{ZOO}{self.name}"
        say("; ".join(filter(None, [f"{source}: {self.address}", self.terms, self.note])))
        content = self.file or "a repository"
        expected = (
            f"{content} that can be downloaded from {self.address}; or a copy of it, by its path instead of {source}"
        )
        files = [self.file or "*config.json"]
        folder = hub_snapshot(source, self.hub, files, "file", expected, self.revision or None)
        if not self.file:  # its converter downloads the other files that it needs
            return f"{self.hub}@{self.revision}" if self.revision else self.hub
        path = folder / self.file
        if self.sha256 and (actual := hash_file(path)) != self.sha256:
            raise InputError(path, "sha256", actual, f"{self.sha256}, that of {self.address}")
        return path


@functools.cache
def zoo() -> dict[str, Published]:
    """Return the published fine-tunes by name."""
    families = tomllib.loads((ASSETS / "zoo.toml").read_text(encoding="utf-8"))
    rows = {}
    for family, facts in families.items():
        for name, model_facts in facts.pop("models").items():
            row = {**facts, **model_facts}
            rows[name] = Published(name=name, family=family, sources=tuple(row.pop("sources")), **row)
    return rows


@functools.cache
def open_clip_tags() -> tuple[str, dict[str, Published]]:
    """Return the open_clip version of the table, and its tags by `ARCHITECTURE/TAG`, without aliases."""
    with TAGS.open(encoding="utf-8", newline="") as file:
        (version, *_), *rows = csv.reader(file)
    return version, {tag: _published_tag(tag, *cells) for tag, *cells in rows}


def _published_tag(
    name: str, hub: str, activation: str, image_size: str, mean: str, std: str, interpolation: str, resize_mode: str
) -> Published:
    statistics = {key: [*map(float, text.split())] for key, text in (("mean", mean), ("std", std))}
    return Published(
        name=name,
        hub=hub,
        architecture=name.partition("/")[0],
        activation=activation,
        image_size=int(image_size),
        preprocessing={**statistics, "interpolation": interpolation, "resize_mode": resize_mode},
        note=_PLAIN_NOTE if activation == "quick_gelu" else "",
    )


@functools.cache
def activations_by_repository() -> dict[str, str]:
    """Return the activation of open_clip's tags by the name of their repository, in lower case and without its owner.

    Tags whose activation is not known are left out.

    >>> activations_by_repository()["clip-vit-b-32-laion2b-s34b-b79k"]
    'gelu'
    """
    _, tags = open_clip_tags()
    return {row.hub.rpartition("/")[2].lower(): row.activation for row in tags.values() if row.activation}


def find_published(source: object) -> Published | None:
    """Return the row that `zoo:NAME` names; None for other sources, InputError for an unknown NAME.

    >>> find_published("zoo:fare2").hub, find_published("zoo:ViT-B-32-quickgelu/openai").hub
    ('chs20/fare2-clip', 'timm/vit_base_patch32_clip_224.openai')
    """
    if not str(source).startswith(ZOO):
        return None
    name = str(source).removeprefix(ZOO)
    version, tags = open_clip_tags()
    if (row := zoo().get(name) or tags.get(name)) is not None:
        return row
    # open_clip lists the tags that were trained with QuickGELU under the `-quickgelu` architectures, too.
    architecture, _, tag = name.partition("/")
    plain = tags.get(f"{architecture.removesuffix(QUICK_GELU)}/{tag}")
    if plain is not None and plain.activation == "quick_gelu":
        return dataclasses.replace(plain, name=name, architecture=architecture, note="")
    if not name:
        raise InputError(source, "model", "no name", f"one of {', '.join(zoo())}, or a tag of {version}")
    if "/" not in name:
        raise unknown_name(source, "model", name, zoo(), f"rococo inspect {ZOO}")
    if plain is not None:
        problem = f"{name!r}: {architecture} has QuickGELU, and {plain.name} was not trained with it"
        raise InputError(source, f"tag of {version}", problem, " or ".join(_nearest_tags(name)))
    expected = f"one of {len(tags)} (did you mean {' or '.join(_nearest_tags(name))}?)"
    raise InputError(source, f"tag of {version}", repr(name), expected)


def _nearest_tags(name: str) -> list[str]:
    """Return up to three names of open_clip's list, of the same tag or architecture if there are any."""
    _, tags = open_clip_tags()
    quick_gelu_names = [
        f"{row.architecture}{QUICK_GELU}/{tag.partition('/')[2]}"
        for tag, row in tags.items()
        if row.activation == "quick_gelu"
    ]
    known = [*tags, *quick_gelu_names]
    architecture, _, tag = name.partition("/")
    near = [each for each in known if tag and each.endswith(f"/{tag}")]
    near += [each for each in known if architecture and each.startswith(f"{architecture}/")]
    return difflib.get_close_matches(name, near or known, 3, cutoff=0) or known[:3]
