"""The programs of `isotherm.calibrate`: `python -m isotherm._calibration_subject measure [PID]` measures and prints
JSON; `... subject` is what it measures on. Not imported by the package, so that it is one module when it is run.
"""

import json
import sys

from isotherm import _isotherm

_MODULE = "isotherm._calibration_subject"


def _measure(words: list[str]) -> None:
    subject = (sys.executable, ["-m", _MODULE, "subject"])
    try:
        print(_isotherm._calibrate(subject, int(words[0]) if words else None))
    except _isotherm.IsothermError as error:
        print(json.dumps({"error": str(error), "exception": type(error).__name__}))


if __name__ == "__main__":
    if sys.argv[1] == "subject":
        _isotherm._be_calibration_subject()
    else:
        _measure(sys.argv[2:])
