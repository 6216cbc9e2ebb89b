"""Walls, figures and their colours: readable without colour, without eyes and without a kernel."""

from __future__ import annotations

import base64
import io
import math
import re
import sys

import numpy as np
import pytest
from PIL import Image

from samebits import lab
from samebits.experiment import Observation, Runs, Source
from samebits.lab import theme
from samebits.lab.errors import LabError
from samebits.lab.tiles import wall

LIVE = Source("LIVE", "Intel Xeon, 2 threads", {"torch": "2.13.0+cpu"}, "2026-11-29T16:00:00+00:00")
MODEL = Source(
    "MODEL", "this CPU", {}, "2026-11-29T16:00:00+00:00", why="numba's CUDA simulator: the same algorithm"
)


def runs(answers, source=LIVE, samples=None):
    observations = [
        Observation(f"sha256:{answer}", "sha256:in", 1e-3, sample=(samples[n],) if samples else ())
        for n, answer in enumerate(answers)
    ]
    return Runs("scatter", {}, {}, source, tuple(observations))


def images(bundle):
    found = re.findall(
        r'<img[^>]* alt="([^"]*)"[^>]* src="data:image/png;base64,([^"]*)"', bundle["text/html"]
    )
    return [(alt, Image.open(io.BytesIO(base64.b64decode(data)))) for alt, data in found]


def test_a_wall_as_data():
    data = wall(runs("xyx", samples=[1.0, np.nextafter(np.float32(1), np.float32(2)), 1.0]))
    assert [tile["letter"] for tile in data["tiles"]] == ["A", "B", "A"]
    assert data["tiles"][0] == {"letter": "A", "colour": "#E69F00", "ink": "#111111"}
    assert data["alt"] == "3 runs, 2 different answers: A B A."
    assert data["say"] == "Different: 2 answers in 3 runs. The farthest two are 1 ULP apart."
    assert (data["kind"], data["where"]) == ("LIVE", "Intel Xeon, 2 threads · torch 2.13.0+cpu")
    assert data["date"] == "2026-11-29"


def test_the_distance_is_told_only_where_there_is_one():
    assert wall(runs("xy"))["say"] == "Different: 2 answers in 2 runs."
    assert wall(runs("xy", samples=[1.0, 1.0]))["say"] == "Different: 2 answers in 2 runs."
    assert wall(runs("xy", samples=[1.0, math.nan]))["say"].endswith(
        "some runs gave NaN and others a number."
    )


def test_one_answer_and_few_runs():
    assert wall(runs("x" * 20))["alt"] == "20 runs, all the same: A."
    assert wall(runs("x" * 20))["say"].startswith("Same so far: one answer in 20 runs")
    assert wall(runs("x"))["alt"] == "1 run, all the same: A."
    assert wall(runs(""))["alt"] == "No runs yet."


def test_above_sixty_runs_the_most_frequent_letters_are_counted():
    few = wall(runs("x" * 70 + "y" * 30))
    assert [(tile["letter"], tile["count"]) for tile in few["tiles"]] == [("A", 70), ("B", 30)]
    assert few["alt"] == "100 runs, 2 different answers: A 70 times, B 30 times."
    many = wall(runs([str(n % 50) for n in range(99)]))
    assert len(many["tiles"]) == 20
    assert many["alt"].endswith("and 30 more letters.")
    assert many["say"].endswith("The wall shows the 20 most frequent of 50 letters.")


def test_sixty_runs_are_sixty_tiles():
    assert len(wall(runs("x" * 60))["tiles"]) == 60


def test_a_wall_is_displayed_with_its_words(displayed):
    lab.tiles(runs("xyx"), title="Three <runs>")
    [bundle] = displayed
    [(alt, picture)] = images(bundle)
    assert alt == "3 runs, 2 different answers: A B A."
    assert picture.size[0] > 200
    assert "Three &lt;runs&gt;" in bundle["text/html"]
    assert "measured on Intel Xeon, 2 threads · torch 2.13.0+cpu, on 2026-11-29" in bundle["text/html"]
    assert ">LIVE<" not in bundle["text/html"], "a stored output is live no more"
    assert bundle["text/plain"] == (
        "Three <runs>\nA B A\nDifferent: 2 answers in 3 runs.\n"
        "measured on Intel Xeon, 2 threads · torch 2.13.0+cpu, on 2026-11-29"
    )


def test_tiles_have_their_colours(displayed):
    lab.tiles(runs("xy"))
    [(_, picture)] = images(displayed[0])
    top_of_tile = [picture.convert("RGB").getpixel((x, 12)) for x in (36, 36 + 80)]
    assert ["#{:02X}{:02X}{:02X}".format(*pixel) for pixel in top_of_tile] == list(theme.TILE_COLOURS[:2])


def test_a_wall_stays_transparent_after_a_figure_was_drawn(displayed):
    """A figure's style stays set in the kernel; white gaps between tiles would show in a dark theme."""
    lab.axes()
    lab.tiles(runs("ab" * 10))
    [(_, picture)] = images(displayed[0])
    assert picture.convert("RGBA").getpixel((2 * 38, 10))[3] == 0  # between the first two tiles


def test_walls_are_stacked_by_label(displayed):
    lab.tiles({"one thread": runs("xxx"), "two threads": runs("xyz")})
    assert [alt for alt, _ in images(displayed[0])] == [
        "3 runs, all the same: A.",
        "3 runs, 3 different answers: A B C.",
    ]
    assert displayed[0]["text/plain"].startswith("one thread\nA A A\n")


def test_what_is_not_live_carries_its_badge_and_its_reason(displayed):
    lab.tiles(runs("xx", MODEL))
    assert '<span class="sb-badge">MODEL</span> numba&#x27;s CUDA simulator' in displayed[0]["text/html"]
    assert wall(runs("xx", MODEL))["where"].startswith("numba's CUDA simulator: the same algorithm")


def test_fingerprints_alone_need_a_source(displayed):
    with pytest.raises(LabError, match="no source"):
        lab.tiles(["sha256:a"])
    lab.tiles(["sha256:a", "sha256:b"], source=LIVE)
    assert "Different: 2 answers in 2 runs." in displayed[0]["text/plain"]


def test_a_wall_needs_no_pyplot(displayed):
    before = "matplotlib.pyplot" in sys.modules
    lab.tiles(runs("x" * 61))
    assert ("matplotlib.pyplot" in sys.modules) == before


def test_letters_and_colours_are_legible():
    for colour in theme.TILE_COLOURS:
        assert theme.contrast(theme.ink(colour), colour) >= 4.5
    assert theme.contrast("#000000", "#FFFFFF") == pytest.approx(21)
    assert theme.tile_colour("A") == theme.tile_colour("I") != theme.tile_colour("B")
    assert theme.tile_colour("AA") == theme.TILE_COLOURS[26 % 8]


@pytest.mark.parametrize("dark", [False, True])
def test_every_accent_is_legible_on_the_card(dark):
    """The papers are those of JupyterLab's two themes; its text colours are JupyterLab's own matter."""
    light_block, dark_block = re.findall(r"\.sb-card \{(.*?)\}", theme.CARD_CSS, re.DOTALL)[:2]
    colours = dict(re.findall(r"--sb-(\w+(?:-\w+)?): (#\w{3,6});", dark_block if dark else light_block))
    colours = {name: c if len(c) == 7 else "#" + "".join(2 * x for x in c[1:]) for name, c in colours.items()}
    papers = ["#111111" if dark else "#FFFFFF", colours["soft"]]
    assert {"muted", "brand", "good", "warn", "error"} <= set(colours)
    for name in ("muted", "brand", "good", "warn", "error"):
        assert min(theme.contrast(colours[name], paper) for paper in papers) >= 4.5, name
    assert theme.contrast(colours["on-brand"], colours["brand"]) >= 4.5
    assert min(theme.contrast(colours["edge"], paper) for paper in papers) >= 3, "edges of controls"


# --- figures --------------------------------------------------------------------------------------------


def test_a_figure_has_alt_text_a_summary_and_its_source(displayed):
    figure, axes = lab.axes()
    axes.plot([1, 2, 3])
    lab.figure(figure, alt='A "rising" line', source=lab.here(), summary="It rises.")
    html, text = displayed[0]["text/html"], displayed[0]["text/plain"]
    assert 'alt="A &quot;rising&quot; line"' in html and "It rises." in html and "measured on " in html
    assert text.startswith('A "rising" line\nIt rises.\nmeasured on ')


def test_a_figure_takes_the_source_of_runs(displayed):
    figure, _ = lab.axes()
    lab.figure(figure, alt="Nothing", source=runs("xx", MODEL))
    assert ">MODEL</span>" in displayed[0]["text/html"]


@pytest.mark.parametrize(
    ("alt", "source", "needs"),
    [
        ("A line", None, "a source"),
        ("A line", "LIVE", "a source"),
        ("", LIVE, "alt text"),
        (" ", LIVE, "alt text"),
    ],
)
def test_a_figure_without_source_or_alt_text_is_refused(alt, source, needs, displayed):
    figure, _ = lab.axes()
    with pytest.raises(ValueError, match=f"A figure needs {needs}"):
        lab.figure(figure, alt=alt, source=source)
    assert displayed == []


def test_figures_are_the_same_bytes_each_time(displayed):
    for _ in range(2):
        figure, axes = lab.axes()
        axes.plot([3, 1, 2], label="x")
        axes.legend()
        lab.figure(figure, alt="A line", source=LIVE)
    assert displayed[0] == displayed[1]
