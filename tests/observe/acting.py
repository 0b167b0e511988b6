"""The overlay that acts takes --dry-run out of the DaemonSet and nothing else, and Isotherm's own container has no token.

There is no kustomize here: its patch (RFC 6902) is applied by hand, `test` and `remove` being all that it needs.
"""

import copy
import sys
from pathlib import Path

import yaml

folder = Path("contrib/kubernetes")
documents = list(yaml.safe_load_all((folder / "base/daemonset.yaml").read_text()))
overlay = yaml.safe_load((folder / "acting/kustomization.yaml").read_text())
assert overlay["resources"] == ["../base"]
(patch,) = overlay["patches"]
(daemon_set,) = [d for d in documents if d["kind"] == patch["target"]["kind"] and d["metadata"]["name"] == patch["target"]["name"]]


def container(of, name):
    (found,) = [c for c in of["spec"]["template"]["spec"]["containers"] if c["name"] == name]
    return found


def apply(of, operations):
    for operation in operations:
        *parents, last = operation["path"].strip("/").split("/")
        at = of
        for part in parents:
            at = at[int(part)] if isinstance(at, list) else at[part]
        key = int(last) if isinstance(at, list) else last
        if operation["op"] == "test":
            assert at[key] == operation["value"], (at[key], operation)
        else:
            assert operation["op"] == "remove"
            del at[key]


acting = copy.deepcopy(daemon_set)
apply(acting, yaml.safe_load(patch["patch"]))
before, after = (container(of, "isotherm")["args"] for of in (daemon_set, acting))
assert after == [a for a in before if a != "--dry-run"] and len(after) == len(before) - 1, after

spec = daemon_set["spec"]["template"]["spec"]
assert spec["automountServiceAccountToken"] is False
holders = [c["name"] for c in spec["containers"] if any(m["name"] == "token" for m in c.get("volumeMounts", []))]
assert holders == ["proxy", "api"], holders

recommending = list(yaml.safe_load_all((folder / "recommend/recommend.yaml").read_text()))
(spec,) = [d["spec"]["template"]["spec"] for d in recommending if d["kind"] == "Deployment"]
assert spec["automountServiceAccountToken"] is False
holders = [c["name"] for c in spec["containers"] if any(m["name"] == "token" for m in c.get("volumeMounts", []))]
assert holders == ["api"], holders
resizing = yaml.safe_load((folder / "resize/kustomization.yaml").read_text())
tests = [of for of in yaml.safe_load(resizing["patches"][0]["patch"]) if of["op"] == "test"]
assert [container({"spec": {"template": {"spec": spec}}}, "isotherm")["args"][2]] == [of["value"] for of in tests]
sys.exit(0)
