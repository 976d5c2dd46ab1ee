#!/bin/sh
# Rows E1 to E3: what makes kernels of small and odd shapes right, each shown by a few cases that need it.
#
#   api_seeds_kernels.sh BUILD
B=${1:?a build folder}
cd "$(dirname "$0")/.." || exit 1
p=0
f=0
scratch=$(mktemp)
trap 'rm "$scratch"' EXIT
row() { # ROW COMMAND..: it has to end well
    name=$1
    shift
    if "$@" >"$scratch" 2>&1; then
        p=$((p + 1))
        echo "$name ok 1 checks"
    else
        f=$((f + 1))
        echo "$name FAILED 1 checks"
        tail -n 3 "$scratch" | cut -c 1-300
    fi
}

row E1 "$B/tests/text" tests/text/agree_packed_runs.kir tests/text/agree_packed_runs_3d.kir
row E2 "$B/tests/small_scopes" 10 1 channels 0 0
row E3 "$B/tests/small_scopes" 1 3801 attention:483484520198 15 0
echo "$p passed, $f failed, 0 skipped"
[ "$f" -eq 0 ]
