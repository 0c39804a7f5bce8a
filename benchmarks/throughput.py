"""Time and memory of whole commands on a generated scene, beside GDAL's.

    python benchmarks/throughput.py ratios            # fuse and gdal_pansharpen; compared with throughput.json
    python benchmarks/throughput.py ratios --record   # and throughput.json is updated
    python benchmarks/throughput.py growth            # of the default method, with pixels and with bands
    python benchmarks/throughput.py tools             # convert, evaluate and simulate beside gdal_translate
    python benchmarks/throughput.py chart PNG         # of what --record has kept of ratios and growth

The scene has 2000 x 2000 fine pixels, 100 bands and a scale of 4 by default (`--side`, `--bands`), as uint16. Every
command is a process of its own: its wall time includes starting Python. The peak is that of its resident memory.
`ratios` fails where a command needs over 10 % more processor time than recorded, relative to gdal_pansharpen; wall
times are printed but not compared, because other work on the machine disturbs them.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import hyperfuse
from generated_scene import SCALE, write_pair

RECORD = Path(__file__).with_name("throughput.json")
SLOWER = 1.1
METHODS = ("glp", "sfim", "gsa", "fuse", "local_fuse", "universal")
# What gdal_pansharpen is given, so that both write the same layout.
LAYOUT = ("INTERLEAVE=BAND", "TILED=YES", "BLOCKXSIZE=256", "BLOCKYSIZE=256", "BIGTIFF=IF_SAFER")
COMPRESSIONS = {"none": (), "deflate": ("COMPRESS=DEFLATE", "PREDICTOR=2", "NUM_THREADS=2")}
HYPERFUSE = (sys.executable, "-m", "hyperfuse")


@dataclass(frozen=True)
class Cost:
    wall: float
    user: float
    system: float
    peak_bytes: int

    @property
    def processor(self) -> float:
        return self.user + self.system

    @property
    def figures(self) -> dict[str, float]:
        """Processor seconds, the kernel's among them, and gigabytes: what is recorded."""
        seconds = {"processor": round(self.processor, 2), "system": round(self.system, 2)}
        return {**seconds, "peak": round(self.peak_bytes / 1e9, 2)}

    def __str__(self) -> str:
        share = self.system / max(1e-9, self.processor)
        times = f"{self.wall:.1f} s | {self.processor:.1f} s | {share:.0%}"
        return f"{times} | {self.peak_bytes / 1e9:.2f} GB"


def cost_of(*command: str | Path) -> Cost:
    """Run a command and measure it with all of its children."""
    start = time.perf_counter()
    process = subprocess.Popen([str(part) for part in command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    errors = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"{' '.join(map(str, command))}: {errors.decode()[-2000:]}")
    return Cost(time.perf_counter() - start, usage.ru_utime, usage.ru_stime, 1024 * usage.ru_maxrss)


def gdal_is_there() -> bool:
    """Install gdal-bin where that is possible, and say so where it is not."""
    if shutil.which("gdal_pansharpen.py") is None and hasattr(os, "geteuid") and os.geteuid() == 0:
        for command in (("update", "-qq"), ("install", "-qq", "-y", "gdal-bin", "python3-gdal")):
            subprocess.run(("apt-get", *command), check=False, capture_output=True)
    found = shutil.which("gdal_pansharpen.py") is not None
    if not found:
        print("skipped: no gdal_pansharpen.py here and none to be installed (Debian: apt-get install gdal-bin)")
    return found


def ratios(folder: Path, methods: list[str], compressions: list[str], *, record: bool) -> int:
    """Fuse by some methods with some compressions: how much longer than gdal_pansharpen each takes."""
    if not gdal_is_there():
        return 0
    hsi, msi, pan, output = (folder / f"{name}.tif" for name in ("hsi", "msi", "pan", "fused"))
    subprocess.run(["gdal_translate", "-q", "-b", "2", msi, pan], check=True)
    before = recorded()
    ratios: dict[str, float] = {}
    print("| command | compression | wall | processor | system | peak memory | wall / GDAL | processor / GDAL |")
    print("|---|---|---:|---:|---:|---:|---:|---:|", flush=True)
    for compression in compressions:
        creation = [part for option in (*LAYOUT, *COMPRESSIONS[compression]) for part in ("-co", option)]
        gdal = cost_of("gdal_pansharpen.py", "-q", "-threads", "2", pan, hsi, output, *creation)
        output.unlink()
        print(f"| gdal_pansharpen | {compression} | {gdal} | 1 | 1 |", flush=True)
        if record:
            keep(f"gdal_pansharpen {compression}", gdal.figures | {"ratio": 1.0})
        for method in methods:
            own = cost_of(*HYPERFUSE, "fuse", hsi, msi, "-o", output, "--method", method, "--compress", compression)
            output.unlink()
            wall, processor = own.wall / gdal.wall, own.processor / gdal.processor
            ratios[f"{method} {compression}"] = round(processor, 2)
            print(f"| {method} | {compression} | {own} | {wall:.2f} | {processor:.2f} |", flush=True)
            if record:
                keep(f"{method} {compression}", own.figures | {"ratio": round(processor, 2)})
    slower = [name for name in ratios if not record and ratios[name] > SLOWER * before.get(name, {}).get("ratio", 1e9)]
    for name in slower:
        print(f"{name}: {ratios[name]} times gdal_pansharpen's processor time, recorded {before[name]['ratio']}")
    return 1 if slower else 0


def recorded() -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    return found


def keep(name: str, figures: dict[str, float]) -> None:
    lines = [f"{json.dumps(each)}: {json.dumps(kept)}" for each, kept in (recorded() | {name: figures}).items()]
    RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def growth(folder: Path, sides: list[int], bands: list[int], *, record: bool) -> int:
    """Fuse scenes of more and more pixels at 30 bands, and of more and more bands at 1000 x 1000 pixels."""
    print("| fine pixels | bands | wall | processor | system | peak memory | processor per MPix |")
    print("|---|---:|---:|---:|---:|---:|---:|", flush=True)
    for side, count in [*((side, 30) for side in sides), *((1000, count) for count in bands)]:
        hsi, msi = write_pair(folder, side // SCALE, count)
        output = folder / "fused.tif"
        own = cost_of(*HYPERFUSE, "fuse", hsi, msi, "-o", output, "--compress", "none")
        for path in (hsi, msi, output):
            path.unlink()
        print(f"| {side} x {side} | {count} | {own} | {own.processor / side**2 * 1e6:.2f} s |", flush=True)
        if record:
            keep(f"growth {side} {count}", own.figures)
    return 0


def tools(folder: Path, *, record: bool) -> int:
    """Commands that read and write cubes, on the fused image, beside gdal_translate.

    `simulate` is compared with deflate: it compresses a copy of the image, its reference.
    """
    if not gdal_is_there():
        return 0
    hsi, msi, fused, copy = (folder / f"{name}.tif" for name in ("hsi", "msi", "fused", "copy"))
    cost_of(*HYPERFUSE, "fuse", hsi, msi, "-o", fused, "--method", "glp", "--compress", "none")
    creation = [part for option in LAYOUT for part in ("-co", option)]
    deflate = ("-co", "COMPRESS=DEFLATE", "-co", "PREDICTOR=2")
    commands = {
        "gdal_translate none": ("gdal_translate", "-q", fused, copy, *creation),
        "convert none": (*HYPERFUSE, "convert", fused, copy, "--compress", "none", "--overwrite"),
        "evaluate none": (*HYPERFUSE, "evaluate", copy, fused),
        "gdal_translate deflate": ("gdal_translate", "-q", fused, folder / "small.tif", *creation, *deflate),
        "simulate deflate": (*HYPERFUSE, "simulate", fused, folder / "pair", "--scale", "4", "--srf", "rgb+nir"),
    }
    print("| command | wall | processor | system | peak memory | processor / gdal_translate |")
    print("|---|---:|---:|---:|---:|---:|", flush=True)
    costs: dict[str, Cost] = {}
    for name, command in commands.items():
        costs[name] = own = cost_of(*command)
        ratio = own.processor / costs[f"gdal_translate {name.split()[1]}"].processor
        print(f"| {name} | {own} | {ratio:.2f} |", flush=True)
        if record:
            keep(name, own.figures | {"ratio": round(ratio, 2)})
    return 0


def chart(path: Path) -> int:
    """Draw what was recorded: processor time of every command, and its growth with pixels and with bands."""
    from matplotlib.figure import Figure

    from hyperfuse.reporting.style import BEST_COLOUR, COLOURS, MEDIUM, NO_DATA_GREY, SMALL, clean_axes, save_png

    known = recorded()
    figure = Figure(figsize=(11, 3.6), layout="constrained")
    bars, pixels, bands = figure.subplots(1, 3, width_ratios=(1.5, 1, 1))
    names = ["gdal_pansharpen", *METHODS]
    for place, (compression, look) in enumerate(zip(COMPRESSIONS, (COLOURS[0], COLOURS[5]), strict=True)):
        rows = [known.get(f"{name} {compression}") for name in names]
        if not any(rows):
            continue
        heights = [row["processor"] if row else 0 for row in rows]
        spots = [index + 0.4 * place - 0.2 for index in range(len(names))]
        bars.bar(spots, heights, 0.38, color=look, label=f"compression {compression}")
        bars.bar(spots, [row["system"] if row else 0 for row in rows], 0.38, color=NO_DATA_GREY, alpha=0.8)
        for spot, row in zip(spots, rows, strict=True):
            if row:
                bars.text(spot, row["processor"], f"{row['ratio']:.1f}x", ha="center", va="bottom", fontsize=SMALL - 1)
    labels = [name.replace("gdal_pansharpen", "GDAL").replace("_", "\n") for name in names]
    bars.set_xticks(range(len(names)), labels, fontsize=SMALL)
    bars.set_title("processor seconds (grey: in the kernel)", loc="left", fontsize=MEDIUM)
    bars.legend(fontsize=SMALL, frameon=False)
    grown = {name: [int(part) for part in name.split()[1:]] for name in known if name.startswith("growth")}
    by_pixels = {side**2 / 1e6: known[name]["processor"] for name, (side, count) in grown.items() if count == 30}
    by_bands = {count: known[name]["processor"] for name, (side, count) in grown.items() if side == 1000}
    for axes, line, title in (
        (pixels, by_pixels, "30 bands, by megapixels"),
        (bands, by_bands, "1 megapixel, by bands"),
    ):
        axes.plot(*zip(*sorted(line.items()), strict=True), color=BEST_COLOUR, marker="o")
        axes.set_title(f"universal, {title}", loc="left", fontsize=MEDIUM)
        axes.set(xlim=(0, None), ylim=(0, None))
    for axes in (bars, pixels, bands):
        clean_axes(axes)
    save_png(figure, path)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("ratios", "growth", "tools", "chart"))
    parser.add_argument("png", nargs="?", type=Path, help="of chart")
    parser.add_argument("--side", type=int, default=2000)
    parser.add_argument("--bands", type=int, default=100)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--compressions", default=",".join(COMPRESSIONS))
    parser.add_argument("--sides", default="500,1000,2000,4000,8000", help="of growth")
    parser.add_argument("--counts", default="30,100,200,400", help="bands, of growth")
    parser.add_argument("--record", action="store_true")
    given = parser.parse_args()
    if given.what == "chart":
        return chart(given.png)
    # As an installed package is, also where PYTHONDONTWRITEBYTECODE is set.
    compileall.compile_dir(Path(hyperfuse.__file__).parent, quiet=1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if given.what == "growth":
            sides, counts = (list(map(int, filter(None, text.split(",")))) for text in (given.sides, given.counts))
            return growth(folder, sides, counts, record=given.record)
        write_pair(folder, given.side // SCALE, given.bands)
        if given.what == "tools":
            return tools(folder, record=given.record)
        return ratios(folder, given.methods.split(","), given.compressions.split(","), record=given.record)


if __name__ == "__main__":
    sys.exit(main())
