"""Everything scikit-learn asks of an estimator, with default arguments and no exceptions."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from torchkrr.estimators import KernelRidgeRegressor, LocalKernelRidgeClassifier, LocalKernelRidgeRegressor


# scikit-learn asks for its array API checks to be skipped unless a variable of the environment is set.
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@parametrize_with_checks([LocalKernelRidgeRegressor(), LocalKernelRidgeClassifier(), KernelRidgeRegressor()])
def test_estimator_passes_the_checks_of_scikit_learn(estimator, check):
    check(estimator)
