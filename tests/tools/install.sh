#!/usr/bin/env bash
# Puts what is built under $DESTDIR$PREFIX. Environment: BUILD, VERSION, DESTDIR, PREFIX.
set -euo pipefail
cd "$(dirname "$0")/../.."
: "${BUILD:?}" "${VERSION:?}" "${PREFIX:?}"
root=${DESTDIR:-}$PREFIX
# What belongs to the machine and not to a prefix.
etc=${DESTDIR:-}/etc

put() { # MODE DIRECTORY FILE...
    local mode=$1 to=$2
    shift 2
    install -d "$to"
    install -m "$mode" "$@" "$to"
}

put 755 "$root/sbin" "$BUILD/hbmd"
put 755 "$root/bin" "$BUILD/hbmctl"
put 755 "$root/lib/hbmd" "$BUILD/hbm-worker"
if [ -x "$BUILD/hbm-bench-smem" ]; then put 755 "$root/lib/hbmd" "$BUILD/hbm-bench-smem"; fi
if [ -x "$BUILD/hbm-worker-cuda" ]; then put 755 "$root/lib/hbmd" "$BUILD/hbm-worker-cuda"; fi

put 644 "$root/lib" "$BUILD/libhbm.a"
install -m 755 "$BUILD/libhbm.so" "$root/lib/libhbm.so.$VERSION"
ln -sf "libhbm.so.$VERSION" "$root/lib/libhbm.so.0"
ln -sf libhbm.so.0 "$root/lib/libhbm.so"

if [ -f "$BUILD/libhbm-matmul.so" ]; then
    install -m 755 "$BUILD/libhbm-matmul.so" "$root/lib/libhbm-matmul.so.$VERSION"
    ln -sf "libhbm-matmul.so.$VERSION" "$root/lib/libhbm-matmul.so.0"
    ln -sf libhbm-matmul.so.0 "$root/lib/libhbm-matmul.so"
    put 644 "$root/include/hbm" kernels/matmul/hbm_matmul.h kernels/matmul/hbm_tile.cuh
fi

# Where Debian's python3 looks for what packages bring, whatever its version.
put 644 "$root/lib/python3/dist-packages/hbm" client/python/hbm/*.py client/python/hbm/py.typed

# hbm.h says "proto/...": that folder comes along, and the pkg-config file points beside it.
put 644 "$root/include/hbm" client/hbm.h
put 644 "$root/include/hbm/proto" proto/vocab.h proto/errors.h proto/errors.def proto/dtypes.def proto/codecs.def
install -d "$root/lib/pkgconfig"
cat >"$root/lib/pkgconfig/hbm.pc" <<PC
prefix=$PREFIX
libdir=\${prefix}/lib
includedir=\${prefix}/include/hbm

Name: hbm
Description: GPU memory that a broker owns and processes share
Version: $VERSION
Libs: -L\${libdir} -lhbm
Libs.private: -ldl -pthread
Cflags: -I\${includedir}
PC

# Three of the manual's pages are made from the programs' own tables.
put 644 "$root/share/man/man8" packaging/man/hbmd.8
put 644 "$root/share/man/man3" packaging/man/libhbm.3
put 644 "$root/share/man/man7" "$BUILD/hbm-rpc.7"
install -d "$root/share/man/man1" "$root/share/man/man5"
packaging/man/make-hbmctl-man.sh "$BUILD/hbmctl" | install -m 644 /dev/stdin "$root/share/man/man1/hbmctl.1"
packaging/man/make-conf-man.sh config/options.def config/listener.def | install -m 644 /dev/stdin "$root/share/man/man5/hbmd.conf.5"

put 644 "$root/lib/systemd/system" packaging/hbmd.service packaging/hbmd.socket packaging/hbm-metrics.service
sed -i "s|/usr/sbin/hbmd|$PREFIX/sbin/hbmd|; s|/usr/bin/hbmctl|$PREFIX/bin/hbmctl|" "$root"/lib/systemd/system/hbm*.service
put 644 "$root/share/zsh/vendor-completions" packaging/completion/_hbmctl
install -D -m 644 packaging/completion/hbmctl.bash "$root/share/bash-completion/completions/hbmctl"
put 644 "$root/share/hbmd" packaging/prometheus/hbm.rules.yml packaging/grafana/hbm.json packaging/hbmd.bt
put 644 "$root/share/hbmd/kubernetes" packaging/kubernetes/*.yaml
put 644 "$root/lib/systemd/catalog" packaging/hbmd.catalog
put 644 "$root/lib/sysusers.d" packaging/sysusers.d/hbmd.conf
put 644 "$root/lib/tmpfiles.d" packaging/tmpfiles.d/hbmd.conf
# A configuration that someone has edited stays. hbmd knows its workers beside it and in /usr/lib/hbmd.
if [ ! -e "$etc/hbmd/hbmd.conf" ]; then
    put 644 "$etc/hbmd" config/hbmd.conf
    if [ "$PREFIX" != /usr ]; then sed -i "s|^#worker_dir =.*|worker_dir = $PREFIX/lib/hbmd|" "$etc/hbmd/hbmd.conf"; fi
fi
