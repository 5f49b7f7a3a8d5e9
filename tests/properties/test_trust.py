"""No crash, no silence: an answer is right, or a `RidgeRaisedWarning` says that another problem was solved.

More than 20,000 cells (a query, a dense query, a left-out center, the gradients of one cell) in twelve families, against the
truth in extended precision. A cell that is off by more than a hundredth without a warning fails the test. So does caution
without need: what float32 answers well by itself is rarely solved again in float64, and no warning is given where float64
has eight digits to spare.

`pytest -s` prints the counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import torch
from tests import reference
from tests.properties import trust_hooks, trust_truth
from tests.properties.trust_problems import DENSE, FAMILIES, KINDS, Outcome, Problem, ask, draw
from tests.properties.trust_truth import Cells, Long, Radial, in_many_digits

from torchkrr import kernels, neighbors

# Cells of every family that are judged, by kind: right, wrong or warned about, and not skipped.
SHARES = {
    "local": 400,
    "dense": 240,
    "leave one out": 720,  # few calls, and calls are what is solved again
    "local weights": 240,
    "dense weights": 200,
    "power": 200,
    "path": 200,
    "gradient": 240,
}
SILENT = dict.fromkeys(KINDS, 1e-2) | {"gradient": 5e-2}
RESOLVABLE = 1e-4  # plain float32 answers this well
AGAIN = 20  # at most one in so many of the resolvable of a family is solved again
# Rounding of kernel values is alike in rows that are alike, so that errors cancel which the rule, blind to that, adds up.
AGAIN_WHERE_ROWS_ARE_ALIKE = {
    "Chebyshev": 14,
    "clusters": 12,
    "near-duplicates": 11,
    "duplicates, equal": 18,
    "duplicates, conflicting": 3,
}
SURELY_RESOLVED = 1e8  # condition number: eight digits to spare in float64
MOST_DIGITS, MOST_MEMBERS = 5, 30  # cells per family and kind, and their size, that are worth 150 digits
HARD_ENOUGH = 30  # silent errors of float32 in every family if the rule is switched off
HARDEST = ("clusters", "duplicates, conflicting", "near-duplicates")


@dataclass
class Counts:
    """Of one family and kind. Resolvable and again are counted in calls for left-out centers, else in cells."""

    problems: int = 0
    silent: int = 0
    worst: float = 0.0  # largest error of the cells without a warning
    warned: int = 0
    needless: int = 0  # warned though surely resolved
    skipped: int = 0  # nobody knows the truth
    digits: int = 0  # 80 bits do not know it, 150 digits do
    resolvable: int = 0
    again: int = 0
    plain_wrong: int = 0  # silent errors of float32 with the rule switched off
    examples: list[str] = field(default_factory=list)

    def row(self) -> list[str]:
        return [f"{getattr(self, name):.1e}" if name == "worst" else str(getattr(self, name)) for name in COLUMNS]


COLUMNS = [f.name for f in fields(Counts) if f.name != "examples"]


def table(family: str, counts: dict[str, Counts]) -> str:
    rows = [[family, *COLUMNS], *([kind, *c.row()] for kind, c in counts.items())]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


# Judging one problem.


def ask_fairly(p: Problem) -> tuple[list[np.ndarray], np.ndarray]:
    """Answers, and which cells were warned about. After a warning every cell is asked about alone: none excuses another."""
    parts, warned = ask(p)
    if not warned or p.kind == "leave one out" or len(p) == 1:
        return parts, np.full(len(p), warned)
    alone: list[Outcome] = [ask(p.rows([row])) for row in range(len(p))]
    joined = [np.concatenate(part) for part in zip(*(outcome.parts for outcome in alone), strict=True)]
    return joined, np.array([outcome.warned for outcome in alone])


def true_errors(p: Problem, parts: list[np.ndarray], counts: Counts, wanted: np.ndarray) -> np.ndarray:
    """`(Q,)`; NaN where nobody knows. A wanted cell that 80 bits cannot solve gets 150 digits, if it is small."""
    errors = np.where(p.truth.known, p.truth.errors(parts), np.nan)
    errors[p.singular] = np.inf
    kind = KINDS[p.kind]
    if kind in ("mean", "weights", "power") and p.indices.shape[1] <= MOST_MEMBERS:
        for row in np.flatnonzero(wanted & np.isnan(errors))[: MOST_DIGITS - counts.digits]:
            counts.digits += 1
            true = in_many_digits(p.cells, kind, row)
            scale = {
                "mean": np.abs(p.cells.values[row]).max(),
                "weights": max(np.abs(true).max(), Long(1e-3)),
                "power": 1.0,
            }[kind]
            errors[row] = np.nan_to_num(np.abs(parts[0][row] - true).max() / scale, nan=np.inf)
    return errors


def condition(p: Problem) -> np.ndarray:
    """`(Q,)`, of the matrices that the library factors."""
    points = p.cells.members
    if p.kind == "leave one out":
        points = np.broadcast_to(p.centers.double().numpy(), (len(p), *p.centers.shape))
    gram = trust_truth.profile(p.radial, trust_truth.embedded_distances(p.radial, points, points)).astype(np.float64)
    values = np.linalg.eigvalsh(gram + p.ridge * np.eye(gram.shape[-1]))
    return values[:, -1] / np.maximum(values[:, 0], 1e-300)


def judge(p: Problem, counts: Counts, caution: bool) -> None:
    parts, warned = ask_fairly(p)
    errors = true_errors(p, parts, counts, ~warned)
    judged = warned | ~np.isnan(errors)
    quiet = np.where(warned | np.isnan(errors), 0.0, errors)
    wrong = quiet > SILENT[p.kind]
    counts.problems += int(judged.sum())
    counts.skipped += int((~judged).sum())
    counts.warned += int(warned.sum())
    counts.silent += int(wrong.sum())
    counts.worst = max(counts.worst, float(quiet.max()))
    if wrong.any():
        counts.examples.append(f"silent error of {quiet.max():.3g} in {wrong.sum()} cells of {p}")
    if warned.any():
        needless = warned & (condition(p) < SURELY_RESOLVED)
        counts.needless += int(needless.sum())
        if needless.any():
            counts.examples.append(f"needless warning about {needless.sum()} cells of {p}")
    if caution and p.query.dtype == torch.float32:
        judge_caution(p, counts)


def ask_plainly(p: Problem) -> tuple[list[np.ndarray], np.ndarray]:
    """Answers with the rule switched off, and which of them float32 gave.

    A factorization that fails is solved again in float64 even then. Its answer says nothing about float32.
    """
    with trust_hooks.switched_off(), trust_hooks.counting() as counted:
        parts, warned = ask(p)
    plain = not warned and counted.again == 0
    if plain or p.kind == "leave one out" or len(p) == 1:
        return parts, np.full(len(p), plain)
    alone = [ask_plainly(p.rows([row])) for row in range(len(p))]
    joined = [np.concatenate(part) for part in zip(*(found for found, _ in alone), strict=True)]
    return joined, np.concatenate([plain for _, plain in alone])


def judge_caution(p: Problem, counts: Counts) -> None:
    """How often float32 that is good enough is solved again, and how often it is wrong when nobody looks."""
    parts, plain = ask_plainly(p)
    errors = np.where(p.truth.known & plain, p.truth.errors(parts), np.nan)
    counts.plain_wrong += int((errors > SILENT[p.kind]).sum())
    good = np.flatnonzero(errors <= RESOLVABLE)
    if p.kind == "leave one out":  # one system for all: it is solved again for all or for none
        calls = [np.arange(len(p))] if len(good) == len(p) else []
        most = len(calls)
    else:
        calls = [good[i : i + 1] for i in range(len(good))] if p.kind in DENSE else [good] if len(good) else []
        most = len(good)
    with trust_hooks.counting() as counted:
        for rows in calls:
            ask(p.rows(rows))
    again = min(most, int(counted.again))  # a backward may count a cell once more
    counts.resolvable += most
    counts.again += again
    if again:
        counts.examples.append(f"solved again without need: {again} of {most} in {p}")


def run(family: str, kind: str, share: int, *, caution: bool = True) -> Counts:
    counts = Counts()
    for number in range(4 * share):  # the bound ends a run that would skip everything
        if counts.problems >= share:
            break
        judge(draw(family, kind, number), counts, caution)
    return counts


# The property.


def test_there_are_twenty_thousand_problems_or_more():
    assert set(SHARES) == set(KINDS)
    assert len(FAMILIES) * sum(SHARES.values()) >= 20_000


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_no_error_is_silent_and_no_caution_needless(family):
    counts = {kind: run(family, kind, share) for kind, share in SHARES.items()}
    found = table(family, counts)
    print(f"\n{found}")
    complaints = list(_complaints(family, counts))
    assert not complaints, "\n".join([*complaints, found])


def _complaints(family: str, counts: dict[str, Counts]) -> Iterator[str]:
    for kind, c in counts.items():
        if c.problems < SHARES[kind]:
            yield f"{kind}: only {c.problems} cells could be judged"
        if c.silent:
            yield f"{kind}: {c.silent} silent errors"
        if c.needless:
            yield f"{kind}: {c.needless} needless warnings"
        if c.silent or c.needless:
            yield from (f"    {example}" for example in c.examples[:5])
    again, resolvable = sum(c.again for c in counts.values()), sum(c.resolvable for c in counts.values())
    if again > resolvable / AGAIN_WHERE_ROWS_ARE_ALIKE.get(family, AGAIN):
        yield f"{again} of {resolvable} solved again without need"
    if sum(c.plain_wrong for c in counts.values()) < HARD_ENOUGH:
        yield "these problems are too easy: hardly any is wrong with the rule switched off"


@pytest.mark.slow
def test_with_the_rule_switched_off_a_quarter_of_three_families_has_a_hundred_silent_errors():
    counts: dict[str, dict[str, Counts]] = {family: {} for family in HARDEST}
    with trust_hooks.switched_off():
        for family, by_kind in counts.items():
            by_kind.update({kind: run(family, kind, share // 4, caution=False) for kind, share in SHARES.items()})
    print(*(f"\n{table(family, by_kind)}" for family, by_kind in counts.items()))
    assert sum(c.silent for by_kind in counts.values() for c in by_kind.values()) >= 100


# Three problems that once went wrong in silence, each by itself.


def posed(kind: str, kernel: str, lengthscale: float, centers: torch.Tensor, values: torch.Tensor, **given: Any) -> Problem:
    query = given.pop("query", centers)
    indices = given.pop("indices", torch.arange(len(centers)).expand(len(query), -1))
    chosen = {"ridge": 1e-9, "trend": None, "backend": "auto", "directions": values[:1].expand(len(query), -1)} | given
    made = getattr(kernels, kernel)(lengthscale)
    return Problem("by hand", kind, made, Radial(kernel, float(made.lengthscale)), query, centers, values, indices, **chosen)


def assert_not_silent(p: Problem) -> None:
    counts = Counts()
    judge(p, counts, caution=False)
    assert counts.problems == len(p), "the truth must be known here"
    assert not counts.silent, counts.examples


@pytest.mark.parametrize("backend", ["fused", "torch"])
def test_float32_on_a_line_of_evenly_spaced_points_is_not_silently_wrong(backend):
    centers, query = torch.arange(500.0)[:, None], 499 * torch.rand(200, 1)
    indices = neighbors.nearest(query, centers, 50)
    values = torch.randn(500, 1)
    assert_not_silent(posed("local", "Gaussian", 2.0, centers, values, query=query, indices=indices, backend=backend))


@pytest.mark.parametrize("kind", ["local", "dense", "local weights", "dense weights", "power"])
def test_float64_without_ridge_on_fourteen_close_points_is_not_silently_wrong(kind):
    centers = torch.linspace(0, 2, 14, dtype=torch.float64)[:, None]
    query = torch.tensor([[0.07], [0.5], [1.234], [2.1], [2.5]], dtype=torch.float64)
    values = torch.randn(14, 2, dtype=torch.float64)
    assert_not_silent(posed(kind, "Gaussian", 1.0, centers, values, query=query, ridge=0.0))


@pytest.mark.parametrize("kernel", ["Matern32", "Matern52", "InverseMultiquadric"])
def test_float32_leaving_out_a_center_that_is_there_three_times_is_not_silently_wrong(kernel):
    for count, lengthscale in [(6, 1.0), (10, 1.0), (6, 4.0), (10, 4.0), (6, 30.0), (10, 30.0)]:
        for _ in range(5):
            centers, values = torch.randn(count, 2), torch.randn(count, 1)
            centers[1] = centers[3] = centers[2]
            indices = torch.stack([torch.cat([torch.arange(i), torch.arange(i + 1, count)]) for i in range(count)])
            assert_not_silent(posed("leave one out", kernel, lengthscale, centers, values, indices=indices))


# The truth itself.


def cells(name: str, members: int, *, seed: int, trend: bool, ridge: float, spread: float, lengthscale: float) -> Cells:
    rng = np.random.default_rng(seed)
    shape = {"dimension": 2, "smoothness": seed % 4, "alpha": 0.7}
    return Cells(
        Radial(name, lengthscale, **shape),
        query=spread * rng.random((3, 2)),
        members=spread * rng.random((3, members, 2)),
        values=rng.normal(size=(3, members, 2)),
        ridge=ridge,
        trend=trend,
        directions=rng.normal(size=(3, 2)),
    )


@pytest.mark.parametrize("trend", [False, True])
@pytest.mark.parametrize("name", reference.PROFILES)
def test_truth_of_ill_conditioned_problems_has_four_digits(name, trend):
    c = cells(name, 12, seed=3, trend=trend, ridge=1e-13, spread=1.0, lengthscale=1.5)
    for kind in ("mean", "weights", "power"):
        found = trust_truth.answer(c, kind, np.random.default_rng(0))
        assert found.known.all()
        true = [np.stack([in_many_digits(c, kind, row) for row in range(3)])]
        assert found.errors([true[0].reshape(found.parts[0].true.shape)]).max() < 1e-4


def test_truth_knows_what_it_does_not_know():
    c = cells("Gaussian", 30, seed=0, trend=False, ridge=0.0, spread=0.5, lengthscale=1.0)
    assert not trust_truth.answer(c, "mean", np.random.default_rng(0)).known.any()


@pytest.mark.parametrize("members", [10, trust_truth.FACTORED + 10])  # factored in 80 bits, and refined
@pytest.mark.parametrize("name", reference.PROFILES)
def test_truth_of_well_conditioned_problems_is_scipy_s(name, members):
    c = cells(name, members, seed=1, trend=False, ridge=1e-3, spread=30.0, lengthscale=2.0)
    found = trust_truth.answer(c, "mean", np.random.default_rng(0))
    options = {"RationalQuadratic": {"alpha": 0.7}, "Wendland": {"dimension": 2, "smoothness": 1}}.get(name, {})
    for q in range(3):
        z, x = c.query[q : q + 1] / 2, c.members[q] / 2
        gram = reference.PROFILES[name](reference.distances(x, x), **options) + 1e-3 * np.eye(members)
        cross = reference.PROFILES[name](reference.distances(x, z), **options)
        expected = cross.T @ scipy.linalg.solve(gram, c.values[q], assume_a="pos")
        np.testing.assert_allclose(found.parts[0].true[q].astype(np.float64), expected[0], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("trend", [False, True])
@pytest.mark.parametrize(
    ("name", "smoothness"), [(name, 0) for name in reference.PROFILES] + [("Wendland", s) for s in (1, 2, 3)]
)
def test_true_gradients_are_difference_quotients(name, smoothness, trend):
    c = cells(name, 6, seed=smoothness, trend=trend, ridge=1e-3, spread=3.0, lengthscale=3.0)
    step, rng = Long(1e-6), np.random.default_rng(0)
    moves = [rng.normal(size=array.shape) for array in (c.query, c.members, c.values)]

    def value(sign: int) -> np.ndarray:
        query, members, values = (a + sign * step * m for a, m in zip((c.query, c.members, c.values), moves, strict=True))
        mean = trust_truth.answer(c._replace(query=query, members=members, values=values), "mean", rng).parts[0].true
        return (mean * c.directions).sum(1)

    gradients = [part.true for part in trust_truth.answer(c, "gradient", rng).parts]
    expected = sum((g * m).reshape(3, -1).sum(1) for g, m in zip(gradients, moves, strict=True))
    np.testing.assert_allclose(
        ((value(1) - value(-1)) / (2 * step)).astype(np.float64), expected.astype(np.float64), rtol=1e-6
    )


@pytest.mark.parametrize("trend", [False, True])
def test_true_path_is_a_solve_for_every_m(trend):
    c = cells("Matern52", 8, seed=5, trend=trend, ridge=1e-9, spread=1.0, lengthscale=1.0)
    means, powers = trust_truth.answer(c, "path", np.random.default_rng(0)).parts
    for m in range(1, 9):
        first = c._replace(members=c.members[:, :m], values=c.values[:, :m])
        for part, kind in ((means, "mean"), (powers, "power")):
            expected = trust_truth.answer(first, kind, np.random.default_rng(0)).parts[0].true
            np.testing.assert_allclose(part.true[:, m - 1].astype(np.float64), expected.astype(np.float64), atol=1e-8)
