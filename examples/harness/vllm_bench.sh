#!/usr/bin/env bash
# `vllm bench serve` against `reason-spec serve`, with four requests at a time:
#   pip install '.[gpu]' ./reason-spec-weights    # in a checkout; or [cpu]
#   reason-spec serve &
#   bash vllm_bench.sh [more arguments of vllm bench serve]
# OPENAI_BASE_URL and MODEL name another server and model, TOKENIZER its tokenizer, DATA other prompts.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/server.sh"
mkdir -p results
tokenizer=${TOKENIZER:-$(python -c 'from reason_spec.pair import embedded_path; print(embedded_path("target"))')}
data=${DATA:-results/prompts.jsonl}
[[ -n ${DATA:-} ]] || sed 's/"question":/"prompt":/' "$here/problems.jsonl" > "$data"

# The command `vllm` needs vLLM's distribution; the one for CPUs has another name, and the same modules.
bench=(vllm bench serve)
vllm --version >/dev/null 2>&1 || bench=(python -c '
from vllm.benchmarks import serve
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
serve.add_cli_args(parser)
serve.main(parser.parse_args())')
"${bench[@]}" \
    --backend openai-chat --base-url "${url%/v1}" --endpoint /v1/chat/completions \
    --model "${MODEL:-embedded}" --tokenizer "$tokenizer" \
    --dataset-name custom --dataset-path "$data" --custom-output-len "${MAX_TOKENS:-256}" \
    --num-prompts "${REQUESTS:-8}" --max-concurrency "${STREAMS:-4}" --temperature 0 \
    --save-result --result-dir results --result-filename vllm_bench.json "$@"
