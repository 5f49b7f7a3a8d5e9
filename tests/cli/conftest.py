"""Real tables in files, and models fitted to them."""

import numpy as np
import pandas as pd
import pytest
from sklearn import datasets
from tests.cli.running import FAST, GOOD, works


def write(frame, folder, name):
    frame.to_csv(folder / f"{name}.csv", index=False)
    frame.to_parquet(folder / f"{name}.parquet", index=False)


def mixed_frame(count=160, seed=0):
    """Numbers, text, codes with leading zeros, numbered categories, truth values, and gaps."""
    rng = np.random.default_rng(seed)
    size = rng.uniform(10, 90, count).round(3)
    color = rng.choice(["red", "green", "dark, blue"], count).astype(object)
    zone = rng.choice([1, 2, 7], count)
    frame = pd.DataFrame(
        {
            "key": np.arange(1000, 1000 + count),
            "size": size,
            "color": color,
            "zone": zone,
            "code": rng.choice(["02134", "2134", "94110"], count),
            "balcony": rng.choice([True, False], count),
            "price": size * (1 + 0.2 * zone) + 20 * (color == "red") + rng.normal(size=count),
        }
    )
    frame.loc[::11, "size"] = np.nan
    frame.loc[::13, "color"] = None
    return frame


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """Training and test parts of diabetes, wine, digits and a mixed table, each in CSV and in Parquet."""
    folder = tmp_path_factory.mktemp("tables")
    frames = {name: getattr(datasets, f"load_{name}")(as_frame=True).frame for name in ("diabetes", "wine", "digits")}
    frames["wine"]["target"] = datasets.load_wine().target_names[frames["wine"]["target"]]
    for name, frame in frames.items():
        shuffled = frame.sample(frac=1, random_state=0)
        half = len(shuffled) * 2 // 3
        write(shuffled[:half], folder, f"{name}_train")
        write(shuffled[half:], folder, f"{name}_test")
    write(mixed_frame(), folder, "mixed_train")
    write(mixed_frame(60, seed=1), folder, "mixed_test")
    return folder


@pytest.fixture(scope="session")
def models(folder):
    """One model for each table, fitted to its CSV file."""
    for name, target in {"diabetes": "target", "wine": "target", "digits": "target", "mixed": "price"}.items():
        more = ["--task", "classification"] if name == "digits" else []
        more += ["--ignore", "key", "--categorical", "zone,code"] if name == "mixed" else []
        works("fit", folder / f"{name}_train.csv", "--target", target, "--out", folder / f"{name}.krr", *more, *FAST)
    return folder


@pytest.fixture
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    (folder / "train.csv").write_text(GOOD)
    works("fit", folder / "train.csv", "--target", "y", "--out", folder / "m.krr", *FAST)
    return folder / "m.krr"
