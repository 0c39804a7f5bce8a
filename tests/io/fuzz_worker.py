"""A process that reads damaged files, one path per line of its input, and says in one line of JSON how each of them
went.

It stands apart from the tests because a damaged file may end or freeze the process that reads it, which is what the
tests look for.
"""

from __future__ import annotations

import json
import resource
import sys
import traceback
import warnings
from pathlib import Path

from hyperfuse.errors import HyperfuseError
from hyperfuse.io.cube import physical_values
from hyperfuse.io.files import open_cube
from hyperfuse.io.summary import summarise

# The damaged files are a few kilobytes: whoever asks for more memory than this believed a lie in one of them.
ALLOWED_BYTES = 3 * 2**29


def read_a_little(path: str) -> dict[str, str]:
    try:
        cube = open_cube(path)
        corner = cube.isel(y=slice(0, 3), x=slice(0, 3))
        if corner.nbytes < ALLOWED_BYTES // 8:
            physical_values(corner)
        assert cube.isel(band=-1, y=-1, x=-1).values.shape == ()
        json.dumps(summarise(cube).as_dict(), allow_nan=False)
    except HyperfuseError as error:
        causes = [error]
        while causes[-1].__cause__ is not None:
            causes.append(causes[-1].__cause__)
        if any(isinstance(cause, MemoryError) for cause in causes):
            return {"outcome": "huge", "detail": traceback.format_exc()}
        lines = len(str(error).splitlines())
        return {"outcome": "refused" if lines == 1 else "several lines", "detail": str(error)}
    except BaseException:
        return {"outcome": "raised", "detail": traceback.format_exc()}
    return {"outcome": "read", "detail": ""}


def main() -> None:
    warnings.simplefilter("ignore")
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + ALLOWED_BYTES, now + ALLOWED_BYTES))
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(read_a_little(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
