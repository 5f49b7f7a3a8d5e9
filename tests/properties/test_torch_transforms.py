"""The functions and layers under torch's own transformations: torch.func, compile, export, meta and fake tensors.

Each is held against the plain call, which other tests hold against the truth.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

import torchkrr
from torchkrr import errors, kernels, neighbors
from torchkrr import functional as F

NUM_QUERIES, NUM_CENTERS, NUM_NEIGHBORS, NUM_FEATURES, NUM_OUTPUTS = 4, 12, 6, 2, 2
RIDGE = 1e-2
KERNEL = kernels.Matern52(1.3)
POINTS = ("query", "centers", "values")
# Torch's own, when forward mode, the compiler or the tracer is first entered.
pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit.*` is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.*` is not supported in Python:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]


@pytest.fixture(autouse=True)
def _double_parameters() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.fixture
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def points(*leading: int, seed: int = 3, num_queries: int = NUM_QUERIES) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = ((num_queries, NUM_FEATURES), (NUM_CENTERS, NUM_FEATURES), (NUM_CENTERS, NUM_OUTPUTS))
    return {
        name: torch.randn(*leading, *shape, generator=generator, dtype=torch.float64)
        for name, shape in zip(POINTS, shapes, strict=True)
    }


def indices_of(query: Tensor, centers: Tensor) -> Tensor:
    return neighbors.nearest(query, centers, NUM_NEIGHBORS)


def dense(query: Tensor, centers: Tensor, values: Tensor, indices: Tensor, **choices: Any) -> Tensor:
    return F.kernel_ridge(query, centers, values, **{"kernel": KERNEL, "ridge": RIDGE, **choices})


def local(query: Tensor, centers: Tensor, values: Tensor, indices: Tensor, **choices: Any) -> Tensor:
    choices = {"kernel": KERNEL, "ridge": RIDGE, **choices}
    return F.local_kernel_ridge(query, centers, values, indices, **choices)


def local_faded(query: Tensor, centers: Tensor, values: Tensor, indices: Tensor, **choices: Any) -> Tensor:
    return local(query, centers, values, indices, trend="constant", fade=True, **choices)


FUNCTIONS: dict[str, Callable[..., Tensor]] = {"dense": dense, "local": local, "local, trend, fade": local_faded}
by_function = pytest.mark.parametrize("name", FUNCTIONS)


def layer(kind: str, *, learned: bool = True) -> torch.nn.Module:
    given = points()
    kernel = kernels.RationalQuadratic([0.9, 1.7], alpha=0.7, learn_lengthscale=learned, learn_alpha=learned)
    choices = {"kernel": kernel, "ridge": RIDGE, "learn_centers": learned, "learn_values": learned}
    if kind == "dense":
        return torchkrr.nn.KernelRidge(given["centers"], given["values"], **choices)
    return torchkrr.nn.LocalKernelRidge(given["centers"], given["values"], NUM_NEIGHBORS, **choices)


by_layer = pytest.mark.parametrize("kind", ["dense", "local"])


def close(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-9)


def as_function_of(name: str, which: str) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """The prediction as a function of one of its inputs, and where."""
    given = points()
    indices = indices_of(given["query"], given["centers"])
    inputs = {**given, "ridge": torch.tensor(RIDGE, dtype=torch.float64)}

    def predict(tensor: Tensor) -> Tensor:
        all_inputs = {**inputs, which: tensor}
        return FUNCTIONS[name](*(all_inputs[point] for point in POINTS), indices, ridge=all_inputs["ridge"])

    return predict, inputs[which]


by_input = pytest.mark.parametrize("which", [*POINTS, "ridge"])


@by_function
@by_input
def test_grad(name, which):
    predict, at = as_function_of(name, which)
    leaf = at.clone().requires_grad_()
    (expected,) = torch.autograd.grad(predict(leaf).square().sum(), leaf)
    close(grad(lambda tensor: predict(tensor).square().sum())(at), expected)


@by_function
@by_input
def test_vjp(name, which):
    predict, at = as_function_of(name, which)
    arriving = torch.randn(NUM_QUERIES, NUM_OUTPUTS, dtype=torch.float64)
    leaf = at.clone().requires_grad_()
    result = predict(leaf)
    (expected,) = torch.autograd.grad(result, leaf, arriving)
    found, pull_back = vjp(predict, at)
    close(found, result.detach())
    close(pull_back(arriving)[0], expected)


@by_function
@by_input
def test_jacrev(name, which):
    predict, at = as_function_of(name, which)
    close(jacrev(predict)(at), torch.autograd.functional.jacobian(predict, at))


@by_function
@by_input
def test_jacrev_of_jacrev(name, which):
    predict, at = as_function_of(name, which)

    def loss(tensor):
        return predict(tensor).square().sum()

    close(jacrev(jacrev(loss))(at), torch.autograd.functional.hessian(loss, at))


def agrees_or_names_jacrev(run: Callable[[], Any], expected: Any) -> None:
    """The result of `run` is the expected one, or it says that it does not work, and what does."""
    try:
        found = run()
    except errors.KernelRidgeError as error:
        message = str(error)
    else:
        close(found, expected)
        return
    assert "jacrev" in message, f"The error does not say what works instead: {message}"


@by_function
@by_input
def test_hessian_agrees_or_names_jacrev(name, which):
    predict, at = as_function_of(name, which)

    def loss(tensor):
        return predict(tensor).square().sum()

    expected = torch.autograd.functional.hessian(loss, at)
    agrees_or_names_jacrev(lambda: hessian(loss)(at), expected)


@by_function
@by_input
def test_jacfwd_agrees_or_names_jacrev(name, which):
    predict, at = as_function_of(name, which)
    expected = torch.autograd.functional.jacobian(predict, at)
    agrees_or_names_jacrev(lambda: jacfwd(predict)(at), expected)


@by_function
@by_input
def test_jvp_agrees_or_names_jacrev(name, which):
    predict, at = as_function_of(name, which)
    direction = torch.randn(at.shape, dtype=torch.float64)
    expected = torch.autograd.functional.jvp(predict, at, direction)
    agrees_or_names_jacrev(lambda: jvp(predict, (at,), (direction,)), expected)


@by_function
def test_vmap_over_queries(name):
    given = points()
    query, centers, values = given.values()
    indices = indices_of(query, centers)

    def one(point, row):
        return FUNCTIONS[name](point[None], centers, values, row[None])[0]

    close(vmap(one)(query, indices), FUNCTIONS[name](query, centers, values, indices))


@by_function
@pytest.mark.parametrize("moved", range(3))
def test_vmap_with_the_batch_in_another_place(name, moved):
    """`in_dims` and `out_dims` other than the first."""
    batch = points(3)
    rows = torch.stack([indices_of(*pair) for pair in zip(batch["query"], batch["centers"], strict=True)])
    expected = torch.stack([FUNCTIONS[name](*one) for one in zip(*batch.values(), rows, strict=True)])
    elsewhere = [tensor.movedim(0, moved) for tensor in (*batch.values(), rows)]
    found = vmap(FUNCTIONS[name], in_dims=moved, out_dims=moved)(*elsewhere)
    close(found.movedim(moved, 0), expected)


@by_function
@pytest.mark.parametrize("batched", [("query",), ("centers",), ("values",), ("query", "values"), POINTS], ids="+".join)
def test_vmap_over_problems(name, batched):
    """All, or only some of the inputs have a batch; the neighbors always do."""
    shared, batch = points(), points(3, seed=4)
    inputs = [batch[point] if point in batched else shared[point] for point in POINTS]
    dims = tuple(0 if point in batched else None for point in POINTS)

    def problem(i):
        return [tensor if dim is None else tensor[i] for tensor, dim in zip(inputs, dims, strict=True)]

    rows = torch.stack([indices_of(*problem(i)[:2]) for i in range(3)])
    expected = torch.stack([FUNCTIONS[name](*problem(i), rows[i]) for i in range(3)])
    close(vmap(FUNCTIONS[name], in_dims=(*dims, 0))(*inputs, rows), expected)


@by_function
@pytest.mark.parametrize("which", ["query", "centers", "values"])
def test_vmap_of_grad(name, which):
    """The gradient of each sample by itself."""
    given = points()
    query, centers, values = given.values()
    indices, targets = indices_of(query, centers), torch.randn(NUM_QUERIES, NUM_OUTPUTS, dtype=torch.float64)

    def loss(tensor, point, row, target):
        inputs = {"query": point[None], "centers": centers, "values": values}
        inputs[which] = tensor[None] if which == "query" else tensor
        return (FUNCTIONS[name](*inputs.values(), row[None])[0] - target).square().sum()

    samples = [(point, row, target) for point, row, target in zip(query, indices, targets, strict=True)]
    starts = query if which == "query" else given[which].expand(NUM_QUERIES, *given[which].shape)
    expected = []
    for start, sample in zip(starts, samples, strict=True):
        leaf = start.clone().requires_grad_()
        expected.append(torch.autograd.grad(loss(leaf, *sample), leaf)[0])
    dims = (0 if which == "query" else None, 0, 0, 0)
    found = vmap(grad(loss), in_dims=dims)(query if which == "query" else given[which], query, indices, targets)
    close(found, torch.stack(expected))


@by_layer
def test_grad_in_the_parameters_of_a_layer(kind):
    model, query = layer(kind), points(seed=5)["query"]
    parameters = dict(model.named_parameters())
    assert set(parameters) == {"centers", "values", "kernel.log_lengthscale", "kernel.log_alpha"}

    def loss(parameters, query):
        return functional_call(model, parameters, (query,)).square().sum()

    plain = torch.autograd.grad(model(query).square().sum(), list(parameters.values()))
    detached = {name: parameter.detach() for name, parameter in parameters.items()}
    found = grad(loss)(detached, query)
    for name, expected in zip(parameters, plain, strict=True):
        close(found[name], expected)
    leaf = query.clone().requires_grad_()
    (expected,) = torch.autograd.grad(model(leaf).square().sum(), leaf)
    close(grad(loss, argnums=1)(detached, query), expected)


@by_layer
def test_gradients_of_each_sample_in_the_parameters_of_a_layer(kind):
    model, query = layer(kind), points(seed=5)["query"]
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}

    def loss(parameters, point):
        return functional_call(model, parameters, (point[None],)).square().sum()

    found = vmap(grad(loss), in_dims=(None, 0))(parameters, query)
    for i, point in enumerate(query):
        plain = torch.autograd.grad(model(point[None]).square().sum(), list(model.parameters()))
        for name, expected in zip(parameters, plain, strict=True):
            close(found[name][i], expected)


@by_layer
def test_an_ensemble_of_layers(kind):
    """torch.func's recipe for models that differ in their parameters alone."""
    models = [layer(kind) for _ in range(3)]
    with torch.no_grad():
        for i, model in enumerate(models):
            for parameter in model.parameters():
                parameter.add_(0.1 * i)
    parameters, buffers = torch.func.stack_module_state(models)
    query = points(seed=5)["query"]

    def predict(parameters, buffers, query):
        return functional_call(models[0], (parameters, buffers), (query,))

    found = vmap(predict, in_dims=(0, 0, None))(parameters, buffers, query)
    close(found, torch.stack([model(query) for model in models]))


# torch.compile


@pytest.mark.usefixtures("_fresh_compiler")
@by_function
def test_a_compiled_function(name):
    function = torch.compile(FUNCTIONS[name], fullgraph=True, backend="aot_eager")
    for num_queries in (4, 7):
        given = points(num_queries=num_queries)
        indices = indices_of(given["query"], given["centers"])
        results = []
        for run in (FUNCTIONS[name], function):
            leaves = [tensor.clone().requires_grad_() for tensor in given.values()]
            result = run(*leaves, indices)
            results.append((result.detach(), torch.autograd.grad(result.square().sum(), leaves)))
        close(*results)


@pytest.mark.usefixtures("_fresh_compiler")
@by_layer
@pytest.mark.parametrize("learned", [False, True], ids=["fixed", "learned"])
def test_a_compiled_model(kind, learned):
    """A head on a linear layer: predictions, and the gradients of everything that is learned."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(3, NUM_FEATURES), layer(kind, learned=learned))
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for num_queries in (4, 7):
        images = torch.randn(num_queries, 3)
        results = []
        for run in (model, compiled):
            model.zero_grad()
            result = run(images)
            result.square().sum().backward()
            results.append((result.detach(), [parameter.grad for parameter in model.parameters()]))
        close(*results)
    with torch.no_grad():
        close(compiled(images), model(images))


@pytest.mark.usefixtures("_fresh_compiler")
def test_a_compiled_model_learns():
    """Three steps of an optimizer end at the same weights."""

    def trained(compile_it):
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(3, NUM_FEATURES), layer("local", learned=False))
        run = torch.compile(model, fullgraph=True, backend="aot_eager") if compile_it else model
        images, targets = torch.randn(9, 3), torch.randn(9, NUM_OUTPUTS)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(run(images), targets).backward()
            optimizer.step()
        return [parameter.detach() for parameter in model.parameters()]

    close(trained(True), trained(False))


# torch.export


READ_BACK = """
import sys
import torch
import torchkrr

program, images, result = sys.argv[1:]
model = torch.export.load(program).module()
torch.save([model(batch) for batch in torch.load(images)], result)
"""


@by_layer
def test_an_exported_model_predicts_the_same_in_another_process(kind, tmp_path):
    torch.manual_seed(1)
    backbone = torch.nn.Sequential(torch.nn.Linear(3, NUM_FEATURES), torch.nn.Tanh())
    model = torch.nn.Sequential(backbone, layer(kind, learned=False)).eval()
    batches = [torch.randn(count, 3) for count in (5, 1, 9)]
    dynamic = ({0: torch.export.Dim("batch", min=1, max=64)},)
    with torch.no_grad():
        program = torch.export.export(model, (batches[0],), dynamic_shapes=dynamic)
        expected = [model(batch) for batch in batches]
        for batch, result in zip(batches, expected, strict=True):
            close(program.module()(batch), result)
    files = [str(tmp_path / name) for name in ("model.pt2", "images.pt", "result.pt")]
    torch.export.save(program, files[0])
    torch.save(batches, files[1])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", textwrap.dedent(READ_BACK), *files]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    close([result.detach() for result in torch.load(files[2])], expected)


# Tensors without numbers


def local_call(function: Callable[..., Any], **choices: Any) -> Callable[..., Any]:
    return lambda query, centers, values, indices, **more: function(query, centers, indices, **choices, **more)


SHAPES: dict[str, tuple[Callable[..., Any], Any]] = {
    "kernel_ridge": (dense, (NUM_QUERIES, NUM_OUTPUTS)),
    "cardinal_weights": (lambda q, x, y, i, **more: F.cardinal_weights(q, x, **more), (NUM_QUERIES, NUM_CENTERS)),
    "power_function": (lambda q, x, y, i, **more: F.power_function(q, x, **more), (NUM_QUERIES,)),
    "leave_one_out": (lambda q, x, y, i, **more: F.leave_one_out(x, y, **more), (NUM_CENTERS, NUM_OUTPUTS)),
    "rkhs_norm": (lambda q, x, y, i, **more: F.rkhs_norm(x, y, **more), (NUM_OUTPUTS,)),
    "local_kernel_ridge": (local, (NUM_QUERIES, NUM_OUTPUTS)),
    "local_kernel_ridge, trend, fade": (local_faded, (NUM_QUERIES, NUM_OUTPUTS)),
    "local_cardinal_weights": (local_call(F.local_cardinal_weights), (NUM_QUERIES, NUM_NEIGHBORS)),
    "local_power_function": (local_call(F.local_power_function), (NUM_QUERIES,)),
    "local_path": (
        lambda q, x, y, i, **more: F.local_path(q, x, y, i, **more)[0],
        (NUM_QUERIES, NUM_NEIGHBORS, NUM_OUTPUTS),
    ),
}
by_shape = pytest.mark.parametrize("function_name", SHAPES)
by_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])


def tensors(dtype: torch.dtype) -> list[Tensor]:
    given = {name: tensor.to(dtype) for name, tensor in points().items()}
    return [*given.values(), indices_of(given["query"], given["centers"])]


@by_shape
@by_dtype
def test_meta_tensors(function_name, dtype):
    function, shape = SHAPES[function_name]
    result = function(*(tensor.to("meta") for tensor in tensors(dtype)), kernel=KERNEL, ridge=RIDGE)
    assert (result.shape, result.dtype, result.device.type) == (shape, dtype, "meta")


@by_shape
def test_gradients_of_meta_tensors(function_name):
    function, _ = SHAPES[function_name]
    *leaves, indices = (tensor.to("meta") for tensor in tensors(torch.float32))
    leaves = [leaf.requires_grad_() for leaf in leaves]
    result = function(*leaves, indices, kernel=KERNEL, ridge=RIDGE)
    found = torch.autograd.grad(result.sum(), leaves, allow_unused=True)
    for gradient, leaf in zip(found, leaves, strict=True):
        assert gradient is None or (gradient.shape, gradient.device.type) == (leaf.shape, "meta")
    assert any(gradient is not None for gradient in found)


@by_shape
@by_dtype
def test_fake_tensors(function_name, dtype):
    function, shape = SHAPES[function_name]
    given = tensors(dtype)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        result = function(*(mode.from_tensor(tensor) for tensor in given), kernel=KERNEL, ridge=RIDGE)
    assert isinstance(result, FakeTensor)
    assert (result.shape, result.dtype, result.device.type) == (shape, dtype, "cpu")


@by_layer
@by_dtype
def test_a_layer_on_meta(kind, dtype):
    model = layer(kind, learned=False).to(dtype).to("meta")
    query = torch.empty(5, 3, NUM_FEATURES, dtype=dtype, device="meta")
    result, power = model(query), model.power_function(query)
    assert (result.shape, result.dtype, result.device.type) == ((5, 3, NUM_OUTPUTS), dtype, "meta")
    assert (power.shape, power.dtype, power.device.type) == ((5, 3), dtype, "meta")


@by_layer
def test_a_layer_built_on_meta(kind):
    """Built without memory, then loaded: torch's recipe for large models."""
    own = layer(kind, learned=False)
    kernel = kernels.RationalQuadratic([0.9, 1.7], alpha=0.7)
    given = [points()[name].to("meta") for name in ("centers", "values")]
    if kind == "dense":
        model = torchkrr.nn.KernelRidge(*given, kernel=kernel, ridge=RIDGE)
    else:
        model = torchkrr.nn.LocalKernelRidge(*given, NUM_NEIGHBORS, kernel=kernel, ridge=RIDGE)
    query = points(seed=5)["query"]
    assert model(query.to("meta")).shape == (NUM_QUERIES, NUM_OUTPUTS)
    model.load_state_dict(own.state_dict(), assign=True)
    close(model(query), own(query))


@by_layer
def test_a_layer_on_fake_tensors(kind):
    model = layer(kind, learned=False)
    query = points(seed=5)["query"]
    expected = model(query)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        result = model(mode.from_tensor(query))
    assert isinstance(result, FakeTensor)
    assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
    close(model(query), expected)  # nothing without numbers was kept


def test_nearest_on_meta_and_fake_tensors():
    query, centers, *_ = tensors(torch.float32)
    found = [neighbors.nearest(query.to("meta"), centers.to("meta"), NUM_NEIGHBORS)]
    with FakeTensorMode() as mode:
        found.append(neighbors.nearest(mode.from_tensor(query), mode.from_tensor(centers), NUM_NEIGHBORS))
    for result in found:
        assert (result.shape, result.dtype) == ((NUM_QUERIES, NUM_NEIGHBORS), torch.int64)
    assert found[0].device.type == "meta"
    assert isinstance(found[1], FakeTensor)


# The operators themselves

OPERATORS = ("local_solve", "dense_solve", "solve_gradient", "nearest")


def op_samples(op: str, dtype: torch.dtype, *, requires_grad: bool) -> list[tuple[Any, ...]]:
    """Positional arguments to call an operator with: points are embedded in float64, values tell the dtype."""
    query, centers, values, indices = tensors(dtype)
    points = [tensor.double().requires_grad_(requires_grad) for tensor in (query, centers)]
    ridge = torch.tensor(RIDGE, dtype=torch.float64, requires_grad=requires_grad)
    log_alpha = torch.tensor([0.3], dtype=torch.float64, requires_grad=requires_grad)
    plain = [*points, values.requires_grad_(requires_grad), ridge]
    means, powers = torch.ones(NUM_QUERIES, NUM_OUTPUTS, dtype=dtype), torch.ones(NUM_QUERIES, dtype=dtype)
    words = "None;False;None;warn"
    kernels = {f"Matern32;{words}": plain, f"RationalQuadratic;{words}": [*plain, log_alpha]}
    samples = {
        "local_solve": [
            (inputs, indices, text, kind) for text, inputs in kernels.items() for kind in ("mean", "weights", "path")
        ],
        "solve_gradient": [([means, powers], inputs, indices, text, "mean") for text, inputs in kernels.items()]
        + [([means], inputs, None, text, "mean") for text, inputs in kernels.items()],
        "dense_solve": [
            (inputs, text, kind)
            for text, inputs in kernels.items()
            for kind in ("mean", "weights", "power", "leave_one_out", "norm")
        ],
        "nearest": [(query.detach(), centers.detach(), NUM_NEIGHBORS, None)],
    }
    return samples[op]


def operator_named(op: str) -> Any:
    if not hasattr(torch.ops.torchkrr, op):
        pytest.skip(f"there is no operator torchkrr::{op}")
    return getattr(torch.ops.torchkrr, op)


@by_dtype
@pytest.mark.parametrize("op", OPERATORS)
def test_operators_pass_torchs_checks(op, dtype):
    operator = operator_named(op)
    for requires_grad in (False, True) if op.endswith("_solve") else (False,):
        for sample in op_samples(op, dtype, requires_grad=requires_grad):
            assert set(torch.library.opcheck(operator, sample).values()) == {"SUCCESS"}


def test_every_operator_is_checked():
    """An operator that is added needs samples above."""
    registered = {
        name.removeprefix("torchkrr::").split(".")[0]
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("torchkrr::")
    }
    assert registered, "the library has registered no operator"
    assert registered <= set(OPERATORS)


# What does not work says so


def traceable(kind: str) -> Callable[[Tensor], Tensor]:
    _, centers, values, indices = tensors(torch.float64)
    if kind in FUNCTIONS:
        return lambda query: FUNCTIONS[kind](query, centers, values, indices)
    return layer(kind.removesuffix(" layer"), learned=False)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("kind", [*FUNCTIONS, "dense layer", "local layer"])
def test_jit_trace_is_refused(kind):
    with pytest.raises(errors.KernelRidgeError, match=r"jit|trac"):
        torch.jit.trace(traceable(kind), points()["query"])
