#!/usr/bin/env bash
# What static tools find. Each runs where it is installed and is said to be missing where not.
# usage: lint.sh [SCRIPT...]      (BUILD: scratch; CUDA_HOME: for the CUDA worker's headers)
set -euo pipefail
cd "$(dirname "$0")/../.."
status=0

have() {
    command -v "$1" >/dev/null || { echo "$1 is not installed: left out"; return 1; }
}

# Of lines FILE CLASS LINE WHAT those that analyzer.txt does not explain; fails if there are some.
unknown() {
    sort -u | awk 'NR == FNR {if (!/^#/) known[$1, $2]; next} !(($1, $2) in known) {print; n++} END {exit n > 0}' \
        tests/tools/analyzer.txt -
}

mapfile -t sources < <(find daemon client proto config kernels -name '*.c')
defines=(-D_GNU_SOURCE -DHBM_VERSION='"lint"' -I. -Iclient)

if have shellcheck; then
    shellcheck "$@" || status=1
fi
# Of cleanup attributes cppcheck knows nothing: what it says of leaks is left to the leak sanitizer.
if have cppcheck; then
    cppcheck --quiet --std=c11 --language=c --error-exitcode=1 --inline-suppr --enable=warning,performance,portability \
        --suppress=missingInclude --suppress=missingIncludeSystem --suppress=unknownMacro --suppress=memleak \
        --suppress=resourceLeak --suppress=internalAstError --suppress=invalidPointerCast "${defines[@]}" \
        -j "$(nproc)" "${sources[@]}" || status=1
fi
# What clang-tidy looks for, and what not, is in .clang-tidy. A file at a time: of several, that of Debian 12 takes every
# va_list after the first file for uninitialized.
if have clang-tidy; then
    cuda=(-isystem "${CUDA_HOME:-}/include") build=${BUILD:-build}/tidy
    if [ ! -e "${CUDA_HOME:-}/include/cuda.h" ]; then
        echo 'CUDA is not installed: clang-tidy leaves daemon/worker/cuda out'
        cuda=()
        mapfile -t sources < <(printf '%s\n' "${sources[@]}" | grep -v '^daemon/worker/cuda/')
    fi
    mkdir -p "$build"
    printf '%s\0' "${sources[@]}" | xargs -0 -I{} -P "$(nproc)" clang-tidy --quiet {} -- -std=gnu17 "${defines[@]}" \
        "${cuda[@]}" >"$build/log" 2>&1 || status=1
    sed -nE "s#^($PWD/|\\./)?([^:]+):([0-9]+):[0-9]+: (warning|error): (.*) \\[([^]]+)\\]\$#\\2 \\6 \\3 \\5#p" "$build/log" | unknown ||
        { echo "clang-tidy: the whole of it is in $build/log"; status=1; }
fi
# gcc's analyzer is slow: asked for by name.
if [ "${ANALYZE:-}" = 1 ]; then
    build=${BUILD:-build}/analyze
    rm -rf "$build" # what is not compiled is not looked at
    mkdir -p "$build"
    make BUILD="$build" NVCC= CFLAGS='-O1 -g -fanalyzer -Wno-error' -j "$(nproc)" -k all >"$build/log" 2>&1 || status=1
    sed -nE 's|^(\./)?([^:]+):([0-9]+):[0-9]+: warning: (.*) \[-Wanalyzer-([a-z-]+)\]$|\2 \5 \3 \4|p' "$build/log" | unknown ||
        { echo "gcc's analyzer: the whole of it is in $build/log"; status=1; }
fi
exit "$status"
