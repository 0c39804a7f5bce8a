"""The paper's figure 6: the channels of each kernel as points of a plane, coloured by their index."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hyperfuse.cubes.publishing import published, refuse_unwritable
from hyperfuse.errors import OptionError
from hyperfuse.networks.kernel_analysis import KernelMap

SUFFIXES = (".png", ".svg", ".pdf")


def refuse_unwritable_figure(path: Path, *, overwrite: bool) -> None:
    """Complain before the maps are made, not after."""
    if path.suffix.lower() not in SUFFIXES:
        raise OptionError(f"figure {path}", f"a name that ends in {', '.join(SUFFIXES)}")
    refuse_unwritable(path, overwrite=overwrite)


def draw_kernel_maps(maps: Sequence[KernelMap], path: str | Path, projection: str) -> None:
    """Write one panel for each kernel; the suffix of `path` chooses the format. `projection` names how the plane was found."""
    from matplotlib.figure import Figure

    path = Path(path)
    refuse_unwritable_figure(path, overwrite=True)
    figure = Figure(figsize=(4.2 * len(maps), 4.2), layout="constrained")
    panels = figure.subplots(1, len(maps), squeeze=False)[0]
    for panel, kernel in zip(panels, maps, strict=True):
        x, y = kernel.points[:, 0].tolist(), kernel.points[:, 1].tolist()
        panel.plot(x, y, color="0.8", linewidth=0.8, zorder=1)
        points = panel.scatter(x, y, c=range(len(x)), cmap="viridis", s=18, zorder=2)
        panel.set_title(f"{kernel.title}\nsmoothness {kernel.smoothness:.3f}")
        panel.set_xlabel(f"{projection} 1")
        panel.set_ylabel(f"{projection} 2")
    figure.colorbar(points, ax=panels.tolist(), label="channel index")
    with published(path, overwrite=True) as target:
        figure.savefig(target, dpi=150)
