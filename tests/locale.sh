#!/bin/sh
# Kiln in a host with a decimal comma: numbers in GPU source, .kir text, dumps, JSON and messages must not follow it.
#
#   locale.sh BUILD [EVERY]      EVERY: of the files of tests/text each so many-th is taken (1: all)
#
# A locale is made with localedef, and a library that is loaded before the program sets it as a host would; the suites
# that write and read numbers must pass.  A search of the sources finds calls that would follow the locale.
build=$(cd "$1" && pwd)
root=$(cd "$(dirname "$0")/.." && pwd)
tmp=$(mktemp -d)
trap 'rm -r "$tmp"' EXIT
passed=0 failed=0

# report NAME STATUS: prints $tmp/out where STATUS is not 0
report() {
    if [ "$2" -eq 0 ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAIL locale: $1"
        tail -n 25 "$tmp/out" | sed 's/^/    /'
    fi
}
finish() {
    echo "$passed passed, $failed failed, 0 skipped"
    [ "$failed" -eq 0 ]
    exit
}

# ---- the sources: only ir/text/number.c calls what follows the locale ----
# calls FILE...: statements that convert floats by the C library's functions, each as FILE: STATEMENT.  Files
# and ONNX models are read without internal headers; their functions of messages call vsnprintf, and the callers of
# these are searched instead.
calls() {
    awk 'FNR == 1 { s = "" }
        { line = $0; sub(/^[ \t]+/, "", line); s = s " " line }
        /[;}]/ {
            if (s ~ /(^|[^a-zA-Z0-9_])(strto(d|f|ld)|atof|v[sn]*printf|vfprintf)\(/ &&
                    FILENAME !~ /frontend\/formats\/(onnx\/(run|tensor)|tensor_file|file_open|weights)\.c$/ ||
                s ~ /(^|[^a-zA-Z0-9_])([sfdan]*printf|onnx_fails|message_set)\(.*%[-+ #0-9.*]*L?[efgaEFGA]/ ||
                s ~ /(^|[^a-zA-Z0-9_])(file_bad|file_fails|load_problem)\(.*%[-+ #0-9.*]*L?[efgaEFGA]/ ||
                s ~ /(^|[^a-zA-Z0-9_])f?s?scanf\(.*%[*0-9]*l?[efgaEFGA]/)
                print FILENAME ":" s
            s = ""
        }' "$@"
}
cat >"$tmp/bad.c" <<'EOF'
int a(char *s, double v) { return snprintf(s, 9,
    "%.3g", v); }
double b(char *s) { return strtod(s, 0); }
int c(char *s, double *v) { return sscanf(s, "%lf", v); }
bool d(struct node *n, double v) { return onnx_fails(n, KL_ERR_SHAPE, "%g", v); }
EOF
calls "$tmp/bad.c" >"$tmp/out"
[ "$(grep -c . "$tmp/out")" -eq 4 ]
report 'the search notices four bad calls' $?
find "$root/ir" "$root/passes" "$root/codegen" "$root/runtime" "$root/frontend" -name '*.[ch]' ! -path \
    '*/ir/text/number.c' \
    >"$tmp/files"
calls $(cat "$tmp/files") >"$tmp/out"
[ ! -s "$tmp/out" ]
report 'calls that follow the locale stand in ir/text/number.c only' $?

# ---- a locale and a host that sets it ----
mkdir "$tmp/locale"
localedef -c -i de_DE -f UTF-8 "$tmp/locale/de_DE.UTF-8" >"$tmp/out" 2>&1
[ -d "$tmp/locale/de_DE.UTF-8" ]
report 'localedef makes de_DE.UTF-8 (Debian: package locales)' $?
cat >"$tmp/host.c" <<'EOF'
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
__attribute__((constructor)) static void set_locale(void)
{
    char s[8];
    setlocale(LC_ALL, "de_DE.UTF-8");
    snprintf(s, sizeof s, "%.1f", 0.5);
    if (s[1] == ',') return;
    fputs("no decimal comma\n", stderr);
    _Exit(99);
}
EOF
cc -shared -fPIC -o "$tmp/host.so" "$tmp/host.c" >"$tmp/out" 2>&1
report 'a library that sets the locale' $?
[ -d "$tmp/locale/de_DE.UTF-8" ] && [ -f "$tmp/host.so" ] || finish
export LOCPATH="$tmp/locale" KILN_CACHE_DIR="$tmp/cache"
mkdir -m 700 "$tmp/cache"

# with_comma NAME COMMAND...
with_comma() {
    name=$1
    shift
    env LD_PRELOAD="$tmp/host.so" "$@" >"$tmp/out" 2>&1 </dev/null
    report "$name" $?
}

cd "$root" || exit 1
env LD_PRELOAD="$tmp/host.so" sh -c 'exit 0' >"$tmp/out" 2>&1
report 'the decimal comma is there' $?
with_comma text "$build/tests/text" $(ls tests/text/*.kir tests/text/*.loop | awk -v every="${2:-1}" 'NR % every == 0')
with_comma dump "$build/tests/dump"
with_comma vulkan "$build/tests/gpu_run" graphs vulkan 10 1
[ "${2:-1}" -ne 1 ] || with_comma aot "$build/tests/aot" "$build" # all graphs; api_aot's are fewer
with_comma 'aot, traces' "$build/tests/api_aot" "$build"
with_comma profile "$build/tests/api_profile"
with_comma bench "$build/tests/api_benchmark"
with_comma 'NaN check' "$build/tests/api_check_nan"

# ---- what the command writes is the same text in both ----
cat >"$tmp/g.kir" <<'EOF'
graph @g @cpu {
  %x = input 0 "x" : f32[4]
  %h = const -0.5 : f32[]
  %k = const 0.3 : f32[]
  %h1 = reshape %h : f32[1]
  %k1 = reshape %k : f32[1]
  %e = expand %h1 : f32[4]
  %f = expand %k1 : f32[4]
  %m = mul %x, %e : f32[4]
  %y = add %m, %f : f32[4]
  return %y
}
EOF
for stage in captured simplified fused scheduled schedules; do
    for target in cpu glsl cuda; do
        "$build/kiln" dump "$tmp/g.kir" --stage $stage --target $target >"$tmp/want" 2>&1
        env LD_PRELOAD="$tmp/host.so" "$build/kiln" dump "$tmp/g.kir" --stage $stage --target $target >"$tmp/got" 2>&1
        { diff "$tmp/want" "$tmp/got" && [ -s "$tmp/want" ] && ! grep -F g.kir: "$tmp/want"; } >"$tmp/out"
        report "dump --stage $stage --target $target" $?
    done
done
agree=$(ls tests/text/agree_*.kir | awk -v every="${2:-1}" 'NR % every == 0')
for target in glsl cuda hip; do
    for file in $agree; do
        printf '# %s\n' "$file"
        "$build/kiln" dump "$file" --stage source --target $target
    done >"$tmp/want" 2>&1
    for file in $agree; do
        printf '# %s\n' "$file"
        env LD_PRELOAD="$tmp/host.so" "$build/kiln" dump "$file" --stage source --target $target
    done >"$tmp/got" 2>&1
    { diff "$tmp/want" "$tmp/got" &&
        [ "$(grep -cE '[0-9]\.[0-9]+f' "$tmp/want")" -gt $((1000 / ${2:-1})) ]; } >"$tmp/out"
    report "sources of agree_*.kir for $target" $?
    "$build/kiln" dump "$tmp/g.kir" --stage source --target $target >"$tmp/want" 2>&1
    env LD_PRELOAD="$tmp/host.so" "$build/kiln" dump "$tmp/g.kir" --stage source --target $target >"$tmp/got" 2>&1
    { diff "$tmp/want" "$tmp/got" && grep -F '(-0.5f)' "$tmp/want"; } >"$tmp/out"
    report "dump --stage source --target $target" $?
done
finish
