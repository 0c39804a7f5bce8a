"""The files of the page itself, held in memory: what is not among them does not exist."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter, Response
from starlette.exceptions import HTTPException

FOLDER = Path(__file__).parent / "page"
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
START = "index.html"

router = APIRouter()
_files = {path.relative_to(FOLDER).as_posix(): path.read_bytes() for path in FOLDER.rglob("*") if path.suffix in TYPES}


@router.get("/{name:path}")
async def get_file(name: str) -> Response:
    name = name or START
    if name not in _files:
        raise HTTPException(404, "nothing of this name")
    return Response(_files[name], media_type=TYPES[Path(name).suffix])
