"""The edit of /etc/fstab: twelve real files, properties, and how the file is written."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufix.resources import fstab_module

fstab = fstab_module()
CASES = Path(__file__).parents[1] / "cases" / "fstab"

_WORD = st.text(st.characters(codec="utf-8", exclude_characters=" \t\n\r"), min_size=1, max_size=8)
_GAP = st.sampled_from([" ", "\t", "  \t "])
_ENDING = st.sampled_from(["\n", "\r\n"])


@st.composite
def _line(draw: st.DrawFn, kind: st.SearchStrategy[str]) -> str:
    first = draw(_WORD.filter(lambda word: word[0] != "#"))
    fields = [first, draw(_WORD), draw(kind), *draw(st.lists(_WORD, max_size=3))]
    return draw(st.sampled_from(["", " ", "\t"])) + draw(_GAP).join(fields)


_OTHER = st.one_of(
    _line(st.sampled_from(["ext4", "tmpfs", "nfs", "swapfs", "noswap", "Swap"])),
    st.sampled_from(
        ["", "  ", "# swap swap swap", "#/swapfile none swap sw 0 0", " # a none swap sw", "swap", "none swap"]
    ),
    st.sampled_from(["/data/swap-backup /srv/swap ext4 defaults 0 2", "LABEL=swapdata /swap ext4 defaults 0 2"]),
    st.sampled_from(["//nas/swap /mnt/swap cifs ro 0 0", "tmpfs /run/swap tmpfs noswap 0 0"]),
)
_SWAP = _line(st.just("swap"))


@pytest.mark.parametrize("path", sorted(CASES.glob("*.fstab")), ids=lambda path: path.stem)
def test_real_files(path: Path) -> None:
    before = path.read_bytes()
    after = fstab.encode(fstab.comment_swap(fstab.decode(before)))
    assert after == path.with_suffix(".expected").read_bytes()


def test_there_are_twelve() -> None:
    assert len(list(CASES.glob("*.fstab"))) == 12


@given(st.lists(st.tuples(st.one_of(_OTHER, _SWAP), _ENDING)), st.booleans())
def test_only_lines_of_type_swap_change_and_by_one_mark(lines: list[tuple[str, str]], last_ending: bool) -> None:
    text = "".join(line + ending for line, ending in lines)
    if lines and not last_ending:
        text = text.rstrip("\r\n")
    after = fstab.comment_swap(text).split("\n")
    before = text.split("\n")
    assert len(after) == len(before)
    numbers = {number for number, _line in fstab.swap_lines(text)}
    for number, (old, new) in enumerate(zip(before, after, strict=True), start=1):
        fields = old.split(" ") if "\t" not in old else old.replace("\t", " ").split(" ")
        fields = [field.rstrip("\r") for field in fields if field.rstrip("\r")]
        is_swap = len(fields) > 2 and fields[2] == "swap" and not fields[0].startswith("#")
        assert new == ("#" + old if is_swap else old)
        assert (number in numbers) is is_swap


@given(st.binary(max_size=300))
def test_any_bytes_come_back_and_twice_is_once(data: bytes) -> None:
    assert fstab.encode(fstab.decode(data)) == data
    once = fstab.comment_swap(fstab.decode(data))
    assert fstab.comment_swap(once) == once
    assert fstab.swap_lines(once) == []


@given(st.lists(_OTHER))
def test_a_file_without_swap_is_left_alone(lines: list[str]) -> None:
    text = "\n".join(lines)
    assert fstab.comment_swap(text) == text


@pytest.mark.parametrize(
    ("line", "is_swap"),
    [
        ("/swapfile none swap sw 0 0\r", True),
        ("/swapfile none swap\r", True),
        ("/swapfile none swap", True),
        ("/swapfile none swap,x sw", False),
        ("/swapfile\xa0none swap sw 0 0", False),  # a no-break space separates nothing
        ("/a\x0bb none swap sw", True),
        ("#/swapfile none swap sw 0 0", False),
        ("none swap swapoff", False),
    ],
)
def test_lines(line: str, is_swap: bool) -> None:
    assert bool(fstab.swap_lines(line)) is is_swap
    assert fstab.comment_swap(line) == ("#" + line if is_swap else line)


# --- writing -----------------------------------------------------------------------------------------


def test_the_file_is_replaced_with_mode_and_owner_and_a_backup(tmp_path: Path) -> None:
    path = tmp_path / "fstab"
    path.write_bytes(b"old\n")
    path.chmod(0o640)
    if os.getuid() == 0:
        os.chown(path, 1234, 4321)
    was = path.stat()
    backup = Path(fstab.replace_file(str(path), b"new\n", b"old\n"))
    assert path.read_bytes() == b"new\n"
    assert backup.name == "fstab.gpufix-" + fstab.sha256(b"old\n")[:12]
    assert backup.read_bytes() == b"old\n"
    for written in (path, backup):
        assert stat.S_IMODE(written.stat().st_mode) == 0o640
        assert (written.stat().st_uid, written.stat().st_gid) == (was.st_uid, was.st_gid)
    assert sorted(one.name for one in tmp_path.iterdir()) == sorted(["fstab", backup.name])


def test_extended_attributes_stay(tmp_path: Path) -> None:
    path = tmp_path / "fstab"
    path.write_bytes(b"old\n")
    try:
        os.setxattr(path, "user.note", b"kept")
    except OSError:
        pytest.skip("this file system keeps no attributes")
    backup = fstab.replace_file(str(path), b"new\n", b"old\n")
    assert os.getxattr(path, "user.note") == os.getxattr(backup, "user.note") == b"kept"


@pytest.mark.parametrize("target", ["conf/fstab", "/conf/fstab"])
def test_a_link_stays_a_link_and_its_target_is_edited(tmp_path: Path, target: str) -> None:
    (tmp_path / "conf").mkdir()
    real = tmp_path / "conf" / "fstab"
    real.write_bytes(b"old\n")
    link = tmp_path / "fstab"
    link.symlink_to(target)
    backup = fstab.replace_file(str(link), b"new\n", b"old\n", str(tmp_path))
    assert link.is_symlink()
    assert str(link.readlink()) == target
    assert real.read_bytes() == b"new\n"
    assert Path(backup).parent == real.parent


def test_a_backup_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "fstab"
    path.write_bytes(b"old\n")
    backup = Path(fstab.backup_path(str(path), b"old\n"))
    backup.write_bytes(b"something else\n")
    with pytest.raises(FileExistsError):
        fstab.replace_file(str(path), b"new\n", b"old\n")
    assert (path.read_bytes(), backup.read_bytes()) == (b"old\n", b"something else\n")
    backup.write_bytes(b"old\n")
    assert fstab.replace_file(str(path), b"new\n", b"old\n") == str(backup)
    assert path.read_bytes() == b"new\n"


def test_a_file_that_changed_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "fstab"
    path.write_bytes(b"edited meanwhile\n")
    with pytest.raises(fstab.FstabChanged):
        fstab.replace_file(str(path), b"new\n", b"old\n")
    assert [one.name for one in tmp_path.iterdir()] == ["fstab"]


def test_what_cannot_be_written_is_told_before(tmp_path: Path) -> None:
    path = tmp_path / "fstab"
    assert "No such file" in fstab.why_not_writable(str(path))
    path.mkdir()
    assert "not a regular file" in fstab.why_not_writable(str(path))
    path.rmdir()
    path.write_bytes(b"")
    assert fstab.why_not_writable(str(path)) == ""


def test_a_loop_of_links_ends(tmp_path: Path) -> None:
    (tmp_path / "fstab").symlink_to("fstab")
    with pytest.raises(OSError, match="symbolic links"):
        fstab.follow(str(tmp_path / "fstab"))
