"""C that the machine's own compiler makes into functions while a run goes on, where there is a compiler."""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC")


@functools.cache
def compiled(source: str, *, contracted: bool = False) -> ctypes.CDLL | None:
    """Compile C; None where no compiler does it, or nothing can be run from the folder of temporary files.

    `contracted`: whether a product and the sum behind it may be rounded once.
    """
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if not compiler:
        return None
    contract = f"-ffp-contract={'fast' if contracted else 'off'}"
    try:
        with tempfile.TemporaryDirectory() as folder:
            code, library = Path(folder, "code.c"), Path(folder, "code.so")
            code.write_text(source)
            command = [compiler, *FLAGS, contract, str(code), "-o", str(library), "-lm"]
            subprocess.run(command, capture_output=True, check=True)
            return ctypes.CDLL(str(library))
    except (OSError, subprocess.CalledProcessError):
        return None
