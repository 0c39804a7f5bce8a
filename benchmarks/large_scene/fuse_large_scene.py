"""Fuse a generated scene that is far larger than the memory it may use, and see what that takes.

python benchmarks/large_scene/fuse_large_scene.py FOLDER [--side 1000] [--bands 200] [--ram 2] [--output fused.tif]
[...]

The HSI has side x side pixels, the MSI four times as many along each side. Everything after the known options goes to
the request, as NAME=VALUE. The peak is that of the process that fuses, as it reads it from Linux at its end.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from generated_scene import write_pair


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--side", type=int, default=1000)
    parser.add_argument("--bands", type=int, default=200)
    parser.add_argument("--ram", type=float, default=2.0)
    parser.add_argument("--output", default="fused.tif")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("options", nargs="*")
    arguments = parser.parse_intermixed_args()
    folder: Path = arguments.folder
    target = folder / arguments.output
    if arguments.child:
        print(json.dumps(fuse_here(folder, target, arguments.ram, arguments.options)))
        return
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "msi.tif").exists():
        start = time.perf_counter()
        write_pair(folder, arguments.side, arguments.bands)
        print(f"scene generated in {time.perf_counter() - start:.0f} s", flush=True)
    report = fuse_elsewhere()
    size = sum(
        path.stat().st_size
        for path in (target.rglob("*") if target.is_dir() else [target, *target.parent.glob("*.img")])
    )
    shares = ", ".join(f"{stage} {share:.0%}" for stage, share in report["shares"].items())
    pixels, seconds = report["pixels"] / 1e6, report["seconds"]
    print(
        f"{pixels:.2f} MPix, {report['tiles']} tiles: {seconds:.0f} s, "
        f"of which {report['preparing']:.0f} s before the first tile"
    )
    print(
        f"{pixels / seconds:.3f} MPix/s, {report['processor_seconds']:.0f} s of processors; "
        f"time of all threads: {shares}"
    )
    print(f"peak resident memory {report['peak'] / 1e9:.2f} GB of {arguments.ram:g}; output {size / 1e9:.2f} GB")


def fuse_elsewhere() -> dict[str, Any]:
    """This same script in a process of its own: what it reports."""
    done = subprocess.run([sys.executable, *sys.argv, "--child"], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(done.returncode)
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def own_peak_bytes() -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return 1024 * int(found[1])


def fuse_here(folder: Path, target: Path, ram_gb: float, options: list[str]) -> dict[str, Any]:
    from hyperfuse.config import FuseConfig
    from hyperfuse.fusion.run import run_fusion
    from hyperfuse.progress import ProgressReport, listening

    start = time.perf_counter()
    first_tile: list[float] = []

    def listen(report: ProgressReport) -> None:
        if report.unit == "tiles" and not first_tile:
            first_tile.append(time.perf_counter() - start)
        if report.unit == "tiles" and report.done % 8 == 0:
            print(f"{report.done} of {report.total} tiles", file=sys.stderr, flush=True)

    given = dict(option.split("=", 1) for option in options)
    with listening(listen):
        config = FuseConfig(ram_gb=ram_gb, overwrite=True, **given)
        run = run_fusion(folder / "hsi.tif", folder / "msi.tif", target, config)
    return {
        "seconds": time.perf_counter() - start,
        "preparing": first_tile[0],
        "tiles": run.tiles,
        "pixels": run.pixels,
        "shares": run.seconds.shares(),
        "peak": own_peak_bytes(),
        "processor_seconds": time.process_time(),
    }


if __name__ == "__main__":
    main()
