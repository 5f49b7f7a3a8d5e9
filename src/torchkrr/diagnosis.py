"""What is installed here, what works, and what an extra would add."""

from __future__ import annotations

import functools
import itertools
import json
import os
import pathlib
import platform
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

import torch

from . import __version__, native
from ._extras import ADDS, PACKAGE, Requirement, install_command, installed_version, requirements
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
            from torchkrr._extras import import_torchvision
            import_torchvision()
        importlib.import_module(name)
        error = ""
    except BaseException as caught:
        error = f"{type(caught).__name__}: {caught}"
    print(json.dumps([name, error]), file=out, flush=True)
"""


def diagnose() -> dict[str, Any]:
    """Everything `torchkrr doctor` says; what is broken is named under `problems`."""
    core = list(requirements())
    by_extra = {extra: sorted(set(requirements(extra))) for extra in ADDS} if installed_version(PACKAGE) else {}
    needed = sorted({*core, *itertools.chain(*by_extra.values())})
    unusable = import_errors(one.name for one in needed if one.installed and one.name not in ("torch", "numpy"))
    extras: dict[str, Any] = {}
    for extra, all_of_it in by_extra.items():
        missing = [str(one) for one in all_of_it if not one.met or one.name in unusable]
        install = install_command(extra) if missing else None
        extras[extra] = {"complete": not missing, "adds": ADDS[extra], "missing": missing, "install": install}
    cache = cache_folder()
    return {
        "torchkrr": __version__,
        "location": str(pathlib.Path(__file__).parent),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "platform": platform.platform(),
        "packages": {"torch": torch.__version__, **{one.name: one.installed for one in needed if one.name != "torch"}},
        "devices": ["cpu", *(torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count()))],
        "backend": {**backend_report()._asdict(), "cores": os.cpu_count()},
        "extras": extras,
        "cache": {"folder": str(cache), "bytes": sum(path.stat().st_size for path in cache.rglob("*") if path.is_file())},
        "problems": [
            *outdated(core),
            *solve_problems(),
            *(f"{name} is installed but cannot be imported: {error}" for name, error in unusable.items()),
        ],
    }


def outdated(needed: Iterable[Requirement]) -> list[str]:
    return [
        f'{one.name} {one.installed or "of no version"} is installed, but {one} is needed: pip install "{one}"'
        for one in needed
        if not one.met
    ]


def solve_problems() -> list[str]:
    """Small problems with known solutions: by torch, whose batched solves have been wrong before, and by both backends."""
    random = functools.partial(torch.rand, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    matrices, right = random(64, 40, 40) + 40 * torch.eye(40, dtype=torch.float64), random(64, 40, 2)
    symmetric = matrices @ matrices.mT
    solutions = {
        "torch.linalg.solve": matrices @ torch.linalg.solve(matrices, right),
        "torch.cholesky_solve": symmetric @ torch.cholesky_solve(right, torch.linalg.cholesky(symmetric)),
    }
    problems = [
        f"{name} gives wrong solutions of batches with {torch.get_num_threads()} threads. "
        "Reinstall torch, and do not call torch.set_num_threads before"
        for name, solution in solutions.items()
        if not torch.allclose(solution, right, rtol=1e-8, atol=1e-8)
    ]
    if native.library() is None:
        names = ", ".join(path.name for path in sorted(native.FOLDER.glob("fused_*.so")))
        # Where it was not compiled, torch does the work: that is no problem.
        return problems + (
            [f"The compiled solver ({names}) cannot be loaded, torch does the work. {REINSTALL}"] if names else []
        )
    query, centers, values, kernel = random(50, 5), random(200, 5), random(200, 2), Exponential()
    solve = functools.partial(local_kernel_ridge, query, centers, values, nearest(query, centers, 20), kernel=kernel)
    if not torch.allclose(solve(backend="fused"), solve(backend="torch"), rtol=1e-6, atol=1e-8):
        problems.append(f'The compiled solver gives other predictions than torch; use backend="torch". {REINSTALL}')
    return problems


def import_errors(distributions: Iterable[str]) -> dict[str, str]:
    """Those of the installed distributions that cannot be imported, and why."""
    # torchvision first, mended where it must be: timm imports it.
    ordered = sorted(distributions, key=lambda name: (name != "torchvision", name))
    names = {MODULES.get(name.lower(), name.replace("-", "_")): name for name in ordered}
    place = os.pathsep.join([str(pathlib.Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": place, "PYGAME_HIDE_SUPPORT_PROMPT": "1"}
    command = [sys.executable, "-c", IMPORTS, *names]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return {"an optional package": f"importing all of them took more than {SECONDS} seconds"}
    errors = dict(json.loads(line) for line in done.stdout.splitlines())
    ended = f"Python ended with code {done.returncode}"
    return {names[name]: ended if error is None else error for name, error in errors.items() if error != ""}
