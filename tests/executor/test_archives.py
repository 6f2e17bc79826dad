# SPDX-License-Identifier: Apache-2.0
"""Archives that mean harm: nothing outside their folder changes, and the error says why."""

from __future__ import annotations

import gzip
import io
import os
import tarfile

import pytest

from pytriton.base.errors import InternalError
from pytriton.runtime.executor import environment
from pytriton.runtime.executor.environment import ArchiveStream
from tests.executor.tar_files import file_entry, folder_entry, link_entry, pack

HARD = tarfile.LNKTYPE
OUT = "leads out of the environment"
TWICE = "occurs twice"


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "a" / "unpacked"
    made.mkdir(parents=True)
    (tmp_path / "a" / "victim").write_text("as it was")
    return made


def unpack(folder, entries, kind="w:gz"):
    path = folder.parent.parent / "env.tar"
    pack(path, entries, kind)
    environment.unpack(path, folder)


def refused(folder, entries, text, kind="w:gz"):
    """See that an archive is refused and that nothing beside its folder has changed."""
    with pytest.raises(InternalError, match=text):
        unpack(folder, entries, kind)
    assert sorted(each.name for each in folder.parent.iterdir()) == ["unpacked", "victim"]
    assert (folder.parent / "victim").read_text() == "as it was"


HARMFUL = {
    "absolute name": ([file_entry("/etc/x")], "Path is absolute"),
    "absolute folder": ([folder_entry("/tmp")], "Path is absolute"),
    "dots": ([file_entry("bin/../../victim", b"!")], r"Path contains '\.\.'"),
    "dots of a folder": ([folder_entry("../new")], r"Path contains '\.\.'"),
    "link out": ([link_entry("lib", "/etc")], OUT),
    "relative link out": ([link_entry("a/b", "../../victim")], OUT),
    "link out and in again": ([link_entry("a", "../unpacked/b")], OUT),
    "hard link out": ([link_entry("a", "../victim", HARD)], r"Path contains '\.\.'"),
    "absolute hard link": ([link_entry("a", "/etc/passwd", HARD)], "Path is absolute"),
    "hard link to what comes later": (
        [link_entry("a", "b", HARD), file_entry("b")],
        "'a' is a hard link to 'b', which is no earlier file",
    ),
    "hard link to a folder": ([folder_entry("b"), link_entry("a", "b", HARD)], "no earlier file"),
    "hard link through a link": (
        [link_entry("a", ".."), link_entry("b", "a/victim", HARD)],
        "no earlier file",
    ),
    "hard link to a link out": ([link_entry("a", "../x"), link_entry("b", "a", HARD)], OUT),
    "file through a link": ([link_entry("a", ".."), file_entry("a/victim", b"!")], "not a folder"),
    "file through a link, link last": (
        [file_entry("a/victim", b"!"), link_entry("a", "..")],
        TWICE,
    ),
    "folder through a link": ([link_entry("a", ".."), folder_entry("a/new")], "not a folder"),
    "file through a file": ([file_entry("a"), file_entry("a/b")], "not a folder"),
    "file over a link": ([link_entry("a", "../victim"), file_entry("a", b"!")], TWICE),
    "folder over a link": ([link_entry("a", ".."), folder_entry("a")], TWICE),
    "link over a folder": ([folder_entry("a"), link_entry("a", "..")], TWICE),
    "link re-aimed by a later one": (
        [
            folder_entry("d"),
            link_entry("x", "d/../victim"),
            link_entry("d", ".."),
            file_entry("x", b"!"),
        ],
        TWICE,
    ),
    "chain of links that leads out": (
        [link_entry("x", "y/.."), link_entry("y", "."), file_entry("z")],
        OUT,
    ),
    "link out by a link beside it": ([link_entry("a/b", "c/../.."), link_entry("a/c", "..")], OUT),
    "two files of one name": ([file_entry("a", b"1"), file_entry("./a", b"2")], TWICE),
    "device": ([file_entry("null", type=tarfile.CHRTYPE)], "neither a file nor a folder"),
    "block device": ([file_entry("disk", type=tarfile.BLKTYPE)], "neither a file nor a folder"),
    "pipe": ([file_entry("pipe", type=tarfile.FIFOTYPE)], "neither a file nor a folder"),
    "deep folder": ([file_entry("a/" * 100 + "b")], "Path has more than 100 parts: 'a/a/"),
    "long name": ([file_entry("a" * 5000)], "Path is longer than 4096 bytes: 'aaa"),
    "long link": ([link_entry("a", "b" * 5000)], "Path is longer than 4096 bytes: 'bbb"),
    "long part": ([file_entry("a" * 300)], "File name too long"),
    "name of a zero byte": ([file_entry("a", pax_headers={"path": "a\0b"})], "has a zero byte"),
}


@pytest.mark.parametrize("kind", ["w", "w:gz"])
@pytest.mark.parametrize("what", HARMFUL)
def test_harmful_archive_is_refused_and_writes_nothing_outside(folder, what, kind):
    entries, text = HARMFUL[what]

    refused(folder, entries, text, kind)


def test_links_inside_are_kept_as_they_are(folder):
    unpack(
        folder,
        [
            link_entry("lib64", "lib"),
            folder_entry("./"),
            folder_entry("lib/"),
            folder_entry("lib"),  # again, as some programs write it
            file_entry("./lib/a//b.so.1", b"code", mtime=1_000_000),
            link_entry("lib/b.so", "./a/../a/b.so.1"),
            link_entry("second", "lib/a/b.so.1", HARD),
            link_entry("third", "lib64", HARD),
            link_entry("nowhere", "missing/../gone"),
            link_entry("circle", "circle"),
        ],
    )

    assert (folder / "lib64" / "b.so").read_bytes() == b"code"
    assert (folder / "lib64" / "a" / "b.so.1").stat().st_mtime == 1_000_000
    assert (folder / "second").samefile(folder / "lib" / "b.so")
    assert [
        str((folder / name).readlink()) for name in ("lib64", "third", "nowhere", "circle")
    ] == [
        "lib",
        "lib",
        "missing/../gone",
        "circle",
    ]


def test_nobody_gets_rights_by_an_archive(folder):
    unpack(
        folder,
        [
            folder_entry("d", mode=0o7777),
            folder_entry("e", mode=0),
            file_entry("d/suid", mode=0o6777),
            file_entry("e/none", mode=0),
            file_entry("owner", uid=12345, gid=12345, uname="nobody"),
        ],
    )
    modes = {
        name: (folder / name).stat().st_mode & 0o7777 for name in ("d", "e", "d/suid", "e/none")
    }

    assert modes == {"d": 0o755, "e": 0o700, "d/suid": 0o755, "e/none": 0o600}
    assert (folder / "owner").stat().st_uid == os.getuid()


@pytest.mark.parametrize("kind", ["w", "w:gz", "w:bz2", "w:xz"])
def test_archive_that_is_too_large_is_refused_before_it_is_written(folder, monkeypatch, kind):
    monkeypatch.setattr(environment, "MAX_UNPACKED_BYTES", 1000)

    refused(
        folder,
        [file_entry("zeros", bytes(600)), file_entry("more", bytes(600))],
        "more than the free disk space, or than 1000 bytes",
        kind,
    )
    assert not (folder / "more").exists()


def test_size_that_an_archive_only_claims_is_refused(folder):
    path = folder.parent.parent / "env.tar"
    header = tarfile.TarInfo("huge")
    header.size = 1 << 60
    path.write_bytes(header.tobuf(tarfile.GNU_FORMAT) + bytes(1024))

    with pytest.raises(InternalError, match="more than the free disk space"):
        environment.unpack(path, folder)


def test_very_many_entries_are_refused(folder, monkeypatch):
    monkeypatch.setattr(environment, "MAX_ENTRIES", 50)

    refused(folder, [file_entry(f"f{number}") for number in range(51)], "more than 50 entries")


def test_folders_that_only_names_mention_count_as_entries(folder, monkeypatch):
    monkeypatch.setattr(environment, "MAX_ENTRIES", 50)

    refused(
        folder,
        [file_entry(f"{number}/" + "a/" * 20 + "b") for number in range(4)],
        "more than 50 entries",
    )


def test_description_of_gigantic_size_is_refused_before_it_is_read(folder):
    path = folder.parent.parent / "env.tar.gz"
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.XHDTYPE, 1 << 40
    path.write_bytes(gzip.compress(header.tobuf(tarfile.GNU_FORMAT) + bytes(5 << 20)))

    with pytest.raises(InternalError, match="description of an entry is longer than 4194304 bytes"):
        environment.unpack(path, folder)


def test_headers_that_are_nested_without_end_are_refused(folder):
    path = folder.parent.parent / "env.tar.gz"
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, 1
    path.write_bytes(gzip.compress((header.tobuf() + bytes(512)) * 3000))

    with pytest.raises(InternalError, match="Its headers are nested too deeply"):
        environment.unpack(path, folder)


@pytest.mark.parametrize("pack_bytes", [bytes, gzip.compress])
def test_stream_never_goes_back(pack_bytes):
    stream = ArchiveStream(io.BytesIO(pack_bytes(bytes(range(100)))), "too much")
    stream.allow(50)
    stream.seek(10)

    assert (stream.read(2), stream.tell()) == (bytes([10, 11]), 12)
    with pytest.raises(InternalError, match="Its entries overlap"):
        stream.seek(11)
    with pytest.raises(InternalError, match="too much"):
        stream.read(51)


def test_links_that_lead_through_too_many_others_are_refused(folder, monkeypatch):
    monkeypatch.setattr(environment, "MAX_STEPS", 1000)
    chain = [link_entry(f"l{number}", f"l{number + 1}/x/y/z") for number in range(100)]

    refused(folder, chain, "takes too many steps")


@pytest.mark.parametrize("cut", [100, 700, 2000])
def test_archive_that_is_cut_off_is_refused(folder, cut):
    path = folder.parent.parent / "env.tar"
    pack(path, [file_entry("noise", os.urandom(10_000))], "w:gz")
    path.write_bytes(path.read_bytes()[:-cut])

    with pytest.raises(InternalError, match="Failed to extract"):
        environment.unpack(path, folder)


@pytest.mark.parametrize("kind", ["w", "w:gz", "w:bz2", "w:xz"])
def test_archive_is_known_by_its_first_bytes(tmp_path, kind):
    pack(tmp_path / "env", [file_entry("a")], kind)
    pack(tmp_path / "empty", [], kind)
    (tmp_path / "script").write_text("#!/bin/sh\n" + "#" * 1000)
    (tmp_path / "short").write_bytes(b"\x1f\x8b")
    (tmp_path / "nothing").touch()

    assert environment.is_archive(tmp_path / "env")
    assert environment.is_archive(tmp_path / "empty")
    assert not environment.is_archive(tmp_path / "script")
    assert not environment.is_archive(tmp_path / "short")
    assert not environment.is_archive(tmp_path / "nothing")
