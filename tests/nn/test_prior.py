"""A module corrected by a kernel: what it predicts, what it leaves alone, and what undoing restores."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable

import pytest
import torch
from tests.nn.layers import NUM_CENTERS, NUM_FEATURES, NUM_OUTPUTS, data, queries
from torch import Tensor

from torchkrr import functional as F
from torchkrr import kernels, nn
from torchkrr.errors import InputError, InputTypeError, KernelRidgeWarning, ShapeError

KERNEL = kernels.Matern32(0.7)
FAR = 1e3


def model(seed: int = 0, num_outputs: int = NUM_OUTPUTS) -> torch.nn.Module:
    torch.manual_seed(seed)
    hidden = torch.nn.Linear(NUM_FEATURES, 7)
    return torch.nn.Sequential(hidden, torch.nn.Tanh(), torch.nn.Linear(7, num_outputs))


def make(seed: int = 0, num_outputs: int = NUM_OUTPUTS, **choices: object) -> nn.PriorKernelRidge:
    return nn.PriorKernelRidge(model(seed, num_outputs), **{"kernel": KERNEL, "num_neighbors": 12, **choices})


def corrected(**choices: object) -> nn.PriorKernelRidge:
    layer = make(**choices)
    layer.append(*data())
    return layer


class Network(torch.nn.Module):
    """Pictures to pooled features to scores."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.convolution, self.linear = torch.nn.Conv2d(2, 6, 3), torch.nn.Linear(6, 4)

    def pooled(self, pictures: Tensor) -> Tensor:
        return self.convolution(pictures).tanh().mean((2, 3))

    def forward(self, pictures: Tensor) -> Tensor:
        return self.linear(self.pooled(pictures))


def pictures(count: int = 20, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 2, 6, 6, generator=generator), torch.randint(4, (count,), generator=generator)


def test_it_is_the_prior_plus_kernel_ridge_regression_of_its_residuals():
    layer = corrected(num_neighbors=NUM_CENTERS, ridge=1e-3)
    centers, targets = data()
    expected = F.kernel_ridge(queries(), centers, targets - layer.prior(centers), kernel=KERNEL, ridge=1e-3)
    torch.testing.assert_close(layer(queries()), layer.prior(queries()) + expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(corrected()(centers), targets, rtol=1e-4, atol=1e-4)


def test_only_the_nearest_corrections_count():
    layer = corrected(num_neighbors=5)
    near = layer.explain(queries()[:1]).indices[0]
    few = make(num_neighbors=5)
    few.append(*(tensor[near] for tensor in data()))
    torch.testing.assert_close(layer(queries()[:1]), few(queries()[:1]), rtol=1e-4, atol=1e-5)


def test_far_from_all_corrections_it_is_the_prior():
    layer, far = corrected(), queries() + FAR
    torch.testing.assert_close(layer(far), layer.prior(far), rtol=1e-6, atol=1e-6)
    assert not torch.allclose(layer(queries()), layer.prior(queries()), atol=1e-2)
    torch.testing.assert_close(layer.power_function(far), torch.ones(9))
    assert layer.power_function(data()[0]).max() < 1e-2


def test_without_corrections_it_is_the_prior_to_the_bit():
    layer = make()
    assert torch.equal(layer(queries()), layer.prior(queries()))
    assert torch.equal(layer.power_function(queries(2, 3)), torch.ones(2, 3))
    explanation = layer.explain(queries(2, 3))
    assert explanation.indices.shape == explanation.weights.shape == (2, 3, 0)
    assert explanation.indices.dtype == torch.int64
    assert torch.equal(explanation.prior, layer.prior(queries(2, 3)))


@pytest.mark.parametrize("used_between", [False, True])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad, torch.inference_mode])
def test_undoing_all_corrections_restores_every_output_to_the_bit(used_between, mode):
    network = Network().eval()
    layer = nn.PriorKernelRidge(network, features=network.pooled, kernel=kernels.Exponential(0.1), num_neighbors=8)
    images, labels = pictures(200)
    with mode():
        before = network(images).clone()
        for part in torch.arange(30).split(7):
            layer.correct(images[part], labels[part])
            if used_between:
                assert not torch.equal(layer(images), before)
        layer.remove(torch.tensor([29, 3, 3, 14]))
        layer.remove([True] * 26 + [False])
        layer.remove(0)
        assert torch.equal(layer(images), before)
        layer.correct(images[:1], labels[:1])  # and it can begin again
        assert layer.head.num_centers == 1


@pytest.mark.parametrize("used_between", [False, True])
@pytest.mark.parametrize("index", [None, "auto"])
def test_undoing_some_corrections_leaves_what_the_others_make(used_between, index):
    centers, targets = data()
    first, second = torch.arange(20), torch.arange(20, NUM_CENTERS)
    layer, expected = make(index=index), make(index=index)
    for part in (first, second):
        layer.append(centers[part], targets[part])
        if used_between:
            layer(queries())
    expected.append(centers[first], targets[first])
    assert not torch.equal(layer(queries()), expected(queries()))
    layer.remove(second)
    assert torch.equal(layer(queries()), expected(queries()))


@pytest.mark.parametrize("count", [1, 5, 12, 30])
def test_with_few_corrections_each_is_a_neighbor(count):
    layer = make()
    layer.append(*(tensor[:count] for tensor in data()))
    assert layer.explain(queries()).indices.shape == (9, min(count, 12))
    torch.testing.assert_close(layer(data()[0][:count]), data()[1][:count], rtol=1e-4, atol=1e-4)


def test_corrected_inputs_get_their_class_by_the_margin_and_right_ones_keep_their_scores():
    layer = make(num_outputs=5)
    inputs = data()[0]
    before = layer(inputs).detach()
    labels = before.argmax(1)
    wrong = torch.arange(0, NUM_CENTERS, 3)
    labels[wrong] = (labels[wrong] + 1) % 5
    layer.correct(inputs, labels, margin=0.5)
    found = layer(inputs).detach()
    expected = before.clone()
    expected[wrong, labels[wrong]] = before[wrong].max(1).values + 0.5
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert torch.equal(found.argmax(1), labels)


def test_explanation_adds_up_to_the_prediction():
    layer = corrected()
    indices, weights, prior = layer.explain(queries(2, 3))
    assert indices.shape == weights.shape == (2, 3, 12)
    total = prior + (weights.unsqueeze(-1) * layer.head.values[indices]).sum(-2)
    torch.testing.assert_close(total, layer(queries(2, 3)), rtol=1e-4, atol=1e-5)
    assert torch.equal(prior, layer.prior(queries(2, 3)))


def test_the_points_of_the_kernel_may_be_features_of_the_inputs():
    network = Network()
    images, labels = pictures()
    around = nn.PriorKernelRidge(network, features=network.pooled, kernel=kernels.Exponential(0.1))
    inside = nn.PriorKernelRidge(network.linear, kernel=kernels.Exponential(0.1))
    around.correct(images, labels)
    inside.correct(network.pooled(images), labels)
    others = pictures(seed=2)[0]
    torch.testing.assert_close(around(others), inside(network.pooled(others)))
    torch.testing.assert_close(around.power_function(others), inside.power_function(network.pooled(others)))
    assert torch.equal(around(images).argmax(1), labels)


@pytest.mark.parametrize("training", [True, False])
def test_residuals_are_those_of_the_prior_in_evaluation_mode(training):
    prior = torch.nn.Sequential(torch.nn.BatchNorm1d(NUM_FEATURES), torch.nn.Dropout(), model())
    prior[0].running_mean.add_(0.5)
    layer = nn.PriorKernelRidge(prior, kernel=KERNEL).train(training)
    prior[2].eval()  # kept fixed, say
    modes, state = [part.training for part in layer.modules()], copy.deepcopy(prior.state_dict())
    layer.append(*data())
    assert [part.training for part in layer.modules()] == modes
    assert all(torch.equal(tensor, state[name]) for name, tensor in prior.state_dict().items())
    layer.eval()
    torch.testing.assert_close(layer(data()[0]), data()[1], rtol=1e-4, atol=1e-4)


# Gradients


def test_gradients_reach_the_prior_the_query_and_the_values():
    centers, targets = data()
    layer = nn.PriorKernelRidge(model(), centers, targets, kernel=KERNEL, num_neighbors=12, learn_values=True).double()
    query = queries().double().requires_grad_()
    names = [name for name, _ in layer.named_parameters()]
    assert names == [*(f"prior.{name}" for name, _ in layer.prior.named_parameters()), "head.values"]

    def predict(query: Tensor, *parameters: Tensor) -> Tensor:
        return torch.func.functional_call(layer, dict(zip(names, parameters, strict=True)), (query,))

    torch.autograd.gradcheck(predict, (query, *layer.parameters()))
    layer(query).square().sum().backward()
    assert all(tensor.grad.abs().sum() > 0 for tensor in (query, *layer.parameters()))


def test_built_in_each_step_its_residuals_follow_the_prior():
    prior, (centers, targets) = model().double(), [tensor.double() for tensor in data()]
    weight = prior[2].weight

    def loss() -> Tensor:
        layer = nn.PriorKernelRidge(prior, centers, targets, kernel=KERNEL, ridge=0.1, num_neighbors=12)
        return layer(queries().double()).square().sum()

    loss().backward()
    found, around = weight.grad[0, 0].item(), []
    with torch.no_grad():
        for step in (1e-5, -2e-5):
            weight[0, 0] += step
            around.append(loss().item())
    assert found == pytest.approx((around[0] - around[1]) / 2e-5, rel=1e-6)


def test_corrections_appended_keep_no_graph_and_leave_the_tensors_given_alone():
    layer = make()
    inputs, targets = (tensor.requires_grad_() for tensor in data())
    layer.append(2 * inputs, 2 * targets)
    layer.prior.requires_grad_(False)
    assert not layer(queries()).requires_grad
    inputs = data()[0]
    layer = make()
    layer.append(inputs, data()[1])
    inputs.add_(1)
    assert torch.equal(layer.head.centers, data()[0])


def test_training_after_corrections_in_inference_mode():
    layer = make()
    with torch.inference_mode():
        layer.append(*(tensor.clone() for tensor in data()))
        layer(queries())
    query = queries().requires_grad_()
    layer(query).sum().backward()
    assert query.grad.abs().sum() > 0


# State


def through_pickle(layer: nn.PriorKernelRidge) -> nn.PriorKernelRidge:
    return pickle.loads(pickle.dumps(layer))


def through_torch_save(layer: nn.PriorKernelRidge) -> nn.PriorKernelRidge:
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("way", [copy.deepcopy, through_pickle, through_torch_save])
@pytest.mark.parametrize("count", [0, 20])
def test_a_copy_predicts_the_same_and_is_independent(way, count):
    network = Network()
    layer = nn.PriorKernelRidge(network, features=network.pooled, kernel=kernels.Exponential(0.1))
    images, labels = pictures()
    if count:
        layer.correct(images[:count], labels[:count])
    before, other = layer(images), way(layer)
    assert torch.equal(other(images), before)
    with torch.no_grad():
        other.prior.convolution.weight.mul_(2)  # that of its points too
    assert other.features.__self__ is other.prior
    other.correct(images[:3], labels[:3])
    assert not torch.equal(other(images), before)
    assert torch.equal(layer(images), before)


@pytest.mark.parametrize("count", [0, 20, NUM_CENTERS])
@pytest.mark.parametrize("present", [0, 30])
@pytest.mark.parametrize("assign", [False, True])
def test_a_checkpoint_loads_whatever_the_number_of_corrections(count, present, assign):
    saved, layer = make(seed=1), make()
    if count:
        saved.append(*(tensor[:count] for tensor in data()))
    if present:
        layer.append(*data(5, present))
        layer(queries())
    layer.load_state_dict(saved.state_dict(), assign=assign)
    assert torch.equal(layer(queries()), saved(queries()))
    layer.append(*data(6))
    saved.append(*data(6))
    assert torch.equal(layer(queries()), saved(queries()))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_other_dtypes(dtype):
    layer, query = make().to(dtype), queries().to(dtype)
    assert torch.equal(layer(query), layer.prior(query))
    layer.append(*(tensor.to(dtype) for tensor in data()))
    assert layer(query).dtype == layer.head.centers.dtype == dtype
    layer.float()
    torch.testing.assert_close(layer(queries()), corrected()(queries()), rtol=0.02, atol=0.05)


def test_under_autocast_residuals_have_the_precision_of_the_points():
    layer = make(num_outputs=5)
    with torch.autocast("cpu", torch.bfloat16):
        layer.correct(data()[0], torch.arange(NUM_CENTERS) % 5)
        assert layer(queries()).isfinite().all()
    assert layer.head.values.dtype == torch.float32


@pytest.fixture
def _fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.usefixtures("_fresh_compiler")
@pytest.mark.filterwarnings("ignore:`torch.jit.*` is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:`torch.jit.*` is not supported in Python:DeprecationWarning")
def test_it_compiles_as_one_graph_and_follows_corrections():
    layer = make()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for change in (lambda: None, lambda: layer.append(*data()), lambda: layer.remove(torch.arange(40))):
        change()
        query = queries().requires_grad_()
        results = []
        for run in (layer, compiled):
            found = run(query)
            results.append((found, *torch.autograd.grad(found.square().sum(), (query, *layer.prior.parameters()))))
        torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("count", [0, 20])
def test_an_empty_batch_gives_an_empty_result(count):
    layer = make()
    if count:
        layer.append(*data(0, count))
    for found in (layer(queries()[:0]), layer.power_function(queries()[:0]), *layer.explain(queries()[:0])):
        assert len(found) == 0
    assert layer(queries()[:0]).shape == (0, NUM_OUTPUTS)


# Errors


class Flat(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sum(1)


LABELS = torch.zeros(NUM_CENTERS, dtype=torch.int64)
REFUSED: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "no kernel": (lambda: nn.PriorKernelRidge(model()), InputError, r"nothing to fit a kernel to\. Give a kernel"),
    "no targets": (lambda: nn.PriorKernelRidge(model(), data()[0]), InputError, r"inputs and targets belong together"),
    "neighbors": (lambda: make(num_neighbors=0), InputError, r"num_neighbors must be at least 1, got 0"),
    "option": (lambda: make(neighbors=3), TypeError, r"unexpected keyword argument 'neighbors'"),
    "no columns": (
        lambda: make().append(data()[0], data()[1][:, 0]),
        ShapeError,
        r"targets have shape \(60,\), the outputs of the prior \(60, 2\)\. Both must be",
    ),
    "classes": (lambda: make().append(data()[0], LABELS), ShapeError, r"targets have shape \(60,\)"),
    "a list": (lambda: make().append(data()[0], data()[1].tolist()), InputTypeError, r"targets must be a torch\.Tensor"),
    "rows": (lambda: make().append(data()[0], data()[1][:5]), ShapeError, r"targets have shape \(5, 2\)"),
    "NaN": (lambda: make().append(data()[0], data()[1] / 0), InputError, r"values must be finite"),
    "label": (lambda: make().correct(data()[0], LABELS + 2), InputError, r"labels must lie between 0 and 1 .*right class"),
    "label rows": (lambda: make().correct(data()[0], LABELS[:9]), ShapeError, r"labels must have shape \(60,\), a class"),
    "label dtype": (
        lambda: make().correct(data()[0], LABELS.float()),
        InputTypeError,
        r"labels must have dtype torch\.int64",
    ),
    "margin": (lambda: make().correct(data()[0], LABELS, margin=0.0), InputError, r"margin must be positive"),
    "no scores": (
        lambda: nn.PriorKernelRidge(Flat(), kernel=KERNEL).correct(data()[0], LABELS),
        ShapeError,
        r"correct needs scores of classes, \(n, C\), but the prior gives \(60,\)\. Use append",
    ),
    "no centers": (lambda: make(kernel="gaussian"), InputError, r"nothing to fit a kernel to\. Give a kernel"),
    "too many rows": (lambda: corrected().remove(torch.tensor([60])), InputError, r"indices must lie between 0 and 59"),
    "nothing to remove": (lambda: make().remove(torch.tensor([0])), InputError, r"indices must lie between"),
    "points": (
        lambda: make(features=lambda x: x[:, None]).append(*data()),
        ShapeError,
        r"centers must have shape \(rows, features\)",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_refused(case):
    call, error, pattern = REFUSED[case]
    with pytest.raises(error, match=pattern):
        call()


@pytest.mark.parametrize("defect", ["NaN", "rows"])
def test_what_is_refused_changes_nothing(defect):
    layer = corrected()
    before, (inputs, targets) = layer(queries()), data(1)
    with pytest.raises((InputError, ShapeError)):
        layer.append(inputs, targets / 0 if defect == "NaN" else targets[:5])
    assert torch.equal(layer(queries()), before)
    assert layer.head.num_centers == NUM_CENTERS


def test_a_prior_without_a_column_for_its_output_is_refused_in_the_prediction_too():
    layer = nn.PriorKernelRidge(model(num_outputs=1), kernel=KERNEL)
    layer.append(data()[0], data()[1][:, :1])
    layer.prior = Flat()
    with pytest.raises(ShapeError, match=r"outputs of the prior have shape \(9,\), the corrections \(9, 1\)"):
        layer(queries())


def test_learned_values_neither_grow_nor_shrink():
    layer = nn.PriorKernelRidge(model(), *data(), kernel=KERNEL, learn_values=True)
    for change in (lambda: layer.append(*data(1)), lambda: layer.remove([0, 1])):
        with pytest.raises(InputError, match="values of this layer are learned"):
            change()


def test_copies_of_one_input_with_other_targets_are_told():
    layer = make(ridge=0.0)
    layer.append(data()[0][[0, 0]], data()[1][:2])
    with pytest.warns(KernelRidgeWarning):
        layer(queries())
