"""scipy's own tests of `RBFInterpolator`, from the installed scipy, run against ours.

Their classes are imported and `build` is overridden, for all data sites, 20 neighbors and infinitely many. Tests of scipy's
internals are left out by name, each with the reason.
"""

from __future__ import annotations

import numpy as np
import pytest
import scipy.interpolate.tests.test_rbfinterp as theirs

from torchkrr.interpolate import RBFInterpolator

# Each with the reason.
INTERNALS = {
    "test_chunking": "replaces scipy's private _chunk_evaluator; ours has a byte budget, tested in test_rbf.py",
}
# Functions of that file: they test scipy's private kernel matrices, and no interpolator.
FUNCTIONS = {
    "test_conditionally_positive_definite": "calls scipy's compiled _kernel_matrix; ours: tests/kernels/test_conditional.py",
}
# Their ill-conditioned problems (Gaussians of 50 points in one dimension) are solved with a larger ridge, and say so.
pytestmark = pytest.mark.filterwarnings("ignore::torchkrr.errors.RidgeRaisedWarning")


@pytest.fixture
def xp():
    """The array namespace that their tests ask for."""
    return np


def without_internals(kind):
    for name in INTERNALS:
        setattr(kind, name, None)  # pytest collects what can be called
    return kind


@without_internals
class TestNeighborsNone(theirs.TestRBFInterpolatorNeighborsNone):
    def build(self, *args, **kwargs):
        return RBFInterpolator(*args, **kwargs)


@without_internals
class TestNeighbors20(theirs.TestRBFInterpolatorNeighbors20):
    def build(self, *args, **kwargs):
        return RBFInterpolator(*args, **kwargs, neighbors=20)


@without_internals
class TestNeighborsInf(theirs.TestRBFInterpolatorNeighborsInf):
    def build(self, *args, **kwargs):
        return RBFInterpolator(*args, **kwargs, neighbors=np.inf)


def test_every_other_test_of_theirs_is_run():
    ours = (TestNeighborsNone, TestNeighbors20, TestNeighborsInf)
    for own in ours:
        kind = own.__bases__[0]
        names = {name for name in dir(kind) if name.startswith("test_")}
        assert {name for name in names if not callable(getattr(own, name))} == INTERNALS.keys()
    functions = {name for name, value in vars(theirs).items() if name.startswith("test_") and callable(value)}
    assert functions == FUNCTIONS.keys()
    classes = {name for name in vars(theirs) if name.startswith("Test")}
    assert classes == {own.__bases__[0].__name__ for own in ours}
