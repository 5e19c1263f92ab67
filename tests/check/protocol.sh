#!/usr/bin/env bash
# The wire as it is compiled is the wire of tests/golden/protocol.txt. A change on purpose: protocol.sh --update.
set -euo pipefail
cd "$(dirname "$0")/../.."

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${CC:-gcc}" -std=gnu17 -I. -Wall -Wextra -Werror tests/golden/dump.c -o "$folder/dump"
"$folder/dump" >"$folder/protocol.txt"
if [ "${1:-}" = --update ]; then
    cp "$folder/protocol.txt" tests/golden/protocol.txt
fi
if diff -u tests/golden/protocol.txt "$folder/protocol.txt"; then
    echo "ok - the wire is that of protocol.txt"
else
    echo "FAIL - the wire has changed; if that is meant: raise the version where it must, and run tests/check/protocol.sh --update"
    exit 1
fi
