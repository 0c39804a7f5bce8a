"""A hostile client gets a 4xx with a short message, never a file or a traceback, and the server keeps running."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import h5py
import httpx
import numpy as np
import pytest
from tests.viewer.served_page import served
from tests.viewer.viewer_scenes import write_pair

from hyperfuse.viewer import server
from hyperfuse.viewer.server import SMALL_BODY

SECRET = "nobody may see this"
VRT = (
    "<VRTDataset rasterXSize='9' rasterYSize='9'><VRTRasterBand dataType='Byte' band='1'><SimpleSource>"
    "<SourceFilename relativeToVRT='0'>{}</SourceFilename></SimpleSource></VRTRasterBand></VRTDataset>"
)
PAIR = {"hsi": "hsi.tif", "msi": "msi.tif", "options": {"method": "gsa"}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    above = tmp_path_factory.mktemp("above")
    folder = above / "folder"
    folder.mkdir()
    write_pair(folder, side=32)
    (above / "secret.tif").write_text(SECRET)
    (above / "secret.img").write_text(SECRET * 1000)
    (folder / ".hidden.tif").write_text(SECRET)
    (folder / "plain.txt").write_text("a text")
    (folder / "link.tif").symlink_to(above / "secret.tif")
    (folder / "up").symlink_to(above)
    (folder / "loop.tif").symlink_to(folder / "loop.tif")
    size = "samples = 10\nlines = 10\nbands = 1\n"
    header = f"ENVI\n{size}header offset = 0\ndata type = 1\ninterleave = bsq\nbyte order = 0\n"
    (folder / "outside.hdr").write_text(header)
    (folder / "outside.img").symlink_to(above / "secret.img")
    (folder / "linked.zarr").mkdir()
    (folder / "linked.zarr" / "c").symlink_to(above)
    (folder / "disguised.tif").write_text(VRT.format(above / "secret.tif"))
    (folder / "guess.vrt").write_text(f"<VRTDataset rasterXSize='1' rasterYSize='1'><SRS>{above}</SRS></VRTDataset>")
    write_foreign_hdf5(folder, above / "secret.img")
    return folder


def write_foreign_hdf5(folder: Path, secret: Path) -> None:
    with h5py.File(folder / "raw.h5", "w") as file:
        file.create_dataset("cube", (10, 10, 3), dtype="u1", external=[(str(secret), 0, 300)])
    with h5py.File(folder / "linked.h5", "w") as file:
        file["cube"] = h5py.ExternalLink(str(secret), "/cube")
        file["own"] = np.zeros((4, 4, 4))
    with h5py.File(folder / "virtual.h5", "w") as file:
        layout = h5py.VirtualLayout((3, 10, 10), dtype="u1")
        layout[:] = h5py.VirtualSource(str(secret), "cube", shape=(3, 10, 10))
        file.create_virtual_dataset("cube", layout)


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    with served({"fused": folder / "reference.tif", "hsi": folder / "hsi.tif"}, folder) as url:
        yield url


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=60) as client:
        yield client


@pytest.fixture(autouse=True)
def server_keeps_running(client: httpx.Client) -> Iterator[None]:
    yield
    assert client.get("icon.svg").status_code == 200


def refused(reply: httpx.Response, *statuses: int) -> None:
    assert 400 <= reply.status_code < 500, f"{reply.status_code} {reply.text[:300]}"
    assert not statuses or reply.status_code in statuses, f"{reply.status_code} {reply.text[:300]}"
    assert SECRET not in reply.text
    assert "Traceback" not in reply.text
    if reply.content:
        assert set(reply.json()) == {"got", "expected", "remedy"}
    assert_strict_headers(reply)


def assert_strict_headers(reply: httpx.Response) -> None:
    assert "default-src 'none'" in reply.headers["content-security-policy"]
    assert "unsafe" not in reply.headers["content-security-policy"]
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.headers["referrer-policy"] == "no-referrer"
    assert "access-control-allow-origin" not in reply.headers
    assert "server" not in reply.headers


def test_without_the_token_there_is_nothing(client: httpx.Client, url: str) -> None:
    parts = urlsplit(url)
    root = f"http://{parts.netloc}"
    for path in (
        "/",
        "/api/scene",
        "/script/main.js",
        "/wrong/",
        "/wrong/api/scene",
        parts.path[:-2] + "/api/scene",
        parts.path[:-1],
        "//",
    ):
        refused(client.get(root + path), 403)
    refused(client.post(root + "/api/scores"), 403)


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1", "127.0.0.1:1", "localhost", "127.0.0.1.evil.example:80", ""]
)
def test_another_host_is_refused(client: httpx.Client, host: str) -> None:
    """A name that an attacker points at this machine (DNS rebinding) does not reach the page."""
    refused(client.get("", headers={"host": host}), 403)


def test_another_site_cannot_post(client: httpx.Client) -> None:
    for origin in ("http://evil.example", "null", "http://127.0.0.1:1"):
        refused(client.post("api/scores", headers={"origin": origin}), 403)
    refused(client.request("OPTIONS", "api/scores", headers={"origin": "http://evil.example"}), 405)


@pytest.mark.parametrize("method", ["DELETE", "PATCH", "TRACE", "CONNECT", "OPTIONS", "BREW"])
def test_other_methods(client: httpx.Client, method: str) -> None:
    refused(client.request(method, "api/scene"), 405)


OUTSIDE = [
    "../secret.tif",
    "../../../../../../etc/passwd",
    "/etc/passwd",
    "up/secret.tif",
    "link.tif",
    "deeper/../../secret.tif",
    "..\\secret.tif",
    "%2e%2e/secret.tif",
    "....//secret.tif",
    "~/secret.tif",
    "file:///etc/passwd",
    "/vsicurl/http://127.0.0.1/x.tif",
    "loop.tif",
    "nul\0.tif",
    "a" * 900 + ".tif",
    "",
    ".",
    "..",
]


@pytest.mark.parametrize("path", OUTSIDE)
def test_no_path_leads_outside(client: httpx.Client, path: str) -> None:
    for question in ("api/files/summary", "api/files/picture", "api/download"):
        refused(client.get(question, params={"path": path}))
    for role in ("fused", "hsi"):
        refused(client.post("api/scene", json={role: path}))
    refused(client.post("api/estimate", json={"hsi": path, "msi": "msi.tif"}))
    refused(client.post("api/fuse", json=PAIR | {"output": path}))
    refused(client.post("api/fuse", json=PAIR | {"msi": path, "output": "out.tif"}))
    for option in ("weights", "mask", "hsi_mask"):
        refused(client.post("api/fuse", json=PAIR | {"output": "out.tif", "options": {option: path}}))
    refused(client.post("api/uncertainty", json=PAIR | {"output": path, "options": {}}))


REACHING_OUT = [
    "outside.hdr",
    "guess.vrt",
    "disguised.tif",
    "plain.txt",
    "raw.h5",
    "linked.h5",
    "virtual.h5",
    "linked.zarr",
]


@pytest.mark.parametrize("path", REACHING_OUT)
def test_files_that_reach_for_others_are_not_opened(client: httpx.Client, path: str) -> None:
    refused(client.get("api/files/summary", params={"path": path}))
    refused(client.get("api/files/picture", params={"path": path}))
    refused(client.post("api/scene", json={"fused": path}))


def test_only_cubes_are_given_away(client: httpx.Client) -> None:
    for path in (".hidden.tif", "plain.txt", "guess.vrt", "linked.zarr"):
        refused(client.get("api/download", params={"path": path}))


def test_listing_holds_nothing_from_outside(client: httpx.Client) -> None:
    names = {file["path"] for file in client.get("api/files").json()["files"]}
    assert not names & {"link.tif", "loop.tif", ".hidden.tif", "up/secret.tif"}


UPLOADS = [
    "../x.tif",
    "..%2fx.tif",
    "%2e%2e%2fx.tif",
    "a/b.tif",
    ".hidden.tif",
    "x.exe",
    "x.vrt",
    "x",
    "x.tif%5c",
    "x%0a.tif",
    "..",
    "%00.tif",
]


@pytest.mark.parametrize("name", UPLOADS)
def test_uploads_go_nowhere_else(client: httpx.Client, folder: Path, name: str) -> None:
    before = sorted([*folder.parent.iterdir(), *folder.iterdir()])
    refused(client.put(f"api/uploads/{name}", content=b"x"))
    assert sorted([*folder.parent.iterdir(), *folder.iterdir()]) == before


def test_too_large_requests(client: httpx.Client, url: str, folder: Path) -> None:
    """The server may hang up before it has read everything; then there is no reply to look at."""

    def endless() -> Iterator[bytes]:
        for _ in range(SMALL_BODY // 1000 + 10):
            yield b"[" * 1000

    for content in (b"[" * (SMALL_BODY + 1), endless()):
        with contextlib.suppress(httpx.TransportError):
            refused(client.post("api/scene", content=content, headers={"content-type": "application/json"}), 413)
    assert b" 413 " in first_line(url, "PUT", "api/uploads/huge.tif", f"Content-Length: {2**60}")
    assert not (folder / "huge.tif").exists()


def test_a_request_that_never_ends_is_given_up(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "SECONDS_WITHOUT_DATA", 0.3)
    assert b" 408 " in first_line(url, "POST", "api/scene", "Content-Type: application/json\r\nContent-Length: 100")


def test_an_upload_drop_by_drop_is_given_up(url: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "SECONDS_WITHOUT_DATA", 0.3)
    with asking(url, "PUT", "api/uploads/slow.tif", "Content-Length: 1000000") as connection:
        connection.settimeout(0.02)
        answer = b""
        while not answer:
            with contextlib.suppress(TimeoutError):
                answer = connection.recv(4096)
                break
            with contextlib.suppress(OSError):
                connection.sendall(b"x")
    assert b" 408 " in answer
    assert not (folder / "slow.tif").exists()


def test_an_upload_that_ends_early_leaves_nothing(url: str, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    def appear(there: bool) -> None:
        deadline = time.monotonic() + 60
        while any("early" in path.name for path in folder.iterdir()) != there:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    with asking(url, "PUT", "api/uploads/early.tif", "Content-Length: 100000") as connection:
        connection.sendall(b"x" * 1000)
        appear(there=True)
    appear(there=False)
    assert not caplog.records


@pytest.mark.parametrize("data", [b"", b"GET / HTTP/1.1\r\nHost"])
def test_silence_is_hung_up_on(url: str, monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    """Else a few hundred connections that say nothing would keep everybody out."""
    monkeypatch.setattr(server, "SECONDS_FOR_A_HEAD", 0.2)
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port), timeout=60) as connection:
        connection.sendall(data)
        assert connection.recv(100) == b""


@contextlib.contextmanager
def asking(url: str, method: str, path: str, headers: str) -> Iterator[socket.socket]:
    """A request whose body has not come yet."""
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port), timeout=60) as connection:
        connection.sendall(
            f"{method} {parts.path}{path} HTTP/1.1\r\nHost: {parts.netloc}\r\n{headers}\r\n\r\n".encode()
        )
        yield connection


def first_line(url: str, method: str, path: str, headers: str) -> bytes:
    """Of the answer to a request whose body never comes."""
    with asking(url, method, path, headers) as connection:
        return connection.recv(4096).split(b"\r\n")[0]


NONSENSE = [
    "api/tiles/1/fused/0/0/0?style=nonsense",
    "api/tiles/1/fused/0/0/0?style=bands",
    "api/tiles/1/fused/0/0/0?style=bands&bands=1&bands=2",
    "api/tiles/1/fused/0/0/0?style=band&bands=-1",
    "api/tiles/1/fused/0/0/0?style=band&bands=1e99",
    "api/tiles/1/fused/0/0/0?style=bands&" + "&".join(["bands=1"] * 3000),
    "api/tiles/1/fused/0/0/0?low=nan",
    "api/tiles/1/fused/0/0/0?low=99&high=1",
    "api/tiles/1/fused/0/0/0?style=index&index=__class__",
    "api/tiles/1/fused/0/0/0?unknown=1",
    "api/tiles/1/fused/-1/0/0",
    "api/tiles/1/fused/63/0/0",
    "api/tiles/1/fused/0/-1/0",
    "api/tiles/1/fused/0/99999999999999999999/0",
    "api/tiles/1/fused/0/0/" + "9" * 5000,
    "api/tiles/1/__dict__/0/0/0",
    "api/tiles/1/difference/0/0/0",
    "api/tiles/2/fused/0/0/0",
    "api/tiles/x/fused/0/0/0",
    "api/legends/1/nothing",
    "api/spectra/1?row=nan&column=0",
    "api/spectra/1?row=inf&column=0",
    "api/spectra/1?row=x",
    "api/images/nothing",
    "api/jobs/nothing",
    "api/nothing",
    "script/../../app.py",
    "script/%2e%2e/%2e%2e/app.py",
    "..%2fapp.py",
    "docs",
    "openapi.json",
]


@pytest.mark.parametrize("question", NONSENSE, ids=lambda question: question[:50])
def test_nonsense(client: httpx.Client, question: str) -> None:
    refused(client.get(question))


BODIES = [
    b"",
    b"null",
    b"[]",
    b"{",
    b'{"corners": "x"}',
    b'{"corners": [[1]]}',
    b'{"corners": []}',
    b'{"corners": [[0, 0], [1, 1]]}',
    b'{"corners": [[1, 2], [NaN, 1], [1, 1]]}',
    b'{"corners": [[1e400, 2], [1, 1], [1, 1]]}',
    b'{"corners": [], "more": 1}',
    b"\xff\xfe\x00",
    b'{"corners": ' + b"[" * 5000 + b"]" * 5000 + b"}",
]


@pytest.mark.parametrize("body", BODIES, ids=range(len(BODIES)))
def test_bodies_that_are_none(client: httpx.Client, body: bytes) -> None:
    for path in ("api/regions/1", "api/fuse", "api/estimate", "api/overviews"):
        refused(client.post(path, content=body, headers={"content-type": "application/json"}))


def test_unknown_choices_of_fusing(client: httpx.Client, folder: Path) -> None:
    for output in ("x.exe", "x\n.tif", "none/x.tif", None):
        refused(client.post("api/fuse", json=PAIR | {"output": output}))
    for options in (
        {"trust": "me"},
        {"weights": "y"},
        {"weights": ["deeper"]},
        {"unknown": 1},
        {"uncertainty": "other.tif"},
        {"cluster": "tcp://127.0.0.1:1"},
        {"srf": "../secret.csv"},
        {"creation_options": {"COMPRESS": "ZSTD"}},
        {"estimate": "perhaps"},
        {"ram_gb": -1},
        {"psf_fwhm": "wide"},
        {"bounds": "1 2 3"},
        {"hsi_band_axis": 7},
        {"method": {"name": "gsa"}},
        {"dtype": "x" * 10_000},
        [],
        None,
    ):
        refused(client.post("api/fuse", json=PAIR | {"output": "x.tif", "options": options}))
    assert not (folder / "x.tif").exists()


def test_overviews_only_where_they_are_offered(client: httpx.Client, folder: Path) -> None:
    refused(client.post("api/overviews", json={"role": "fused"}))
    refused(client.post("api/overviews", json={"role": "nothing"}))
    assert not list(folder.glob("*.ovr"))


@pytest.mark.parametrize(
    "raw",
    [
        b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\nzz",
    ],
    ids=range(7),
)
def test_raw_bytes(url: str, raw: bytes) -> None:
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port), timeout=60) as connection:
        connection.sendall(raw)
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while piece := connection.recv(4096):
            answer += piece
    assert answer == b"" or b" 4" in answer.split(b"\r\n")[0]
    assert b"Traceback" not in answer


def test_only_this_machine_is_served(url: str) -> None:
    assert urlsplit(url).hostname == "127.0.0.1"
    others = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)} - {"127.0.0.1"}
    for address in others:
        if not address.startswith("127."):
            with pytest.raises(OSError, match="refused"):
                socket.create_connection((address, urlsplit(url).port), timeout=2)


def test_good_replies_have_strict_headers_too(client: httpx.Client) -> None:
    for path in ("", "script/main.js", "api/scene", "api/tiles/1/fused/0/0/0"):
        reply = client.get(path)
        assert reply.status_code == 200
        assert_strict_headers(reply)
