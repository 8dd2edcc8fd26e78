"""A figure as SVG inside the page: coloured by the page's variables, so that one drawing does for light and dark."""

import re

import matplotlib
from markupsafe import Markup
from matplotlib.figure import Figure

from .files import render_figure
from .palette import LIGHT

VARIABLES = {
    LIGHT.ink: "var(--ink)",
    LIGHT.faint: "var(--faint)",
    LIGHT.grid: "var(--line)",
    LIGHT.paper: "var(--paper)",
    LIGHT.baseline: "var(--base)",
}


def inline_svg(figure: Figure, name: str, words: str) -> Markup:
    """The figure, drawn with `LIGHT`, as an `<svg>` of the width it is given.

    Args:
        figure: artists with a gid ``mask:M`` come out as groups with ``data-mask="M"``.
        name: letters that no other picture of the page has: ids are the page's.
        words: what a reader who does not see it must know.
    """
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        text = render_figure(figure, "svg").decode("utf-8")
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->|<style.*?</style>", "", text, flags=re.DOTALL)
    text = text.replace("xlink:href", "href")
    text = re.sub(r'id="mask:([^"]*)"', r'data-mask="\1"', text)
    text = re.sub(r'<g id="[^"]*">', "<g>", text)
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", text)
    # A tenth of a point is finer than any screen.
    text = re.sub(r' (?:d|x|y)="[^"]*"', lambda found: re.sub(r"(\d\.\d)\d+", r"\1", found[0]), text)
    for colour, variable in VARIABLES.items():
        text = text.replace(colour, variable)
    head = re.compile(r'<svg [^>]*?(viewBox="[^"]*")[^>]*>')
    label = Markup('<svg role="img" aria-label="{}" ').format(words)
    return Markup(head.sub(lambda found: f"{label}{found[1]}>", text, count=1))
