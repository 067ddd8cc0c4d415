"""Drawings of explanations: well-formed whatever the names, complete, and the same each time."""

import dataclasses
import itertools
import re
import unicodedata
from html import escape
from xml.etree import ElementTree

import pytest
import torch
from tests.support.graphs import random_graph, random_queries

from oneshot.config import PredictorConfig
from oneshot.errors import MissingPackageError
from oneshot.graph.graph import KnowledgeGraph
from oneshot.graph.vocabulary import Vocabulary
from oneshot.plots import shapes
from oneshot.plots.explanation.figure import draw
from oneshot.plots.explanation.layout import MAX_ENTITIES, lay_out
from oneshot.plots.shapes import Text, shortened, text_width
from oneshot.predictor import Predictor
from oneshot.reasoner.explanation import Explanation
from oneshot.reasoner.reasoner import Reasoner
from oneshot.samplers import PPRSampler

SVG = "{http://www.w3.org/2000/svg}"

HOSTILE = [
    "<script>alert('x')</script>",
    "Tom & Jerry \"quoted\" 'twice'",
    "👩‍👩‍👧 family 🎉",
    "שלום עולם",
    "x" * 200,
    "日本語の長い名前" * 20,
    "]]> <!-- -->",
    "$x_1^2$ 100% \\frac",
    "bell\x07 and null\x00",
    "مرحبا",
    "e\u0301\u0302\u0303 combining",
    "</svg><title>",
]


def reasoner_on(graph: KnowledgeGraph) -> Reasoner:
    torch.manual_seed(0)
    predictor = Predictor(PredictorConfig(num_layers=4, dim=8), graph.num_relations)
    return Reasoner(graph, PPRSampler(1.0), predictor)


def hostile_explanation() -> Explanation:
    facts = [[0, 0, 1], [1, 1, 2], [2, 0, 3], [3, 1, 4], [0, 1, 5], [5, 0, 4], [6, 0, 0]]
    facts += [[7, 0, 1], [8, 1, 2], [9, 0, 5], [10, 1, 4], [11, 0, 4], [0, 2, 4]]
    graph = KnowledgeGraph.from_facts(
        facts,
        Vocabulary.from_names(HOSTILE, "entity"),
        Vocabulary.from_names(['<r> & "s" \'', "→" * 90, "\x01&amp;"], "relation"),
    )
    return reasoner_on(graph).explain(0, 2, 4)


def some_explanations() -> list[Explanation]:
    """Dense and sparse ones, one out of reach, one of an entity to itself."""
    dense, sparse = random_graph(1, 200, 1500, 12), random_graph(2, 60, 70, 2)
    found = []
    for graph, seed in ((dense, 3), (sparse, 4)):
        reasoner = reasoner_on(graph)
        for head, relation in random_queries(graph, 4, seed).tolist():
            found += [reasoner.explain(head, relation, tail, paths=9) for tail in (0, head)]
    return found


def test_hostile_names_give_well_formed_svg_and_html():
    explanation = hostile_explanation()
    assert explanation.reachable
    root = ElementTree.fromstring(explanation.to_svg())
    assert root.tag == f"{SVG}svg"
    drawn = {element.tag.removeprefix(SVG) for element in root.iter()}
    assert drawn <= {"svg", "title", "style", "g", "path", "polygon", "circle", "rect", "text"}
    titles = "\n".join(element.text or "" for element in root.iter(f"{SVG}title"))
    for name in HOSTILE:
        assert re.sub("[\x00\x07]", "\ufffd", name) in titles
    page = explanation.to_html()
    assert "<script" not in page
    assert escape(HOSTILE[0]) in page
    # Nothing is fetched from anywhere: the only address is the name of the SVG language.
    assert re.findall(r"\w+://[^\"' )]*", page) == ["http://www.w3.org/2000/svg"]
    assert "href" not in page
    assert "src=" not in page


def test_files_are_what_was_returned(tmp_path):
    explanation = hostile_explanation()
    for ending in ("svg", "html"):
        text = getattr(explanation, f"to_{ending}")(tmp_path / "new" / f"picture.{ending}")
        assert (tmp_path / "new" / f"picture.{ending}").read_text(encoding="utf-8") == text
    explanation.to_png(str(tmp_path / "picture.png"))
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "picture.png"]


def test_a_picture_without_matplotlib_names_the_extra(tmp_path, monkeypatch):
    def missing(module: str, extra: str, purpose: str) -> None:
        raise MissingPackageError(f"{purpose} needs {module}: {extra}")

    monkeypatch.setattr(shapes, "require", missing)
    with pytest.raises(MissingPackageError, match="plot"):
        hostile_explanation().to_png(tmp_path / "picture.png")


def test_every_path_is_drawn_among_a_readable_number_of_entities():
    explanations = some_explanations()
    assert {explanation.reachable for explanation in explanations} == {True, False}
    for explanation in explanations:
        layout = lay_out(explanation)
        on_paths = {explanation.source, explanation.target}
        for path in explanation.paths:
            ends = explanation.batch.edges[:, list(path.edges)]
            on_paths |= set(ends[[0, 2]].flatten().tolist())
            assert {tuple(edge) for edge in ends.T.tolist()} <= set(layout.path_edges)
        assert on_paths == set(layout.on_path)
        assert on_paths <= set(layout.column)
        assert len(layout.column) <= max(MAX_ENTITIES, len(on_paths))
        assert layout.column[explanation.source] == 0
        assert sorted(layout.column) == sorted(layout.height)
        # No two entities at one place.
        spots = {(layout.column[place], layout.height[place]) for place in layout.column}
        assert len(spots) == len(layout.column)


def test_names_of_entities_do_not_overlap_and_stay_on_the_sheet():
    for explanation in [hostile_explanation(), *some_explanations()]:
        drawing = draw(explanation)
        boxes = []
        for shape in drawing.shapes:
            if isinstance(shape, Text):
                wide = text_width(shape.text, shape.size, shape.bold)
                x, y = shape.place
                left = x - {"start": 0.0, "middle": wide / 2, "end": wide}[shape.anchor]
                assert left >= 0
                assert left + wide <= drawing.width
                assert 0 < y <= drawing.height
                if shape.entity:
                    boxes.append(((left, y - shape.size * 0.8), (left + wide, y)))
        assert len(boxes) == len(lay_out(explanation).column)
        for number, box in enumerate(boxes):
            assert shapes.overlap(boxes[:number], box) == 0


def test_texts_of_a_path_do_not_run_into_its_weight():
    for explanation in [hostile_explanation(), *some_explanations()]:
        paths = tuple(dataclasses.replace(path, parallel=12) for path in explanation.paths)
        drawing = draw(dataclasses.replace(explanation, paths=paths))
        texts = [shape for shape in drawing.shapes if isinstance(shape, Text)]
        for number in range(1, len(paths) + 1):
            (row,) = [text for text in texts if text.text.startswith(f"{number}. ")]
            (weight, _) = [text for text in texts if text.place[1] == row.place[1] and text != row]
            end = row.place[0] + text_width(row.text, row.size, row.bold)
            left = weight.place[0] - text_width(weight.text, weight.size, weight.bold)
            assert end <= left, row.text


@pytest.mark.parametrize("powers", [4, 9, 17])
def test_labels_of_charts_do_not_run_into_each_other(powers):
    explanation = some_explanations()[0]
    count = explanation.batch.num_entities
    spread = torch.tensor([1 << (place % powers) for place in range(count)])
    batch = dataclasses.replace(explanation.batch, degree=spread)
    drawing = draw(dataclasses.replace(explanation, batch=batch))
    rows: dict[float, list[tuple[float, float]]] = {}
    for shape in drawing.shapes:
        if isinstance(shape, Text) and shape.anchor == "middle" and shape.size <= 11:
            half = text_width(shape.text, shape.size) / 2
            rows.setdefault(shape.place[1], []).append((shape.place[0] - half, 2 * half))
    floor = sorted(rows[max(rows)])
    assert len(floor) >= powers
    for (left, wide), (right, _) in itertools.pairwise(floor):
        assert left + wide + 4 <= right


def test_an_answer_out_of_reach_is_drawn_with_the_message():
    graph = KnowledgeGraph.from_facts([[0, 0, 1], [2, 0, 3]], 4, 1)
    explanation = reasoner_on(graph).explain(0, 0, 3)
    text = " ".join(ElementTree.fromstring(explanation.to_svg()).itertext())
    assert explanation.message in text
    assert "no path" in text


def test_the_drawing_is_the_same_each_time(tmp_path):
    one, other = hostile_explanation(), hostile_explanation()
    assert one.to_svg() == other.to_svg()
    for explanation, name in ((one, "a.png"), (other, "b.png")):
        explanation.to_png(tmp_path / name)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


@pytest.mark.parametrize("name", HOSTILE)
def test_long_names_are_shortened_to_the_room_they_have(name):
    short = shortened(name, 12, 80)
    assert text_width(short, 12) <= 80
    assert short == " ".join(name.split()) or short.endswith("…")
    if short.endswith("…"):  # no mark is left hanging
        assert not unicodedata.category(short[-2]).startswith("Z")
