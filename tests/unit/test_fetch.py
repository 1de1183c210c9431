"""Raw files are downloaded completely or not at all, and errors give the manual steps."""

from __future__ import annotations

import errno
import hashlib
import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from filelock import FileLock
from web_server import Site, serve

from clipnoise.data import remote
from clipnoise.data.base import Dataset
from clipnoise.data.remote import RawFile, RemoteFile
from clipnoise.errors import UserError

CONTENT = random.Random(0).randbytes(3_000_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()
MD5 = hashlib.md5(CONTENT).hexdigest()


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(remote.time, "sleep", lambda seconds: None)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    site = Site({"/a.bin": CONTENT})
    server = serve(site)
    yield site
    server.shutdown()
    server.server_close()


def dataset(address: str | None, **checksums: str) -> Dataset:
    """Build a dataset of one file."""
    names = {
        "id": "one-file",
        "files": (RemoteFile("a.bin", address, **checksums),),
        "manual": "Ask for it.",
    }
    kind: Any = type("OneFile", (Dataset,), names)
    return kind()  # type: ignore[no-any-return]


def the(site: Site, **checksums: str) -> Dataset:
    return dataset(f"{site.address}/a.bin", **checksums)


def part(cache: Path) -> Path:
    return cache / "raw" / "one-file" / "a.bin.part"


@pytest.mark.parametrize(
    "checksums", [{"sha256": SHA256}, {"md5": MD5}, {}], ids=["sha256", "md5", "none"]
)
def test_a_file_is_fetched_once_and_verified(
    site: Site, checksums: dict[str, str], tmp_path: Path
) -> None:
    one, seen = the(site, **checksums), []
    folder = one.raw_files(tmp_path).fetch(lambda *report: seen.append(report))
    assert (folder / "a.bin").read_bytes() == CONTENT
    assert seen[0] == ("a.bin", 0, len(CONTENT))
    assert seen[-1] == ("a.bin", len(CONTENT), len(CONTENT))
    assert not part(tmp_path).exists()
    one.raw_files(tmp_path).fetch()
    assert len(site.asked) == 1
    origin = "its source" if checksums else "the first download"
    assert one.raw_files(tmp_path).verify()["a.bin"] == RawFile(SHA256, origin)


@pytest.mark.parametrize("ranges", [True, False], ids=["ranges", "no ranges"])
def test_an_interrupted_transfer_resumes_where_it_stopped(
    site: Site, ranges: bool, tmp_path: Path
) -> None:
    site.stops, site.ranges = [1_000_000, 500_000], ranges
    folder = the(site).raw_files(tmp_path).fetch()
    assert (folder / "a.bin").read_bytes() == CONTENT
    assert len(site.asked) == 3
    assert site.asked[0] is None
    assert site.asked[1] == "bytes=1000000-"
    if ranges:
        assert site.sent == len(CONTENT)


def test_a_later_call_resumes_an_earlier_download(site: Site, tmp_path: Path) -> None:
    part(tmp_path).parent.mkdir(parents=True)
    part(tmp_path).write_bytes(CONTENT[:2_000_000])
    the(site, sha256=SHA256).raw_files(tmp_path).fetch()
    assert site.asked == ["bytes=2000000-"]
    assert site.sent == 1_000_000


@pytest.mark.parametrize("left", [CONTENT, CONTENT + b"more"], ids=["whole", "too long"])
def test_a_complete_partial_download_is_verified_and_kept_or_discarded(
    site: Site, left: bytes, tmp_path: Path
) -> None:
    part(tmp_path).parent.mkdir(parents=True)
    part(tmp_path).write_bytes(left)
    folder = the(site, md5=MD5).raw_files(tmp_path).fetch()
    assert (folder / "a.bin").read_bytes() == CONTENT
    assert site.sent == (0 if left == CONTENT else len(CONTENT))


def test_without_a_checksum_an_old_part_is_not_used(site: Site, tmp_path: Path) -> None:
    part(tmp_path).parent.mkdir(parents=True)
    part(tmp_path).write_bytes(b"of an older version")
    folder = the(site).raw_files(tmp_path).fetch()
    assert (folder / "a.bin").read_bytes() == CONTENT


@pytest.mark.parametrize("changed", [False, True], ids=["same", "changed"])
def test_without_a_checksum_an_old_part_is_used_if_the_server_names_the_same_version(
    site: Site, changed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "ATTEMPTS", 1)
    site.stops = [1_000_000, 0]
    with pytest.raises(UserError, match="cannot be downloaded"):
        the(site).raw_files(tmp_path).fetch()
    assert part(tmp_path).stat().st_size == 1_000_000
    content = CONTENT[::-1] if changed else CONTENT
    site.files["/a.bin"] = content
    before = site.sent
    folder = the(site).raw_files(tmp_path).fetch()
    assert (folder / "a.bin").read_bytes() == content
    assert site.sent - before == len(CONTENT) - (0 if changed else 1_000_000)
    assert sorted(path.name for path in folder.iterdir()) == ["a.bin", "checksums.json"]


def test_a_file_that_changes_during_the_download_is_downloaded_again(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.stops = [1000]
    changed = CONTENT[::-1]
    monkeypatch.setattr(
        remote.time, "sleep", lambda seconds: site.files.update({"/a.bin": changed})
    )
    folder = the(site).raw_files(tmp_path).fetch()
    assert (folder / "a.bin").read_bytes() == changed


def test_a_server_that_fails_for_a_while_is_asked_again(site: Site, tmp_path: Path) -> None:
    site.failures = [503, 500]
    the(site).raw_files(tmp_path).fetch()
    site.failures = [503] * 20
    with pytest.raises(UserError, match="503") as caught:
        the(site).raw_files(tmp_path / "other").fetch()
    assert "By hand: Ask for it." in str(caught.value)
    assert len(site.asked) == 3 + remote.ATTEMPTS


def test_a_wrong_checksum_leaves_no_file(site: Site, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"its sha256 is {SHA256}, not {'0' * 64}"):
        the(site, sha256="0" * 64).raw_files(tmp_path).fetch()
    assert not (tmp_path / "raw" / "one-file" / "a.bin").exists()
    assert not part(tmp_path).exists()


def test_another_version_of_a_file_without_a_published_checksum_is_noticed(
    site: Site, tmp_path: Path
) -> None:
    path = the(site).raw_files(tmp_path).fetch() / "a.bin"
    path.unlink()
    site.files["/a.bin"] = b"another version"
    with pytest.raises(UserError, match="that of the first download"):
        the(site).raw_files(tmp_path).fetch()
    assert not path.exists()


@pytest.mark.parametrize("code", [404, 403, 401])
def test_a_refused_download_fails_at_once_with_the_manual_steps(
    site: Site, code: int, tmp_path: Path
) -> None:
    site.failures = [code]
    with pytest.raises(UserError) as caught:
        the(site, sha256=SHA256).raw_files(tmp_path).fetch()
    message = str(caught.value)
    assert f"/a.bin: {code}" in message
    assert "By hand: Ask for it." in message
    assert SHA256 in message
    assert str(tmp_path / "raw" / "one-file" / "a.bin") in message
    assert "clipnoise data verify one-file" in message
    assert len(site.asked) == 1


def test_without_a_network_the_message_gives_the_manual_steps(site: Site, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no connection(.|\n)*By hand"):
        dataset("http://127.0.0.1:9/a.bin").raw_files(tmp_path).fetch()


def test_files_that_need_a_person_are_named_as_such(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be downloaded by a program"):
        dataset(None).raw_files(tmp_path).fetch()
    assert not part(tmp_path).exists()


def test_too_little_space_is_noticed_before_anything_is_written(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(UserError, match="3,000,000 bytes are still to come, but only 1,000"):
        the(site).raw_files(tmp_path).fetch()
    assert not part(tmp_path).exists()


def test_a_disk_that_fills_up_keeps_the_part_to_resume(site: Site, tmp_path: Path) -> None:
    def fill_up(name: str, done: int, total: int | None) -> None:
        if done > 1_000_000:
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(UserError, match="the disk is full"):
        the(site, sha256=SHA256).raw_files(tmp_path).fetch(fill_up)
    assert 0 < part(tmp_path).stat().st_size < len(CONTENT)
    the(site, sha256=SHA256).raw_files(tmp_path).fetch()
    assert site.asked[-1] is not None


def test_a_folder_that_cannot_be_written_is_named(site: Site, tmp_path: Path) -> None:
    (tmp_path / "raw").write_text("a file")
    with pytest.raises(UserError, match="cannot be written"):
        the(site).raw_files(tmp_path).fetch()


def test_two_at_once_do_not_write_the_same_file(site: Site, tmp_path: Path) -> None:
    folder = tmp_path / "raw" / "one-file"
    folder.mkdir(parents=True)
    with FileLock(folder / ".lock"), pytest.raises(UserError, match="another process"):
        the(site).raw_files(tmp_path).fetch()


def test_what_is_missing_or_differs_is_named_and_can_be_accepted(
    site: Site, tmp_path: Path
) -> None:
    one = the(site, md5=MD5)
    with pytest.raises(UserError, match=r"a\.bin is not there(.|\n)*clipnoise data fetch one-file"):
        one.raw_files(tmp_path).require()
    path = one.raw_files(tmp_path).fetch() / "a.bin"
    path.write_bytes(b"my own")
    with pytest.raises(UserError, match="--unverified"):
        one.raw_files(tmp_path).verify()
    one.raw_files(tmp_path).accept()
    assert one.raw_files(tmp_path).verify()["a.bin"].checked == "what was accepted"
    path.write_bytes(b"my own, damaged")
    with pytest.raises(UserError, match="that of what was accepted"):
        one.raw_files(tmp_path).verify()


def test_a_damaged_record_of_checksums_is_named(site: Site, tmp_path: Path) -> None:
    folder = the(site).raw_files(tmp_path).fetch()
    assert json.loads((folder / "checksums.json").read_text())["a.bin"]["sha256"] == SHA256
    (folder / "checksums.json").write_text("{")
    with pytest.raises(UserError, match=r"checksums\.json: cannot be read"):
        the(site).raw_files(tmp_path).verify()
