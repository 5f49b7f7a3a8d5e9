"""What the project says about itself in several files is the same in all of them."""

import pathlib
import re
import tomllib

import yaml
from tools.wheels import building, smoke

import torchkrr
from torchkrr._extras import version_numbers

ROOT = pathlib.Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CONSTRAINTS = dict(re.findall(r"^([\w.-]+)==(.+)$", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE))
WORKFLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())


def test_the_version_is_written_once_and_cited_right():
    assert "version" in PROJECT["dynamic"]
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+|rc\d+)?", torchkrr.__version__)
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["version"] == torchkrr.__version__
    assert cited["license"] == PROJECT["license"]
    assert {"cff-version", "message", "title", "authors"} <= set(cited)


def test_the_oldest_python_and_torch_are_those_that_are_tested():
    oldest = PROJECT["requires-python"].removeprefix(">=")
    named = [step["with"]["python-version"] for job in WORKFLOW["jobs"].values() for step in job["steps"] if "with" in step]
    assert named == [oldest] * 2
    assert f"Programming Language :: Python :: {oldest}" in PROJECT["classifiers"]
    (torch_range,) = (text for text in PROJECT["dependencies"] if text.startswith("torch"))
    assert version_numbers(CONSTRAINTS["torch"]) == version_numbers(torch_range.removeprefix("torch>="))


def test_constraints_fulfil_what_the_project_asks_for():
    ranges = [text for texts in PROJECT["optional-dependencies"].values() for text in texts] + PROJECT["dependencies"]
    known = {name.lower().replace("_", "-"): version for name, version in CONSTRAINTS.items()}
    for text in ranges:
        found = re.fullmatch(r"([\w-]+)(?:\[.*\])?(?:>=([\d.]+))?", text)
        assert found, text
        if found[1] != "torchkrr":
            assert version_numbers(known[found[1]]) >= version_numbers(found[2] or "0"), text


def test_the_workflow_runs_what_continuous_integration_runs():
    jobs = WORKFLOW["jobs"]
    commands = {name: [step["run"] for step in job["steps"] if "run" in step] for name, job in jobs.items()}
    assert commands["test"] == ["make test PYTHON=python"]
    assert all(
        command in " ".join(commands["lint"]) for command in ("ruff check .", "ruff format --check .", "constraints.txt")
    )
    assert set(WORKFLOW[True]) == {"push", "pull_request"}  # YAML reads the key `on` as a truth value
    (setup,) = (step["with"] for step in jobs["test"]["steps"] if "setup-python" in step.get("uses", ""))
    assert setup["cache"] == "pip"
    for path in setup["cache-dependency-path"].split():
        assert (ROOT / path).exists()


def test_types_are_announced():
    assert pathlib.Path(torchkrr.__file__).with_name("py.typed").exists()
    assert "Typing :: Typed" in PROJECT["classifiers"]


def test_every_extra_is_tried_in_an_environment_of_its_own():
    assert list(smoke.EXTRAS) == [name for name in PROJECT["optional-dependencies"] if name not in ("dev", "docs")]
    for code in (smoke.CORE, *smoke.EXTRAS.values()):
        compile(smoke.START + code, "smoke", "exec")
    assert "torchkrr.nn.LocalKernelRidge" in smoke.ten_lines()


def test_what_is_built_is_there():
    assert all((ROOT / name).exists() for name in building.SOURCES)
