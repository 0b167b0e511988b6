"""Schemes and sessions as values."""

import itertools
import pickle
from datetime import timedelta
from typing import Any

import pytest

import isotherm

LINE = "4K max 0 0 5s max pageout"


def test_a_scheme_is_a_line_or_damos_keys() -> None:
    scheme = isotherm.Scheme(LINE)
    assert scheme.action == "pageout"
    assert scheme.size[0] == 4096
    keys = scheme.to_dict()
    assert keys["action"] == "pageout"
    assert isotherm.Scheme.from_dict(keys) == scheme
    assert pickle.loads(pickle.dumps(scheme)) == scheme
    assert "pageout" in repr(scheme)
    for name in isotherm.presets():
        for scheme in isotherm.Scheme.preset(name):
            assert isotherm.Scheme.from_dict(scheme.to_dict()) == scheme, name


def test_a_scheme_can_be_varied() -> None:
    scheme = isotherm.Scheme(LINE)
    older = scheme.replace(min_age=timedelta(minutes=1), max_rate="5%")
    assert older == scheme.replace(min_age="1min", max_rate=0.05)
    assert older != scheme
    assert older.to_dict()["access_pattern"]["age"]["min"] == "1 m"
    with pytest.raises(isotherm.SpecError):
        scheme.replace(min_size="2 MiB", max_size="1 MiB")


@pytest.mark.parametrize("line", ["", "pageout", "4K max 0 0 5 max pageout", "4K max 0 0 5s max demote", "\0" * 9])
def test_a_wrong_line_is_refused(line: str) -> None:
    with pytest.raises(isotherm.SpecError):
        isotherm.Scheme(line)


def test_wrong_keys_are_refused() -> None:
    wrong: list[dict[str, Any]] = [{"action": "swap_out"}, {"colour": 1}, {"action": "stat", "quotas": 7}]
    for keys in wrong:
        with pytest.raises(isotherm.SpecError):
            isotherm.Scheme.from_dict(keys)
    with pytest.raises(isotherm.SpecError, match="there is no preset"):
        isotherm.Scheme.preset("nothing")


def test_a_spec_is_plain_data() -> None:
    spec = isotherm.SessionSpec(
        pids=[1234, "redis-server"],
        schemes=[isotherm.Scheme(LINE), "4K max 0 0 10s max cold"],
        max_slowdown="0.5%",
        cpu_budget=0.02,
        seed=7,
    )
    assert spec.acts
    assert [scheme.action for scheme in spec.schemes] == ["pageout", "cold"]
    assert isotherm.SessionSpec.from_json(spec.to_json()) == spec
    assert pickle.loads(pickle.dumps(spec)) == spec
    context = spec.to_dict()["contexts"][0]
    assert context["acting"]["limits"]["max_slowdown"] == 0.005
    assert spec.with_schemes([LINE]) != spec
    assert not isotherm.SessionSpec(simulated=True).acts
    assert "pageout" in repr(spec)


def test_a_configuration_is_read() -> None:
    config = '[{"action": "stat"}]'
    spec = isotherm.SessionSpec(config=config, pids=[1])
    assert [scheme.action for scheme in spec.schemes] == ["stat"]
    assert isotherm.SessionSpec(config=LINE).schemes == [isotherm.Scheme(LINE)]


WRONG: list[dict[str, Any]] = [
    {"all": True, "physical": True},
    {"pids": []},
    {"pids": [0]},
    {"pids": [-5]},
    {"schemes": []},
    {"schemes": ["nothing"]},
    {"schemes": [7]},
    {"presets": ["nothing"]},
    {"config": "{}"},
    {"config": "{kdamonds: ["},
    {"config": "a" * (5 << 20)},
    {"save": "1G", "keep_free": "5%", "presets": ["prcl"]},
    {"faithful": True, "pages": True},
    {"pages": True, "cpu_budget": "1%"},
    {"sample_interval": "5ms", "cpu_budget": "1%"},
    {"ranges": [(4096, 0)]},
    {"ranges": [(1, 4096)]},
    {"world": "mars"},
    {"simulated": True, "pages": True},
    {"regions": (100, 10), "sample_interval": "5ms"},
]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_what_does_not_fit_together_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(isotherm.SpecError) as error:
        isotherm.SessionSpec(**wrong)
    assert str(error.value)


def test_garbage_is_no_session() -> None:
    for text in ["", "{}", "[]", "null", '{"contexts": 7, "seed": 1}']:
        with pytest.raises(isotherm.SpecError):
            isotherm.SessionSpec.from_json(text)


def test_check_says_what_is_wrong_and_where() -> None:
    report = isotherm.check("kdamonds:\n- contexts:\n  - colour: 1\n")
    assert report["findings"][0]["severity"] == "error"
    assert report["findings"][0]["line"] == 3
    assert "colour" in str(report)
    fine = isotherm.check('[{"action": "stat"}]')
    assert (fine["schemes"], fine["findings"]) == (1, [])
    assert "fine" in str(fine)


def test_nothing_that_is_checked_panics() -> None:
    parts = ["{", "}", "[", "]", ":", "-", "kdamonds", '"action"', "4K", "max", "\n", "#", "&a", "*a", "\ufeff", "\0"]
    for words in itertools.product(parts, repeat=3):
        isotherm.check(" ".join(words))


def test_errors_are_a_tree() -> None:
    for error in [isotherm.RecordError, isotherm.SpecError, isotherm.SessionError, isotherm.SimulationError]:
        assert issubclass(error, isotherm.IsothermError)
    assert issubclass(isotherm.PrivilegeError, isotherm.SessionError)
    assert issubclass(isotherm.IsothermWarning, UserWarning)
