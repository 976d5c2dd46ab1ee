#!/usr/bin/env bash
# Runs the benchmarks that `./run bench` built: the one named, or all but those that need peers or a GPU.
#   bench/run.sh [NAME] [--json FILE]
set -euo pipefail
folder=$(cd "$(dirname "${BASH_SOURCE[0]}")/../build/bench" && pwd)
available=$(cd "$folder" && find . -maxdepth 1 -type f -perm -u+x -printf '%f\n' | sort)

names=() json=
while (($#)); do
    case $1 in
    --json) json=${2:?--json needs a file name} && shift 2 ;;
    -*) echo "unknown option $1; usage: ./run bench [NAME] [--json FILE]" >&2 && exit 2 ;;
    *) names+=("$1") && shift ;;
    esac
done
((${#names[@]})) || mapfile -t names < <(grep -vxE 'peers|gpu' <<<"$available" || true)

# Each program writes a JSON array; the file is one array of all their rows.
parts=$(mktemp -d)
trap 'rm -r "$parts"' EXIT
for name in "${names[@]}"; do
    if ! grep -qxF -- "$name" <<<"$available"; then
        echo "no benchmark \"$name\"; there are: $(echo $available)" >&2
        exit 2
    fi
    "$folder/$name" --json "$parts/$name"
done
[ -n "$json" ] || exit 0
for name in "${names[@]}"; do sed '1s/^\[//; $s/\]$//' "$parts/$name" | sed '/^$/d'; echo ,; done |
    sed '1s/^/[/; $s/.*/]/' >"$json"
