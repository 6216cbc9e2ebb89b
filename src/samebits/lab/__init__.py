"""What a notebook imports: `from samebits import lab`.

    lab.panel("scatter")        an experiment with its knobs       (panel.py)
    lab.predict("02-letters")   commit to an answer, then measure  (predict.py)
    lab.check("02-tree", tree)  judge an exercise                  (check.py)
    lab.quiz("02")              a chapter's questions              (quiz.py)
    lab.tiles(runs)             a wall of tiles                    (tiles.py)
    lab.figure(fig, …)          a figure with its source           (figure.py)
    lab.atlas()                 every op, measured here            (atlas.py)
    lab.contents()              the course                         (contents.py)

matplotlib is imported by the functions that draw, so this import is quick. The functions are bound here and
not on demand, because some share their name with their module: importing a submodule later would put the
module in the function's place.
"""

from samebits.lab.atlas import atlas
from samebits.lab.check import check
from samebits.lab.contents import contents, progress
from samebits.lab.figure import figure, here
from samebits.lab.panel import panel
from samebits.lab.predict import predict
from samebits.lab.quiz import quiz
from samebits.lab.theme import axes
from samebits.lab.tiles import tiles

__all__ = [
    "atlas",
    "axes",
    "check",
    "contents",
    "figure",
    "here",
    "panel",
    "predict",
    "progress",
    "quiz",
    "tiles",
]
