#!/usr/bin/env python3
"""How right a report of idle memory by stack is: check.py BLAME.json TRUTH.json. Tests: `python3 -m doctest check.py`.

BLAME.json is what `isotherm report blame --json` wrote, TRUTH.json the line that a program of
programs/ printed. A stack is a pool's if the pool's function is named in any frame; if those of several pools are, the
innermost one's. Prints a table and one line of JSON:

    accuracy   which part of the bytes of idle pools has the right name: sum of min(attributed, true) / sum of true
    touched_accuracy
               the same of what was touched first while the pool was built, true being min(bytes, touched): what an
               allocator had before is left out, since no stack of a first touch can name who has it now
    over       bytes attributed to idle pools beyond what they have
    hot        bytes attributed to pools that are hot: wrong, they are not idle
    nobody     bytes of no pool: the language's runtime, churn_*, and stacks that end too early
"""

import json
import re
import sys
from pathlib import Path


def words(name):
    """The identifiers of a name, whatever the language puts between them.

    >>> words("(anonymous namespace)::Built search::index_build<unsigned long>(unsigned long)")[2:5]
    ['Built', 'search', 'index_build']
    >>> words("Pools$Touch Pools.indexBuild(long)")
    ['Pools', 'Touch', 'Pools', 'indexBuild', 'long']
    >>> words("LPools$SessionCache;::fill")
    ['Pools', 'SessionCache', 'fill']
    >>> words("py::SessionCache.fill:/srv/index_build/pools.py"), words("py::_find:<frozen importlib._bootstrap>")
    (['SessionCache', 'fill'], ['_find'])
    >>> words("index_build (/srv/pools.py)")
    ['index_build']
    """
    if python := re.fullmatch(r"py::(.*?):[/<].*|(.*?) \([/<].*\)", name):
        name = python[1] or python[2]
    name = re.sub(r"\bL([\w/$]+);", r"\1", name)
    return re.findall(r"\w+", name)


def names(frame, function):
    """Whether a frame is of the function, in the middle of whatever else its name says.

    >>> names("pools::index_build::<u64>", "index_build"), names("index_build.constprop.0", "index_build")
    (True, True)
    >>> names("reindex_build", "index_build"), names("index_build_all", "index_build")
    (False, False)
    >>> names("main.(*sessionCache).fill", "main.(*sessionCache).fill"), names("<[u64]>::fill", "SessionCache::fill")
    (True, False)
    >>> names("Pools$SessionCache.fill", "Pools.SessionCache.fill"), names("main.imageDecode.func1", "main.imageDecode")
    (True, True)
    >>> names("media::Image::Image(unsigned long)", "Image::Image"), names("media::Image::~Image()", "Image::Image")
    (True, False)
    """
    if "~" in frame and "~" not in function:
        frame = re.sub(r"~\w+", "~", frame)
    of_frame, wanted = words(frame), words(function)
    return any(of_frame[at : at + len(wanted)] == wanted for at in range(len(of_frame) - len(wanted) + 1))


def pool_of(stack, functions):
    """The function of a pool that is nearest to the innermost frame.

    >>> pool_of(["main", "a", "b", "malloc"], ["a", "b"]), pool_of(["main", "malloc"], ["a", "b"])
    ('b', None)
    """
    for frame in reversed(stack):
        for function in functions:
            if names(frame, function):
                return function
    return None


def check(blame, truth):
    """
    >>> truth = {"language": "c", "pools": [
    ...     {"function": "a", "bytes": 100, "touched": 101, "idle": True, "thread": "main"},
    ...     {"function": "b", "bytes": 300, "touched": 200, "idle": True, "thread": "main"},
    ...     {"function": "c", "bytes": 50, "touched": 50, "idle": False, "thread": "main"}]}
    >>> blame = [{"stack": ["main", "a"], "bytes": 120}, {"stack": ["main", "b", "malloc"], "bytes": 180},
    ...     {"stack": ["main", "c"], "bytes": 5}, {"stack": ["main", "d"], "bytes": 7},
    ...     {"stack": [], "bytes": 1}]
    >>> result = check(blame, truth)
    >>> {key: result[key] for key in ("accuracy", "true", "right", "over", "hot", "nobody")}
    {'accuracy': 0.7, 'true': 400, 'right': 280, 'over': 20, 'hot': 5, 'nobody': 8}
    >>> {key: result[key] for key in ("touched_accuracy", "touched", "right_touched")}
    {'touched_accuracy': 0.9333, 'touched': 300, 'right_touched': 280}
    >>> check([], truth)["accuracy"], check([], truth)["touched_accuracy"]
    (0.0, 0.0)

    Of a pool that was built in memory of others alone nothing has to be found:

    >>> truth["pools"][1]["touched"] = 0
    >>> check([{"stack": ["a"], "bytes": 99}], truth)["touched_accuracy"]
    0.99
    """
    pools = [{**pool, "attributed": 0} for pool in truth["pools"]]
    by_function = {pool["function"]: pool for pool in pools}
    nobody = 0
    for entry in blame:
        function = pool_of(entry["stack"], by_function)
        if function is None:
            nobody += entry["bytes"]
        else:
            by_function[function]["attributed"] += entry["bytes"]
    idle = [pool for pool in pools if pool["idle"]]
    true = sum(pool["bytes"] for pool in idle)
    right = sum(min(pool["attributed"], pool["bytes"]) for pool in idle)
    touched = sum(min(pool["bytes"], pool["touched"]) for pool in idle)
    right_touched = sum(min(pool["attributed"], pool["bytes"], pool["touched"]) for pool in idle)
    return {
        "language": truth["language"],
        "accuracy": round(right / true, 4),
        "touched_accuracy": round(right_touched / touched, 4),
        "true": true,
        "right": right,
        "touched": touched,
        "right_touched": right_touched,
        "over": sum(pool["attributed"] for pool in idle) - right,
        "hot": sum(pool["attributed"] for pool in pools if not pool["idle"]),
        "nobody": nobody,
        "pools": pools,
    }


def mib(size):
    return f"{size / (1 << 20):.1f}"


def table(result):
    """
    >>> print(table(check([{"stack": ["f"], "bytes": 1 << 20}], {"language": "c", "pools": [
    ...     {"function": "f", "bytes": 2 << 20, "touched": 1 << 20, "idle": True, "thread": "main"}]})))
    function  pool  true MiB  touched MiB  idle MiB attributed  part
    f         idle       2.0          1.0                  1.0   50%
    (nobody)  -          0.0          0.0                  0.0
    """
    rows = [
        (pool["function"], "idle" if pool["idle"] else "hot", pool["bytes"], pool["touched"], pool["attributed"])
        for pool in result["pools"]
    ]
    rows.append(("(nobody)", "-", 0, 0, result["nobody"]))
    width = max(len(row[0]) for row in rows)
    lines = [f"{'function':{width}}  pool  {'true MiB':>8}  {'touched MiB':>11}  idle MiB attributed  part"]
    for function, kind, true, touched, attributed in rows:
        part = f"{attributed / true:5.0%}" if kind == "idle" else ""
        sizes = f"{mib(true):>8}  {mib(touched):>11}  {mib(attributed):>19}"
        lines.append(f"{function:{width}}  {kind:4}  {sizes} {part}".rstrip())
    return "\n".join(lines)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: check.py BLAME.json TRUTH.json")
    report, truth = (json.loads(Path(path).read_text()) for path in sys.argv[1:])
    found = check(report["stacks"], truth)
    print(table(found))
    print(json.dumps(found))
