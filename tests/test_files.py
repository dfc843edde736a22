"""Atomic writes: the former file or the new one, and nothing else."""

import errno
import os
import stat

import pytest

from peerdescent import files


def test_the_new_file_takes_the_place_of_the_former(tmp_path):
    path = tmp_path / "a.txt"
    for content in (b"one", b"two"):
        files.write(path, content)
        assert path.read_bytes() == content
    assert [file.name for file in tmp_path.iterdir()] == ["a.txt"]
    (tmp_path / "usual").write_text("")
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE((tmp_path / "usual").stat().st_mode)


@pytest.mark.parametrize("call", ["fsync", "replace", "chmod"])
@pytest.mark.parametrize(
    "kind", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()]
)
def test_a_write_that_fails_leaves_the_former_file_alone(tmp_path, monkeypatch, call, kind):
    path = tmp_path / "a.txt"
    files.write(path, b"former")

    def fail(*_):
        raise kind

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(type(kind)) as raised:
        files.write(path, b"new")
    monkeypatch.undo()
    assert path.read_bytes() == b"former"
    assert [file.name for file in tmp_path.iterdir()] == ["a.txt"]
    if isinstance(kind, OSError):
        assert (
            str(raised.value) == f"[Errno 28] cannot write: No space left on device: {str(path)!r}"
        )


def test_a_folder_that_is_gone_is_named(tmp_path):
    with pytest.raises(OSError, match=r"cannot write: No such file or directory: .*gone/a.txt"):
        files.write(tmp_path / "gone" / "a.txt", b"")


def test_what_a_killed_process_was_writing_is_removed(tmp_path):
    """The folder may even have nothing else in it yet."""
    home = tmp_path / "runs"
    (home / "inner").mkdir(parents=True)
    left = [home / ".peerdescent-.peerdescent-abcdefgh"]
    left[0].touch()
    (home / "inner").rmdir()
    files.claim(home)
    (home / "inner").mkdir()
    left.append(home / "inner" / ".peerdescent-trace.csv-abcdefgh")
    left[1].touch()
    with files.alone(home):
        assert not any(path.exists() for path in left)
    assert (home / files.MARK).is_file()
