#!/bin/sh
# Which lines of passes/lower does no comparison of values reach?  The programs that compare a kernel's values with the
# graphs' interpreter run on a build that counts lines (gcov).  tests/passes/lower_unreached.def has the number of lines
# of each function that they do not reach, and may only shrink: more lines, or a function that is not listed, fail.
#
#   lower_lines.sh BUILD           builds in BUILD/lower_lines and runs; KILN_BLESS=1 writes the list
#   lower_lines.sh --count FOLDER  prints the list of a folder that was built and run
cd "$(dirname "$0")/.." || exit 1
list=tests/passes/lower_unreached.def

# count FOLDER: "file function number" of all functions with such lines.
count() {
    folder=$(cd "$1" && pwd)
    scratch=$(mktemp -d)
    find "$folder/CMakeFiles" -path '*passes/lower/*.gcda' | while read -r data; do
        (cd "$scratch" && gcov -b -p -o "${data%/*}" "$data" >/dev/null 2>&1)
    done
    for f in "$scratch"/*passes#lower#*.c.gcov; do
        name=$(echo "${f##*/}" | sed 's/.*passes#lower#/passes\/lower\//; s/#/\//g; s/\.gcov$//')
        awk -v file="$name" '
            /^function / { f = $2 }
            /^ *(#####|=====)\**:/ { n[f]++ }
            END { for (f in n) print file, f, n[f] }' "$f"
    done | LC_ALL=C sort
    rm -r "$scratch"
}

if [ "${1:?a build folder}" = --count ]; then
    count "$2"
    exit
fi
dir=$1/lower_lines
mkdir -p "$dir" || exit 1
programs='small_scopes random_schedules symbolic_programs gpu_products gpu_attention dot_bytes
    dot_tiles image_windows gpu_run'
targets=$(for p in $programs; do printf ' --target tests_%s' "$p"; done)
find "$dir" -name '*.gcda' -delete
# shellcheck disable=SC2086
{ cmake -S . -B "$dir" -DCMAKE_BUILD_TYPE=Debug -DKILN_MPI=OFF \
    "-DCMAKE_C_FLAGS=--coverage -O1" &&
    cmake --build "$dir" --parallel "$(nproc)" $targets; } >"$dir/build.log" 2>&1 || {
    echo "FAIL the build that counts lines, see $dir/build.log"
    echo "0 passed, 1 failed, 0 skipped"
    exit 1
}
f=0
run() {
    KILN_CACHE_DIR=none "$dir/tests/$@" >"$dir/$1.log" 2>&1 || { f=$((f + 1)) && echo "FAIL $*: see $dir/$1.log"; }
}
run small_scopes 3000 3 all 8 0
run random_schedules 60 1 6 0
run symbolic_programs 25
run gpu_products
run gpu_attention
run dot_bytes
run dot_tiles
run image_windows 200 1 6 0
run gpu_run symbols vulkan 10 1 # kernels of GPUs for lengths that are symbols
count "$dir" >"$dir/unreached"
[ -s "$dir/unreached" ] || { f=$((f + 1)) && echo "FAIL no line was counted: is there gcov?"; }
if [ -n "${KILN_BLESS:-}" ]; then
    { sed -n '/^#/p' "$list" && cat "$dir/unreached"; } >"$dir/list" && cp "$dir/list" "$list"
fi
awk '
    FNR == 1 { part++ }
    /^#/ { next }
    part == 1 { most[$1 " " $2] = $3; next }
    $3 <= most[$1 " " $2] + 0 { good++; next }
    { bad++; print "FAIL " $1 ": " $2 " has " $3 " lines that no comparison reaches, had " most[$1 " " $2] + 0 }
    END { print good + 0, bad + 0 > "/dev/stderr" }' "$list" "$dir/unreached" 2>"$dir/numbers"
read -r good bad <"$dir/numbers"
echo "$good passed, $((f + bad)) failed, 0 skipped"
[ $((f + bad)) -eq 0 ]
