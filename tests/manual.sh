#!/bin/sh
# The manual page kiln(1), `kiln help man`: without warnings of mandoc or groff, and with every command, argument and
# variable of `kiln help` and the environment. The reference of the headers: Doxygen builds it without warnings, and
# it has every public function. Argument: the build folder.
build=$(realpath "${1:?a build folder}")
cd "$(dirname "$0")/.." || exit 1
p=0 f=0 s=0
tmp=$(mktemp -d)
trap 'rm -r "$tmp"' EXIT
check() { # WHAT COMMAND...: it succeeds and says nothing
    what=$1
    shift
    if "$@" >"$tmp/out" 2>&1 && [ ! -s "$tmp/out" ]; then
        p=$((p + 1))
    else
        f=$((f + 1))
        echo "FAIL $what"
        head -n 15 "$tmp/out"
    fi
}
skip() {
    echo "SKIP no-tool $1: $2"
    s=$((s + 1))
}

"$build/kiln" help man >"$tmp/kiln.1" || exit 1
if command -v mandoc >/dev/null; then # it has no date: nothing but its version says how old it is
    check 'mandoc takes the page' sh -c "mandoc -T lint -W warning '$tmp/kiln.1' | grep -v 'missing date' || :"
    mandoc -T utf8 "$tmp/kiln.1" | col -b | tr -s ' \n\t' '  ' >"$tmp/page"
elif command -v groff >/dev/null; then
    check 'groff takes the page' sh -c "groff -man -ww -T utf8 '$tmp/kiln.1' 2>&1 >/dev/null"
    groff -man -T utf8 -P -c "$tmp/kiln.1" | col -b | tr -s ' \n\t' '  ' >"$tmp/page"
else
    skip man 'neither mandoc nor groff is installed'
fi
if [ -s "$tmp/page" ]; then
    # what `kiln help` says, without marks and line breaks; hyphens at line ends are the page's own
    tr -s ' \n' '\n\n' <"$tmp/page" | tr -d '‐' | sort -u >"$tmp/have"
    "$build/kiln" help | sed '1d' | tr -s ' \n' '\n\n' | grep . | sort -u >"$tmp/want"
    sed -n 's/^VARIABLE(\([A-Z_]*\).*/\1/p' runtime/environment.def >>"$tmp/want"
    sort -u "$tmp/want" | grep -vxE '(passes|stages|targets|processors|devices|order|schedules):|kernels' >"$tmp/words"
    check 'kiln help says something' test "$(wc -l <"$tmp/words")" -gt 150
    check 'every word of kiln help is on the page' sh -c "! comm -23 '$tmp/words' '$tmp/have' | grep ."
fi

if command -v doxygen >/dev/null; then
    { cat include/kiln/Doxyfile && echo "OUTPUT_DIRECTORY = $tmp/reference"; } >"$tmp/Doxyfile"
    mkdir "$tmp/reference"
    check 'doxygen builds the reference without warnings' doxygen "$tmp/Doxyfile"
    sed 's/<[^>]*>//g' "$tmp"/reference/html/*_8h.html 2>/dev/null | grep -oE '\bkl_[a-z0-9_]+' | sort -u >"$tmp/have"
    for header in $(find include/kiln -name "*.h"); do echo "#include <${header#include/}>"; done |
        cc -E -P -DKL_NO_CALL_SITES -Iinclude -I"$build/include" -x c - | tr '\n' ' ' |
        grep -oE 'visibility\("default"\)\)\) [^;(]*\(' | grep -oE '[a-z0-9_]+\($' | tr -d '(' | grep -v '_at$' |
        sort -u >"$tmp/want"
    check 'the headers declare functions' test "$(wc -l <"$tmp/want")" -gt 300
    check 'the reference has every public function' sh -c "! comm -23 '$tmp/want' '$tmp/have' | grep ."
else
    skip doxygen 'it is not installed'
fi
echo "$p passed, $f failed, $s skipped"
[ "$f" -eq 0 ]
