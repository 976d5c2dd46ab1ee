#!/bin/sh
# kiln quantize: which type each tensor gets, what is copied, what it refuses.
#
#   cli_quantize.sh BUILD
kiln=$1/kiln
tests=$(dirname "$0")
. "$tests/cli_check.sh"

header='{"__metadata__":{"who":"us"},"a.weight":{"dtype":"F32","shape":[2,256],"data_offsets":[0,2048]},'
header=$header'"embed.weight":{"dtype":"F16","shape":[2,256],"data_offsets":[2048,3072]},'
header=$header'"odd":{"dtype":"F32","shape":[2,48],"data_offsets":[3072,3456]},'
header=$header'"even":{"dtype":"F8_E4M3","shape":[3,32],"data_offsets":[3456,3552]},'
header=$header'"bias":{"dtype":"F32","shape":[3],"data_offsets":[3552,3564]},'
header=$header'"ids":{"dtype":"I32","shape":[1,2],"data_offsets":[3564,3572]}}'
header=$(printf '%-512s' "$header") # 0x200 bytes
printf '\000\002\000\000\000\000\000\000%s' "$header" >"$tmp/in.safetensors"
head -c 3572 /dev/zero >>"$tmp/in.safetensors"

check 'quantize safetensors' 0 '^\[1/6\] a.weight \[2,256\] F32 -> Q4_K$' "$kiln" quantize "$tmp/in.safetensors" \
    "$tmp/out.gguf" --type q4_k
check 'its progress' 0 '^\[6/6\] ids \[1,2\] I32$' "$kiln" quantize "$tmp/in.safetensors" "$tmp/out.gguf" --type Q4_K
summary() { "$kiln" summary "$tmp/out.gguf" | tr -s ' '; }
check 'a matrix' 0 '^ a.weight Q4_K \[2,256\] 288$' summary
check 'an embedding' 0 '^ embed.weight F16 \[2,256\] 1024$' summary
check 'rows that no block divides' 0 '^ odd F32 \[2,48\] 384$' summary
check 'rows that smaller blocks divide' 0 '^ even Q5_0 \[3,32\] 66$' summary
check 'one axis' 0 '^ bias F32 \[3\] 12$' summary
check 'integers' 0 '^ ids I32 \[1,2\] 8$' summary
check 'its metadata' 0 '^ who = "us"$' summary
check 'its type in the metadata' 0 '^ general.file_type = 14$' summary
check 'quantize the result' 0 '^\[1/6\] a.weight \[2,256\] Q4_K -> Q8_0$' "$kiln" quantize "$tmp/out.gguf" \
    "$tmp/again.gguf" --type q8_0 --embedding q6_k
mv "$tmp/again.gguf" "$tmp/out.gguf"
check 'that matrix' 0 '^ a.weight Q8_0 \[2,256\] 544$' summary
check 'an embedding with a type' 0 '^ embed.weight Q6_K \[2,256\] 420$' summary
check 'metadata that is replaced' 0 '^ general.file_type = 7$' summary
check 'metadata that is copied' 0 '^ who = "us"$' summary
check 'a file over itself' 0 'out.gguf: 6 tensors, ' "$kiln" quantize "$tmp/out.gguf" "$tmp/out.gguf" --type q5_1
check 'that file' 0 '^ a.weight Q5_1 \[2,256\] 384$' summary

check 'codes for values of a table' 0 '^\[1/6\] a.weight \[2,256\] F32 -> IQ4_XS$' "$kiln" quantize \
    "$tmp/in.safetensors" "$tmp/out.gguf" --type iq4_xs --embedding mxfp4
check 'that matrix in super-blocks' 0 '^ a.weight IQ4_XS \[2,256\] 272$' summary
check 'rows that only blocks of 32 divide' 0 '^ even IQ4_NL \[3,32\] 54$' summary
check 'an embedding of MXFP4' 0 '^ embed.weight MXFP4 \[2,256\] 272$' summary
check 'the type of IQ4_XS in the metadata' 0 '^ general.file_type = 30$' summary
check 'quantize codes of a table' 0 '^\[4/6\] even \[3,32\] IQ4_NL -> Q4_1$' "$kiln" quantize "$tmp/out.gguf" \
    "$tmp/again.gguf" --type q4_1 --embedding bf16
mv "$tmp/again.gguf" "$tmp/out.gguf"
check 'what codes of a table became' 0 '^ embed.weight BF16 \[2,256\] 1024$' summary
sed 's/F8_E4M3/F8_E5M2/' "$tmp/in.safetensors" >"$tmp/e5m2.safetensors"
check 'floats of 8 bits' 0 '^\[4/6\] even \[3,32\] F8_E5M2 -> MXFP4$' "$kiln" quantize "$tmp/e5m2.safetensors" \
    "$tmp/out.gguf" --type mxfp4
check 'floats of 8 bits as MXFP4' 0 '^ even MXFP4 \[3,32\] 51$' summary

printf '{"metadata":{"total_size":1},"weight_map":{"a.weight":"in.safetensors","bias":"in.safetensors"}}' \
    >"$tmp/in.safetensors.index.json"
check 'an index of files' 0 '^\[2/2\] bias \[3\] F32$' "$kiln" quantize "$tmp/in.safetensors.index.json" \
    "$tmp/out.gguf" --type q6_k
check 'its tensors' 0 '^ a.weight Q6_K \[2,256\] 420$' summary
check 'its summary' 0 'total: 2 tensors, 515 elements' "$kiln" summary "$tmp/in.safetensors.index.json"
check 'a type that is none' 2 'kiln: --type q9: the types are F32 F16' "$kiln" quantize "$tmp/out.gguf" "$tmp/x" \
    --type q9
check 'an embedding type that is none' 2 'kiln: --embedding q9: the types are' "$kiln" quantize "$tmp/out.gguf" \
    "$tmp/x" --type q8_0 --embedding q9
check 'quantize without a type' 2 'and --type' "$kiln" quantize "$tmp/out.gguf" "$tmp/x"
check 'quantize one file' 2 'a file to read, one to write' "$kiln" quantize "$tmp/out.gguf" --type q8_0
check 'quantize no file' 1 'cannot open' "$kiln" quantize "$tmp/none.gguf" "$tmp/x" --type q8_0
check 'a file cut off' 1 'short: byte 0, field header length' \
    sh -c "head -c 300 '$tmp/in.safetensors' >'$tmp/short'; '$kiln' quantize '$tmp/short' '$tmp/x' --type q8_0"
{
    head -c 520 "$tmp/in.safetensors"
    head -c 400 /dev/zero
    printf '\000\000\300\177'
    head -c 3168 /dev/zero
} >"$tmp/nan"
check 'a value that is none' 1 '"a.weight": element 100 is nan, which Q4_K cannot hold' "$kiln" quantize "$tmp/nan" \
    "$tmp/x" --type q4_k
sed 's/"I32","shape":\[1,2\]/"U32","shape":[1,2]/' "$tmp/in.safetensors" >"$tmp/unsigned"
check 'a type that GGUF lacks' 1 '"ids": GGUF has no elements of u32' "$kiln" quantize "$tmp/unsigned" "$tmp/x" \
    --type q4_k
sed 's/"I32","shape":\[1,2\]/"C64","shape":[1  ]/' "$tmp/in.safetensors" >"$tmp/complex"
check 'complex numbers' 1 '"ids" has elements of C64, which Kiln does not write' "$kiln" quantize "$tmp/complex" \
    "$tmp/x" --type q4_k
check 'nothing is left of files that failed' 0 '^no$' sh -c "ls '$tmp' | grep -E '^x|part$' || echo no"
check 'a full disk' 1 'cannot write /dev/full' "$kiln" quantize "$tmp/in.safetensors" /dev/full --type f32
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
