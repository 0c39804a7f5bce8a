"""Fuse again and again, with kills, interrupts, full disks and dying workers at random moments.

    python -m tests.soak --minutes 60 --seed 1

After each of them the target must be the old or the new cube, whole, and a message one line; the next run of the same
request must succeed and leave nothing but the target, neither beside it nor in the temporary folder.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
from tests.fusion.large_scenes import made_pair
from tests.processes import Program, start_server

from hyperfuse import open_cube, write_cube

SUFFIXES = (".tif", ".hdr", ".nc", ".zarr", ".npy")
FAULTS = ("kill", "kill", "kill", "interrupt", "terminate", "full disk", "full disk", "dying worker")
WHOLE = "from hyperfuse.cli.app import main; main()"
TILED = Path(__file__).with_name("fusion") / "slow_tiles.py"
OPTIONS = ("--no-estimate", "--method", "glp", "--overwrite", "-q")
SECONDS_PER_TILE = 0.02
# What starting workers takes beside the tiles.
SECONDS_TO_START = 5
# Of the pair below, as it is written.
LARGEST_FILE = 200_000


@dataclass(frozen=True)
class Request:
    target: Path
    images: tuple[Path, Path]
    kind: str
    environment: dict[str, str]

    def start(self, *options: str, limit: int = 0) -> Program:
        arguments = ["fuse", *self.images, "-o", self.target, *OPTIONS, *options]
        if self.kind == "workers":
            arguments += ["--workers", "2"]
        # A limit is set by the script that also makes tiles.
        if self.kind == "whole" and not limit:
            return Program(WHOLE, *arguments, env=self.environment, new_session=True)
        return Program(TILED, SECONDS_PER_TILE, limit, *arguments, env=self.environment, new_session=True)


def cause(fault: str, request: Request, seconds: float, rng: random.Random) -> tuple[int | None, str]:
    """Run a request that goes wrong at any moment of so many seconds; its exit code and what it said."""
    limit = rng.randrange(1, LARGEST_FILE) if fault == "full disk" else 0
    program = request.start(limit=limit)
    time.sleep(rng.uniform(0, seconds))
    if fault == "kill":
        # Also its children, as when a machine or container stops.
        for kill in (os.killpg, os.kill):
            with suppress(ProcessLookupError):
                kill(program.pid, signal.SIGKILL)
    elif fault in ("interrupt", "terminate"):
        with suppress(ProcessLookupError):
            program.send_signal(signal.SIGINT if fault == "interrupt" else signal.SIGTERM)
    elif fault == "dying worker":
        with suppress(psutil.NoSuchProcess):
            # Not Python's tracker of semaphores, whose successor prints tracebacks of its own.
            children = psutil.Process(program.pid).children(recursive=True)
            if workers := [each for each in children if "resource_tracker" not in " ".join(each.cmdline())]:
                rng.choice(workers).kill()
    messages = program.communicate(timeout=300)[1]
    return program.returncode, messages


def is_whole(target: Path, cube: np.ndarray) -> bool:
    return target.exists() and np.array_equal(open_cube(target).values, cube)


def soak(seconds: float, seed: int, folder: Path) -> tuple[Counter[str], list[str]]:
    """Count faults and outcomes for so long, and collect what should not have been."""
    start_server()
    rng, counts, failures = random.Random(seed), Counter[str](), list[str]()
    inputs, temporary = folder / "inputs", folder / "temporary"
    for each in (inputs, temporary):
        each.mkdir()
    hsi, msi = made_pair((36, 36), bands=4, scale=4)
    environment = dict(os.environ) | {"TMPDIR": str(temporary)}
    # A compressed .npz is unpacked into the temporary folder.
    images = {suffix: (inputs / "hsi.hdr", write_cube(msi, inputs / f"msi{suffix}")) for suffix in (".tif", ".npz")}
    write_cube(hsi, inputs / "hsi.hdr")
    new, duration = {}, {}
    for kind in ("whole", "tiled"):
        target = inputs / f"{kind}.tif"
        start = time.monotonic()
        program = Request(target, images[".tif"], kind, environment).start()
        assert not program.communicate()[1]
        new[kind], duration[kind] = open_cube(target).values, time.monotonic() - start
    new["workers"], duration["workers"] = new["tiled"], duration["tiled"] + SECONDS_TO_START
    old = np.zeros_like(new["whole"])
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        fault, suffix = rng.choice(FAULTS), rng.choice(SUFFIXES)
        kind = "workers" if fault == "dying worker" else rng.choice(["whole", "tiled"])
        # A full disk is simulated by the script that makes tiles.
        kind = "tiled" if fault == "full disk" else kind
        place = folder / "place"
        place.mkdir()
        target = place / f"fused{suffix}"
        request = Request(target, images[rng.choice([".tif", ".npz"])], kind, environment)
        has_old = rng.random() < 0.7
        if has_old:
            write_cube(msi.copy(data=old), target)
        code, messages = cause(fault, request, duration[kind], rng)
        what = f"{fault}, {kind}, {suffix}, seed {seed}, request {counts['requests']}: exit code {code}"
        if "Traceback" in messages or code == 1 or len(messages.splitlines()) > 1:
            failures.append(f"{what}\n{messages}")
        with suppress(Exception):
            open_cube(target)
        state = next((name for name, cube in (("old", old), ("new", new[kind])) if is_whole(target, cube)), "none")
        if state == "none" and (has_old or target.exists()):
            failures.append(f"{what}: the target is neither the old nor the new cube")
        resumes = kind == "tiled" and rng.random() < 0.5
        program = request.start(*(["--resume"] if resumes else []))
        messages = program.communicate(timeout=300)[1]
        if program.returncode or not is_whole(target, new[kind]):
            failures.append(f"{what}; the next run: exit code {program.returncode}\n{messages}")
        left = [path.name for path in place.iterdir() if path.name.startswith(".")]
        left += [path.name for path in temporary.iterdir() if path.name.startswith(("hyperfuse-", ".hyperfuse-"))]
        if left:
            failures.append(f"{what}; the next run has left {left}")
        counts.update(["requests", f"{fault}: {state} cube" if code else f"{fault}: in vain"])
        for path in sorted(place.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        place.rmdir()
    return counts, failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        counts, failures = soak(60 * options.minutes, options.seed, Path(folder))
    print("\n".join([*failures, f"{dict(sorted(counts.items()))}, {len(failures)} failures"]))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
