#!/usr/bin/env bash
# Runs the tests that are built and adds up what their runners say. Ends with what failed, by name, and
# "N passed, N failed, N skipped".
# usage: check.sh host BUILD ASAN_BUILD | inject BUILD ASAN_BUILD | gpu BUILD | tsan BUILD
#
# host    tests/check/*, unit tests, the simulation, short fuzzing, a sample of injected failures, a short kill storm and
#         flows on sanitized builds; GPU programs say themselves that they are waived
# gpu     tests/gpu/*, the flows and HBM_SOAK_SECONDS of kill storm on the plain build; on a machine with a GPU nothing
#         may be waived, but what wants two GPUs where there is one
# inject  all failures, in all flows, on the sanitized build
# tsan    the unit tests of that build
set -euo pipefail
cd "$(dirname "$0")/../.."

mode=${1:?usage: check.sh host|gpu|tsan BUILD [ASAN_BUILD]}
plain=$(realpath "${2:?usage: check.sh host|gpu|tsan BUILD [ASAN_BUILD]}")
tested=$(realpath "${3:-$plain}")
logs=$plain/check
passed=0 failed=0 skipped=0 failures=() launcher=() daemon='' beside='' running=()
lanes=1 # programs, or runs of the flows, at a time
mkdir -p "$logs"
scratch=$(mktemp -d)
trap 'kill $daemon $beside "${running[@]}" 2>/dev/null || true; rm -rf "$scratch"' EXIT

export HBM_BUILD=$tested HBM_WORKER=$tested/hbm-worker HBM_WORKER_CUDA=$plain/hbm-worker-cuda
export HBM_LIBRARY=$plain/libhbm.so # of Python's clients: an interpreter cannot load a sanitized one
export PYTHONDONTWRITEBYTECODE=1
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1:abort_on_error=0:detect_stack_use_after_return=1}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1:halt_on_error=1}
export TSAN_OPTIONS=${TSAN_OPTIONS:-halt_on_error=1:second_deadlock_stack=1}
unset HBM_RUNTIME_DIR NOTIFY_SOCKET LISTEN_FDS LISTEN_PID XDG_RUNTIME_DIR

has_gpu() {
    compgen -G '/dev/nvidia[0-9]*' >/dev/null
}

# It wants two GPUs, and there is one: no failure, but said.
wants_another_gpu() { # PROGRAM
    [ "$(basename "$1")" = peer_gpu ] && [ "$(compgen -G '/dev/nvidia[0-9]*' | wc -l)" -lt 2 ]
}

# Sum of the numbers before WORD in lines of a log that match PATTERN.
sum() { # LOG PATTERN WORD
    grep -aE "$2" "$1" | grep -oE "[0-9]+ $3" | awk '{n += $1} END {print n + 0}'
}

lines() { # LOG PATTERN
    grep -acE "$2" "$1" || true
}

at_most_four() {
    lanes=$(($(nproc) < 4 ? $(nproc) : 4))
}

# What a log says failed: cmocka's tests and our own checks, pytest's summary.
failed_lines() { # LOG
    grep -aE '^(FAIL - |FAILED |ERROR )|^\[  FAILED  \] [a-z]' "$1" | sort -u | head -n 20 | cut -c 1-300 | sed 's/^/  /' || true
}

# One line a program; the end of its output where it failed.
account() { # NAME LOG STATUS PASSED FAILED SKIPPED
    local name=$1 log=$2 status=$3 p=$4 f=$5 s=$6

    if [ "$status" -eq 77 ]; then
        s=$((s + 1))
    elif [ "$status" -ne 0 ] && [ "$f" -eq 0 ]; then
        f=1 # a crash, a leak, a limit: no test owned up to it
    elif [ "$status" -eq 0 ] && [ $((p + f + s)) -eq 0 ]; then
        p=1 # a check without a count of its own
    fi
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    printf '  %-24s %4d passed, %d failed, %d skipped\n' "$name" "$p" "$f" "$s"
    if [ "$f" -gt 0 ]; then
        tail -n "${HBM_TAIL:-60}" "$log" | sed 's/^/    | /'
        echo "    whole output: $log, exit status $status"
        failures+=("$name, exit status $status")
        mapfile -t -O "${#failures[@]}" failures < <(failed_lines "$log")
    elif [ "$status" -eq 77 ]; then
        tail -n 1 "$log" | sed 's/^/    waived: /'
    fi
}

# In the place of a shell in the background, which would not mind an interrupt, nor would what it starts.
within() { # SECONDS COMMAND...
    exec env --default-signal=INT,QUIT timeout --kill-after=30 "$@" 2>&1 </dev/null
}

log_of() { # PATH [ARGUMENT]
    echo "$logs/$(basename "$1").log"
}

run() { # PATH [ARGUMENT]
    if [ -x "$1" ]; then
        within "${HBM_TEST_SECONDS:-300}" "${launcher[@]}" "$@"
    else
        echo 'it is not built'
        # Without nvcc there are no GPU programs; every other one has to be there.
        case " ${gpu[*]} " in *" $1 "*) return 77 ;; *) return 1 ;; esac
    fi
}

# Counts cmocka's summary, or lines "ok - ..." and "FAIL - ...".
finish() { # PID PATH [ARGUMENT]
    local name log status=0
    wait "$1" || status=$?
    shift
    name=$(basename "$1") log=$(log_of "$@")
    case ${2:-} in -*) name+=" $2" ;; esac
    account "$name" "$log" "$status" \
        $(($(sum "$log" '^\[  PASSED  \] [0-9]+ test' test) + $(lines "$log" '^ok - '))) \
        $(($(sum "$log" '^\[  FAILED  \] [0-9]+ test' test) + $(lines "$log" '^FAIL - '))) \
        "$(sum "$log" '^\[  SKIPPED \] [0-9]+ test' test)"
}

program() { # PATH [ARGUMENT]
    run "$@" >"$(log_of "$@")" &
    running=($!)
    finish $! "$@"
    running=()
}

# As many at a time as there are lanes; told of in their order.
programs() { # TITLE PROGRAM...
    local each title=$1 first=0 begun=()
    shift
    if [ $# -gt 0 ] && [ -n "$title" ]; then echo "$title"; fi
    for each; do
        begun+=("$each")
        case $each in
            */client_gpu | */cases_gpu | */compress_gpu | */faults_gpu | */live_gpu | */moves_gpu | */peer_gpu) run "$each" "$scratch/run" ;; # want a daemon
            *) run "$each" ;;
        esac >"$(log_of "$each")" &
        running+=($!)
        if [ ${#running[@]} -eq "$lanes" ]; then finish_first; fi
    done
    while [ ${#running[@]} -gt 0 ]; do finish_first; done
}

finish_first() {
    finish "${running[0]}" "${begun[first]}"
    running=("${running[@]:1}") first=$((first + 1))
}

# A daemon on the GPU, which the programs that are clients share.
start_daemon() {
    local devices
    mkdir "$scratch/state"
    "$tested/hbmd" --device cuda --runtime-dir "$scratch/run" --state-dir "$scratch/state" >"$logs/hbmd.log" 2>&1 </dev/null &
    daemon=$!
    for _ in {1..300}; do
        if devices=$("$tested/hbmctl" --runtime-dir "$scratch/run" --json devices 2>/dev/null); then
            case $devices in '[]' | *'"starting"'*) ;; *) return 0 ;; esac
        fi
        sleep 0.1
    done
}

stop_daemon() {
    local status=0
    kill -TERM "$daemon" 2>/dev/null || true
    wait "$daemon" || status=$?
    daemon=''
    if [ "$status" -ne 0 ]; then account 'its daemon' "$logs/hbmd.log" "$status" 0 1 0; fi
}

# The programs that sources make.
built() { # BUILD SOURCE...
    local source build=$1
    shift
    for source; do echo "$build/tests/$(basename "${source%.*}")"; done
}

find_python() {
    local each
    python=''
    for each in "${PYTHON:-python3}" python3 /usr/bin/python3; do
        if "$each" -c 'import pytest' 2>/dev/null; then python=$each; break; fi
    done
    if [ -z "$python" ]; then
        echo "  no python3 here has pytest"
        failed=$((failed + 1))
        return 1
    fi
}

injected() { # short | all; of the driver's calls with HBM_TEST_DEVICE=cuda
    local log=$logs/inject.log status=0
    find_python || return 0
    echo "Injected failures ($1)"
    timeout --kill-after=30 "${HBM_INJECT_SECONDS:-36000}" "$python" tests/inject/run.py "$1" >"$log" 2>&1 </dev/null || status=$?
    account inject "$log" "$status" "$(lines "$log" '^ok - ')" "$(lines "$log" '^FAIL - ')" 0
    tail -n 1 "$log" | sed 's/^/    /'
}

# A run a lane; each takes modules that no other has (tests/flow/conftest.py). Lanes share the first GPUS of the GPUs.
flows() { # [GPUS]
    local log=$logs/flow.log status=0 lane ends device=''
    find_python || return 0
    echo "Flows: real daemons, real clients ($(basename "$tested") build)"
    mkdir "$scratch/share"
    for ((lane = 1; lane <= lanes; lane++)); do
        if [ $# -gt 0 ]; then device=$(((lane - 1) % $1)); fi
        HBM_SHARE=$scratch/share within "${HBM_FLOW_SECONDS:-1200}" env ${device:+CUDA_VISIBLE_DEVICES=$device} \
            "$python" -m pytest -p no:cacheprovider -q -ra --durations=5 tests/flow >"$logs/flow.$lane.log" &
        running+=($!)
    done
    for lane in "${!running[@]}"; do
        wait "${running[lane]}" || status=$?
        cat "$logs/flow.$((lane + 1)).log"
    done >"$log"
    running=()
    ends=$(grep -aE '^[0-9]+ [a-z]+(, [0-9]+ [a-z]+)* in [0-9.]+s' "$log" || true)
    count() { grep -oE "[0-9]+ $1" <<<"$ends" | awk '{n += $1} END {print n + 0}'; }
    account flow "$log" "$status" "$(count passed)" $(($(count failed) + $(count error))) $(($(count skipped) + $(count xfailed)))
    grep -aE '^SKIPPED' "$log" | sed 's/^/    /' || true
}

# Where there are several GPUs the storm has the last to itself, since it counts the driver's memory, and the flows the others meanwhile.
flows_and_storm() {
    local gpus=(/dev/nvidia[0-9]*) HBM_TEST_SECONDS=$((${HBM_SOAK_SECONDS:=300} + 300))
    local last=$((${#gpus[@]} - 1)) storm=(tests/soak/soak.sh cuda "$plain" "$HBM_SOAK_SECONDS")
    local title="Kill storm, $HBM_SOAK_SECONDS seconds"
    if [ "$last" -eq 0 ]; then
        flows
        echo "$title"
        program "${storm[@]}"
    else
        CUDA_VISIBLE_DEVICES=$last run "${storm[@]}" >"$(log_of "${storm[@]}")" &
        beside=$!
        flows "$last"
        echo "$title, beside the flows"
        finish "$beside" "${storm[@]}"
        beside=''
    fi
}

shopt -s nullglob
checks=(tests/check/*.sh tests/check/*.py)
mapfile -t unit < <(built "$tested" tests/unit/test_*.c)
mapfile -t gpu < <(built "$plain" tests/gpu/*_gpu.c tests/gpu/*_gpu.cu)

case $mode in
    host)
        at_most_four
        programs 'Checks of the tree' "${checks[@]}"
        program tests/check/layers.py --self-test
        programs 'Unit tests (sanitized)' "${unit[@]}"
        echo 'Simulation: four seeds, and one at random'
        program tests/sim/simulate.sh check "$tested"
        echo 'Fuzzing, ten seconds each'
        program tests/fuzz/run.sh short "$plain/fuzz" 10
        injected short
        echo 'Kill storm, thirty seconds'
        program tests/soak/soak.sh host "$tested" 30
        flows
        if has_gpu; then
            echo 'GPU programs: make check-gpu runs them'
        else
            programs 'GPU programs' "${gpu[@]}"
            echo "  waived: ${#gpu[@]} programs of GPU tests; on a machine with a GPU \`make check-gpu\` runs them"
        fi
        ;;
    gpu)
        if has_gpu; then
            programs 'GPU programs' "$plain/tests/kills_gpu" # its own daemon has the GPU to itself
            start_daemon
            for each in "${gpu[@]}"; do
                if wants_another_gpu "$each"; then
                    echo "  $(basename "$each") is waived: it wants two GPUs, and there is one"
                elif [ "$each" != "$plain/tests/kills_gpu" ]; then
                    programs '' "$each"
                fi
            done
            stop_daemon
            export HBM_TEST_DEVICE=cuda
            injected short
            at_most_four # each with daemons of its own; no flow counts the driver's memory
            flows_and_storm
            if [ "$skipped" -gt 0 ]; then
                echo "There is a GPU here, so nothing may be waived: $skipped were."
                failed=$((failed + skipped)) skipped=0
            fi
        else
            programs 'GPU programs' "${gpu[@]}"
            echo '  waived, and the flows on a GPU with them: there is none here'
        fi
        ;;
    inject)
        injected all
        ;;
    tsan)
        # Newer kernels spread mappings wider than gcc 12's ThreadSanitizer knows; without randomisation it fits.
        launcher=(setarch "$(uname -m)" -R)
        : "${HBM_TEST_SECONDS:=1800}" # a worker is ten times slower so
        programs 'Under ThreadSanitizer' "$tested"/tests/test_*
        ;;
    *)
        echo "check.sh: no mode \"$mode\"" >&2
        exit 2
        ;;
esac

echo
if [ "${#failures[@]}" -gt 0 ]; then printf 'failed: %s\n' "${failures[@]}"; fi
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
