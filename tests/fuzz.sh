#!/bin/sh
# Fuzzes the parser and what follows it (tests/fuzz/fuzz_parse.c), or with `onnx` the importer of models
# (tests/fuzz/fuzz_onnx.c), for a time:  fuzz.sh BUILD [SECONDS [onnx]]
#
# Starts from the texts of tests/text, or the small models of ONNX's own tests (Debian: libonnx-testdata), and from what
# earlier runs found new, kept in BUILD/fuzz-corpus or BUILD/fuzz-onnx-corpus.  An input that fails is left in BUILD as
# crash-*, leak-*, oom-* or timeout-*; `BUILD/tests/fuzz_parse FILE` runs it again and
# `-minimize_crash=1 -runs=100000` makes it smaller.
build=$1 seconds=${2:-60} what=${3:-parse}
root=$(cd "$(dirname "$0")/.." && pwd)
corpus=$build/fuzz-corpus seeds=$build/fuzz-seeds log=$build/fuzz.log
if [ "$what" = onnx ]; then corpus=$build/fuzz-onnx-corpus seeds=$build/fuzz-onnx-seeds log=$build/fuzz-onnx.log; fi
rm -rf "$seeds"
mkdir -p "$corpus" "$seeds"

if [ "$what" = onnx ]; then
    for file in /usr/share/libonnx-testdata/data/*/test_*/model.onnx; do
        [ -e "$file" ] && [ "$(wc -c <"$file")" -le 4096 ] &&
            cp "$file" "$seeds/$(basename "$(dirname "$file")")"
    done
    # Operators and attributes as the importer knows them.
    {
        sed -n 's/^[A-Z_]*(\([A-Za-z0-9]*\),.*/"\1"/p' "$root/frontend/formats/onnx/ops.def"
        grep -hoE 'onnx_attr_[a-z]*\(n, "[a-z_]*"' "$root"/frontend/formats/onnx/ops/*.c | sed 's/.*(n, //'
    } | sort -u >"$build/fuzz-onnx.dict"
fi
if [ "$what" = parse ]; then
for file in "$root"/tests/text/*.kir "$root"/tests/text/*.loop; do
    sed '/^# \(expect\|graph\):$/,$d' "$file" >"$seeds/$(basename "$file")"
done

# The words of the language: ops, dtypes, and the quoted words of the grammar.
{
    sed -n 's/^\(ST\|EW[123]\)(\([a-z_0-9]*\),.*/"\2"/p' "$root/ir/ops/ops.def"
    sed -n 's/^DT[A-Z]* *(\([a-z0-9]*\),.*/"\1"/p' "$root/ir/math/dtypes.def"
    sed -n 's/^PRIM([A-Z]*, *\([a-z]*\),.*/"\1"/p' "$root/ir/math/prims.def"
    sed -n '/^\(text\|kernels\) *=/,/^```/p' "$root/ir/README.md" | grep -o '"[^"\\ ]*"'
    printf '"%s"\n' 'f32[]' 'f32[n]' '2*n+1' '1..9' 'bits(0x' '1e-05' '-inf' ' : f32[2]' ' group 0' '(0; 0)' '\\x41' \
        '\"'
} | sort -u >"$build/fuzz-parse.dict"
fi

"$build/tests/fuzz_$what" -max_total_time="$seconds" -dict="$build/fuzz-$what.dict" -max_len=4096 -timeout=10 \
    -malloc_limit_mb=64 -rss_limit_mb=1024 -artifact_prefix="$build/" -print_final_stats=1 -verbosity=1 \
    "$corpus" "$seeds" >"$log" 2>&1
status=$?
units=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
if [ "$status" -ne 0 ] || [ "${units:-0}" -lt 1000 ]; then
    echo "FAIL exit status $status after ${units:-no} inputs; the end of $log:"
    tail -n 40 "$log"
    echo "0 passed, 1 failed, 0 skipped"
    exit 1
fi
echo "$units inputs in $seconds s; peak memory $(sed -n 's/^stat::peak_rss_mb: *//p' "$log") MiB"
echo "1 passed, 0 failed, 0 skipped"
