#!/bin/sh
# Writes a digest of the kernels (stage scheduled) of every graph in tests/text, fused and unfused:
#   kernel_texts.sh KILN [FOLDER]    KILN: the program build/kiln; FOLDER: of .kir files, tests/text by default
# A line a graph: its name, the digests of its fused and of its unfused kernels. A change that must leave all kernels
# as they are is checked by comparing the output before and after. A graph that cannot be scheduled has none.
kiln=$1
texts=${2:-$(dirname "$0")/text}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
digest() {
    if "$kiln" dump "$work/graph.kir" --stage scheduled "$@" >"$work/kernels" 2>"$work/error"; then
        md5sum <"$work/kernels" | cut -d ' ' -f 1
    else
        echo none
    fi
}
for file in "$texts"/*.kir; do
    sed '/^# \(expect\|graph\):$/,$d' "$file" >"$work/graph.kir"
    echo "$(basename "$file") $(digest) $(digest --unfused)"
done
