"""damo_config.py THEIRS OURS: whether damo makes the same of two configurations, ends aside.

damo keeps "max" as 2^64 - 1 of whatever unit it stood in; ours is the end of what is meant: 100 %, or
2^64 - 1 of the key's own unit.
"""
import difflib
import importlib.util
import json
import os
import re
import sys

import yaml

sys.path.insert(0, os.path.dirname(importlib.util.find_spec("damo").origin))
import _damon as damon  # noqa: E402


def read(path):
    with open(path) as file:
        text = file.read()
    pairs = json.loads(text) if text.startswith("{") else yaml.safe_load(text)
    kdamonds = [damon.Kdamond.from_kvpairs(kdamond) for kdamond in pairs["kdamonds"]]
    text = "\n".join(kdamond.to_str(True, params_only=True) for kdamond in kdamonds)
    text = re.sub(r"18446744073709551616 %", "100 %", text)
    return re.sub(r"18446744073709551615(000)*", "max", text).splitlines()


theirs, ours = read(sys.argv[1]), read(sys.argv[2])
print("\n".join(difflib.unified_diff(theirs, ours, *sys.argv[1:3], lineterm="")))
sys.exit(theirs != ours)
