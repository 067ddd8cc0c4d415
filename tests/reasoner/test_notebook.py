"""Tests of predictions, explanations and reports as frames and in notebooks."""

from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from tests.support.samples import tiny_predictor

from oneshot.evaluation.evaluate import evaluate
from oneshot.graph.graph import KnowledgeGraph
from oneshot.reasoner.answers import COLUMNS, Answer, Calibration, Prediction
from oneshot.reasoner.reasoner import Reasoner
from oneshot.samplers import PPRSampler

SCRIPT = "<script>alert(1)</script>"
NAMES = [SCRIPT, "a & b", '"quoted"', "$x$ and $y$", "plain", "é", "n" * 500]


@pytest.fixture(scope="module")
def reasoner() -> Reasoner:
    count = len(NAMES)
    facts = [[n, n % 2, (n + 1) % count] for n in range(count)]
    graph = KnowledgeGraph.from_facts(facts, NAMES, ["next", "<i>other</i>"])
    return Reasoner(graph, PPRSampler(1.0), tiny_predictor(num_relations=2).float())


class Tags(HTMLParser):
    """Raises unless all tags are closed in order; collects their names and the text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: set[str] = set()
        self.text = ""
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.open.append(tag)
        self.found.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_prediction_as_a_frame(reasoner: Reasoner) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    found = reasoner.predict("plain", "next", inverse=True, top=3)
    frame = found.to_pandas()
    assert list(frame) == list(COLUMNS)
    assert frame["answer"].tolist() == [answer.entity for answer in found]
    assert frame["rank"].tolist() == [1, 2, 3]
    assert set(frame["relation"]) == {"next⁻¹"}
    assert frame["probability"].isna().all()
    empty = Prediction("x", "y", (), 0, 0).to_pandas()
    assert len(empty) == 0
    assert (empty.dtypes[2:] == frame.dtypes[2:]).sum() >= 4  # names alone may differ
    both = pandas.concat([frame, found.to_pandas()])
    assert both.dtypes.equals(frame.dtypes)


def test_a_prediction_in_a_notebook(reasoner: Reasoner) -> None:
    reasoner.calibration = Calibration(1.0, 0.0, 1)
    try:
        found = reasoner.predict(SCRIPT, "<i>other</i>", top=10)
    finally:
        reasoner.calibration = None
    shown = found._repr_html_()
    page = Tags(shown)
    assert page.found == {"div", "b", "table", "thead", "tbody", "tr", "th", "td"}
    assert f"({SCRIPT}, <i>other</i>, ?)" in page.text
    assert "a & b" in page.text
    assert "mathjax_ignore" in shown  # dollar signs are no formulas
    assert "n" * 119 + "…" in page.text
    assert "color" not in shown  # that of the page, light or dark
    assert len(shown) < 5000
    failed = Prediction("x", "y", (), 0, 0, error="unknown <entity>")._repr_html_()
    assert "unknown &lt;entity&gt;" in failed
    assert "<table" not in failed
    assert "<td></td>" in Prediction("x", "y", (Answer("z", 1.0, None, True),), 1, 1)._repr_html_()


def test_an_explanation_in_a_notebook(reasoner: Reasoner) -> None:
    why = reasoner.explain(SCRIPT, "next", "a & b")
    shown = why._repr_html_()
    assert shown.count("<svg") == 1
    assert 'style="max-width:100%;height:auto"' in shown
    assert "<script" not in shown
    ElementTree.fromstring(shown)  # well-formed


def test_a_report_in_a_notebook(reasoner: Reasoner) -> None:
    report = evaluate(reasoner, reasoner.graph.facts.long()[:4])
    page = Tags(report._repr_html_())
    assert {"table", "details", "summary"} <= page.found
    assert "i" not in page.found
    for expected in ("MRR", "Hits@10", "mean rank", f"{report.mrr:.4f}", "<i>other</i>⁻¹"):
        assert expected in page.text
    assert "4 of 4 relations" in page.text
    # A bar for the MRR of each of them.
    shown = report._repr_html_()
    assert 'style="max-width:100%;height:auto"' in shown
    plot = ElementTree.fromstring(shown[shown.index("<svg") : shown.index("</svg>") + 6])
    place = "{http://www.w3.org/2000/svg}"
    titles = {one.text for one in plot.iter(f"{place}title")}
    for name, part in report.per_relation.items():
        assert f"{name}: {part['mrr']:.4f}, {part['queries']:,} queries" in titles
    widths = [float(one.attrib["width"]) for one in plot.findall(f".//{place}g/{place}rect")]
    longest = max(widths)
    shares = sorted(width / longest for width in widths[1::2])
    expected = sorted(part["mrr"] for part in report.per_relation.values())
    assert shares == pytest.approx(expected, abs=0.001)
    assert torch.is_tensor(reasoner.graph.facts)
