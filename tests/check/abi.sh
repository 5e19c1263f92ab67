#!/usr/bin/env bash
# The interface of libhbm as it is built is that of tests/golden/libhbm.abi, by libabigail. A change on purpose: abi.sh --update,
# in the same commit as its cause; where abidiff calls it incompatible, what is released needs another soname.
set -euo pipefail
cd "$(dirname "$0")/../.."
library=${HBM_LIBRARY:-build/libhbm.so}
dump=tests/golden/libhbm.abi
how=(--drop-private-types --exported-interfaces-only --no-show-locs)

if ! command -v abidiff >/dev/null; then
    echo 'waived: there is no abidiff; it is in Debian'\''s abigail-tools'
    exit 77
fi
headers=$(mktemp -d)
trap 'rm -rf "$headers"' EXIT
mkdir "$headers/proto"
cp client/hbm.h "$headers"
cp proto/vocab.h proto/errors.h "$headers/proto"
if [ "${1:-}" = --update ]; then
    abidw "${how[@]}" --headers-dir "$headers" --drop-undefined-syms --no-corpus-path --no-comp-dir-path --type-id-style hash "$library" >"$dump"
fi
if readelf --wide --dyn-syms "$library" | awk '$7 != "UND" && $8 ~ /^hbm_/ && $8 !~ /@@HBM_/ {print $8; n++} END {exit n > 0}' &&
    abidiff "${how[@]}" --headers-dir2 "$headers" "$dump" "$library"; then
    echo 'ok - the interface of libhbm is that of libhbm.abi'
else
    echo 'FAIL - the interface of libhbm has changed, or a symbol has no version; if that is meant, run tests/check/abi.sh --update'
    exit 1
fi
