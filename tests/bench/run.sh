#!/usr/bin/env bash
# Measures a private daemon on the host device or the GPU, beside what the machine itself does in the same run; prints one
# table and writes it as JSON to tests/bench/results/, with plots of what moved when beside it.
# usage: run.sh host|gpu      (BUILD: where the programs are; ONLY=offload,wake: these programs alone; RUNS: at most so many
#                              samples of what takes long; OFFLOAD_MIB, KERNEL_MIB, LIVE_MIB, LAYER_MIB, WAKE_MIB, LINKS_MIB:
#                              sizes of what moves; LOAD_GIB, LOAD_RUNS, DISK_MIB, DISK_RUNS: likewise; HOST_DEVICES: so many
#                              devices of host memory)
set -euo pipefail
cd "$(dirname "$0")/../.."

mode=${1:?usage: run.sh host|gpu}
build=${BUILD:-build}
load_gib=${LOAD_GIB:-4} load_runs=${LOAD_RUNS:-20}
disk_mib=${DISK_MIB:-512} disk_runs=${DISK_RUNS:-7}
read -ra offload_mib <<<"${OFFLOAD_MIB:-}"
export BENCH_TRACE
device=host worker=$build/hbm-worker-cuda
if [ "$mode" = gpu ]; then
    device=cuda
    compgen -G '/dev/nvidia[0-9]*' >/dev/null || { echo 'There is no GPU here: measure with: make bench' >&2; exit 1; }
    [ -x "$worker" ] || { echo 'There is no hbm-worker-cuda: building it takes nvcc.' >&2; exit 1; }
fi
dir=$(mktemp -d "$build/bench.XXXX")
export HBM_RUNTIME_DIR=$dir/run
BENCH_TRACE=$dir/trace
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
left_out() { echo "left out: $1" >&2; }
chosen() { # PROGRAM, with or without _bench
    [ -z "${ONLY:-}" ] || [[ ,$ONLY, == *,$1,* ]] || [[ ,$ONLY, == *,${1%_bench},* ]]
}
timed() { # WHAT COMMAND...     its rows come to stdout
    local since=$SECONDS
    echo "measuring: $1" >&2
    "${@:2}" || { echo "  $1 failed" >&2; failed=$((failed + 1)); }
    echo "  $1: $((SECONDS - since)) s" >&2
}
measure() { # PROGRAM ARGUMENTS...
    if chosen "$1"; then timed "$1" "$build/bench/$1" "${@:2}" >>"$dir/rows"; fi
}
script() { # NAME ARGUMENTS...
    if chosen "$1"; then timed "$1" python3 "tests/bench/$1.py" "$build/hbmctl" "${@:2}" >>"$dir/rows"; fi
}

# Doing nothing, once the worker has had time to drop its context. Early: what large moves leave in the host pool goes a minute
# later, and that wakes the owner.
measure_idle() {
    local before woken rss worker_pid contexts
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
}

mkdir "$dir/state"
touch "$dir/rows"
# Room for a large model, and for a thousand loose tensors.
printf '%s\n' 'host_bytes = 60%' 'account_objects = 0' "host_devices = ${HOST_DEVICES:-1}" >"$dir/hbmd.conf"
"$build/hbmd" --config "$dir/hbmd.conf" --device "$device" --runtime-dir "$HBM_RUNTIME_DIR" --state-dir "$dir/state" \
    >"$dir/log" 2>&1 </dev/null &
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

# First: what others have left behind is ready for them, not for its sizes.
if [ "$mode" = gpu ]; then measure pin_bench; fi
measure socket_bench "$owner"
measure flood_bench
measure lock_bench
measure attach_bench
ctl rm bench-model >/dev/null 2>&1 || true
measure cycles_bench "$owner"
measure offload_bench "${offload_mib[@]}"
if chosen idle; then timed idle measure_idle; fi
measure pair_bench "${offload_mib[@]}"
measure small_bench
ctl rm bench-small >/dev/null 2>&1 || true
measure kernel_bench ${KERNEL_MIB:+"$KERNEL_MIB"}
measure live_bench ${LIVE_MIB:+"$LIVE_MIB"}
if [ "$mode" = gpu ]; then measure pin_bench offload; fi
measure layers_bench ${LAYER_MIB:+"$LAYER_MIB"}
ctl rm bench-layers >/dev/null 2>&1 || true
measure wake_bench ${WAKE_MIB:+"$WAKE_MIB"}
ctl rm bench-wake >/dev/null 2>&1 || true
if [ "$(ctl --json devices | pick 'len(d)')" -ge 2 ]; then
    measure links_bench "$dir/hbmd.conf" "$owner" ${LINKS_MIB:+"$LINKS_MIB"}
else
    left_out 'a restore over two links: there is one device'
fi
script load "$dir/load.safetensors" "$load_gib" "$load_runs"
rm -f "$dir/load.safetensors"
script disk "$dir" "$disk_mib" "$disk_runs"

kill -TERM "$daemon"
wait "$daemon" || { echo 'hbmd did not end in good order' >&2; failed=$((failed + 1)); }
daemon=''

# ---- The worker and the codecs by themselves ------------------------------------------------------------------------------
alone() { # PROGRAM ARGUMENTS...
    "$build/bench/$1" "${@:2}" >"$dir/$1.log" 2>&1 || { cat "$dir/$1.log" >&2; return 1; }
}
if [ "$mode" = gpu ]; then
    if chosen worker_bench; then timed worker_bench alone worker_bench "$dir/worker.json" "$worker" "$dir"; fi
    if chosen codec_bench; then timed codec_bench alone codec_bench "$dir/codec.json"; fi
    measure matmul_bench
fi

results=tests/bench/results
python3 tests/bench/table.py "$mode" "$dir" "$results/$mode-$(date -u +%F)${ONLY:+-part}.json"
python3 tests/bench/plot.py "$BENCH_TRACE" "$results/$mode" "$(cat "$dir/device")"
[ "$failed" -eq 0 ] || { echo "$failed measurements failed" >&2; exit 1; }
