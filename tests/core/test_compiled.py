"""The fused solver against the torch path: same numbers, same gradients, same judgement of cells, for every build of it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tests.kernel_cases import KERNELS
from tests.nn.layers import run_python
from torch.autograd import forward_ad, gradcheck

import torchkrr
from torchkrr import functional as F
from torchkrr import kernels
from torchkrr import native as native
from torchkrr.core import compiled
from torchkrr.core.cells import LocalProblem
from torchkrr.core.local import solve_embedded
from torchkrr.core.options import SolveOptions
from torchkrr.errors import BackendError, RidgeRaisedWarning

COMPILER = shutil.which("g++") or shutil.which("clang++")
needs_fused = pytest.mark.skipif(native.library() is None, reason="the fused solver is not compiled")
# Neighbors, features, outputs: below, at and above the sizes of registers and tiles.
SHAPES = [(1, 1, 1), (2, 3, 0), (7, 5, 2), (8, 8, 1), (33, 17, 10), (64, 4, 3), (100, 70, 17), (129, 2, 1)]
KINDS = ["mean", "weights", "path", "coefficients"]
NUM_QUERIES, NUM_CENTERS = 21, 160


def problem(shape: tuple[int, int, int], dtype: torch.dtype, *, seed: int = 0):
    neighbors_, features, outputs = shape
    generator = torch.Generator().manual_seed(seed)

    def randn(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64).to(dtype)

    query, centers, values = (
        randn(NUM_QUERIES, features),
        randn(NUM_CENTERS, features),
        randn(NUM_CENTERS, outputs),
    )
    indices = torch.stack([torch.randperm(NUM_CENTERS, generator=generator)[:neighbors_] for _ in range(NUM_QUERIES)])
    return query, centers, values, indices


def wide(kernel: str, features: int) -> kernels.Kernel:
    """A kernel under which the neighbors see each other."""
    if kernel.startswith("Wendland"):
        return kernels.Wendland(6.0 * features**0.5, dimension=max(features, 3), smoothness=int(kernel[-1]))
    return KERNELS[kernel](1.5 * features**0.5)


def everything(backend, shape, dtype, kernel, kind, trend, ridge=1e-2):
    """Outputs and gradients of a call, by name."""
    query, centers, values, indices = problem(shape, dtype)
    leaves = [tensor.requires_grad_() for tensor in (query, centers, values, torch.tensor(ridge, dtype=dtype))]
    options = SolveOptions(kernel, trend="constant" if trend else None, backend=backend, kind=kind)
    found = solve_embedded(LocalProblem(*leaves, indices), options)
    assert bool(found.resolved.all())
    weights = torch.cos(torch.arange(found.first.numel(), dtype=dtype)).view_as(found.first)
    # Not exactly the sum: a gradient that is the same for all queries would hide a permutation of them.
    slopes = torch.linspace(0.5, 1.5, NUM_QUERIES, dtype=dtype).view(-1, *[1] * (found.power_squared.ndim - 1))
    loss = (found.first * weights).sum() + (found.power_squared * slopes).sum()
    gradients = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
    names = ("first", "power", "query", "centers", "values", "ridge")
    return dict(zip(names, (found.first.detach(), found.power_squared.detach(), *gradients), strict=True))


def assert_same(ours, theirs, tolerance: float) -> None:
    for name, expected in theirs.items():
        scale = max(1.0, float(expected.abs().max())) if expected.numel() else 1.0
        torch.testing.assert_close(ours[name], expected, rtol=0, atol=tolerance * scale, msg=lambda m, n=name: f"{n}: {m}")


@needs_fused
@pytest.mark.parametrize("trend", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kernel", ["Exponential", "Matern32", "Matern52", "Gaussian", "RationalQuadratic"])
def test_same_as_torch_in_float64(kernel, kind, trend):
    for shape in SHAPES:
        arguments = (shape, torch.float64, wide(kernel, shape[1]), kind, trend)
        assert_same(everything("fused", *arguments), everything("torch", *arguments), 1e-10)


@needs_fused
@pytest.mark.parametrize("trend", [False, True])
@pytest.mark.parametrize(
    "kernel", ["InverseMultiquadric", "InverseQuadratic", "Wendland30", "Wendland31", "Wendland32", "Wendland33"]
)
def test_other_profiles_same_as_torch_in_float64(kernel, trend):
    for shape in SHAPES:
        arguments = (shape, torch.float64, wide(kernel, shape[1]), "mean", trend)
        assert_same(everything("fused", *arguments), everything("torch", *arguments), 1e-10)


@needs_fused
@pytest.mark.parametrize("kernel", [name for name in KERNELS if not name.startswith("Wendland")] + ["Wendland32"])
def test_float32_is_as_exact_as_torch(kernel):
    for shape in SHAPES:
        chosen = wide(kernel, shape[1])
        exact = everything("torch", shape, torch.float64, chosen, "mean", True)
        ours, theirs = (everything(backend, shape, torch.float32, chosen, "mean", True) for backend in ("fused", "torch"))
        for name, expected in exact.items():
            if expected.numel() == 0:
                continue
            error, other = (float((found[name] - expected).square().mean().sqrt()) for found in (ours, theirs))
            # One number, such as the gradient of the ridge, can be right by luck.
            spare = 1e-6 if expected.numel() > 1 else 2e-3
            assert error <= 3 * other + spare * max(1.0, float(expected.abs().max())), (shape, name)


@needs_fused
@pytest.mark.parametrize("trend", [None, "constant"])
@pytest.mark.parametrize("kernel", ["Exponential", "RationalQuadratic", "Wendland52"])
def test_gradient_against_finite_differences(small, kernel, trend):
    query, centers, values, ridge, indices = small
    chosen = wide(kernel, 2)

    def predict(query, centers, values, ridge):
        choices = {"kernel": chosen, "ridge": ridge, "trend": trend, "backend": "fused"}
        mean = F.local_kernel_ridge(query, centers, values, indices, **choices)
        return mean, F.local_power_function(query, centers, indices, **choices)

    assert gradcheck(predict, (query, centers, values, ridge))


@needs_fused
@pytest.mark.parametrize("which", range(4))
def test_gradient_of_one_input_alone(which):
    arguments = ((33, 17, 10), torch.float64, kernels.Matern32(6.0), "mean", False)
    expected = list(everything("torch", *arguments).values())[2 + which]
    query, centers, values, indices = problem(*arguments[:2])
    leaves = [query, centers, values, torch.tensor(1e-2, dtype=torch.float64)]
    leaves[which].requires_grad_()
    found = solve_embedded(LocalProblem(*leaves, indices), SolveOptions(arguments[2], backend="fused"))
    weights = torch.cos(torch.arange(found.first.numel(), dtype=torch.float64)).view_as(found.first)
    loss = (found.first * weights).sum() + (found.power_squared * torch.linspace(0.5, 1.5, NUM_QUERIES).double()).sum()
    torch.testing.assert_close(torch.autograd.grad(loss, leaves[which])[0], expected)


@needs_fused
@pytest.mark.parametrize("ridges", ["per cell", "per neighbor"])
def test_ridges_of_cells_and_neighbors(ridges):
    query, centers, values, indices = problem((20, 6, 2), torch.float64)
    shape = (NUM_QUERIES, 1 if ridges == "per cell" else 20)
    ridge = torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) + 1e-3
    found = {}
    for backend in ("fused", "torch"):
        leaf = ridge.clone().requires_grad_()
        options = SolveOptions(kernels.Exponential(2.0), backend=backend)
        mean = solve_embedded(LocalProblem(query, centers, values, leaf, indices), options).first
        found[backend] = mean.detach(), torch.autograd.grad(mean.square().sum(), leaf)[0]
    for ours, theirs in zip(found["fused"], found["torch"], strict=True):
        torch.testing.assert_close(ours, theirs)


@needs_fused
def test_threads_change_nothing():
    before = torch.get_num_threads()
    arguments = ((33, 17, 10), torch.float32, kernels.Exponential(6.0), "mean", True)
    try:
        results = []
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            results.append(everything("fused", *arguments))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        for name, tensor in results[0].items():
            assert torch.equal(tensor, other[name]), name


@needs_fused
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_same_judgement_of_hard_cells(dtype):
    # Forty cells, each with one pair of centers, closer from cell to cell: 1 apart to 1e-18.
    generator = torch.Generator().manual_seed(5)
    cells, members = 40, 8
    points = torch.randn(cells, members, 2, generator=generator, dtype=torch.float64)
    points[:, 1] = points[:, 0] + torch.logspace(0, -18, cells, dtype=torch.float64).unsqueeze(1)
    query, centers = points.mean(1).to(dtype), points.flatten(0, 1).to(dtype)
    values = torch.randn(cells * members, 1, generator=generator, dtype=torch.float64).to(dtype)
    indices = torch.arange(cells * members).view(cells, members)
    found = {
        backend: solve_embedded(
            LocalProblem(query, centers, values, torch.tensor(0.0, dtype=dtype), indices),
            SolveOptions(kernels.Exponential(1.0), backend=backend),
        )
        for backend in ("fused", "torch")
    }
    agree = found["fused"].resolved == found["torch"].resolved
    assert 0 < int(found["torch"].resolved.sum()) < len(query)
    assert int((~agree).sum()) <= 2  # at the limit rounding decides
    # Whatever the judgement, the policy leads to the same numbers.
    results = []
    for backend in ("fused", "torch"):
        with pytest.warns(RidgeRaisedWarning):
            results.append(
                F.local_kernel_ridge(
                    query, centers, values, indices, kernel=kernels.Exponential(1.0), ridge=0.0, backend=backend
                )
            )
    torch.testing.assert_close(results[0][agree], results[1][agree], rtol=1e-2, atol=1e-2)


@needs_fused
def test_a_cell_without_numbers_spoils_no_other():
    query, centers, values, indices = problem((9, 3, 2), torch.float32)
    options = SolveOptions(kernels.Exponential(2.0), backend="fused")
    cells = LocalProblem(query, centers, values, torch.tensor(1e-2), indices)
    expected = solve_embedded(cells, options)
    centers[int(indices[3, 4])] = torch.nan
    found = solve_embedded(cells, options)
    struck = (indices == indices[3, 4]).any(1)
    assert not bool(found.resolved[struck].any())
    assert torch.equal(found.first[~struck], expected.first[~struck])
    assert int(struck.sum()) < NUM_QUERIES


@needs_fused
def test_tensors_that_are_not_contiguous():
    query, centers, values, indices = problem((20, 6, 2), torch.float64)
    scattered = [tensor.repeat_interleave(2, 1)[:, ::2] for tensor in (query, centers, values, indices)]
    assert not any(tensor.is_contiguous() for tensor in scattered)
    choices = {"kernel": kernels.Exponential(2.0), "backend": "fused"}
    assert torch.equal(
        F.local_kernel_ridge(*scattered, **choices), F.local_kernel_ridge(query, centers, values, indices, **choices)
    )


class Cauchy(kernels.Kernel):
    def profile(self, distance):
        return 1 / (1 + distance.square())


@needs_fused
@pytest.mark.parametrize(
    ("choices", "reason"),
    [
        ({"kernel": Cauchy()}, "no profile for Cauchy"),
        ({"kernel": kernels.Exponential(), "fade": True}, "no fade"),
        ({"kernel": kernels.Exponential(), "normalize": "cell"}, "no normalize"),
        ({"kernel": kernels.RationalQuadratic(learn_alpha=True)}, "no gradient for what RationalQuadratic learns"),
    ],
)
def test_what_it_cannot_do_is_an_error_or_torch(choices, reason):
    query, centers, values, indices = problem((5, 2, 1), torch.float64)
    with pytest.raises(BackendError, match=f'backend="fused" cannot solve this: .*{reason}'):
        F.local_kernel_ridge(query, centers, values, indices, backend="fused", **choices)
    by_default = F.local_kernel_ridge(query, centers, values, indices, **choices)
    assert torch.equal(by_default, F.local_kernel_ridge(query, centers, values, indices, backend="torch", **choices))


def test_without_the_library_torch_does_the_work(monkeypatch):
    monkeypatch.setattr(native, "library", lambda: None)
    query, centers, values, indices = problem((5, 2, 1), torch.float64)
    report = torchkrr.backend_report()
    assert (report.backend, report.library) == ("torch", None)
    assert "C++ compiler" in str(report)
    mean = F.local_kernel_ridge(query, centers, values, indices, kernel=kernels.Exponential())
    assert bool(mean.isfinite().all())
    with pytest.raises(BackendError, match="it was not compiled"):
        F.local_kernel_ridge(query, centers, values, indices, kernel=kernels.Exponential(), backend="fused")


@pytest.mark.skipif(COMPILER is None or "WITHOUT_COMPILER" in os.environ, reason="no compiler when this was installed")
def test_it_is_there_where_a_compiler_is():
    report = torchkrr.backend_report(dtype=torch.float64)
    assert report.backend == "fused", report
    assert torchkrr.backend_report(dtype=torch.float16).backend == "fused"  # worked in float32
    assert "meta" in torchkrr.backend_report(device="meta").reason


def test_a_library_of_another_version_is_not_used(tmp_path):
    if COMPILER is None:
        pytest.skip("no compiler")
    source = tmp_path / "old.cpp"
    source.write_text('#include <cstdint>\nextern "C" int64_t torchkrr_task_size() { return 1; }\n')
    library = tmp_path / "old.so"
    subprocess.run([COMPILER, "-shared", "-fPIC", source, "-o", library], check=True)
    assert native.opened("old", library) is None
    assert native.opened("missing", tmp_path / "missing.so") is None


def emulated(width, folder):
    """Wider vectors than the processor has are emulated by the compiler: the logic is that of the real instruction set."""
    if COMPILER is None:
        pytest.skip("no compiler")
    source, library = Path(native.FOLDER) / "fused.cpp", folder / "fused.so"
    if not source.exists():
        source = Path(__file__).parents[2] / "src/torchkrr/native/fused.cpp"
    flags = ["-std=c++17", "-O1", "-fno-math-errno", "-shared", "-fPIC", "-pthread", "-w", f"-DVECTOR_BYTES={width}"]
    subprocess.run([COMPILER, *flags, str(source), "-o", str(library)], check=True)
    return library


@pytest.mark.slow
@pytest.mark.parametrize(("name", "width"), [("baseline", 16), ("avx2", 32), ("avx512", 64)])
def test_every_register_width(name, width, tmp_path, monkeypatch):
    runs_here = name in native.INSTRUCTION_SETS.get(torch.backends.cpu.get_cpu_capability(), ("baseline",))
    installed = sorted(native.FOLDER.glob(f"fused_{name}.*")) if runs_here else []
    found = native.opened(name, installed[0] if installed else emulated(width, tmp_path))
    assert found is not None
    monkeypatch.setattr(native, "library", lambda: found)
    for shape in SHAPES:
        for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 2e-3)):
            arguments = (shape, dtype, kernels.RationalQuadratic(1.5 * shape[1] ** 0.5), "mean", True)
            assert_same(everything("fused", *arguments), everything("torch", *arguments), tolerance)


@needs_fused
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_far_query_does_not_round_those_that_share_its_cell(dtype, monkeypatch):
    monkeypatch.setattr(compiled, "WORTHWHILE", 1.0)
    generator = torch.Generator().manual_seed(1)
    centers, query = torch.rand(100, 3, generator=generator).to(dtype), torch.rand(21, 3, generator=generator).to(dtype)
    query[0] = 1e6
    values, indices = torch.sin(6 * centers[:, :1]), torch.arange(100).expand(21, 100).contiguous()
    choices = {"kernel": kernels.Matern32(), "ridge": 1e-3, "backend": "fused"}
    found = F.local_kernel_ridge(query, centers, values, indices, **choices)
    exact = F.local_kernel_ridge(
        query.double(), centers.double(), values.double(), indices, **{**choices, "backend": "torch"}
    )
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=2e-4 if dtype == torch.float32 else 1e-10)


@needs_fused
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own, on entering forward mode
def test_memory_is_not_all_there_is_to_a_tensor():
    query, centers, values, indices = problem((9, 3, 2), torch.float64)
    choices = {"kernel": kernels.Matern52(2.0), "ridge": 1e-2}
    expected = F.local_kernel_ridge(query, centers, -values, indices, backend="torch", **choices)
    lazily = F.local_kernel_ridge(query, centers, torch._neg_view(values), indices, backend="fused", **choices)
    torch.testing.assert_close(lazily, expected)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(values, torch.ones_like(values))
        with pytest.raises(BackendError, match="forward mode"):
            F.local_kernel_ridge(query, centers, dual, indices, backend="fused", **choices)
        tangent = forward_ad.unpack_dual(F.local_kernel_ridge(query, centers, dual, indices, **choices)).tangent
    ones = F.local_kernel_ridge(query, centers, torch.ones_like(values), indices, backend="torch", **choices)
    torch.testing.assert_close(tangent, ones)  # linear in the values


OUT_OF_MEMORY = """
    import resource, torch
    from torchkrr import kernels, nn

    torch.manual_seed(0)
    torch.set_num_threads(2)
    query, centers, values = torch.randn(6000, 3), torch.randn(3000, 3), torch.randn(3000, 1)
    layer = nn.LocalKernelRidge(centers, values, 200, kernel=kernels.Matern32(), ridge=1e-2, keep_factors=100000)
    plain = nn.LocalKernelRidge(centers, values, 200, kernel=kernels.Matern32(), ridge=1e-2)
    with torch.no_grad():
        expected = plain(query)
        layer(query[:100])
        pages = int(open("/proc/self/statm").read().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (400 << 20),) * 2)
        found = layer(query)  # factors of 160 kB each, 960 MB, for which there is no room
    assert torch.allclose(found, expected, atol=1e-3)
    print("done")
"""


@needs_fused
@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs the proc file system")
def test_factors_for_which_there_is_no_memory_are_not_kept():
    assert run_python(OUT_OF_MEMORY, timeout=120).endswith("done\n")


@pytest.mark.parametrize(("code", "error"), [(1, MemoryError), (2, BackendError)])
def test_what_goes_wrong_in_the_library_is_an_error(code, error, monkeypatch):
    functions = SimpleNamespace(torchkrr_solve_float=lambda task: code)
    monkeypatch.setattr(native, "library", lambda: native.Library("avx2", Path(), functions, quick_products=False))
    with pytest.raises(error, match="'solve'"):
        native.call("solve", torch.float32, native.Task())


@pytest.mark.parametrize("backend", ["torch", pytest.param("fused", marks=needs_fused)])
def test_neighbors_outside_the_support_of_a_hat_function_have_no_gradient(backend):
    # Its slope jumps from -1 to 0 at the border.
    query, centers, values, indices = problem((6, 1, 1), torch.float64)
    query, indices, kernel = query[:8], indices[:8], kernels.Wendland(dimension=1, smoothness=0)
    inputs = (query.requires_grad_(), centers.requires_grad_())
    assert bool(((query - centers[indices].squeeze(2)).abs() > 1).any())

    def predict(query, centers):
        return F.local_kernel_ridge(query, centers, values, indices, kernel=kernel, ridge=0.1, backend=backend)

    assert gradcheck(predict, inputs)
