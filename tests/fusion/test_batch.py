"""`hyperfuse batch`: lists that are understood before anything starts, pairs that are done, fail, or are continued."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.fusion.large_scenes import written_pair

from hyperfuse import open_cube
from hyperfuse.cli.app import run
from hyperfuse.config import FuseConfig
from hyperfuse.errors import OptionError
from hyperfuse.fusion import batch
from hyperfuse.fusion.batch import BatchPair, read_batch


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    written_pair(tmp_path, (12, 12), bands=5)
    return tmp_path


def written_list(folder: Path, *lines: str) -> Path:
    path = folder / "pairs.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_many_pairs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One is fused with its own options, one has no image, one is done; then only the failure is left, at last not even
    that.
    """
    (folder / "old.tif").write_bytes(b"mine")
    pairs = written_list(
        folder,
        "hsi,msi,output,method,estimate,shift,dtype,scale_factor,harmonise",
        "hsi.hdr,msi.hdr,first.tif,bicubic,no,0.5 0,float32,1,off",
        "hsi.hdr,missing.tif,second.tif,bicubic,no,,,,",
        "hsi.hdr,msi.hdr,old.tif,,,,,,",
        "hsi.hdr,msi.hdr,third.zarr,glp,no,,,,",
    )
    assert run(["batch", str(pairs)]) == 2
    captured = capsys.readouterr()
    rows = [line.split("│")[1:3] for line in captured.out.splitlines() if "│" in line]
    assert [row[1].strip() for row in rows] == ["fused", "failed", "done already", "fused"]
    assert "missing.tif does not exist" in captured.err
    assert f"1 of 4 pairs failed: {folder / 'second.tif'}" in captured.err
    assert (folder / "old.tif").read_bytes() == b"mine"
    first = open_cube(folder / "first.tif")
    assert first.dtype == np.float32
    assert first.attrs["hyperfuse_method"] == "bicubic"
    assert not (folder / "second.tif").exists()

    assert run(["batch", str(pairs)]) == 2
    assert capsys.readouterr().out.count("done already") == 3
    (folder / "second.tif").write_bytes(b"by hand")
    assert run(["batch", str(pairs)]) == 0


def test_every_column_becomes_an_option(folder: Path) -> None:
    pairs = written_list(
        folder,
        "hsi;msi;output;--psf-fwhm;bounds;trust;co;ram;workers;overwrite;resume;bands;cog",
        "hsi.hdr;msi.hdr;a.tif;3.5;0 0 10 10;hsi;COMPRESS=LZW TILED=YES;1.5;2;yes;no;1,2;true",
        "hsi.hdr;msi.hdr;b.tif;;;;;;;;;;",
    )
    first, second = read_batch(pairs)
    assert isinstance(first.config, FuseConfig)
    known = first.config
    assert (known.psf_fwhm, known.bounds, known.trust, known.ram_gb, known.workers) == (
        3.5,
        (0.0, 0.0, 10.0, 10.0),
        "hsi",
        1.5,
        2,
    )
    assert known.creation_options == {"COMPRESS": "LZW", "TILED": "YES"}
    assert (known.overwrite, known.resume, known.cog, known.bands) == (True, False, True, "1,2")
    assert second == BatchPair(folder / "hsi.hdr", folder / "msi.hdr", folder / "b.tif", FuseConfig(resume=True))


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([], "holds no pairs"),
        (["hsi,msi,output"], "holds no pairs"),
        (["hsi,output", "a,b"], "no column 'msi'"),
        (["hsi,msi,output,hsi", "a,b,c,d"], "two columns 'hsi'"),
        (["hsi,msi,output,colour", "a,b,c.tif,d"], "column 'colour'"),
        (["hsi,msi,output,no-estimate", "a,b,c.tif,yes"], "name it 'estimate', with no in its cells"),
        (["hsi,msi,output", "a,b,c.tif", "a,b"], "line 3: 2 cells; expected 3"),
        (["hsi,msi,output", "a,,c.tif"], "line 2: no msi"),
        (["hsi,msi,output", "a,b,c.jpeg"], "line 2: unknown suffix"),
        (["hsi,msi,output", "a,b,nowhere/c.tif"], "is not a folder"),
        (["hsi,msi,output", "a,b,c.tif", "d,e,./c.tif"], "lines 2 and 3: the same output"),
        (["hsi,msi,output,method", "a,b,c.tif,magic"], "line 2: method 'magic'"),
        (["hsi,msi,output,estimate", "a,b,c.tif,perhaps"], "expected yes or no"),
        (["hsi,msi,output,shift", "a,b,c.tif,1 2 3"], "shift 1 2 3; expected 2 numbers"),
        (["hsi,msi,output,psf_fwhm", "a,b,c.tif,wide"], "expected a number"),
        (["hsi,msi,output,co", "a,b,c.tif,COMPRESS"], "expected --co NAME=VALUE"),
        (["hsi,msi,output", 'a,b,"c.tif'], "unexpected end of data"),
    ],
)
def test_bad_lists_are_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[str], words: str
) -> None:
    monkeypatch.setattr(batch, "run_fusion", None)
    with pytest.raises(OptionError, match=r".*".join(words.split("'")) if "'" in words else words):
        read_batch(written_list(tmp_path, *lines))
    assert [path.name for path in tmp_path.iterdir()] == ["pairs.csv"]


@pytest.mark.parametrize("line", ["a\0.tif,msi.hdr,x.tif,", "hsi.hdr,msi.hdr,x\0.tif,", "hsi.hdr,msi.hdr,x.tif,a\0b"])
def test_a_nul_in_a_name(line: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["batch", str(written_list(folder, "hsi,msi,output,weights", line))]) == 2
    message = capsys.readouterr().err
    assert "line 2: " in message and "NUL character" in message and message.count("\n") == 1


def test_no_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "image.csv").write_bytes(b"\xff\xfe\x00\x01")
    for name, words in (("nothing.csv", "No such file"), ("image.csv", "not UTF-8")):
        assert run(["batch", str(tmp_path / name)]) == 2
        assert words in capsys.readouterr().err


def test_our_own_mistakes_are_told_apart(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*inputs: object) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(batch, "run_fusion", broken)
    assert run(["batch", str(written_list(folder, "hsi,msi,output", "hsi.hdr,msi.hdr,a.tif"))]) == 1
    assert "internal error, ZeroDivisionError: oops" in capsys.readouterr().err
