#!/usr/bin/env bash
# lm-evaluation-harness against `reason-spec serve`:
#   pip install '.[harness]' ./reason-spec-weights    # in a checkout
#   reason-spec serve &
#   bash lm_eval.sh [more arguments of lm_eval]
# OPENAI_BASE_URL and MODEL name another server and model, TASKS other tasks.
set -euo pipefail
results=$PWD/results
cd "$(dirname "${BASH_SOURCE[0]}")"

source server.sh
# Whoever waits for long reasoning waits longer than the five minutes that are the harness's own limit.
model="model=${MODEL:-embedded},base_url=$url/chat/completions,num_concurrent=4,max_retries=3,timeout=3600"
lm_eval run \
    --model local-chat-completions --model_args "$model" \
    --tasks "${TASKS:-arithmetic_local}" --include_path . \
    --apply_chat_template --log_samples --output_path "$results" "$@"
