#!/bin/sh
# What the shared libraries of a build folder export: libkiln.so the public kl_ functions and nothing else, all those
# that the headers declare; a code generator its one struct.
build=${1:?a build folder}
cd "$(dirname "$0")/.." || exit 1
p=0
f=0
ok() { p=$((p + 1)); }
bad() {
    f=$((f + 1))
    echo "FAIL $1"
}
exported() { nm -D --defined-only "$1" | awk '{ print $3 }' | sed 's/@.*//' | grep -vE '^(_init|_fini|_edata|_end|__bss_start)$' | sort -u; }

exported "$build/libkiln.so" >"$build/exports.txt"
[ -s "$build/exports.txt" ] && ok || bad "libkiln.so exports nothing"
odd=$(grep -v '^kl_' "$build/exports.txt") && bad "libkiln.so also exports $odd" || ok
for library in "$build"/libkiln-*.so; do
    [ -e "$library" ] || continue
    n=$(exported "$library" | wc -l)
    if [ "$n" -eq 1 ]; then ok; else bad "$library exports $n symbols: $(exported "$library" | head -n 5 | tr '\n' ' ')"; fi
done
echo "$p passed, $f failed, 0 skipped"
[ "$f" -eq 0 ]
