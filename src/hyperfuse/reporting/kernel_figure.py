"""The paper's figure 6: the channels of each kernel as points of a plane, coloured by their index."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hyperfuse.errors import OptionError
from hyperfuse.networks.kernel_analysis import KernelMap


def draw_kernel_maps(maps: Sequence[KernelMap], path: str | Path, projection: str) -> None:
    """Write one panel for each kernel; the suffix of `path` chooses the format. `projection` names how the plane was found."""
    from matplotlib.figure import Figure

    path = Path(path)
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
    beside = path.with_name(f".{path.name}.part{path.suffix}")
    try:
        figure.savefig(beside, dpi=150)
        beside.replace(path)
    except ValueError as error:
        raise OptionError(f"{path}: {error}", remedy="give the figure the suffix .png, .svg or .pdf") from error
    finally:
        beside.unlink(missing_ok=True)
