"""The run: the same pairs for all models, scores, resuming after a kill, failures recorded and named."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.benchmarking.tiny_benchmarks import write_scene
from tests.models.network_fixtures import tiny_network

from hyperfuse.benchmarking import run as running
from hyperfuse.benchmarking.cases import CasePair, listed_srfs, read_pairs, simulated_case
from hyperfuse.benchmarking.results import CaseName, Result, read_record, read_results
from hyperfuse.benchmarking.run import benchmark, measured
from hyperfuse.benchmarking.tables import case_figures, case_folder, keep_views, load_fused, summary_markdown
from hyperfuse.errors import GridError, OptionError, ValueRangeError
from hyperfuse.fusion.run import fuse
from hyperfuse.io.cube import make_cube
from hyperfuse.io.files import open_cube, write_cube
from hyperfuse.methods import catalogue
from hyperfuse.models.catalogue import BASELINE_PRESETS, build_network
from hyperfuse.physics.imperfections import IMPERFECTIONS
from hyperfuse.physics.simulate import simulate

METHODS = ["bicubic", "glp"]
CHEAP = {"knowledge": ["oracle"], "pictures": False}


@pytest.fixture
def scene(tmp_path):
    return write_scene(tmp_path / "scene.npz")


def by_key(done):
    return {(r.case.scale, r.case.condition, r.model, r.knowledge): r for r in done.results}


def test_scores_are_those_of_fuse_on_the_simulated_pair(tmp_path, scene):
    done = benchmark(
        tmp_path / "out",
        scenes=[str(scene)],
        methods=METHODS,
        noise=[(30.0, 40.0)],
        shift=[(0.5, 0.5)],
        knowledge=["blind", "oracle"],
    )
    assert len(done.results) == 3 * 2 * 2
    assert not done.failed
    counts = open_cube(scene).values.astype(np.float64)
    reference = np.clip(counts / np.quantile(counts, 0.9995), 0, 1)
    pair = simulate(make_cube(reference, wavelength_nm=open_cube(scene)["wavelength"].values), 4, "rgb")
    fused = np.clip(fuse(pair.hsi, pair.msi, method="glp").values, 0, 1)
    expected = -10 * np.log10(np.mean((fused - reference) ** 2))
    found = by_key(done)[4.0, "clean", "glp", "blind"]
    # The benchmark simulates in float32; which pixels are found to disagree depends on the last digits.
    assert found.psnr_db == pytest.approx(expected, abs=5e-3)
    assert (
        by_key(done)[4.0, "noise 30/40 dB", "glp", "oracle"].psnr_db
        < by_key(done)[4.0, "clean", "glp", "oracle"].psnr_db
    )
    told, not_told = (
        by_key(done)[4.0, "shift 0.5 0.5", "bicubic", knowledge].psnr_db for knowledge in ("oracle", "blind")
    )
    assert told == pytest.approx(by_key(done)[4.0, "clean", "bicubic", "oracle"].psnr_db, abs=1.0)
    assert not_told == pytest.approx(told, abs=0.1)
    assert all(r.seconds > 0 and r.cpu_seconds > 0 and 0 < r.ssim <= 1 and r.ergas > 0 for r in done.results)


def test_killed_run_resumes_to_the_same_scores(tmp_path, scene, monkeypatch):
    def run(folder):
        return benchmark(folder, scenes=[str(scene)], methods=METHODS, scales=[4, 8], **CHEAP)

    whole = run(tmp_path / "whole")
    run(tmp_path / "killed")
    results = tmp_path / "killed" / "results.jsonl"
    lines = results.read_text().splitlines(keepends=True)
    results.write_text("".join(lines[:2]) + lines[2][:40])  # the machine went down in the middle of a line
    ran = []

    def counting(model, knowledge, case, *rest):
        ran.append((model.name, case.scale))
        return original(model, knowledge, case, *rest)

    original = running.run_model
    monkeypatch.setattr(running, "run_model", counting)
    continued = run(tmp_path / "killed")
    assert ran == [("bicubic", 8.0), ("glp", 8.0)]
    assert [r.psnr_db for r in continued.results] == [r.psnr_db for r in whole.results]
    assert all(json.loads(line) for line in results.read_text().splitlines())
    assert len(results.read_text().splitlines()) == 4


def test_folders_of_earlier_versions_are_read_and_resumed(tmp_path, scene):
    folder = tmp_path / "out"
    done = benchmark(folder, scenes=[str(scene)], methods=METHODS, knowledge=["oracle"])
    results, record = folder / "results.jsonl", folder / "benchmark.json"
    entry = json.loads(results.read_text().splitlines()[0])
    assert (entry["model"], entry["case"]["srf"]) == ("bicubic", "rgb")
    assert list(json.loads(record.read_text())["request"]["models"]) == METHODS
    results.write_text(results.read_text().replace('"model":', '"competitor":').replace('"srf":', '"response":'))
    record.write_text(record.read_text().replace('"models":', '"competitors":'))
    assert list(read_results(results)) == done.results
    assert benchmark(folder, scenes=[str(scene)], methods=METHODS, knowledge=["oracle"]).results == done.results
    assert "2 scored" in repr(done) and "glp (oracle)" in repr(done)


def test_another_request_on_the_same_folder_is_refused(tmp_path, scene):
    folder = tmp_path / "out"
    benchmark(folder, scenes=[str(scene)], methods=["bicubic"], **CHEAP)
    before = {path: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(OptionError, match=r"another request: scales were 4 and are now 8"):
        benchmark(folder, scenes=[str(scene)], methods=["bicubic"], scales=[8], **CHEAP)
    with pytest.raises(OptionError, match=r"models differ in glp"):
        benchmark(folder, scenes=[str(scene)], methods=METHODS, **CHEAP)
    write_scene(tmp_path / "other.npz", seed=5)
    write_cube(open_cube(tmp_path / "other.npz"), scene, overwrite=True)
    with pytest.raises(OptionError, match="scenes differ in"):
        benchmark(folder, scenes=[str(scene)], methods=["bicubic"], **CHEAP)
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_a_folder_of_other_things_is_refused(tmp_path, scene):
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "mum.txt").touch()
    with pytest.raises(OptionError, match="holds other files"):
        benchmark(tmp_path / "letters", scenes=[str(scene)], methods=["bicubic"])


def test_a_failure_is_recorded_tried_again_and_stops_nobody_else(tmp_path, scene, monkeypatch):
    def failing(error):
        def function(window):
            raise error
            yield

        return replace(catalogue.METHODS["glp"], function=function)

    good = catalogue.METHODS["glp"]
    for error, is_bug, words in (
        (ValueRangeError("a dark night"), False, "a dark night"),
        (ZeroDivisionError("by zero\nreally"), True, "ZeroDivisionError: by zero"),
    ):
        monkeypatch.setitem(catalogue.METHODS, "glp", failing(error))
        done = benchmark(tmp_path / "out", scenes=[str(scene)], methods=["glp", "bicubic"], **CHEAP)
        assert [(r.model, r.is_bug, r.message) for r in done.failed] == [("glp", is_bug, words)]
        assert [r.state for r in done.results] == ["failed", "scored"]
    monkeypatch.setitem(catalogue.METHODS, "glp", good)
    assert not benchmark(tmp_path / "out", scenes=[str(scene)], methods=["glp", "bicubic"], **CHEAP).failed


def test_a_pair_that_cannot_be_made_stops_no_other_scene(tmp_path, scene, monkeypatch):
    def made(scored, *others):
        if scored.name == "other":
            raise ZeroDivisionError("no light")
        return simulated_case(scored, *others)

    monkeypatch.setattr("hyperfuse.benchmarking.cases.simulated_case", made)
    other = write_scene(tmp_path / "other.npz", seed=1)
    done = benchmark(tmp_path / "out", scenes=[str(other), str(scene)], methods=["bicubic"], **CHEAP)
    assert [(r.case.scene, r.state, r.is_bug) for r in done.results] == [
        ("other", "failed", True),
        ("scene", "scored", False),
    ]
    assert done.failed[0].message == "ZeroDivisionError: no light"


def test_views_of_models_with_any_name(tmp_path):
    cube = make_cube(np.random.default_rng(0).random((4, 8, 8), dtype=np.float32))
    pair = CasePair(cube.isel(y=slice(0, 2), x=slice(0, 2)), cube.isel(band=slice(0, 3)), cube, None, None, 4.0)
    names = ["inputs", "mine/best", "mine_best", "plain"]
    for darker, name in enumerate(names):
        keep_views(tmp_path / "case", pair, name, cube.values / (1 + darker))
    found = load_fused(tmp_path / "case", names)
    assert list(found) == names
    assert len({float(views.spectra.sum()) for views in found.values()}) == len(names)
    assert (tmp_path / "case" / "plain.npz").exists()


def test_every_image_of_a_case_figure_fills_its_axes(tmp_path, monkeypatch):
    cube = make_cube(np.random.default_rng(0).random((4, 48, 32), dtype=np.float32))
    pair = CasePair(cube.isel(y=slice(0, 12), x=slice(0, 8)), cube.isel(band=slice(0, 3)), cube, None, None, 4.0)
    case = CaseName("set", "scene", "rgb", 4.0, "clean")
    keep_views(case_folder(tmp_path, case), pair, "ours", cube.values * 0.9)
    drawn = []
    monkeypatch.setattr("hyperfuse.reporting.style.save_png", lambda figure, path, _: drawn.append(figure) or path)
    assert len(case_figures(tmp_path, [Result(case, "ours", "blind", "scored")])) == 1
    images = [axes for axes in drawn[0].axes if axes.images]
    assert len(images) == 4 * 2 + 1, "HSI, MSI, reference and fused image, each with a close-up, and the error map"
    for axes in images:
        left, right, bottom, top = axes.images[0].get_extent()
        assert left <= min(axes.get_xlim()) < max(axes.get_xlim()) <= right
        assert top <= min(axes.get_ylim()) < max(axes.get_ylim()) <= bottom


def test_networks_and_baselines_that_do_not_fit(tmp_path, scene):
    torch.manual_seed(0)
    tiny_network().save_pretrained(tmp_path / "run" / "weights")
    build_network(BASELINE_PRESETS["mimo-sst-thin"].with_bands(12, 3)).save_pretrained(tmp_path / "baseline")
    build_network(BASELINE_PRESETS["mimo-sst-thin"].with_bands(31, 3)).save_pretrained(tmp_path / "stranger")
    folders = [str(tmp_path / "run" / "weights"), f"mimo={tmp_path / 'baseline'}", str(tmp_path / "stranger")]
    done = benchmark(
        tmp_path / "out",
        scenes=[str(scene)],
        methods=[],
        weights=folders,
        knowledge=["blind", "oracle"],
        pictures=False,
    )
    states = {(r.model, r.knowledge): r.state for r in done.results}
    assert states == {
        (name, knowledge): "does not fit" if name == "stranger" else "scored"
        for name in ("run", "mimo", "stranger")
        for knowledge in ("blind", "oracle")
    }
    assert not done.failed
    summary = summary_markdown(done.results, read_record(tmp_path / "out"))
    assert summary.endswith("## Left out\n\n- stranger is not made for 12 and 3 bands: scene, rgb, x4, clean")


def test_recorded_pairs_are_fused_blind(tmp_path, scene):
    fine = open_cube(scene)
    msi = make_cube(np.stack([fine.values[:4].mean(axis=0), fine.values[6:].mean(axis=0)]).astype(np.float32))
    write_cube(msi, tmp_path / "msi.npz")
    pair = simulate(fine, 4, np.eye(2, 12))
    write_cube(pair.hsi, tmp_path / "hsi.npz")
    done = benchmark(
        tmp_path / "out",
        pairs=[f"{tmp_path / 'hsi.npz'},{tmp_path / 'msi.npz'},{scene}", f"{scene},{tmp_path / 'msi.npz'}"],
        methods=["glp"],
        scales=[4],
        knowledge=["blind", "oracle"],
    )
    whole, made = done.results
    assert (whole.case.scene, made.case.scene) == ("hsi", "scene")
    assert {r.knowledge for r in done.results} == {"blind"}
    assert whole.psnr_db == pytest.approx(made.psnr_db, abs=0.2)


def test_recorded_pairs_are_scored_where_their_reference_lies(tmp_path):
    """The reference lies where the HSI lies: an MSI that is displaced costs little once its shift is estimated."""
    rows, columns = np.indices((72, 72))
    waves = [np.sin(rows / (1.5 + i) + i) + np.cos(columns / (2.5 - 0.3 * i) + i * rows / 9) for i in range(4)]
    shares = np.stack(waves) + 2.2
    spectra = np.random.default_rng(0).uniform(0.1, 1.0, (12, 4))
    ground = np.tensordot(spectra, shares, axes=1).astype(np.float32)
    reference = ground[:, 4:68, 4:68]
    write_cube(make_cube(reference, wavelength_nm=np.linspace(420.0, 900.0, 12)), tmp_path / "reference.npz")
    scores = []
    for down, right in ((0, 0), (2, -1)):
        msi = ground[[2, 5, 9], 4 - down : 68 - down, 4 - right : 68 - right]
        write_cube(make_cube(msi), tmp_path / f"msi{down}.npz")
        pairs = [f"{tmp_path / 'reference.npz'},{tmp_path / f'msi{down}.npz'}"]
        done = benchmark(tmp_path / f"out{down}", pairs=pairs, methods=["glp"], knowledge=["blind", "nominal"])
        scores.append({result.knowledge: result.psnr_db for result in done.results})
    together, displaced = scores
    assert together["nominal"] == pytest.approx(together["blind"], abs=1.0)
    assert displaced["blind"] > together["blind"] - 4.0  # the MSI shows nothing of two rows and a column
    assert displaced["nominal"] < displaced["blind"] - 5.0


def test_the_msi_of_a_recorded_pair_may_be_finer_than_the_reference(tmp_path, scene):
    fine = open_cube(scene).isel(band=slice(0, 2)).values.astype(np.float32)
    write_cube(make_cube(np.kron(fine, np.ones((1, 5, 5), np.float32))), tmp_path / "msi.npz")
    (pair,) = read_pairs([f"{scene},{tmp_path / 'msi.npz'}"])
    assert pair.msi.shape == (2, 32, 32)
    assert np.corrcoef(pair.msi.values.ravel(), fine.ravel())[0, 1] > 0.97
    write_cube(make_cube(fine[:, :20]), tmp_path / "cut.npz")
    with pytest.raises(GridError, match="a finer MSI of the same extent"):
        read_pairs([f"{scene},{tmp_path / 'cut.npz'}"])


def test_imperfections_are_conditions(tmp_path, scene):
    done = benchmark(
        tmp_path / "out",
        scenes=[str(scene)],
        methods=["glp"],
        imperfections=["gamma8", "shift"],
        knowledge=["blind", "oracle", "nominal"],
        pictures=False,
    )
    found = by_key(done)
    assert list(dict.fromkeys(r.case.condition for r in done.results)) == ["clean", "gamma8", "shift"]
    assert found[4.0, "gamma8", "glp", "oracle"].psnr_db < found[4.0, "clean", "glp", "oracle"].psnr_db
    assert found[4.0, "shift", "glp", "nominal"].psnr_db < found[4.0, "shift", "glp", "oracle"].psnr_db
    summary = summary_markdown(done.results, read_record(tmp_path / "out"))
    assert "## Mean PSNR in dB" in summary
    assert "| shift | MSI shifted by 1.7 pixels down and 1.2 to the left | 1 |" in summary
    again = benchmark(
        tmp_path / "again", scenes=[str(scene)], methods=["glp"], imperfections="all", clean=False, **CHEAP
    )
    assert [r.case.condition for r in again.results] == list(IMPERFECTIONS)
    assert not again.failed
    assert by_key(again)[4.0, "shift", "glp", "oracle"].psnr_db == found[4.0, "shift", "glp", "oracle"].psnr_db


def test_pairs_of_the_same_file_names_are_told_apart_by_their_folders(tmp_path, scene):
    texts = []
    for folder in ("north", "south"):
        (tmp_path / folder).mkdir()
        write_cube(open_cube(scene).isel(band=slice(0, 2)), tmp_path / folder / "msi.npz")
        write_scene(tmp_path / folder / "reference.npz", seed=len(texts))
        texts.append(f"{tmp_path / folder / 'reference.npz'},{tmp_path / folder / 'msi.npz'}")
    assert [pair.name for pair in read_pairs(texts)] == ["north/reference", "south/reference"]
    assert read_pairs(texts[:1])[0].name == "reference"
    with pytest.raises(OptionError, match="two pairs called north/reference"):
        read_pairs([texts[0], texts[0]])


@pytest.mark.parametrize(
    ("text", "srfs"),
    [
        ("rgb, rgb+nir", ["rgb", "rgb+nir"]),
        ("Sentinel-2A:B2,B3,B8,rgb,Landsat-8:B2,B3", ["Sentinel-2A:B2,B3,B8", "rgb", "Landsat-8:B2,B3"]),
        ("Sentinel-2A:B2,B3,camera.csv", ["Sentinel-2A:B2,B3", "camera.csv"]),
        (",", []),
    ],
)
def test_a_choice_of_bands_is_one_response(text, srfs):
    assert listed_srfs(text) == srfs


def test_what_is_asked_twice_is_run_once(tmp_path, scene):
    done = benchmark(
        tmp_path / "out", scenes=[str(scene)], methods=["bicubic"] * 2, scales=[4, 4.0], srfs=["rgb", "rgb"], **CHEAP
    )
    assert len(done.results) == 1
    request = json.loads((tmp_path / "out" / "benchmark.json").read_text())["request"]
    assert request["scales"] == [4.0]
    assert [srfs for _, srfs in request["scenes"].values()] == [["rgb"]]


def test_what_does_not_go_together_is_left_out(tmp_path, scene):
    dark = write_scene(tmp_path / "nameless.npz", seed=3, wavelengths=False)
    done = benchmark(
        tmp_path / "out",
        scenes=[f"valley={scene}@rgb,rgb+nir,rgb+nir+swir", str(dark)],
        methods=["bicubic"],
        scales=[3.2, 32],
        srfs=["rgb"],
        **CHEAP,
    )
    record = json.loads((tmp_path / "out" / "benchmark.json").read_text())
    assert {(r.case.dataset, r.case.srf) for r in done.results} == {
        ("valley", "rgb"),
        ("valley", "rgb+nir"),
        (tmp_path.name, "rgb"),
    }
    assert record["request"]["left_out"] == [
        "scene has no room for x32",
        "scene does not cover rgb+nir+swir",
        "nameless has no room for x32",
    ]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"scenes": []}, "nothing to benchmark on"),
        ({"methods": ["gps"]}, "method 'gps'"),
        ({"methods": []}, "no model to score"),
        ({"scales": [0.5]}, "scales 0.5; expected a number above 1"),
        ({"scales": []}, "scales none; expected at least 1 of them"),
        ({"knowledge": ["wise"]}, "knowledge 'wise'; expected blind, oracle or nominal"),
        ({"clean": False}, "no condition to simulate"),
        ({"imperfections": ["fog"]}, "imperfection 'fog'.*some of gamma8"),
        ({"noise": [(float("nan"), 40.0)]}, "HSI nan dB"),
        ({"shift": [(float("inf"), 0.0)]}, "shift inf 0 on a scene of 32x32"),
        ({"srfs": ["rainbow"]}, "unknown SRF 'rainbow'"),
        ({"srfs": []}, "no SRF for the scenes"),
        ({"scenes": ["nowhere/*.tif"]}, "scenes 'nowhere"),
        ({"pairs": ["one.tif"]}, "pair 'one.tif'"),
        ({"weights": ["nowhere"]}, "does not exist"),
        ({"scales": [64]}, "no case to score"),
        ({"srfs": ["camera.csv", "other/camera.csv"]}, "two SRFs called camera"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(tmp_path, scene, wrong, words):
    with pytest.raises(Exception, match=words) as refusal:
        benchmark(tmp_path / "out", **({"scenes": [str(scene)], "methods": ["bicubic"]} | wrong))
    assert refusal.type.__module__ == "hyperfuse.errors"
    assert not (tmp_path / "out").exists()


def test_memory_is_what_the_work_itself_takes():
    sizes = []
    for _ in range(2):
        _, cost = measured(lambda: float(np.ones(16_000_000, dtype=np.float32).sum()))
        sizes.append(cost.peak_bytes)
    if sizes[0] is None:
        pytest.skip("this system does not say how much memory a process took at its peak")
    assert all(60e6 < size < 100e6 for size in sizes)
