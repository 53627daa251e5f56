"""A store's file and its log, byte by byte as SQLite itself reads them: what is encrypted on disk is not so here.

Through the connection's own files, and not by opening them again: a program that opens a database and closes it gives
up every lock that its process has on it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import apsw

_CHUNK_PAGES = 512
_TRIES = 5
_LOG_HEADER, _FRAME_HEADER = 32, 24

_Number = ctypes.c_int64
_Read = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, _Number)
_Sync = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int)
_Size = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(_Number))


class _Methods(ctypes.Structure):
    """The beginning of SQLite's table of what a file can do, which is part of its interface."""

    _fields_ = (
        ("version", ctypes.c_int),
        ("close", ctypes.c_void_p),
        ("read", _Read),
        ("write", _Read),
        ("truncate", ctypes.c_void_p),
        ("sync", _Sync),
        ("size", _Size),
    )


class Pages:
    """One open file of a connection, which must stay open for as long as this is used."""

    def __init__(self, connection: apsw.Connection, which: int) -> None:
        self._file = ctypes.c_void_p()
        connection.file_control("main", which, ctypes.addressof(self._file))
        self.size_of_page = int(connection.pragma("page_size"))
        # A file that was never opened has no methods.
        table = ctypes.cast(self._file, ctypes.POINTER(ctypes.c_void_p))[0] if self._file.value else None
        self._methods = None if table is None else ctypes.cast(table, ctypes.POINTER(_Methods)).contents

    @property
    def length(self) -> int:
        size = _Number(0)
        if self._methods is not None:
            _check(self._methods.size(self._file, ctypes.byref(size)))
        return size.value

    def read(self, at: int, count: int) -> bytes:
        """Some whole pages. A page that is being written this moment may be half there, and is read again."""
        into = ctypes.create_string_buffer(count)
        for page in range(0, count, self.size_of_page):
            self._read(ctypes.byref(into, page), at + page, min(self.size_of_page, count - page))
        return into.raw

    def write(self, at: int, data: bytes) -> None:
        assert self._methods is not None
        _check(self._methods.write(self._file, data, len(data), at))

    def sync(self) -> None:
        assert self._methods is not None
        _check(self._methods.sync(self._file, apsw.SQLITE_SYNC_FULL))

    def _read(self, into: object, at: int, count: int) -> None:
        assert self._methods is not None
        code = apsw.SQLITE_OK
        for _ in range(_TRIES):
            code = self._methods.read(self._file, into, count, at)
            if code in (apsw.SQLITE_OK, apsw.SQLITE_IOERR_SHORT_READ):
                return
        _check(code)


def file_of(connection: apsw.Connection) -> Pages:
    return Pages(connection, apsw.SQLITE_FCNTL_FILE_POINTER)


def read_file(connection: apsw.Connection) -> Iterator[bytes]:
    """The main file, in large pieces that are whole pages."""
    pages = file_of(connection)
    size, step = pages.length, _CHUNK_PAGES * pages.size_of_page
    for at in range(0, size, step):
        yield pages.read(at, min(step, size - at))


def read_log(connection: apsw.Connection) -> Iterator[bytes]:
    """The pages in the write-ahead log, one by one."""
    pages = Pages(connection, apsw.SQLITE_FCNTL_JOURNAL_POINTER)
    frame = _FRAME_HEADER + pages.size_of_page
    for at in range(_LOG_HEADER, pages.length - frame + 1, frame):
        yield pages.read(at + _FRAME_HEADER, pages.size_of_page)


def _check(code: int) -> None:
    if code != apsw.SQLITE_OK:
        raise apsw.exception_for(code)
