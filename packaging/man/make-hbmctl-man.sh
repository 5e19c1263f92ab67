#!/usr/bin/env bash
# hbmctl(1) on standard output, from what `hbmctl help` says: the verbs' own table. usage: make-hbmctl-man.sh HBMCTL
set -euo pipefail
hbmctl=${1:?usage: make-hbmctl-man.sh HBMCTL}

# Text as roff takes it; a list of choices may be broken.
plain() {
    sed -e 's/\\/\\(rs/g' -e 's/-/\\-/g' -e "s/^[.']/\\\\\\&&/" -e 's/"/\\(dq/g' -e 's/|/|\\:/g'
}

verbs() {
    "$hbmctl" help | sed -n 's/^  \([a-z][a-z-]*\)  *[^ ].*/\1/p'
}

# Words in capitals are to be replaced, the others typed as they are.
usage() {
    plain | sed -E 's/\b([A-Z][A-Z]+|N|P|G|E)\b/\\fI\1\\fB/g'
}

# A verb's options, a line each: the option, a tab, what it is for. A long one has that in the line below it.
options() { # VERB
    "$hbmctl" help "$1" | awk '
        /^Anywhere/ { exit }
        /^  --/ {
            option = substr($0, 3)
            if (at = match(option, /  +/)) {
                about = substr(option, at + RLENGTH)
                option = substr(option, 1, at - 1)
            } else {
                getline about
                sub(/^ +/, "", about)
            }
            print option "\t" about
        }'
}

# Left-aligned: a list of choices is broken at its bars, where there is no space to stretch.
cat <<'HEAD'
.TH HBMCTL 1 2026-11-30 hbmd "User commands"
.ad l
.SH NAME
hbmctl \- look at and steer the GPU memory broker
.SH SYNOPSIS
.B hbmctl
.RB [ \-\-runtime\-dir
.IR DIR ]
.RB [ \-\-json ]
.RB [ \-\-no\-color ]
.I VERB
.RI [ ARGUMENT " ...]"
.SH DESCRIPTION
.B hbmctl
asks
.BR hbmd (8)
what it holds, and tells it what to do with it.
Everybody who may connect may use it, for what is their own or open to them; root and members of
.B hbm\-admin
for everything.
.SS Selectors
.I SEL
is an exact name (tried first), a glob over names
.RB ( *
matches
.B /
too),
.BI id:0x HEX\fR,
.BI model: NAME\fR,
.BI group: MODEL / GROUP\fR,
or
.BI group: NAME
of every model.
Nothing matched:
.B ls
prints nothing and ends with 0, other verbs end with 1.
.SH OPTIONS
These may stand anywhere on the line.
.TP
.BI \-\-runtime\-dir " DIR"
The daemon's directory; else
.BR HBM_RUNTIME_DIR ,
.IR /run/hbmd ,
.IR $XDG_RUNTIME_DIR/hbmd .
.TP
.B \-\-json
The result as JSON, errors too.
.TP
.B \-\-no\-color
Plain text on a terminal.
.TP
.B \-\-version
Of hbmctl, and end.
.SH VERBS
HEAD
for verb in $(verbs); do
    { read -r line; read -r _; read -r about; } < <("$hbmctl" help "$verb")
    echo '.TP'
    printf '\\fB%s\\fR\n' "$(usage <<<"${line#usage: hbmctl }")"
    plain <<<"${about^}."
    while IFS=$'\t' read -r option for; do
        printf '.RS\n.TP\n\\fB%s\\fR\n%s.\n.RE\n' "$(usage <<<"$option")" "$(plain <<<"${for^}")"
    done < <(options "$verb")
done
cat <<'TAIL'
.SH EXIT STATUS
0 done, 1 refused or failed (one line on standard error: what, why, what to do), 2 usage, 3 no daemon answers.
.SH ENVIRONMENT
.TP
.B HBM_RUNTIME_DIR
The daemon's directory.
In the directory of a listener
.RB ( hbmd.conf (5))
there are clients' verbs alone: load, save, put, get, attach.
.SH EXAMPLES
.nf
hbmctl load model.safetensors \-\-as llama
hbmctl ls \(aqllama/layers.0.*\(aq
hbmctl sleep llama \-\-to host
hbmctl \-\-json status
hbmctl metrics >hbm.prom.new && mv hbm.prom.new hbm.prom
.fi
.SH FILES
.TP
.I hbm\-metrics.service
Serves
.B hbmctl metrics
at http://127.0.0.1:9817/metrics once it is enabled.
.TP
.I /usr/share/hbmd/hbm.rules.yml
Alert rules for Prometheus, whose job is to be called
.BR hbm .
.TP
.I /usr/share/hbmd/hbm.json
A dashboard for Grafana.
.SH SEE ALSO
.BR hbmd.conf (5),
.BR hbmd (8)
TAIL
