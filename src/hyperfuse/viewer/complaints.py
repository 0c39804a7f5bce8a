"""Errors as the page gets them: what was got, what was expected, what to do about it; never a traceback."""

from __future__ import annotations

import logging
from typing import TypedDict

from hyperfuse.errors import HyperfuseError

log = logging.getLogger(__name__)


class Complaint(TypedDict):
    got: str
    expected: str
    remedy: str


def complaint_of(error: BaseException) -> Complaint:
    if isinstance(error, HyperfuseError):
        return Complaint(got=error.got, expected=error.expected, remedy=error.remedy)
    if isinstance(error, OSError):
        return Complaint(
            got=error.strerror or type(error).__name__, expected="a readable file and space to write", remedy="check both"
        )
    if isinstance(error, MemoryError):
        return Complaint(got="not enough memory", expected="", remedy="close other programs, or fuse a smaller scene")
    log.error("internal error", exc_info=error)
    return Complaint(got="internal error", expected="", remedy="this is a bug in hyperfuse, please report what you did")
