#!/bin/sh
# Fails where a source line has more than 120 columns (tables of documents and text tests apart), where its layout is
# not that of the others, where a function local to a file has a name that stands in more than two files (grep and
# stack traces could not tell them apart) or is one bare word, where two files have structs of one name, where a coined
# word stands in place of the field's, where a folder's README does not name a file of it, where more files name an op
# than the table below allows, and where text was damaged by wrapping it again.
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
readmes=$(find $folders -name README.md)
# shellcheck disable=SC2086
long=$(awk 'length($0) > 120 { print "  " FILENAME ":" FNR ": " length($0) }' $files)
result 'lines over 120 columns' "$long"

# Layout: one tool's idea of it was tried and changes 5,000 lines for the worse (tables, short structs and cases on one
# line), so that only what has one answer is checked.  Statements are indented by fours outside of parentheses.
# shellcheck disable=SC2086
layout=$(find $folders -name '*.[ch]' -o -name '*.cpp' -o -name '*.hpp' -o -name '*.inc' | xargs awk '
    function bad(why) { print "  " FILENAME ":" FNR ": " why }
    FNR == 1 { before = "x"; depth = 0 }
    /\t/ { bad("a tab") }
    /[ \r]$/ { bad("a blank at the end") }
    /^$/ && before == "" { bad("two empty lines") }
    {
        code = $0
        gsub(/\\\\/, "", code); gsub(/\\["\047]/, "", code); gsub(/"[^"]*"|\047[^\047]*\047/, "\"\"", code)
        gsub(/\/\*.*\*\//, "", code); sub(/\/[*\/].*/, "", code)
        if (code ~ /^[^ ]/) depth = 0
    }
    code ~ /(^|[^a-zA-Z_0-9#])(if|for|while|switch)\(/ { bad("no blank behind a keyword") }
    depth <= 0 && code ~ /^ *(if|for|while|switch|return|case|else|do|break|continue|goto)([^a-zA-Z_0-9]|$)/ {
        match(code, /[^ ]/)
        if ((RSTART - 1) % 4) bad("a statement that is indented by " RSTART - 1)
    }
    code ~ /^[a-z].*[a-z_0-9]\([^=]*\) \{$/ && code !~ /^(extern|namespace|inline)/ { bad("the brace of a function") }
    code ~ /^ *else/ && before ~ /^ *\}$/ { bad("else below its brace") }
    { before = $0; depth += gsub(/\(/, "", code) - gsub(/\)/, "", code) }')
result 'layout' "$layout"

# A definition begins a line with "static" and has its "(" there, with no "=" or ";" before it.
shared=$(grep -rE '^static [^=;]*[a-z_0-9]+\(' --include='*.c' ir passes codegen runtime frontend |
    grep -v ');$' | sed -E 's/^([^:]*):[^(]*[ *]([a-z_0-9]+)\(.*$/\2 \1/' | sort -u |
    awk '{ n[$1]++; where[$1] = where[$1] " " $2 } END { for (f in n) if (n[f] > 2) print "  " f ":" where[f] }')
result 'names of file-local functions in more than two files' "$shared"
names=$(grep -rhcE '^static [^=;]*[a-z_0-9]+\(' --include='*.c' ir passes codegen runtime frontend |
    awk '{ n += $1 } END { print n }')
if [ "$names" -lt 1000 ]; then result 'functions found' "$names"; fi

# A file-local function says what it does, with its file's subject in front: one bare word is found everywhere and
# says nothing in a stack trace.
bare=$(grep -rnE '^static [^=;{}()]*[ *][a-z0-9]+\(' --include='*.c' ir passes codegen runtime frontend |
    grep -v 'passes/lower/elementwise/lower_map.c.* innermost(' | sed 's/^/  /')
result 'file-local functions named by one bare word' "$bare"

# A debugger knows a struct by its name alone.  Opaque types that each driver, or each program that runs regions,
# defines for itself are the exception.
structs=$(grep -rnoE '^((static|const|typedef|extern) )*(struct|union|enum) [a-z_0-9]+ \{' --include='*.[ch]' \
    ir passes codegen runtime frontend | sed -E 's/:[0-9]*:.*(struct|union|enum) / /; s/ \{$//' | sort -u |
    awk '{ n[$2]++; where[$2] = where[$2] " " $1; if ($1 ~ /\.c$/) own[$2] = 1 }
        END { for (s in n) if (n[s] > 1 && own[s]) print "  " s ":" where[s] }' |
    grep -vE '^  (driver_device|driver_kernel|region_frame):')
count=$(grep -rhoE '^((static|const|typedef|extern) )*(struct|union|enum) [a-z_0-9]+ \{' --include='*.[ch]' \
    ir passes codegen runtime frontend | wc -l)
if [ "$count" -lt 500 ]; then result 'structs found' "$count"; fi
result 'structs, unions and enums of one file whose name another file has' "$structs"

# A folder's README names each of its source files.
unnamed=$(find ir passes codegen runtime frontend -mindepth 2 -name README.md | while read -r readme; do
    find "${readme%/*}" -maxdepth 1 -type f ! -name README.md ! -name CMakeLists.txt | while read -r file; do
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

# Coined words, and the field's words to use: WORDS => USE.  Exact identifiers and phrases, so that ordinary English is
# not hit.
while read -r line; do
    words=${line%% => *}
    # shellcheck disable=SC2086
    coined=$(grep -nwE -e "$words" $files README.md $readmes | grep -vE '^tests/(style|convention).sh' |
        cut -c1-150 | sed 's/^/  /')
    result "$words: use ${line##* => }" "$coined"
done <<END
stand-ins?|stand_ins? => placeholder (size), fallback (program), mock (driver)
find_turned|transposed_turn|may_turn|gpu_turn|map_may_turn|SCHED_GPU_TURN => transposed, transpose
handed in|hands in|handed over|hand_over => user-supplied, submitted
across the grain => non-contiguous
by turns|by_turns => in alternation
await_filled|await_used|filled and used|await_turn => full barrier, empty barrier, ping-pong
roles of a block|dot_roles|attention_roles|begin_role => warp specialization: producer, consumer
panel copies|tensor cop(y|ies) (can|take|read|where)|by tensor copies => TMA loads (bulk tensor copies)
neighbours (in|of|along) each|NEIGHBOURS|has_neighbour|without neighbours => vector width, adjacent elements
lower_exp_down|k_exp_down|exp_down|(KEY_)?EXP_DOWN => exp_nonpositive
ix_whole|ix_below|ix_times => ix_assume_range, ix_assume_below, ix_mul
carriers?|Carrier|CARRIER_[A-Z]+ => transport
patience|patience_of => deadline
thin_[a-z]+|dot_thin|gpu_thin|may_be_thin|THIN => skinny
places_(add|flat|gather|scatter)|kept_places => indices
in_pairs|products (of bf16 )?in pairs => bf16_dot2, bf16 dot2 order
can_say|schedule_no|kernel_refuse|misfits? => source_is_supported, reject_schedule, kernel_mark_unsupported, check_call
found_rightly|namesakes|run_schedule => verify_memo_hit, find_by_name, select_family
keep_unit|unwidened|digested => commit_tuned, strip_widening, stable_shape
(simplify|kernel|launch)_settle|settle_(constant|device) => canonicalize, resolve
pair_sees|pairs_see|pairs that (do not )?see each|a query sees => unmasked, attends to
attention_(sees|seen)|(row|key)_(sees|is_seen) => unmasked
walked rows?|rows are walked|are walked (in|chunk|as)|one walk over|walks the (keys|rows) => iterated over, one pass
(onnx|run|can)_know => evaluate
tell_(kernel|progress|of_temporary)|may_be_one|parse_lead|put_part|newest_instead => describe_kernel, can_fuse_gradients
END

# Words of the field that a search has to find where the thing is.
while read -r word folder; do
    result "no file of $folder says $word" "$(grep -rqiwE "$word" "$folder" || echo '  none')"
done <<END
liveness passes/plan
coalesc(ed|ing) passes/lower
vectoriz(ed|ation) passes/lower
split-K passes/lower/dot
producer passes/lower
consumer passes/lower
TMA codegen/gpu
ping-pong passes/lower
swizzled? codegen/gpu
look-back passes/lower/gpu
rematerializ(ation|es) passes/graph
END

# The table "Where is ...?" of passes/README.md: each function is defined in the file that the table names.
answers=$(sed -n '/^## Where is/,/^## Looking/s/^|.*| `\([^`]*\)` | `\([^`]*\)` |$/\1 \2/p' passes/README.md)
[ "$(echo "$answers" | wc -l)" -ge 10 ] || result 'answers in passes/README.md' "$answers"
lost=$(echo "$answers" | while read -r file function; do
    grep -qE "^[a-z][^=;]*$function\(" "$file" || echo "  $file does not define $function"
done)
result 'functions of the table in passes/README.md' "$lost"

# A header's guard is its own: a public header and an internal one are included together.
guards=$(find $folders -name '*.h' -exec grep -hE '^#define KILN_[A-Z0-9_]*_H$' {} + | sort | uniq -d)
result 'header guards that two headers have' "$guards"

# Generated headers are in the build folder. A call inside of the library has the thread's call site, or none where the
# message that quotes its error has it.
result 'call_sites.h in the source tree' "$(find include -name call_sites.h)"
forwarded=$(grep -rnE '\bkl_[a-z0-9_]+_at\(|KL_HERE' --include='*.[ch]' frontend runtime |
    grep -vE '_at\((&site|NULL), ')
result 'call sites passed on' "$forwarded"

# Product files that may name an op, at most; others ask the traits of its row in ops.def.
while read -r op most; do
    named=$(grep -lwr "OP_$op" ir passes codegen runtime frontend)
    count=$(echo "$named" | grep -c .)
    if [ "$count" -ge 1 ] && [ "$count" -le "$most" ]; then named=; else named=${named:-none}; fi
    result "$count files name OP_$op, of 1 to $most" "$named"
done <<END
slice 6
pad 5
dot 9
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
