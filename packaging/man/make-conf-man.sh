#!/usr/bin/env bash
# hbmd.conf(5) on standard output, from the keys' own table. usage: make-conf-man.sh OPTIONS.DEF
set -euo pipefail
options=${1:?usage: make-conf-man.sh OPTIONS.DEF}

plain() {
    sed -e 's/\\/\\(rs/g' -e 's/-/\\-/g' -e "s/^[.']/\\\\\\&&/" -e 's/"/\\(dq/g'
}

declare -A kinds=(
    [TEXT]='text' [DEVICE]='auto, cuda or host' [LEVEL]='error, warning, info or debug' [BYTES]='bytes'
    [SIZE]='bytes or %' [COUNT]='a number' [PERCENT]='0 to 100' [SECONDS]='seconds'
    [SWITCH]='yes or no'
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
rows=0
pattern='^OPTION\(([a-z_]+), ([A-Z]+), "([^"]*)", (RELOAD|RESTART), "(.*)"\)$'
while IFS= read -r line; do
    [[ $line =~ $pattern ]] || continue
    key=${BASH_REMATCH[1]} kind=${kinds[${BASH_REMATCH[2]}]} default=${BASH_REMATCH[3]} when=${BASH_REMATCH[4]}
    about=${BASH_REMATCH[5]}
    printf '.TP\n.B %s\n' "$(plain <<<"$key")"
    plain <<<"${about^}."
    plain <<<"Takes ${kind}; default ${default:-empty}$([ "$when" = RELOAD ] && echo '; reload')."
    rows=$((rows + 1))
done <"$options"
# A row that this pattern does not know would be missing from the page.
[ "$rows" -eq "$(grep -c '^OPTION(' "$options")" ]
cat <<'TAIL'
.SH EXAMPLES
.nf
device_bytes = 60%
host_bytes = 64GiB
offload_limit = 50
.fi
.SH SEE ALSO
.BR hbmctl (1),
.BR hbmd (8)
TAIL
