"""Uses the package with nothing but the standard library: what every interpreter must be able to do."""

import pickle
import sys
import warnings

import isotherm

warnings.simplefilter("ignore", isotherm.IsothermWarning)
spec = isotherm.SessionSpec(simulated=True, faithful=True)
with isotherm.Session(spec, duration="300ms") as session:
    snapshots = list(session)
assert snapshots, "a live session yields snapshots"
assert len(snapshots[0]) > 0, "and these have regions"
assert pickle.loads(pickle.dumps(spec)) == spec
assert isotherm.check("4K max 0 0 5s max pageout")["schemes"] == 1
try:
    isotherm.Record.open(__file__)
    sys.exit("this file is no record")
except isotherm.RecordError:
    pass
print(f"isotherm {isotherm.__version__} on Python {sys.version.split()[0]}")
