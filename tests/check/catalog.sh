#!/usr/bin/env bash
# Every message id that the daemon logs is explained in the journal's catalog, and none there is unknown or unused.
set -euo pipefail
cd "$(dirname "$0")/../.."
failed=0

if diff <(grep -oE 'MESSAGE_ID=[0-9a-f]{32}' daemon/base/message_ids.h | cut -d= -f2 | sort) <(sed -n 's/^-- //p' packaging/hbmd.catalog | sort); then
    echo 'ok - the catalog has the ids of message_ids.h'
else
    echo 'FAIL - packaging/hbmd.catalog and daemon/base/message_ids.h differ'
    failed=1
fi
while read -r name; do
    if ! grep -rqw --include='*.c' "$name" daemon; then
        echo "FAIL - nothing logs $name"
        failed=1
    fi
done < <(sed -nE 's/^#define (MESSAGE_[A-Z_]+) .*/\1/p' daemon/base/message_ids.h)
if [ "$(grep -c '^Subject: ' packaging/hbmd.catalog)" -ne "$(grep -c '^-- ' packaging/hbmd.catalog)" ]; then
    echo 'FAIL - an entry of the catalog has no subject'
    failed=1
fi
exit "$failed"
