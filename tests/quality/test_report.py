"""The page of an audit: it stands alone, escapes what it shows, and names what counts."""

import re

import numpy as np
import pytest
from sklearn.datasets import load_digits

from torchkrr import audit
from torchkrr.quality.report import row_name, summary_line, suspects, written


@pytest.fixture(scope="module")
def found():
    x, y = load_digits(return_X_y=True)
    y = y[:300].copy()
    y[::20] = (y[::20] + 1) % 10
    return audit(x[:300], y)


def test_the_report_stands_alone_and_escapes_what_it_shows(found, tmp_path):
    path = tmp_path / "report.html"
    found.to_html(path, shown=[f"<script>row {row}</script>" for row in range(300)], title="Digits & more")
    text = path.read_text()
    assert "Digits &amp; more" in text
    assert "<script>" not in text
    assert "&lt;script&gt;row" in text
    assert not re.search(r"(src|href)=.?https?:", text)
    images = load_digits().images[:300].astype(np.uint8)[..., None].repeat(3, axis=3) * 15
    found.to_html(path, shown=images)
    assert path.read_text().count("data:image/png;base64") > 20
    regression = audit(np.arange(40.0)[:, None], np.arange(40.0) + 0.5)
    regression.to_html(path)
    assert "row 39" in path.read_text()


def test_suspects_are_issues_first_with_the_rows_that_contradict_them(found):
    shown = suspects(found, 8)
    assert [one.row for one in shown][:3] == [row for row in found.ranked.tolist() if row % 20 == 0][:3]
    for one in shown:
        assert one.given != one.suggested
        labels = [label for _, _, label in one.evidence]
        assert len(one.evidence) == 5
        assert one.suggested in labels


def test_rows_and_labels_in_words(found):
    assert row_name(found, 3) == "row 3"
    assert written(np.float64(1.23456)) == "1.235"
    assert written(np.array([1.0, 2.5])) == "1, 2.5"
    assert written("cat") == "cat"
    assert re.match(r"\d+ labels of 300 are likely wrong, at an expected false discovery rate of \d+ %", summary_line(found))
