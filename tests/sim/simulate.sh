#!/usr/bin/env bash
# Runs the simulation: one line a seed. A seed that fails is run again by `BUILD/tests/sim SEED STEPS`.
# usage: simulate.sh check BUILD | long BUILD SEEDS STEPS
#
# check  four seeds that are always the same, and one at random
# long   that many seeds at random
set -euo pipefail

mode=${1:?usage: simulate.sh check|long BUILD [SEEDS STEPS]} sim=${2:?}/tests/sim
scratch=$(mktemp -d -p /dev/shm 2>/dev/null || mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export TMPDIR=$scratch # each has a ledger: not on a disk

random_seed() {
    od -An -N4 -tu4 /dev/urandom | tr -d ' '
}

one() { # SEED STEPS
    "$sim" "$1" "$2" >"$scratch/$1.log" 2>&1 </dev/null && tail -n 1 "$scratch/$1.log" && return
    tail -n 120 "$scratch/$1.log" # its last line is "FAIL - seed ..."
    return 1
}

case $mode in
    check) steps=20000 seeds=(1 2 3 4 "$(random_seed)") ;;
    long)
        steps=${4:?} seeds=()
        for ((i = 0; i < ${3:?}; i++)); do seeds+=("$(random_seed)"); done
        ;;
    *)
        echo "simulate.sh: no mode \"$mode\"" >&2
        exit 2
        ;;
esac

failed=0 running=()
for seed in "${seeds[@]}"; do
    while [ "$(jobs -rp | wc -l)" -ge "$(nproc)" ]; do
        sleep 0.2
    done
    one "$seed" "$steps" &
    running+=($!)
done
for pid in "${running[@]}"; do
    wait "$pid" || failed=1
done
exit $failed
