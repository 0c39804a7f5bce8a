"""The first sentence of reports (docs/report.md) on good and spoilt results of training scenes, beside the truth.

    python benchmarks/report_verdicts.py

The scenes are those of HYPERFUSE_DATA, or of ../shared/data. Prints a Markdown table.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from pathlib import Path
from typing import Any

import hyperfuse

TRAIN = Path(os.environ.get("HYPERFUSE_DATA", "../shared/data")) / "train"
SCENES = {"samson": "rgb+nir", "paviacentre_a": "rgb", "abu_urban_1": "rgb+nir", "enmap_potsdam_rect": "rgb+nir"}
SIDE, SCALE = 96, 4
# Options of `simulate` and of `fuse`.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "as it should be": ({}, {}),
    "noise, 25 and 30 dB": ({"snr_hsi_db": 25, "snr_msi_db": 30}, {}),
    "interpolation": ({}, {"method": "bicubic"}),
    "shift of 2 pixels, not estimated": ({"shift": (2.0, 2.0)}, {"estimate": False}),
    "PSF 2.5 times too wide": ({}, {"psf_fwhm": 2.5 * SCALE}),
    "part of the MSI changed": ({}, {}),
    "MSI of another place": ({}, {}),
}


def main() -> None:
    warnings.simplefilter("ignore")
    print("| scene | case | true gain | HSI error | HSI noise | MSI error | reduced gain | confidence | doubts |")
    print("|---|---|---:|---:|---:|---:|---:|---:|---:|")
    for name, srf in SCENES.items():
        cube = hyperfuse.open_cube(TRAIN / f"{name}.npz")
        if cube["wavelength"].isnull().any():
            cube = hyperfuse.open_cube(TRAIN / f"{name}.npz", wavelengths="400:2500")
        cube = cube.isel(y=slice(0, SIDE), x=slice(0, SIDE))
        for case, (simulation, fusion) in CASES.items():
            pair = hyperfuse.simulate(cube, SCALE, srf, **simulation)
            msi = pair.msi.copy(deep=True)
            if case == "part of the MSI changed":
                msi.values[:, 20:50, 20:44] = pair.msi.values[:, 79:49:-1, 40:64]
            elif case == "MSI of another place":
                msi.values[:] = pair.msi.values[:, ::-1, ::-1]
            print(row(name, case, hyperfuse.fuse(pair.hsi, msi, **fusion), pair, msi), flush=True)


def row(name: str, case: str, fused: Any, pair: Any, msi: Any) -> str:
    page = Path(tempfile.mkdtemp()) / "report.html"
    report = hyperfuse.report(fused, page, hsi=pair.hsi, msi=msi, reference=pair.reference)
    interpolated = hyperfuse.fuse(pair.hsi, pair.msi, method="bicubic", estimate=False)
    assert report.against_reference is not None and report.reduced_resolution.scores is not None
    gain = report.against_reference.scores.psnr_db - hyperfuse.evaluate(interpolated, pair.reference).psnr_db
    coarser = report.reduced_resolution.scores
    inputs = report.consistency.with_hsi.relative, report.relative_noise, report.consistency.with_msi.relative
    shares = " | ".join("-" if each is None else f"{100 * each:.2f} %" for each in inputs)
    better = coarser.psnr_db - coarser.bicubic_psnr_db
    cells = name, case, f"{gain:+.1f} dB", shares, f"{better:+.1f} dB", f"{report.part.observation.confidence:.2f}"
    return f"| {' | '.join(cells)} | {len(report.doubts())} |"


if __name__ == "__main__":
    main()
