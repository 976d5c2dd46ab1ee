#!/bin/sh
# Fails where a source line has more than 120 columns (tables of documents and text tests apart), where a function
# local to a file has a name that stands in more than two files (grep and stack traces could not tell them apart),
# where a folder's README does not name a file of it, where more files name an op than the table below allows, and where
# text was damaged by wrapping it again.
cd "$(dirname "$0")/.." || exit 1
folders='include ir frontend passes codegen runtime tests bench examples'
passed=0 failed=0
result() { # NAME FINDINGS
    if [ -z "$2" ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        printf 'FAIL %s:\n%s\n' "$1" "$2"
    fi
}

# shellcheck disable=SC2086
files=$(find $folders run CMakeLists.txt -name '*.[ch]' -o -name '*.cpp' -o -name '*.hpp' -o -name '*.def' \
    -o -name '*.inc' -o -name '*.sh' -o -name '*.cmake' -o -name '*.txt' -o -name run)
[ "$(echo "$files" | wc -l)" -gt 300 ] || result 'files found' "$files"
# shellcheck disable=SC2086
long=$(awk 'length($0) > 120 { print "  " FILENAME ":" FNR ": " length($0) }' $files)
result 'lines over 120 columns' "$long"

# A definition begins a line with "static" and has its "(" there, with no "=" or ";" before it.
shared=$(grep -rE '^static [^=;]*[a-z_0-9]+\(' --include='*.c' ir passes codegen runtime frontend |
    grep -v ');$' | sed -E 's/^([^:]*):[^(]*[ *]([a-z_0-9]+)\(.*$/\2 \1/' | sort -u |
    awk '{ n[$1]++; where[$1] = where[$1] " " $2 } END { for (f in n) if (n[f] > 2) print "  " f ":" where[f] }')
result 'names of file-local functions in more than two files' "$shared"
names=$(grep -rhcE '^static [^=;]*[a-z_0-9]+\(' --include='*.c' ir passes codegen runtime frontend |
    awk '{ n += $1 } END { print n }')
if [ "$names" -lt 1000 ]; then result 'functions found' "$names"; fi

# A folder's README names each of its source files.
unnamed=$(find ir passes codegen runtime frontend -mindepth 2 -name README.md | while read -r readme; do
    find "${readme%/*}" -maxdepth 1 -type f ! -name README.md | while read -r file; do
        grep -qF "\`${file##*/}\`" "$readme" || echo "  $readme does not name ${file##*/}"
    done
done)
result 'files that the README of their folder does not name' "$unnamed"

# What a tool that wraps text again leaves: two comments, one under the other, over one declaration; a heading of a
# section with the text behind it; a list that became a part of a table's row.
# shellcheck disable=SC2086
stacked=$(find $folders -name '*.[ch]' -o -name '*.cpp' -o -name '*.hpp' | xargs awk '
    function look(   i, s, before) {
        before = 0
        for (i = 1; i <= n; i++) {
            if (line[i] !~ /^\/\*/) continue
            s = i
            while (i < n && line[i] !~ /\*\//) i++
            if (line[i] !~ /\*\/[ \t]*$/) continue
            if (before && before == s - 1 && line[i + 1] ~ /^[a-zA-Z]/) print "  " file ":" s ": " line[i + 1]
            before = line[s] ~ /^\/\* ----/ ? 0 : i
        }
    }
    FNR == 1 { if (file) look(); file = FILENAME; n = 0 }
    { line[++n] = $0; line[n + 1] = "" }
    END { look() }')
result 'two comments over one declaration' "$stacked"
# shellcheck disable=SC2086
headings=$(grep -nE '^/\* ---- .* ---- [A-Z]' $files | sed 's/^/  /')
result 'headings with text behind them' "$headings"
lists=$(find . -name README.md -not -path './build*' | xargs grep -nE '^\|.*: \* .* \* ' | cut -c1-100 | sed 's/^/  /')
result 'lists in rows of tables' "$lists"

# A folder has at most 22 source files (headers of tests are not counted).
# shellcheck disable=SC2086
crowded=$(find $folders -name '*.c' -o -name '*.[ch]*' ! -path 'tests/*' -o -name '*.def' -o -name '*.inc' |
    sed 's,/[^/]*$,,' | sort | uniq -c | awk '$1 > 22 { print "  " $2 ": " $1 }')
result 'folders of more than 22 source files' "$crowded"

# Words that have a standard term instead (the glossary of ir/README.md).
# shellcheck disable=SC2086
private=$(grep -nwiE "the house|ambient|mark_again|way around|past the caches?|meets? (nobody|no one)|buf_inside|\
numbers? of this run|twin|teams?|whoever|as ever" $files README.md | grep -v '^tests/style.sh' | sed 's/^/  /')
result 'words that have a standard term instead' "$private"

# The table "Where is ...?" of passes/README.md: each function is defined in the file that the table names.
answers=$(sed -n '/^## Where is/,/^## Looking/s/^|.*| `\([^`]*\)` | `\([^`]*\)` |$/\1 \2/p' passes/README.md)
[ "$(echo "$answers" | wc -l)" -ge 10 ] || result 'answers in passes/README.md' "$answers"
lost=$(echo "$answers" | while read -r file function; do
    grep -qE "^[a-z][^=;]*$function\(" "$file" || echo "  $file does not define $function"
done)
result 'functions of the table in passes/README.md' "$lost"

headers=$(find include/kiln -name '*.h' | LC_ALL=C sort | grep -v call_sites.h)
# shellcheck disable=SC2086
awk -v mode=header -f include/kiln/call_sites.awk $headers | cmp -s - include/kiln/call_sites.h
result 'include/kiln/call_sites.h' "$([ $? -eq 0 ] || echo '  is not what call_sites.awk makes of the other headers')"

# Product files that may name an op, at most; others ask the traits of its row in ops.def.
while read -r op most; do
    named=$(grep -lwr "OP_$op" ir passes codegen runtime frontend)
    count=$(echo "$named" | grep -c .)
    if [ "$count" -ge 1 ] && [ "$count" -le "$most" ]; then named=; else named=${named:-none}; fi
    result "$count files name OP_$op, of 1 to $most" "$named"
done <<END
slice 6
pad 5
dot 8
attention 8
END

# The field's words for what a search looks for stand in the first comment of the file where the thing is or is chosen.
while read -r word file; do
    awk '{ print } /\*\// { exit }' "$file" | grep -qi -- "$word"
    result "the first comment of $file says $word" "$([ $? -eq 0 ] || echo '  it does not')"
done <<END
coalesced passes/lower/lower_schedule.c
coalesced passes/lower/gpu/lower_gpu_transpose.c
vectorization passes/lower/lower_schedule.c
vectorization codegen/gpu/source_linear.c
split-K passes/lower/dot/lower_dot_gpu_schedule.c
producer passes/lower/gpu/lower_pipeline.h
consumer passes/lower/gpu/lower_pipeline.h
TMA passes/lower/gpu/lower_pipeline.h
ping-pong passes/lower/gpu/lower_pipeline.h
swizzle codegen/gpu/source_async.c
look-back passes/lower/gpu/lower_gpu_scan.c
rematerialization passes/graph/remat.c
rematerialization passes/fuse/fuse_remat.c
liveness passes/plan/plan.c
END

echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
