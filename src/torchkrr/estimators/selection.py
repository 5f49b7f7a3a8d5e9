"""Choose kernels, lengthscales, ridge and number of neighbors by leave-one-out.

For up to 2000 different rows, kernels on all rows are learned one by one, then mixed in the shares that predict left-out
rows best. Beyond, the lengthscales of a few kernels are learned on patches of near rows, in the closed form of
leave-one-out; the best of them, judged by leave-one-out from neighbors, is refined by gradient descent on that very loss,
and what predicts best is taken. Columns that do not count are left out, since they cost as much as others in every search.
"""

from __future__ import annotations

import math
import numbers
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.optimize import nnls
from sklearn.utils import check_random_state
from torch import Tensor

from ..core.spectrum import KernelSpectrum
from ..distances import squared_distances
from ..errors import InputError, RidgeRaisedWarning
from ..functional import farthest_points
from ..kernels import Exponential, Kernel
from ..kernels.names import check_definite
from ..transforms import Compose, MeanDistance, Transform
from ..tuning import Selection, learn_metric, select
from ..tuning.leave_one_out import shuffled_rows
from ..tuning.scores import Loss
from ..tuning.select import scaled
from .candidates import (
    OWN,
    PROFILES,
    WIDE,
    Family,
    Judge,
    Request,
    Tried,
    family_named,
    part_of,
    some_of,
    suited,
    usual_map,
)
from .class_selection import choose_for_classes
from .encoding import Centers, Groups, SelectColumns, Staircase
from .lengthscales import Fit, Problem, first_log, learn_lengthscales, near_patches, random_patch, try_around
from .predictor import FEWEST, Member
from .prior import FittedRidge, KernelFeatures, ModelPrior, RidgePrior, choose_ridge

PRIORS = ("auto", "linear", "coarse")
# Factors of a lengthscale to try: around a first guess, and around one that was learned.
FIRST_FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
FACTORS = (0.7, 1.0, 1.4)
LEAST_ROWS = 50  # to learn a metric from
MOST_ROWS = 2000  # to choose from where all take part: more say no more about a few numbers
FEWEST_LOCAL = 4
FEWEST_GROUPS = 20
LEAST_PRIOR = 10  # rows
PRIOR_ROWS = 400
COARSE_POINTS = 1000
MODEL_KERNELS = ("exponential", "gaussian")
MODEL_FACTORS = (1.0, 0.5, 0.25, 0.1, 0.05)  # the widest first: the narrowest corrects the rows alone
MODEL_RIDGES = (1e-6, 1e-3)  # larger ones correct by halves

DENSE_KERNELS = ("matern32", "laplacian", "gaussian")
DENSE_SCREEN_ROWS = 300
DENSE_RIDGES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
DENSE_RIDGE_FACTORS = (0.03, 0.1, 0.3, 1.0, 3.0)
# Lengthscales are learned on so many rows, with so many evaluations of the loss, where there are more than the last.
DENSE_PATCHES = ((460, 11, 0), (450, 4, 700), (700, 8, 1000))
DEFAULT_RIDGE = 1e-2
ROWS_PER_FEATURE = 3
LEAST_SHARE = 0.05

LOCAL_KERNELS = ("matern32", "exponential", "plain matern52")
LOCAL_SCREEN_ROWS = 400
LOCAL_RIDGES = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
LOCAL_RIDGE_FACTORS = (0.1, 0.3, 1.0, 3.0)
FIRST_SAMPLES, LOCAL_SAMPLES = 400, 1000  # rows left out to compare kernels, and to settle the best
NEIGHBORS = (10, 20, 50, 100, 200)  # more cost more than a prediction may
SEARCHED_AT = 100  # neighbors at most, while lengthscales and ridges are searched
RANDOM_EVALUATIONS, NEAR_EVALUATIONS, NEAR_ROUNDS = 15, 12, 2
REFINE_STEPS, REFINE_SECONDS = 140, 15.0
REFINE_RIDGE = 1e-4  # to start from: a smaller one hardly has a gradient
NEARLY = 0.01  # of the loss: what fewer neighbors or columns may cost
NEGLIGIBLE = (0.01, 0.001, 0.0001)  # shares of the mean squared distance that are tried to do without, largest first
SETTLED = 2  # kernels that are judged on more rows
SEARCHED_IN_SINGLE = 1e-6  # least ridge whose neighbors are searched in float32


def read_request(estimator: Any, *, dense: bool, loss: Loss, multilabel: bool = False) -> Request:
    """The parameters of an estimator, checked, in the library's own terms."""
    neighbors, kernel, alpha, metric = estimator.n_neighbors, estimator.kernel, estimator.alpha, estimator.metric
    if neighbors != "auto" and (not isinstance(neighbors, numbers.Integral) or isinstance(neighbors, bool) or neighbors < 1):
        raise InputError(f"n_neighbors must be 'auto' or an int of at least 1, got {neighbors!r}.")
    if isinstance(alpha, bool) or not (isinstance(alpha, numbers.Real) or (isinstance(alpha, str) and alpha == "auto")):
        raise InputError(f"alpha must be 'auto' or a non-negative number, got {alpha!r}.")
    if alpha != "auto" and not 0 <= float(alpha) < math.inf:
        raise InputError(f"alpha must be finite and not negative, got {alpha!r}. A typical value is 1e-2.")
    if not isinstance(kernel, Kernel) and not (isinstance(kernel, str) and kernel in ("auto", *PROFILES)):
        names = ", ".join(map(repr, PROFILES))
        raise InputError(f"kernel must be 'auto', one of {names}, or a torchkrr kernel, got {kernel!r}.")
    if isinstance(kernel, Kernel):
        check_definite(kernel)
    metrics = ("auto", "ard") if dense else ("auto", "ard", "linear")
    if metric is not None and metric not in metrics:
        raise InputError(f"metric must be None or one of {', '.join(map(repr, metrics))}, got {metric!r}.")
    return Request(
        num_neighbors=None if neighbors == "auto" else int(neighbors),
        ridge=None if alpha == "auto" else float(alpha),
        kernel=None if isinstance(kernel, str) and kernel == "auto" else kernel,
        # A kernel of the caller's own is used as it is, unless a metric is asked for.
        metric=None if metric == "auto" and isinstance(kernel, Kernel) else metric,
        dense=dense,
        loss=loss,
        seed=int(check_random_state(estimator.random_state).randint(np.iinfo(np.int32).max)),
        progress=bool(estimator.verbose),
        prior=_read_prior(estimator.prior, kernel, classes=loss == "cross_entropy"),
        multilabel=multilabel,
        workers=torch.get_num_threads(),
    )


def _read_prior(prior: Any, kernel: Any, *, classes: bool) -> Any:
    if not isinstance(prior, str | None):
        return ModelPrior(prior, classes)
    if prior is not None and prior not in PRIORS:
        raise InputError(f"prior must be None, a fitted model or one of {', '.join(map(repr, PRIORS))}, got {prior!r}.")
    # As with the metric: a kernel of the caller's own is used alone, unless a prior is asked for.
    return None if prior == "auto" and isinstance(kernel, Kernel) else prior


class Choice(NamedTuple):
    members: tuple[Member, ...]
    prior: RidgePrior | None
    tried: Tried
    fitted: FittedRidge | None = None  # the prior, solved on the centers as they are


def choose(centers: Centers, request: Request, groups: Groups | None = None) -> Choice:
    """Prior and members. Every center takes part in each prediction where they are few, the nearest where they are many.

    Weights count in units of their mean, so that a table that is given several times is judged as it would be once.
    """
    count = len(centers.points)
    if groups is not None and len(torch.unique(groups.of_center)) >= FEWEST_GROUPS:  # one of each: none vouches for another
        _, first = np.unique(groups.of_center.numpy(), return_index=True)
        centers = centers.some(torch.from_numpy(first))
    # Where there is nothing to leave out, copies are all that is known.
    unit = float(centers.weights.mean()) if len(centers.points) >= FEWEST else 1.0
    centers = centers._replace(weights=centers.weights / unit)
    if request.ridge is not None:
        request = request._replace(ridge=request.ridge / unit)
    choice = _choose(centers, request)
    members = tuple(member._replace(ridge=member.ridge * unit) for member in choice.members)
    prior = None if choice.prior is None else choice.prior._replace(ridge=choice.prior.ridge * unit)
    return Choice(members, prior, choice.tried, choice.fitted if unit == 1 and len(centers.points) == count else None)


def _choose(centers: Centers, request: Request) -> Choice:
    count = len(centers.points)
    everyone = request.num_neighbors is None or request.num_neighbors >= count
    judge = Judge(centers.values, centers.weights, request.multilabel) if request.loss == "cross_entropy" else None
    prior = None if request.prior is None or count < LEAST_PRIOR else choose_prior(centers, request, judge)
    optional = request.prior == "auto"
    few = count <= MOST_ROWS and everyone and request.metric != "linear"
    if judge is not None and request.metric in ("auto", None) and count >= FEWEST_LOCAL and centers.values.shape[1] > 1:
        choice = choose_for_classes(centers, request, prior, judge)
        used = None if prior is None or not choice.prior else prior.scaled(choice.prior)
        return Choice(choice.members, None if used is None else used.prior, choice.tried, used)
    if prior is not None and optional and not _prior_wins(centers, prior, request):
        prior = None
    if prior is not None:
        centers = centers._replace(values=prior.left_out())
        request = request._replace(loss="mse")  # of residuals, which are no memberships
    dense = request.dense or few or count < FEWEST_LOCAL
    members, tried = (choose_dense if dense else choose_local)(centers, request)
    if prior is None:
        return Choice(members, None, tried)
    return Choice(members, prior.prior, {f"{name} + {prior.prior.name}": loss for name, loss in tried.items()}, prior)


@torch.no_grad()
def choose_prior(centers: Centers, request: Request, judge: Judge | None) -> FittedRidge:
    """Ridge regression on the points, or on coarse points, with the ridge that predicts left-out rows best."""
    points, rows = centers.points, shuffled_rows(len(centers.points), MOST_ROWS, request.seed, centers.points.device)
    few = some_of(points, request.seed)
    features = usual_map(few)
    name = "linear"
    if request.prior == "coarse":
        kernel = Exponential(input_transform=Compose(features, MeanDistance()).fit(few))
        spread = farthest_points(kernel.embed(few), min(COARSE_POINTS, len(few)))
        features, name = KernelFeatures(kernel).fit(few[spread]), "coarse"

    loss = _square_loss(centers) if judge is None else judge.losses
    return choose_ridge(RidgePrior(name, features, 0.0), points, centers.values, centers.weights, rows, loss)


def _square_loss(centers: Centers) -> Callable[[Tensor, Tensor], Tensor]:
    """Of predictions `(n, K, C)` for some rows, `(K,)`."""

    def loss(predictions: Tensor, rows: Tensor) -> Tensor:
        squares = (predictions - centers.values[rows].unsqueeze(1)).square().mean(2)
        return (centers.weights[rows].unsqueeze(1) * squares).mean(0)

    return loss


@torch.no_grad()
def _prior_wins(centers: Centers, prior: FittedRidge, request: Request) -> bool:
    """Whether a kernel on what the prior leaves over predicts left-out rows better, by more than one standard error."""
    rows = shuffled_rows(len(centers.points), PRIOR_ROWS, request.seed, centers.points.device)
    part = part_of(centers, rows, prior, _square_loss(centers))
    values, hat, weights = part.values, part.hats[1.0], part.weights
    points = part.points.double()
    mapped = family_named(suited("matern32", points), points).mapped(points)
    distances, start = squared_distances(mapped, mapped).sqrt(), first_log(mapped)
    both, squares = torch.stack((values, hat.targets()), dim=1), []  # (n, 2, C)
    more = torch.stack((torch.zeros_like(values), hat.left_out() - hat.targets()), dim=1)
    for factor in FIRST_FACTORS:
        spectrum = KernelSpectrum(PROFILES["matern32"]().profile(distances / (factor * start.exp())), weights)
        residuals = spectrum.leave_one_out(both.flatten(1), LOCAL_RIDGES).unflatten(2, both.shape[1:])
        squares.append(weights[:, None, None] * (residuals + more.unsqueeze(1)).square().mean(3))
    table = torch.cat(squares, dim=1).nan_to_num(torch.inf)  # (n, settings, 2)
    alone, summed = (table[:, table[:, :, at].mean(0).argmin(), at] for at in (0, 1))
    gain = alone - summed
    return bool(gain.mean() > gain.std() / len(gain) ** 0.5)


@torch.no_grad()
def choose_for_model(left_over: Centers, request: Request) -> Choice:
    """One kernel for what a model of the caller's own leaves over, which tends to zero far from the rows."""
    unit = float(left_over.weights.mean())
    weights, count = left_over.weights / unit, len(left_over.points)
    ridges = MODEL_RIDGES if request.ridge is None else (request.ridge / unit,)
    rows = shuffled_rows(count, MOST_ROWS, request.seed, left_over.points.device)
    best: tuple[float, Kernel, float] | None = None
    tried: Tried = {}
    names = MODEL_KERNELS if request.kernel is None else (request.kernel,)
    for name in names:
        if isinstance(name, Kernel):
            family = Family(OWN, name, None, (1.0,))
        else:
            wide = left_over.points.shape[1] > WIDE
            family = family_named(f"{'unit' if wide else 'plain'} {name}", left_over.points[rows].double())
            family = family._replace(factors=MODEL_FACTORS)
        mapped = family.mapped(left_over.points[rows])
        start = torch.zeros(1, dtype=torch.float64) if family.transform is None else first_log(mapped)
        distances = squared_distances(mapped, mapped).sqrt()
        for factor in family.factors:
            log = start + math.log(factor)
            spectrum = KernelSpectrum(family.profile.profile(distances / log.exp()), weights[rows], trend=False)
            residuals = spectrum.leave_one_out(left_over.values[rows], ridges)
            losses = (weights[rows, None, None] * residuals.square()).mean((0, 2)).nan_to_num(torch.inf)
            at = int(losses.argmin())
            tried[family.name] = min(float(losses[at]), tried.get(family.name, math.inf))
            if best is None or float(losses[at]) < best[0]:
                best = float(losses[at]), family.kernel(log), ridges[at]
    assert best is not None
    return Choice((Member(best[1], best[2] * unit, request.num_neighbors, 1.0),), None, tried)


def kernel_parts(name: str, points: Tensor) -> tuple[type[Kernel], Transform, Tensor]:
    """Profile, map fitted on the points, and groups of its columns `(E,)`, of the kernel of this name."""
    family = family_named(name, points)
    assert family.transform is not None
    stairs = [part.groups() for part in family.transform.modules() if isinstance(part, Staircase)]
    groups = stairs[0] if stairs else torch.arange(family.transform(points[:1]).shape[1])
    return type(family.profile), family.transform, groups


def choose_dense(centers: Centers, request: Request) -> tuple[tuple[Member, ...], Tried]:
    """Members on all centers; values of the centers are at zero mean and unit variance."""
    if len(centers.points) < FEWEST:
        kernel = request.kernel
        if not isinstance(kernel, Kernel):
            profile, transform, _ = kernel_parts(kernel or "matern32", centers.points)
            lengthscale = torch.tensor(math.exp(first_log(transform(centers.points.double()))))
            kernel = profile(lengthscale, input_transform=transform)
        ridge = DEFAULT_RIDGE if request.ridge is None else request.ridge
        return (Member(kernel, ridge, request.num_neighbors, 1.0),), {}
    if len(centers.points) > MOST_ROWS:
        centers = centers.some(
            shuffled_rows(len(centers.points), MOST_ROWS, request.seed, centers.points.device).sort().values
        )
    count, features = centers.points.shape
    learn = request.metric == "ard" or (request.metric == "auto" and count >= max(LEAST_ROWS, ROWS_PER_FEATURE * features))
    kernels: tuple[str | Kernel, ...] = DENSE_KERNELS if request.kernel is None else (request.kernel,)

    candidate = partial(_dense_candidate, centers=centers, request=request, learn=learn)
    candidates = request.each(candidate, kernels, "kernels")
    shares = _shares([fit for _, fit in candidates], centers)
    order = sorted((at for at in range(len(candidates)) if shares[at] > 0), key=lambda at: -shares[at])
    members = tuple(
        Member(candidates[at][0], candidates[at][1].ridge, request.num_neighbors, float(shares[at])) for at in order
    )
    return members, {_name(name): fit.loss for name, (_, fit) in zip(kernels, candidates, strict=True)}


def _name(kernel: str | Kernel) -> str:
    return kernel if isinstance(kernel, str) else type(kernel).__name__


def _dense_candidate(given: str | Kernel, centers: Centers, request: Request, learn: bool) -> tuple[Kernel, Fit]:
    """One kernel, with the lengthscales and the ridge that suit it."""
    points = centers.points.double()
    if isinstance(given, Kernel):
        kernel, embedded = given, given.embed(points)
        start, groups = torch.zeros(1, dtype=torch.float64), torch.arange(embedded.shape[1])
    else:
        profile, transform, groups = kernel_parts(given, points)
        kernel, embedded = profile(input_transform=transform), transform(points)
        start = first_log(embedded)
    many = Problem(embedded, groups, centers.values, centers.weights, kernel)
    one = many._replace(groups=torch.zeros_like(groups))
    if isinstance(given, Kernel) and not learn:
        fit = try_around(one, start, (1.0,), request.ridges(DENSE_RIDGES))
    else:
        generator = torch.Generator().manual_seed(request.seed)
        few = random_patch(one, DENSE_SCREEN_ROWS, generator)
        fit = try_around(few, start, FIRST_FACTORS, request.ridges(DENSE_RIDGES))
        logs, ridge = fit.logs, fit.ridge
        if learn:
            logs = logs.expand(int(groups.max()) + 1)
            for rows, evaluations, fewer in DENSE_PATCHES:
                if len(points) > fewer:
                    patch = random_patch(many, rows, generator)
                    logs, ridge = learn_lengthscales([patch], logs, ridge, evaluations=evaluations)
            fit = try_around(many, logs, (1.0,), request.ridges(DENSE_RIDGE_FACTORS, ridge))
        else:
            fit = try_around(one, logs, FACTORS, request.ridges(DENSE_RIDGE_FACTORS, ridge))
    logs = fit.logs[0] if len(fit.logs) == 1 else fit.logs
    if isinstance(given, Kernel):
        return scaled(given, logs), fit
    return profile(logs.exp() if logs.ndim == 0 else logs.exp()[groups], input_transform=transform), fit


def _shares(fits: list[Fit], centers: Centers) -> np.ndarray[Any, Any]:
    """Shares, none negative, with which the candidates together predict the values best when every row is left out."""
    root = centers.weights.sqrt().unsqueeze(1)
    columns = torch.stack([(root * fit.left_out).flatten() for fit in fits], dim=1)
    shares: np.ndarray[Any, Any] = nnls(columns.numpy(), (root * centers.values).flatten().numpy())[0]
    if not np.isfinite(shares).all() or shares.sum() <= 0:
        shares = np.eye(len(fits))[int(np.argmin([fit.loss for fit in fits]))]
    shares = shares / shares.sum()
    shares[shares < LEAST_SHARE] = 0.0
    shares /= shares.sum()
    return shares


class LocalChoice(NamedTuple):
    """A selection on features that are mapped already: the map costs too much to repeat in every trial."""

    selection: Selection
    transform: Transform | None
    mapped: Tensor  # (N, E)

    def kernel(self) -> Kernel:
        """With the map in it."""
        kernel = self.selection.kernel
        if self.transform is not None:
            own = kernel.input_transform
            kernel.input_transform = self.transform if own is None else Compose(self.transform, own)
        return kernel


def choose_local(centers: Centers, request: Request) -> tuple[tuple[Member, ...], Tried]:
    """One member with a number of neighbors."""
    learn = request.metric in ("ard", "linear") or (request.metric == "auto" and len(centers.points) >= LEAST_ROWS)
    values = centers.values.float()
    if values.shape[1] == 1:  # a single class is told from no other
        request = request._replace(loss="mse")
    if request.loss == "cross_entropy":
        values = values.clamp(0, 1)
        values = values / values.sum(1, keepdim=True)
    if isinstance(request.kernel, Kernel):
        points, factors = centers.points.float(), FACTORS if learn else (1.0,)
        selection = select_mapped(points, values, request.kernel, factors, request.ridges(LOCAL_RIDGES), request)
        best, tried = LocalChoice(selection, None, points), {_name(request.kernel): selection.score}
    else:
        names = LOCAL_KERNELS if request.kernel is None else (request.kernel,)
        candidate = partial(_local_candidate, centers=centers, values=values, request=request, learn=learn)
        with warnings.catch_warnings():  # here, since `select` cannot restore the filters of several threads
            warnings.simplefilter("ignore", RidgeRaisedWarning)
            choices = request.each(candidate, names, "kernels")
        tried = {name: choice.selection.score for name, choice in zip(names, choices, strict=True)}
        # A finer one is judged on more rows, so they are too.
        ranked = sorted(choices, key=lambda choice: choice.selection.score)[:SETTLED]
        best = min((_settled(choice, values, request) for choice in ranked), key=lambda choice: choice.selection.score)
    if learn and request.kernel != "laplacian":  # a staircase has too many columns for a lengthscale each
        learned = learn_metric(
            best.mapped,
            values,
            kernel=best.selection.kernel,
            metric="linear" if request.metric == "linear" else "ard",
            ridge=max(best.selection.ridge, REFINE_RIDGE) if request.ridge is None else request.ridge,
            learn_ridge=request.ridge is None,
            learning_rate=0.03,
            steps=REFINE_STEPS,
            max_seconds=REFINE_SECONDS,
            loss=request.loss,
            seed=request.seed,
            progress=request.progress,
        )
        ridges = request.ridges(LOCAL_RIDGE_FACTORS, learned.ridge)
        found = select_mapped(best.mapped, values, learned.kernel, FACTORS, ridges, request, most=SEARCHED_AT)
        finer = _settled(best._replace(selection=found), values, request)
        if finer.selection.score <= best.selection.score or request.metric == "linear":
            best = finer
    best = without_idle_columns(values, best, request)
    ridge, count = best.selection.ridge, request.num_neighbors
    if count is None:  # the least number that is nearly as good as the best: time grows with its square at least
        trial = best.selection.table[0]
        count = min(count for count, loss in trial.curve if loss <= trial.loss + NEARLY * abs(trial.loss))
    single = request.ridge is None and ridge >= SEARCHED_IN_SINGLE
    return (Member(best.kernel(), ridge, count, 1.0, single),), tried


def _local_candidate(name: str, centers: Centers, values: Tensor, request: Request, learn: bool) -> LocalChoice:
    """One kernel with its lengthscales, ridge and number of neighbors."""
    profile, transform, groups = kernel_parts(name, centers.points.double())
    embedded = transform(centers.points.double())
    mapped = embedded.float()
    generator = torch.Generator().manual_seed(request.seed)
    targets = centers.values - centers.values.mean(0)
    many = Problem(embedded, groups, targets, centers.weights, profile())
    few = random_patch(many._replace(groups=torch.zeros_like(groups)), LOCAL_SCREEN_ROWS, generator)
    fit = try_around(few, first_log(embedded), FIRST_FACTORS, request.ridges(LOCAL_RIDGES))
    kernel, ridges = profile(fit.logs[0].exp()), request.ridges(LOCAL_RIDGE_FACTORS, fit.ridge)
    best = select_mapped(mapped, values, kernel, FACTORS, ridges, request, FIRST_SAMPLES, SEARCHED_AT)
    if learn and request.metric != "linear":
        logs = fit.logs.expand(int(groups.max()) + 1)
        patch = random_patch(many, LOCAL_SCREEN_ROWS, generator)
        logs, ridge = learn_lengthscales([patch], logs, fit.ridge, evaluations=RANDOM_EVALUATIONS)
        for _ in range(NEAR_ROUNDS):  # which rows are near depends on what was learned
            patches = near_patches(many, logs, generator)
            counted = len(patches[0].embedded) // 2  # the inner rows, which have neighbors all around
            logs, ridge = learn_lengthscales(patches, logs, ridge, evaluations=NEAR_EVALUATIONS, counted=counted)
        kernel, ridges = profile(logs.exp()[groups]), request.ridges(LOCAL_RIDGE_FACTORS, ridge)
        learned = select_mapped(mapped, values, kernel, FACTORS, ridges, request, FIRST_SAMPLES, SEARCHED_AT)
        best = learned if learned.score <= best.score or request.metric == "ard" else best
    return LocalChoice(best, transform, mapped)


def _settled(choice: LocalChoice, values: Tensor, request: Request) -> LocalChoice:
    found = choice.selection
    return choice._replace(selection=select_mapped(choice.mapped, values, found.kernel, (1.0,), (found.ridge,), request))


@torch.no_grad()
def without_idle_columns(values: Tensor, best: LocalChoice, request: Request) -> LocalChoice:
    """Without the most columns that together make next to nothing of a distance, if the loss is hardly larger then."""
    kernel = best.selection.kernel
    lengthscales = kernel.lengthscale
    if isinstance(request.kernel, Kernel) or kernel.input_transform is not None or len(lengthscales) == 1:
        return best
    distances = best.mapped.var(0, correction=0) / lengthscales.to(best.mapped).square()
    ordered, order = (distances / distances.sum()).sort()
    together = ordered.cumsum(0)
    for limit in NEGLIGIBLE:
        kept = torch.ones(len(order), dtype=torch.bool)
        kept[order[together < limit]] = False
        if bool(kept.all()):
            break
        fewer, profile = best.mapped[:, kept], type(kernel)(lengthscales[kept])
        selection = select_mapped(fewer, values, profile, (1.0,), (best.selection.ridge,), request)
        if selection.score <= best.selection.score + NEARLY * abs(best.selection.score):
            columns: Transform = SelectColumns.where(kept)
            return LocalChoice(selection, Compose(best.transform or Compose(), columns), fewer)
    return best


def select_mapped(
    points: Tensor,
    values: Tensor,
    kernel: Kernel,
    factors: tuple[float, ...],
    ridges: tuple[float, ...],
    request: Request,
    num_samples: int = LOCAL_SAMPLES,
    most: int = max(NEIGHBORS),
) -> Selection:
    rows = len(points)
    if request.num_neighbors is None:  # those that other rows can fill, and all other rows if they are fewer than the most
        counts = sorted({*(count for count in NEIGHBORS if count < min(rows, most)), min(most, max(1, rows - 1))})
    else:
        counts = [min(request.num_neighbors, rows - 1)]
    return select(
        points,
        values,
        kernels=kernel,
        lengthscales=factors,
        ridges=ridges,
        num_neighbors=counts,
        num_samples=num_samples,
        loss=request.loss,
        seed=request.seed,
    )
