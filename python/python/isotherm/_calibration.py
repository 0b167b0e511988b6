"""What acting costs on this machine, measured in a process of its own.

CPU time of acting is counted for a whole process, so whatever else this program's threads do would be counted with
it; and what is measured on is a child that must hold nothing else. So an interpreter is started that measures, and that
starts one to measure on (`_calibration_subject.py`).
"""

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

from isotherm import _isotherm

if TYPE_CHECKING:
    from isotherm import results

_MODULE = "isotherm._calibration_subject"


def calibrate(*, pid: int | None = None) -> "results.Calibration":
    """Measures what acting costs here, as `isotherm calibrate --json` says it: times in nanoseconds, each as least,
    median and most; None for what could not be measured, e.g. paging out without swap.

    `pid`: costs depend on what memory holds; pages of this process are copied for it, else made up. Takes some
    seconds, in processes of its own (`sys.executable`), and needs the privileges that the command needs (`isotherm
    doctor`): raises PrivilegeError, or SessionError.
    """
    if not sys.executable:
        raise _isotherm.SessionError("costs are measured by an interpreter of their own, and sys.executable names none")
    words = [sys.executable, "-m", _MODULE, "measure", *([str(pid)] if pid is not None else [])]
    # It finds this very package, wherever that came from.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, env=environment, check=False)
    try:
        said = json.loads(done.stdout)
    except ValueError:
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise _isotherm.SessionError(f"measuring has ended without a result ({done.returncode}): {last}") from None
    if "error" in said:
        raise getattr(_isotherm, said["exception"])(said["error"])
    measured: results.Calibration = said
    return measured
