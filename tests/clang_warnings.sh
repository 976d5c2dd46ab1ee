#!/bin/sh
# Clang's warnings of the sources that its build with sanitizers leaves out, since no suite runs them there: benchmarks,
# and the test programs that only the release build has.  Each is parsed and checked, no code is made.
#   clang_warnings.sh BUILD      BUILD: a folder configured with a clang and KILN_WERROR, and built
folder=${1:?a build folder}
cd "$folder" || exit 1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Of each source, once: its object and its command, without the escapes of JSON.
sed -n 's/^ *"command": "\(.*\)",*$/\1/p' compile_commands.json | sed 's/\\"/"/g; s/\\\\/\\/g' |
    sed -n 's/^.* -o \([^ ]*\) -c \([^ ]*\).*$/\1 \2 &/p' | awk '!seen[$2]++' >"$work/commands"
p=0 f=0 built=0
while read -r object source command; do
    if [ -e "$object" ]; then
        built=$((built + 1))
    elif sh -c "$command -fsyntax-only" >"$work/out" 2>&1 && [ ! -s "$work/out" ]; then
        p=$((p + 1))
    else
        f=$((f + 1))
        echo "FAIL $source"
        head -n 20 "$work/out"
    fi
done <"$work/commands"
echo "$built sources are compiled"
[ $built -gt 400 ] || { f=$((f + 1)) && echo "FAIL $folder is not built"; }
echo "$p passed, $f failed, 0 skipped"
[ "$f" -eq 0 ]
