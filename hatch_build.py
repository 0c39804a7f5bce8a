"""Compile what torch does several times slower; without a C compiler the package is complete, and works in torch."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
import zlib
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = Path("src/hyperfuse")
SOURCE, LIBRARY = PACKAGE / "compiled.c", PACKAGE / "libcompiled.so"
OPTIONS = ("-O3", "-fno-math-errno", "-ffp-contract=fast", "-Wno-psabi", "-shared", "-fPIC")


class CustomBuildHook(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        library = Path(self.root, LIBRARY)
        # Not every compiler can make one library for several generations of processors.
        if not (self._compile(library) or self._compile(library, "-DFOR_EVERY_PROCESSOR=")):
            self.app.display_warning("no C compiler: fusing will take longer")
            return
        build_data["artifacts"].append(LIBRARY.as_posix())
        build_data["pure_python"] = False
        # The library knows nothing of Python.
        build_data["tag"] = "py3-none-" + sysconfig.get_platform().replace("-", "_").replace(".", "_")

    def _compile(self, library: Path, *options: str) -> bool:
        compiler = os.environ.get("CC") or next(filter(shutil.which, ("cc", "gcc", "clang")), None)
        if compiler is None or os.name == "nt":
            return False
        # An older library may be in use.
        made = library.with_suffix(f".{os.getpid()}")
        source = Path(self.root, SOURCE)
        digest = f"-DDIGEST={zlib.crc32(source.read_bytes())}U"
        command = [*compiler.split(), *OPTIONS, *options, digest, "-o", str(made), str(source)]
        try:
            subprocess.run(command, capture_output=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            return False
        made.replace(library)
        return True
