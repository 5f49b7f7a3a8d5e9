"""Float32 error as a ratio: at most twice that of the plain formula evaluated in float32.

Absolute tolerances would say nothing, since the error depends on the conditioning of each problem. The plain formula is
what anyone would write: distances by difference, `torch.linalg.cholesky`, `cholesky_solve`.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from tests import reference
from torch import Tensor

from torchkrr import functional as F
from torchkrr import kernels

NUM_QUERIES, NUM_CENTERS, NUM_NEIGHBORS = 600, 400, 20
DENSE_PROBLEMS = 6
RIDGE = 1e-9
AT_MOST, FLOOR = 2.0, 1e-9

FEATURES = [1, 2, 8, 32, 128]
# The lengthscale in units of the distance between nearest neighbors: as large as a kernel bears before float32 fails.
RELATIVE_LENGTHSCALES = {"Exponential": 30.0, "Matern52": 3.0, "Gaussian": 1.0}
DATA = ["random", "clustered", "outside"]


@dataclass(frozen=True)
class Case:
    query: Tensor  # float32
    centers: Tensor
    values: Tensor
    indices: Tensor
    kernel: kernels.Kernel

    def tensors(self, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        return self.query.to(dtype), self.centers.to(dtype), self.values.to(dtype)


def make_case(data: str, features: int, kernel: str, *, num_centers: int = NUM_CENTERS, seed: int = 0) -> Case:
    generator = torch.Generator().manual_seed(1000 * seed + features)

    def draw(count: int) -> Tensor:
        points = torch.randn(count, features, generator=generator)
        if data != "clustered":
            return points
        # Clusters smaller than a neighborhood: close pairs and distant ones meet in one cell.
        return middles[torch.randint(len(middles), (count,), generator=generator)] + 0.02 * points

    middles = torch.randn(num_centers // 10, features, generator=generator)
    centers, query = draw(num_centers), draw(NUM_QUERIES)
    if data == "outside":  # the query is further from its neighbors than they are from each other
        query = 3 * query / query.norm(dim=1, keepdim=True) * centers.norm(dim=1).max()
    values = torch.randn(num_centers, 1, generator=generator)
    apart = by_difference(centers.double(), centers.double()).fill_diagonal_(torch.inf).amin(1)
    lengthscale = RELATIVE_LENGTHSCALES[kernel] * float(apart.median())
    indices = reference.nearest(query.double().numpy(), centers.double().numpy(), NUM_NEIGHBORS)
    return Case(query, centers, values, torch.from_numpy(indices), getattr(kernels, kernel)(lengthscale))


def by_difference(a: Tensor, b: Tensor) -> Tensor:
    return (a.unsqueeze(-2) - b.unsqueeze(-3)).square().sum(-1).sqrt()


def plain(kernel: kernels.Kernel, query: Tensor, centers: Tensor, values: Tensor) -> Tensor:
    """The textbook formula for a batch of systems; NaN where the factorization fails."""
    query, centers = kernel.embed(query), kernel.embed(centers)
    gram = kernel.profile(by_difference(centers, centers))
    identity = torch.eye(gram.shape[-1], dtype=gram.dtype)
    factor, info = torch.linalg.cholesky_ex(gram + RIDGE * identity)
    prediction = kernel.profile(by_difference(query, centers)) @ torch.cholesky_solve(values, factor)
    return prediction.masked_fill((info != 0)[..., None, None], torch.nan)


def plain_local(case: Case, dtype: torch.dtype) -> Tensor:
    query, centers, values = case.tensors(dtype)
    chunks = [
        plain(case.kernel, query[rows].unsqueeze(1), centers[case.indices[rows]], values[case.indices[rows]])
        for rows in torch.arange(NUM_QUERIES).split(50)
    ]
    return torch.cat(chunks).squeeze(1)


def rms(error: Tensor) -> float:
    return float(error.double().square().mean().sqrt())


def assert_within_twice_plain(ours: Tensor, plainly: Tensor, exact: Tensor, plainly_exact: Tensor) -> None:
    sound = plainly.isfinite().squeeze(-1)
    assert sound.sum() >= 500, "the plain formula must work for most queries, or the comparison is empty"
    # Values are of order one: far from all centers, where predictions vanish, an error below FLOOR is none.
    error, allowed = rms((ours - exact)[sound]), max(rms((plainly - exact)[sound]), FLOOR)
    # The yardstick itself: in float64 both formulas are the same number, as far as this comparison can tell.
    bent = rms((exact - plainly_exact)[sound])
    assert bent <= 1e-4 * allowed, f"float64 differs by {bent:.1e} from the plain formula, float32 by {allowed:.1e}"
    assert error <= AT_MOST * allowed, f"{error:.2e} against {allowed:.2e}: {error / allowed:.1f} times the plain error"


@pytest.mark.parametrize("kernel", RELATIVE_LENGTHSCALES)
@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("data", DATA)
def test_float32_error_of_local_ridge_is_within_twice_that_of_the_plain_formula(data, features, kernel):
    case = make_case(data, features, kernel)
    exact = F.local_kernel_ridge(*case.tensors(torch.float64), case.indices, kernel=case.kernel, ridge=RIDGE)
    ours = F.local_kernel_ridge(*case.tensors(torch.float32), case.indices, kernel=case.kernel, ridge=RIDGE)
    assert_within_twice_plain(ours, plain_local(case, torch.float32), exact, plain_local(case, torch.float64))


@pytest.mark.parametrize("kernel", RELATIVE_LENGTHSCALES)
@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("data", DATA)
def test_float32_error_of_dense_ridge_is_within_twice_that_of_the_plain_formula(data, features, kernel):
    # Queries share the rounding of one factor, so the ratio of a single problem is mostly luck: several are pooled.
    found = []
    for seed in range(DENSE_PROBLEMS):
        case = make_case(data, features, kernel, num_centers=150, seed=seed)
        single, double = case.tensors(torch.float32), case.tensors(torch.float64)
        ours, exact = (F.kernel_ridge(*tensors, kernel=case.kernel, ridge=RIDGE) for tensors in (single, double))
        found.append((ours, plain(case.kernel, *single), exact, plain(case.kernel, *double)))
    assert_within_twice_plain(*(torch.cat(column) for column in zip(*found, strict=True)))


@pytest.mark.parametrize("kernel", RELATIVE_LENGTHSCALES)
@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("data", ["random", "clustered"])
def test_power_function_at_centers_is_at_most_the_root_of_the_ridge(data, features, kernel):
    case = make_case(data, features, kernel)
    epsilon = torch.finfo(torch.float32).eps
    largest = {torch.float64: RIDGE**0.5 * (1 + 1e-4), torch.float32: (NUM_NEIGHBORS * epsilon) ** 0.5}
    embedded = (case.centers.double() / case.kernel.lengthscale).numpy()
    indices = torch.from_numpy(reference.nearest(embedded, embedded, NUM_NEIGHBORS))
    for dtype, bound in largest.items():
        centers = case.centers.to(dtype)
        local = F.local_power_function(centers, centers, indices, kernel=case.kernel, ridge=RIDGE)
        assert local.max() <= bound, f"local, {dtype}: {float(local.max()):.3e} above {bound:.3e}"
        # Dense, M is the number of centers.
        few = centers[:NUM_NEIGHBORS]
        dense = F.power_function(few, few, kernel=case.kernel, ridge=RIDGE)
        assert dense.max() <= bound, f"dense, {dtype}: {float(dense.max()):.3e} above {bound:.3e}"
