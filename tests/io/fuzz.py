"""Damage small files of every format and product at random and read them as `hyperfuse info` does.

    python -m tests.io.fuzz 50000 --seed 1

Each file is opened, a window of it read and summarised in a process of its own, forked from one that has everything
imported. Reported are: more than ten seconds of processor time, an end by a signal, memory over the limit, and errors
other than `HyperfuseError`, with which the command line would exit with 1. The same seed and number give the same file.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.io.fuzzing import Seed, make_seeds, write_files
from tests.io.products import container_writers, hyperspectral_writers, multispectral_writers

from hyperfuse.errors import HyperfuseError
from hyperfuse.io import files, isolation
from hyperfuse.io.cube import physical_values
from hyperfuse.io.summary import summarise

SECONDS = 10
# The files have some kilobytes, and opening one may take `isolation.LARGEST_BYTES`.
LARGEST_BYTES = 3 * 2**29
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


def mutants(seeds: Mapping[str, Seed], count: int, seed: int) -> Iterator[tuple[str, str, dict[str, bytes]]]:
    names = sorted(seeds)
    for number in range(count):
        rng = random.Random(f"{seed} {number}")
        name = names[number % len(names)]
        part = rng.choice(sorted(seeds[name].files))
        changed = dict(seeds[name].files) | {part: damage(seeds[name].files[part], rng)}
        yield f"{name} {seed} {number} {part}", seeds[name].opened, changed


def read_like_info(path: Path) -> None:
    """Open, read and summarise; only errors that mean exit code 2 are caught."""
    isolation._is_child = True
    warnings.simplefilter("ignore")
    try:
        cube = files.open_cube(path)
        physical_values(cube.isel(band=slice(0, 3), y=slice(0, 3), x=slice(0, 3)))
        assert cube.isel(band=-1, y=-1, x=-1).values.shape == ()
        json.dumps(summarise(cube).as_dict(), allow_nan=False)
    except HyperfuseError:
        os._exit(2)


def outcome_of(path: Path) -> tuple[str, str]:
    """What became of a file, and the traceback of an error that should not be."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.dup2(writing, 2)
        os.close(reading)
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_DATA, (used + LARGEST_BYTES,) * 2)
        try:
            read_like_info(path)
        except BaseException:
            os.write(2, traceback.format_exc().encode()[-4000:])
            os._exit(1)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        printed = stream.read().decode(errors="replace")
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code >= 0:
        return {0: "read", 2: "refused"}.get(code, "exit code 1"), printed
    return "hangs" if -code == signal.SIGPROF else f"ended by {signal.Signals(-code).name}", printed


def fuzz(count: int, seed: int, folder: Path) -> tuple[Counter[str], list[str]]:
    """Read so many damaged files; return how many ended how, and what was wrong with which."""
    outcomes: Counter[str] = Counter()
    failures = []
    (folder / "seeds").mkdir()
    for number, (name, opened, contents) in enumerate(mutants(make_all_seeds(folder / "seeds"), count, seed)):
        place = folder / str(number)
        write_files(contents, place)
        outcome, printed = outcome_of(place / opened)
        outcomes[outcome] += 1
        if outcome not in ("read", "refused"):
            failures.append(f"{outcome}: {name}\n{printed}")
        else:
            for part in sorted(place.rglob("*"), reverse=True):
                part.rmdir() if part.is_dir() else part.unlink()
            place.rmdir()
    return outcomes, failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="folder for the files that fail")
    options = parser.parse_args()
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(exist_ok=True)
        outcomes, failures = fuzz(options.count, options.seed, folder)
    print("\n".join(failures))
    print(f"{options.count} files in {time.monotonic() - start:.0f} s: {dict(outcomes)}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
