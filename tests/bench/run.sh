#!/usr/bin/env bash
# Measures a private daemon on the host device or the GPU, beside what the machine itself does in the same run; prints
# one table and writes it as JSON to tests/bench/results/.
# usage: run.sh host|gpu      (BUILD: where the programs are; LOAD_GIB, LOAD_RUNS: size and repetitions of the load;
#                              DISK_MIB, DISK_RUNS: of what goes to disk and back)
set -euo pipefail
cd "$(dirname "$0")/../.."

mode=${1:?usage: run.sh host|gpu}
build=${BUILD:-build}
load_gib=${LOAD_GIB:-4} load_runs=${LOAD_RUNS:-20}
disk_mib=${DISK_MIB:-1024} disk_runs=${DISK_RUNS:-20}
device=host worker=$build/hbm-worker-cuda
if [ "$mode" = gpu ]; then
    device=cuda
    compgen -G '/dev/nvidia[0-9]*' >/dev/null || { echo 'There is no GPU here: measure with: make bench' >&2; exit 1; }
    [ -x "$worker" ] || { echo 'There is no hbm-worker-cuda: building it takes nvcc.' >&2; exit 1; }
fi
dir=$(mktemp -d "$build/bench.XXXX")
export HBM_RUNTIME_DIR=$dir/run
daemon='' failed=0
unset NOTIFY_SOCKET LISTEN_FDS LISTEN_PID

finish() {
    local status=$?
    trap - EXIT
    if [ -n "$daemon" ]; then
        kill -TERM "$daemon" 2>/dev/null || true
        wait "$daemon" 2>/dev/null || true
    fi
    if [ "$status" -ne 0 ] && [ -s "$dir/log" ]; then tail -n 20 "$dir/log" >&2; fi
    rm -rf "$dir"
    exit "$status"
}
trap finish EXIT
trap 'exit 130' INT TERM

ctl() { "$build/hbmctl" "$@"; }
pick() { python3 -c "import json, sys; d = json.load(sys.stdin); print($1)"; }
row() { # WHAT UNIT OURS AIM OK SAMPLES
    printf '{"what": "%s", "unit": "%s", "ours": %s, "low": %s, "high": %s, "aim": "%s", "ok": %s, "samples": %s}\n' \
        "$1" "$2" "$3" "$3" "$3" "$4" "$5" "$6" >>"$dir/rows"
}
measure() { # PROGRAM ARGUMENTS...
    echo "measuring: $1" >&2
    "$build/bench/$1" "${@:2}" >>"$dir/rows" || { echo "  $1 failed" >&2; failed=$((failed + 1)); }
}

mkdir "$dir/state"
"$build/hbmd" --device "$device" --runtime-dir "$HBM_RUNTIME_DIR" --state-dir "$dir/state" >"$dir/log" 2>&1 </dev/null &
daemon=$!
for _ in {1..200}; do
    if [ "$(ctl --json devices 2>/dev/null | pick "len(d) > 0 and all(v['state'] == 'ready' for v in d)" 2>/dev/null)" = True ]; then
        break
    fi
    kill -0 "$daemon" 2>/dev/null || { echo 'hbmd does not start' >&2; exit 1; }
    sleep 0.1
done
owner=$(ctl --json status | pick "d['pid']")
ctl --json devices | pick "d[0]['name']" >"$dir/device"

measure socket_bench "$owner"
measure flood_bench
measure lock_bench
measure attach_bench
ctl rm bench-model >/dev/null || true
measure cycles_bench "$owner"
measure offload_bench
measure layers_bench
ctl rm bench-layers >/dev/null || true
echo "measuring: load of $load_gib GiB, $load_runs times" >&2
python3 tests/bench/load.py "$build/hbmctl" "$dir/load.safetensors" "$load_gib" "$load_runs" >>"$dir/rows" ||
    { echo '  load failed' >&2; failed=$((failed + 1)); }
rm -f "$dir/load.safetensors"
echo "measuring: $disk_mib MiB to disk and back, $disk_runs times" >&2
python3 tests/bench/disk.py "$build/hbmctl" "$dir" "$disk_mib" "$disk_runs" >>"$dir/rows" ||
    { echo '  disk failed' >&2; failed=$((failed + 1)); }

# ---- Doing nothing: after all of the above, once the worker has had time to drop its context -----------------------------
echo 'measuring: idle' >&2
sleep 12
switches() { cat "/proc/$owner"/task/*/status | awk '/ctxt_switches/ {n += $2} END {print n}'; }
before=$(switches)
sleep 5
woken=$(($(switches) - before))
rss=$(awk '/^VmRSS/ {print $2}' "/proc/$owner/status")
row 'idle owner: memory' MB "$(awk "BEGIN {print $rss / 1024}")" '<= 20' "$([ "$rss" -le 20480 ] && echo true || echo false)" 1
row 'idle owner: wake-ups in 5 s' '' "$woken" '<= 0' "$([ "$woken" -eq 0 ] && echo true || echo false)" 1
if [ "$mode" = gpu ]; then
    worker_pid=$(ctl --json devices | pick "d[0]['worker_pid']")
    contexts=$(nvidia-smi --query-compute-apps=pid --format=csv,noheader | grep -cx " *$worker_pid" || true)
    row 'idle worker: CUDA contexts' '' "$contexts" '<= 0' "$([ "$contexts" -eq 0 ] && echo true || echo false)" 1
fi
kill -TERM "$daemon"
wait "$daemon" || { echo 'hbmd did not end in good order' >&2; failed=$((failed + 1)); }
daemon=''

# ---- The worker and the codecs by themselves ------------------------------------------------------------------------------
alone() { # PROGRAM ARGUMENTS...
    echo "measuring: $1" >&2
    "$build/bench/$1" "${@:2}" >"$dir/$1.log" 2>&1 || { cat "$dir/$1.log" >&2; failed=$((failed + 1)); }
}
if [ "$mode" = gpu ]; then
    alone worker_bench "$dir/worker.json" "$worker" "$dir"
    alone codec_bench "$dir/codec.json"
fi

python3 tests/bench/table.py "$mode" "$dir" "tests/bench/results/$mode-$(date -u +%F).json"
[ "$failed" -eq 0 ] || { echo "$failed measurements failed" >&2; exit 1; }
