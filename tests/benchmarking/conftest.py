"""What holds for all tests of this folder."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def quick_garbage_collection() -> Iterator[None]:
    """Every measurement collects garbage first, which takes long beside all that the test run has imported."""
    gc.freeze()
    yield
    gc.unfreeze()
