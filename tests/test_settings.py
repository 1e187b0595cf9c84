from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from reason_spec.errors import SettingsError
from reason_spec.settings import Settings, load_settings


@pytest.fixture(autouse=True)
def no_settings_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STRATEGY__DEPTH", "SAMPLING__SEED"):
        monkeypatch.delenv(f"REASON_SPEC_{name}", raising=False)


def write(folder: Path, text: str) -> Path:
    path = folder / "settings.yaml"
    path.write_text(text)
    return path


def test_flags_beat_the_environment_which_beats_the_file_which_beats_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path, "strategy: {depth: 1, width: 2, step_max_tokens: 3}")
    monkeypatch.setenv("REASON_SPEC_STRATEGY__DEPTH", "5")
    monkeypatch.setenv("REASON_SPEC_STRATEGY__WIDTH", "6")
    settings = load_settings(file, {"strategy.depth": 9})
    assert settings.strategy.depth == 9
    assert settings.strategy.width == 6
    assert settings.strategy.step_max_tokens == 3
    assert settings.strategy.name == Settings().strategy.name


def test_none_takes_a_value_of_the_file_back(tmp_path: Path) -> None:
    file = write(tmp_path, "{router: {threshold: 0.3}, exit: {threshold: 0.5}}")
    settings = load_settings(file, {"router.threshold": None, "exit": {"threshold": None}})
    assert (settings.router.threshold, settings.exit.threshold) == (None, None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("strategy: {dpeth: 1}", "unknown setting 'strategy.dpeth'.*known here: acceptance, .*depth"),
        ("startegy: {depth: 1}", "unknown setting 'startegy'.*known here: boundary"),
        ("strategy: {depth: -1}", "strategy.depth = -1"),
        ("sampling: {top_p: 0}", "sampling.top_p = 0"),
        ("sampling: {stop: ['']}", "a stop string is empty"),
        ("target: {cores: [0, 1]}\ndraft: {cores: [1]}", "share \\[1\\]"),
        ("server: {drain_seconds: .inf}", "server.drain_seconds = inf.*finite"),
        ("server: {request_timeout: .nan}", "server.request_timeout = nan"),
        ("- a list", "must hold a mapping"),
        ("a: [", "cannot be read"),
    ],
)
def test_a_bad_settings_file_is_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        load_settings(write(tmp_path, text))


@pytest.mark.parametrize("word", ["on", "off"])
def test_on_and_off_are_words_in_a_settings_file(tmp_path: Path, word: str) -> None:
    file = write(tmp_path, f"load_control: {{use: {word}}}")
    assert load_settings(file).load_control.use == word


def test_a_bad_value_is_traced_to_where_it_came_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REASON_SPEC_STRATEGY__DEPTH", "many")
    with pytest.raises(SettingsError, match=r"strategy\.depth = 'many' \(from the environment\)"):
        load_settings()
    monkeypatch.delenv("REASON_SPEC_STRATEGY__DEPTH")
    with pytest.raises(SettingsError, match=r"from the settings file '.*settings\.yaml'"):
        load_settings(write(tmp_path, "strategy: {depth: 1000}"))


def test_settings_of_every_section_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for section in Settings.model_fields:
        monkeypatch.setenv(f"REASON_SPEC_{section.upper()}__NONE", "1")
        with pytest.raises(
            SettingsError, match=rf"unknown setting '{section}\.none' \(from the environment\)"
        ):
            load_settings()
        monkeypatch.delenv(f"REASON_SPEC_{section.upper()}__NONE")
    monkeypatch.setenv("REASON_SPEC_SUFFIX__PATH", "kept")
    assert load_settings().suffix.path == Path("kept")


@pytest.mark.parametrize("name", ["REASON_SPEC_STRATGY__DEPTH", "REASON_SPEC_DEPTH"])
def test_a_misspelt_environment_variable_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "3")
    with pytest.raises(SettingsError, match=name):
        load_settings()


def test_an_unknown_setting_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"did you mean 'depth'"):
        load_settings(write(tmp_path, "strategy: {dpeth: 1}"))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"target.vllm.token_method": "none"}, r"vllm\.\* is given and kind is 'torch'; set kind: vllm"),
        ({"draft.remote.base_urls": "http://a/v1"}, r"remote\.\* is given and kind is 'torch'"),
        ({"target.kind": "vllm", "target.torch.layers": "fused"}, r"torch\.\* is given and kind is 'vllm'"),
        ({"target.kind": "remote", "target.device": "cpu"}, "device has no effect .* kind 'remote'"),
        ({"target.kind": "scripted", "target.revision": "main"}, "revision has no effect"),
    ],
)
def test_settings_of_another_kind_of_engine_are_refused(flags: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        load_settings(flags=dict(flags))


@pytest.mark.parametrize("kind", ["torch", "vllm", "remote", "scripted"])
def test_printed_settings_of_every_kind_of_engine_are_read_again(kind: str) -> None:
    settings = load_settings(flags={"target.kind": kind})
    assert Settings.model_validate(yaml.safe_load(settings.to_yaml())) == settings


def test_a_section_as_a_whole_is_joined_with_its_single_settings() -> None:
    target = load_settings(flags={"target.model": "small", "target": {"dtype": "float32"}}).target
    assert (target.model, target.dtype) == ("small", "float32")


@pytest.mark.parametrize(
    "flags", [{"strategy": "hybrid", "strategy.depth": 3}, {"strategy.depth": 3, "strategy": "hybrid"}]
)
def test_a_value_in_the_place_of_a_section_is_refused_by_name(flags: dict[str, object]) -> None:
    with pytest.raises(SettingsError, match=r"^strategy = 'hybrid'"):
        load_settings(flags=flags)


def test_a_missing_settings_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"absent\.yaml' does not exist"):
        load_settings(tmp_path / "absent.yaml")


@given(depth=st.integers(0, 64), width=st.integers(1, 8), seed=st.integers(-(2**31), 2**31))
def test_settings_survive_a_round_trip_and_keep_their_hash(depth: int, width: int, seed: int) -> None:
    flags = {"strategy.depth": depth, "strategy.width": width, "sampling.seed": seed}
    settings = load_settings(flags=flags)
    again = Settings.model_validate(yaml.safe_load(settings.to_yaml()))
    assert again == settings
    assert again.hash == settings.hash


def test_a_server_may_move_and_its_runs_go_on() -> None:
    flags = [
        {"target.kind": "remote", "target.remote.base_urls": [f"http://{host}/v1"]} for host in ("a", "b:1")
    ]
    first, second = (load_settings(flags=dict(each)) for each in flags)
    assert first.hash == second.hash


def test_a_served_judge_or_reward_model_may_move_too_but_not_come_home() -> None:
    def hash_of(host: str) -> str:
        judge = {"kind": "remote", "remote": {"base_urls": f"http://{host}/v1"}}
        return load_settings(flags={"verifier.reward_url": f"http://{host}/v1", "verifier.judge": judge}).hash

    assert hash_of("a") == hash_of("b:1")
    served, embedded = load_settings(flags={"verifier.reward_url": "http://a/v1"}), load_settings()
    assert served.hash != embedded.hash


def test_different_settings_have_different_hashes() -> None:
    assert load_settings(flags={"strategy.depth": 1}).hash != load_settings(flags={"strategy.depth": 2}).hash


def test_the_environment_takes_lists_and_null(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REASON_SPEC_SAMPLING__STOP", '["END", "Q:"]')
    monkeypatch.setenv("REASON_SPEC_TARGET__CORES", "[0, 1]")
    monkeypatch.setenv("REASON_SPEC_STRATEGY__DIRECTIONS", '["count", "estimate"]')
    monkeypatch.setenv("REASON_SPEC_STRATEGY__CUES__REFLECTION", '["wait", "hmm"]')
    monkeypatch.setenv("REASON_SPEC_THINKING__TOKEN_BUDGET", "null")
    settings = load_settings(None, {})
    assert settings.sampling.stop == ("END", "Q:")
    assert settings.target.cores == (0, 1)
    assert settings.strategy.directions == ("count", "estimate")
    assert settings.strategy.cues.reflection == ("wait", "hmm")
    assert settings.thinking.token_budget is None
