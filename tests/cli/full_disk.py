"""A process whose files may not grow beyond a limit, which looks like a full disk: runs the commands given as JSON in
its argument.

Prints, as JSON, the exit code of each and everything that arrived on stderr meanwhile, also from libraries written in
C.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile

from hyperfuse.cli.app import run
from hyperfuse.io import files

LARGEST_FILE = 40_000


def run_captured(arguments: list[str]) -> tuple[int, str]:
    with tempfile.TemporaryFile() as captured:
        kept = os.dup(2)
        os.dup2(captured.fileno(), 2)
        try:
            code = run(arguments)
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)
        captured.seek(0)
        return code, captured.read().decode()


def main() -> None:
    assert files is not None
    commands = json.loads(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_FILE, LARGEST_FILE))
    outcomes = [run_captured(arguments) for arguments in commands]
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main()
