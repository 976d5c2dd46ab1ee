#!/bin/sh
# Are the rows of the dispatch system tested by their own mechanisms? With each switched off (ir/broken.h) or, for the
# two about the public headers alone, these spoilt, its row fails and no other but those that tests/breaks.def lists
# beside it. Every row that has a test has a line there.
#
#   breaks.sh BUILD [ROW ...]     BUILD: of preset `broken`; without rows all of the table
B=${1:?a build folder}
shift
cd "$(dirname "$0")/.." || exit 1
bin=$(cd "$B" && pwd) || exit 1
p=0
f=0
ok() { p=$((p + 1)); }
bad() { f=$((f + 1)) && echo "FAIL $*"; }
scratch=$(mktemp -d)
trap 'rm -r "$scratch"' EXIT
"$bin/kiln" devices | grep -q '^vulkan:0 *- ' &&
    echo "breaks.sh: without a Vulkan driver (mesa-vulkan-drivers) rows about devices differ from tests/breaks.def" >&2

# headers ROW: what spoils the public headers, which hold no switch, for a row about them.
headers() {
    case $1 in
    C10) echo '#include "codegen/codegen.h"' ;;     # one of the library's own, and all that it includes
    C11) echo 'struct kl_gradients { int n; };' ;;  # no longer opaque
    esac
}

# spoil ROW: $scratch/tree is this source tree and build folder, but for the headers and the program that compiles them.
spoil() {
    rm -rf "$scratch/tree"
    mkdir -p "$scratch/tree/build/tests"
    for f in *; do case $f in build | include) ;; *) ln -s "$PWD/$f" "$scratch/tree/" ;; esac done
    for f in "$bin"/*; do case $f in */tests | */a10*) ;; *) ln -s "$f" "$scratch/tree/build/" ;; esac done
    ln -s "$bin"/tests/* "$scratch/tree/build/tests/"
    cp --remove-destination "$bin/tests/api_seeds_devices" "$scratch/tree/build/tests/"
    cp -r include "$scratch/tree/"
    printf '#ifndef SPOILT\n#define SPOILT\n%s\n#endif\n' "$(headers "$1")" >>"$scratch/tree/include/kiln/kiln.h"
}

# failing ROW: the rows whose tests fail while ROW's mechanism is off; all of a program that crashes.
failing() {
    programs=$bin
    [ -z "$(headers "$1")" ] || { spoil "$1" && programs=$scratch/tree/build; }
    for program in "$programs"/tests/api_seeds_* tests/api_seeds_*.sh; do
        case $program in
        *.sh) KILN_BREAK=$1 timeout 120 sh "$program" "$B" >"$scratch/out" 2>&1 ;;
        *) KILN_BREAK=$1 timeout 120 "$program" >"$scratch/out" 2>&1 ;;
        esac
        cat "$scratch/out" >>"$scratch/$1"
        case $(tail -n 1 "$scratch/out") in
        *' passed, '*' skipped') sed -n 's/^\([A-D][0-9]*\) FAILED .*/\1/p' "$scratch/out" ;;
        *)
            echo "${program##*/}-crashed"
            ;;
        esac
    done | sort | tr '\n' ' '
}

try() { # ROW THE OTHERS
    row=$1
    shift
    n=$(grep -rhoE "BROKEN\($row\)" --include='*.c' --include='*.h' --exclude=broken.h ir passes codegen runtime \
        frontend | wc -l)
    [ -z "$(headers "$row")" ] || n=$((n + 1))
    [ "$n" -eq 1 ] || bad "$row has $n switches, not one"
    is=" $(failing "$row")"
    case $is in *" $row "*) ok ;; *) bad "$row: its test passes without its mechanism; fails:$is" ;; esac
    for r in $is; do
        case " $row $* " in *" $r "*) ;; *) bad "$row: $r fails, too" ;; esac
    done
    for r; do
        case $is in *" $r "*) ;; *) bad "$row: $r is listed beside it and does not fail" ;; esac
    done
    echo "$row broken:$is"
}

[ -z "$(failing none)" ] && ok || bad "without a break: $(failing none)"
if [ $# -eq 0 ]; then
    for row in $(sed -n 's/^\([A-D][0-9]*\) \(ok\|FAILED\) .*/\1/p' "$scratch/none"); do
        grep -qE "^$row( |$)" tests/breaks.def && ok || bad "row $row has a test and no line in tests/breaks.def"
    done
    while read -r row others; do
        case $row in '#'* | '') ;; *) try "$row" $others ;; esac
    done <tests/breaks.def
else
    for row; do
        line=$(grep -E "^$row( |$)" tests/breaks.def) || { bad "row $row has no line in tests/breaks.def" && continue; }
        try $line
    done
fi
echo "$p passed, $f failed, 0 skipped"
[ "$f" -eq 0 ]
