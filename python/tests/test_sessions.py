"""Live sessions: on a simulated process, which needs no privilege, and on a real one where there is any."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

import isotherm

SIMULATED = isotherm.SessionSpec(simulated=True, faithful=True)


def caught_signals() -> str:
    status = Path("/proc/self/status").read_text()
    return next(line for line in status.splitlines() if line.startswith("SigCgt"))


def nr_threads() -> int:
    return len(os.listdir("/proc/self/task"))


def test_snapshots_come_as_they_are_seen() -> None:
    before = nr_threads()
    with isotherm.Session(SIMULATED) as session:
        assert session.header["operations"] == "vaddr"
        first, second = next(session), next(session)
    assert first.end_ns <= second.end_ns
    assert first.start_ns < first.end_ns
    assert len(first) == pl.DataFrame(first).height > 0
    assert first.touched_bytes >= 0
    assert first.unknown_bytes == 0
    assert "target 0" in repr(first)
    assert session.ended
    assert nr_threads() == before


def test_a_snapshot_is_handed_out_without_a_copy() -> None:
    with isotherm.Session(SIMULATED) as session:
        snapshot = next(session)
    addresses = [pa.table(snapshot)["start"].chunk(0).buffers()[1].address for _ in range(2)]
    assert addresses[0] == addresses[1]
    array = pa.array(snapshot)
    assert array.field("start").buffers()[1].address == addresses[0]
    assert pa.schema(snapshot).names == pa.table(snapshot).column_names
    del snapshot
    gc.collect()
    assert len(array) > 0, "what was handed out is kept by who has it"


def test_it_ends_when_its_time_is_up_and_stays_ended() -> None:
    session = isotherm.Session(SIMULATED, duration="400ms")
    snapshots = list(session)
    assert snapshots
    assert session.ended
    assert list(session) == []
    session.close()
    session.close()
    assert "ended" in repr(session)


def test_a_session_that_nobody_closes_ends_with_its_object() -> None:
    before = nr_threads()
    session = isotherm.Session(SIMULATED)
    next(session)
    del session
    gc.collect()
    assert nr_threads() == before


def test_the_programs_signals_are_its_own() -> None:
    before = caught_signals()
    with isotherm.Session(SIMULATED) as session:
        next(session)
        assert caught_signals() == before


def test_ctrl_c_ends_waiting_for_a_snapshot() -> None:
    slow = isotherm.SessionSpec(simulated=True, sample_interval="5s", aggregation_interval="100s")
    with isotherm.Session(slow) as session:
        timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
        began = time.monotonic()
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            next(session)
        assert time.monotonic() - began < 5


def test_it_can_be_closed_while_another_thread_waits() -> None:
    slow = isotherm.SessionSpec(simulated=True, sample_interval="5s", aggregation_interval="100s")
    session = isotherm.Session(slow)
    seen: list[isotherm.Snapshot] = []
    thread = threading.Thread(target=lambda: seen.extend(session))
    thread.start()
    time.sleep(0.2)
    session.close()
    thread.join(timeout=10)
    assert not thread.is_alive()


def test_a_spec_without_targets_is_for_simulations() -> None:
    with pytest.raises(isotherm.SpecError, match="nothing to watch"):
        isotherm.Session(isotherm.SessionSpec())


def test_who_is_not_there_is_not_watched() -> None:
    with pytest.raises(isotherm.SessionError):
        isotherm.Session(isotherm.SessionSpec(pids=["no-such-program"]))
    with pytest.raises(isotherm.SessionError):
        isotherm.Session(isotherm.SessionSpec(cgroup="/no/such/group"))


def run(code: str, *before: str) -> subprocess.CompletedProcess[str]:
    words = [*before, sys.executable, "-c", code]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)


WATCH_ME = """
import isotherm, os
try:
    isotherm.Session(isotherm.SessionSpec(pids=[os.getppid()]))
except isotherm.PrivilegeError as error:
    print("PrivilegeError:", error)
"""


def test_without_privilege_it_says_what_is_lacking() -> None:
    without = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []
    done = run(WATCH_ME, *without)
    assert done.returncode == 0, done.stderr
    assert "PrivilegeError: page tables cannot be read here: without CAP_" in done.stdout


def test_a_program_may_end_with_a_session_open() -> None:
    code = "import isotherm; s = isotherm.Session(isotherm.SessionSpec(simulated=True)); next(s); print('seen')"
    done = run(code)
    assert (done.returncode, done.stdout) == (0, "seen\n"), done.stderr


def test_a_fork_does_not_wait_for_a_thread_that_it_has_not() -> None:
    code = """
import isotherm, os, warnings
warnings.simplefilter("ignore")
session = isotherm.Session(isotherm.SessionSpec(simulated=True))
next(session)
child = os.fork()
if child == 0:
    session.close()
    os._exit(0)
print(os.waitpid(child, 0)[1])
session.close()
"""
    done = run(code)
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr


HOG = """
import time
memory = bytearray(64 << 20)
print("ready", flush=True)
while True:
    for at in range(0, 8 << 20, 4096):
        memory[at] += 1 if memory[at] < 255 else -255
    time.sleep(0.01)
"""


def test_a_real_process_is_watched() -> None:
    with subprocess.Popen([sys.executable, "-c", HOG], stdout=subprocess.PIPE, text=True) as hog:
        try:
            assert hog.stdout is not None
            hog.stdout.readline()
            try:
                session = isotherm.Session(isotherm.SessionSpec(pids=[hog.pid]), duration="20s")
            except isotherm.SessionError as error:
                pytest.skip(str(error))
            with session:
                for snapshot in session:
                    assert snapshot.pid == hog.pid
                    resident = snapshot.resident_bytes
                    assert resident is not None
                    if resident > 64 << 20 and 8 << 20 <= snapshot.touched_bytes < 40 << 20:
                        break
                else:
                    pytest.fail("what the program uses was not seen within 20 s")
            assert snapshot.name is not None
            hog.kill()
        finally:
            hog.kill()
