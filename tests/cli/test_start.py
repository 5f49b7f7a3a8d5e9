"""The command line and the package start without what they do not need."""

import subprocess
import sys
import time

import pytest

from torchkrr.cli import COMMANDS

HEAVY = {"torch", "numpy", "pandas", "pyarrow", "sklearn", "scipy", "safetensors", "tqdm"}
MAIN = """
import contextlib, io, sys
from torchkrr.cli import main
for words in {lines!r}:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        main(words)
"""
AFTERWARDS = "print(*sorted({name.split('.')[0] for name in sys.modules}))"


def imported(code: str) -> set[str]:
    """Top-level packages in memory after some code."""
    return set(run(f"import sys\n{code}\n{AFTERWARDS}").split())


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout


def test_help_version_and_completion_import_nothing_heavy():
    lines = [["--help"], ["--version"], *([name, "--help"] for name in COMMANDS)]
    lines += [["completion", shell] for shell in ("bash", "zsh", "fish")]
    assert not HEAVY & imported(MAIN.format(lines=lines))


@pytest.mark.parametrize("words", [["--help"], ["fit", "--help"], ["completion", "bash"]])
def test_help_and_completion_take_less_than_half_a_second(words):
    code, seconds = MAIN.format(lines=[words]), []
    for _ in range(3):
        start = time.monotonic()
        run(code)
        seconds.append(time.monotonic() - start)
    assert min(seconds) < 0.5


def test_the_package_imports_no_torch_until_a_name_is_used():
    assert not HEAVY & imported("import torchkrr; torchkrr.__version__; dir(torchkrr)")
    assert "torch" in imported("import torchkrr; torchkrr.nn")


def test_all_namespaces_import_little_beside_torch():
    """Modules of other packages that `import torch` does not import: the fewer, the faster."""
    more = run(
        "import sys, torch, numpy; before = set(sys.modules)\n"
        "import torchkrr; [getattr(torchkrr, name) for name in torchkrr.__all__]\n"
        "print(*sorted(set(sys.modules) - before))"
    ).split()
    others = {name for name in more if name.split(".")[0] not in {"torchkrr", *sys.stdlib_module_names}}
    assert {name.split(".")[0] for name in others} <= {"torch", "numpy", "safetensors", "tqdm"}
    assert not {name for name in others if name.startswith(("torch.distributed", "torch._dynamo", "torch._inductor"))}
    assert len(others) < 60, others
    assert len(more) < 300, more


@pytest.mark.parametrize("given", [None, "active"])
def test_threads_of_a_program_wait_without_spinning_unless_told_otherwise(given):
    before = f"os.environ['OMP_WAIT_POLICY'] = {given!r}" if given else "os.environ.pop('OMP_WAIT_POLICY', None)"
    code = f"import os, sys\n{before}\nsys.argv = ['torchkrr', 'completion', 'bash']\n"
    code += "from torchkrr.cli import main\nmain()\nprint()\nprint(os.environ['OMP_WAIT_POLICY'])"
    assert run(code).split()[-1] == (given or "passive")
