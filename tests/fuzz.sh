#!/bin/sh
# Fuzzes what reads files for a time:  fuzz.sh BUILD [SECONDS] [TARGET] [READER]
#
# TARGET: fuzz_parse, the parser and what follows it, fuzz_file, files of tensors, fuzz_data, files of data, text and
# logs, and checkpoints, or fuzz_onnx, the importer of models, from ONNX's own tests (Debian: libonnx-testdata) and
# the models that tests/onnx/node_models.sh made in build (tests/fuzz/TARGET.c).  READER: only inputs of this reader:
# npy, npz, safetensors or gguf for fuzz_file; csv, idx,
# tokens, tokenizer, checkpoint, log or words (tokenizers of one file) for fuzz_data.  The run starts from samples and
# from what earlier runs found new, kept in BUILD/NAME-corpus, where NAME is TARGET or TARGET-READER.  An input that
# fails is left in BUILD/NAME- as crash-*, leak-*, oom-* or timeout-*; `BUILD/tests/TARGET FILE` runs it again and
# `-minimize_crash=1 -runs=100000` makes it smaller.  An input may take TIMEOUT seconds (300 if this variable is not
# set).
build=$1 seconds=${2:-60} target=${3:-fuzz_parse} reader=${4:-}
root=$(cd "$(dirname "$0")/.." && pwd)
name=$target${reader:+-$reader}
corpus=$build/$name-corpus seeds=$build/$name-seeds log=$build/$name.log
[ -z "$reader" ] || export FUZZ_READER="$reader"
rm -rf "$seeds"
mkdir -p "$corpus" "$seeds"

parse_samples() {
    for file in "$root"/tests/text/*.kir "$root"/tests/text/*.loop; do
        sed '/^# \(expect\|graph\):$/,$d' "$file" >"$seeds/$(basename "$file")"
    done
}

# The words of the language: ops, dtypes, and the quoted words of the grammar.
parse_words() {
    sed -n 's/^\(ST\|SF\|EW[123]\|EW2_AS\)(\([a-z_0-9]*\),.*/"\2"/p' "$root/ir/ops/ops.def"
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
    for type in F8_E4M3 F8_E5M2 F8_E8M0; do
        header='{"a":{"dtype":"'$type'","shape":[1,256],"data_offsets":[0,256]}}'
        printf "\\$(printf %03o ${#header})"'\000\000\000\000\000\000\000%s' "$header" >"$seeds/$type"
        head -c 256 /dev/zero | tr '\0' 1 >>"$seeds/$type"
    done
    printf '{"metadata":{"a":[1,{}]},"weight_map":{"a":"b","c":"b"}}' >"$seeds/index"
    zeros='\000\000\000\000\000\000\000' one='\001\000\000\000\000\000\000\000'
    # a string, an array of numbers, a tensor of 256 elements of each type that is read (gguf_blocks.def, and F32)
    for type in 000 002 003 006 007 010 012 013 014 015 016 024 027 047; do
        printf "GGUF\\003\\000\\000\\000$one\\002${zeros}${one}k\\010\\000\\000\\000${one}v" >"$seeds/gguf$type"
        printf "${one}n\\011\\000\\000\\000\\004\\000\\000\\000${one}0123" >>"$seeds/gguf$type"
        printf "${one}a\\001\\000\\000\\000\\000$one" | head -c 21 >>"$seeds/gguf$type"
        printf "\\$type\\000\\000\\000\\000$zeros" >>"$seeds/gguf$type"
        head -c 1100 /dev/zero | tr '\0' 0 >>"$seeds/gguf$type"
    done
}

file_words() {
    printf '"%s"\n' "'descr':" "'fortran_order':" "'shape':" True False '<f8' '|b1' '|i1' dtype shape data_offsets \
        __metadata__ F64 BF16 F8_E4M3 F8_E5M2 F8_E8M0 C64 weight_map general.alignment '\x93NUMPY' 'PK\x01\x02' \
        'PK\x03\x04' 'PK\x05\x06' 'PK\x06\x06' 'PK\x06\x07' '\xff\xff\xff\xff' '\x01\x00\x10\x00'
}

# A file of each kind that fuzz_data.c reads, behind the byte that says which.
data_samples() {
    printf '\000 1, 2.5,-3e4\n"4",,6\n' >"$seeds/csv"
    printf '\007a,"b ""c"""\n1,2\r\n\n3,nan\n' >"$seeds/csv_header"
    printf '\001\000\000\010\002\000\000\000\002\000\000\000\003abcdef' >"$seeds/idx"
    { printf '\001'; printf '\000\000\010\001\000\000\000\004abcd' | gzip -n; } >"$seeds/idx_gz"
    printf '\011\001\000\002\000\377\377' >"$seeds/tokens"
    printf '\027skipabcdefgh' >"$seeds/tokens_skip"
    # the 256 bytes as tokens in GPT-2's characters, and some merges; a file of llm.c
    {
        printf '\003'
        python3 -c "import json
own = [*range(33, 127), *range(161, 173), *range(174, 256)]
names = [chr(c) for c in own] + [chr(256 + i) for i in range(256 - len(own))] + ['th', 'the', chr(288) + 'the']
print(json.dumps({w: i for i, w in enumerate(names)}), end=chr(0))
print('#version: 0.2', 't h', 'th e', chr(288) + ' the', sep=chr(10))"
    } >"$seeds/tokenizer" 2>/dev/null
    printf '\003{"a": 0, "b\\u0120": 1}' >"$seeds/tokenizer_json"
    { printf '\003\050\327\064\001\002\000\000\000\003\000\000\000\002\000\000\000'
      head -c 1008 /dev/zero; printf '\001a\002bc\000'; } >"$seeds/tokenizer_llmc"
    header='{"__metadata__":{"kiln":"1"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},'
    header=$header'"b":{"dtype":"F32","shape":[2],"data_offsets":[8,16]},'
    header=$header'"step":{"dtype":"I64","shape":[],"data_offsets":[16,24]}}'
    { printf "\004\\$(printf %03o ${#header})"'\000\000\000\000\000\000\000%s' "$header"
      printf '0123456701234567\001\000\000\000\000\000\000\000'; } >"$seeds/snapshot"
    for file in "$root"/tests/formats/tokenizers/*.json "$root"/tests/formats/tokenizers/*.model \
        "$root"/tests/formats/tokenizers/*.gguf; do
        { printf '\006'; cat "$file"; printf '\377the <s> fox 12'; } >"$seeds/words_$(basename "$file")"
    done
    {
        printf '\006{"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}, "pre_tokenizer": '
        printf '{"type": "Split", "behavior": "Isolated", "pattern": {"Regex": "(?i:a|b+)[^\\\\p{L}x]{1,3}"}}}\377aab'
    } >"$seeds/words_split"
    printf '\005{"step": 1, "loss": 2.5, "rate": 1e-3, "seconds": 0.5, "note": "a\\"b"}\n{"step":2,"loss":null}\n' \
        >"$seeds/log"
}

data_words() {
    printf '"%s"\n' '\x1f\x8b\x08' '\x00\x00\x08\x03' '\x28\xd7\x34\x01' '{\"' '\":' '\\u0120' '\\u' '#version: ' \
        ' the' '\"step\":' '\"loss\":' '\"rate\":' null nan inf -1e308 '\xc4\xa0' dtype shape data_offsets I64 F32
}

onnx_samples() {
    for file in /usr/share/libonnx-testdata/data/*/test_*/model.onnx "$root"/build/onnx-*/node/test_*/model.onnx; do
        [ -e "$file" ] && [ "$(wc -c <"$file")" -le 4096 ] && cp "$file" "$seeds/$(basename "$(dirname "$file")")"
    done
}

# Operators and attributes as the importer knows them.
onnx_words() {
    sed -n 's/^[A-Z_]*(\([A-Za-z0-9]*\),.*/"\1"/p' "$root/frontend/formats/onnx/ops.def"
    sed -n 's/^M[SL](\("[A-Za-z0-9]*"\),.*/\1/p' "$root/frontend/formats/onnx/contrib.def"
    printf '"%s"\n' com.microsoft ai.onnx.ml BRANCH_LEQ LEAF
    grep -hoE 'onnx_attr_[a-z]*\(n, "[a-z_]*"' "$root"/frontend/formats/onnx/ops/*.c \
        "$root"/frontend/formats/onnx/ops/*/*.c | sed 's/.*(n, //'
}

"${target#fuzz_}_samples"
"${target#fuzz_}_words" | sort -u >"$build/$name.dict"

"$build/tests/$target" -max_total_time="$seconds" -dict="$build/$name.dict" -max_len=8192 -timeout="${TIMEOUT:-300}" \
    -malloc_limit_mb=64 -rss_limit_mb=1024 -artifact_prefix="$build/$name-" -print_final_stats=1 -verbosity=1 \
    "$corpus" "$seeds" >"$log" 2>&1
status=$?
units=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
if [ "$status" -ne 0 ] || [ "${units:-0}" -lt 1 ]; then
    echo "FAIL exit status $status after ${units:-no} inputs; the end of $log:"
    tail -n 40 "$log"
    echo "0 passed, 1 failed, 0 skipped"
    exit 1
fi
echo "$units inputs in $seconds s; peak memory $(sed -n 's/^stat::peak_rss_mb: *//p' "$log") MiB"
echo "1 passed, 0 failed, 0 skipped"
