"""The two-layer model: its formula, the three parameter sets fixed and learned, and features that are never stale."""

import copy
import itertools
import pickle

import pytest
import torch
from torch import nn

import torchkrr
from torchkrr import functional as F
from torchkrr.errors import InputError, InputTypeError, ShapeError
from torchkrr.kernels import Matern32
from torchkrr.models import KernelReadout

NUM_INPUTS, NUM_OUTPUTS = 24, 3
KERNEL = {"kernel": Matern32(2.0), "ridge": 1e-4}
LAYERS = {
    "dense": (torchkrr.nn.KernelRidge, {}),
    "local": (torchkrr.nn.LocalKernelRidge, {"num_neighbors": 6}),
    "blended": (torchkrr.nn.BlendedKernelRidge, {"num_neighbors": 6, "num_blended": 2}),
    "hierarchical": (torchkrr.nn.HierarchicalKernelRidge, {"num_neighbors": 6, "num_coarse": 5}),
}


def network(dropout=0.0):
    layers = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Tanh(), nn.Dropout(dropout), nn.Flatten(), nn.Linear(36, 5)]
    return nn.Sequential(*layers)


def pictures(count=NUM_INPUTS, seed=0):
    return torch.randn(count, 1, 5, 5, generator=torch.Generator().manual_seed(seed))


def targets(count=NUM_INPUTS):
    return torch.nn.functional.one_hot(torch.arange(count) % NUM_OUTPUTS, NUM_OUTPUTS).float()


def built(kind="local", propagated=True, **choices):
    layer, own = LAYERS[kind]
    make = KernelReadout.propagated if propagated else KernelReadout.parameterized
    backbone = choices.pop("backbone", None) or network()
    return make(backbone, pictures(), targets(), layer=layer, **{**own, **KERNEL, **choices})


def one_step(readout):
    """A step on a loss of other inputs; whether each part has moved."""
    parts = {
        "backbone": [*readout.backbone.parameters()],
        "centers": [readout.head.centers],
        "values": [readout.head.values],
    }
    before = {name: [tensor.detach().clone() for tensor in tensors] for name, tensors in parts.items()}
    parameters = [parameter for parameter in readout.parameters() if parameter.requires_grad]
    if parameters:
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        readout(pictures(7, seed=1)).square().sum().backward()
        optimizer.step()
    return {
        name: any(not torch.equal(a, b) for a, b in zip(tensors, before[name], strict=True))
        for name, tensors in parts.items()
    }


def test_propagated_points_with_observed_values_are_the_formula_of_the_paper():
    readout = built("dense").eval()
    z, x = readout.backbone(pictures(7, seed=1)), readout.backbone(pictures())
    k = KERNEL["kernel"]
    expected = k(z, x) @ torch.linalg.solve(k(x, x) + 1e-4 * torch.eye(NUM_INPUTS), targets())
    torch.testing.assert_close(readout(pictures(7, seed=1)), expected, rtol=1e-4, atol=1e-4)


def test_free_centers_are_the_formula_of_the_paper():
    readout = built("dense", propagated=False)
    with torch.no_grad():
        readout.head.centers.add_(torch.randn_like(readout.head.centers))
        readout.head.values.add_(torch.randn_like(readout.head.values))
    readout.eval()
    z = readout.backbone(pictures(7, seed=1))
    expected = F.kernel_ridge(z, readout.head.centers, readout.head.values, **KERNEL)
    torch.testing.assert_close(readout(pictures(7, seed=1)), expected)


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize(("learn_backbone", "learn_values"), [*itertools.product((False, True), repeat=2)])
def test_propagated_points_learn_what_they_are_told_to(kind, learn_backbone, learn_values):
    readout = built(kind, learn_backbone=learn_backbone, learn_values=learn_values).train()
    moved = one_step(readout)
    assert (moved["backbone"], moved["values"]) == (learn_backbone, learn_values)


@pytest.mark.parametrize(("learn_backbone", "learn_centers", "learn_values"), [*itertools.product((False, True), repeat=3)])
def test_free_centers_learn_what_they_are_told_to(learn_backbone, learn_centers, learn_values):
    choices = {"learn_backbone": learn_backbone, "learn_centers": learn_centers, "learn_values": learn_values}
    moved = one_step(built(propagated=False, **choices).train())
    assert moved == {"backbone": learn_backbone, "centers": learn_centers, "values": learn_values}


def test_gradients_reach_the_backbone_through_the_support_too():
    readout = built("dense", backbone=nn.Sequential(nn.Flatten(), nn.Linear(25, 5))).double().train()
    x, query = pictures().double(), pictures(4, seed=1).double()
    weight = readout.backbone[1].weight
    (through,) = torch.autograd.grad(readout(query).square().sum(), weight)

    def loss(w):
        def features(inputs):
            return inputs.flatten(1) @ w.T + readout.backbone[1].bias

        return F.kernel_ridge(features(query), features(x), targets().double(), **KERNEL).square().sum()

    expected = torch.func.grad(loss)(weight.detach())
    torch.testing.assert_close(through, expected)
    query_only = torch.func.grad(
        lambda w: (
            F.kernel_ridge(
                query.flatten(1) @ w.T + readout.backbone[1].bias, readout.backbone(x).detach(), targets().double(), **KERNEL
            )
            .square()
            .sum()
        )
    )(weight.detach())
    assert not torch.allclose(through, query_only, rtol=0.1)


def test_kept_features_follow_every_change_of_the_backbone():
    readout, query = built().eval(), pictures(7, seed=1)

    def fresh():
        other = built(backbone=copy.deepcopy(readout.backbone)).eval()
        other.inputs = readout.inputs
        return other(query)

    before = readout(query)
    changes = [
        lambda: readout.backbone[5].weight.data.mul_(1.5),  # unseen by version counters
        lambda: readout.backbone[1].running_mean.add_(0.3),
        lambda: readout.inputs.neg_(),
        lambda: readout.backbone.__setitem__(2, nn.Sigmoid()),
        lambda: setattr(readout.backbone[1], "eps", 0.5),
        lambda: readout.head.centers.zero_(),
    ]
    for change in changes:
        with torch.no_grad():
            change()
        after = readout(query)
        torch.testing.assert_close(after, fresh())
        if change is not changes[-1]:
            assert not torch.allclose(after, before)
        before = after


def test_features_are_kept_in_eval_mode_and_for_a_fixed_backbone():
    calls = []
    readout = built(learn_backbone=True)
    readout.backbone.register_forward_hook(lambda _module, inputs, _output: calls.append(len(inputs[0])))
    query = pictures(7, seed=1)
    readout.eval()
    for _ in range(3):
        readout(query)
    assert calls == [NUM_INPUTS, 7, 7, 7] or calls == [7, NUM_INPUTS, 7, 7]
    calls.clear()
    readout.train()
    readout(query)
    readout(query)
    assert sorted(calls) == [7, 7, NUM_INPUTS, NUM_INPUTS]
    fixed = built(learn_backbone=False).train()
    fixed(query)
    fixed.backbone.register_forward_hook(lambda *_: calls.append(0))
    calls.clear()
    fixed(query)
    assert len(calls) == 1


def test_a_fixed_backbone_stays_in_eval_mode():
    readout = built(backbone=network(dropout=0.5), learn_backbone=False).train()
    assert not any(module.training for module in readout.backbone.modules())
    assert readout.head.training
    query = pictures(7, seed=1)
    assert torch.equal(readout(query), readout(query))
    assert all(module.training for module in built(learn_backbone=True).train().modules())


def test_building_leaves_the_mode_of_the_backbone():
    backbone = network().train()
    backbone[1].eval()
    built(backbone=backbone)
    assert [backbone.training, backbone[0].training, backbone[1].training] == [True, True, False]


@pytest.mark.parametrize("propagated", [True, False])
def test_states_copies_and_pickles(propagated):
    readout, query = built(propagated=propagated).eval(), pictures(7, seed=1)
    expected = readout(query)
    for twin in (copy.deepcopy(readout), pickle.loads(pickle.dumps(readout))):
        assert torch.equal(twin(query), expected)
    torch.manual_seed(1)
    other = built(propagated=propagated).eval()
    assert not torch.allclose(other(query), expected)
    other.load_state_dict(readout.state_dict())
    torch.testing.assert_close(other(query), expected)


def test_a_state_with_more_inputs_loads():
    readout = built().eval()
    readout.append(pictures(3, seed=2), targets(3))
    other = built().eval()
    other.load_state_dict(readout.state_dict())
    assert other.inputs.shape == (NUM_INPUTS + 3, 1, 5, 5)
    torch.testing.assert_close(other(pictures(7, seed=1)), readout(pictures(7, seed=1)))


def test_append_and_remove_are_exact():
    query, more = pictures(7, seed=1), pictures(5, seed=2)
    readout = built().eval()
    before = readout(query)
    readout.append(more, targets(5))
    layer, own = LAYERS["local"]
    everything = (torch.cat((pictures(), more)), torch.cat((targets(), targets(5))))
    anew = KernelReadout.propagated(readout.backbone, *everything, layer=layer, **own, **KERNEL).eval()
    torch.testing.assert_close(readout(query), anew(query))
    readout.remove(torch.arange(NUM_INPUTS, NUM_INPUTS + 5))
    torch.testing.assert_close(readout(query), before)
    assert len(readout.inputs) == NUM_INPUTS
    free = built(propagated=False, learn_centers=False, learn_values=False).eval()
    free.append(more, targets(5))
    torch.testing.assert_close(free.head.centers[-5:], free.backbone(more))


def test_a_support_set_of_the_step():
    readout = built("dense").train()
    features = readout.forward_features(pictures(12, seed=3))
    out = readout.forward_head(features[:4], features[4:], targets(8))
    torch.testing.assert_close(out, F.kernel_ridge(features[:4], features[4:], targets(8), **KERNEL))
    out.sum().backward()
    assert readout.backbone[0].weight.grad is not None
    assert len(readout.head.centers) == NUM_INPUTS  # its own are back
    with pytest.raises(InputError, match="without their centers"):
        readout.forward_head(features, values=targets(8))


def test_explanations_and_the_indicator():
    readout, query = built().eval(), pictures(7, seed=1)
    explanation = readout.explain(query)
    again = (explanation.weights[..., None] * targets()[explanation.indices]).sum(1)
    torch.testing.assert_close(again, readout(query), rtol=1e-4, atol=1e-4)
    assert readout.power_function(query).shape == (7,)
    assert bool(readout.power_function(pictures()).max() < readout.power_function(query).min())
    with pytest.raises(InputError, match="KernelRidge has no explain"):
        built("dense").eval().explain(query)


def test_inference_mode_does_not_spoil_later_training():
    with torch.inference_mode():
        readout = built().eval()
        readout(pictures(7, seed=1))
        inputs = pictures()
    readout = KernelReadout.propagated(network(), inputs, targets(), num_neighbors=6, **KERNEL)
    readout.eval()
    with torch.inference_mode():
        readout(pictures(7, seed=1))
    readout.train()(pictures(7, seed=1)).sum().backward()
    assert all(parameter.grad.any() for parameter in readout.backbone.parameters())


def test_half_precision_from_autocast_meets_full_centers():
    readout, query = built().train(), pictures(7, seed=1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = readout(query)
    assert out.dtype == torch.float32
    out.sum().backward()


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: KernelReadout(network(), nn.Linear(5, 3)), InputTypeError, "must be a layer of torchkrr.nn"),
        (lambda: KernelReadout(abs, built().head), InputTypeError, "backbone must be an nn.Module"),
        (
            lambda: KernelReadout(network(), built().head, inputs=pictures(5)),
            ShapeError,
            "one row for each row of the values",
        ),
        (
            lambda: KernelReadout(network(), built(propagated=False).head, inputs=pictures()),
            InputError,
            "learn_centers=False",
        ),
        (lambda: built(backbone=nn.Conv2d(1, 4, 3)), ShapeError, "Tapped"),
        (lambda: built().append(torch.randn(2, 1, 6, 6), targets(2)), ShapeError, r"\(1, 5, 5\) each"),
        (lambda: built(learn_values=True).append(pictures(2), targets(2)), InputError, "learned"),
    ],
)
def test_bad_input_is_an_error(make, error, words):
    with pytest.raises(error, match=words):
        make()
