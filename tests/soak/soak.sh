#!/usr/bin/env bash
# Runs the kill storm (storm.py) on a build: the daemon, and BUILD/soak/client.
# usage: soak.sh host|cuda BUILD SECONDS [SEED]
set -euo pipefail
cd "$(dirname "$0")/../.."

device=${1:?usage: soak.sh host|cuda BUILD SECONDS [SEED]} build=${2:?} seconds=${3:?} seed=${4:-}

export HBM_TEST_DEVICE=$device HBM_BUILD=$build PYTHONDONTWRITEBYTECODE=1
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1:detect_stack_use_after_return=1}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1:halt_on_error=1}
unset HBM_RUNTIME_DIR NOTIFY_SOCKET LISTEN_FDS LISTEN_PID XDG_RUNTIME_DIR

# It shares the flows' helpers, and with them pytest.
for python in "${PYTHON:-python3}" python3 /usr/bin/python3; do
    if "$python" -c 'import pytest' 2>/dev/null; then
        exec "$python" tests/soak/storm.py --seconds "$seconds" ${seed:+--seed "$seed"}
    fi
done
echo 'FAIL - no python3 here has pytest'
exit 1
