#!/usr/bin/env bash
# Makes the measurements of all generated tables of the docs, and the tables: many hours on a machine that does nothing else.
#
#     benchmarks/all.sh DATA [NAME...]
#     SHOW=1 benchmarks/all.sh DATA         the commands alone
#
# DATA is a folder with gsm8k_train.jsonl, gsm8k_test.jsonl, svamp.jsonl, math500.jsonl, gsm8k_400x12.jsonl, math_cot_100x8.jsonl and tau_airline_gpt4o.jsonl.
# Names are those of the measurements below; by default all. A measurement whose file lies in docs/measurements/data is not made again, so a
# stopped run goes on where it was; remove a file to measure anew. Rows that need an extra or vLLM's environment are skipped
# with a message where it is missing.
set -u
cd "$(dirname "$0")/.." || exit 1
DATA=${1:?folder of the data sets}
shift
NAMES=" $* "
PY=${PY:-.venv/bin/python}
VLLM_PY=${VLLM_PY:-.venv-cpu/bin/python}
AGENTS_PY=${AGENTS_PY:-.venv-agents/bin/python}
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
FAILED=""
UNDER="" # what the next measurements run under

is_named() { # NAME
    [ "$NAMES" = "  " ] || [[ $NAMES == *" $1 "* ]]
}

is_due() { # NAME: whether it is measured now, so that what it needs must be made
    [ -z "${SHOW:-}" ] && is_named "$1" && [ ! -e "docs/measurements/data/$1.json" ]
}

measure() { # NAME PYTHON SCRIPT OPTION...
    local name=$1 python=$2 script=$3
    shift 3
    is_named "$name" || return
    if [ -n "${SHOW:-}" ]; then
        echo "$name: ${UNDER:+$UNDER }python benchmarks/$script.py $*"
        return
    fi
    if [ ! -x "$python" ]; then
        echo "$name: left out, there is no $python" >&2
        return
    fi
    # shellcheck disable=SC2086
    "$PY" benchmarks/tables.py run "$name" -- $UNDER "$python" "benchmarks/$script.py" "$@" || FAILED="$FAILED $name"
}

measure_cli() { # NAME ROWS OPTION...: a command of the package; ROWS is what of its JSON (found) the rows are, in Python
    local name=$1 rows=$2
    shift 2
    is_named "$name" || return
    if [ -n "${SHOW:-}" ]; then
        echo "$name: python cli.py $*"
        return
    fi
    is_due "$name" || return
    "$PY" cli.py "$@" --json > "$WORK/$name.found" &&
        "$PY" -c "import json, sys; found = json.load(open(sys.argv[1])); json.dump($rows, open(sys.argv[2], 'w'))" \
            "$WORK/$name.found" "$WORK/$name.json" &&
        "$PY" benchmarks/tables.py keep "$name" "$WORK/$name.json" --command "python cli.py ${*//$DATA\//}" ||
        FAILED="$FAILED $name"
}

DRAFT="--draft models:smollm2-gsm8k-draft"
HEAD="--head models:smollm2-gsm8k-head"
GSM8K="--problems-file $DATA/gsm8k_test.jsonl --max-tokens 256"
WORK=runs/tables
[ -n "${SHOW:-}" ] || mkdir -p "$WORK"

# No model, minutes each; vLLM brings the tokenizer tekken. The options are words.
# shellcheck disable=SC2086
{
measure interval_coverage "$PY" interval_coverage --runs 4000 --seed 21
measure step_map "$PY" step_map
measure samples "$PY" sample_replay "$DATA/math_cot_100x8.jsonl" --problems 6
measure votes "$PY" vote_replay "$DATA/math_cot_100x8.jsonl"
measure suffix_store "$PY" suffix_store
measure suffix_replays "$PY" suffix_agent "$DATA/tau_airline_gpt4o.jsonl" --conversations 20 --problems 0
measure suffix_tau "$PY" suffix_replay "$DATA/tau_airline_gpt4o.jsonl" --budgets 4 16 --fit-tasks 8
measure suffix_cost "$PY" suffix_replay "$DATA/tau_airline_gpt4o.jsonl" --budgets 16 --fit-tasks 4 --test-tasks 25
measure suffix_reasoning "$PY" suffix_replay "$DATA/gsm8k_400x12.jsonl" --budgets 4 16 \
    --trials deepseek-r1 qwq-32b s1.1-32b --fit-tasks 4 --test-tasks 10
measure agent_replay "$VLLM_PY" agent_replay "$DATA/tau_airline_gpt4o.jsonl"
measure verifiers "$PY" verifiers --solutions "$DATA/gsm8k_400x12.jsonl" --verifiers semantic
measure verifiers_baselines "$PY" verifiers --solutions "$DATA/gsm8k_400x12.jsonl" --verifiers exact numbers embedding
measure lookahead_paper "$PY" lookahead_paper
measure step_lengths "$PY" step_boundaries "$DATA/gsm8k_400x12.jsonl" --every 8
measure early_exit "$PY" early_exit "$DATA/gsm8k_400x12.jsonl" --solved "$DATA/gsm8k_train.jsonl" \
    --math "$DATA/math_cot_100x8.jsonl" --train-group qwq-32b --train-group deepseek-r1 --train-group s1.1-32b \
    --train-group deepseek-r1-distill-qwen --report-group qwq-32b --report-group deepseek-r1 --report-group s1.1-32b
measure early_exit_reading "$PY" early_exit "$DATA/gsm8k_400x12.jsonl" --solved "$DATA/gsm8k_train.jsonl" \
    --math "$DATA/math_cot_100x8.jsonl" --reading-model models:smollm2-gsm8k --train-group qwq-32b --train-group deepseek-r1 \
    --train-group s1.1-32b --train-group deepseek-r1-distill-qwen --report-group qwq-32b --report-group deepseek-r1 \
    --report-group s1.1-32b
held_out() { # FILE OPTION...: a policy that has not seen the first 40 problems, nor QwQ-32B
    [ -e "$WORK/$1" ] && return
    tail -n +41 "$DATA/gsm8k_400x12.jsonl" > "$WORK/other_problems.jsonl"
    "$PY" cli.py exit train "$WORK/other_problems.jsonl" --solved "$DATA/gsm8k_train.jsonl" --group deepseek-r1 --group s1.1-32b \
        --group deepseek-r1-distill-qwen --output "$WORK/$1" "${@:2}" || FAILED="$FAILED exit_train"
}
is_due early_exit_live && held_out held_out.json
is_due early_exit_live_reading && held_out held_out_reading.json --reading-model models:smollm2-gsm8k
PLAYED="--group qwq-32b --problems 40 --strategies autoregressive hybrid"
# shellcheck disable=SC2086
measure early_exit_live "$PY" early_exit_live --traces "$DATA/gsm8k_400x12.jsonl" $PLAYED --policy "$WORK/held_out.json"
# shellcheck disable=SC2086
measure early_exit_live_reading "$PY" early_exit_live --traces "$DATA/gsm8k_400x12.jsonl" $PLAYED --rules none policy \
    --policy "$WORK/held_out_reading.json"

# SmolLM2-135M, half an hour to two hours each.
measure real_t0 "$PY" real $DRAFT $HEAD --problems 60 $GSM8K --temperatures 0 --rows token_recycling head model model:recycling \
    steps:exact both:exact both:semantic hybrid both:exact:head hybrid:head transformers:assistant_model
measure real_other_t0 "$PY" real --problems 60 $GSM8K --temperatures 0 --rows prompt_lookup self transformers:prompt_lookup
measure real_suffix_t0 "$PY" real --problems 60 $GSM8K --temperatures 0 --rows suffix suffix:published
measure real_t06 "$PY" real $DRAFT $HEAD --problems 60 $GSM8K --temperatures 0.6 --rows prompt_lookup token_recycling self head \
    model:recycling steps:exact both:semantic hybrid hybrid:head transformers:assistant_model transformers:prompt_lookup
measure real_planned "$PY" real $DRAFT --problems 24 $GSM8K --temperatures 0 --rows model both:semantic hybrid hybrid:fixed
SVAMP="--problems-file $DATA/svamp.jsonl --max-tokens 256"
GRADED="--problems 2 $SVAMP --grades $WORK/real_grades.jsonl"
ACCURACY="$GRADED --accuracy 1000"
measure real_accuracy "$PY" real $DRAFT $ACCURACY --temperatures 0 --rows both:semantic:fixed hybrid:fixed
measure real_accuracy_t06 "$PY" real $DRAFT $ACCURACY --temperatures 0.6 --rows both:semantic:fixed hybrid:fixed
RELAXED="$DRAFT $HEAD --temperatures 0 --over head --rows head"
measure real_relaxed "$PY" real $RELAXED head:cascade head:cascade:0.8 head:cascade:0.95 head:lenient:0.05 --problems 60 $SVAMP
measure real_relaxed_accuracy "$PY" real $RELAXED head:cascade:0.8 head:cascade:0.95 $GRADED --accuracy 500
CASCADES="model:cascade model:cascade:0.8 model:cascade:0.95"
if is_due real_relaxed_judge || is_due real_relaxed_model_accuracy; then
    "$PY" cli.py verifier train --level token "$DATA/gsm8k_train.jsonl" --limit 150 --target models:smollm2-gsm8k $DRAFT \
        --max-tokens 256 --output "$WORK/judge" || FAILED="$FAILED judge"
fi
measure real_relaxed_model "$PY" real $DRAFT --problems 60 $SVAMP --temperatures 0 --over model --rows model $CASCADES
measure real_relaxed_judge "$PY" real $DRAFT --problems 60 $SVAMP --temperatures 0 --over model \
    --rows model model:judge model:judge:0.9 --set target.torch.judge="$WORK/judge"
measure real_relaxed_model_accuracy "$PY" real $DRAFT $GRADED --accuracy 500 --temperatures 0 \
    --rows model:cascade:0.8 model:cascade:0.95 model:judge --set target.torch.judge="$WORK/judge"
measure_cli draft_steps 'found["alpha_step"]' draft eval models:smollm2-gsm8k-draft "$DATA/svamp.jsonl" --target models:smollm2-gsm8k \
    --set 'boundary.delimiter="\n"' --max-tokens 200 --limit 150 --output runs/draft-steps
measure real_vllm_t0 "$VLLM_PY" real --engine vllm $DRAFT $HEAD --problems 60 $GSM8K --temperatures 0 \
    --rows torch:autoregressive vllm:ngram vllm:draft_model vllm:eagle3 prompt_lookup model hybrid
measure real_vllm_t06 "$VLLM_PY" real --engine vllm $DRAFT $HEAD --problems 60 $GSM8K --temperatures 0.6 \
    --rows vllm:ngram vllm:suffix vllm:draft_model vllm:eagle3 prompt_lookup
measure real_vllm_suffix_t0 "$VLLM_PY" real --engine vllm --problems 60 $GSM8K --temperatures 0 --draft-tokens 2 4 8 16 \
    --rows vllm:suffix
measure real_nodraft_t0 "$PY" real $DRAFT --problems 60 $GSM8K --temperatures 0 --rows prompt_lookup token_recycling
UNDER="taskset -c 0"
measure real_head_t0 "$PY" real $DRAFT $HEAD --problems 60 $GSM8K --temperatures 0 \
    --rows model model:recycling head head:recycling both:semantic
UNDER=""
measure published_rules_real "$PY" published_rules --models real --target models:smollm2-gsm8k $DRAFT \
    --problems 24 --max-tokens 200 --cpu-time
measure acceptance "$PY" acceptance --models real --target models:smollm2-gsm8k $DRAFT --problems 24 --max-tokens 256
measure dtypes "$PY" dtypes
measure draft_counts "$PY" draft_counts --problems 3 --temperatures 0.6 --budgets 8 \
    --rows prompt_lookup samples stand recycling samples+recycling
measure majority "$PY" majority $DRAFT $HEAD
measure token_level_t0 "$PY" token_level $HEAD --temperatures 0 --methods prompt_lookup token_recycling head transformers:prompt_lookup
measure token_level_t06 "$PY" token_level $HEAD --temperatures 0.6 --methods prompt_lookup token_recycling stand head
measure token_level_math "$PY" token_level $HEAD --source "$DATA/math500.jsonl" --problems 14 --temperatures 0 0.6 \
    --methods prompt_lookup token_recycling head transformers:prompt_lookup
measure token_level_vllm "$VLLM_PY" token_level --engine vllm $DRAFT $HEAD --temperatures 0 \
    --methods vllm:ngram vllm:draft_model vllm:eagle3 prompt_lookup
measure token_level_vllm_suffix "$VLLM_PY" token_level --engine vllm --temperatures 0 --methods vllm:suffix
measure token_level_base "$PY" token_level --target pypi:smollm2-135m --problems 6 --temperatures 0 \
    --methods prompt_lookup token_recycling suffix suffix:published
measure token_level_shapes "$PY" token_level $HEAD --source gsm8k --problems 8 --temperatures 0 --budgets 8 \
    --methods head:alone head:chain head:eagle2 head:sequoia head:lenient head:cascade
measure token_level_budgets "$PY" token_level $HEAD --source gsm8k --problems 6 --temperatures 0 0.6 --max-tokens 64 \
    --budgets 4 8 16 32 64 --methods head token_recycling
UNDER="taskset -c 1"
if is_due draft_replay; then
    for drafter in head draft; do
        "$PY" benchmarks/draft_places.py "$WORK/$drafter.json" --drafter "models:smollm2-gsm8k-$drafter" ||
            FAILED="$FAILED draft_places"
    done
fi
measure draft_replay "$PY" draft_replay "$WORK/head.json" "$WORK/draft.json"
UNDER=""

# The demonstration pair.
measure embedded_t0 "$PY" embedded --problems 60 --accuracy 200 --grades "$WORK/grades.jsonl" --temperatures 0
measure frontier "$PY" frontier --problems 48 --accuracy 200 --grades "$WORK/grades.jsonl" --rows speculative lookahead \
    "specreason 0.95" "hybrid 0.9" "hybrid 0.95" "specreason, utility" "rsd 0.7" "rsd 0.9" "arbitrage, default" "arbitrage 0.2" \
    "arbitrage, threshold 0.1" "arbitrage, random 0.5" scot speculative_thinking
UNDER="taskset -c 1"
measure published_rules "$PY" published_rules --problems 16 --cpu-time
UNDER=""
measure_cli thresholds 'found["trials"]' tune verifier --limit 400 --whole-curve --loss 1 --concurrency 16 \
    --set sampling.seed=3 --no-plot --output runs/thresholds
if is_due router; then
    "$PY" cli.py router collect --generate 50 --generate-seed 52000 --rollouts 8 --max-tokens 448 --output runs/router-test
fi
measure_cli router 'found["curves"]' router eval runs/router-test
measure_cli tuned '[{"stage": stage, **one} for stage, rung in [*enumerate(found["rungs"], 1), ("final", found["final"])]
    for one in rung["candidates"]]' tune --generate 80 --loss 10 --strategies speculative,lookahead,hybrid --depths 2,6 \
    --thresholds 0.95,0.9 --set target.cores=[0] --set draft.cores=[1] --output runs/tuned
measure suffix_agent "$PY" suffix_agent --rows planned
measure load_torch "$PY" load --engine torch --padded 0 --arrivals 48 --runs "$WORK/load_torch.jsonl"
measure load_vllm "$VLLM_PY" load --arrivals 48 --runs "$WORK/load_vllm.jsonl"
measure vllm_pair "$VLLM_PY" vllm_pair --problems 16
measure vllm_pair_padded "$VLLM_PY" vllm_pair --problems 16 --padded 48
measure agent_loop "$AGENTS_PY" agent_loop
measure tools_ahead_loop "$AGENTS_PY" tools_ahead_loop
}

# A padded target and drafts near to it are folders, which docs/measurements/speed.md says how to make.
if [ -n "${PADDED:-}" ] && [ -n "${WEAK_DRAFT:-}" ] && [ -n "${NEAR_DRAFT:-}" ]; then
    PAD="--target $PADDED --max-tokens 128 --problems-file $DATA/gsm8k_test.jsonl --set target.cache_tokens=4096 target.dtype=bfloat16 \
        draft.dtype=bfloat16"
    WEAK="--draft $WEAK_DRAFT --over model:alone --rows model model:alone both:semantic:fixed both:semantic"
    NEAR="--draft $NEAR_DRAFT --over model --rows model model:alone model:recycling token_recycling both:semantic:fixed both:semantic \
        hybrid:fixed hybrid"
    # shellcheck disable=SC2086
    {
    measure real_padded "$PY" real $PAD 'boundary.delimiter="\n"' $WEAK --problems 20 --temperatures 0
    measure real_padded_t06 "$PY" real $PAD 'boundary.delimiter="\n"' $WEAK --problems 40 --temperatures 0.6
    measure real_relaxed_padded "$PY" real $PAD $DRAFT --problems 24 --temperatures 0 --over model --rows model $CASCADES
    measure majority_padded "$PY" majority --target "$PADDED" --rows batched drafts --max-tokens 128 \
        --set target.dtype=bfloat16 target.cache_tokens=4096
    measure real_padded_near "$PY" real $PAD 'boundary.delimiter="\n"' $NEAR --problems 24 --temperatures 0
    CLOSE="--target models:smollm2-gsm8k $GRADED --temperatures 0 --set"
    measure real_close_accuracy "$PY" real $CLOSE 'boundary.delimiter="\n"' --accuracy 1000 --draft "$WEAK_DRAFT" \
        --rows both:semantic:fixed
    measure real_near_accuracy "$PY" real $CLOSE 'boundary.delimiter="\n"' --accuracy 500 --draft "$NEAR_DRAFT" --rows hybrid:fixed
    }
fi

[ -z "${SHOW:-}" ] || exit 0
"$PY" benchmarks/tables.py write
echo "without a file: $("$PY" benchmarks/tables.py list | tr '\n' ' ')"
[ -z "$FAILED" ] || { echo "failed:$FAILED" >&2; exit 1; }
