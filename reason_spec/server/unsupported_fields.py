"""Known request fields that are not supported, each with the remedy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Refusal:
    """The remedy for an unsupported field; ``neutral`` values have no effect and are accepted."""

    remedy: str
    neutral: tuple[Any, ...] = ()

    def asks_for_nothing(self, value: Any) -> bool:
        return value is None or any(value == neutral for neutral in self.neutral)


_GUIDED = Refusal("this is vLLM's old name; give 'structured_outputs' with json, regex, choice or grammar")
_PENALTY = Refusal("the engines have no penalties; leave it out or give 0", (0,))
_TEXT_ONLY = Refusal("only text is read and written")
_OWN_TEMPLATE = Refusal("a chat template comes from the operator alone; leave it out")
_TOKEN_IDS = Refusal("token ids are not part of an answer; leave it out", (False,))
_NOT_BUILT = Refusal("this is not built; leave it out", (False,))

_NOT_CUT = Refusal("a prompt is never cut; shorten it")
_CHATS: Mapping[str, Refusal] = {
    "moderation": Refusal("there is no moderation; leave it out"),
    "prompt_cache_options": Refusal("prompts are cached by content; leave it out"),
}
_BOTH: Mapping[str, Refusal] = {
    "presence_penalty": _PENALTY,
    "frequency_penalty": _PENALTY,
    "repetition_penalty": Refusal("the engines have no penalties; leave it out or give 1", (1,)),
    "length_penalty": Refusal("there is no beam search; leave it out or give 1", (1,)),
    "min_p": Refusal("min_p is not built; give top_p or top_k, or 0", (0,)),
    "min_tokens": Refusal("a least length is not built; leave it out, or give 'ignore_eos'", (0,)),
    "use_beam_search": Refusal("there is no beam search; give 'n' and a temperature", (False,)),
    "best_of": Refusal("best_of is not built; give 'n' and choose yourself", (1,)),
    "include_stop_str_in_output": Refusal("stop strings are always cut off", (False,)),
    "skip_special_tokens": Refusal("special tokens are never part of the text", (True,)),
    "spaces_between_special_tokens": Refusal("special tokens are never part of the text", (True,)),
    "add_special_tokens": _NOT_BUILT,
    "truncate_prompt_tokens": _NOT_CUT,
    "truncation_side": _NOT_CUT,
    "prompt_logprobs": Refusal("log-probabilities of the prompt are not built; leave it out", (0,)),
    "logprob_token_ids": Refusal("only the chosen tokens have log-probabilities; leave it out", ([],)),
    "allowed_token_ids": Refusal("give 'structured_outputs' or 'logit_bias'", ([],)),
    "bad_words": Refusal("give 'logit_bias' or 'structured_outputs'", ([],)),
    "return_token_ids": _TOKEN_IDS,
    "return_tokens_as_token_ids": _TOKEN_IDS,
    "guided_json": _GUIDED,
    "guided_regex": _GUIDED,
    "guided_choice": _GUIDED,
    "guided_grammar": _GUIDED,
    "guided_decoding_backend": _GUIDED,
    "guided_whitespace_pattern": _GUIDED,
    "vllm_xargs": _NOT_BUILT,
    "kv_transfer_params": _NOT_BUILT,
    "repetition_detection": _NOT_BUILT,
    "api_base": Refusal("a request does not choose where a model runs; leave it out"),
}

_OLD_FUNCTIONS = "the old form of tools is not taken; give 'tools' and 'tool_choice'"

CHAT_REFUSED: Mapping[str, Refusal] = {
    **_BOTH,
    **_CHATS,
    "functions": Refusal(_OLD_FUNCTIONS, ([],)),
    "function_call": Refusal(_OLD_FUNCTIONS, ("none",)),
    "top_logprobs": Refusal(
        "the engines know the log-probability of the chosen token alone; leave it out or give 0", (0,)
    ),
    "audio": _TEXT_ONLY,
    "modalities": Refusal(_TEXT_ONLY.remedy, (["text"],)),
    "mm_processor_kwargs": _TEXT_ONLY,
    "media_io_kwargs": _TEXT_ONLY,
    "web_search_options": Refusal("the server has no tools of its own; give 'tools' and run them yourself"),
    "verbosity": Refusal("the models know no verbosity; say it in a message", ("medium",)),
    "chat_template": _OWN_TEMPLATE,
    "documents": Refusal("documents are not built; give them in a message", ([],)),
    "echo": Refusal("a conversation is not written out again; leave it out", (False,)),
}

_NO_THINKING = "the thinking within a text is not recognized; give a conversation to /v1/chat/completions"

COMPLETION_REFUSED: Mapping[str, Refusal] = {
    **_BOTH,
    "echo": Refusal("the prompt is not written out again; put it in front yourself", (False,)),
    "suffix": Refusal("text is only gone on with, not filled in; leave it out"),
    "thinking_token_budget": Refusal(_NO_THINKING),
    "max_thinking_steps": Refusal(_NO_THINKING),
    "reasoning_effort": Refusal(_NO_THINKING),
    "prompt_embeds": Refusal("only text and token ids are read"),
    "messages": Refusal("this endpoint takes 'prompt'; for a conversation use /v1/chat/completions"),
}

_NO_STORE = "nothing is stored here; send the whole conversation as 'input'"

RESPONSES_REFUSED: Mapping[str, Refusal] = {
    **_CHATS,
    "previous_response_id": Refusal(_NO_STORE),
    "conversation": Refusal(_NO_STORE),
    "background": Refusal(f"{_NO_STORE} and wait for the answer, or give 'stream'", (False,)),
    "prompt": Refusal("there are no stored prompts; give 'instructions' and 'input'"),
    "truncation": Refusal("a prompt is never cut; shorten it", ("disabled",)),
    "max_tool_calls": Refusal("tools run at the client, which counts their calls; leave it out"),
    "context_management": _NOT_CUT,
    "top_logprobs": Refusal("log-probabilities come with /v1/chat/completions; leave it out", (0,)),
    "messages": Refusal("this endpoint takes 'input'; for messages use /v1/chat/completions"),
    "stop": Refusal("this endpoint has no stop strings; use /v1/chat/completions"),
    "seed": Refusal("this endpoint has no seed; use /v1/chat/completions"),
}
