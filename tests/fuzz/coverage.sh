#!/usr/bin/env bash
# What the inputs that were kept reach of the sources that a harness is about: a line each, and one for all of them.
# usage: coverage.sh BUILD KEPT [NAME...]     BUILD: harnesses that count; KEPT/NAME: what fuzzing kept, with tests/fuzz/corpus
# What nothing reaches is in BUILD/NAME.unreached, function by function, and in BUILD/NAME.lines, line by line.
set -euo pipefail
cd "$(dirname "$0")/../.."

build=${1:?usage: coverage.sh BUILD KEPT [NAME...]} kept=${2:?}
shift 2
if [ $# -eq 0 ]; then
    names=("$build"/fuzz_*)
    set -- "${names[@]##*/fuzz_}"
fi
scratch=$(mktemp -d -p /dev/shm 2>/dev/null || mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export TMPDIR=$scratch LLVM_PROFILE_FILE=$scratch/profile

about() { # NAME
    case $1 in
        config) echo config/*.c ;;
        gguf) echo client/ctl/gguf.c ;;
        ledger) echo daemon/core/ledger*.c daemon/core/readopt*.c ;;
        names) echo daemon/core/{names,select}.c daemon/rpc/{encoding,method}.c ;;
        ranges) echo client/ctl/ranges.c ;;
        rpc) echo daemon/rpc/*.c ;;
        safetensors) echo client/ctl/{safetensors,json_text}.c ;;
        table) echo proto/table.c ;;
        wire) echo daemon/wire/*.c daemon/core/*.c ;;
        worker) echo daemon/worker/{*,host/*}.c ;;
        *) echo "coverage.sh: what is the harness $1 about? Say so in $0" >&2; return 2 ;;
    esac
}

run() { # NAME CORPUS...
    local name=$1
    shift
    "$build/fuzz_$name" -runs=0 -timeout=60 -rss_limit_mb=4096 "$@" >"$scratch/log" 2>&1 </dev/null || {
        echo "FAIL - fuzz $name does not get through what was kept:"
        tail -n 20 "$scratch/log"
        return 1
    }
    llvm-profdata merge -o "$scratch/$name.data" "$scratch/profile"
}

line() { # NAME INPUTS DATA PROGRAM... -- SOURCE...
    local name=$1 inputs=$2 of=("-instr-profile=$3" "$4")
    shift 4
    while [ "$1" != -- ]; do
        of+=(-object "$1")
        shift
    done
    shift
    { llvm-cov show "${of[@]}" "$@" | grep -E '^/|^ *[0-9]+\| *0\|' || true; } >"$build/$name.lines"
    llvm-cov export "${of[@]}" "$@" | "${PYTHON:-python3}" tests/fuzz/coverage.py "$name" "$inputs" "$build/$name.unreached"
}

printf '%-12s %7s  %21s  %21s  %21s\n' harness inputs functions lines branches
programs=() data=() all=() total=0
for name; do
    corpora=("tests/fuzz/corpus/$name")
    if [ -d "$kept/$name" ]; then
        corpora+=("$kept/$name")
    fi
    inputs=$(find "${corpora[@]}" -type f | wc -l)
    read -ra sources <<<"$(about "$name")"
    run "$name" "${corpora[@]}"
    line "$name" "$inputs" "$scratch/$name.data" "$build/fuzz_$name" -- "${sources[@]}"
    programs+=("$build/fuzz_$name") data+=("$scratch/$name.data") all+=("${sources[@]}") total=$((total + inputs))
done
if [ $# -gt 1 ]; then
    llvm-profdata merge -o "$scratch/data" "${data[@]}"
    mapfile -t all < <(printf '%s\n' "${all[@]}" | sort -u)
    line all "$total" "$scratch/data" "${programs[@]}" -- "${all[@]}"
fi
