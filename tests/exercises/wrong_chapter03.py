"""Answers that people typically give in chapter 03, and what the check must say to each; see test_wrong_answers.py."""

_FINGERPRINT = "from samebits.bits import fingerprint\n"
_MARGIN = """
def answer(measure, candidates, key, store):
    seconds = {name: min(measure(name) for _ in range(9)) for name in candidates}
    return next(name for name in candidates if seconds[name] <= 1.5 * min(seconds.values()))
"""
_NUMPY = "import numpy as np\n"
_PADDED = """
import numpy as np
def features(images, convolve, batch):
    done = []
    for start in range(0, len(images), batch):
        part = images[start : start + batch]
        missing = batch - len(part)
        full = np.concatenate([part, np.zeros((missing, *images.shape[1:]), images.dtype)])
        done.append(convolve(full)[: len(part)])
    return np.concatenate(done)
"""

WRONG = {
    "03-identify": [
        (
            "lists in a list",
            _FINGERPRINT
            + """
def answer(seen, x, w, ways):
    return [[name] for name, way in ways.items() if fingerprint(way(x, w)) == seen]
""",
            "identify names ['place by place'], which is no key of ways",
        ),
        (
            "the first that fits",
            _FINGERPRINT
            + """
def answer(seen, x, w, ways):
    for name, way in ways.items():
        if fingerprint(way(x, w)) == seen:
            return [name]
    return []
""",
            "name all of them",
        ),
        (
            "one name and no list",
            _FINGERPRINT
            + """
def answer(seen, x, w, ways):
    return next(name for name, way in ways.items() if fingerprint(way(x, w)) == seen)
""",
            "should give a list of names",
        ),
        (
            "a table made once",
            _FINGERPRINT
            + """
table = {}
def answer(seen, x, w, ways):
    if not table:
        for name, way in ways.items():
            table.setdefault(fingerprint(way(x, w)), []).append(name)
    return table.get(seen, [])
""",
            "another one this time",
        ),
        (
            "only the kind is compared",
            _FINGERPRINT
            + """
def answer(seen, x, w, ways):
    return [name for name, way in ways.items() if fingerprint(way(x, w))[:8] == seen[:8] or seen[:3] == "sha"]
""",
            "compare whole fingerprints",
        ),
        (
            "always sha256",
            _FINGERPRINT
            + """
def answer(seen, x, w, ways):
    return [name for name, way in ways.items() if fingerprint(way(x, w)) == seen]
""",
            "names its algorithm before the colon",
        ),
        (
            "always somebody",
            _FINGERPRINT
            + """
def answer(seen, x, w, ways):
    kind = seen.split(":")[0]
    found = [name for name, way in ways.items() if fingerprint(way(x, w), kind) == seen]
    return found or ["place by place"]
""",
            "An empty list is an answer",
        ),
        (
            "computed in float64",
            _FINGERPRINT
            + """
def answer(seen, x, w, ways):
    return [name for name, way in ways.items() if fingerprint(way(x.astype(float), w.astype(float))) == seen]
""",
            "Run each way on x and w",
        ),
    ],
    "03-tune": [
        (
            "a margin of a tenth, which is as wide as the noise",
            _MARGIN.replace("1.5", "1.1"),
            "a margin wider than the noise",
        ),
        (
            "always the first",
            "def answer(measure, candidates, key, store):\n    return candidates[0]",
            "It measured nothing in that trial",
        ),
        (
            "the fastest of one timing each",
            """
def answer(measure, candidates, key, store):
    return min(candidates, key=measure)
""",
            "take the least of five or more",
        ),
        (
            "the mean of nine, with a margin and a store",
            """
def answer(measure, candidates, key, store):
    if key not in store:
        seconds = {name: sum(measure(name) for _ in range(9)) / 9 for name in candidates}
        store[key] = next(name for name in candidates if seconds[name] <= 1.5 * min(seconds.values()))
    return store[key]
""",
            "not a mean or a median",
        ),
        (
            "too few timings, with a margin and a store",
            """
def answer(measure, candidates, key, store):
    if key not in store:
        seconds = {name: min(measure(name) for _ in range(2)) for name in candidates}
        store[key] = next(name for name in candidates if seconds[name] <= 1.5 * min(seconds.values()))
    return store[key]
""",
            "take the least of five or more",
        ),
        (
            "whole milliseconds instead of a margin",
            """
def answer(measure, candidates, key, store):
    if key not in store:
        seconds = {name: round(min(measure(name) for _ in range(9)), 3) for name in candidates}
        store[key] = min(candidates, key=seconds.get)
    return store[key]
""",
            "What is preferred may win near ties",
        ),
        (
            "the fastest of nine",
            """
def answer(measure, candidates, key, store):
    return min(candidates, key=lambda name: min(measure(name) for _ in range(9)))
""",
            "The noise decides",
        ),
        (
            "a margin narrower than the noise",
            _MARGIN.replace("1.5", "1.02"),
            "wider than the noise",
        ),
        (
            "a margin that nothing beats",
            _MARGIN.replace("1.5", "10"),
            "not against a way that is three times as fast",
        ),
        (
            "a margin alone",
            _MARGIN,
            "only moves the tie to another gap",
        ),
        (
            "a stored choice without a margin",
            """
def answer(measure, candidates, key, store):
    if key not in store:
        store[key] = min(candidates, key=lambda name: min(measure(name) for _ in range(9)))
    return store[key]
""",
            "share no store",
        ),
        (
            "one choice for all shapes",
            """
def answer(measure, candidates, key, store):
    if "choice" not in store:
        seconds = {name: min(measure(name) for _ in range(9)) for name in candidates}
        store["choice"] = next(name for name in candidates if seconds[name] <= 1.5 * min(seconds.values()))
    return store["choice"]
""",
            "Keep each choice under its key",
        ),
        (
            "a store that is written and not read",
            _MARGIN.replace("    return next", "    store[key] = next") + "    return store[key]\n",
            "only moves the tie to another gap",
        ),
        (
            "a choice that is kept outside the store",
            """
kept = {}
def answer(measure, candidates, key, store):
    if key not in kept:
        kept[key] = min(candidates, key=lambda name: min(measure(name) for _ in range(9)))
    return kept[key]
""",
            "It measured nothing in that trial",
        ),
        (
            "gives the seconds",
            """
def answer(measure, candidates, key, store):
    return min(measure(name) for name in candidates)
""",
            "should give one of the candidates",
        ),
    ],
    "03-open-races": [
        (
            "nothing is open, and the table is emptied",
            """
def answer(table):
    for timings in table.values():
        timings.clear()
    return []
""",
            "is open and is missing from your answer: {'A': [1.0, 4.0",
        ),
        (
            "nobody wins three quarters",
            """
import numpy as np
def answer(table):
    open_ = []
    for shape, timings in table.items():
        chances = [np.mean([np.prod([np.mean(np.array(o) > t) for r, o in timings.items() if r != n]) for t in mine])
                   for n, mine in timings.items()]
        if max(chances) <= 0.75:
            open_.append(shape)
    return open_
""",
            "if two ways reach a quarter",
        ),
        ("nothing is open", "def answer(table):\n    return []", "is open and is missing from your answer"),
        (
            "the best two, each pair by itself",
            """
import numpy as np
def answer(table):
    open_ = []
    for shape, timings in table.items():
        if len(timings) > 1:
            first, second = sorted(timings.values(), key=np.median)[:2]
            if 0.25 <= np.mean(np.array(first)[:, None] < np.array(second)) <= 0.75:
                open_.append(shape)
    return open_
""",
            "let all of them run, not the best two",
        ),
        (
            "close medians",
            """
import statistics
def answer(table):
    open_ = []
    for shape, timings in table.items():
        first, *rest = sorted(statistics.median(t) for t in timings.values())
        if rest and rest[0] <= 1.1 * first:
            open_.append(shape)
    return open_
""",
            "the gap beside the spread",
        ),
        (
            "any two close medians",
            """
import itertools, statistics
def answer(table):
    medians = {shape: [statistics.median(t) for t in ways.values()] for shape, ways in table.items()}
    return [s for s, m in medians.items() if any(abs(a - b) < 0.1 * a for a, b in itertools.combinations(m, 2))]
""",
            "A tie between losers decides nothing",
        ),
        (
            "ranges that overlap",
            """
def answer(table):
    open_ = []
    for shape, timings in table.items():
        ways = list(timings.values())
        can = [i for i, mine in enumerate(ways)
               if all(min(mine) < max(other) for j, other in enumerate(ways) if j != i)]
        if len(can) > 1:
            open_.append(shape)
    return open_
""",
            "not if both can",
        ),
        (
            "boxes that overlap",
            """
import numpy as np
def answer(table):
    open_ = []
    for shape, timings in table.items():
        ways = sorted(timings.values(), key=np.median)
        if len(ways) > 1 and np.percentile(ways[0], 90) >= np.median(ways[1]) and np.min(ways[1]) < np.median(ways[0]):
            open_.append(shape)
    return open_
""",
            "wins half of the races",
        ),
        (
            "row by row",
            """
def answer(table):
    open_ = []
    for shape, timings in table.items():
        rounds = list(zip(*timings.values()))
        wins = [0] * len(timings)
        for row in rounds:
            wins[row.index(min(row))] += 1
        if sum(win >= len(rounds) / 4 for win in wins) >= 2:
            open_.append(shape)
    return open_
""",
            "not row by row",
        ),
        (
            "too few races",
            """
import random
def answer(table):
    rng = random.Random(0)
    open_ = []
    for shape, timings in table.items():
        wins = dict.fromkeys(timings, 0)
        for _ in range(20):
            drawn = {name: rng.choice(t) for name, t in timings.items()}
            wins[min(drawn, key=drawn.get)] += 1
        if sum(win >= 5 for win in wins.values()) >= 2:
            open_.append(shape)
    return open_
""",
            "draw more",
        ),
        (
            "both must win nearly half",
            """
import numpy as np
def answer(table):
    open_ = []
    for shape, timings in table.items():
        chances = [np.mean([np.prod([np.mean(np.array(o) > t) for r, o in timings.items() if r != n]) for t in mine])
                   for n, mine in timings.items()]
        if sum(chance >= 0.37 for chance in chances) >= 2:
            open_.append(shape)
    return open_
""",
            "two of them need a quarter each",
        ),
        ("one shape and no list", "def answer(table):\n    return list(table)[0]", "should give a list"),
    ],
    "03-last-batch": [
        (
            "the parts are not joined, but why is right",
            """
def features(images, convolve, batch):
    return [convolve(images[i : i + batch]) for i in range(0, len(images), batch)]
answers = (features, "c")
""",
            "and should give (16, 4, 5, 5). Join the batches",
        ),
        (
            "a right why stays right",
            "def features(images, convolve, batch):\n    return convolve(images[0])[0]\nanswers = (features, 'c')",
            "Why: right",
        ),
        (
            "nothing returned",
            "def features(images, convolve, batch):\n    convolve(images[:1])\nanswers = (features, 'c')",
            "gives None; return the features",
        ),
        (
            "as it was",
            _NUMPY
            + """
def features(images, convolve, batch):
    return np.concatenate([convolve(images[i : i + batch]) for i in range(0, len(images), batch)])
answers = (features, "c")
""",
            "batches of one size only",
        ),
        (
            "the last batch is dropped",
            _NUMPY
            + """
def features(images, convolve, batch):
    full = len(images) // batch * batch
    parts = [convolve(images[i : i + batch]) for i in range(0, full, batch)]
    return np.concatenate(parts) if parts else np.zeros((0, 4, 5, 5), np.float32)
answers = (features, "c")
""",
            "Images are missing",
        ),
        (
            "padded and not cut",
            _PADDED.replace("convolve(full)[: len(part)]", "convolve(full)") + 'answers = (features, "c")\n',
            "Cut off what you added",
        ),
        (
            "all at once",
            "def features(images, convolve, batch):\n    return convolve(images)\nanswers = (features, 'c')",
            "memory holds 8",
        ),
        (
            "rounded",
            _NUMPY
            + """
def features(images, convolve, batch):
    parts = [convolve(images[i : i + batch]) for i in range(0, len(images), batch)]
    return np.concatenate(parts).round(6)
answers = (features, "c")
""",
            "batches of one size only",
        ),
        (
            "padded to the nearest even number",
            _NUMPY
            + """
def features(images, convolve, batch):
    parts = []
    for i in range(0, len(images), batch):
        part = images[i : i + batch]
        full = np.concatenate([part, part[: len(part) % 2]])
        parts.append(convolve(full)[: len(part)])
    return np.concatenate(parts)
answers = (features, "c")
""",
            "batches of one size only",
        ),
        ("the seed", _PADDED + 'answers = (features, "a")\n', "no seed to change"),
        ("threads", _PADDED + 'answers = (features, "b")\n', "the same in every run"),
        ("rounding", _PADDED + 'answers = (features, "d")\n', "Rounding is exactly repeatable"),
    ],
}

RIGHT = {
    "03-identify": [
        _FINGERPRINT
        + """
def answer(seen, x, w, ways):
    kind = seen.split(":")[0]
    return [name for name, way in ways.items() if fingerprint(way(x, w), kind) == seen]
""",
        # Changes its inputs, and gives its names one by one.
        _FINGERPRINT
        + """
def answer(seen, x, w, ways):
    kind = seen.split(":")[0]
    found = {name for name, way in ways.items() if fingerprint(way(x, w), kind) == seen}
    x[:] = w[:] = 0
    yield from found
""",
    ],
    "03-tune": """
def answer(measure, candidates, key, store):
    if key not in store:
        seconds = {name: min(measure(name) for _ in range(9)) for name in candidates}
        store[key] = next(name for name in candidates if seconds[name] <= 1.5 * min(seconds.values()))
    return store[key]
""",
    "03-open-races": [
        """
import random
def answer(table):
    rng = random.Random(1)
    open_ = []
    for shape, timings in table.items():
        wins = dict.fromkeys(timings, 0)
        for _ in range(4000):
            drawn = {name: rng.choice(t) for name, t in timings.items()}
            wins[min(drawn, key=drawn.get)] += 1
        if sum(win >= 1000 for win in wins.values()) >= 2:
            open_.append(shape)
    return open_
""",
        # Uses the table up, and gives an array.
        """
import numpy as np
def answer(table):
    open_ = []
    while table:
        shape, timings = table.popitem()
        ways = [timings.pop(name) for name in list(timings)]
        draws = np.array([np.random.default_rng(n).choice(way, 40_000) for n, way in enumerate(ways)])
        if (np.bincount(draws.argmin(axis=0)) >= 10_000).sum() >= 2:
            open_.append(shape)
    return np.array(open_)
""",
    ],
    "03-last-batch": _PADDED + 'answers = (features, "(C)")\n',
}
