"""Cards that need no widget: HTML with its text alternative, for outputs that outlive their kernel."""

from __future__ import annotations

import base64
import html
import io
from typing import TYPE_CHECKING

from samebits.experiment import Source
from samebits.lab import theme

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def show(body: str, text: str) -> None:
    """Display HTML in a card, with plain text for viewers that show no HTML."""
    from IPython.display import display

    card = f'<style>{theme.CARD_CSS}</style><div class="sb-card sb-static">{body}</div>'
    display({"text/html": card, "text/plain": text}, raw=True)


def image(figure: Figure, alt: str) -> str:
    """The <img> of a figure, drawn at twice its size for sharp screens.

    JupyterLab drops the alt text of image/png outputs, and keeps that of HTML.
    """
    buffer = io.BytesIO()
    figure.savefig(
        buffer, format="png", dpi=2 * 96, metadata={"Software": None}, pil_kwargs={"optimize": True}
    )
    data = base64.b64encode(buffer.getvalue()).decode()
    width = round(figure.get_figwidth() * 96)
    return f'<img alt="{html.escape(alt)}" width="{width}" src="data:image/png;base64,{data}">'


def source_line(source: Source) -> str:
    """The source line of a stored output: LIVE has become "measured on …", anything else keeps its badge."""
    badge = "" if source.kind == "LIVE" else f'<span class="sb-badge">{source.kind}</span> '
    rest = source.stored.removeprefix(source.kind).removeprefix(" · ")
    return f'<p class="sb-source">{badge}{html.escape(rest)}</p>'
