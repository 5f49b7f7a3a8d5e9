"""Figures show means and extremes; pages escape what they are given."""

import pytest
from tests.vision.test_summary import record

from torchkrr.vision.figures import DARK, LIGHT, draw_budgets, draw_depths, render_page
from torchkrr.vision.summary import summarize

ACCURACIES = {("sk", 60): (0.7, 0.8), ("knn", 60): (0.6, 0.64), ("sk", 200): (0.9,), ("knn", 200): (0.85,)}
RECORDS = [
    record(readout, budget, seed, accuracy) | {"discarded": discarded, "layer": f"layer {discarded}", "indicator": indicator}
    for discarded in range(3)
    for (readout, budget), accuracies in ACCURACIES.items()
    for seed, accuracy in enumerate(accuracies)
    for indicator in [0.1 * discarded + 0.05 * seed if readout == "sk" else None]
]


def test_depths_show_means_and_extremes_and_the_indicator():
    figure = draw_depths(summarize(RECORDS), LIGHT)
    small, large, indicator = figure.axes
    assert [panel.get_xlabel() for panel in figure.axes] == ["top stages discarded"] * 3
    assert (len(small.containers), len(large.containers)) == (2, 2)
    assert all(container.has_yerr for container in small.containers)  # two seeds
    assert not any(container.has_yerr for container in large.containers)  # one run
    assert small.containers[0].lines[0].get_ydata() == pytest.approx([75] * 3)
    assert large.containers[1].lines[0].get_ydata() == pytest.approx([85] * 3)
    assert indicator.lines[0].get_ydata() == pytest.approx([0.025, 0.125, 0.225])
    assert indicator.lines[-1].get_ydata() == pytest.approx([0.0, 0.1, 0.2])


def test_budgets_show_accuracy_and_time_of_every_readout():
    figure = draw_budgets(summarize(RECORDS[: len(RECORDS) // 3]), DARK)
    accuracy, seconds = figure.axes
    assert len(accuracy.containers) == len(seconds.lines) == 2
    assert accuracy.containers[0].lines[0].get_ydata() == pytest.approx([75, 90])
    assert seconds.lines[0].get_ydata() == pytest.approx([2.0, 1.5])
    assert seconds.get_yscale() == "log"


def test_a_page_escapes_what_its_template_does_not_call_safe(tmp_path):
    template = tmp_path / "own.html"
    template.write_text('{% extends "page.html" %}{% block body %}{{ text }}{{ figure | safe }}{% endblock %}')
    values = {"title": "a < b", "data": "c & d", "text": "<i>", "figure": "<svg>"}
    page = render_page(template, settings={"e": 1}, **values)
    for part in ("<title>a &lt; b</title>", "c &amp; d", "&lt;i&gt;<svg>", "&#34;e&#34;: 1", "--ground"):
        assert part in page
