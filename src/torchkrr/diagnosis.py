"""What is installed here, what works, and what an extra would add."""

from __future__ import annotations

import json
import os
import pathlib
import platform
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

import torch

from . import __version__, _extras, native
from .core.compiled import backend_report
from .functional import local_kernel_ridge
from .kernels import Exponential
from .neighbors import nearest
from .vision.datasets import cache_folder

MODULES = {"scikit-learn": "sklearn", "faiss-cpu": "faiss", "pillow": "PIL", "pygame-ce": "pygame", "box2d": "Box2D"}
REINSTALL = "Reinstall it: pip install --force-reinstall --no-deps torchkrr"
SECONDS = 120  # to import every optional package
# In a process of its own, since a broken compiled package can end it; each name is said before it is tried.
IMPORTS = """
import importlib, json, sys, warnings
warnings.simplefilter("ignore")
out, sys.stdout = sys.stdout, sys.stderr
for name in sys.argv[1:]:
    print(json.dumps([name, None]), file=out, flush=True)
    try:
        if name == "torchvision":
            from torchkrr.vision.backbones import import_torchvision
            import_torchvision()
        importlib.import_module(name)
        error = ""
    except BaseException as caught:
        error = f"{type(caught).__name__}: {caught}"
    print(json.dumps([name, error]), file=out, flush=True)
"""


def diagnose() -> dict[str, Any]:
    """Everything `torchkrr doctor` says; what is broken is named under `problems`."""
    extras = _extras.extra_requirements()
    needed = {*_extras.core_requirements(), *(one for requirements in extras.values() for one in requirements)}
    optional = sorted({one.name for one in needed if one.found is not None and one.name not in ("torch", "numpy")})
    unusable = import_errors(optional)
    report = backend_report()
    return {
        "torchkrr": __version__,
        "location": str(pathlib.Path(__file__).parent),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "platform": platform.platform(),
        "packages": {"torch": torch.__version__, **{one.name: one.found for one in sorted(needed) if one.name != "torch"}},
        "devices": ["cpu", *(torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count()))],
        "backend": {**report._asdict(), "cores": os.cpu_count()},
        "extras": {name: _extra(name, requirements, unusable) for name, requirements in extras.items()},
        "cache": {"folder": str(cache_folder()), "bytes": folder_bytes(cache_folder())},
        "problems": [
            *outdated(_extras.core_requirements()),
            *library_problems(),
            *solve_problems(),
            *(f"{name} is installed but cannot be imported: {error}" for name, error in unusable.items()),
        ],
    }


def outdated(requirements: Iterable[_extras.Requirement]) -> list[str]:
    """
    Example:
        >>> outdated([_extras.Requirement("torch", "2.13", "2.4.1+cpu")])
        ['torch 2.4.1+cpu is installed, but torch>=2.13 is needed: pip install "torch>=2.13"']
    """
    return [
        f'{one.name} {one.found or "of no version"} is installed, but {one} is needed: pip install "{one}"'
        for one in requirements
        if not one.met
    ]


def library_problems() -> list[str]:
    """The compiled solver is there and cannot be used. Where it is not there, torch does the work: that is no problem."""
    built = sorted(native.FOLDER.glob("fused_*.so"))
    if built and native.library() is None:
        names = ", ".join(path.name for path in built)
        return [f"The compiled solver ({names}) cannot be loaded, torch does the work. {REINSTALL}"]
    return []


def solve_problems() -> list[str]:
    """Small problems with known solutions: by torch, whose batched solves have been wrong before, and by both backends."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, dtype=torch.float64, generator=generator)

    matrices, right = random(64, 40, 40) + 40 * torch.eye(40, dtype=torch.float64), random(64, 40, 2)
    symmetric = matrices @ matrices.mT
    solutions = {
        "torch.linalg.solve": matrices @ torch.linalg.solve(matrices, right),
        "torch.cholesky_solve": symmetric @ torch.cholesky_solve(right, torch.linalg.cholesky(symmetric)),
    }
    advice = "Reinstall torch, and do not call torch.set_num_threads before"
    problems = [
        f"{name} gives wrong solutions of batches with {torch.get_num_threads()} threads. {advice}"
        for name, found in solutions.items()
        if not torch.allclose(found, right, rtol=1e-8, atol=1e-8)
    ]
    if native.library() is None:
        return problems
    query, centers, values, kernel = random(50, 5), random(200, 5), random(200, 2), Exponential()
    rows = nearest(query, centers, 20, kernel=kernel)
    fused, plain = (
        local_kernel_ridge(query, centers, values, rows, kernel=kernel, backend=name) for name in ("fused", "torch")
    )
    if not torch.allclose(fused, plain, rtol=1e-6, atol=1e-8):
        problems.append(f'The compiled solver gives other predictions than torch; use backend="torch". {REINSTALL}')
    return problems


def import_errors(distributions: Iterable[str]) -> dict[str, str]:
    """Those of the installed distributions that cannot be imported, and why."""
    # torchvision first, mended where it must be: timm imports it.
    ordered = sorted(distributions, key=lambda name: (name != "torchvision", name))
    names = {MODULES.get(name.lower(), name.replace("-", "_")): name for name in ordered}
    given = [sys.executable, "-c", IMPORTS, *names]
    place = os.pathsep.join([str(pathlib.Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": place, "PYGAME_HIDE_SUPPORT_PROMPT": "1"}
    try:
        done = subprocess.run(given, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return {"an optional package": f"importing all of them took more than {SECONDS} seconds"}
    found = dict(json.loads(line) for line in done.stdout.splitlines())
    ended = f"Python ended with code {done.returncode}"
    return {names[name]: ended if error is None else error for name, error in found.items() if error != ""}


def folder_bytes(folder: pathlib.Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _extra(name: str, requirements: list[_extras.Requirement], unusable: dict[str, str]) -> dict[str, Any]:
    missing = [str(one) for one in requirements if not one.met or one.name in unusable]
    return {
        "complete": not missing,
        "adds": _extras.ADDS[name],
        "missing": missing,
        "install": None if not missing else _extras.install_command(name),
    }
