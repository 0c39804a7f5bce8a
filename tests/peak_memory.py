"""One command of hyperfuse in a process of its own, and the peak of its resident memory.

The process looks itself: what `wait4` and `getrusage` say of a child includes the process that started it, which has
run all of the tests before. `--cores N` makes it believe that it has that many.

python tests/peak_memory.py REPORT.txt [--cores N] fuse HSI MSI -o OUT ...
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

STATUS = Path("/proc/self/status")


def own_peak_bytes() -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", STATUS.read_text())
    assert found is not None
    return 1024 * int(found[1])


def peak_bytes(report: Path, *arguments: str, cores: int | None = None) -> int:
    """Of a command that has to succeed; the process leaves its figure in the file `report`."""
    faked = [] if cores is None else ["--cores", str(cores)]
    done = subprocess.run(
        [sys.executable, __file__, str(report), *faked, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return int(report.read_text())


def pretend_cores(count: int) -> None:
    """Threads of libraries stay as they are: more of them than cores would wait for each other for minutes on a busy
    machine.
    """
    from hyperfuse.fusion import plan

    plan._processors = lambda: count


def main(report: str, *arguments: str) -> int:
    from hyperfuse.cli.app import run

    if arguments[0] == "--cores":
        pretend_cores(int(arguments[1]))
        arguments = arguments[2:]
    code = run(arguments)
    Path(report).write_text(str(own_peak_bytes()))
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
