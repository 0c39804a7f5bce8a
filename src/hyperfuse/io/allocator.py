"""Options of glibc's allocator for runs that make large arrays again and again."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

# Options of malloc.h, their values during a run and those before. By default glibc maps every large array anew and
# returns it to the system when it is freed, so that the system has to clear all of its pages again: up to half of the
# processor time. One heap for all threads keeps what is freed for the next array.
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX, M_ARENA_MAX = -1, -2, -4, -8
ALLOCATOR = {
    M_ARENA_MAX: (1, 8),
    M_MMAP_MAX: (0, 65536),
    M_TRIM_THRESHOLD: (2**31 - 1, 128 * 1024),
    M_TOP_PAD: (32 * 2**20, 128 * 1024),
}


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Keep freed memory during a run, and return it to the system afterwards; other systems have other allocators."""
    keep_freed_memory()
    try:
        yield
    finally:
        _set_allocator(during=False)


def keep_freed_memory() -> None:
    """The same until the process ends, for processes that do nothing else."""
    _set_allocator(during=True)


def _set_allocator(*, during: bool) -> None:
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        for option, (value, usual) in ALLOCATOR.items():
            library.mallopt(option, value if during else usual)
        if not during:
            library.malloc_trim(0)
