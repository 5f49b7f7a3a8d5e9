"""Bad input to neighbor search and to indexes."""

from __future__ import annotations

import pytest
import torch
from tests.bad_input.tables import NUM_CENTERS, POINTS, REMOVED, check_refused, faiss_index, good, search

from torchkrr import kernels, neighbors, transforms
from torchkrr.errors import InputError, InputTypeError, NotFittedError, ShapeError

EXCLUDE = {
    "list": ([0, 1, 2], InputTypeError, r"exclude must be a torch\.Tensor, got list.*torch\.as_tensor\(exclude\)"),
    "float": (torch.zeros(3), InputTypeError, r"exclude must have dtype torch\.int64, got torch\.float32"),
    "boolean": (torch.zeros(3).bool(), InputTypeError, r"exclude must have dtype torch\.int64, got torch\.bool"),
    "too_short": (torch.tensor([0, 1]), ShapeError, r"exclude must have shape \(3,\), one row to leave out for each query"),
    "two_dimensions": (torch.zeros(3, 1).long(), ShapeError, r"exclude must have shape \(3,\), .*got \(3, 1\)"),
    "too_large": (torch.tensor([0, 1, 6]), InputError, r"exclude must lie between 0 and 5 .*got values from 0 to 6"),
    "other_device": (
        torch.zeros(3, dtype=torch.int64, device="meta"),
        InputError,
        r"exclude must be on the device of the centers, cpu, but is on meta",
    ),
    "negative": (torch.tensor([-1, 0, 1]), InputError, r"exclude must lie between 0 and 5 .*got values from -1 to 1"),
}


@pytest.mark.parametrize("name", ["nearest", "ExactIndex", "FaissIndex"])
@pytest.mark.parametrize("defect", EXCLUDE)
def test_exclude_is_refused(name, defect):
    exclude, error, pattern = EXCLUDE[defect]
    query, centers = good()["query"], good()["centers"]
    if name == "nearest":
        check_refused(lambda: neighbors.nearest(query, centers, 2, exclude=exclude), error, pattern)
    else:
        index = (neighbors.ExactIndex() if name == "ExactIndex" else faiss_index()).build(centers)
        check_refused(lambda: index.search(query, 2, exclude=exclude), error, pattern)


@pytest.mark.parametrize(
    "spoil", [lambda x: x[:3], lambda x: x.flip(0), lambda x: x + 1], ids=["fewer_rows", "other_order", "moved"]
)
def test_exclude_self_needs_query_equal_to_centers(spoil):
    centers = good()["centers"]
    check_refused(
        lambda: neighbors.nearest(spoil(centers), centers, 2, exclude_self=True),
        InputError,
        r"exclude_self=True needs query equal to centers, row by row\. For another query set name .*with exclude=",
    )


def test_exclude_self_together_with_exclude():
    centers = good()["centers"]
    check_refused(
        lambda: neighbors.nearest(centers, centers, 2, exclude_self=True, exclude=torch.arange(NUM_CENTERS)),
        InputError,
        r"Give exclude_self or exclude, not both",
    )


@pytest.mark.parametrize(
    ("kernel", "error", "pattern"),
    [
        pytest.param("rbf", InputTypeError, "kernel must be", id="string"),
        pytest.param(
            kernels.Exponential(input_transform=transforms.StandardMean()),
            NotFittedError,
            r"UnitCube is not fitted\. Call UnitCube\(\)\.fit\(x\)",
            id="unfitted",
        ),
        pytest.param(
            kernels.Wendland(dimension=1),
            InputError,
            r"not positive definite in 2 .*Construct it with dimension=2",
            id="wendland",
        ),
    ],
)
def test_kernel_of_a_search_is_refused(kernel, error, pattern):
    check_refused(lambda: search(good(), kernel=kernel), error, pattern)


INDEXES = {
    "ExactIndex": neighbors.ExactIndex,
    "FaissIndex": faiss_index,
    "AutoIndex": neighbors.AutoIndex,
    "StreamedIndex": neighbors.StreamedIndex,
}


USES_OF_AN_INDEX = {
    "search": lambda index: index.search(good()["query"], 2),
    "append": lambda index: index.append(good()["query"]),
    "remove": lambda index: index.remove(torch.tensor([0])),
}


POINTS_OF_AN_INDEX = {
    defect: POINTS[defect]
    for defect in ("list", "nan", "inf", "no_rows", "no_columns", "integer", "one_dimension", "three_dimensions")
}


@pytest.mark.parametrize("kind", INDEXES)
@pytest.mark.parametrize("use", USES_OF_AN_INDEX)
def test_index_that_is_not_built(kind, use):
    index = INDEXES[kind]()
    check_refused(lambda: USES_OF_AN_INDEX[use](index), NotFittedError, rf"{kind} is not built\. Call build\(points\) first")


@pytest.mark.parametrize("kind", INDEXES)
@pytest.mark.parametrize(
    ("argument", "defect"),
    # A search for nothing finds nothing.
    [(use, d) for use in ("build", "append", "search") for d in POINTS_OF_AN_INDEX if (use, d) != ("search", "no_rows")],
)
def test_points_of_an_index_are_refused(kind, argument, defect):
    spoil, error, pattern = POINTS_OF_AN_INDEX[defect]
    index, points = INDEXES[kind](), good()["centers"]
    pattern = pattern.replace("{name}", "query" if argument == "search" else "points")
    if argument == "build":
        check_refused(lambda: index.build(spoil(points)), error, pattern)
        return
    index.build(points)
    use = index.append if argument == "append" else lambda query: index.search(query, 2)
    check_refused(lambda: use(spoil(points)), error, pattern)


@pytest.mark.parametrize("kind", INDEXES)
def test_features_and_dtype_of_an_index_are_those_it_was_built_with(kind):
    index = INDEXES[kind]().build(good()["centers"])
    features = r"has 3 features but the index has 2\..*the same feature space"
    check_refused(lambda: index.search(torch.rand(3, 3), 2), ShapeError, "query " + features)
    check_refused(lambda: index.append(torch.rand(3, 3)), ShapeError, "points " + features)
    check_refused(
        lambda: index.search(good()["query"].double(), 2),
        InputTypeError,
        r"query, points must share one dtype, but query is torch\.float64 .*Convert one of them",
    )


@pytest.mark.parametrize("kind", INDEXES)
def test_appending_another_dtype_to_an_index(kind):
    index = INDEXES[kind]().build(good()["centers"])
    check_refused(lambda: index.append(good()["query"].double()), InputTypeError, "share one dtype")


@pytest.mark.parametrize("kind", INDEXES)
@pytest.mark.parametrize("use", ["append", "search"])
def test_another_device_than_that_of_the_index(kind, use):
    index = INDEXES[kind]().build(good()["centers"])
    elsewhere = good()["query"].to("meta")
    call = {"append": lambda: index.append(elsewhere), "search": lambda: index.search(elsewhere, 2)}[use]
    check_refused(call, InputError, r"must be on one device")


@pytest.mark.parametrize("kind", INDEXES)
@pytest.mark.parametrize("defect", REMOVED)
def test_rows_to_remove_from_an_index_are_refused(kind, defect):
    rows, error, pattern = REMOVED[defect]
    index = INDEXES[kind]().build(good()["centers"])
    check_refused(lambda: index.remove(rows), error, pattern)
    assert len(index.points) == NUM_CENTERS


FACTORIES = {
    "unknown": ("nonsense", {}, InputError, r"faiss does not know the index 'nonsense'"),
    "too_many_lists": (
        "IVF7,Flat",
        {},
        InputError,
        r"'IVF7,Flat' has 7 lists but there are only 6 points\. Use fewer lists \(about the square root.*or ExactIndex",
    ),
}


@pytest.mark.parametrize("case", FACTORIES)
def test_faiss_factory_is_refused(case):
    factory, choices, error, pattern = FACTORIES[case]
    check_refused(lambda: faiss_index(factory, **choices).build(good()["centers"]), error, pattern)


@pytest.mark.parametrize(
    ("factory", "choices"),
    [
        pytest.param("IVF2,Flat", {"nprobe": 0}, id="nprobe_zero"),
        pytest.param("PQ2", {}, id="too_few_points_to_train"),
        pytest.param("IDMap,Flat", {}, id="ids_given_twice"),
        pytest.param("IVF2,Flat,RFlat", {}, id="cannot_keep_ids"),
    ],
)
def test_faiss_errors_are_translated(factory, choices):
    check_refused(
        lambda: faiss_index(factory, **choices).build(good()["centers"]).search(good()["query"], 2), InputError, "."
    )


def test_faiss_index_whose_build_failed_is_not_built():
    index = faiss_index("IVF7,Flat")
    with pytest.raises(InputError, match="7 lists but there are only 6 points"):
        index.build(good()["centers"])
    check_refused(lambda: index.search(good()["query"], 2), NotFittedError, "not built")
