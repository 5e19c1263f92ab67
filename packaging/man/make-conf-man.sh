#!/usr/bin/env bash
# hbmd.conf(5) on standard output, from the keys' own tables. usage: make-conf-man.sh OPTIONS.DEF LISTENER.DEF
set -euo pipefail
options=${1:?usage: make-conf-man.sh OPTIONS.DEF LISTENER.DEF} listener=${2:?usage: make-conf-man.sh OPTIONS.DEF LISTENER.DEF}

plain() {
    sed -e 's/\\/\\(rs/g' -e 's/-/\\-/g' -e "s/^[.']/\\\\\\&&/" -e 's/"/\\(dq/g'
}

declare -A kinds=(
    [TEXT]='text' [DEVICE]='auto, cuda or host' [LEVEL]='error, warning, info or debug' [BYTES]='bytes'
    [MODE]='a mode as of a file, octal' [SIZE]='bytes or %' [COUNT]='a number' [DEVICES]='1 to 64' [PERCENT]='0 to 100' [SECONDS]='seconds' [PATIENCE]='seconds'
    [SWITCH]='yes or no'
    [AUTO]='auto or off'
)

cat <<'HEAD'
.TH HBMD.CONF 5 2026-11-30 hbmd "File formats"
.SH NAME
hbmd.conf \- configuration of the GPU memory broker
.SH SYNOPSIS
.I /etc/hbmd/hbmd.conf
.SH DESCRIPTION
Lines of the form
.IB KEY " = " VALUE\fR;
what follows a
.B #
at the start of a line is a comment.
.BR hbmd (8)
takes each key as an option of its command line too where that has it, and that wins.
.B hbmd \-\-check\-config
reports every error with its line;
.B hbmctl config
shows what is in effect and where each value came from.
.PP
Bytes are a number with
.BR KiB ,
.BR MiB ,
.B GiB
or
.BR TiB ;
a percentage is of what is there.
Keys marked
.I reload
are applied by
.BR "systemctl reload hbmd" ,
the others at the next restart.
With an error in the file a reload keeps the configuration from before, and a start fails.
.SH KEYS
HEAD
# Each key of the file; $2: what stands for the default of its account_* keys.
keys() {
    local rows=0
    local pattern='^OPTION\(([a-z_]+), ([A-Z]+), "([^"]*)", (RELOAD|RESTART), "(.*)"\)$'
    while IFS= read -r line; do
        [[ $line =~ $pattern ]] || continue
        key=${BASH_REMATCH[1]} kind=${kinds[${BASH_REMATCH[2]}]} default=${BASH_REMATCH[3]} when=${BASH_REMATCH[4]}
        about=${BASH_REMATCH[5]}
        printf '.TP\n.B %s\n' "$(plain <<<"$key")"
        if [ -n "${2:-}" ] && [[ $key == account_* ]]; then default=$2; fi
        plain <<<"${about^}."
        plain <<<"Takes ${kind}; default ${default:-empty}$([ "$when" = RELOAD ] && echo '; reload')."
        rows=$((rows + 1))
    done <"$1"
    # A row that this pattern does not know would be missing from the page.
    [ "$rows" -eq "$(grep -c '^OPTION(' "$1")" ]
}

keys "$options"
cat <<'LISTENERS'
.SH LISTENERS
A section
.BI "[listener " NAME ]
is one more client socket,
.I hbmd.sock
in a directory of its own: for a pod, a container or a tenant, to be mounted there, read\-only.
Behind it everybody may be user 0, so the socket is the credential:
what is made there belongs to the listener and the user, nobody there is an administrator, and nothing of other listeners
is to be seen, in the same words as if it were not there.
An administrator calls it
.IR ~NAME : UID / BUFFER .
The name is what memory belongs to; the memory of a listener that is no more in the file is an administrator's to free.
.PP
The directory is made if it is missing, and has to be
.BR hbmd 's
own to write; a listener whose directory is not safe is not served, with an error in the log, and the others are.
The shipped unit may write to
.I /run/hbmd
alone: let
.I hbmd.socket
make the socket, by a line
.BI ListenSequentialPacket= DIRECTORY /hbmd.sock
in a drop\-in; passed sockets are known by their paths.
.PP
All keys take a restart.
An account_* key that is not in the section is as it is outside of the sections; a total_* key is for all of the listener's
users together.
LISTENERS
keys "$listener" 'as outside of the sections'
cat <<'TAIL'
.SH EXAMPLES
.nf
device_bytes = 60%
host_bytes = 64GiB
offload_limit = 50

[listener pods]
directory = /run/hbmd\-pods
devices = 0,1
total_device_bytes = 40GiB
.fi
.SH SEE ALSO
.BR hbmctl (1),
.BR hbmd (8)
TAIL
