#!/usr/bin/env bash
# Installs the Debian or Ubuntu packages that are missing for the purposes named; does nothing where all are there.
# usage: install-deps.sh PURPOSE...     purposes: build check demo bench fuzz coverage deb
# HBM_NO_INSTALL=1: the machine is as it is, build and see.
set -euo pipefail

packages_for() {
    case $1 in
        build) echo gcc make libc6-dev pkg-config libuv1-dev libcjson-dev libsystemd-dev libinih-dev liburing-dev libxxhash-dev libssl-dev ;;
        check) echo libcmocka-dev python3 python3-pytest python3-numpy python3-yaml python3-jsonschema python3-pip python3-setuptools python3-wheel mypy systemd systemtap-sdt-dev abigail-tools groff-base ;;
        demo) echo python3 python3-pip ca-certificates ;;
        bench) echo python3 fio ;;
        fuzz) echo clang libclang-rt-dev ;;
        coverage) echo llvm python3 ;;
        deb) echo debhelper dh-python dpkg-dev fakeroot groff-base lintian python3 ;;
        *) echo "install-deps.sh: no purpose \"$1\": give build, check, demo, bench, fuzz, coverage or deb" >&2; return 2 ;;
    esac
}

# Of these the programs are unpacked into build/unpacked, and nothing is installed: Debian's package would start a server.
unpacked_for() {
    case $1 in
        check) echo prometheus ;;
    esac
}

if [ "${HBM_NO_INSTALL:-}" = 1 ]; then
    exit 0
fi
if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    echo "This is no Debian or Ubuntu: what \`$0 $*\` would install has to be there already. Going on." >&2
    exit 0
fi

missing=()
for purpose; do
    wanted=$(packages_for "$purpose")
    for package in $wanted; do
        if [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" != installed ]; then
            missing+=("$package")
        fi
    done
done

unpack() { # PACKAGE
    local folder
    folder=$(mktemp -d)
    mkdir -p build/unpacked
    (cd "$folder" && apt-get -qq -o APT::Sandbox::User=root download "$1" </dev/null) &&
        dpkg -x "$folder"/*.deb build/unpacked || echo "$1 cannot be had: what wants it is left out" >&2
    rm -rf "$folder"
}
unpack_all() {
    local package
    for package in $(for purpose; do unpacked_for "$purpose"; done); do
        if ! command -v "$package" >/dev/null && [ ! -e "build/unpacked/usr/bin/$package" ]; then unpack "$package"; fi
    done
}

if [ ${#missing[@]} -eq 0 ]; then
    unpack_all "$@"
    exit 0
fi

echo "Missing packages, now installed by apt-get: ${missing[*]}"
as_root=()
if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
        echo "Installing them takes root, and there is no sudo. As root, run:  apt-get install ${missing[*]}" >&2
        exit 1
    fi
    as_root=(sudo)
fi
apt() {
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=120 "$@" </dev/null
}
# An update takes a while, and the lists of a machine in use are mostly good enough: only where they are not.
install() {
    apt install -y --no-install-recommends "${missing[@]}"
}
if ! apt-cache show "${missing[@]}" >/dev/null 2>&1; then
    apt update
    install
else
    install || { apt update && install; }
fi
unpack_all "$@"
