"""A model in a file predicts the same, to the last bit, and anything else in a file is named."""

import functools
import json
import os
import pathlib
import pickle
import resource
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import safetensors.torch
import torch
from tests.estimators.problems import smooth_table

from torchkrr import estimators, storage
from torchkrr.errors import FileError, InputError
from torchkrr.estimators import KernelRidgeRegressor, LocalKernelRidgeClassifier, LocalKernelRidgeRegressor
from torchkrr.kernels import Kernel, Wendland

ROOT = pathlib.Path(__file__).parents[2]
X, Y = smooth_table(150)
LABELS = np.where(Y > 0.4, "high", np.where(Y < -0.4, "low", "middle"))
LEVELS = np.array([f"level {int(10 * value) % 23}" for value in X[:, 1] * 7])
TABLE = pd.DataFrame({"a": X[:, 0], "few": np.where(X[:, 1] > 0, "yes", None), "many": LEVELS, "c": X[:, 2]})
TABLE.loc[::9, "c"] = np.nan
QUERY = TABLE[100:]
CASES = {
    "mixture": (LocalKernelRidgeRegressor(random_state=3), TABLE, Y),
    "local": (LocalKernelRidgeRegressor(12, kernel="matern32", metric="linear", alpha=0.1), TABLE, Y),
    "float32": (LocalKernelRidgeRegressor(12, kernel="matern32", metric=None), X.astype(np.float32), Y),
    "two outputs": (LocalKernelRidgeRegressor(20, metric=None), TABLE, np.stack([Y, 10 + Y**2], 1)),
    "wendland": (KernelRidgeRegressor(0.1, kernel=Wendland(5.0, dimension=4)), X, Y),
    "dense": (KernelRidgeRegressor(0.1, kernel="gaussian"), TABLE, Y),
    "classifier": (LocalKernelRidgeClassifier(25, kernel="matern52", metric=None), TABLE, LABELS),
    "numbered classes": (LocalKernelRidgeClassifier(25, kernel="matern52", metric=None), TABLE, (Y > 0).astype(np.int32)),
}


@functools.cache
def fitted_case(name):
    model, table, y = CASES[name]
    return model.fit(table[:120], y[:120], sample_weight=np.linspace(0.5, 2, 120))


@pytest.fixture(params=CASES)
def fitted(request):
    return fitted_case(request.param), *CASES[request.param][1:]


def everything(model, query):
    """All that a fitted model can say about some rows."""
    found = {"predict": model.predict(query), **vars(model.explain(query, n_rows=7))}
    found["distances"], found["neighbors"] = model.kneighbors(query)
    if hasattr(model, "predict_proba"):
        return found | {"probabilities": model.predict_proba(query), "classes": model.classes_}
    found["mean"], found["std"] = model.predict(query, return_std=True)
    return found | model.predict_interval(query, coverage=0.8)._asdict()


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name in [name for name in expected if expected[name] is not None]:
        assert found[name].dtype == expected[name].dtype, name
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


def test_a_loaded_model_is_the_same_to_the_last_bit(fitted, tmp_path):
    model, table, _ = fitted
    model.notes_ = {"targets": ["price"]}
    model.save(tmp_path / "model.krr")
    loaded = estimators.load(tmp_path / "model.krr")
    assert type(loaded) is type(model)
    assert_same(everything(loaded, table[100:]), everything(model, table[100:]))
    assert str(loaded.get_params()) == str(model.get_params())
    assert list(getattr(loaded, "feature_names_in_", [])) == list(getattr(model, "feature_names_in_", []))
    assert loaded.notes_ == {"targets": ["price"]}
    assert os.listdir(tmp_path) == ["model.krr"]


def test_rows_added_after_loading_count_as_before(fitted, tmp_path):
    model, table, y = fitted
    model.save(str(tmp_path / "model.krr"))
    first, second = (type(model).load(tmp_path / "model.krr") for _ in range(2))
    first.partial_fit(table[120:], y[120:]).forget([0, 3])
    first.save(tmp_path / "grown.krr")
    second.partial_fit(table[120:], y[120:]).forget([0, 3])
    assert_same(everything(estimators.load(tmp_path / "grown.krr"), table[:30]), everything(second, table[:30]))
    assert not np.array_equal(first.explain(table[:30], 1).weights, model.explain(table[:30], 1).weights)


def test_another_process_finds_the_same(tmp_path):
    expected = {}
    for name, (_, table, _) in CASES.items():
        fitted_case(name).save(tmp_path / f"{name}.krr")
        (tmp_path / f"{name}.pkl").write_bytes(pickle.dumps(fitted_case(name)))
        assert (tmp_path / f"{name}.pkl").stat().st_size < 100_000  # what is solved is not part of it
        expected[name] = everything(fitted_case(name), table[100:])
    program = (
        "import pickle, sys; sys.path.insert(0, '.')\n"
        "from tests.estimators.test_storage import CASES, everything\n"
        "from torchkrr import estimators\n"
        "folder = sys.argv[1]\n"
        "found = {}\n"
        "for name, case in CASES.items():\n"
        "    models = estimators.load(f'{folder}/{name}.krr'), pickle.load(open(f'{folder}/{name}.pkl', 'rb'))\n"
        "    found[name] = [everything(model, case[1][100:]) for model in models]\n"
        "pickle.dump(found, open(f'{folder}/found', 'wb'))\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, timeout=200, cwd=ROOT)
    found = pickle.loads((tmp_path / "found").read_bytes())
    for name in CASES:
        for loaded in found[name]:
            assert_same(loaded, expected[name])


@pytest.fixture(scope="module")
def small():
    return KernelRidgeRegressor(0.1, kernel="gaussian", metric=None).fit(X, Y)


def test_the_same_model_gives_the_same_bytes(small, tmp_path):
    for name in ("a", "b"):
        small.save(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_file_holds_no_pickle_and_says_what_it_is(small, tmp_path):
    small.save(tmp_path / "model.krr")
    with safetensors.safe_open(tmp_path / "model.krr", framework="pt") as file:
        header = json.loads(file.metadata()["torchkrr"])
    assert (header["format"], header["version"], header["class"]) == ("torchkrr", 1, "KernelRidgeRegressor")


def test_every_flipped_byte_is_noticed(small, tmp_path):
    small.save(tmp_path / "model.krr")
    whole = (tmp_path / "model.krr").read_bytes()
    path = tmp_path / "damaged.krr"
    for at in [*range(0, len(whole), max(1, len(whole) // 300)), len(whole) - 1]:
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(FileError, match=r"damaged\.krr"):
            estimators.load(path)


@pytest.mark.parametrize("kept", [1, 7, 8, 9, 200, 5000, -1])
def test_a_truncated_file_is_an_error(small, tmp_path, kept):
    small.save(tmp_path / "model.krr")
    path = tmp_path / "cut.krr"
    path.write_bytes((tmp_path / "model.krr").read_bytes()[:kept])
    with pytest.raises(FileError, match=r"cut\.krr is (cut off|damaged|not a model).*Expected a model written by save"):
        estimators.load(path)


@pytest.mark.parametrize("length", [0x10280, 0x10480, 0x10580, 0x8B1F], ids=["pickle 2", "pickle 4", "pickle 5", "gzip"])
def test_a_header_whose_length_looks_like_another_format_is_a_header(small, tmp_path, length):
    small.save(tmp_path / "model.krr")
    whole = (tmp_path / "model.krr").read_bytes()
    end = 8 + int.from_bytes(whole[:8], "little")
    padded = length.to_bytes(8, "little") + whole[8:end].ljust(length) + whole[end:]
    (tmp_path / "padded.krr").write_bytes(padded)
    assert_same(everything(estimators.load(tmp_path / "padded.krr"), X[:3]), everything(small, X[:3]))
    for kept, message in ((2, ""), (7, "cut off"), (8, "cut off"), (9, "cut off"), (length, "cut off"), (-1, "damaged")):
        (tmp_path / "cut.krr").write_bytes(padded[:kept])
        with pytest.raises(FileError, match=rf"cut\.krr is {message}.*not a model"):
            estimators.load(tmp_path / "cut.krr")


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (b"", "is empty"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "a PNG picture"),
        (pickle.dumps({"a": 1}), "a pickle"),
        (pickle.dumps(None), "a pickle"),
        (b"price,area\n1,2\n", "begins with the text 'price,ar'"),
        (safetensors.torch.save({"a": torch.zeros(3)}), "safetensors file, but not a torchkrr model"),
        (safetensors.torch.save({"a": torch.zeros(3)}, {"torchkrr": "[1]"}), "not a torchkrr model"),
        (safetensors.torch.save({"a": torch.zeros(3)}, {"torchkrr": "{"}), "not a torchkrr model"),
    ],
    ids=["empty", "png", "pickle", "small pickle", "csv", "safetensors", "other header", "broken header"],
)
def test_a_foreign_file_is_named(tmp_path, contents, message):
    path = tmp_path / "foreign.krr"
    path.write_bytes(contents)
    with pytest.raises(FileError, match=message):
        estimators.load(path)


def test_a_missing_file_and_a_folder_are_named(tmp_path):
    with pytest.raises(FileError, match=r"nowhere\.krr cannot be read: No such file"):
        estimators.load(tmp_path / "nowhere.krr")
    with pytest.raises(FileError, match="cannot be read: Is a directory"):
        estimators.load(tmp_path)


def test_a_newer_version_asks_for_an_upgrade(small, tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "VERSION", 2)
    small.save(tmp_path / "model.krr")
    monkeypatch.undo()
    with pytest.raises(FileError, match=r"version 2, written by a newer torchkrr.*up to version 1"):
        estimators.load(tmp_path / "model.krr")


def test_an_unknown_class_and_another_class_are_named(small, tmp_path):
    class Mine(KernelRidgeRegressor):
        pass

    Mine(0.1, kernel="gaussian", metric=None).fit(X, Y).save(tmp_path / "mine.krr")
    with pytest.raises(FileError, match="holds a Mine, not a LocalKernelRidgeRegressor or KernelRidgeRegressor or"):
        estimators.load(tmp_path / "mine.krr")
    assert type(Mine.load(tmp_path / "mine.krr")) is Mine
    small.save(tmp_path / "model.krr")
    with pytest.raises(FileError, match="holds a KernelRidgeRegressor, not a LocalKernelRidgeClassifier"):
        LocalKernelRidgeClassifier.load(tmp_path / "model.krr")


def test_a_state_that_lacks_something_is_an_error(tmp_path):
    storage.write_model(tmp_path / "model.krr", storage.Stored("KernelRidgeRegressor", {"points": torch.zeros(2)}, {}))
    with pytest.raises(FileError, match=r"does not hold what a KernelRidgeRegressor is made of: KeyError\('parameters'\)"):
        estimators.load(tmp_path / "model.krr")


def test_an_interrupt_while_writing_changes_nothing(small, tmp_path, monkeypatch):
    path = tmp_path / "model.krr"
    small.save(path)
    before = path.read_bytes()

    def half(self, contents):
        with open(self, "wb") as file:
            file.write(contents[: len(contents) // 2])
        raise KeyboardInterrupt

    monkeypatch.setattr(pathlib.Path, "write_bytes", half)
    with pytest.raises(KeyboardInterrupt):
        KernelRidgeRegressor(0.5, kernel="gaussian", metric=None).fit(X, Y).save(path)
    assert os.listdir(tmp_path) == ["model.krr"]
    assert path.read_bytes() == before


def test_a_disk_without_room_leaves_nothing(small, tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))  # a file ends there, as on a full disk
    try:
        with pytest.raises(OSError, match="File too large"):
            small.save(tmp_path / "model.krr")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert os.listdir(tmp_path) == []


def test_a_new_file_has_the_mode_of_any_new_file(small, tmp_path):
    (tmp_path / "any").write_bytes(b"")
    small.save(tmp_path / "model.krr")
    assert (tmp_path / "model.krr").stat().st_mode == (tmp_path / "any").stat().st_mode


def test_a_file_keeps_its_mode_and_a_link_its_target(small, tmp_path):
    real, link = tmp_path / "real.krr", tmp_path / "link.krr"
    real.write_bytes(b"")
    real.chmod(0o640)
    link.symlink_to(real)
    small.save(link)
    assert link.is_symlink()
    assert real.stat().st_mode & 0o777 == 0o640
    assert estimators.load(real).n_features_in_ == 3


def test_a_place_that_cannot_be_written_is_named(small, tmp_path):
    with pytest.raises(FileError, match=r"folder .*nowhere for the file model\.krr does not exist"):
        small.save(tmp_path / "nowhere" / "model.krr")
    with pytest.raises(FileError, match="is a folder"):
        small.save(tmp_path)
    with pytest.raises(FileError, match="is a device or a pipe"):
        small.save("/dev/null")


def test_an_estimator_without_a_fit_cannot_be_saved(tmp_path):
    with pytest.raises(ValueError, match="not fitted yet"):
        KernelRidgeRegressor().save(tmp_path / "model.krr")
    assert os.listdir(tmp_path) == []


def test_file_errors_are_input_errors():
    assert issubclass(FileError, InputError)


def test_a_kernel_of_another_class_cannot_be_saved(tmp_path):
    class Cauchy(Kernel):
        def profile(self, distance):
            return 1 / (1 + distance.square())

    model = KernelRidgeRegressor(0.1, kernel=Cauchy()).fit(X, Y)
    assert model.score(X, Y) > 0.5
    with pytest.raises(InputError, match="class Cauchy cannot be saved"):
        model.save(tmp_path / "model.krr")
