#!/usr/bin/env bash
# What static tools find. Each runs where it is installed and is said to be missing where not.
# usage: lint.sh [SCRIPT...]      (BUILD: scratch)
set -euo pipefail
cd "$(dirname "$0")/../.."
status=0

have() {
    command -v "$1" >/dev/null || { echo "$1 is not installed: left out"; return 1; }
}

if have shellcheck; then
    shellcheck "$@" || status=1
fi
# Of cleanup attributes cppcheck knows nothing: what it says of leaks is left to the leak sanitizer.
if have cppcheck; then
    mapfile -t sources < <(find daemon client proto config kernels -name '*.c')
    cppcheck --quiet --std=c11 --language=c --error-exitcode=1 --inline-suppr --enable=warning,performance,portability \
        --suppress=missingInclude --suppress=missingIncludeSystem --suppress=unknownMacro --suppress=memleak \
        --suppress=resourceLeak --suppress=internalAstError --suppress=invalidPointerCast -D_GNU_SOURCE \
        -DHBM_VERSION='"lint"' -I. -Iclient -j "$(nproc)" \
        "${sources[@]}" || status=1
fi
# gcc's analyzer is slow and takes cleanup attributes for leaks at times: asked for by name.
if [ "${ANALYZE:-}" = 1 ]; then
    make BUILD="${BUILD:-build}/analyze" NVCC= CFLAGS='-O1 -g -fanalyzer' -j "$(nproc)" -k all || status=1
fi
exit "$status"
