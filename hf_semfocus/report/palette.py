"""Colours and markers: safe for the colour-blind up to six masks, and the same for a mask in every picture and table."""

from collections.abc import Sequence
from dataclasses import dataclass

# Okabe and Ito (2008) without yellow, which is too pale on white; from the seventh on colours that are far from all before (CIELAB),
# and from white and the page's dark paper.
_COLOURS = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#5500FF", "#FF22DD", "#11CC00", "#FF0055", "#2266FF", "#666622",
    "#DD9977", "#DD88FF", "#993333",
)  # fmt: skip
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*", "p", "h", "d", "8", "H", "1")


@dataclass(frozen=True)
class Theme:
    """Colours of a picture that do not belong to a mask."""

    name: str
    ink: str
    faint: str
    grid: str
    paper: str
    baseline: str


LIGHT = Theme("light", ink="#1b1f24", faint="#6a737d", grid="#e3e6ea", paper="#ffffff", baseline="#3b4046")


@dataclass(frozen=True)
class Style:
    """How a mask is drawn: a colour, and a marker that tells masks apart without colour."""

    colour: str
    marker: str


def mask_styles(masks: Sequence[str], baseline: str, theme: Theme = LIGHT) -> dict[str, Style]:
    """A style for each mask, by its place in `masks`; the baseline is neutral. 15 colours beside it are different; beyond them they
    come again, with other markers.

    Example:
        >>> mask_styles(["full", "topk:5"], "full")["topk:5"]
        Style(colour='#0072B2', marker='s')
    """
    styles = {}
    others = [mask for mask in masks if mask != baseline]
    for index, mask in enumerate([baseline, *others]):
        colour = theme.baseline if mask == baseline else _COLOURS[(index - 1) % len(_COLOURS)]
        styles[mask] = Style(colour, _MARKERS[index % len(_MARKERS)])
    return {mask: styles[mask] for mask in masks} if baseline in masks else styles
