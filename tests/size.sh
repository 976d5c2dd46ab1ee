#!/bin/sh
# Fails if a source file has more than 800 lines, tables (.def, .inc) and the header that is made of others apart.
cd "$(dirname "$0")/.." || exit 1
files=$(find include ir frontend passes codegen runtime tests bench examples run .ci -type f \
    ! -name '*.def' ! -name '*.inc' ! -name '*.kir')
n=$(echo "$files" | wc -l)
# shellcheck disable=SC2086
long=$(wc -l $files | awk '$2 != "total" && $1 > 800 { print "  " $2 ": " $1 " lines" }')
if [ "$n" -lt 10 ]; then
    echo "only $n files found: the check is broken"
    echo "0 passed, 1 failed, 0 skipped"
    exit 1
fi
bad=0
if [ -n "$long" ]; then
    bad=$(echo "$long" | wc -l)
    printf 'FAIL files over 800 lines:\n%s\n' "$long"
fi
echo "$((n - bad)) passed, $bad failed, 0 skipped"
[ "$bad" -eq 0 ]
