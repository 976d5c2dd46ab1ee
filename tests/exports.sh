#!/bin/sh
# What the shared libraries of a build folder export: libkiln.so, libkiln-train.so, libkiln-solve.so and libkiln-onnx.so
# the functions that their public headers declare and nothing else, no function twice; a code generator its entry
# function alone. And how much static thread-local storage they take of a host that opens them at run time: at most 64
# bytes each.
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
included() { # HEADERS: those that they include of the library, of which they are the umbrella
    sed -n 's,^#include <\(kiln/.*\)>,\1,p' "$@"
}
declared() { # HEADERS...: the functions that they and no others declare
    for header; do echo "#include <$header>"; done |
        cc -E -P -DKL_NO_CALL_SITES -Iinclude -I"$build/include" -x c - | tr '\n' ' ' |
        grep -oE 'visibility\("default"\)\)\) [^;(]*\(' | grep -oE '[a-z0-9_]+\($' | tr -d '(' | sort -u
}

train=$(included include/kiln/train.h)
solve=$(included include/kiln/solve/solve.h)
onnx=$(included include/kiln/onnx.h)
core=$(find include/kiln -name '*.h' | sed 's,include/,,' | grep -vxF "$train
$solve
$onnx
kiln/train.h
kiln/solve/solve.h
kiln/onnx.h")
# shellcheck disable=SC2086
{
    { declared $core && echo kl_traced_graph_functions; } | sort -u >"$build/declared-kiln.txt" # frontend/export
    declared $train | comm -13 "$build/declared-kiln.txt" - >"$build/declared-kiln-train.txt"
    declared $solve | comm -13 "$build/declared-kiln.txt" - >"$build/declared-kiln-solve.txt"
    declared $onnx | comm -13 "$build/declared-kiln.txt" - >"$build/declared-kiln-onnx.txt"
}
for name in kiln kiln-train kiln-solve kiln-onnx; do
    exported "$build/lib$name.so" >"$build/exported-$name.txt"
    [ "$(wc -l <"$build/declared-$name.txt")" -ge 8 ]
    check $? "the headers of lib$name.so declare $(wc -l <"$build/declared-$name.txt") functions"
    diff "$build/declared-$name.txt" "$build/exported-$name.txt"
    check $? "lib$name.so exports other functions (>) than its headers declare (<)"
done
for library in "$build"/libkiln-*.so; do
    case $library in *-train.so | *-solve.so | *-onnx.so) continue ;; esac
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
