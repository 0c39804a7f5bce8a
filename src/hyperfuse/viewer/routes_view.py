"""What the page asks while somebody looks: the scene, tiles, legends, spectra, metadata."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from hyperfuse.errors import OptionError
from hyperfuse.viewer.description import describe_file
from hyperfuse.viewer.looks import Look
from hyperfuse.viewer.painting import colour_table
from hyperfuse.viewer.pixel_spectra import MOST_CORNERS, region_spectra, spectra_at
from hyperfuse.viewer.scene import ROLES
from hyperfuse.viewer.tiles import TilePlace
from hyperfuse.viewer.workers import SessionHere, WorkersHere

router = APIRouter(prefix="/api")
LookHere = Annotated[Look, Query()]
FEWEST_STOPS = 16


class Files(BaseModel):
    """Names below the folder to open together."""

    model_config = ConfigDict(extra="forbid")

    fused: str | None = Field(default=None, max_length=1000)
    hsi: str | None = Field(default=None, max_length=1000)
    msi: str | None = Field(default=None, max_length=1000)
    reference: str | None = Field(default=None, max_length=1000)
    uncertainty: str | None = Field(default=None, max_length=1000)


class Region(BaseModel):
    model_config = ConfigDict(extra="forbid")

    corners: list[tuple[float, float]] = Field(max_length=MOST_CORNERS)
    """Row and column on the page."""


@router.get("/scene")
async def get_scene(request: Request, session: SessionHere, workers: WorkersHere) -> dict[str, Any]:
    scene = session.scene
    about: dict[str, Any] = {
        "folder": session.folder.root.name,
        "upload_limit": request.app.state.upload_limit,
        "jobs": [job.as_dict() for job in session.jobs.running()],
    }
    if scene is None:
        return about | {"number": 0, "images": []}
    return about | await workers.run(lambda: session.describe(scene))


@router.post("/scene")
async def open_files(files: Files, session: SessionHere, workers: WorkersHere) -> dict[str, Any]:
    def work() -> dict[str, Any]:
        paths = {role: session.folder.cube(name) for role in ROLES if (name := getattr(files, role))}
        return session.describe(session.open(paths))

    return await workers.run(work)


@router.get("/tiles/{number}/{layer}/{level}/{row}/{column}")
async def get_tile(
    number: int, layer: str, level: int, row: int, column: int, look: LookHere, session: SessionHere, workers: WorkersHere
) -> Response:
    tile = await workers.run(lambda: session.tile(number, layer, TilePlace(level, row, column), look))
    return Response(tile.png, media_type="image/png", headers={"x-complete": f"{tile.complete:.3f}"})


@router.get("/legends/{number}/{layer}")
async def get_legend(number: int, layer: str, look: LookHere, session: SessionHere, workers: WorkersHere) -> dict[str, Any]:
    def work() -> dict[str, Any]:
        scene = session.require_scene(number)
        shown = session.layer(scene, layer, look)
        limits, linked = session.limits(scene, layer, look)
        return {
            "label": shown.label,
            "unit": shown.unit,
            "limits": limits.tolist(),
            "linked": linked,
            "stops": _stops(look.colours) if shown.planes == 1 else None,
        }

    return await workers.run(work)


@router.get("/spectra/{number}")
async def get_spectra(
    number: int,
    row: Annotated[float, Query(allow_inf_nan=False)],
    column: Annotated[float, Query(allow_inf_nan=False)],
    session: SessionHere,
    workers: WorkersHere,
) -> dict[str, Any]:
    scene = session.require_scene(number)
    found = await workers.run(lambda: spectra_at(scene, row, column))
    return {"row": row, "column": column, "spectra": [spectrum.as_dict() for spectrum in found]}


@router.post("/regions/{number}")
async def get_region(number: int, region: Region, session: SessionHere, workers: WorkersHere) -> dict[str, Any]:
    scene = session.require_scene(number)
    found = await workers.run(lambda: region_spectra(scene, region.corners))
    return {"corners": region.corners, "spectra": [spectrum.as_dict() for spectrum in found]}


@router.get("/images/{role}")
async def get_metadata(role: str, session: SessionHere, workers: WorkersHere) -> dict[str, Any]:
    scene = session.require_scene()
    if role not in scene.images:
        raise OptionError(f"image {role[:40]!r}", f"one of {', '.join(scene.images)}")
    image = scene.images[role]
    return await workers.run(lambda: {"file": str(image.path), "role": role} | describe_file(image.cube, image.found))


def _stops(colours: str) -> list[str]:
    table = colour_table(colours)[:: 255 // (FEWEST_STOPS - 1)]
    return [f"rgb({red} {green} {blue})" for red, green, blue in table.tolist()]
