#!/usr/bin/env bash
# Debian packages of the tree as it is, in $BUILD/deb, and what lintian says of them. Environment: BUILD, VERSION; NVCC= leaves the
# GPU's worker out.
set -euo pipefail
cd "$(dirname "$0")/../.."
: "${BUILD:?}" "${VERSION:?}"
mkdir -p "$BUILD/deb"
stage=$(realpath "$BUILD/deb")/hbmd-$VERSION
rm -rf "$stage" "$BUILD"/deb/*.deb
mkdir -p "$stage"
git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents -t "$stage" 2>/dev/null ||
    { echo 'deb.sh: packages are made from a git checkout' >&2; exit 1; }
mv "$stage/packaging/debian" "$stage/debian"
cat >"$stage/debian/changelog" <<CHANGES
hbmd ($VERSION) unstable; urgency=medium

  * Release $VERSION.

 -- hbmd developers <hbmd@example.org>  $(git log -1 --format=%cD)
CHANGES
# What was given to the make that called this is not meant for the one inside.
(cd "$stage" && env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL -u BUILD -u VERSION \
    dpkg-buildpackage -b -us -uc -rfakeroot >../build.log 2>&1) || { tail -n 30 "$BUILD/deb/build.log" >&2; exit 1; }
rm -rf "$stage"
lintian --fail-on error,warning --info "$BUILD/deb/hbmd_${VERSION}"_*.changes
python=$(for each in python3 /usr/bin/python3; do "$each" -c 'import pytest' 2>/dev/null && echo "$each" && break; done)
HBM_DEBS=$(realpath "$BUILD/deb") PYTHONPATH=tests/flow \
    "${python:-python3}" -m pytest -p no:cacheprovider -q -ra tests/systemd/test_packages.py
ls "$BUILD"/deb/*.deb
