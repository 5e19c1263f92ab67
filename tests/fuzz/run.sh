#!/usr/bin/env bash
# Runs fuzzing harnesses that are built, from the seeds in tests/fuzz/corpus; one line each.
# usage: run.sh short|long BUILD SECONDS [NAME...]
#
# short  all at once, as many as there are processors; the same seeds and random numbers each time, nothing is kept
# long   one after the other; what is found to reach further is kept in BUILD/corpus/NAME and built upon by the next run
# An input that fails is left in BUILD/crashes/NAME-*: once mended, it goes into tests/fuzz/corpus/NAME.
set -euo pipefail
cd "$(dirname "$0")/../.."

mode=${1:?usage: run.sh short|long BUILD SECONDS [NAME...]} build=${2:?} seconds=${3:?}
shift 3
if [ $# -eq 0 ]; then
    names=("$build"/fuzz_*)
    set -- "${names[@]##*/fuzz_}"
fi
mkdir -p "$build/crashes"
scratch=$(mktemp -d -p /dev/shm 2>/dev/null || mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export TMPDIR=$scratch # each input writes a ledger: not to a disk
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1:detect_stack_use_after_return=1:allocator_may_return_null=1:quarantine_size_mb=64}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1:halt_on_error=1}

one() { # NAME
    local name=$1 status=0 kept=$build/corpus/$1 log=$build/crashes/$1.log random=0 seconds=$seconds
    local options=(-max_total_time="$seconds" -timeout=60 -rss_limit_mb=2048 -max_len=4096 -print_final_stats=1)

    if [ "$mode" = short ]; then
        kept=$scratch/$name random=1
        if [ "$name" = lossless ]; then
            seconds=2 # it has reached all that there is by then
        fi
    fi
    mkdir -p "$kept"
    "$build/dictionary" "$name" >"$scratch/$name.dict"
    if [ -s "$scratch/$name.dict" ]; then
        options+=(-dict="$scratch/$name.dict")
    fi
    "$build/fuzz_$name" -seed=$random "${options[@]}" -artifact_prefix="$build/crashes/$name-" "$kept" \
        "tests/fuzz/corpus/$name" >"$log" 2>&1 </dev/null || status=$?
    report "$name" "$log" "$status"
}

report() { # NAME LOG STATUS
    local runs edges
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$2")
    edges=$(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$2" | tail -n 1)
    if [ "$3" -eq 0 ]; then
        echo "ok - fuzz $1: ${runs:-?} inputs, ${edges:-?} edges"
        return
    fi
    echo "FAIL - fuzz $1: exit status $3 after ${runs:-?} inputs; the log is $2"
    grep -aE 'does not hold|ERROR:|runtime error|SUMMARY|Test unit written' "$2" | head -n 8 | sed 's/^/    | /' || true
    return 1
}

failed=0
if [ "$mode" = short ]; then
    running=()
    for name; do
        while [ "$(jobs -rp | wc -l)" -ge "$(nproc)" ]; do
            sleep 0.2
        done
        one "$name" &
        running+=($!)
    done
    for pid in "${running[@]}"; do
        wait "$pid" || failed=1
    done
else
    for name; do
        one "$name" || failed=1
    done
fi
exit $failed
