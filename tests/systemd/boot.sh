#!/usr/bin/env bash
# A real systemd as PID 1 of its own namespaces, on this machine's own files: what it writes goes to overlays in memory,
# and its processes live in a cgroup of their own. Ends when its standard input does, or when that systemd ends; then
# nothing is left of either. usage: boot.sh SCRATCH [DIRECTORY...]
#
# SCRATCH      an empty directory, for mounts that nobody outside sees
# DIRECTORIES  are at /run/seen/1, /run/seen/2, ... inside, read-only, wherever they are outside
#
# Says "init PID" once there is a process to enter (nsenter -t PID -a). Exit status 77: this machine does not allow it.
set -euo pipefail

waived() {
    echo "waived: $*"
    exit 77
}

# ---- Outside: a guardian that outlives the rest and cleans up ----

guard() {
    local each
    [ "$(id -u)" -eq 0 ] || waived 'needs root'
    [ -x /lib/systemd/systemd ] || waived 'needs the package systemd'
    for each in unshare nsenter setpriv; do
        command -v "$each" >/dev/null || waived "needs $each of util-linux"
    done
    unshare -p -m -n -u -i -C --fork --kill-child true 2>/dev/null || waived 'unshare is refused here'
    grep -qw overlay /proc/filesystems || modprobe -q overlay 2>/dev/null || waived 'no overlay file system here'
    exec unshare -m --propagation private "$0" --guard "$@"
}

# Sets group: a cgroup below the one that we are in, for systemd takes charge of all that it finds at its root.
own_group() { # SCRATCH
    local path
    path=$(sed -n 's/^0:://p' /proc/self/cgroup)
    mkdir -p "$1/cgroup"
    mount -n -t cgroup2 cgroup2 "$1/cgroup" 2>/dev/null || waived 'no cgroup2 here'
    group=$1/cgroup${path%/}/$(basename "$1")
    mkdir "$group" 2>/dev/null || waived 'no cgroup can be made here'
}

# Everything that guarded started, the group, and the scratch directory.
clean() {
    local each tries=100
    for each in "$holder" "$listener"; do
        if [ -n "$each" ]; then kill -KILL "$each" 2>/dev/null || true; fi
    done
    while ((tries-- > 0)); do
        find "$group" -depth -type d -exec rmdir {} + 2>/dev/null || true
        [ -d "$group" ] || break
        sleep 0.05
    done
    [ ! -d "$group" ] || echo "the cgroup $group is still in use" >&2
    umount -n "$scratch/cgroup"
    rm -rf --one-file-system "$scratch"
}

start() { # GROUP SCRATCH [DIRECTORY...]
    echo "$BASHPID" >"$1/cgroup.procs"
    exec setpriv --pdeathsig KILL unshare -p -m -n -u -i -C --fork --kill-child "$0" --inside "${@:2}" </dev/null
}

guarded() {
    local init status=0
    holder='' listener='' scratch=$1
    own_group "$1"
    trap clean EXIT
    trap 'exit 143' TERM
    start "$group" "$@" &
    holder=$!
    trap '' PIPE # whoever listened to us may be gone
    # Nobody says anything on standard input: its end is the word.
    (cat >/dev/null; kill -KILL "$holder") 2>/dev/null <&0 &
    listener=$!
    for _ in {1..200}; do
        init=$(cat "/proc/$holder/task/$holder/children" 2>/dev/null || true)
        if [ -n "${init// /}" ]; then echo "init ${init// /}"; break; fi
        sleep 0.01
    done
    wait "$holder" || status=$?
    return "$status"
}

# ---- Inside ----

overlay() { # MEMORY DIRECTORY
    mkdir "$1/$2" "$1/$2.work"
    mount -n -t overlay -o "lowerdir=/$2,upperdir=$1/$2,workdir=$1/$2.work" overlay "/$2"
}

read_only() {
    [ -e "$1" ] || return 0
    mount -n --bind "$1" "$1"
    mount -n -o remount,bind,ro "$1"
}

# Device nodes of the host by name only: journald links /dev/log, and that would be the host's.
own_dev() { # DIRECTORY
    local node
    mkdir "$1"
    mount -n -t tmpfs -o mode=755 tmpfs "$1"
    for node in null zero full random urandom tty nvidiactl nvidia-uvm nvidia-uvm-tools nvidia{0..15}; do
        if [ -c "/dev/$node" ]; then
            : >"$1/$node"
            mount -n --bind "/dev/$node" "$1/$node"
        fi
    done
    mkdir -m 1777 "$1/shm"
    mkdir "$1/pts"
    mount -n -t tmpfs -o mode=1777 tmpfs "$1/shm"
    mount -n -t devpts -o newinstance,ptmxmode=666 devpts "$1/pts"
    ln -s pts/ptmx "$1/ptmx"
    ln -s /proc/self/fd "$1/fd"
    ln -s fd/0 "$1/stdin"
    ln -s fd/1 "$1/stdout"
    ln -s fd/2 "$1/stderr"
    mount -n --move "$1" /dev
}

own_run() { # DIRECTORY SEEN...
    local run=$1 i=0 each
    shift
    mkdir "$run"
    mount -n -t tmpfs -o mode=755 tmpfs "$run"
    for each; do
        mkdir -p "$run/seen/$((++i))"
        mount -n --bind -o ro "$each" "$run/seen/$i"
    done
    mkdir -p "$run/systemd/system"
    mount -n --move "$run" /run
}

# Of what a boot starts, the journal alone: the rest is the host's business.
mask() {
    local wanted
    for wanted in /usr/lib/systemd/system/{sysinit,sockets,local-fs,basic,timers,multi-user}.target.wants/*; do
        case ${wanted##*/} in
            systemd-journald.socket | systemd-journald-dev-log.socket | systemd-journald.service | '*') ;;
            *) ln -sf /dev/null "/run/systemd/system/${wanted##*/}" ;;
        esac
    done
    mount -n -t tmpfs tmpfs /etc/systemd/system
    mount -n -t tmpfs tmpfs /usr/lib/systemd/system-generators
}

inside() {
    local each memory=$1/memory
    shift
    mount -n --make-rprivate /
    mount -n -t proc proc /proc
    read_only /proc/sys
    read_only /proc/sysrq-trigger
    mount -n -t cgroup2 cgroup2 /sys/fs/cgroup
    mkdir "$memory"
    mount -n -t tmpfs -o mode=755 tmpfs "$memory"
    own_dev "$memory/dev"
    own_run "$memory/run" "$@"
    for each in etc usr var; do overlay "$memory" "$each"; done
    mask
    [ -s /etc/machine-id ] || tr -d - </proc/sys/kernel/random/uuid >/etc/machine-id
    # Whatever an installed hbmd of the host has is not ours to find.
    rm -rf /etc/hbmd /var/lib/hbmd /var/log/journal
    mkdir -p /var/tmp
    mount -n -t tmpfs -o mode=1777 tmpfs /var/tmp
    mount -n -t tmpfs -o mode=1777 tmpfs /tmp
    cd /
    exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin container=ns \
        /lib/systemd/systemd --system --unit=basic.target
}

case ${1:-} in
    --guard) shift && guarded "$@" ;;
    --inside) shift && inside "$@" ;;
    '') echo 'usage: boot.sh SCRATCH [DIRECTORY...]' >&2 && exit 2 ;;
    *) guard "$@" ;;
esac
