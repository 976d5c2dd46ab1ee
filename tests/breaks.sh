#!/bin/sh
# Are the rows of the dispatch system tested by their own mechanisms?  With each switched off (ir/broken.h), its row fails
# and no other but those that tests/breaks.def lists beside it.
#
#   breaks.sh BUILD [ROW ...]     BUILD: of preset `broken`; without rows all of the table
B=${1:?a build folder}
shift
cd "$(dirname "$0")/.." || exit 1
p=0
f=0
ok() { p=$((p + 1)); }
bad() { f=$((f + 1)) && echo "FAIL $*"; }
scratch=$(mktemp -d)
trap 'rm -r "$scratch"' EXIT

# failing ROW: the rows whose tests fail while ROW's mechanism is off; all of a program that crashes.
failing() {
    for program in "$B"/tests/api_seeds_* tests/api_seeds_*.sh; do
        case $program in
        *.sh) KILN_BREAK=$1 timeout 120 sh "$program" "$B" >"$scratch/out" 2>&1 ;;
        *) KILN_BREAK=$1 timeout 120 "$program" >"$scratch/out" 2>&1 ;;
        esac
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
    n=$(grep -rhoE "BROKEN\($row\)" --include='*.c' --include='*.h' --exclude=broken.h ir passes codegen runtime frontend | wc -l)
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
