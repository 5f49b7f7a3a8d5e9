"""How far the left-out error of a fit is from the error on held-out rows, on a small and noisy table; beside a linear ridge.

python docs/figures/held_out.py      # no picture: writes docs/results/held_out.json
"""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import torch
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_diabetes
from sklearn.impute import SimpleImputer
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from torchkrr.estimators import LocalKernelRidgeRegressor

RESULTS = pathlib.Path(__file__).resolve().parents[1] / "results"
FOLDS = 5
SHUFFLES = 2
GAPS = 0.1  # share of values
torch.set_num_threads(1)


def rmse(errors: Any) -> float:
    return float(np.sqrt(np.square(errors).mean()))


def tables() -> dict[str, tuple[Any, Any]]:
    """Patients as they are, and with one value in ten missing and a column of text that means nothing."""
    X, y = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
    X["sex"] = np.where(X["sex"] == 1, "female", "male")
    rng = np.random.default_rng(0)
    numbers = X.columns.drop("sex")
    worn = X.copy()
    worn[numbers] = X[numbers].mask(rng.uniform(size=(len(X), len(numbers))) < GAPS)
    worn["region"] = rng.choice(["north", "south", "east", "west"], len(X))
    return {"as_it_is": (X, y.to_numpy()), "with_gaps_and_text": (worn, y.to_numpy())}


def linear_ridge(X: Any) -> Any:
    text = ["sex", *(["region"] if "region" in X else [])]
    scaled = make_pipeline(SimpleImputer(strategy="median"), StandardScaler())
    columns = make_column_transformer((OneHotEncoder(), text), (scaled, list(X.columns.drop(text))))
    return make_pipeline(columns, RidgeCV(np.logspace(-3, 3, 25)))


def one_fold(X: Any, y: Any, train: Any, test: Any) -> dict[str, float]:
    """Everything is chosen on the training rows alone."""
    model = LocalKernelRidgeRegressor().fit(X.iloc[train], y[train])
    predictions, values = model.leave_one_out()
    lower, upper = model.predict_interval(X.iloc[test], coverage=0.9)
    linear = linear_ridge(X).fit(X.iloc[train], y[train])
    return {
        "left_out_rmse": rmse(predictions - values),
        "held_out_rmse": rmse(model.predict(X.iloc[test]) - y[test]),
        "held_out_coverage90": float(((lower <= y[test]) & (y[test] <= upper)).mean()),
        "linear_ridge_rmse": rmse(linear.predict(X.iloc[test]) - y[test]),
    }


def study(X: Any, y: Any) -> dict[str, Any]:
    runs = []
    for seed in range(SHUFFLES):
        for train, test in KFold(FOLDS, shuffle=True, random_state=seed).split(X):
            runs.append(one_fold(X, y, train, test))
            print(runs[-1], flush=True)
    mean = {name: float(np.mean([run[name] for run in runs])) for name in runs[0]}
    error = {name: float(np.std([run[name] for run in runs], ddof=1) / np.sqrt(len(runs))) for name in runs[0]}
    return {"rows": len(y), "mean": mean, "standard_error": error, "runs": runs}


def main() -> None:
    found = {name: study(X, y) for name, (X, y) in tables().items()}
    numbers = {"folds": FOLDS, "shuffles": SHUFFLES, "gaps": GAPS, "tables": found}
    (RESULTS / "held_out.json").write_text(json.dumps(numbers, indent=2) + "\n")


if __name__ == "__main__":
    main()
