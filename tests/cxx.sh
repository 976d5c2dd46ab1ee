#!/bin/sh
# The public headers in C++17, with g++ and clang++, without warnings: each header alone, with and without call sites;
# tests/api/cxx.cpp and the program in include/kiln/README.md built and run; <kiln/ops/ops.hpp> has every op of ops.h
# and nn.h; and the program in README.md includes at most 25 headers of Kiln. Argument: the build folder.
build=$(realpath "${1:?a build folder}")
cd "$(dirname "$0")/.." || exit 1
p=0 f=0 s=0
tmp=$(mktemp -d)
trap 'rm -r "$tmp"' EXIT
check() { # WHAT COMMAND...
    what=$1
    shift
    if "$@" >"$tmp/out" 2>&1; then
        p=$((p + 1))
    else
        f=$((f + 1))
        echo "FAIL $what"
        tail -n 20 "$tmp/out"
    fi
}
warnings="-Wall -Wextra -Wpedantic -Wshadow -Werror -Iinclude -I$build/include"
cxx="-std=c++17 -Wconversion -Wold-style-cast $warnings"
flags=
case $(grep -h '^KILN_SANITIZE:' "$build/CMakeCache.txt") in
*address) flags=-fsanitize=address,undefined ;;
*thread) flags=-fsanitize=thread ;;
esac

alone() { # COMPILER FLAGS: each header is the only one of a file
    for header in $(find include/kiln -name '*.h') $3; do
        echo "#include <${header#include/}>" >"$tmp/alone.$4"
        # shellcheck disable=SC2086
        check "$1: ${header##*/}" $1 $2 -fsyntax-only "$tmp/alone.$4"
        # shellcheck disable=SC2086
        check "$1: ${header##*/} without call sites" $1 $2 -DKL_NO_CALL_SITES -fsyntax-only "$tmp/alone.$4"
    done
}
# shellcheck disable=SC2086
alone cc "-std=c17 $warnings" "" c

sed -n '/^```c /,/^```$/p' README.md | sed '/^```/d' >"$tmp/readme.c"
check "README.md's program" cc -std=c17 -Iinclude -I"$build/include" -H -fsyntax-only "$tmp/readme.c"
cp "$tmp/out" "$tmp/included"
check 'it includes 20 to 25 headers of Kiln' awk '/^[.]+ .*kiln\// { n++ } END { print n; exit n < 20 || n > 25 }' \
    "$tmp/included"

sed -n '/^```cpp$/,/^```$/p' include/kiln/README.md | sed '/^```/d' >"$tmp/readme.cpp"
for compiler in g++ clang++; do
    if ! command -v $compiler >/dev/null; then
        echo "SKIP no-compiler $compiler: it is not installed"
        s=$((s + 1))
        continue
    fi
    alone $compiler "$cxx" "$(find include/kiln -name "*.hpp")" cpp
    # A sanitizer's run-time library is its compiler's: the library and the test have one of them.
    if [ -n "$flags" ] && [ $compiler = clang++ ]; then continue; fi
    for program in tests/api/cxx.cpp "$tmp/readme.cpp"; do
        # shellcheck disable=SC2086
        check "$compiler: $program" $compiler $cxx $flags -O1 -g "$program" -o "$tmp/program" -L"$build" \
            -lkiln-train -lkiln -Wl,-rpath,"$build" -pthread
        check "$compiler: $program runs" "$tmp/program"
        cp "$tmp/out" "$tmp/said"
        case $program in
        tests*)
            check "$compiler: $program passes" grep -x '[0-9]* passed, 0 failed, 0 skipped' "$tmp/said"
            ;;
        *) check "$compiler: $program trains" grep -E '^step 200: loss 0\.[01]' "$tmp/said" ;;
        esac
    done
done

# The variants with a call site: of the functions that C headers declare; that C++ headers call, macros expanded.
declared() { # HEADERS...
    (cd include/kiln && sed -nE 's/^KL_API_AT kl_tensor (kl_[a-z0-9_]+)\(.*/\1_at/p' "$@") | sort -u
}
called() { # HEADERS...
    for header; do
        echo "#include <kiln/$header>" |
            g++ -std=c++17 -E -DKL_NO_CALL_SITES -Iinclude -I"$build/include" -x c++ - |
            awk -v file="kiln/$header\"" '/^# / { own = index($3, file); next } own' |
            grep -oE 'kl_[a-z0-9_]+_at *\(' | tr -d ' ('
    done | sort -u
}
if command -v g++ >/dev/null; then
    declared ops.h nn.h | grep -vxE 'kl_wrap_at' >"$tmp/declared" # memory that is not copied: the C call
    called ops/ops.hpp kiln.hpp >"$tmp/called"
    check 'the headers declare ops' test "$(wc -l <"$tmp/declared")" -gt 150
    check 'ops.hpp has every op of ops.h and nn.h' sh -c "! comm -23 '$tmp/declared' '$tmp/called' | grep ."
fi
echo "$p passed, $f failed, $s skipped"
[ "$f" -eq 0 ]
