#!/usr/bin/env bash
# Runs the benchmarks that `./run bench` built: the one named, or all but those that need peers or a GPU.
#   bench/run.sh [NAME] [--case CASE] [--json FILE] [--svg FILE]
# The tables of `gpu`, all its cases, are kept as bench/results/gpu-DATE.txt.
set -euo pipefail
folder=$(cd "$(dirname "${BASH_SOURCE[0]}")/../build/bench" && pwd)
available=$(cd "$folder" && find . -maxdepth 1 -type f -perm -u+x -printf '%f\n' | sort)

names=() options=() json='' svg=''
while (($#)); do
    case $1 in
    --json) json=${2:?--json needs a file name} && shift 2 ;;
    --svg) svg=${2:?--svg needs a file name} && shift 2 ;;
    --case) options+=(--case "${2:?--case needs a case of the benchmark}") && shift 2 ;;
    -*) echo "unknown option $1; usage: ./run bench [NAME] [--case CASE] [--json FILE] [--svg FILE]" >&2 && exit 2 ;;
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
    if [ "$name" = gpu ] && ((${#options[@]} == 0)); then
        "$folder/gpu" --json "$parts/gpu" 2> >(tee "$parts/device" >&2) | tee "$parts/table"
        kept=$folder/../../bench/results
        mkdir -p "$kept"
        { grep '^bench_gpu: ' "$parts/device" | sed 's/^bench_gpu: //'; cat "$parts/table"; } >"$kept/gpu-$(date +%F).txt"
        continue
    fi
    "$folder/$name" "${options[@]}" --json "$parts/$name"
done
for name in "${names[@]}"; do sed '1s/^\[//; $s/\]$//' "$parts/$name" | sed '/^$/d'; echo ,; done |
    sed '1s/^/[/; $s/.*/]/' >"$parts/all.json"
[ -z "$json" ] || cp "$parts/all.json" "$json"
[ -z "$svg" ] || "$folder/../kiln" chart "$parts/all.json" -o "$svg"
