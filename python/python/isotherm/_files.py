"""Files by path or by URL: of this machine, of object stores by pyarrow's filesystems, of anything else by fsspec's."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from isotherm._needs import need


def is_url(name: str) -> bool:
    """Whether it says by which protocol it is to be had."""
    return "://" in name


def filesystem(name: str) -> tuple[Any, str]:
    """The filesystem of a path or URL, as pyarrow has it, and the path on it."""
    arrow, fs = need("pyarrow", "sweep"), need("pyarrow.fs", "sweep")
    if not is_url(name):
        return fs.LocalFileSystem(), os.path.abspath(name)
    try:
        found: tuple[Any, str] = fs.FileSystem.from_uri(name)
    except (arrow.ArrowInvalid, NotImplementedError):
        other, path = need("fsspec", "sweep").core.url_to_fs(name)
        return fs.PyFileSystem(fs.FSSpecHandler(other)), path
    return found


@contextmanager
def local(name: str) -> Iterator[Path]:
    """The file on this machine: where it is, or a copy that is there for as long."""
    if not is_url(name):
        yield Path(name)
        return
    files, path = filesystem(name)
    with tempfile.TemporaryDirectory(prefix="isotherm-") as folder:
        # The content decides a file's type; the name is for messages.
        copy = Path(folder) / (path.rstrip("/").rpartition("/")[2] or "trace")
        with files.open_input_stream(path, compression=None) as source, copy.open("wb") as file:
            shutil.copyfileobj(source, file)
        yield copy
