#!/bin/sh
# Are the rows of the dispatch system tested by their own mechanisms?  A scratch copy of the sources, BUILD/broken, gets
# the mutations of tests/breaks.def and is built once.  With each row's mechanism left out or, for the two about the
# public headers alone, these spoilt, its row fails and no other but those that tests/breaks.def lists beside it.  Every
# row that has a test has a line there.
#
#   breaks.sh BUILD [ROW ...]     BUILD: a folder for the copy; without rows all of the table
#   breaks.sh --check             builds and runs nothing: does each mutation find the lines that it replaces?
B=${1:?a build folder}
shift
cd "$(dirname "$0")/.." || exit 1
p=0
f=0
ok() { p=$((p + 1)); }
bad() { f=$((f + 1)) && echo "FAIL $*"; }
end() { echo "$p passed, $f failed, 0 skipped" && [ "$f" -eq 0 ]; }
scratch=$(mktemp -d)
trap 'rm -r "$scratch"' EXIT

# mutate FILE: the file with its mutations.  The lines behind "-" have to stand there once, and no two may overlap.
mutate() {
    awk -v file="$1" '
        FNR == 1 { part++ }
        part == 1 && /^@ / { mine = $2 == file; if (mine) n++; next }
        part == 1 && /^-/ && mine { old[n, ++olds[n]] = substr($0, 2); next }
        part == 1 && /^\+/ && mine { new[n, ++news[n]] = substr($0, 2); next }
        part == 1 { mine = 0; next }
        { line[FNR] = $0; lines = FNR }
        END {
            for (m = 1; m <= n; m++) {
                found = 0
                for (at = 1; at <= lines - olds[m] + 1; at++) {
                    for (i = 1; i <= olds[m] && line[at + i - 1] == old[m, i]; i++) continue
                    if (i > olds[m]) { found++; where = at }
                }
                if (found != 1) {
                    print file ": \"" old[m, 1] "\" stands there " found + 0 " times" >"/dev/stderr"
                    bad = 1
                    continue
                }
                for (i = where; i < where + olds[m]; i++)
                    if (gone[i]++) {
                        print file ": two mutations of line " i >"/dev/stderr"
                        bad = 1
                    }
                starts[where] = m
            }
            for (at = 1; at <= lines; at++) {
                if (at in starts) for (i = 1; i <= news[starts[at]]; i++) print new[starts[at], i]
                if (!gone[at]) print line[at]
            }
            exit bad
        }' tests/breaks.def "$1"
}

if [ "$B" = --check ]; then
    for file in $(sed -n 's/^@ //p' tests/breaks.def | sort -u); do
        if mutate "$file" >"$scratch/mutated" && ! cmp -s "$file" "$scratch/mutated"; then ok; else bad "$file"; fi
    done
    end
    exit
fi

mkdir -p "$B/broken" || exit 1
copy=$(cd "$B/broken" && pwd)
bin=$copy/build

# Copies what differs, so that only that is built again.
find CMakeLists.txt CMakePresets.json README.md LICENSE run include ir frontend passes codegen runtime tests bench \
    examples -type f >"$scratch/files"
while read -r file; do
    from=$file
    if grep -qxF "@ $file" tests/breaks.def; then
        mutate "$file" >"$scratch/mutated" || bad "mutations of $file"
        from=$scratch/mutated
    fi
    cmp -s "$from" "$copy/$file" && continue
    mkdir -p "$(dirname "$copy/$file")"
    cp -p "$from" "$copy/$file" && touch "$copy/$file"
done <"$scratch/files"
generator=
if [ -z "${CMAKE_GENERATOR:-}" ] && command -v ninja >/dev/null; then generator=-GNinja; fi
# shellcheck disable=SC2086
[ "$f" -eq 0 ] && { cmake -S "$copy" -B "$bin" $generator -DCMAKE_BUILD_TYPE=Release \
    "-DCMAKE_C_FLAGS=-include $copy/tests/seeds/broken.h" &&
    cmake --build "$bin" --parallel "$(nproc)" --target tests examples kiln_cli; } >"$copy/build.log" 2>&1 || {
    bad "the copy cannot be built, see $copy/build.log"
    end
    exit 1
}
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
        *.sh) KILN_BREAK=$1 timeout 3600 sh "$program" "$bin" >"$scratch/out" 2>&1 ;;
        *) KILN_BREAK=$1 timeout 3600 "$program" >"$scratch/out" 2>&1 ;;
        esac
        cat "$scratch/out" >>"$scratch/$1"
        case $(tail -n 1 "$scratch/out") in
        *' passed, '*' skipped') sed -n 's/^\([A-E][0-9]*\) FAILED .*/\1/p' "$scratch/out" ;;
        *)
            echo "${program##*/}-crashed"
            ;;
        esac
    done | sort | tr '\n' ' '
}

try() { # ROW THE OTHERS
    row=$1
    shift
    n=$(grep -cE "BROKEN\($row\)" tests/breaks.def)
    [ -z "$(headers "$row")" ] || n=$((n + 1))
    [ "$n" -gt 0 ] || bad "$row has no mutation"
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

grep -E '^[A-E][0-9]+( |$)' tests/breaks.def >"$scratch/rows"
[ -z "$(failing none)" ] && ok || bad "without a break: $(failing none)"
if [ $# -eq 0 ]; then
    for row in $(sed -n 's/^\([A-E][0-9]*\) \(ok\|FAILED\) .*/\1/p' "$scratch/none"); do
        grep -qE "^$row( |$)" "$scratch/rows" && ok || bad "row $row has a test and no line in tests/breaks.def"
    done
    while read -r row others; do
        try "$row" $others
    done <"$scratch/rows"
else
    for row; do
        line=$(grep -E "^$row( |$)" "$scratch/rows") || { bad "row $row has no line in tests/breaks.def" && continue; }
        try $line
    done
fi
end
