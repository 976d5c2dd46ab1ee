#!/bin/sh
# Every benchmark with --smoke, which shows that it works, and every example as tests/bench/smoke.def says.  A benchmark
# that does not know --smoke, or an example without a row, is a failure.
#
#   smoke.sh BUILD [PATTERN]     only the benchmarks and examples of these names
B=${1:?a build folder}
only=${2:-*}
cd "$(dirname "$0")/../.." || exit 1
table=tests/bench/smoke.def
tmp=$(mktemp -d)
trap 'rm -r "$tmp"' EXIT
p=0 f=0 s=0
ok() { p=$((p + 1)); }
bad() {
    f=$((f + 1))
    echo "FAIL $*"
    tail -n 20 "$tmp/out" "$tmp/err" 2>/dev/null
}
skip() { s=$((s + 1)) && echo "SKIP $1: $2"; }
# shellcheck disable=SC2254 # a pattern
wanted() { case $1 in $only) ;; *) return 1 ;; esac }

# ---- benchmarks: rows with numbers, or with the reason why there are none ----

# peers, models and weights are not there, and nothing is installed
unset KILN_TEST_PYTHON KILN_TEST_PEERS KILN_TEST_MODELS KILN_TEST_LLMC KILN_TEST_LLM_TURNS
export KILN_TEST_GPT2="$tmp" KILN_TEST_LLM="$tmp"
gpu=yes
if "$B/kiln" devices | grep -qE '^vulkan:0 *-' && "$B/kiln" devices | grep -qE '^cuda:0 *-' &&
    "$B/kiln" devices | grep -qE '^hip:0 *-'; then gpu=; fi
sources=$(find bench/* bench -maxdepth 1 -name '*.c' | sort -u) # as CMakeLists.txt has them
for source in $sources; do
    name=$(basename "$source" .c)
    wanted "$name" || continue
    if [ ! -x "$B/bench/$name" ]; then
        : >"$tmp/out" >"$tmp/err"
        bad "$source is no program in $B/bench"
        continue
    fi
    case $name in
    gpu_*)
        if [ -z "$gpu" ]; then
            [ "$name" = gpu_launch ] && skip 'no-device vulkan' 'no device for the benchmarks of a GPU'
            continue
        fi ;;
    esac
    rm -f "$tmp/json"
    "$B/bench/$name" --smoke --json "$tmp/json" >"$tmp/out" 2>"$tmp/err"
    status=$?
    if [ $status -ne 0 ]; then bad "bench $name --smoke: exit status $status"
    elif ! grep -q '"bench"' "$tmp/json"; then bad "bench $name --smoke: no row"
    elif grep '"median": null' "$tmp/json" | grep -v '"missing": "[^"]'; then bad "bench $name --smoke: no number"
    elif ! "$B/kiln" chart "$tmp/json" -o "$tmp/svg"; then bad "bench $name --smoke: no chart"
    elif "$B/bench/$name" --smoke --case none-such >"$tmp/out" 2>"$tmp/err" ||
        ! grep -q 'no case none-such' "$tmp/err"; then bad "bench $name: a case that is not there"
    else ok; fi
done

# ---- examples ----

# run EXAMPLE ARGUMENTS PATTERN: by the library; with a model also compiled in, with the same answers
run() {
    eval "\"$B/examples/$1\" $2" >"$tmp/out" 2>"$tmp/err"
    status=$?
    if [ $status -ne 0 ]; then bad "example $1: exit status $status"
    elif ! cat "$tmp/out" "$tmp/err" | grep -aqE -e "$3"; then bad "example $1: no line $3"
    else ok; fi
    case $2 in
    *.onnx*) ;;
    *) return ;;
    esac
    mkdir "$tmp/$1"
    if ! "$B/kiln" compile "$tmp/$1.onnx" --prefix model -o "$tmp/$1/model.o" --header "$tmp/$1/model.h" \
        >"$tmp/log" 2>&1 || ! cc -std=c17 -D_DEFAULT_SOURCE -DINFER_OBJECT -Wall -Werror -I"$tmp/$1" -o "$tmp/$1/run" \
        "examples/$1.c" "$tmp/$1/model.o" "$B/libkiln-aot.a" -pthread -lm 2>>"$tmp/log"; then
        bad "example $1 compiled in: $(cat "$tmp/log")"
        return
    fi
    eval "\"$tmp/$1/run\" $2" >"$tmp/out2" 2>"$tmp/err2" || bad "example $1 compiled in: exit status $?"
    if cmp "$tmp/out" "$tmp/out2" && cmp "$tmp/err" "$tmp/err2"; then ok; else bad "example $1 compiled in: differs"; fi
}

# have_models: writes the models that examples read, once
models=
have_models() {
    if [ -n "$models" ]; then
        [ "$models" = yes ]
        return
    fi
    models=yes
    "$B/tests/api_example_models" "$tmp" 2>"$tmp/err" && return
    models=no
    if grep -q 'ONNX' "$tmp/err"; then skip 'not-built onnx' "$(cat "$tmp/err")"; else bad 'no models for examples'; fi
    return 1
}
for source in examples/*.c examples/features/*.c; do
    name=$(basename "$source" .c)
    wanted "$name" || continue
    row=$(sed -n "s/^$name  *//p" "$table")
    rest=$(echo "$row" | sed 's/^[a-z]*  *//')
    case $row in
    run*)
        case $rest in *.onnx*) have_models || continue ;; esac
        run "$name" "${rest%%=>*}" "${rest#*=> }" ;;
    in*) if grep -qw "$name" "$rest"; then ok; else bad "example $name: $rest does not run it"; fi ;;
    *) bad "example $name has no row in $table" ;;
    esac
done
for name in $(sed -n 's/^\([a-z_0-9]*\) .*/\1/p' "$table"); do
    [ -e "examples/$name.c" ] || [ -e "examples/features/$name.c" ] || bad "$table: there is no example $name"
done

echo "$p passed, $f failed, $s skipped"
[ "$f" -eq 0 ]
