"""The way of a call through the package: the files it enters, and how often it changes from one to another."""

import pytest
from tools.walk import calls, walk

from torchkrr import native

needs_fused = pytest.mark.skipif(native.library() is None, reason="the fused solver is not compiled")


@pytest.fixture(scope="module")
def prepared():
    return calls()


@needs_fused
def test_a_local_prediction_enters_ten_files(prepared):
    way = walk(prepared["forward"])
    print(way)
    assert len(way.files) <= 10
    assert way.changes <= 35


@needs_fused
def test_a_small_dense_prediction_enters_six_files(prepared):
    assert len(walk(prepared["dense"]).files) <= 6


def test_fitting_an_estimator_enters_the_solvers_of_the_package(prepared):
    assert any(file.startswith(("core/", "functional/")) for file in walk(prepared["fit"]).files)
