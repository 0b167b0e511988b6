"""Tuning and spaces: the command's numbers, as values; and searches of others over the same replays."""

import importlib
import importlib.util
import json
import os
import pickle
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import isotherm
from conftest import command

PARAMS = ["age=1s..20s:6", "size=4K,2M"]


@pytest.fixture(scope="module")
def space() -> isotherm.Space:
    return isotherm.Space(presets=["prcl"], params=PARAMS, max_slowdown="5%")


def test_tuning_is_the_commands(trace: isotherm.Record, trace_path: Path) -> None:
    params = [word for param in PARAMS for word in ("--param", param)]
    printed = command("tune", trace_path, "--preset", "prcl", "--max-slowdown", "5%", *params, "--json")
    assert printed.returncode == 0, printed.stderr
    seen: list[tuple[int, int]] = []
    tuned = isotherm.tune(
        trace, presets=["prcl"], params=PARAMS, max_slowdown="5%", progress=lambda *nr: seen.append(nr)
    )
    assert tuned.to_dict() == json.loads(printed.stdout)
    assert seen[-1] == (12, 12)
    assert isinstance(tuned, isotherm.Report)
    assert tuned.kind == "tune"
    assert "recommended" in str(tuned)
    assert "<svg" in tuned.to_html()
    assert tuned._repr_html_().startswith("<iframe")
    alone = isotherm.tune(trace_path, presets=["prcl"], params=PARAMS, max_slowdown="5%", jobs=1)
    assert alone.to_json() == tuned.to_json()


@pytest.mark.parametrize(
    ("words", "keywords"),
    [
        (["--objective", "damoos", "--budget", "5", "--seed", "3"], {"objective": "damoos", "budget": 5, "seed": 3}),
        (["--max-memory", "90%", "--no-guard"], {"max_memory": "90%", "guard": False}),
        (["--price", "dram=3.5,cpu=20"], {"prices": {"dram": 3.5, "cpu": 20}}),
        (["--objective", "damoos", "--method", "damoos-grid"], {"objective": "damoos", "method": "damoos-grid"}),
        (["--far", "64M,300ns", "--memory-bound", "20%"], {"far": "64M,300ns", "memory_bound": "20%"}),
    ],
)
def test_what_is_sought_is_the_commands(trace_path: Path, words: list[str], keywords: dict[str, Any]) -> None:
    printed = command("tune", trace_path, "--preset", "prcl", "--param", "age=1s..20s:6", *words, "--json")
    tuned = isotherm.tune(trace_path, presets=["prcl"], params=["age=1s..20s:6"], **keywords)
    assert tuned.to_dict() == json.loads(printed.stdout), printed.stderr


def test_far_memory_is_part_of_a_space(trace: isotherm.Record, space: isotherm.Space) -> None:
    demote = "4K max 0 0 5s max migrate_cold 1"
    keywords: dict[str, Any] = {"schemes": [demote], "params": ["age=1s..20s:3"]}
    far = isotherm.Space(**keywords, far="64M", memory_bound=0.2)
    near = isotherm.Space(**keywords)
    assert far != near
    assert far.fingerprint != near.fingerprint
    again = pickle.loads(pickle.dumps(far))
    assert again == far
    predicted = isotherm.Replays(trace, again).predict(0)
    assert predicted["far_mean_bytes"] > 0
    replayed = isotherm.simulate(trace, far.spec(0), far="64M", memory_bound=0.2)
    assert replayed["schemes"][0]["applied_bytes"] > 0
    with pytest.raises(isotherm.SimulationError, match="a machine of one"):
        isotherm.Replays(trace, near).predict(0)
    with pytest.raises(ValueError, match="belong together"):
        isotherm.Space(**keywords, far="64M")
    with pytest.raises(ValueError, match="a node has some memory"):
        isotherm.simulate(trace, far="0", memory_bound=0.2)


def test_what_is_found_can_be_run(trace: isotherm.Record, tmp_path: Path) -> None:
    tuned = isotherm.tune(trace, presets=["prcl"], params=PARAMS, max_slowdown="5%")
    best = tuned.to_dict()["recommended"]
    assert best is not None
    written = tmp_path / "tuned.yaml"
    written.write_text(tuned.configuration())
    assert isotherm.check(written.read_text())["schemes"] == 1
    assert json.loads(tuned.configuration(format="json"))["kdamonds"]
    spec = tuned.spec()
    assert spec == isotherm.SessionSpec(config=tuned.configuration())
    assert spec.acts
    assert "pids" not in repr(spec)
    assert tuned.spec(pids=[os.getpid()]) != spec
    replayed = isotherm.simulate(trace, spec)
    assert replayed["schemes"][0]["applied_bytes"] > 0
    none = isotherm.tune(trace, presets=["prcl"], params=["age=1s"], max_memory=4096)
    assert none["recommended"] is None
    with pytest.raises(isotherm.SimulationError, match="no setting is within the limit"):
        none.configuration()


def test_damo_reads_what_is_found(trace: isotherm.Record, monkeypatch: pytest.MonkeyPatch) -> None:
    damo = importlib.util.find_spec("damo")
    if damo is None or damo.origin is None:
        pytest.skip("damo is not installed")
    monkeypatch.syspath_prepend(Path(damo.origin).parent)
    damon: Any = importlib.import_module("_damon")
    yaml: Any = importlib.import_module("yaml")
    tuned = isotherm.tune(trace, presets=["prcl"], params=PARAMS, max_slowdown="5%")
    best = tuned.to_dict()["recommended"]
    assert best is not None
    texts = [tuned.configuration(format="json"), tuned.configuration()]
    for pairs in (json.loads(texts[0]), yaml.safe_load(texts[1])):
        (kdamond,) = pairs["kdamonds"]
        read = damon.Kdamond.from_kvpairs(kdamond).contexts[0].schemes[0]
        assert read.action == "pageout"
        settings = {setting["parameter"]: setting["value"] for setting in best["settings"]}
        assert read.access_pattern.sz_bytes[0] == settings["size"]
        assert read.access_pattern.age_min_max[0].usec == settings["age"] // 1000


def test_what_is_asked_for_wrongly_is_said(trace: isotherm.Record, record: isotherm.Record, tmp_path: Path) -> None:
    with pytest.raises(isotherm.SpecError, match="nothing to tune"):
        isotherm.tune(trace)
    with pytest.raises(isotherm.SpecError, match="there is no 'colour' to tune"):
        isotherm.tune(trace, presets=["prcl"], params=["colour=1..2"])
    with pytest.raises(isotherm.SpecError, match="no part of this objective"):
        isotherm.tune(trace, presets=["prcl"], objective="memory", max_memory="60%")
    with pytest.raises(ValueError, match="no objective"):
        isotherm.tune(trace, presets=["prcl"], objective="speed")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no price"):
        isotherm.tune(trace, presets=["prcl"], prices={"dram": -1})
    with pytest.raises(isotherm.SimulationError, match="regions cannot be replayed"):
        isotherm.tune(record, presets=["prcl"])
    with pytest.raises(isotherm.RecordError) as missing:
        isotherm.tune(tmp_path / "nothing", presets=["prcl"])
    assert isinstance(missing.value.__cause__, FileNotFoundError)
    journal = tmp_path / "journal"
    isotherm.tune(trace, presets=["prcl"], params=["age=1s,2s"], resume=journal)
    with pytest.raises(isotherm.SimulationError, match="other options"):
        isotherm.tune(trace, presets=["prcl"], params=["age=1s,2s"], seed=7, resume=journal)


BATCH = 16
"""Settings that a search tries before it chooses the next (crates/tune/src/search.rs)."""


def test_ctrl_c_ends_a_search_and_a_journal_goes_on_with_it(trace: isotherm.Record, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    params = ["age=1s..30s", "size=4K..16M", "rate"]
    keywords: dict[str, Any] = {"presets": ["prcl"], "params": params, "resume": journal}
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    began = time.monotonic()
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        isotherm.tune(trace, budget=100_000, **keywords)
    assert time.monotonic() - began < 5
    known = len(journal.read_text().splitlines()) - 1
    assert known > 0

    class Enough(Exception):
        pass

    def enough(done: int, most: int) -> None:
        assert most >= known
        if done >= known:
            raise Enough

    # The same search asks for the same settings in the same order: they are taken from the journal.
    with pytest.raises(Enough):
        isotherm.tune(trace, budget=100_000, progress=enough, **keywords)
    assert len(journal.read_text().splitlines()) - 1 - known <= BATCH


def test_a_space_is_a_value(space: isotherm.Space) -> None:
    assert len(space) == 12
    assert space.parameters == {"age": ["1 s", "1.8 s", "3.2 s", "6.5 s", "11 s", "20 s"], "size": ["4 KiB", "2 MiB"]}
    assert space.point([1, 1]) == 3
    assert space.settings(3) == {"age": "1.8 s", "size": "2 MiB"}
    assert space.label(3) == "age 1.8 s, size 2 MiB"
    assert "1.800 s" in space.configuration(3)
    assert space.spec(3).schemes[0].size == (2 << 20, (1 << 64) - 1)
    copy = pickle.loads(pickle.dumps(space))
    assert copy == space
    assert copy.fingerprint == space.fingerprint
    others = [
        isotherm.Space(presets=["prcl"], params=["age=1s..20s:5"], max_slowdown="5%"),
        isotherm.Space(presets=["prcl"], params=PARAMS),
        isotherm.Space(presets=["prcl"], params=PARAMS, guard=False),
        isotherm.Space(presets=["prcl"], params=PARAMS, max_slowdown="5%", seed=2),
    ]
    by_regions = isotherm.Space(presets=["prcl"], params=PARAMS, max_slowdown="5%", faithful=True)
    assert by_regions.spec(0) == isotherm.SessionSpec(config=by_regions.configuration(0), faithful=True)
    assert len({by_regions.fingerprint, space.fingerprint, *(other.fingerprint for other in others)}) == 6
    scheme = isotherm.Scheme.preset("prcl")[0]
    line = "4K max 0 0 5s max pageout"
    assert len(isotherm.Space(schemes=[scheme, line], params=["age=1s,2s"]).spec(0).schemes) == 2
    usual = isotherm.Space(presets=["prcl"]).parameters
    assert (usual["age"][0], usual["age"][-1]) == ("2 s", "2 min")
    for wrong in [[0], [0, 2], [6, 0]]:
        with pytest.raises(IndexError, match="place for each parameter"):
            space.point(wrong)
    with pytest.raises(IndexError, match="has 12"):
        space.label(12)
    with pytest.raises(isotherm.SpecError, match="no space"):
        isotherm.Space.from_json("{}")


def test_replays_predict_what_tuning_does(trace: isotherm.Record, space: isotherm.Space) -> None:
    tuned = isotherm.tune(trace, presets=["prcl"], params=PARAMS, max_slowdown="5%").to_dict()
    replays = isotherm.Replays(trace, space)
    assert replays.base == tuned["base"]
    assert replays.program == "program"
    for point, tried in enumerate(tuned["tried"]):
        assert space.label(point) == tried["settings"]
        assert replays.predict(point)["saved_share"]["value"] == tried["saved_share"]["value"]
    sure = replays.predict(0, bounds=True)["slowdown"]
    low, high = sure.get("low"), sure.get("high")
    assert low is not None
    assert high is not None
    assert low <= sure["value"] <= high


def test_optuna_searches_through_its_own_interface(trace_path: Path, space: isotherm.Space) -> None:
    optuna = pytest.importorskip("optuna")
    from isotherm import optuna as searches  # noqa: PLC0415

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    objective = pickle.loads(pickle.dumps(searches.objective(trace_path, space)))
    study = optuna.create_study(directions=searches.DIRECTIONS, sampler=optuna.samplers.RandomSampler(seed=1))
    study.optimize(objective, n_trials=8)
    for trial in study.trials:
        point = space.point(list(trial.params.values()))
        assert trial.user_attrs["point"] == point
        assert trial.user_attrs["settings"] == space.label(point)
    assert study.best_trials
    limited = searches.objective(trace_path, space, max_slowdown=1e-9)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.RandomSampler(seed=1))
    study.optimize(limited, n_trials=4)
    assert any(searches.constraints(trial)[0] > 0 for trial in study.trials)


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, trace_path: Path, space: isotherm.Space) -> None:
    import sys  # noqa: PLC0415

    from isotherm import optuna, ray  # noqa: PLC0415

    for name in ("optuna", "ray", "ray.tune", "pyarrow"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r"pip install 'isotherm\[optuna\]'"):
        optuna.objective(trace_path, space)
    with pytest.raises(ImportError, match=r"pip install 'isotherm\[ray\]'"):
        ray.trainable(trace_path, space)
    with pytest.raises(ImportError, match=r"pip install 'isotherm\[sweep\]'"):
        isotherm.sweep([trace_path], space)


def test_costs_are_measured_beside_threads_that_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONWARNINGS", "error")
    busy = threading.Event()

    def work() -> None:
        while not busy.is_set():
            sum(range(1000))

    worker = threading.Thread(target=work)
    worker.start()
    try:
        measured = isotherm.calibrate()
    except isotherm.PrivilegeError as error:
        pytest.skip(f"costs cannot be measured here: {error}")
    finally:
        busy.set()
        worker.join()
    assert measured.get("cpus") == os.cpu_count()
    assert measured.get("content_pages") == 0
    fault = measured.get("minor_fault_ns")
    assert fault is not None
    assert 10 < fault["min"] <= fault["median"] <= fault["max"] < 1e6
    with pytest.raises(isotherm.SessionError):
        isotherm.calibrate(pid=2**30)
