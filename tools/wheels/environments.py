"""Empty virtual environments, with a wheel in them and nothing of this one."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import time
from typing import Any

from . import smoke
from .building import CONSTRAINTS

Done = subprocess.CompletedProcess[str]


class Cost:
    """`with Cost() as cost: ...`, then its seconds: on the clock, and of the processor for all that was started."""

    clock = processor = 0.0

    def __enter__(self) -> Cost:
        self._start, self._used = time.monotonic(), _processor_seconds()
        return self

    def __exit__(self, *_: object) -> None:
        self.clock, self.processor = time.monotonic() - self._start, _processor_seconds() - self._used

    def __str__(self) -> str:
        return f"{self.clock:.0f} s ({self.processor:.0f} of the processor)"

    def record(self) -> dict[str, float]:
        return {"clock": round(self.clock, 1), "processor": round(self.processor, 1)}


class Environment:
    """Commands are run in an empty folder beside it, and see no package but those installed into it."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.bin, self.empty = folder / "bin", folder / "empty"
        _checked(subprocess.run([sys.executable, "-m", "venv", str(folder)], capture_output=True, text=True, check=False))
        self.empty.mkdir()

    def install(self, wheel: pathlib.Path, extra: str | None = None, *, replace: bool = False) -> None:
        """No bytecode is compiled beforehand, which for torch alone takes long."""
        what = str(wheel) if extra is None else f"{wheel}[{extra}]"
        more = ["--force-reinstall", "--no-deps"] if replace else []
        given = ["install", "--quiet", "--no-compile", "--disable-pip-version-check", "--constraint", str(CONSTRAINTS)]
        _checked(self.run("python", "-m", "pip", *given, *more, what, seconds=1800))

    def install_exactly(self, requirement: str) -> None:
        """Another version of something that is there, whatever the constraints."""
        given = ("install", "--quiet", "--no-compile", "--disable-pip-version-check")
        _checked(self.run("python", "-m", "pip", *given, requirement))

    def run(self, *command: str, seconds: float = 900) -> Done:
        given = [str(self.bin / command[0]), *command[1:]]
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
        kept |= {"PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": str(self.empty)}
        return subprocess.run(given, cwd=self.empty, env=kept, capture_output=True, text=True, timeout=seconds, check=False)

    def attempts(self, codes: dict[str, str]) -> dict[str, str | None]:
        """What went wrong in each of the pieces of code, `None` where nothing did."""
        script, given, found = (self.empty / name for name in ("script.py", "codes.json", "found.json"))
        script.write_text(smoke.RUNNER)
        given.write_text(json.dumps(codes))
        _checked(self.run("python", str(script), str(given), str(found)))
        errors: dict[str, str | None] = json.loads(found.read_text())
        return errors


def check(environment: Environment, version: str, *, extra: str | None, compiled: bool) -> dict[str, Any]:
    """Import, the ten lines, each extra that is there, and the errors of those that are not."""
    _checked(environment.run("python", "-m", "pip", "check"))
    assert _checked(environment.run("torchkrr", "--version")).stdout == f"torchkrr {version}\n"
    found = json.loads(_checked(environment.run("torchkrr", "doctor", "--json")).stdout)
    assert found["problems"] == []
    assert found["backend"]["backend"] == ("fused" if compiled else "torch"), found["backend"]
    complete = {name for name, one in found["extras"].items() if one["complete"]}
    assert set(smoke.EXTRAS) == set(found["extras"])
    assert (extra is None and not complete) or extra in complete, f"of {extra} there is {sorted(complete)}"
    extras = {name: smoke.START + code for name, code in smoke.EXTRAS.items()}
    errors = environment.attempts({"": smoke.START + smoke.CORE, "ten lines": smoke.ten_lines(), **extras})
    for name in ("", "ten lines", *complete):
        assert errors[name] is None, f"{name or 'the import'} failed:\n{errors[name]}"
    for name in set(extras) - complete:
        error, allowed = errors[name] or "", {name} | smoke.ALSO_NAMED.get(name, set())
        assert smoke.named_extras(error) & allowed, f"without {name} the error does not name it:\n{error or 'there is none'}"
    return {"complete": sorted(complete), "packages": found["packages"]}


def _processor_seconds() -> float:
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def _checked(done: Done) -> Done:
    assert done.returncode == 0, f"{done.args} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
    return done
