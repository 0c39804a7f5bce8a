"""`hyperfuse view` as a person types it, also wrongly."""

from __future__ import annotations

import builtins
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from tests.viewer.served_page import PATIENCE_SECONDS, served
from tests.viewer.viewer_scenes import write_pair

from hyperfuse.cli.app import run
from hyperfuse.fusion import run as fusion
from hyperfuse.io.atomic import published
from hyperfuse.progress import progress

COMMAND = [sys.executable, "-c", "from hyperfuse.cli.app import main; main()", "view"]


@pytest.mark.skipif(os.name == "nt", reason="signals are sent as POSIX has them")
def test_serves_until_interrupted(tmp_path: Path) -> None:
    """Every user of a machine can read the arguments of every program: those of the browser hold no token."""
    write_pair(tmp_path, side=32)
    browser = tmp_path / "browser"
    browser.write_text(f"#!/bin/sh\nwhile [ -e {browser} ]; do sleep 0.1; done\n")
    browser.chmod(0o700)
    command = [*COMMAND, "reference.tif", "--hsi", "hsi.tif"]
    environment = os.environ | {"BROWSER": f"{browser} %s &"}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, text=True, **pipes) as process:
        assert process.stdout is not None
        # Not a terminal but perhaps a log: it gets no token.
        door = Path(process.stdout.readline().strip().removeprefix("file://"))
        assert stat.S_IMODE(door.stat().st_mode) == 0o600 and stat.S_IMODE(door.parent.stat().st_mode) == 0o700
        (url,) = set(re.findall(r"http://127\.0\.0\.1:\d+/[\w-]+/", door.read_text()))
        response = httpx.get(url + "api/scene", timeout=PATIENCE_SECONDS)
        assert [image["role"] for image in response.json()["images"]] == ["fused", "hsi"]
        assert response.headers["referrer-policy"] == "no-referrer" and "set-cookie" not in response.headers
        arguments: list[str] = []
        while door.as_uri() not in arguments:
            arguments = [each for child in psutil.Process(process.pid).children() for each in child.cmdline()]
        assert url.split("/")[3] not in " ".join(arguments)
        browser.unlink()
        process.send_signal(signal.SIGINT)
        _, messages = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, messages
    assert messages == ""
    assert not door.parent.exists()


def test_ending_the_server_stops_a_job_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_pair(tmp_path, side=32)
    before = sorted(tmp_path.iterdir())
    half_written = threading.Event()

    def endless(hsi: Path, msi: Path, output: Path, *options: Any, **others: Any) -> None:
        with published(output) as temporary, progress("Fusing", total=10**9) as advance:
            temporary.write_bytes(b"half")
            half_written.set()
            while True:
                time.sleep(0.01)
                advance(1)

    monkeypatch.setattr(fusion, "run_fusion", endless)
    with served({}, tmp_path) as url:
        pair = {"hsi": "hsi.tif", "msi": "msi.tif", "output": "out.tif"}
        assert httpx.post(url + "api/fuse", json=pair, timeout=PATIENCE_SECONDS).json()["state"] == "running"
        assert half_written.wait(PATIENCE_SECONDS)
        assert sorted(tmp_path.iterdir()) != before
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["missing.tif"], "does not exist"),
        (["--folder", "nowhere"], "is not a folder"),
        (["wrong.txt"], "wrong.txt"),
        (["--uncertainty", "hsi.tif"], "no image to show"),
        (["reference.tif", "--hsi", "elsewhere.tif"], "do not overlap"),
    ],
)
def test_wrong_arguments(
    arguments: list[str],
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from affine import Affine

    from hyperfuse.io.cube import make_cube
    from hyperfuse.io.files import write_cube

    monkeypatch.chdir(tmp_path)
    reference = write_pair(tmp_path, side=32)
    far = make_cube(reference.values, crs="EPSG:32633", transform=Affine(10, 0, 0, 0, -10, 0))
    write_cube(far, tmp_path / "elsewhere.tif")
    Path("wrong.txt").write_text("no image")
    assert run(["view", "--no-browser", *arguments]) == 2
    message = capsys.readouterr().err
    assert expected in message
    assert message.count("\n") == 1


def test_taken_port(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert run(["view", "--no-browser", "--folder", str(tmp_path), "--port", str(taken.getsockname()[1])]) == 2
    assert "expected a free port" in capsys.readouterr().err


@pytest.mark.parametrize("missing", ["fastapi", "uvicorn"])
def test_missing_extra(missing: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    honest = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.split(".")[0] == missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return honest(name, *rest)

    for name in [name for name in sys.modules if name.startswith(("hyperfuse.viewer", "fastapi", "uvicorn"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", without)
    assert run(["view", "--no-browser"]) == 2
    message = capsys.readouterr().err
    assert missing in message
    assert "pip install 'hyperfuse[view]'" in message
