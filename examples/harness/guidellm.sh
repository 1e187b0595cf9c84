#!/usr/bin/env bash
# GuideLLM against `reason-spec serve`, with one and with four requests at a time:
#   pip install guidellm
#   reason-spec serve &
#   bash guidellm.sh [more arguments of guidellm run]
# OPENAI_BASE_URL and MODEL name another server and model, DATA other problems, STREAMS other loads.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/server.sh"
mkdir -p results
guidellm run \
    --backend "{kind: openai_http, target: '${url%/v1}', model: '${MODEL:-embedded}', api_key: '$OPENAI_API_KEY', max_tokens: ${MAX_TOKENS:-256}}" \
    --profile "{kind: concurrent, streams: ${STREAMS:-[1, 4]}}" \
    --constraint "{kind: max_requests, count: ${REQUESTS:-8}}" \
    --data "{kind: json_file, path: '${DATA:-$here/problems.jsonl}'}" \
    --data-column-mapper '{kind: generative_column_mapper, column_mappings: {text_column: question}}' \
    --output kind=console --output kind=json,path=results/guidellm.json "$@"
