"""`zoo:NAME`: published fine-tunes by name, and the tags of open_clip as `zoo:ARCHITECTURE/TAG`.

shipped/zoo.toml             families of fine-tunes; each fact is read in one of the family's `sources`, or left out
shipped/open_clip_tags.csv   made by tools/open_clip_coverage.py: tag, hub name, and what open_clip runs it with; the
                             head names the version

Files of the hub lie in its own cache, others in `cache_folder()/zoo/NAME`, where one may put a file by hand as well.
"""

import csv
import dataclasses
import difflib
import functools
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rococo_jax.checkpoints.hub import ASSETS
from rococo_jax.data.downloads import Download, fetch
from rococo_jax.errors import InputError, unknown_name
from rococo_jax.hub_files import hub_snapshot
from rococo_jax.progress import progress, say
from rococo_jax.runtime import cache_folder
from rococo_jax.storage import hash_file, hold

ZOO = "zoo:"
_BY_HAND = "https://drive.google.com/"
TAGS = ASSETS / "open_clip_tags.csv"
TAG_COLUMNS = ("hub", "activation", "image_size", "mean", "std", "interpolation", "resize_mode")
QUICK_GELU = "-quickgelu"
_PLAIN_NOTE = "trained with QuickGELU, which is used; open_clip itself runs this architecture with GELU and warns"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Published:
    """A published checkpoint. What is not known is empty.

    Attributes:
        name: what follows `zoo:`.
        family: the method's own name.
        hub: repository of the hub, whole or the one that has `file`.
        file: a file alone, of the hub or of `url`.
        url: where a file outside the hub is got; of Google Drive, by hand alone.
        revision: of the hub, 40 digits.
        sha256: of the file.
        architecture: open_clip's name of the towers.
        activation: where the checkpoint does not tell it. A whole repository's configuration goes before it.
        image_size: of open_clip's architecture, which goes before the repository's; 0 where the checkpoint tells.
        preprocessing: of open_clip's tag, likewise, as `preprocess_cfg` has it.
        paper: its number on arXiv.
        licence: of the weights or, where they have none, of the repository that links them.
        note: what the converter should not be trusted with.
        sources: pages where the facts were read.
        tried: whether the published file itself has been converted and compared.
    """

    name: str
    family: str = ""
    hub: str = ""
    file: str = ""
    url: str = ""
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
    tried: bool = False

    @property
    def address(self) -> str:
        """Where a person finds it."""
        if not self.hub:
            return self.url
        at = self.revision or "main"
        return f"https://huggingface.co/{self.hub}/{'resolve' if self.file else 'tree'}/{at}/{self.file}".rstrip("/")

    @property
    def terms(self) -> str:
        """The licence, and whether the file was tried."""
        return f"licence: {self.licence or 'not known here'}{'' if self.tried else '; not tried here'}"

    def get(self) -> str | Path:
        """What the converter reads: a hub name, or a file, which is got where it is not there.

        Raises InputError: it cannot be got, with where to put it by hand, or it has another hash than the published.
        """
        say("; ".join(filter(None, [f"{ZOO}{self.name}: {self.address}", self.terms, self.note])))
        place = cache_folder() / "zoo" / self.name / self.file
        if not place.exists():
            wanted = f"{self.file or 'its files'} from {self.address}, put at {place}"
            if self.hub:
                files = [self.file or "*config.json"]
                folder = hub_snapshot(f"{ZOO}{self.name}", self.hub, files, "file", wanted, self.revision or None)
                if not self.file:  # its reader gets the files that it needs
                    return f"{self.hub}@{self.revision}" if self.revision else self.hub
                place = folder / self.file
            elif self.url.startswith(_BY_HAND):
                raise InputError(f"{ZOO}{self.name}", "file", "nothing there, and no program may get it", wanted)
            else:
                self._download(place, wanted)
        if self.sha256 and (found := hash_file(place)) != self.sha256:
            raise InputError(place, "sha256", found, f"{self.sha256}, that of {self.address}")
        return place

    def _download(self, place: Path, wanted: str) -> None:
        download = Download(self.url, self.file, "model", self.sha256 or None)
        try:
            with hold(place, wait=True), progress(f"getting {self.file}", None, "bytes") as advance:
                fetch(download, place.parent, advance)
        except InputError as error:
            if error.field != "download":
                raise
            raise InputError(f"{ZOO}{self.name}", "file", error.found, wanted) from None


@functools.cache
def zoo() -> dict[str, Published]:
    """The fine-tunes by name."""
    families = tomllib.loads((ASSETS / "zoo.toml").read_text(encoding="utf-8"))
    rows = {}
    for family, facts in families.items():
        for name, own in facts.pop("models").items():
            row = {**facts, **own}
            rows[name] = Published(name=name, family=family, sources=tuple(row.pop("sources")), **row)
    return rows


@functools.cache
def open_clip_tags() -> tuple[str, dict[str, Published]]:
    """The version of open_clip that the table was made from, and its tags, `ARCHITECTURE/TAG`, without aliases."""
    with TAGS.open(encoding="utf-8", newline="") as file:
        (version, *_), *rows = csv.reader(file)
    return version, {tag: _published_tag(tag, *cells) for tag, *cells in rows}


def _published_tag(
    name: str, hub: str, activation: str, image_size: str, mean: str, std: str, interpolation: str, resize_mode: str
) -> Published:
    colours = {key: [*map(float, text.split())] for key, text in (("mean", mean), ("std", std))}
    return Published(
        name=name,
        hub=hub,
        architecture=name.partition("/")[0],
        activation=activation,
        image_size=int(image_size),
        preprocessing={**colours, "interpolation": interpolation, "resize_mode": resize_mode},
        note=_PLAIN_NOTE if activation == "quick_gelu" else "",
    )


def find_published(source: object) -> Published | None:
    """The row that `zoo:NAME` names; None for other sources, InputError for an unknown NAME.

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
        found = f"{name!r}: {architecture} has QuickGELU, and {plain.name} was not trained with it"
        raise InputError(source, f"tag of {version}", found, " or ".join(_nearest_tags(name)))
    wanted = f"one of {len(tags)} (did you mean {' or '.join(_nearest_tags(name))}?)"
    raise InputError(source, f"tag of {version}", repr(name), wanted)


def _nearest_tags(name: str) -> list[str]:
    """Return up to three names of open_clip's list: of the same tag or architecture if there are some."""
    _, tags = open_clip_tags()
    quick = [
        f"{row.architecture}{QUICK_GELU}/{tag.partition('/')[2]}"
        for tag, row in tags.items()
        if row.activation == "quick_gelu"
    ]
    known = [*tags, *quick]
    architecture, _, tag = name.partition("/")
    near = [each for each in known if tag and each.endswith(f"/{tag}")]
    near = [*near, *(each for each in known if architecture and each.startswith(f"{architecture}/"))]
    return difflib.get_close_matches(name, near or known, 3, cutoff=0) or known[:3]
