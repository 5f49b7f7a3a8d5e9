"""The optional compiled solver and search; everything else about the package is in pyproject.toml.

One library for each instruction set, chosen when it is used. Without a compiler the install succeeds without them.
"""

import platform
import sys
from pathlib import Path

from setuptools import Extension, setup

NATIVE = "src/torchkrr/native"
HEADERS = sorted(map(str, Path(NATIVE).glob("*.h")))
FLAGS = ["-std=c++17", "-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-pthread"]
VECTOR_BYTES = {"baseline": 16}
SETS: dict[str, list[str]] = {"baseline": []}
if platform.machine().lower() in ("x86_64", "amd64"):
    VECTOR_BYTES |= {"avx2": 32, "avx512": 64}
    SETS["avx2"] = ["-mavx2", "-mfma"]
    SETS["avx512"] = ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma"]


def library(name: str) -> Extension:
    return Extension(
        f"torchkrr.native.fused_{name}",
        sources=[f"{NATIVE}/fused.cpp"],
        depends=HEADERS,
        language="c++",
        define_macros=[("VECTOR_BYTES", str(VECTOR_BYTES[name]))],
        extra_compile_args=[*FLAGS, *SETS[name]],
        extra_link_args=["-pthread"],
        optional=True,
    )


# Microsoft's compiler has no vector extensions.
setup(ext_modules=[] if sys.platform == "win32" else [library(name) for name in SETS])
