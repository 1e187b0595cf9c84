"""Settings of earlier versions, and what replaced each; a file that names one gets this as its error."""

from __future__ import annotations

from collections.abc import Sequence

from reason_spec.settings.engines import VllmSettings

_ENGINES = (("target",), ("draft",), ("verifier", "judge"))
_OF_ENGINES = {
    "layers": "it is now {engine}.torch.layers",
    "token_method": "it is now {engine}.vllm.token_method",
    "draft_tokens": "it is now {engine}.vllm.draft_tokens",
    "batch_invariant": "it is now {engine}.vllm.batch_invariant",
    "prefill_chunk": "it was removed: 512 tokens",
    "remote.connect_timeout": "it was removed: 10 seconds",
}
_OTHERS = {
    "strategy.draft_token_drafter": "it was removed: the draft model drafts no tokens by prompt lookup",
    "strategy.lookup_paths": "it was removed: prompt lookup proposes one continuation",
    "strategy.draft_run_tokens": "it was removed: 4 tokens",
    "strategy.min_draft_chance": "it was removed: 0.1",
    "gate": "it is now load_control, with use and at_most",
    "suffix.min_step_chance": "it was removed: 0.6",
    "suffix.for_draft": "it was removed: drafts for the draft model come from earlier texts as well",
    "boundary.protected": "it was removed: <tool_call> ... </tool_call> holds no boundary",
    "boundary.protect_fences": "it was removed: a fenced block holds no boundary",
    "boundary.protect_json": "it was removed: a JSON value holds no boundary",
    "server.api_key_variable": "it was removed: the variable is REASON_SPEC_API_KEY",
    "server.max_connections": "it was removed: twice max_running_requests + max_queued_requests",
    "server.header_timeout": "it was removed: 10 seconds",
    "server.send_timeout": "it was removed: 60 seconds",
    "server.ping_seconds": "it was removed: 15 seconds",
    "server.stream_interval": "it was removed: 0.1 seconds",
    "server.stream_chars": "it was removed: 256 characters",
    "server.shed_speculation_above": "it was removed: a load of 0.75; load_control.use: off sheds nothing",
}


def replacement(path: Sequence[str]) -> str | None:
    """Return what replaced the setting at ``path``; None where it never was one."""
    for engine in _ENGINES:
        if tuple(path[: len(engine)]) != engine:
            continue
        name = ".".join(path[len(engine) :])
        if (text := _OF_ENGINES.get(name)) is not None:
            return text.format(engine=".".join(engine))
        section, _, leaf = name.partition(".")
        if section == "vllm" and leaf not in VllmSettings.model_fields:
            return f"engine arguments of vLLM are now in {'.'.join(engine)}.vllm.arguments"
    return _OTHERS.get(".".join(path))
