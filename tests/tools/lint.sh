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
# gcc's analyzer is slow: asked for by name. What it says that is not so is in analyzer.txt, with the reason.
if [ "${ANALYZE:-}" = 1 ]; then
    build=${BUILD:-build}/analyze
    rm -rf "$build" # what is not compiled is not looked at
    mkdir -p "$build"
    make BUILD="$build" NVCC= CFLAGS='-O1 -g -fanalyzer -Wno-error' -j "$(nproc)" -k all >"$build/log" 2>&1 || status=1
    sed -nE 's|^(\./)?([^:]+):([0-9]+):[0-9]+: warning: (.*) \[-Wanalyzer-([a-z-]+)\]$|\2 \5 \3 \4|p' "$build/log" | sort -u |
        awk 'NR == FNR {if (!/^#/) known[$1, $2]; next} !(($1, $2) in known) {print; n++} END {exit n > 0}' \
            tests/tools/analyzer.txt - || { echo "gcc's analyzer: the whole of it is in $build/log"; status=1; }
fi
exit "$status"
