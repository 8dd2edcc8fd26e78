"""Figures as files: the same bytes for the same figure."""

import io

import matplotlib
from matplotlib.figure import Figure

PNG_DPI = 150


def render_figure(figure: Figure, kind: str) -> bytes:
    """The figure as a file's bytes, `kind` "png" or "svg": the same bytes for the same summary (no date, no random ids)."""
    buffer = io.BytesIO()
    metadata = {"Date": None} if kind == "svg" else {"Software": None}
    with matplotlib.rc_context({"svg.hashsalt": "hf-semfocus"}):
        figure.savefig(buffer, format=kind, dpi=PNG_DPI, metadata=metadata, facecolor=figure.get_facecolor())
    return buffer.getvalue()
