#!/bin/sh
# What the shared libraries of a build folder export: libkiln.so the functions that the public headers declare and
# nothing else; a code generator its entry function alone. And how much static thread-local storage they take of a
# host that opens them at run time: at most 64 bytes each.
build=${1:?a build folder}
cd "$(dirname "$0")/.." || exit 1
p=0
f=0
check() { # STATUS MESSAGE
    if [ "$1" -eq 0 ]; then
        p=$((p + 1))
    else
        f=$((f + 1))
        echo "FAIL $2"
    fi
}
exported() {
    nm -D --defined-only "$1" | awk '{ print $3 }' | sed 's/@.*//' |
        grep -vE '^(_init|_fini|_edata|_end|__bss_start)$' | sort -u
}
declared() {
    for header in $(find include/kiln -name "*.h"); do echo "#include <${header#include/}>"; done |
        cc -E -P -DKL_NO_CALL_SITES -Iinclude -I"$build/include" -x c - | tr '\n' ' ' |
        grep -oE 'visibility\("default"\)\)\) [^;(]*\(' | grep -oE '[a-z0-9_]+\($' | tr -d '(' | sort -u
}

exported "$build/libkiln.so" >"$build/exported.txt"
declared >"$build/declared.txt"
[ "$(wc -l <"$build/declared.txt")" -gt 50 ]
check $? "the headers declare $(wc -l <"$build/declared.txt") functions"
diff "$build/declared.txt" "$build/exported.txt"
check $? "libkiln.so exports other functions (>) than the headers declare (<)"
for library in "$build"/libkiln-*.so; do
    [ -e "$library" ] || continue
    [ "$(exported "$library" | wc -l)" -eq 1 ]
    check $? "$library exports $(exported "$library" | head -n 5 | tr '\n' ' ')"
done
for library in "$build"/libkiln.so "$build"/libkiln-*.so; do
    [ -e "$library" ] || continue
    bytes=0
    if readelf -dW "$library" | grep -q STATIC_TLS; then
        bytes=$(readelf -lW "$library" | awk '$1 == "TLS" { print $6 }')
    fi
    [ "$((bytes))" -le 64 ]
    check $? "$library has $((bytes)) bytes of static thread-local storage"
done
echo "$p passed, $f failed, 0 skipped"
[ "$f" -eq 0 ]
