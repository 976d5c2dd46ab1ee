#!/bin/sh
# Fuzzes what reads files for a time:  fuzz.sh BUILD [SECONDS] [TARGET]
#
# TARGET: fuzz_parse, the parser and what follows it, fuzz_file, files of tensors, or fuzz_onnx, the importer of models,
# from ONNX's own tests (Debian: libonnx-testdata) (tests/fuzz/TARGET.c).  It starts from samples and from what earlier
# runs found new, kept in BUILD/TARGET-corpus.  An input that fails is left in BUILD as crash-*, leak-*, oom-* or
# timeout-*; `BUILD/tests/TARGET FILE` runs it again and `-minimize_crash=1 -runs=100000` makes it smaller.
build=$1 seconds=${2:-60} target=${3:-fuzz_parse}
root=$(cd "$(dirname "$0")/.." && pwd)
corpus=$build/$target-corpus seeds=$build/$target-seeds log=$build/$target.log
rm -rf "$seeds"
mkdir -p "$corpus" "$seeds"

parse_samples() {
    for file in "$root"/tests/text/*.kir "$root"/tests/text/*.loop; do
        sed '/^# \(expect\|graph\):$/,$d' "$file" >"$seeds/$(basename "$file")"
    done
}

# The words of the language: ops, dtypes, and the quoted words of the grammar.
parse_words() {
    sed -n 's/^\(ST\|EW[123]\)(\([a-z_0-9]*\),.*/"\2"/p' "$root/ir/ops/ops.def"
    sed -n 's/^DT[A-Z]* *(\([a-z0-9]*\),.*/"\1"/p' "$root/ir/math/dtypes.def"
    sed -n 's/^PRIM([A-Z]*, *\([a-z]*\),.*/"\1"/p' "$root/ir/math/prims.def"
    sed -n '/^\(text\|kernels\) *=/,/^```/p' "$root/ir/README.md" | grep -o '"[^"\\ ]*"'
    printf '"%s"\n' 'f32[]' 'f32[n]' '2*n+1' '1..9' 'bits(0x' '1e-05' '-inf' ' : f32[2]' ' group 0' '(0; 0)' '\\x41' \
        '\"'
}

# A file of each format: two floats called a.
file_samples() {
    header="{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }"
    printf '\223NUMPY\001\000\166\000%-117s\n01234567' "$header" >"$seeds/npy"
    python3 -c "import sys, zipfile
for kind in 0, 8:
    with zipfile.ZipFile(sys.argv[1] + '/npz' + str(kind), 'w', kind) as z:
        z.write(sys.argv[1] + '/npy', 'a.npy')" "$seeds" 2>/dev/null
    header='{"__metadata__":{"k":"v"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
    printf "\\$(printf %03o ${#header})"'\000\000\000\000\000\000\000%s01234567' "$header" >"$seeds/safetensors"
    zeros='\000\000\000\000\000\000\000' one='\001\000\000\000\000\000\000\000'
    # a string, an array of numbers, a tensor of 32 elements of the type that is its argument
    for type in 000 002 010; do
        printf "GGUF\\003\\000\\000\\000$one\\002${zeros}${one}k\\010\\000\\000\\000${one}v" >"$seeds/gguf$type"
        printf "${one}n\\011\\000\\000\\000\\004\\000\\000\\000${one}0123" >>"$seeds/gguf$type"
        printf "${one}a\\001\\000\\000\\000\\040$zeros\\$type\\000\\000\\000\\000$zeros" >>"$seeds/gguf$type"
        head -c 160 /dev/zero | tr '\0' 0 >>"$seeds/gguf$type"
    done
}

file_words() {
    printf '"%s"\n' "'descr':" "'fortran_order':" "'shape':" True False '<f8' '|b1' '|i1' dtype shape data_offsets \
        __metadata__ F64 BF16 F8_E4M3 general.alignment '\x93NUMPY' 'PK\x01\x02' 'PK\x03\x04' 'PK\x05\x06' \
        'PK\x06\x06' 'PK\x06\x07' '\xff\xff\xff\xff' '\x01\x00\x10\x00'
}

onnx_samples() {
    for file in /usr/share/libonnx-testdata/data/*/test_*/model.onnx; do
        [ -e "$file" ] && [ "$(wc -c <"$file")" -le 4096 ] && cp "$file" "$seeds/$(basename "$(dirname "$file")")"
    done
}

# Operators and attributes as the importer knows them.
onnx_words() {
    sed -n 's/^[A-Z_]*(\([A-Za-z0-9]*\),.*/"\1"/p' "$root/frontend/formats/onnx/ops.def"
    grep -hoE 'onnx_attr_[a-z]*\(n, "[a-z_]*"' "$root"/frontend/formats/onnx/ops/*.c | sed 's/.*(n, //'
}

"${target#fuzz_}_samples"
"${target#fuzz_}_words" | sort -u >"$build/$target.dict"

"$build/tests/$target" -max_total_time="$seconds" -dict="$build/$target.dict" -max_len=4096 -timeout=10 \
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
