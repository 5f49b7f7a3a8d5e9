"""Losses of kernel readouts: no row sees its own label."""

import math

import pytest
import torch
from torch.nn.functional import cross_entropy, one_hot

from torchkrr import functional as F
from torchkrr import kernels, losses
from torchkrr.errors import InputError, InputTypeError, ShapeError

B, D, C = 24, 3, 4


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(B, D, generator=generator, dtype=torch.float64)
    return features, torch.randint(C, (B,), generator=generator)


def left_out_by_hand(features, labels, kernel, ridge, count):
    targets = one_hot(labels, count).to(features.dtype)
    means = []
    for i in range(len(features)):
        rest = torch.arange(len(features)) != i
        means.append(
            F.kernel_ridge(features[i : i + 1], features[rest], targets[rest], kernel=kernel, ridge=ridge, trend="constant")
        )
    return torch.cat(means)


def test_leave_one_out_is_the_loop_over_rows(batch):
    features, labels = batch
    kernel = kernels.Matern32(1.3)
    found = losses.leave_one_out_cross_entropy(features, labels, num_classes=C, kernel=kernel, ridge=0.01, temperature=0.2)
    means = left_out_by_hand(features, labels, kernel, 0.01, C)
    torch.testing.assert_close(found, cross_entropy(means / 0.2, labels), rtol=1e-10, atol=0)


def test_with_all_other_rows_as_neighbors_it_is_the_same(batch):
    features, labels = batch
    dense = losses.leave_one_out_cross_entropy(features, labels)
    local = losses.leave_one_out_cross_entropy(features, labels, num_neighbors=B - 1)
    torch.testing.assert_close(local, dense, rtol=1e-9, atol=0)
    assert losses.leave_one_out_cross_entropy(features, labels, num_neighbors=3) != dense


def test_episodes_predict_the_query_from_the_support(batch):
    features, labels = batch
    kernel = kernels.Gaussian(2.0)
    support, query = slice(0, 16), slice(16, None)
    found = losses.episodic_cross_entropy(
        features[support], labels[support], features[query], labels[query], num_classes=C, kernel=kernel, ridge=0.1
    )
    targets = one_hot(labels[support], C).double()
    means = F.kernel_ridge(features[query], features[support], targets, kernel=kernel, ridge=0.1, trend="constant")
    torch.testing.assert_close(found, cross_entropy(means / 0.1, labels[query]), rtol=1e-10, atol=0)


def test_a_changed_own_label_does_not_change_the_prediction(batch):
    features, labels = batch
    changed = labels.clone()
    changed[5] = (labels[5] + 1) % C
    means = [
        torch.log_softmax(
            F.leave_one_out(features, one_hot(given, C).double(), kernel=kernels.Exponential(), trend="constant"), 1
        )
        for given in (labels, changed)
    ]
    torch.testing.assert_close(means[0][5], means[1][5])
    before = losses.leave_one_out_cross_entropy(features, labels, num_classes=C, reduction="none")
    after = losses.leave_one_out_cross_entropy(features, changed, num_classes=C, reduction="none")
    assert before.shape == (B,)
    assert (before[5] - after[5]).abs() > 1e-3  # judged by another label
    assert not torch.equal(before, after)


@pytest.mark.parametrize("kernel", [None, kernels.Exponential(2.0)], ids=["default", "given"])
def test_gradients_are_those_of_finite_differences(batch, kernel):
    features, labels = batch
    few, classes = features[:9].clone().requires_grad_(), labels[:9]
    assert torch.autograd.gradcheck(
        lambda x: losses.leave_one_out_cross_entropy(x, classes, num_classes=C, kernel=kernel, temperature=0.5), few
    )
    assert torch.autograd.gradcheck(
        lambda x: losses.episodic_cross_entropy(x[:6], classes[:6], x[6:], classes[6:], num_classes=C, kernel=kernel), few
    )


def test_without_a_kernel_the_size_of_features_does_not_matter(batch):
    features, labels = batch
    first, second = (losses.leave_one_out_cross_entropy(scale * features, labels) for scale in (1.0, 1000.0))
    torch.testing.assert_close(first, second)


def test_random_labels_stay_at_chance_while_the_leaky_form_goes_to_zero():
    generator = torch.Generator().manual_seed(1)
    images, labels = torch.rand(256, 64, generator=generator), torch.randint(C, (256,), generator=generator)
    with torch.no_grad():
        torch.manual_seed(0)
        backbone = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 16))
        features = backbone(images).double()

    def leaky(kernel, temperature):
        targets = one_hot(labels, C).double()
        means = F.kernel_ridge(features, features, targets, kernel=kernel, ridge=1e-3, trend="constant")
        return cross_entropy(means / temperature, labels)

    def honest(kernel, temperature):
        return losses.leave_one_out_cross_entropy(features, labels, kernel=kernel, temperature=temperature)

    def trained(loss):
        scale = float(torch.pdist(features).mean())
        kernel = kernels.Exponential(scale, learn_lengthscale=True)
        log_temperature = torch.zeros((), dtype=torch.float64, requires_grad=True)
        optimizer = torch.optim.Adam([*kernel.parameters(), log_temperature], lr=0.1)
        for _ in range(60):
            optimizer.zero_grad()
            value = loss(kernel, log_temperature.exp())
            value.backward()
            optimizer.step()
        return float(value.detach())

    assert trained(leaky) < 0.01
    assert trained(honest) > 0.95 * math.log(C)


def test_training_features_by_it_separates_classes():
    generator = torch.Generator().manual_seed(2)
    labels = torch.arange(64) % 2
    inputs = torch.randn(64, 6, generator=generator)
    inputs[:, 0] += 3 * labels
    inputs[:, 1:] *= 5  # what does not matter is larger
    torch.manual_seed(0)
    layer = torch.nn.Linear(6, 2)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.05)
    values = []
    for _ in range(80):
        optimizer.zero_grad()
        loss = losses.leave_one_out_cross_entropy(layer(inputs), labels)
        loss.backward()
        optimizer.step()
        values.append(float(loss.detach()))
    assert values[-1] < 0.5 * values[0]


def test_the_best_temperature_is_taken_if_none_is_given(batch):
    features, labels = batch
    best = losses.leave_one_out_cross_entropy(features, labels, temperature=None)
    assert all(best <= losses.leave_one_out_cross_entropy(features, labels, temperature=t) + 1 / B for t in (0.03, 0.3, 3.0))


def test_equal_features_give_the_shares_of_the_others():
    features = torch.zeros(6, 2, requires_grad=True)
    found = losses.leave_one_out_cross_entropy(features, torch.tensor([0, 0, 0, 1, 1, 1]), temperature=1.0)
    # Each row sees two of its own class and three of the other.
    torch.testing.assert_close(found, -torch.log_softmax(torch.tensor([0.4, 0.6]), 0)[0], atol=1e-3, rtol=0)
    found.backward()
    assert torch.isfinite(features.grad).all()


@pytest.mark.parametrize(
    ("features", "labels", "error", "text"),
    [
        (torch.randn(4), torch.zeros(4, dtype=torch.int64), ShapeError, r"features must have shape \(rows, features\)"),
        (torch.zeros(4, 2).long(), torch.zeros(4, dtype=torch.int64), InputTypeError, "features must have a floating dtype"),
        (torch.randn(4, 2), [0, 1, 0, 1], InputTypeError, r"labels must be a torch\.Tensor, got list"),
        (torch.randn(4, 2), torch.zeros(3, dtype=torch.int64), ShapeError, r"labels must have shape \(4,\)"),
        (torch.randn(4, 2), torch.zeros(4), InputTypeError, "labels.long"),
        (torch.randn(1, 2), torch.zeros(1, dtype=torch.int64), ShapeError, "at least 2 rows"),
        (torch.randn(4, 2), torch.tensor([0, 1, 2, -1]), InputError, "between 0 and"),
    ],
)
def test_bad_batches_are_refused(features, labels, error, text):
    with pytest.raises(error, match=text):
        losses.leave_one_out_cross_entropy(features, labels)


def test_bad_choices_are_refused(batch):
    with pytest.raises(InputError, match="reduction"):
        losses.leave_one_out_cross_entropy(*batch, reduction="average")
    with pytest.raises(InputError, match="temperature"):
        losses.leave_one_out_cross_entropy(*batch, temperature=0.0)
    with pytest.raises(InputError, match=r"between 0 and 1 \(there are 2 classes\), got values from 0 to 3"):
        losses.leave_one_out_cross_entropy(*batch, num_classes=2)
