"""The server as the page uses it, over a true socket."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image
from tests.viewer.served_page import finished, served
from tests.viewer.viewer_scenes import write_pair

from hyperfuse.config import FuseConfig
from hyperfuse.io.files import open_cube
from hyperfuse.progress import ProgressReport
from hyperfuse.viewer import app
from hyperfuse.viewer.jobs import Job

IMAGES = ("hsi", "msi", "reference")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    write_pair(folder)
    (folder / "deeper").mkdir()
    (folder / "deeper" / "notes.txt").write_text("not a cube")
    return folder


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[httpx.Client]:
    images = {"fused": folder / "reference.tif"} | {role: folder / f"{role}.tif" for role in IMAGES}
    with served(images, folder) as url, httpx.Client(base_url=url, timeout=60) as client:
        yield client


def number_of(client: httpx.Client) -> int:
    return int(client.get("api/scene").json()["number"])


def test_page_and_its_modules(client: httpx.Client) -> None:
    page = client.get("")
    assert page.status_code == 200
    assert "<canvas" in page.text
    assert client.get("script/main.js").headers["content-type"].startswith("text/javascript")
    assert client.get("style/base.css").headers["content-type"].startswith("text/css")
    assert "http://" not in page.text.replace("http://www.w3.org", "")
    modules = {path.name for path in (app.PAGE / "script").glob("*.js")}
    assert set(re.findall(r'"script/(\w+\.js)"', page.text)) == modules


def test_scene(client: httpx.Client) -> None:
    scene = client.get("api/scene").json()
    assert [image["role"] for image in scene["images"]] == ["fused", "hsi", "msi", "reference"]
    assert (scene["height"], scene["width"], scene["lead"], scene["levels"]) == (96, 96, "fused", 0)
    assert scene["images"][1]["scale"] == [4.0, 4.0]
    assert scene["images"][1]["path"] == "hsi.tif"
    assert {"NDVI", "NDWI", "NDMI", "NBR", "EVI"} <= {index["name"] for index in scene["indices"]}
    assert not any(map_["unavailable"] for map_ in scene["maps"] if map_["name"] not in ("uncertainty_map", "change"))


def test_tile(client: httpx.Client) -> None:
    reply = client.get(f"api/tiles/{number_of(client)}/fused/0/0/0?style=bands&bands=8&bands=5&bands=3&low=1&high=99")
    assert reply.headers["content-type"] == "image/png"
    assert reply.headers["x-complete"] == "1.000"
    picture = np.array(Image.open(io.BytesIO(reply.content)))
    assert picture[:96, :96, 3].all()


def test_legend(client: httpx.Client) -> None:
    legend = client.get(f"api/legends/{number_of(client)}/angle?colours=magma").json()
    assert legend["unit"] == "°"
    assert len(legend["stops"]) == 16
    assert client.get(f"api/legends/{number_of(client)}/fused").json()["stops"] is None


def test_spectra_and_region(client: httpx.Client, folder: Path) -> None:
    number = number_of(client)
    spectra = client.get(f"api/spectra/{number}?row=10&column=20").json()["spectra"]
    reference = open_cube(folder / "reference.tif").values[:, 10, 20]
    np.testing.assert_allclose(spectra[0]["mean"], reference, rtol=1e-6)
    region = client.post(f"api/regions/{number}", json={"corners": [[1, 1], [1, 9], [9, 9]]}).json()["spectra"]
    assert region[0]["pixels"] > 20


def test_metadata(client: httpx.Client) -> None:
    about = client.get("api/images/hsi").json()
    assert (about["bands"], about["crs"]) == (33, "EPSG:32633")


def test_files(client: httpx.Client) -> None:
    names = [file["path"] for file in client.get("api/files").json()["files"]]
    assert {"hsi.tif", "msi.tif", "reference.tif"} <= set(names)
    assert not any("notes" in name for name in names)
    assert client.get("api/files/summary", params={"path": "msi.tif"}).json()["bands"] == 4
    assert client.get("api/files/picture", params={"path": "msi.tif"}).headers["content-type"] == "image/png"


def test_estimate_fuse_view_download(client: httpx.Client, folder: Path) -> None:
    pair = {"hsi": "hsi.tif", "msi": "msi.tif"}
    estimated = finished(client, client.post("api/estimate", json=pair).json())
    assert estimated["state"] == "done", estimated
    assert estimated["result"]["scale"] == [4.0, 4.0]
    methods = {method["name"] for method in client.get("api/methods").json()["methods"]}
    assert {"auto", "gsa", "local_fuse"} <= methods
    fusion = pair | {"output": "deeper/out.tif", "options": {"method": "gsa", "change_mask": True}}
    done = finished(client, client.post("api/fuse", json=fusion).json())
    assert done["state"] == "done", done
    assert done["result"] == {
        "hsi": "hsi.tif",
        "msi": "msi.tif",
        "output": "deeper/out.tif",
        "bytes": (folder / "deeper" / "out.tif").stat().st_size,
        "change_mask": "deeper/out_change_mask.tif",
        "method": "gsa",
        "downloads": ["deeper/out.tif"],
    }
    opened = {"fused": "deeper/out.tif", "reference": "reference.tif", "change_mask": done["result"]["change_mask"]}
    scene = client.post("api/scene", json=pair | opened).json()
    assert scene["lead"] == "fused"
    assert not any(map_["unavailable"] for map_ in scene["maps"] if map_["name"] == "change")
    content = client.get("api/download", params={"path": "deeper/out.tif"})
    assert content.content == (folder / "deeper" / "out.tif").read_bytes()
    assert "attachment" in content.headers["content-disposition"]
    scores = finished(client, client.post("api/scores").json())
    assert scores["result"]["reference"]["psnr_db"] > 30


def test_time_left_is_told_only_where_it_is_known() -> None:
    job = Job("fuse")
    assert job.seconds_left() is None
    job.report = ProgressReport("Fusing", "tiles", 1, 10, 0, seconds=0.2, rate=5.0)
    assert job.seconds_left() is None
    job.report = ProgressReport("Fusing", "tiles", 4, 10, 0, seconds=4.0, rate=1.0)
    job.reported = time.monotonic() - 2
    assert job.seconds_left() == pytest.approx(4, abs=0.5)
    # The estimate has run out: a step takes longer than those before it.
    job.reported = time.monotonic() - 9
    assert job.seconds_left() is None


def test_uncertainty_of_what_was_fused(client: httpx.Client) -> None:
    request = {"hsi": "hsi.tif", "msi": "msi.tif", "output": "sure.tif", "options": {"estimate": False}}
    assert finished(client, client.post("api/fuse", json=request).json())["state"] == "done"
    request["output"] = "sure_uncertainty.tif"
    job = finished(client, client.post("api/uncertainty", json=request).json())
    assert job["state"] == "done", job
    scene = client.post("api/scene", json={"fused": "sure.tif", "uncertainty": job["result"]["output"]}).json()
    assert [map_["name"] for map_ in scene["maps"] if not map_["unavailable"]] == ["uncertainty_map"]
    legend = client.get(f"api/legends/{scene['number']}/uncertainty_map").json()
    assert 0 < legend["limits"][0][1] < 1
    other = request | {"output": "other.tif", "options": {"method": "gsa"}}
    refused = client.post("api/uncertainty", json=other)
    assert refused.status_code == 400
    assert "another method" in refused.json()["got"]


def test_options_of_the_form_are_those_of_the_configuration(client: httpx.Client, folder: Path) -> None:
    fields = {field["name"]: field for field in client.get("api/methods").json()["fields"]}
    hidden = {"method", "weights", "resume", "uncertainty", "cluster", "srf", "creation_options"}
    hidden |= {"wavelengths", "msi_wavelengths"}
    assert set(fields) == set(FuseConfig.model_fields) - hidden
    assert fields["estimate"] | {"help": ""} == {
        "name": "estimate",
        "flag": "--estimate",
        "negative_flag": "--no-estimate",
        "values": 1,
        "repeat": False,
        "label": "Estimate",
        "help": "",
        "group": "How the pair was observed",
        "input": "checkbox",
        "choices": [],
        "placeholder": "",
        "default": True,
    }
    assert fields["trust"]["choices"] == ["msi", "hsi"]
    inputs = {name: fields[name]["input"] for name in ("trust", "psf_fwhm", "workers", "bounds", "bands", "mask")}
    assert list(inputs.values()) == ["select", "number", "number", "text", "text", "file"]
    # The defaults of the form, and values as a form gives them, are valid options.
    options = {name: field["default"] for name, field in fields.items()}
    options |= {"method": "gsa", "bounds": "400000 5799500 400500 5800000", "psf_fwhm": 4, "bands": "1-5"}
    options |= {"hsi_band_axis": None, "mask": None}
    request = {"hsi": "hsi.tif", "msi": "msi.tif", "output": "part.hdr", "options": options}
    done = finished(client, client.post("api/fuse", json=request).json())
    assert done["state"] == "done", done
    assert open_cube(folder / "part.hdr").shape == (5, 50, 50)
    assert done["result"]["downloads"] == ["part.hdr", "part.img"]


def test_networks_of_the_folder(client: httpx.Client, folder: Path) -> None:
    weights = folder / "deeper" / "network"
    weights.mkdir()
    (weights / "config.json").write_text("{}")
    (weights / "weights-0123456789ab.safetensors").write_bytes(b"no tensors")
    assert client.get("api/methods").json()["networks"] == ["deeper/network"]
    request = {"hsi": "hsi.tif", "msi": "msi.tif", "output": "by_network.tif", "options": {"weights": "deeper/network"}}
    failed = finished(client, client.post("api/fuse", json=request).json())
    assert failed["state"] == "failed"
    assert "config.json" in failed["error"]["got"]
    assert client.post("api/fuse", json=request | {"options": {"weights": "deeper"}}).status_code == 400


def test_a_second_run_does_not_overwrite(client: httpx.Client, folder: Path) -> None:
    pair = {"hsi": "hsi.tif", "msi": "msi.tif", "output": "reference.tif", "options": {"method": "gsa"}}
    reply = client.post("api/fuse", json=pair)
    assert reply.status_code == 400
    assert "exists already" in reply.json()["got"]


def test_fusing_that_fails_says_why(client: httpx.Client) -> None:
    wrong_way = {"hsi": "msi.tif", "msi": "hsi.tif", "output": "never.tif", "options": {"method": "gsa"}}
    failed = finished(client, client.post("api/fuse", json=wrong_way).json())
    assert failed["state"] == "failed"
    assert failed["error"]["got"] == "an HSI of 4 bands and an MSI of 33"
    assert "swap" in failed["error"]["remedy"]


def test_upload(client: httpx.Client, folder: Path) -> None:
    content = (folder / "msi.tif").read_bytes()
    reply = client.put("api/uploads/dropped.tif", content=content)
    assert reply.status_code == 201
    assert reply.json() == {"path": "dropped.tif"}
    assert (folder / "dropped.tif").read_bytes() == content
    again = client.put("api/uploads/dropped.tif", content=b"other")
    assert again.status_code == 400
    assert "already" in again.json()["got"]
    assert (folder / "dropped.tif").read_bytes() == content
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


def test_bad_upload_is_reported_when_it_is_opened(client: httpx.Client) -> None:
    assert client.put("api/uploads/broken.tif", content=b"no tiff at all").status_code == 201
    reply = client.get("api/files/summary", params={"path": "broken.tif"})
    assert reply.status_code == 400
    assert set(reply.json()) == {"got", "expected", "remedy"}
    assert "cannot be read" in reply.json()["got"]
