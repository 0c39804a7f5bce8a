"""Long modules first, so that parallel workers finish together; processes of tests fork from a server."""

from __future__ import annotations

import sys

import pytest
import rioxarray  # noqa: F401  (registers the accessor .rio, which `hyperfuse.open_cube` and others do, too)

LONGEST_FIRST = (
    "test_wheel.py",
    "test_cluster.py",
    "test_loop.py",
    "test_export.py",
    "test_memory.py",
    "test_resume.py",
    "test_cubes_commands.py",
    "test_local_shift.py",
    "test_fuzzing.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rank = {name: index for index, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: rank.get(item.path.name, len(rank)))


def pytest_collection_finish() -> None:
    if processes := sys.modules.get("tests.processes"):
        processes.start_server()
