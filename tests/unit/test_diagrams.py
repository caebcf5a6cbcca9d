"""Flowcharts of the documentation, drawn as SVG."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from tools.diagrams import svg

LOOP = """flowchart TD
    start([start])
    finish([END])
    n0["a &amp; b"]
    n1["act"]
    start --> n0
    n0 --> n1
    n1 -.-> n0
    n1 -.-> finish
"""


def test_a_flowchart_has_a_box_for_each_node_and_an_arrow_for_each_edge() -> None:
    """In rows from above; an arrow that leads back moves nothing down."""
    drawn = svg(LOOP)
    ElementTree.fromstring(drawn)  # well-formed, and in one line as the page needs it
    assert "\n" not in drawn
    rows = [(int(y), text) for y, text in re.findall(r'<text .*? y="(\d+)".*?>([^<]+)', drawn)]
    assert [text for _, text in sorted(rows)] == ["start", "a &amp; b", "act", "END"]
    assert (drawn.count("marker-end"), drawn.count("stroke-dasharray")) == (4, 2)


@pytest.mark.parametrize("text", ["sequenceDiagram\n", "flowchart TD\n    a ==> b\n"])
def test_what_is_not_drawn_is_refused(text: str) -> None:
    """The build of the site fails, instead of showing half of it."""
    with pytest.raises(ValueError, match="drawn"):
        svg(text)
