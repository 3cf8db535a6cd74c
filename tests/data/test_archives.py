"""Damaged and hostile archives are refused in one line; archives with links are unpacked exactly as by `tar`."""

import bz2
import gzip
import io
import lzma
import shutil
import stat
import subprocess
import tarfile
import zipfile

import numpy as np
import pytest

from rococo_jax.data import archives
from rococo_jax.data.downloads import DOWNLOADS, Download, fetch
from rococo_jax.errors import DiskFull
from rococo_jax.safe_paths import stays_inside
from tests.support.file_server import serving
from tests.support.peak_memory import peak_memory_of
from tests.support.refusals import refused

CONTENT = np.random.default_rng(0).bytes(200_000)
PACKED = {"tar": lambda data: data, "tar.gz": gzip.compress, "tar.xz": lzma.compress, "tar.bz2": bz2.compress}


def tar_of(*members, format=tarfile.PAX_FORMAT):
    """A tar of (name, content); a content that is a TarInfo's type and target is a link."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=format) as tar:
        for name, content in members:
            member = tarfile.TarInfo(name)
            if isinstance(content, tuple):
                member.type, member.linkname = content
                tar.addfile(member)
            else:
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return made.getvalue()


def zip_of(*members, compression=zipfile.ZIP_DEFLATED):
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", compression) as file:
        for name, content in members:
            about = zipfile.ZipInfo(name)
            about.compress_type = compression
            if isinstance(content, tuple):
                about.external_attr = (stat.S_IFLNK | 0o777) << 16
                content = content[1].encode()
            file.writestr(about, content)
    return made.getvalue()


@pytest.fixture
def get(tmp_path):
    """Fetch an archive of these bytes, unpack its folder `val`; return the folder."""
    data = tmp_path / "data"

    def get(content):
        with serving({"/a": content}) as server:
            url = f"{server.url}/a"
            try:
                fetch(Download(url, "set/val", "images", unpack="val"), data, wait=0.001)
            finally:
                assert not list(data.rglob("*.unpacked*"))
        return data / "set/val"

    get.data = data
    return get


def refuse(get, content, message):
    """The refusal is one line, nothing is unpacked, and the next call downloads the archive again."""
    refused(f"archive: found .*({message}).*; wanted a complete ZIP or tar archive", get, content)
    assert not (get.data / "set/val").exists()
    assert [path for path in get.data.rglob("*") if path.is_file()] == []
    assert (get(tar_of(("val/x", b"good"))) / "x").read_bytes() == b"good"


def contents(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("kind", PACKED)
def test_an_undamaged_tar_is_unpacked_as_by_tar(kind, get, tmp_path):
    members = [("val/a.jpg", CONTENT), ("val/deep/" + "long" * 50 + ".jpg", b"b"), ("other/c", b"c")]
    packed = PACKED[kind](tar_of(*members))
    folder = get(packed)
    (tmp_path / "theirs").mkdir()
    (tmp_path / "a").write_bytes(packed)
    subprocess.run(["tar", "xf", tmp_path / "a", "-C", tmp_path / "theirs"], check=True)
    assert contents(folder) == contents(tmp_path / "theirs/val")


@pytest.mark.parametrize("place", [0.3, 0.5, 0.999])
@pytest.mark.parametrize("kind", ["tar.gz", "tar.xz", "tar.bz2", "zip"])
def test_one_changed_bit_of_a_compressed_archive_is_refused(kind, place, get):
    members = [("val/x", CONTENT), ("val/y", CONTENT[::-1])]
    packed = bytearray(zip_of(*members) if kind == "zip" else PACKED[kind](tar_of(*members)))
    packed[int(len(packed) * place)] ^= 0x10
    refuse(get, bytes(packed), "")


def test_the_checksum_at_the_end_of_an_archive_is_compared(get):
    packed = bytearray(gzip.compress(tar_of(("val/x", CONTENT))))
    packed[-8] ^= 1  # of the CRC
    refuse(get, bytes(packed), "CRC")


def test_a_stream_without_its_end_is_refused(get):
    packed = lzma.compress(tar_of(("val/x", CONTENT)))
    refuse(get, packed[:-12], "end-of-stream|ended before")


@pytest.mark.parametrize("kind", ["tar", "tar.gz"])
@pytest.mark.parametrize("cut", ["amid a file", "between files", "in the header"])
def test_a_truncated_tar_is_refused_wherever_it_ends(cut, kind, get):
    whole = tar_of(("val/x", CONTENT), ("val/y", CONTENT), format=tarfile.USTAR_FORMAT)
    second = 512 + -(-len(CONTENT) // 512) * 512
    length = {"amid a file": second + 512 + 1000, "between files": second, "in the header": second + 100}[cut]
    refuse(get, PACKED[kind](whole[:length]), "unexpected end of data|cut short or damaged")


def test_a_damaged_header_between_files_does_not_end_a_tar(get):
    whole = bytearray(tar_of(("val/x", b"one"), ("val/y", b"two"), format=tarfile.USTAR_FORMAT))
    whole[1024 + 3] ^= 1  # of the second name, which the header's sum covers
    refuse(get, bytes(whole), "cut short or damaged")


def test_an_encrypted_zip_and_unknown_compressions_are_refused(get):
    packed = bytearray(zip_of(("val/x", b"abc")))
    encrypted = bytearray(packed)
    encrypted[6] |= 1
    encrypted[packed.find(b"PK\x01\x02") + 8] |= 1
    refuse(get, bytes(encrypted), "encrypted")


def test_an_unknown_compression_is_refused(get):
    packed = bytearray(zip_of(("val/x", b"abc")))
    for place in (8, packed.find(b"PK\x01\x02") + 10):
        packed[place] = 9  # deflate64
    refuse(get, bytes(packed), "compression")


HOSTILE = {
    "..": "val/../../../x", "absolute": "/tmp/x", "backslash": "val\\..\\x", "drive": "C:/x", "only ..": "..",
}  # fmt: skip


@pytest.mark.parametrize("kind", ["zip", "tar"])
@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_that_leads_out_of_the_folder_is_refused(name, kind, get):
    make = zip_of if kind == "zip" else tar_of
    refuse(get, make(("val/ok", b"ok"), (HOSTILE[name], b"bad")), "leads out of the archive")


@pytest.mark.parametrize("target", ["/etc/passwd", "../../../etc/passwd", "../../set"])
@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_a_link_that_leads_out_of_the_folder_is_refused(kind, target, get):
    make = zip_of if kind == "zip" else tar_of
    refuse(get, make(("val/ok", b"ok"), ("val/link", (tarfile.SYMTYPE, target))), "link|outside")


@pytest.mark.parametrize("target", ["../../../etc/passwd", "/etc/passwd", "nowhere", "val/link"])
def test_a_hard_link_out_of_the_archive_or_to_nothing_is_refused(target, get):
    refuse(get, tar_of(("val/ok", b"ok"), ("val/link", (tarfile.LNKTYPE, target))), "")


def test_files_and_folders_of_one_name_are_refused(get):
    refuse(get, tar_of(("val/a", b"a"), ("val/a/b", b"b")), "val/a")


def test_a_device_is_refused(get):
    refuse(get, tar_of(("val/ok", b"ok"), ("val/device", (tarfile.CHRTYPE, ""))), "special file")


@pytest.mark.parametrize("target", ["nowhere", "../val", "link"])
def test_a_link_to_nothing_or_to_itself_is_refused(target, get):
    refuse(get, tar_of(("val/ok", b"ok"), ("val/link", (tarfile.SYMTYPE, target))), "link")


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_links_are_replaced_by_their_targets(kind, get):
    """The folder itself, folders and files in it, whether they lie inside the folder that is kept or beside it."""
    make = zip_of if kind == "zip" else tar_of
    symbolic = tarfile.SYMTYPE
    members = [
        ("real/a", b"a"), ("real/deep/b", b"b"), ("other/c", b"c"),
        ("real/inside", (symbolic, "a")), ("real/file", (symbolic, "../other/c")),
        ("real/folder", (symbolic, "../other")), ("val", (symbolic, "real")),
    ]  # fmt: skip
    folder = get(make(*members))
    expected = {"a": b"a", "deep/b": b"b", "inside": b"a", "file": b"c", "folder/c": b"c"}
    assert contents(folder) == expected and not folder.is_symlink()
    assert not any(path.is_symlink() for path in folder.rglob("*"))


def test_a_broken_link_outside_of_the_folder_does_not_matter(get):
    folder = get(tar_of(("val/a", b"a"), ("docs/latest", (tarfile.SYMTYPE, "gone"))))
    assert contents(folder) == {"a": b"a"}


def test_hard_links_keep_their_contents(get):
    folder = get(tar_of(("other/a", b"a"), ("val/b", (tarfile.LNKTYPE, "other/a"))))
    assert contents(folder) == {"b": b"a"}


@pytest.mark.parametrize("kind", ["zip", "tar", "tar.gz"])
def test_an_archive_is_not_unpacked_if_the_disk_has_no_room_for_it(kind, get, monkeypatch):
    """The archive stays for a call with more room; `free` is what the disk has."""
    content = bytes(30_000_000)
    packed = zip_of(("val/x", content)) if kind == "zip" else PACKED[kind](tar_of(("val/x", content)))
    free = 20_000_000 if kind == "tar.gz" or kind == "zip" else 29_000_000
    usage = shutil.disk_usage("/")._replace(free=free)
    written = []
    monkeypatch.setattr(archives.tarfile.TarFile, "extractall", lambda *_, **__: written.append(1))
    monkeypatch.setattr(archives.zipfile.ZipFile, "extract", lambda *_, **__: written.append(1))
    monkeypatch.setattr("rococo_jax.data.downloads.check_free_space", lambda *_: None)
    monkeypatch.setattr("rococo_jax.storage.shutil.disk_usage", lambda _: usage)
    with pytest.raises(DiskFull, match="30,000,000 bytes"):
        get(packed)
    assert written == [] and len(list((get.data / DOWNLOADS).iterdir())) == 1


REFUSED = """
import sys
from pathlib import Path
from rococo_jax.data.archives import DamagedArchive, unpack
try:
    unpack(Path(sys.argv[1]), Path(sys.argv[2]))
except DamagedArchive as error:
    assert "header" in str(error), error
else:
    raise AssertionError
"""


def test_a_header_of_many_bytes_takes_bounded_memory(tmp_path):
    """A PAX record of 400 MB, which compresses to 0.4 MB."""
    header = tarfile.TarInfo("val/x")
    header.type, header.size = tarfile.XHDTYPE, 400_000_000
    with gzip.open(tmp_path / "bomb.tar.gz", "wb", 9) as file:
        file.write(header.tobuf(tarfile.USTAR_FORMAT))
        for _ in range(400):
            file.write(bytes(1_000_000))
    assert peak_memory_of(REFUSED, tmp_path / "bomb.tar.gz", tmp_path / "out") < 200e6


@pytest.mark.parametrize(
    "name", ["", ".", "..", "/a", "a/../..", "a/../../b", "..\\a", "a\\b", "C:a", "c:\\a", "a\0b", "link/a", "link"]
)
def test_names_that_lead_out_of_a_folder_are_recognised(name, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in/link").symlink_to(tmp_path)
    assert not stays_inside(tmp_path / "in", name)
    assert all(stays_inside(tmp_path / "in", each) for each in ("a", "a/b.c", "a..b/c", "...", "12:30.jpg", "a/./b"))
