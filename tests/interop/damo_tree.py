"""damo_tree.py CONFIGURATION PLAN: whether damo writes the same into DAMON's tree as a plan of ours says.

damo is told of a tree that has every file; what it writes there is noted instead. What it leaves as it is (a kernel's
default) may stand in the plan as well.
"""
import importlib.util
import json
import os
import sys

import yaml

sys.path.insert(0, os.path.dirname(importlib.util.find_spec("damo").origin))
import _damo_fs as damo_fs  # noqa: E402
import _damon as damon  # noqa: E402
import _damon_sysfs as damon_sysfs  # noqa: E402

ROOT = "/fake"
# Files that no kernel has yet, or that we do not write.
OTHERS = ("operations_attrs", "/probes/", "/sample/", "/complement", "/refresh_ms", "/filters/")
U32 = 2**32 - 1
written = {}


def note(path, content):
    written[os.path.relpath(path, ROOT)] = content.strip()


def theirs(path):
    with open(path) as file:
        text = file.read()
    pairs = json.loads(text) if text.startswith("{") else yaml.safe_load(text)
    kdamonds = [damon.Kdamond.from_kvpairs(kdamond) for kdamond in pairs["kdamonds"]]
    damo_fs.write_file = note
    damo_fs.read_file = lambda path: ("-1", None)
    os.path.isfile = os.path.isdir = lambda path: str(path).startswith(ROOT)
    error = damon_sysfs.write_kdamonds_dir(ROOT + "/kdamonds", kdamonds)
    if error is not None:
        sys.exit(f"damo: {error}")
    return {path: text for path, text in written.items() if not any(part in "/" + path for part in OTHERS)}


def plain(path, text):
    """Numbers that the kernel takes for the same, and its two ways to say yes."""
    name = os.path.basename(path)
    if "access_pattern/nr_accesses" in path:
        # More than all checks cannot be: 100 % and "max" are the same.
        intervals = path.split("/schemes/")[0] + "/monitoring_attrs/intervals/"
        return str(min(int(text), int(written[intervals + "aggr_us"]) // int(written[intervals + "sample_us"])))
    if "access_pattern/age" in path:
        return str(min(int(text), U32))
    if name == "reset_interval_ms":
        # Nanoseconds are counted here: more than 584 years are as good as for ever.
        return str(min(int(text), 2**64 // 10**6))
    if name in ("obsolete_target", "pause", "matching", "allow"):
        return {"1": "Y", "0": "N"}.get(text, text)
    return text


def ours(path):
    with open(path) as file:
        return dict(line.rstrip("\n").split(" ", 1) for line in file)


wanted, found = theirs(sys.argv[1]), ours(sys.argv[2])
wrong = [
    f"{path}: {plain(path, text)} by damo, {plain(path, found[path]) if path in found else 'nothing'} by us"
    for path, text in wanted.items()
    # Missing values are those of a new directory.
    if (path not in found and text not in ("", "0")) or plain(path, text) != plain(path, found.get(path, text))
]
print("\n".join(wrong))
sys.exit(bool(wrong) or not wanted)
