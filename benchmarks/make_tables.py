"""All tables of docs/benchmarks.md, measured and written: killed, it goes on when started again.

    python benchmarks/make_tables.py --weights ssa_small=runs/joint_small/weights --weights
    mimo_sst=runs/mimo_sst/weights

What is added goes to every run. Results are kept in runs/; to measure anew, remove them or name another folder with
--runs. The scenes are those of HYPERFUSE_DATA, or of ../shared/data.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
DATA = os.environ.get("HYPERFUSE_DATA", "../shared/data")
CAVE = f"CAVE={DATA}/test/cave_*.npz@{DATA}/../responses/nikon_d700.csv"
OTHERS = f"satellite and airborne={DATA}/test/[aej]*.npz@rgb,rgb+nir,rgb+nir+swir"
PARIS = f"{DATA}/test/paris_hyperion.npz,{DATA}/test/paris_ali.npz"
CUBERT = f"{DATA}/test/cubert_hydresgeo.npz,{DATA}/test/cubert_hydresgeo_pan.npz"
AIRBORNE = f"satellite and airborne={DATA}/test/[aej]*.npz@rgb+nir+swir"
LABORATORY = f"laboratory={DATA}/test/himspec_*.npz@rgb"
# Several faults at once: an aerial photo beside an airborne HSI, and two satellites.
AERIAL, ORBITAL = "boxpsf+shift+change+light+gamma8", "boxpsf+bend+objects+haze+noise"
RUNS = {
    "test_scenes": [
        *("--scenes", CAVE, "--scenes", OTHERS),
        *("--scales", "4,8", "--noise", "30,40", "--shift", "0.5,0.5", "--knowledge", "both"),
    ],
    "imperfect_pairs": [
        *("--scenes", AIRBORNE, "--scenes", LABORATORY, "--scales", "4,8", "--no-pictures"),
        *("--imperfections", f"all,{AERIAL},{ORBITAL},boxpsf+light+gamma8,boxpsf+shift+shadow"),
        *("--methods", "bicubic,sfim,gsa,universal"),
    ],
    "recorded_pairs": [
        *("--pair", PARIS, "--pair", CUBERT, "--scales", "2,4", "--knowledge", "blind,nominal", "--no-pictures"),
        *("--methods", "bicubic,sfim,gsa,cnmf,hysure,local_fuse,universal"),
    ],
    "cave_scales": ["--scenes", CAVE, "--scales", "4,8,16,32,3.2,5.7", "--beside-paper"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder for the results")
    parser.add_argument("--only", choices=RUNS, help="one of the runs")
    chosen, added = parser.parse_known_args()
    for name, arguments in RUNS.items():
        if chosen.only in (None, name):
            command = [
                sys.executable,
                "-m",
                "hyperfuse",
                "benchmark",
                *arguments,
                *added,
                "-o",
                str(chosen.runs / name),
            ]
            print(name, flush=True)
            subprocess.run([*command, "--into", "docs/benchmarks.md"], cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
