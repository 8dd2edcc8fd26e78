"""Slow twins: which keys a query keeps, and what attention gives, one query at a time, from the definitions.

Written from DESIGN section 2 with Python numbers and loops; nothing here calls the package.
"""

import math
from fractions import Fraction


def hash31(query: int, key: int, seed: int) -> int:
    """The 31-bit hash of the `random` strategy, as its docstring and constants state it."""
    word = 2**31 - 1
    state = seed % 2**31
    for part, factor in ((seed // 2**31, 0x2C1B3C6D), (query % 2**31, 0x297A2D39), (key % 2**31, 0x1B56C4E9)):
        state = ((state ^ part) * factor + 0x3C6EF372) % (word + 1)
        state ^= state >> 15
        state = state * 0x2545F491 % (word + 1)
        state ^= state >> 13
    return state


def follows(name: str, n: int, query: int, key: int) -> bool:
    """Whether a rule that is fixed by positions keeps a key."""
    return {
        "full": lambda: True,
        "banded": lambda: query - (n - 1) // 2 <= key <= query + (n - 1) // 2,
        "block": lambda: math.floor(query / n) == math.floor(key / n),
        "global": lambda: query < n or key < n,
        "sink": lambda: key < n,
        "strided": lambda: key in range(0, 10**6, n) or key == query,
    }[name]()


def shifted_band(w: int, query: int, text: list[int]) -> list[int]:
    """The w positions around the query, moved step by step until they lie in the text, as far as they fit."""
    start = query - (w - 1) // 2
    while start + w - 1 > max(text) and start > min(text):
        start -= 1
    while start < min(text):
        start += 1
    return list(range(start, start + w))


def nucleus(p: str, scores: list[float], candidates: list[int]) -> set[int]:
    """The smallest set of candidates whose softmax mass reaches p; all of them for p = 1."""
    kept: set[int] = set()
    top = max((scores[j] for j in candidates), default=0.0)
    mass = {j: Fraction(math.exp(scores[j] - top)) for j in candidates}
    for j in sorted(candidates, key=lambda j: (-scores[j], j)):
        if sum(mass[i] for i in kept) >= Fraction(p) * sum(mass.values()) and Fraction(p) < 1:
            break
        kept.add(j)
    return kept


def bucket(vector: list[float], bits: int, turn: int, seed: int) -> tuple[bool, ...]:
    """The signs that `lsh` gives a vector in round `turn`."""
    signs = []
    for plane in range(turn * bits, (turn + 1) * bits):
        normal = [
            math.floor((sum(hash31(t, 12 * plane + u, seed) for u in range(12)) - 6 * (2**31 - 1)) / 2**12) / 2**19
            for t in range(len(vector))
        ]
        signs.append(math.fsum(x * r for x, r in zip(vector, normal, strict=True)) > 0)
    return tuple(signs)


def nearest(vector: list[float], centroids: list[list[float]]) -> int:
    """The centroid that is nearest to the vector's direction."""
    length = math.hypot(*vector)
    distances = [math.fsum((x / length - c) ** 2 for x, c in zip(vector, row, strict=True)) for row in centroids]
    return distances.index(min(distances))


def kept_by(
    spec: str,
    scores: list[float],
    valid: list[bool],
    query: int,
    keys: list[int],
    vector: list[float],
    key_vectors: list[list[float]],
    centroids: list[list[list[float]] | None],
) -> set[int]:
    """Indices of the keys that one query keeps.

    Args:
        scores, valid, keys: score, validity and position of each key.
        query: position of the query.
        vector, key_vectors: the query and the keys themselves.
        centroids: for each part, those of this head, or None.
    """
    candidates = [j for j in range(len(keys)) if valid[j]]
    kept: set[int] = set()
    for part, learnt in zip(spec.split("+"), centroids, strict=True):
        head, *rest = part.split(";")
        name, _, value = head.partition(":")
        n = int(value) if value.isdigit() else 0
        options = dict(pair.split("=") for pair in rest)
        if name == "topk":
            kept |= set(sorted(candidates, key=lambda j: (-scores[j], j))[:n])
        elif name == "botk":
            kept |= set(sorted(candidates, key=lambda j: (scores[j], j))[:n])
        elif name == "banded" and options.get("ends") == "shift":
            band = shifted_band(n, query, [keys[j] for j in candidates]) if candidates else []
            kept |= {j for j in candidates if keys[j] in band}
        elif name == "topp":
            kept |= nucleus(value, scores, candidates)
        elif name == "lsh":
            rounds, seed = range(int(options["rounds"])), int(options["seed"])
            own = [bucket(vector, n, turn, seed) for turn in rounds]
            kept |= {j for j in candidates if keys[j] == query}
            kept |= {j for j in candidates if any(bucket(key_vectors[j], n, t, seed) == own[t] for t in rounds)}
        elif name == "cluster":
            assert learnt is not None
            kept |= {j for j in candidates if nearest(key_vectors[j], learnt) == nearest(vector, learnt)}
        elif name == "random":
            seed = int(options.get("seed", 0))
            kept |= set(sorted(candidates, key=lambda j: (hash31(query, keys[j], seed), keys[j]))[:n])
        else:
            kept |= {j for j in candidates if follows(name, n, query, keys[j])}
    return kept


def positions(queries: int, valid: list[list[bool]]) -> tuple[list[int], list[int]]:
    """Positions of the queries (the last ones) and of the keys, from the first key that any query may see."""
    keys = len(valid[0])
    seen = [j for j in range(keys) if any(row[j] for row in valid)]
    first = seen[0] if seen else 0
    return [i + max(keys - queries, 0) - first for i in range(queries)], [j - first for j in range(keys)]


def attend(scores: list[float], kept: set[int], value: list[list[float]]) -> tuple[list[float], list[float]]:
    """Weights over all keys and output of one query: softmax over the kept keys, zero elsewhere."""
    top = max((scores[j] for j in kept), default=0.0)
    mass = {j: math.exp(scores[j] - top) for j in kept}
    total = sum(mass.values())
    weights = [mass[j] / total if j in kept else 0.0 for j in range(len(scores))]
    return weights, [sum(w * row[t] for w, row in zip(weights, value, strict=True)) for t in range(len(value[0]))]
