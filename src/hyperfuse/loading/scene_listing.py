"""The catalogue of data sets for a person and for a program, with what of it lies in a folder."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hyperfuse.loading.scene_catalogue import ExpectedFile, SceneDataset, files_below, find_dataset


@dataclass(frozen=True)
class ListedDataset:
    dataset: SceneDataset
    paths: tuple[Path, ...]

    @property
    def found(self) -> str:
        if len(self.paths) in (0, self.dataset.images):
            return "yes" if self.paths else "no"
        return f"{len(self.paths)} of {self.dataset.images}"

    def as_dict(self) -> dict[str, Any]:
        """Only what JSON can hold."""
        entry = asdict(self.dataset)
        entry["wavelength_nm"] = self.dataset.wavelength_nm.round(2).tolist()
        entry["files"] = [{"pattern": kind.pattern, "variable": kind.variable} for kind in self.dataset.files]
        return entry | {"found": len(self.paths), "paths": [str(path) for path in self.paths]}


def list_datasets(datasets: Iterable[SceneDataset], folder: Path) -> list[ListedDataset]:
    files = files_below(folder)
    listed = []
    for dataset in datasets:
        found = find_dataset(dataset, folder, files)
        listed.append(ListedDataset(dataset, found.paths if found else ()))
    return listed


def overview(listed: Sequence[ListedDataset]) -> str:
    """A line of figures for each data set, and below it the file, where to get it, and under which terms."""
    lines = [f"{'name':<10}{'found':<10}{'images':>6}  {'size':<11}{'bands':>5}  {'nm':<11}{'sensor'}"]
    for entry in listed:
        dataset = entry.dataset
        lines.append(
            f"{dataset.name:<10}{entry.found:<10}{dataset.images:>6}  {f'{dataset.rows}x{dataset.columns}':<11}{dataset.bands:>5}  "
            f"{_range_nm(dataset):<11}{dataset.sensor}"
        )
        lines += [f"{'':<10}{key:<10}{value}" for key, value in _origin(dataset).items()]
    return "\n".join(lines)


def details(entry: ListedDataset) -> str:
    """Everything about one data set."""
    dataset = entry.dataset
    shown = ", ".join(f"{nm:.1f}".removesuffix(".0") for nm in dataset.wavelength_nm)
    rows = {
        "name": dataset.name,
        "found": entry.found,
        "sensor": dataset.sensor,
        "images": f"{dataset.images} of {dataset.rows}x{dataset.columns} pixels",
        "pixels": f"{dataset.pixel_metres:g} m, {dataset.bands} bands",
        **_origin(dataset),
        "get": dataset.fetch,
        "bands nm": f"{shown} ({dataset.wavelength_source})",
    }
    if dataset.note:
        rows["note"] = dataset.note
    lines = [f"{key:<10}{value}" for key, value in rows.items()]
    return "\n".join([*lines, *(f"{'':<10}{path}" for path in entry.paths)])


def _origin(dataset: SceneDataset) -> dict[str, str]:
    return {"file": " or ".join(map(_file, dataset.files)), "from": dataset.page, "licence": dataset.licence}


def _file(kind: ExpectedFile) -> str:
    if kind.band_suffixes:
        return f"{kind.pattern} to {kind.band_suffixes[-1]}"
    return f"{kind.pattern} ({kind.variable})" if kind.variable else kind.pattern


def _range_nm(dataset: SceneDataset) -> str:
    known = "~" if dataset.wavelength_source.startswith("approximate") else ""
    return f"{known}{dataset.wavelength_nm.min():.0f}-{dataset.wavelength_nm.max():.0f}"
