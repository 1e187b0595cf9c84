"""Chat templates with thinking as in Qwen3's, DeepSeek-R1's and gpt-oss's, and a tokenizer for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reason_spec.engines.chat_template import PLAIN_CHAT, ChatOptions, Message, render_template
from reason_spec.engines.scripted import DEFAULT_PATTERN, ScriptedTokenizer

QWEN3 = """
{%- for message in messages -%}
{%- set content = message.content -%}
{%- if message.role == 'assistant' -%}
    {%- set thought = message.reasoning_content or '' -%}
    {%- if not thought and '</think>' in content -%}
        {%- set thought = content.split('</think>')[0].split('<think>')[-1] -%}
        {%- set content = content.split('</think>')[-1] -%}
    {%- endif -%}
    {{- '<|im_start|>assistant\\n' -}}
    {%- if loop.last -%}
        {{- '<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' -}}
    {%- endif -%}
    {{- content.lstrip('\\n') + '<|im_end|>\\n' -}}
{%- else -%}
    {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|im_start|>assistant\\n' -}}
    {%- if enable_thinking is defined and enable_thinking is false -%}
        {{- '<think>\\n\\n</think>\\n\\n' -}}
    {%- endif -%}
{%- endif -%}
"""
DEEPSEEK_R1 = """
{{- bos_token -}}
{%- for message in messages -%}
{%- if message.role == 'assistant' -%}
    {{- '<|Assistant|>' + message.content.split('</think>')[-1] + '<|EndOfSentence|>' -}}
{%- else -%}
    {{- '<|User|>' + message.content -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|Assistant|><think>\\n' -}}{%- endif -%}
"""
GPT_OSS = """
{{- '<|start|>system<|message|>Reasoning: ' + (reasoning_effort or 'medium') + '<|end|>' -}}
{%- if tools -%}
    {{- '<|start|>developer<|message|>namespace functions {' -}}
    {%- for tool in tools -%}
        {{- ' type ' + tool.function.name + ' = (_: ' + tool.function.parameters|tojson + ') => any;' -}}
    {%- endfor -%}
    {{- ' }<|end|>' -}}
{%- endif -%}
{%- set called = namespace(name='') -%}
{%- for message in messages -%}
{%- if message.tool_calls -%}
    {%- set call = message.tool_calls[0].function -%}
    {%- set called.name = call.name -%}
    {%- if message.thinking -%}
        {{- '<|start|>assistant<|channel|>analysis<|message|>' + message.thinking + '<|end|>' -}}
    {%- endif -%}
    {{- '<|start|>assistant to=functions.' + call.name + '<|channel|>commentary json<|message|>' -}}
    {{- call.arguments|tojson + '<|call|>' -}}
{%- elif message.role == 'tool' -%}
    {%- if not called.name -%}
        {{- raise_exception('tool result without a call before it') -}}
    {%- endif -%}
    {{- '<|start|>functions.' + called.name + ' to=assistant<|channel|>commentary<|message|>' -}}
    {{- message.content|tojson + '<|end|>' -}}
{%- elif message.role == 'assistant' -%}
    {%- if loop.last and not add_generation_prompt and 'thinking' in message -%}
        {{- '<|start|>assistant<|channel|>analysis<|message|>' + message.thinking + '<|end|>' -}}
    {%- endif -%}
    {{- '<|start|>assistant<|channel|>final<|message|>' + message.content -}}
    {{- '<|return|>' if loop.last and not add_generation_prompt else '<|end|>' -}}
{%- else -%}
    {{- '<|start|>' + message.role + '<|message|>' + message.content + '<|end|>' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|start|>assistant' -}}{%- endif -%}
"""
TEMPLATES = {"qwen3": QWEN3, "deepseek-r1": DEEPSEEK_R1, "gpt-oss": GPT_OSS}


class TemplateTokenizer(ScriptedTokenizer):
    """A scripted tokenizer with a chat template, whose tags are one token each."""

    def __init__(self, template: str) -> None:
        super().__init__(rf"<\|\w+\|>|</?think>|{DEFAULT_PATTERN}")
        self._template = template

    @property
    def chat_template(self) -> str:
        return self._template

    def encode_chat(self, messages: Sequence[Message], options: ChatOptions = PLAIN_CHAT) -> tuple[int, ...]:
        arguments: dict[str, Any] = {"tools": list(options.tools), **options.arguments}
        return self.encode(render_template(self._template, messages, arguments))
