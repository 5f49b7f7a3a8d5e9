"""What happens to a layer between two predictions: saved, moved, copied, trained, compiled, forked, grown and shrunk.

Whatever happened, the next prediction is that of a layer newly built from the present centers, values and kernel.
"""

from __future__ import annotations

import copy
import io
import itertools
import os
import pickle
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed
import torch.multiprocessing
from torch import Tensor

from torchkrr import functional as F
from torchkrr import kernels, neighbors, nn, transforms

NUM_CENTERS, NUM_FEATURES, NUM_OUTPUTS, NUM_NEIGHBORS = 60, 3, 2, 8
KINDS = ["dense", "local"]
LEARNED = [{"learn_centers": a, "learn_values": b} for a, b in itertools.product((False, True), repeat=2)]
Layer = nn.KernelRidge | nn.LocalKernelRidge


def data(seed: int = 0, count: int = NUM_CENTERS) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, NUM_FEATURES, generator=generator), torch.randn(count, NUM_OUTPUTS, generator=generator)


def queries(*shape: int, seed: int = 100) -> Tensor:
    return torch.randn(*(shape or (9,)), NUM_FEATURES, generator=torch.Generator().manual_seed(seed))


def make(kind: str, centers: Tensor | None = None, values: Tensor | None = None, **choices: object) -> Layer:
    own_centers, own_values = data()
    centers, values = own_centers if centers is None else centers, own_values if values is None else values
    choices = {"kernel": kernels.Matern32(1.5), "ridge": 1e-4, **choices}
    if kind == "dense":
        return nn.KernelRidge(centers, values, **choices)
    return nn.LocalKernelRidge(centers, values, NUM_NEIGHBORS, **choices)


def kind_of(layer: Layer) -> str:
    return "dense" if isinstance(layer, nn.KernelRidge) else "local"


def rebuilt(layer: Layer) -> Layer:
    """A new layer from the present tensors and kernel, with nothing remembered."""
    centers, values = layer.centers.detach().clone(), layer.values.detach().clone()
    choices = {name: getattr(layer, name) for name in ("ridge", "trend", "on_singular")}
    if kind_of(layer) == "local":
        choices["fade"] = layer.fade
    return make(kind_of(layer), centers, values, kernel=copy.deepcopy(layer.kernel), **choices)


def predicts_as_rebuilt(layer: Layer, query: Tensor | None = None) -> bool:
    query = queries().to(layer.centers.dtype) if query is None else query
    return torch.equal(layer(query), rebuilt(layer)(query))


# --- buffers and parameters ---


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("learned", LEARNED, ids=str)
def test_learned_tensors_are_parameters_and_fixed_ones_buffers_under_the_same_names(kind, learned):
    layer = make(kind, **learned)
    expected = {name for name in ("centers", "values") if learned[f"learn_{name}"]}
    assert {name for name, _ in layer.named_parameters()} == expected
    buffers = {name for name, _ in layer.named_buffers()}
    assert buffers == {"centers", "values", "kernel.log_lengthscale"} - expected
    assert set(layer.state_dict()) == {"centers", "values", "kernel.log_lengthscale"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("source", LEARNED, ids=str)
@pytest.mark.parametrize("target", LEARNED, ids=str)
def test_a_checkpoint_loads_whatever_is_learned_on_either_side(kind, source, target):
    saved = make(kind, *data(1), **source)
    layer = make(kind, kernel=kernels.Matern32(0.5), **target)
    layer(queries())
    layer.load_state_dict(saved.state_dict())
    assert torch.equal(layer(queries()), saved(queries()))
    assert {name for name, _ in layer.named_parameters()} == {n for n in ("centers", "values") if target[f"learn_{n}"]}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [NUM_NEIGHBORS, 20, 200])
@pytest.mark.parametrize("assign", [False, True])
def test_a_checkpoint_with_another_number_of_centers_loads_into_buffers(kind, count, assign):
    saved, layer = make(kind, *data(1, count)), make(kind)
    layer(queries())
    layer.load_state_dict(saved.state_dict(), assign=assign)
    assert layer.num_centers == count
    assert torch.equal(layer(queries()), saved(queries()))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("learned", LEARNED[1:], ids=str)
def test_a_checkpoint_with_another_number_of_centers_does_not_load_into_parameters(kind, learned):
    # An optimizer may hold them: torch's own strict rule stands.
    with pytest.raises(RuntimeError, match=r"size mismatch for (centers|values)"):
        make(kind, **learned).load_state_dict(make(kind, *data(1, 20)).state_dict())


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_carries_the_fitted_kernel(kind):
    saved = make(kind, *data(1), kernel=None)
    layer = make(kind, *data(2, 30), kernel=kernels.Exponential(input_transform=transforms.StandardMean()))
    file = io.BytesIO()
    torch.save(saved.state_dict(), file)
    file.seek(0)
    layer.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(layer(queries()), saved(queries()))


@pytest.mark.parametrize("kind", KINDS)
def test_the_default_kernel_is_fitted_once_on_the_centers_given(kind):
    centers, values = data()
    layer = make(kind, centers, values, kernel=None)
    state = copy.deepcopy(layer.kernel.state_dict())
    layer.append(*data(3, 20))
    layer.load_state_dict({**layer.state_dict(), "centers": 5 * layer.centers})
    layer(queries())
    expected = kernels.default_kernel(centers).state_dict()
    for name, tensor in layer.kernel.state_dict().items():
        assert torch.equal(tensor, state[name])
        assert torch.equal(tensor, expected[name])


@pytest.mark.parametrize("kind", KINDS)
def test_learned_tensors_are_copies_of_those_given(kind):
    centers, values = data()
    layer = make(kind, centers, values, learn_centers=True, learn_values=True)
    with torch.no_grad():
        layer.centers.zero_()
        layer.values.zero_()
    assert torch.equal(centers, data()[0])
    assert torch.equal(values, data()[1])


@pytest.mark.parametrize("kind", KINDS)
def test_loading_a_checkpoint_leaves_the_tensors_given_alone(kind):
    centers, values = data()
    layer, twin = make(kind, centers, values), make(kind, centers, values)
    before = twin(queries())
    layer.load_state_dict(make(kind, *data(1)).state_dict())
    assert torch.equal(twin(queries()), before)
    assert torch.equal(centers, data()[0])


@pytest.mark.parametrize("kind", KINDS)
def test_a_learned_ridge_is_a_parameter_of_the_layer(kind):
    ridge = torch.nn.Parameter(torch.tensor(1e-2))
    layer = make(kind, ridge=ridge)
    assert "ridge" in dict(layer.named_parameters())
    layer(queries()).sum().backward()
    assert ridge.grad.abs() > 0


# --- what it shows ---


def test_the_layers_show_themselves():
    assert repr(make("dense", trend="constant")).splitlines() == [
        "KernelRidge(",
        "  in_features=3, out_features=2, num_centers=60, ridge=0.0001, trend='constant'",
        "  (kernel): Matern32(lengthscale=1.5)",
        ")",
    ]
    layer = make("local", fade=True, learn_values=True, kernel=kernels.Matern32(1.5, learn_lengthscale=True))
    assert repr(layer).splitlines() == [
        "LocalKernelRidge(",
        "  in_features=3, out_features=2, num_centers=60, num_neighbors=8, fade=True, ridge=0.0001, learned=['values']",
        "  (kernel): Matern32(lengthscale=1.5, learned)",
        ")",
    ]
    layer = make("dense", ridge=torch.tensor(0.25))
    layer.append(*data(1, 5))
    assert layer.extra_repr() == "in_features=3, out_features=2, num_centers=65, ridge=0.25"


@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_with_a_learned_ridge_shows_itself(kind):
    # torch gives this warning once in a process unless told otherwise.
    torch.set_warn_always(True)
    try:
        assert "ridge=0.25" in repr(make(kind, ridge=torch.nn.Parameter(torch.tensor(0.25))))
    finally:
        torch.set_warn_always(False)


# --- shapes ---


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(), (1,), (5,), (2, 3), (2, 1, 4)], ids=str)
@pytest.mark.parametrize("trend", [None, "constant"])
def test_leading_dimensions_are_those_of_the_query(kind, shape, trend):
    layer = make(kind, trend=trend)
    query = queries(*shape) if shape else queries()[0]
    rows = query.reshape(-1, NUM_FEATURES)
    prediction, power = layer(query), layer.power_function(query)
    assert prediction.shape == (*shape, NUM_OUTPUTS)
    assert power.shape == shape
    torch.testing.assert_close(prediction.reshape(-1, NUM_OUTPUTS), layer(rows))
    torch.testing.assert_close(power.reshape(-1), layer.power_function(rows))
    if kind == "dense":
        assert layer.cardinal_weights(query).shape == (*shape, NUM_CENTERS)
    else:
        assert layer.neighbors(query).shape == (*shape, NUM_NEIGHBORS)
        assert layer.explain(query).weights.shape == (*shape, NUM_NEIGHBORS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_is_its_function(kind):
    centers, values = data()
    layer = make(kind, trend="constant")
    choices = {"kernel": layer.kernel, "ridge": 1e-4, "trend": "constant"}
    if kind == "dense":
        expected = F.kernel_ridge(queries(), centers, values, **choices)
        torch.testing.assert_close(layer.leave_one_out(), F.leave_one_out(centers, values, **choices))
        power = F.power_function(queries(), centers, **choices)
    else:
        indices = neighbors.nearest(queries(), centers, NUM_NEIGHBORS, kernel=layer.kernel)
        expected = F.local_kernel_ridge(queries(), centers, values, indices, **choices)
        power = F.local_power_function(queries(), centers, indices, **choices)
        assert torch.equal(layer.neighbors(queries()), indices)
    torch.testing.assert_close(layer(queries()), expected)
    torch.testing.assert_close(layer.power_function(queries()), power)


@pytest.mark.parametrize("trend", [None, "constant"])
@pytest.mark.parametrize("fade", [False, True])
@pytest.mark.parametrize("shape", [(9,), (2, 3)], ids=str)
def test_explanation_adds_up_to_the_prediction(trend, fade, shape):
    layer = make("local", trend=trend, fade=fade)
    query = queries(*shape)
    indices, weights = layer.explain(query)
    total = (weights.unsqueeze(-1) * layer.values[indices]).sum(-2)
    torch.testing.assert_close(total, layer(query), rtol=1e-4, atol=1e-5)
    if trend:
        torch.testing.assert_close(weights.sum(-1), torch.ones(shape))


def test_explanation_of_the_dense_layer_is_its_cardinal_weights():
    layer, query = make("dense").double(), queries().double()
    torch.testing.assert_close(layer.cardinal_weights(query) @ layer.values, layer(query))


@pytest.mark.parametrize("trend", [None, "constant"])
def test_with_every_center_a_neighbor_fading_does_nothing_and_local_is_dense(trend):
    centers, values = data(count=NUM_NEIGHBORS)
    plain, faded = (make("local", centers, values, fade=fade, trend=trend) for fade in (False, True))
    assert torch.equal(plain(queries()), faded(queries()))
    torch.testing.assert_close(
        plain(queries()), make("dense", centers, values, trend=trend)(queries()), rtol=1e-4, atol=1e-5
    )


# --- copies ---


def through_pickle(layer: Layer) -> Layer:
    return pickle.loads(pickle.dumps(layer))


def through_torch_save(layer: Layer) -> Layer:
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES = {"deepcopy": copy.deepcopy, "pickle": through_pickle, "torch.save": through_torch_save}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", COPIES)
@pytest.mark.parametrize("learned", [LEARNED[0], LEARNED[3]], ids=str)
@pytest.mark.parametrize("used_before", [False, True])
def test_a_copy_predicts_the_same_and_is_independent(kind, way, learned, used_before):
    layer = make(kind, kernel=None, **learned)
    if used_before:
        layer(queries())
    other = COPIES[way](layer)
    before = layer(queries())
    assert torch.equal(other(queries()), before)
    with torch.no_grad():
        other.centers.mul_(2)
        other.values.add_(1)
    assert predicts_as_rebuilt(other)
    assert not torch.equal(other(queries()), before)
    assert torch.equal(layer(queries()), before)


def test_a_copy_does_not_carry_the_centers_twice():
    layer = make("local", *data(count=2000))
    size = len(pickle.dumps(layer))
    layer(queries())
    assert len(pickle.dumps(layer)) < 1.01 * size


def test_a_pickle_opens_in_another_process(tmp_path):
    layers = [make(kind, kernel=None, learn_values=True) for kind in KINDS]
    expected = torch.stack([layer(queries()).detach() for layer in layers])
    torch.save({"layers": pickle.dumps(layers), "query": queries()}, tmp_path / "in")
    program = """
        import pickle, sys, torch
        saved = torch.load(sys.argv[1] + "/in", weights_only=True)
        found = [layer(saved["query"]).detach() for layer in pickle.loads(saved["layers"])]
        torch.save(torch.stack(found), sys.argv[1] + "/out")
    """
    run_python(program, str(tmp_path))
    torch.testing.assert_close(torch.load(tmp_path / "out", weights_only=True), expected, rtol=1e-5, atol=1e-6)


def run_python(program: str, *arguments: str, timeout: int = 60) -> str:
    """Run a program with one torch thread; it fails the test if it fails or hangs."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", textwrap.dedent(program), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# --- dtypes and modes ---


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("learned", [LEARNED[0], LEARNED[3]], ids=str)
def test_in_float64_a_layer_is_one_built_there(kind, learned):
    layer = make(kind, **learned)
    layer(queries())
    layer.to(torch.float64)
    centers, values = data()
    expected = make(kind, centers.double(), values.double())(queries().double())
    assert layer(queries().double()).dtype == torch.float64
    torch.testing.assert_close(layer(queries().double()), expected, rtol=1e-12, atol=1e-12)
    assert predicts_as_rebuilt(layer)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_in_half_precision_a_layer_solves_in_float32(kind, dtype):
    layer = make(kind, kernel=kernels.Matern32(1.0), ridge=1e-2).to(dtype)
    rounded = make(kind, layer.centers.float(), layer.values.float(), kernel=kernels.Matern32(1.0), ridge=1e-2)
    query = queries().to(dtype)
    prediction = layer(query)
    assert prediction.dtype == dtype
    # Nothing but the result is rounded: it is the float32 result of the same numbers.
    assert torch.equal(prediction, rounded(query.float()).to(dtype))
    assert layer.power_function(query).dtype == dtype


@pytest.mark.parametrize("kind", KINDS)
def test_under_autocast_features_in_half_meet_centers_in_float32(kind):
    layer = make(kind, learn_centers=True, learn_values=True)
    backbone = torch.nn.Linear(5, NUM_FEATURES)
    images = torch.randn(9, 5)
    with torch.autocast("cpu", torch.bfloat16):
        features = backbone(images)
        prediction = layer(features)
    assert features.dtype == torch.bfloat16
    assert prediction.dtype == torch.float32
    assert torch.equal(prediction, layer(features.float()))
    prediction.square().sum().backward()
    for tensor in (backbone.weight, layer.centers, layer.values):
        assert tensor.grad.dtype == torch.float32
        assert tensor.grad.abs().sum() > 0


@pytest.mark.parametrize("verb", ["neighbors", "append"])
def test_autocast_leaves_nothing_imprecise_behind(verb):
    transform = transforms.Linear(torch.randn(NUM_FEATURES, NUM_FEATURES))
    layer = make("local", kernel=kernels.Matern32(1.5, input_transform=transform))
    if verb == "append":
        layer(queries())
    with torch.autocast("cpu", torch.bfloat16):
        layer.neighbors(queries()) if verb == "neighbors" else layer.append(*data(4, 5))
    assert predicts_as_rebuilt(layer)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("learned", LEARNED, ids=str)
def test_training_after_inference_mode(kind, learned):
    layer = make(kind, **learned)
    with torch.inference_mode():
        before = layer(queries())
    query = queries().requires_grad_()
    prediction = layer(query)
    assert torch.equal(prediction.detach(), before)
    prediction.sum().backward()
    assert query.grad.isfinite().all()
    assert all(parameter.grad is not None for parameter in layer.parameters())


def built_there(kind: str) -> Layer:
    with torch.inference_mode():
        return make(kind, *(tensor.clone() for tensor in data()))


def grown_there(kind: str) -> Layer:
    layer = make(kind)
    with torch.inference_mode():
        layer.append(*data(1, 5))
    return layer


def shrunk_there(kind: str) -> Layer:
    layer = make(kind)
    with torch.inference_mode():
        layer.remove(torch.tensor([0, 7]))
    return layer


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", [built_there, grown_there, shrunk_there])
def test_gradients_of_the_query_after_a_change_in_inference_mode(kind, change, request):
    layer = change(kind)
    query = queries().requires_grad_()
    layer(query).sum().backward()
    assert query.grad.abs().sum() > 0


def test_features_extracted_in_inference_mode_are_embedded_once():
    layer = built_there("local")
    layer(queries())
    points = layer.index.points
    layer(queries())
    assert layer.index.points is points


# --- nothing is remembered too long ---


def moved(layer: Layer) -> None:
    with torch.no_grad():
        layer.centers.add_(torch.linspace(0, 1, NUM_CENTERS)[:, None])


def stepped(layer: Layer) -> None:
    optimizer = torch.optim.SGD([layer.centers], lr=0.1)
    with torch.enable_grad():
        layer(queries()).square().sum().backward()
    optimizer.step()
    layer.centers.grad = None


def loaded(layer: Layer) -> None:
    layer.load_state_dict({**layer.state_dict(), "centers": data(5)[0]})


def loaded_by_assignment(layer: Layer) -> None:
    centers = data(5)[0]
    learned = isinstance(layer.centers, torch.nn.Parameter)
    state = {**layer.state_dict(), "centers": torch.nn.Parameter(centers) if learned else centers}
    layer.load_state_dict(state, assign=True)


def replaced(layer: Layer) -> None:
    centers = data(5)[0]
    layer.centers = torch.nn.Parameter(centers) if isinstance(layer.centers, torch.nn.Parameter) else centers


def given_other_data(layer: Layer) -> None:
    layer.centers.data = data(5)[0]


def lengthscale_edited(layer: Layer) -> None:
    with torch.no_grad():
        layer.kernel.log_lengthscale.add_(torch.tensor([2.0, 0.0, -2.0]))


def lengthscale_replaced(layer: Layer) -> None:
    layer.kernel.load_state_dict(
        {**layer.kernel.state_dict(), "log_lengthscale": torch.tensor([2.0, 0.0, -2.0], dtype=torch.float64)}
    )


def transform_fitted_again(layer: Layer) -> None:
    layer.kernel.input_transform.fit(data(6)[0] * torch.tensor([0.1, 1.0, 10.0]))


def transform_edited(layer: Layer) -> None:
    layer.kernel.input_transform.std.mul_(torch.tensor([0.1, 1.0, 10.0], dtype=torch.float64))


def kernel_replaced(layer: Layer) -> None:
    layer.kernel = kernels.Matern32([0.3, 1.0, 4.0])


def grown(layer: Layer) -> None:
    layer.append(queries() + 0.01, data(7, 9)[1])


def shrunk(layer: Layer) -> None:
    layer.remove(layer.explain(queries()).indices[:, 0].unique())


def grown_and_shrunk(layer: Layer) -> None:
    grown(layer)
    layer.remove(torch.arange(0, 40, 3))
    grown(layer)


def index_used_by_another(layer: Layer) -> None:
    other = make("local", 3 * data(8)[0], index=layer.index)
    other(queries())
    moved(layer)


EDITS: dict[str, Callable[[Layer], None]] = {
    edit.__name__: edit
    for edit in (
        moved,
        loaded,
        loaded_by_assignment,
        replaced,
        given_other_data,
        lengthscale_edited,
        lengthscale_replaced,
        transform_fitted_again,
        transform_edited,
        kernel_replaced,
        grown,
        shrunk,
        grown_and_shrunk,
        index_used_by_another,
    )
}
# Learned centers neither grow nor shrink.
ONLY_FIXED = {"grown", "shrunk", "grown_and_shrunk"}
INDEXES: dict[str, Callable[[], neighbors.NeighborIndex]] = {
    "exact": neighbors.ExactIndex,
    "faiss": lambda: pytest.importorskip("faiss") and neighbors.FaissIndex("Flat"),
}


def embedding_kernel() -> kernels.Kernel:
    transform = transforms.Standardize().fit(data()[0])
    return kernels.Matern32([1.5, 1.0, 0.7], input_transform=transform)


@pytest.mark.parametrize("index", INDEXES)
@pytest.mark.parametrize(
    ("edit", "learned"),
    [(edit, learned) for edit in EDITS for learned in (False, True) if not (learned and edit in ONLY_FIXED)],
)
@pytest.mark.parametrize("grad", [False, True], ids=["no_grad", "grad"])
def test_predictions_follow_every_change(index, edit, learned, grad):
    layer = make("local", kernel=embedding_kernel(), index=INDEXES[index](), learn_centers=learned)
    with torch.set_grad_enabled(grad):
        before = layer(queries()).detach()
        EDITS[edit](layer)
        assert predicts_as_rebuilt(layer)
        # Or the test could not tell.
        assert not torch.equal(layer(queries()), before)


@pytest.mark.parametrize("index", INDEXES)
def test_predictions_follow_the_optimizer(index):
    layer = make("local", learn_centers=True, index=INDEXES[index]())
    for _ in range(3):
        with torch.no_grad():
            before = layer(queries())
        stepped(layer)
        with torch.no_grad():
            assert predicts_as_rebuilt(layer)
            assert not torch.equal(layer(queries()), before)


def test_predictions_follow_a_learned_kernel():
    kernel = kernels.Matern32(1.5, learn_lengthscale=True, input_transform=transforms.Linear(torch.eye(3), learn=True))
    layer = make("local", kernel=kernel)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        layer(queries()).square().sum().backward()
        optimizer.step()
        with torch.no_grad():
            assert predicts_as_rebuilt(layer)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_predictions_follow_the_dtype(dtype):
    layer = make("local")
    layer(queries())
    layer.to(dtype)
    assert predicts_as_rebuilt(layer)
    layer.float()
    assert predicts_as_rebuilt(layer)


def test_predictions_follow_the_device():
    layer = make("local")
    layer(queries())
    layer.to("meta")
    layer.to_empty(device="cpu")
    layer.load_state_dict(make("local", *data(1)).state_dict())
    assert torch.equal(layer(queries()), make("local", *data(1))(queries()))


def transform_given(layer: Layer) -> None:
    layer.kernel.input_transform = transforms.UnitNorm()


def edited_behind_the_back(layer: Layer) -> None:
    layer.centers.data.mul_(torch.tensor([5.0, 1.0, 0.2]))


def edited_in_numpy(layer: Layer) -> None:
    layer.centers.detach().numpy()[:] = data(5)[0].numpy()


@pytest.mark.parametrize(
    ("edit", "learned"),
    [
        pytest.param(transform_given, False),
        # Polyak averaging of target networks is usually written so.
        pytest.param(edited_behind_the_back, True),
        pytest.param(edited_behind_the_back, False),
        pytest.param(edited_in_numpy, False),
    ],
)
def test_predictions_follow_changes_that_torch_does_not_count(edit, learned):
    layer = make("local", learn_centers=learned)
    with torch.no_grad():
        layer(queries())
        edit(layer)
        assert predicts_as_rebuilt(layer)


@pytest.mark.parametrize("index", INDEXES)
def test_two_layers_share_one_index(index):
    shared = INDEXES[index]()
    first, second = make("local", *data(1), index=shared), make("local", 2 * data(2)[0], data(2)[1], index=shared)
    for _ in range(2):
        assert predicts_as_rebuilt(first)
        assert predicts_as_rebuilt(second)
    for layer in (first, second, first):
        layer.append(queries() + 0.1, data(3, 9)[1])
        layer.remove(torch.tensor([0, 5]))
    assert predicts_as_rebuilt(first)
    assert predicts_as_rebuilt(second)


def test_an_index_built_by_the_caller_for_something_else_is_built_again():
    index = neighbors.ExactIndex()
    layer = make("local", index=index)
    layer(queries())
    index.build(torch.randn(100, NUM_FEATURES))
    assert predicts_as_rebuilt(layer)
    index.append(torch.randn(5, NUM_FEATURES))
    assert predicts_as_rebuilt(layer)


# --- and nothing is computed twice ---


@pytest.mark.parametrize("learned", [False, True], ids=["fixed", "learned"])
@pytest.mark.parametrize("index", INDEXES)
def test_embedded_centers_are_kept_while_nothing_changed(learned, index):
    layer = make("local", learn_centers=learned, learn_values=True, kernel=None, index=INDEXES[index]())
    with torch.no_grad():
        layer(queries())
        points = layer.index.points
        layer(queries())
        layer.power_function(queries())
        layer.explain(queries())
        layer.neighbors(queries())
        layer.eval()
        layer.state_dict()
        layer.values.add_(1)
        layer(queries(2, 3))
    assert layer.index.points is points


def test_embedded_centers_are_kept_while_only_query_and_values_are_learned():
    layer = make("local", learn_values=True)
    layer(queries())
    points = layer.index.points
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for _ in range(2):
        layer(queries().requires_grad_()).sum().backward()
        optimizer.step()
    assert layer.index.points is points


def test_appending_embeds_only_what_is_new(monkeypatch):
    layer = make("local")
    layer(queries())
    embedded = []
    embed = layer.kernel.embed
    monkeypatch.setattr(layer.kernel, "embed", lambda x: embedded.append(len(x)) or embed(x))
    layer.append(*data(1, 5))
    layer.remove(torch.tensor([3]))
    assert embedded == [5]
    layer(queries())
    assert set(embedded[1:]) == {9}, "more than the queries was embedded"


# --- append and remove ---


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("index", INDEXES)
@pytest.mark.parametrize("used_before", [False, True])
@pytest.mark.parametrize("default_kernel", [False, True])
def test_append_is_a_rebuilt_layer_and_remove_undoes_it(kind, index, used_before, default_kernel):
    choices = {"index": INDEXES[index]()} if kind == "local" else {}
    layer = make(kind, **choices, **({"kernel": None} if default_kernel else {}))
    before = rebuilt(layer)(queries())
    if used_before:
        layer(queries())
    centers, values = queries() + 0.05, data(1, 9)[1]
    layer.append(centers, values)
    assert torch.equal(layer.centers, torch.cat((data()[0], centers)))
    assert torch.equal(layer.values, torch.cat((data()[1], values)))
    assert predicts_as_rebuilt(layer)
    assert not torch.equal(layer(queries()), before)
    layer.remove(torch.arange(NUM_CENTERS, NUM_CENTERS + 9))
    assert torch.equal(layer(queries()), before)


@pytest.mark.parametrize("kind", KINDS)
def test_remove_forgets_the_rows_named_in_any_order(kind):
    layer = make(kind)
    layer(queries())
    layer.remove(torch.tensor([59, 0, 31, 0]))
    keep = [row for row in range(NUM_CENTERS) if row not in (0, 31, 59)]
    assert torch.equal(layer.centers, data()[0][keep])
    assert torch.equal(layer.values, data()[1][keep])
    assert predicts_as_rebuilt(layer)


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_appended_keeps_no_graph(kind):
    layer = make(kind)
    centers, values = (tensor.requires_grad_() for tensor in data(1, 5))
    layer.append(2 * centers, 2 * values)
    assert not layer.centers.requires_grad
    assert not layer.values.requires_grad
    assert not layer(queries()).requires_grad


@pytest.mark.parametrize("kind", KINDS)
def test_append_and_remove_leave_the_tensors_given_alone(kind):
    centers, values = data()
    layer = make(kind, centers, values)
    layer.append(*data(1, 5))
    layer.remove(torch.tensor([0]))
    assert torch.equal(centers, data()[0])
    assert torch.equal(values, data()[1])


def test_a_grown_layer_interpolates_what_it_was_given():
    layer = make("local", ridge=0.0)
    centers, values = data(1, 5)
    layer(queries())
    layer.append(centers, values)
    torch.testing.assert_close(layer(centers), values, rtol=1e-3, atol=1e-3)


# --- learning ---


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("learned", LEARNED[1:], ids=str)
def test_learned_tensors_train(kind, learned):
    query = queries(40)
    target = query.sin().sum(-1, keepdim=True).repeat(1, NUM_OUTPUTS)
    layer = make(kind, ridge=1e-2, **learned)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.05)
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        loss = (layer(query) - target).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    with torch.no_grad():
        assert predicts_as_rebuilt(layer)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_learned_tensors_are_those_of_the_function(kind):
    layer = make(kind, learn_centers=True, learn_values=True).double()
    query = queries().double()
    indices = neighbors.nearest(query, layer.centers.detach(), NUM_NEIGHBORS, kernel=layer.kernel)

    def plain(centers: Tensor, values: Tensor) -> Tensor:
        gram, cross = layer.kernel(centers, centers), layer.kernel(query, centers)
        if kind == "dense":
            return cross @ torch.linalg.solve(gram + 1e-4 * torch.eye(NUM_CENTERS, dtype=torch.float64), values)
        local, eye = centers[indices], torch.eye(NUM_NEIGHBORS, dtype=torch.float64)
        solved = torch.linalg.solve(layer.kernel(local, local) + 1e-4 * eye, values[indices])
        return (layer.kernel(query[:, None], local) @ solved).squeeze(1)

    weights = torch.randn(9, NUM_OUTPUTS, dtype=torch.float64)
    found = torch.autograd.grad((weights * layer(query)).sum(), (layer.centers, layer.values))
    expected = torch.autograd.grad((weights * plain(layer.centers, layer.values)).sum(), (layer.centers, layer.values))
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("default_kernel", [False, True])
def test_gradients_reach_a_backbone_through_centers_values_and_query(kind, default_kernel):
    # Support and queries both come out of the network that is trained, as in episodic training.
    torch.manual_seed(0)
    backbone = torch.nn.Linear(5, NUM_FEATURES).double()
    labels = torch.nn.Linear(5, NUM_OUTPUTS).double()
    support, images = torch.randn(NUM_CENTERS, 5, dtype=torch.float64), torch.randn(9, 5, dtype=torch.float64)
    # Fitted on a wider range: the outermost centers would sit where the transform clips, and its derivative jumps.
    kernel = kernels.default_kernel(2 * backbone(support)) if default_kernel else kernels.Matern32(1.5)

    def loss() -> Tensor:
        return make(kind, backbone(support), labels(support), kernel=kernel)(backbone(images)).square().sum()

    loss().backward()
    for tensor in (backbone.weight, backbone.bias, labels.weight):
        assert tensor.grad.isfinite().all()
    # One entry by central differences.
    for tensor in (backbone.weight, labels.weight):
        with torch.no_grad():
            around = []
            for step in (1e-6, -1e-6):
                tensor[0, 0] += step
                around.append(loss().item())
                tensor[0, 0] -= step
        expected = (around[0] - around[1]) / 2e-6
        assert tensor.grad[0, 0].item() == pytest.approx(expected, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_one_layer_can_be_differentiated_in_every_step_of_a_loop(kind):
    # A graph kept from one step to the next would raise in the second backward.
    layer = make(kind, kernel=kernels.Matern32(1.5, learn_lengthscale=True), learn_values=True)
    for _ in range(3):
        layer(queries()).sum().backward()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("graph", ["centers", "lengthscale"])
def test_a_layer_with_a_graph_can_be_copied(kind, graph):
    scale = torch.tensor(1.5, requires_grad=True)
    centers = 2 * data()[0].requires_grad_() if graph == "centers" else None
    layer = make(kind, centers, kernel=kernels.Matern32(scale if graph == "lengthscale" else 1.5))
    assert torch.equal(copy.deepcopy(layer)(queries()), layer(queries()))


# --- compiled ---


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # the compiler looks at it
@pytest.mark.parametrize(
    ("backend", "kind", "learned"),
    [
        ("eager", "dense", 3),
        ("eager", "local", 3),
        ("aot_eager", "dense", 3),
        ("aot_eager", "local", 3),
        ("eager", "local", 0),
    ],
)
def test_compiled_layers_predict_and_differentiate_the_same(backend, kind, learned):
    torch.compiler.reset()
    model = torch.nn.Sequential(
        torch.nn.Linear(5, NUM_FEATURES), torch.nn.Tanh(), make(kind, kernel=None, **LEARNED[learned])
    )
    compiled = torch.compile(model, backend=backend)
    images = torch.randn(9, 5)
    results = []
    for run in (model, compiled):
        query = images.clone().requires_grad_()
        prediction = run(query)
        results.append((prediction.detach(), torch.autograd.grad(prediction.square().sum(), (query, *model.parameters()))))
    (plain, plain_gradients), (fast, fast_gradients) = results
    torch.testing.assert_close(fast, plain)
    for ours, theirs in zip(fast_gradients, plain_gradients, strict=True):
        torch.testing.assert_close(ours, theirs)
    with torch.no_grad():
        torch.testing.assert_close(compiled(images), plain)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_compiled_layer_follows_changes():
    torch.compiler.reset()
    layer = make("local")
    compiled = torch.compile(layer, backend="eager")
    for edit in (lambda layer: None, moved, grown, shrunk):
        edit(layer)
        torch.testing.assert_close(compiled(queries()), rebuilt(layer)(queries()))


# --- several processes ---


def distributed_model(kind: str) -> torch.nn.Module:
    torch.manual_seed(0)
    kernel = kernels.Matern32(1.5, learn_lengthscale=True)
    return torch.nn.Sequential(
        torch.nn.Linear(5, NUM_FEATURES), make(kind, kernel=kernel, learn_centers=True, learn_values=True)
    )


def distributed_loss(model: torch.nn.Module, rank: int, step: int) -> Tensor:
    images = torch.randn(2, 2, 8, 5, generator=torch.Generator().manual_seed(3))
    return model(images[step, rank]).square().mean()


def train_in_one_of_two_processes(rank: int, port: int, folder: str) -> None:
    torch.set_num_threads(1)
    address = f"tcp://127.0.0.1:{port}"
    torch.distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    for kind in KINDS:
        model = torch.nn.parallel.DistributedDataParallel(distributed_model(kind))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(2):
            optimizer.zero_grad()
            distributed_loss(model, rank, step).backward()
            if step == 0:
                torch.save([parameter.grad for parameter in model.parameters()], f"{folder}/{kind}-gradients{rank}")
            optimizer.step()
        torch.save(model.module.state_dict(), f"{folder}/{kind}-state{rank}")
    torch.save(torch.tensor(follows_the_first_process(rank)), f"{folder}/follows{rank}")
    torch.distributed.destroy_process_group()


def follows_the_first_process(rank: int) -> bool:
    """The first process moves its centers, and the next forward sends them to the other, which has an index already."""
    layer = make("local", learn_values=True)
    model = torch.nn.parallel.DistributedDataParallel(layer)
    model(queries()).sum().backward()
    if rank == 0:
        moved(layer)
    model(queries()).sum().backward()
    return not torch.equal(layer.centers, data()[0]) and predicts_as_rebuilt(layer)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.fixture(scope="module")
def trained_in_two_processes(tmp_path_factory):
    # Both kinds in one go: starting two interpreters is what takes the time.
    folder = tmp_path_factory.mktemp("distributed")
    torch.multiprocessing.spawn(train_in_one_of_two_processes, (free_port(), str(folder)), nprocs=2)
    return folder


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without distributed")
@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", KINDS)
def test_data_parallel_gradients_are_the_average_of_those_of_each_process(kind, trained_in_two_processes):
    folder, model = trained_in_two_processes, distributed_model(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):
        optimizer.zero_grad()
        (sum(distributed_loss(model, rank, step) for rank in range(2)) / 2).backward()
        if step == 0:
            for rank in range(2):
                found = torch.load(folder / f"{kind}-gradients{rank}", weights_only=True)
                for ours, theirs in zip(found, (parameter.grad for parameter in model.parameters()), strict=True):
                    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
        optimizer.step()
    for rank in range(2):
        state = torch.load(folder / f"{kind}-state{rank}", weights_only=True)
        for name, tensor in model.state_dict().items():
            torch.testing.assert_close(state[name], tensor, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("rank", [0, pytest.param(1)])
def test_predictions_follow_centers_sent_by_another_process(rank, trained_in_two_processes):
    assert torch.load(trained_in_two_processes / f"follows{rank}", weights_only=True)


FORK = """
    import os, signal, torch
    from torchkrr import _chunking, functional as F, kernels, neighbors, nn

    torch.manual_seed(0)
    centers, values, query = torch.randn(400, 6), torch.randn(400, 2), torch.randn(64, 6)
    kernel = kernels.Matern32()
    indices = neighbors.nearest(query, centers, 30)
    layer = nn.LocalKernelRidge(centers, values, 30, kernel=kernel, learn_values=True)
    # The search ran on one thread, so that OpenMP has no threads that a fork would lose: plain torch hangs there by itself.
    torch.set_num_threads(2)


    def function():
        values.requires_grad_()
        prediction = F.local_kernel_ridge(query, centers, values, indices, kernel=kernel)
        (gradient,) = torch.autograd.grad(prediction.sum(), values)
        return prediction.detach(), gradient


    def module():
        torch.set_num_threads(1)  # as a DataLoader does in its workers
        prediction = layer(query)
        (gradient,) = torch.autograd.grad(prediction.sum(), layer.values)
        return prediction.detach(), gradient


    expected = function()
    assert _chunking._pools, "no thread pool was used, so that there is nothing to test"
    for use in (function, module):
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            found = use()
            same = all(torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(found, expected))
            os._exit(0 if same else 1)
        _, status = os.waitpid(child, 0)
        assert status == 0, f"{use.__name__}: the child ended with status {status} (14: it hung)"
    assert torch.equal(function()[0], expected[0])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.timeout(120)
def test_a_forked_child_predicts_after_its_parent_used_the_thread_pool():
    run_python(FORK, timeout=60)


def threads() -> Iterator[int]:
    before = torch.get_num_threads()
    for count in (1, 3):
        torch.set_num_threads(count)
        yield count
    torch.set_num_threads(before)


def test_the_number_of_threads_does_not_change_predictions():
    layer, query = make("local", learn_values=True), queries(50)
    results = []
    for _ in threads():
        prediction = layer(query)
        results.append((prediction.detach(), *torch.autograd.grad(prediction.sum(), layer.values)))
    for one, three in zip(*results, strict=True):
        torch.testing.assert_close(one, three)
