#!/bin/sh
# Fails if a folder includes a header of a folder that it must not know (README, "Architecture").
# Argument: the tree to check; without one, this one, after a check that a bad include is noticed.
root=${1:-$(dirname "$0")/..}

# folder:folders it may include from, itself included; include/ and the like are "kiln"
arrows='include:kiln ir:ir,kiln codegen:ir,codegen,kiln passes:ir,passes,kiln
runtime:ir,passes,codegen,runtime,kiln frontend:ir,passes,runtime,frontend,kiln
examples:kiln,examples,llm bench:ir,passes,runtime,kiln,bench,examples
tests:ir,passes,codegen,runtime,frontend,tests,kiln,bench,examples'

# Prints each include line that breaks an arrow. A quoted name without a folder is a file beside the includer.
bad_includes() {
    for rule in $arrows; do
        folder=${rule%%:*}
        [ -d "$1/$folder" ] || continue
        (cd "$1" && find "$folder" -name '*.[ch]' -o -name '*.def' -o -name '*.inc' |
            xargs grep -HnE '^[[:space:]]*#[[:space:]]*include') |
            awk -v may=",${rule#*:}," '{
                if (match($0, /"[^"]*"/)) {
                    path = substr($0, RSTART + 1, RLENGTH - 2)
                    if (path ~ /\.\.\//) { print; next }
                    if (path !~ /\//) next
                } else if (match($0, /<kiln\//)) path = "kiln/"
                else next
                sub(/\/.*/, "", path)
                if (index(may, "," path ",") == 0) print
            }'
    done
    # What reads files and what trains is made of calls that a user'"'"'s program could make; ir/file_signal.h and
    # ir/regular_file.h are headers of POSIX calls alone.
    find "$1/frontend/formats" "$1/frontend/train" "$1/frontend/solve" -name '*.[ch]' 2>/dev/null |
        xargs -r grep -HnE '^#include "[^"]*/' |
        grep -vE '"frontend/formats/(onnx/onnx|onnx/ops/attention|file_open|json|tensor_file|gguf/gguf)\.h"' |
        grep -vE '"(frontend/formats/onnx/ops/ml/(trees|labels)|frontend/solve/solve)\.h"' |
        grep -vE '"(ir/(file_signal|regular_file)\.h|frontend/formats/gguf/gguf_blocks\.def)"'
    # What writes models: beside that, one internal interface.
    find "$1/frontend/export" -name '*.[ch]' 2>/dev/null | xargs -r grep -HnE '^#include "' |
        grep -vE '"(export|traced_graph|frontend/formats/file_open)\.h"|/traced_graph\.h:[0-9]+:#include "ir/ir\.h"'
    # What emits kernels reads the record and facts, not the target: in passes/lower only choosing schedules does, and
    # lower_pitch.c, which is about whole graphs.
    find "$1/passes/lower" -name '*.[ch]' ! -name '*_schedule.[ch]' ! -name lower_pitch.c 2>/dev/null |
        xargs -r grep -HnE 'caps->|chooser->caps'
    # A user'"'"'s program and the tests named api_ see the public headers only.
    for file in "$1"/tests/*/api_*.c "$1"/tests/*/*/api_*.c; do
        [ ! -e "$file" ] || grep -HnE '^#include "(ir|passes|codegen|runtime|frontend)/' "$file"
    done
}

if [ $# -eq 0 ]; then # the check itself must notice
    scratch=$(mktemp -d)
    mkdir -p "$scratch/ir" "$scratch/runtime" "$scratch/tests/api" "$scratch/frontend/formats/onnx" \
        "$scratch/frontend/export" "$scratch/passes/lower"
    echo 'bool f(struct lowering *w) { return w->chooser->caps->is_gpu; }' >"$scratch/passes/lower/lower_bad.c"
    printf '#include "onnx.h"\n#include "frontend/frontend.h"\n' >"$scratch/frontend/formats/onnx/bad.c"
    printf '#include "export.h"\n#include "ir/ir.h"\n' >"$scratch/frontend/export/bad.c"
    printf '#include "passes/passes.h"\n' >"$scratch/ir/bad.c"
    printf '#include "../ir/ir.h"\n' >"$scratch/runtime/bad.h"
    printf '#include "ir/ir.h"\n#include "bad.h"\n#include <kiln/kiln.h>\n' >"$scratch/runtime/good.c"
    printf '#include "ir/ir.h"\n' >"$scratch/tests/api/api_bad.c"
    found=$(bad_includes "$scratch" | wc -l)
    rm -r "$scratch"
    if [ "$found" -ne 6 ]; then
        echo "FAIL the check found $found of 6 planted bad lines"
        echo "0 passed, 1 failed, 0 skipped"
        exit 1
    fi
fi

# The top-level folders are these; a copy without its history is taken as it is.
rooms=' bench codegen examples frontend include ir passes runtime tests '
for name in $(git -C "$root" ls-tree -d --name-only HEAD 2>/dev/null); do
    case $rooms in
    *" $name "*) ;;
    *) [ "${name#.}" != "$name" ] ||
        { printf 'FAIL %s/ is not one of the top-level folders (README)\n0 passed, 1 failed, 0 skipped\n' "$name" &&
            exit 1; } ;;
    esac
done

marks=$(git -C "$root" grep -nE '^(<{7}|>{7}) ' 2>/dev/null)
if [ -n "$marks" ]; then
    printf 'FAIL what a merge left open:\n%s\n2 passed, 1 failed, 0 skipped\n' "$marks"
    exit 1
fi

bad=$(bad_includes "$root")
if [ -n "$bad" ]; then
    printf 'FAIL includes, or reads of the target, against the arrows:\n%s\n' "$bad"
    echo "3 passed, $(echo "$bad" | wc -l) failed, 0 skipped"
    exit 1
fi
echo "4 passed, 0 failed, 0 skipped"
