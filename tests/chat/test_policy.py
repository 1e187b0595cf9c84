"""A policy names who writes, within what it allows; what cannot be had here is refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from reason_spec.accelerator import Accelerator
from reason_spec.chat.base import Policy
from reason_spec.chat.policy import choose_strategies, exact_strategy, exit_under, strategy_under
from reason_spec.engines.scripted import ScriptedEngine, ScriptedTokenizer
from reason_spec.errors import RequestError, SettingsError
from reason_spec.settings import load_settings
from reason_spec.strategies.base import Strategy
from tests.strategies.scripts import StoryScript


@contextmanager
def accelerator(
    name: str = "lookahead",
    *,
    with_draft: bool = True,
    shared: bool = True,
    hints: bool = True,
    acceptance: str = "exact",
    exit_rule: str = "none",
) -> Iterator[Accelerator]:
    target = ScriptedEngine("target", StoryScript(1))
    target.takes_hints = hints
    tokenizer = ScriptedTokenizer() if shared else ScriptedTokenizer(r"\w+|\W")
    draft = ScriptedEngine("draft", StoryScript(1), tokenizer=tokenizer) if with_draft else None
    settings = load_settings(
        flags={
            "strategy.name": name,
            "verifier.name": "auto",
            "strategy.acceptance": acceptance,
            "exit.rule": exit_rule,
        }
    )
    yield Accelerator(settings, target, draft, None, (name,))


def verifier_of(strategy: Strategy) -> str | None:
    return strategy.verifier.name if strategy.uses_verifier else None


@pytest.mark.parametrize(
    ("policy", "name", "verifier", "loss_class"),
    [
        (Policy(), "lookahead", "semantic", "verified"),
        (Policy(off=True), "autoregressive", None, "exact"),
        (Policy(loss_class="exact"), "lookahead", "exact", "exact"),
        (Policy(loss_class="verified"), "lookahead", "semantic", "verified"),
        (Policy(loss_class="routed"), "lookahead", "semantic", "verified"),
        (Policy(strategy="prompt_lookup"), "prompt_lookup", None, "exact"),
        (Policy(strategy="hybrid"), "hybrid", "likelihood+semantic", "routed"),
        (Policy(verifier="numbers"), "lookahead", "numbers", "verified"),
        (Policy(verifier="exact", loss_class="exact"), "lookahead", "exact", "exact"),
    ],
)
def test_a_policy_names_who_writes(policy: Policy, name: str, verifier: str | None, loss_class: str) -> None:
    with accelerator() as running:
        strategy = strategy_under(running, policy)
    assert (strategy.name, verifier_of(strategy), strategy.loss_class) == (name, verifier, loss_class)


def test_a_loss_class_bounds_the_strategy_of_the_settings() -> None:
    with accelerator("specreason") as running:
        assert strategy_under(running, Policy(loss_class="routed")).name == "specreason"
        strategy = strategy_under(running, Policy(loss_class="verified"))
        assert (strategy.name, verifier_of(strategy)) == ("lookahead", "semantic")
    with accelerator("prompt_lookup", with_draft=False) as running:
        assert strategy_under(running, Policy(loss_class="exact")).name == "prompt_lookup"


def test_a_depth_is_kept_to() -> None:
    with accelerator() as running:
        strategy = strategy_under(running, Policy(depth=2, width=3))
        assert (strategy.settings.depth, strategy.settings.width, strategy.settings.planner) == (2, 3, False)
        assert strategy_under(running, Policy()).settings.planner


@pytest.mark.parametrize(
    ("policy", "param"),
    [
        (Policy(strategy="lookahed"), "reason_spec.strategy"),
        (Policy(strategy="arbitrage"), "reason_spec.strategy"),
        (Policy(verifier="nobody"), "reason_spec.verifier"),
        (Policy(verifier="utility"), "reason_spec.verifier"),
        (Policy(depth=-1), "reason_spec.depth"),
        (Policy(depth=1000), "reason_spec.depth"),
        (Policy(width=0), "reason_spec.width"),
        (Policy(strategy="hybrid", loss_class="exact"), "reason_spec.loss_class"),
        (Policy(verifier="numbers", loss_class="exact"), "reason_spec.loss_class"),
    ],
)
def test_what_cannot_be_had_is_refused_by_name(policy: Policy, param: str) -> None:
    with accelerator() as running, pytest.raises(RequestError) as error:
        strategy_under(running, policy)
    assert error.value.param == param


@pytest.mark.parametrize("name", ["lookahead", "speculative", "scot"])
def test_without_a_draft_nothing_is_drafted(name: str) -> None:
    with (
        accelerator("prompt_lookup", with_draft=False) as running,
        pytest.raises(RequestError, match="a draft") as error,
    ):
        strategy_under(running, Policy(strategy=name))
    assert error.value.param == "reason_spec.strategy"


@pytest.mark.parametrize(
    ("with_draft", "shared", "hints", "name"),
    [
        (True, True, True, "speculative"),
        (True, False, True, "prompt_lookup"),
        (True, True, False, "autoregressive"),
        (False, True, True, "prompt_lookup"),
        (False, True, False, "autoregressive"),
    ],
)
def test_what_is_exact_is_written_with_all_there_is_for_tokens(
    with_draft: bool, shared: bool, hints: bool, name: str
) -> None:
    with accelerator("prompt_lookup", with_draft=with_draft, shared=shared, hints=hints) as running:
        assert exact_strategy(running).name == name


@pytest.mark.parametrize("with_draft", [True, False])
def test_a_head_drafts_the_tokens_of_exact_answers(with_draft: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ScriptedEngine, "drafts_itself", True)
    with accelerator("prompt_lookup", with_draft=with_draft) as running:
        assert exact_strategy(running).name == "self_speculative"


@pytest.mark.parametrize(
    ("situation", "first", "answer", "reason"),
    [
        ({}, "lookahead", None, None),
        ({"offers_tools": True}, "speculative", None, None),
        ({"thinks": True}, "lookahead", "speculative", None),
        ({"thinks": True, "offers_tools": True}, "lookahead", "speculative", None),
        ({"is_constrained": True}, "autoregressive", None, "bound output"),
        ({"is_constrained": True, "thinks": True}, "lookahead", "autoregressive", "bound output"),
        ({"is_biased": True, "thinks": True}, "autoregressive", "autoregressive", "logit bias"),
        ({"ends_at_tokens": True}, "speculative", None, "stop token ids"),
        ({"ends_at_tokens": True, "thinks": True}, "lookahead", "speculative", None),
        ({"ends_at_tokens": True, "is_biased": True}, "autoregressive", None, "logit bias"),
        ({"draft_has_room": False}, "autoregressive", None, "the prompt is longer than the draft's context"),
    ],
)
def test_what_is_asked_decides_what_speculation_may_touch(
    situation: dict[str, bool], first: str, answer: str | None, reason: str | None
) -> None:
    names = ("thinks", "offers_tools", "is_constrained", "is_biased", "ends_at_tokens")
    usual = {**dict.fromkeys(names, False), "draft_has_room": True}
    with accelerator() as running:
        chosen = choose_strategies(running, Policy(), **{**usual, **situation})
    assert chosen.first.name == first
    assert (chosen.answer.name if chosen.answer else None) == answer
    assert chosen.reason == reason


@pytest.mark.parametrize("rule", ["cascade", "lenient"])
def test_relaxed_acceptance_is_for_requests_that_allow_it(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ScriptedEngine, "acceptance_rules", ("exact", rule))
    with accelerator("speculative", acceptance=rule) as running:
        for policy in (Policy(), Policy(loss_class="relaxed"), Policy(loss_class="routed")):
            strategy = strategy_under(running, policy)
            assert (strategy.name, strategy.loss_class) == ("speculative", "relaxed")
        for policy in (Policy(loss_class="exact"), Policy(loss_class="verified")):
            strategy = strategy_under(running, policy)
            assert (strategy.name, strategy.loss_class) == ("speculative", "exact")
        assert exact_strategy(running).loss_class == "exact"
        assert strategy_under(running, Policy(off=True)).loss_class == "exact"
        assert strategy_under(running, Policy(strategy="lookahead")).loss_class == "verified"


def test_relaxed_acceptance_is_refused_where_it_cannot_be_had() -> None:
    with (
        accelerator("speculative", acceptance="lenient") as running,
        pytest.raises(
            SettingsError, match=r"strategy\.acceptance is lenient.*has only exact.*target\.kind: torch"
        ),
    ):
        running.generator.strategy()
    for strategy in ("lookahead", "prompt_lookup", "token_recycling"):
        with (
            accelerator(strategy, acceptance="cascade") as running,
            pytest.raises(SettingsError, match=rf"is cascade.*{strategy} accepts .* only exactly"),
        ):
            running.generator.strategy()
    with accelerator("autoregressive", acceptance="cascade") as running:
        assert running.generator.strategy().loss_class == "exact"


@pytest.mark.parametrize(
    ("rule", "policy", "situation", "expected"),
    [
        ("none", Policy(), {}, "none"),
        ("policy", Policy(), {}, "policy"),
        ("policy", Policy(exit="none"), {}, "none"),
        ("none", Policy(exit="deer"), {}, "deer"),
        ("policy", Policy(off=True), {}, "none"),
        ("policy", Policy(loss_class="routed"), {}, "none"),
        ("policy", Policy(loss_class="shortened"), {}, "policy"),
        ("none", Policy(loss_class="shortened"), {}, "none"),
        ("policy", Policy(), {"offers_tools": True}, "none"),
        ("policy", Policy(), {"is_constrained": True}, "none"),
        ("policy", Policy(), {"is_constrained": True, "thinks": True}, "policy"),
        ("policy", Policy(), {"is_biased": True, "thinks": True}, "policy"),
        ("policy", Policy(), {"may_exit": False}, "none"),
        ("none", Policy(exit="policy"), {"may_exit": False}, "policy"),
    ],
)
def test_free_text_may_end_early_where_settings_or_request_say_so(
    rule: str, policy: Policy, situation: dict[str, bool], expected: str
) -> None:
    names = ("thinks", "offers_tools", "is_constrained", "is_biased", "ends_at_tokens")
    usual = {**dict.fromkeys(names, False), "draft_has_room": True}
    with accelerator(exit_rule=rule) as running:
        chosen = choose_strategies(running, policy, **{**usual, **situation})
        assert chosen.exit.rule == expected
        assert (chosen.loss_class == "shortened") == (expected != "none")
        assert chosen.without_drafts(running, "load").exit.rule == expected


def test_a_request_for_early_exit_keeps_to_its_loss_class_and_threshold() -> None:
    with accelerator() as running:
        assert exit_under(running, Policy(exit="policy", exit_threshold=0.99)).threshold == 0.99
        with pytest.raises(RequestError, match="shortened") as error:
            exit_under(running, Policy(exit="policy", loss_class="verified"))
    assert error.value.param == "reason_spec.exit"
