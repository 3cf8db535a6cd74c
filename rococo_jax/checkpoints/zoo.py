"""`zoo:NAME`: published fine-tunes by name, and the tags of open_clip as `zoo:ARCHITECTURE/TAG`.

shipped/zoo.toml             families of fine-tunes; each fact is read in one of the family's `sources`, or left out
shipped/open_clip_tags.csv   made by tools/open_clip_coverage.py: tag, hub name, activation; the head names the version

Files of the hub lie in its own cache, others in `cache_folder()/zoo/NAME`, where one may put a file by hand as well.
"""

import csv
import dataclasses
import functools
import tomllib
from pathlib import Path

from rococo_jax.checkpoints.hub import ASSETS
from rococo_jax.data.downloads import Download, fetch
from rococo_jax.errors import InputError, unknown_name
from rococo_jax.progress import progress, say
from rococo_jax.runtime import cache_folder
from rococo_jax.storage import hash_file, hold, hub_snapshot

ZOO = "zoo:"
_BY_HAND = "https://drive.google.com/"
TAGS = ASSETS / "open_clip_tags.csv"


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
    """The version of open_clip that the table was made from, and its tags, `ARCHITECTURE/TAG`."""
    with TAGS.open(encoding="utf-8", newline="") as file:
        (version, *_), *rows = csv.reader(file)
    return version, {tag: Published(name=tag, hub=hub, activation=activation) for tag, hub, activation in rows}


def find_published(source: object) -> Published | None:
    """The row that `zoo:NAME` names; None for other sources, InputError for an unknown NAME.

    >>> find_published("zoo:fare2").hub, find_published("zoo:ViT-B-32-quickgelu/openai").hub
    ('chs20/fare2-clip', 'timm/vit_base_patch32_clip_224.openai')
    """
    if not str(source).startswith(ZOO):
        return None
    name = str(source).removeprefix(ZOO)
    version, tags = open_clip_tags()
    # open_clip lists the tags of `-quickgelu` architectures under the plain ones, too, and their files are the same.
    row = zoo().get(name) or tags.get(name.replace("-quickgelu/", "/"))
    if row is not None:
        return row
    if not name:
        raise InputError(source, "model", "no name", f"one of {', '.join(zoo())}, or a tag of {version}")
    known = (f"tag of {version}", name, tags) if "/" in name else ("model", name, zoo(), f"rococo inspect {ZOO}")
    raise unknown_name(source, *known)
