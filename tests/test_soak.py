"""A short run of `tests.soak`; docs/reliability.md has the figures of a long one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.soak import soak


@pytest.mark.skipif(os.name == "nt", reason="signals are sent as POSIX has them")
def test_random_faults_leave_whole_files(tmp_path: Path) -> None:
    counts, failures = soak(15, 0, tmp_path)
    assert not failures, "\n".join(failures)
    assert counts["requests"]
