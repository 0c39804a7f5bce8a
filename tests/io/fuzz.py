"""Damage small files of every format and product at random and read them as `hyperfuse info` does.

    python -m tests.io.fuzz 50000 --seed 1

Each file is opened, a window of it read and summarised in a child process, which is replaced after a number of files
and whenever a file ends it; the first look happens in a process of its own, as always (`io.isolation`). Reported are:
more than ten seconds of processor time, an end by a signal, and errors other than a `HyperfuseError` of one line, with
which the command line would exit with 1. The same seed and number give the same file.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Mapping
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

from tests.io.fuzzing import Seed, make_seeds, write_files
from tests.io.products import container_writers, hyperspectral_writers, multispectral_writers

from hyperfuse.errors import HyperfuseError
from hyperfuse.io import files
from hyperfuse.io.cube import physical_values
from hyperfuse.io.summary import summarise

SECONDS = 10
BATCH = 500
# The files have some kilobytes, and opening one may take `isolation.LARGEST_BYTES`.
LARGEST_BYTES = 3 * 2**29
# More than any side of the whole files.
MOST_READ = 64
# Of files that end or block the process that opens them.
ENDED = ("crashes the library", "to open")
NUMBERS = [(2**bits + by) % 2**64 for bits in (0, 7, 8, 15, 16, 31, 32, 63, 64) for by in (-16, -1, 0, 1)]
WORDS = ["0", "-1", "1e999", "nan", "99999999999999999999", "", "{", "}", '"', "\0", "\x1b[2J", "é", "null", "[]"]
PRODUCTS = {
    "prisma": container_writers.write_prisma,
    "emit": container_writers.write_emit,
    "enmap": hyperspectral_writers.write_enmap,
    "desis": hyperspectral_writers.write_desis,
    "aviris": hyperspectral_writers.write_aviris,
    "aviris_ng": hyperspectral_writers.write_aviris_ng,
    "hyperion": hyperspectral_writers.write_hyperion,
    "sentinel2": multispectral_writers.write_sentinel2,
    "landsat": multispectral_writers.write_landsat,
}


def make_all_seeds(folder: Path) -> dict[str, Seed]:
    """Whole files of every format, and small products of every mission that the tests can write."""
    seeds = make_seeds(folder)
    for name, write in PRODUCTS.items():
        (folder / name).mkdir()
        path = write(folder / name).path
        parts = [part for part in sorted((folder / name).rglob("*")) if part.is_file()]
        contents = {str(part.relative_to(folder / name)): part.read_bytes() for part in parts}
        seeds[name] = Seed(str(path.relative_to(folder / name)), contents)
    return seeds


def damage(content: bytes, rng: random.Random) -> bytes:
    """Change bits, bytes, numbers, words or the length; headers are hit more often than pixels."""
    data = bytearray(content)
    for _ in range(rng.choice([1, 1, 1, 2, 4, 16])):
        if not data:
            break
        place = rng.randrange(min(len(data), rng.choice([64, 1024, len(data), len(data)])))
        kind = rng.choice(["bit", "byte", "number", "number", "cut", "double", "truncate", "word", "word"])
        if kind == "bit":
            data[place] ^= 1 << rng.randrange(8)
        elif kind == "byte":
            data[place] = rng.randrange(256)
        elif kind == "number":
            size = rng.choice([1, 2, 4, 8])
            number = (rng.choice(NUMBERS) % 2 ** (8 * size)).to_bytes(size, rng.choice(["little", "big"]))
            data[place : place + size] = number
        elif kind == "cut":
            del data[place : place + rng.randrange(1, 17)]
        elif kind == "double":
            data[place:place] = data[place : place + rng.randrange(1, 65)]
        elif kind == "truncate":
            del data[place:]
        else:
            # A number or name in a text, up to where it ends.
            end = place
            while end < len(data) and chr(data[end]).isalnum():
                end += 1
            data[place:end] = rng.choice(WORDS).encode()
    return bytes(data)


def mutant(seeds: Mapping[str, Seed], number: int, seed: int) -> tuple[str, str, dict[str, bytes]]:
    """What was damaged, the file to open, and the contents of all files."""
    rng = random.Random(f"{seed} {number}")
    name = sorted(seeds)[number % len(seeds)]
    part = rng.choice(sorted(seeds[name].files))
    changed = dict(seeds[name].files) | {part: damage(seeds[name].files[part], rng)}
    return f"{name} {seed} {number} {part}", seeds[name].opened, changed


def read_like_info(path: Path) -> str:
    """Open, read and summarise."""
    try:
        cube = files.open_cube(path)
        # All that the whole file holds, in this process; of what a damaged header promises beyond, a corner.
        most = slice(0, MOST_READ)
        physical_values(cube.isel(band=most, y=most, x=most))
        assert cube.isel(band=-1, y=-1, x=-1).values.shape == ()
        json.dumps(summarise(cube).as_dict(), allow_nan=False)
    except HyperfuseError as error:
        if len(str(error).splitlines()) > 1:
            return f"several lines\n{error}"
        return next((f"refused: {reason}" for reason in ENDED if reason in str(error)), "refused")
    except BaseException:
        return f"exit code 1\n{traceback.format_exc()[-4000:]}"
    return "read"


def read_batch(seeds: Mapping[str, Seed], numbers: range, seed: int, folder: Path, answers: Connection) -> None:
    """In a child: send the outcome of one file after the other."""
    warnings.simplefilter("ignore")
    for number in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), number)
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + LARGEST_BYTES,) * 2)
    for number in numbers:
        _, opened, contents = mutant(seeds, number, seed)
        place = folder / str(number)
        write_files(contents, place)
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        outcome = read_like_info(place / opened)
        shutil.rmtree(place)
        answers.send(outcome)
    os._exit(0)


def fuzz(count: int, seed: int, folder: Path) -> tuple[Counter[str], list[str]]:
    """Read so many damaged files; return how many ended how, and what was wrong with which."""
    (folder / "seeds").mkdir()
    seeds = make_all_seeds(folder / "seeds")
    outcomes: list[str] = []
    while len(outcomes) < count:
        numbers = range(len(outcomes), min(count, len(outcomes) + BATCH))
        here, there = Pipe(duplex=False)
        child = os.fork()
        if not child:
            read_batch(seeds, numbers, seed, folder, there)
        there.close()
        with contextlib.suppress(EOFError):
            while True:
                outcomes.append(here.recv())
        here.close()
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code:
            outcomes.append("hangs" if -code == signal.SIGPROF else f"ended by {code}")
    wrong = [number for number, outcome in enumerate(outcomes) if not outcome.startswith(("read", "refused"))]
    failures = [f"{mutant(seeds, number, seed)[0]}: {outcomes[number]}" for number in wrong]
    return Counter(outcome.partition("\n")[0] for outcome in outcomes), failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        outcomes, failures = fuzz(options.count, options.seed, Path(folder))
    print("\n".join(failures))
    print(f"{options.count} files in {time.monotonic() - start:.0f} s: {dict(outcomes)}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
