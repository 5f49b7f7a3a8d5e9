"""What the documentation says is run: "Equivalent to" blocks and the code of all pages. Doctests run by themselves."""

import inspect
import pathlib
import re
import textwrap

import numpy as np
import pytest
import sklearn.kernel_ridge
import sklearn.linear_model
import torch
from sklearn.frozen import FrozenEstimator
from tests import encoders

import torchkrr
from torchkrr import estimators, functional, kernels, losses, neighbors, tuning

ROOT = pathlib.Path(__file__).parents[1]
# An assignment has no short form; every other public function shows one.
PUBLIC = [getattr(functional, name) for name in functional.__all__ if name != "Path"] + [
    neighbors.nearest,
    neighbors.recall,
    tuning.local_leave_one_out,
    losses.leave_one_out_cross_entropy,
    losses.episodic_cross_entropy,
]
# Arguments that a block leaves at their defaults.
LEFT_OUT = {losses.leave_one_out_cross_entropy: {"num_neighbors"}, losses.episodic_cross_entropy: {"num_neighbors"}}


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# They need a server, or packages that are not always there: tests/stores/test_guides.py.
ELSEWHERE = [ROOT / "docs" / "guides" / name for name in ("stores.md", "batch-prediction.md")]
TAUGHT = [ROOT / "README.md", *sorted((ROOT / "docs" / "concepts").glob("*.md"))]


def page_name(page: pathlib.Path) -> str:
    return str(page.relative_to(ROOT))


def python_blocks(page: pathlib.Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def relative_links(page: pathlib.Path) -> list[str]:
    """Targets of links and images that are files of this repository, without their anchors."""
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    targets = re.findall(r"\]\(([^)\s]+)[^)]*\)", prose)
    return [target.split("#")[0] for target in targets if not re.match(r"[a-z]+:|#", target)]


def equivalent_code(function) -> str:
    """The indented block after "Equivalent to" in a docstring."""
    lines = inspect.cleandoc(function.__doc__).split("Equivalent to\n\n", 1)[1].splitlines()
    block = []
    for line in lines:
        if line and not line.startswith("    "):
            break
        block.append(line)
    return textwrap.dedent("\n".join(block))


def result_of(value):
    if isinstance(value, tuning.LeftOut):
        return value.means, value.powers
    return tuple(value) if isinstance(value, tuple) else value


@pytest.mark.parametrize(
    "function", [f for f in PUBLIC if f is not functional.assignment], ids=lambda function: function.__name__
)
def test_equivalent_block_gives_the_same_result(function):
    torch.set_default_dtype(torch.float64)  # torch.eye in the blocks follows it
    try:
        query, centers, anchors = torch.randn(7, 3), torch.randn(30, 3), torch.arange(0, 30, 3)
        available = {
            "query": query,
            "centers": centers,
            "values": torch.randn(30, 2),
            "neighbor_indices": neighbors.nearest(torch.randn(7, 3), centers, 9),
            "squared_distances": torch.rand(7, 5).sort(1).values,
            "anchor_indices": anchors,
            "anchor_neighbors": neighbors.nearest(centers[anchors], centers, 9),
            "nearest_anchors": neighbors.nearest(query, centers[anchors], 5),
            "coarse_indices": anchors,
            "kernel": kernels.Exponential(1.5),
            "ridge": 1e-3,
            "num_neighbors": 9,
            "points": centers,
            "index": neighbors.ExactIndex().build(centers),
            "num_points": 8,
            "start": 0,
            "norm": 2.0,
            "x": centers,
            "y": centers.flip(0) + 0.1 * torch.randn(30, 3),
            "features": centers,
            "labels": torch.arange(30) % 3,
            "support": centers,
            "support_labels": torch.arange(30) % 3,
            "query_labels": torch.arange(7) % 3,
            "temperature": 0.3,
        }
        names = [name for name in inspect.signature(function).parameters if name not in LEFT_OUT.get(function, ())]
        wanted = {name: available[name] for name in names if name in available}
        scope = {"torch": torch, "torchkrr": torchkrr, **available}
        exec(equivalent_code(function), scope)
        torch.testing.assert_close(result_of(function(**wanted)), result_of(scope["result"]), rtol=1e-7, atol=1e-9)
    finally:
        torch.set_default_dtype(torch.float32)


def test_equivalent_blocks_of_estimators_give_the_same_result():
    generator = np.random.default_rng(0)
    X, query, alpha, lengthscale = generator.normal(size=(60, 2)), generator.normal(size=(9, 2)), 0.1, 0.8
    y, labels, kernel = (
        np.sin(3 * X[:, 0]) + X[:, 1] + 2,
        np.array(["a", "b", "c"])[np.arange(60) % 3],
        kernels.Gaussian(0.8),
    )
    linear = sklearn.linear_model.LinearRegression().fit(X, y)
    classifier = estimators.LocalKernelRidgeClassifier(alpha=alpha, kernel=kernel, prior=None).fit(X, labels)
    corrected = estimators.LocalKernelRidgeRegressor(alpha=alpha, kernel=kernel, prior=FrozenEstimator(linear)).fit(X, y)
    dense = estimators.KernelRidgeRegressor(alpha, kernel=kernel).fit(X, y)
    scope = globals() | locals()
    for model, predict in (
        (corrected, corrected.predict),
        (dense, dense.predict),
        (classifier, classifier.predict_proba),
    ):
        own = scope | {"model": linear if model is corrected else model}
        exec(equivalent_code(type(model)), own)
        np.testing.assert_allclose(predict(query), own["result"], rtol=0, atol=1e-9)


@pytest.mark.parametrize("function", PUBLIC, ids=lambda function: function.__name__)
def test_public_functions_document_shapes_and_an_example(function):
    assert "Shape:" in function.__doc__
    assert ">>> " in function.__doc__


@pytest.mark.parametrize("page", [page for page in PAGES if python_blocks(page) and page not in ELSEWHERE], ids=page_name)
def test_code_of_a_page_runs(page, capsys, monkeypatch):
    """The blocks of one page share their names, in order. A comment behind a print is what it prints, on any machine.

    Words stand in for encoders that would be downloaded.
    """
    monkeypatch.setattr(torchkrr.text, "import_library", lambda: encoders)
    scope = {}
    for block in python_blocks(page):
        exec(compile(block, str(page), "exec"), scope)
    shown = re.findall(r"^print\(.*\)  # (?!for instance: )(.+)$", "".join(python_blocks(page)), flags=re.MULTILINE)
    printed = capsys.readouterr().out.splitlines()
    assert [line for line in shown if line not in printed] == []


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_every_block_of_a_page_names_its_language(page):
    """Code that is not marked as Python would not be run."""
    languages = re.findall(r"^ *(?:```|~~~)(.*)$", page.read_text(), flags=re.MULTILINE)[::2]
    shown = r" \{ \.python title=.*\}"  # a script, made and checked as a picture
    assert [name for name in languages if not re.fullmatch(f"python|shell|text|json|{shown}", name)] == []


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_links_and_images_of_a_page_exist(page):
    for target in relative_links(page):
        assert (page.parent / target).exists(), f"{page_name(page)} links to {target}"


@pytest.mark.parametrize("page", TAUGHT, ids=page_name)
def test_readme_and_concepts_have_code_and_a_picture(page):
    assert python_blocks(page)
    assert "![" in page.read_text()


def test_pages_are_found():
    assert ROOT / "docs" / "concepts" / "error-bounds.md" in PAGES
