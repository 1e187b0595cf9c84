#!/usr/bin/env bash
# AIPerf against `reason-spec serve`, with one and with four requests at a time:
#   pip install aiperf    # in an environment of its own
#   reason-spec serve &
#   bash aiperf.sh [more arguments of aiperf profile]
# OPENAI_BASE_URL and MODEL name another server and model, DATA other problems, STREAMS other loads; TOKENIZER is
# the model's folder or name (`python -c 'from reason_spec.pair import embedded_path; print(embedded_path("target"))'`).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/server.sh"
mkdir -p results
data=${DATA:-results/aiperf_prompts.jsonl}
[[ -n ${DATA:-} ]] || sed 's/"question":/"text":/' "$here/problems.jsonl" > "$data"
for streams in ${STREAMS:-1 4}; do
    aiperf profile \
        --model "${MODEL:-embedded}" --tokenizer "${TOKENIZER:?is the folder or name of the model}" \
        --url "${url%/v1}" --endpoint-type chat --streaming --api-key "$OPENAI_API_KEY" --use-server-token-count \
        --input-file "$data" --custom-dataset-type single-turn \
        --extra-inputs "max_tokens:${MAX_TOKENS:-256}" temperature:0 \
        --concurrency "$streams" --request-count "${REQUESTS:-8}" \
        --artifact-dir "results/aiperf_$streams" --ui none "$@"
done
