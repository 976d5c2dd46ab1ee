#!/bin/sh
# The `kiln` command: exit codes, what it prints, what it refuses.
#
#   cli.sh BUILD [EVERY]     EVERY: `opt` takes each so many-th file of tests/text (1: all), where starting one is slow;
#                            tests/any_pass takes all of them through all passes without any
kiln=$1/kiln
every=${2:-1}
tests=$(dirname "$0")
. "$tests/cli_check.sh"

cat >"$tmp/step.kir" <<'END'
graph @step {
  %x = input 0 "x" : f32[2]
  %w = state 0 "w" : f32[2]
  %lr = slot 0 "lr" : f32[]
  %r = reshape %lr : f32[1]
  %e = expand %r : f32[2]
  %u = mul %x, %e : f32[2]
  %w2 = sub %w, %u : f32[2]
  assign 0 = %w2
  return %u
}
END
cat >"$tmp/sizes.kir" <<'END'
graph @sizes {
  symbol n 1..64
  symbol m 0..8
  %x = input 0 "x" : f32[n]
  %y = input 1 "y" : f32[2*n+1]
  %w = state 0 "w" : f32[n]
  %s = slice %y axis(0) start(n+1) count(n) step(1) : f32[n]
  %z = mul %x, %s : f32[n]
  %w2 = sub %w, %z : f32[n]
  %i = iota axis(0) : f32[m]
  assign 0 = %w2
  return %i
}
END
cat >"$tmp/half.kir" <<'END'
graph @half {
  %x = const 1.5 : f16[]
  %y = const 1.5 : bf16[]
  return %x
  return %y
}
END
npy "$tmp/x.npy" 2, "$one$two"
npy "$tmp/w.npy" 2, "$two$two"
npy "$tmp/short.npy" 2, "$one"
npy "$tmp/wide.npy" '1, 2' "$one$two"
npy "$tmp/y5.npy" 5, "$one$one$one$two$two"
npy "$tmp/y4.npy" 4, "$one$one$one$two"
npy "$tmp/one.npy" 1, "$two"
npy "$tmp/y3.npy" 3, "$one$one$two"
npy "$tmp/none.npy" 0, ''
npy "$tmp/huge.npy" '4611686018427387904, 4' "$one"
head -c 40 "$tmp/x.npy" >"$tmp/cut.npy"

check usage 2 '^usage: ' "$kiln"
check help 0 '^passes: bind autodiff' "$kiln" help
check 'unknown command' 2 "no command is called 'frob'" "$kiln" frob

check 'all ops' 0 '^where .* b c ' "$kiln" ops
check 'no gradient to an index' 0 '^dynamic_update .* a b  *PROMOTE' "$kiln" ops
check 'any number of operands' 0 '^scan .* any  *by its rule  *floats' "$kiln" ops
check 'one op' 0 'value *ADD(a, b)' "$kiln" ops add
check 'an op has its C function' 0 '^  kl_tensor kl_add(kl_tensor a, kl_tensor b);$' "$kiln" ops add
check 'a composite' 0 '^  kl_tensor kl_softmax(kl_tensor a, int axis);$' "$kiln" ops softmax
check 'its header' 0 '^cross_entropy: a function of other ops of <kiln/nn.h>$' "$kiln" ops kl_cross_entropy
check 'no such op' 1 "no op or function is called 'frob'; kiln ops lists the ops" "$kiln" ops frob
check 'a part of a name' 1 "these have it in their names: .*log_softmax" "$kiln" ops oftma

check opt 0 'order(lanes 64, chunk 3)' "$kiln" opt "$tmp/sum.kir"
check 'opt one pass' 0 '%2 = sum %x axes(0) : f32\[1\]$' "$kiln" opt "$tmp/sum.kir" -p dce
check 'opt no pass' 0 '%3 = sum %x axes(0) : f32\[1\]$' "$kiln" opt "$tmp/sum.kir" -p ''
"$kiln" opt "$tmp/sum.kir" -p dce,simplify -o "$tmp/sum2.kir"
check 'opt to file, from standard input' 0 '%2 = sum' sh -c "cat '$tmp/sum2.kir' | '$kiln' opt -"
# Every graph of tests/text through each pass alone, all of them and all backwards: what opt prints, it reads.
passes=$("$kiln" help | sed -n 's/^passes: //p')
lists="$passes $(echo "$passes" | tr ' ' ,) $(echo "$passes" | tr ' ' '\n' | tac | paste -s -d ,)"
opt_all() {
    number=0
    for file in "$tests"/text/*.kir; do
        number=$((number + 1))
        [ $((number % every)) -eq 0 ] || continue
        case $file in */error_*) continue ;; esac
        ! grep -q '^error: ' "$file" || continue # what a pass refuses
        sed '/^# expect:$/,$d' "$file" >"$tmp/any.kir"
        for list in $lists; do
            "$kiln" opt "$tmp/any.kir" -p "$list" -o "$tmp/opt.kir" &&
                "$kiln" opt "$tmp/opt.kir" -p '' -o "$tmp/again.kir" &&
                cmp "$tmp/opt.kir" "$tmp/again.kir" || { echo "$file, -p $list"; return 1; }
        done
    done
    echo all
}
check 'opt any pass on any file' 0 '^all$' opt_all
check compile 0 'step_run for x86-64-v3: 1 kernels, [0-9]* bytes' "$kiln" compile "$tmp/step.kir" -o "$tmp/step.o" \
    --header "$tmp/step.h" --prefix step
check 'compile two programs by names' 0 ': a_run, b_run for x86-64-v3: 1 kernels, ' "$kiln" compile "a=$tmp/step.kir" \
    "b=$tmp/step.kir" -o "$tmp/two.o" --header "$tmp/two.h"
check 'a prefix of two programs' 2 'of several, NAME=FILE gives each a name' "$kiln" compile "$tmp/step.kir" \
    "$tmp/step.kir" --prefix p -o "$tmp/two.o" --header "$tmp/two.h"
check 'what a compiled step takes' 0 'float \*state_w;.*f32\[2\]: read, and given' cat "$tmp/step.h"
check 'compile for a processor' 0 'sizes_run for x86-64-v4' "$kiln" compile "$tmp/sizes.kir" -o "$tmp/sizes.o" \
    --header "$tmp/sizes.h" --bind n=4 --bind m=2 --cpu x86-64-v4
check 'compile for all values of a symbol' 0 'sizes_run for x86-64-v3' "$kiln" compile "$tmp/sizes.kir" \
    -o "$tmp/sizes.o" --header "$tmp/sizes.h" --bind n=4
check 'what it takes' 0 'int64_t length_m; .*m, from' cat "$tmp/sizes.h"
check 'compile for some values of a symbol' 0 'sizes_run for x86-64-v3' "$kiln" compile "$tmp/sizes.kir" \
    -o "$tmp/sizes.o" --header "$tmp/sizes.h" --bind n=4 --bind m=2..6
check 'its bounds' 0 'int64_t length_m; .*m, from 2 to 6' cat "$tmp/sizes.h"
check 'bounds outside of its own' 1 'symbol m cannot be 2..9: its bounds are 0..8' "$kiln" compile "$tmp/sizes.kir" \
    -o "$tmp/sizes.o" --header "$tmp/sizes.h" --bind m=2..9
check 'bounds that are none' 2 "needs NAME=NUMBER or NAME=LOW..HIGH, not 'm=6..2'" "$kiln" compile "$tmp/sizes.kir" \
    -o "$tmp/sizes.o" --header "$tmp/sizes.h" --bind m=6..2
check 'compile for an unknown processor' 1 "no processor is called 'z80'" "$kiln" compile "$tmp/step.kir" \
    -o "$tmp/step.o" --header "$tmp/step.h" --cpu z80
check 'compile without a header' 2 'needs a file, -o and --header' "$kiln" compile "$tmp/step.kir" -o "$tmp/step.o"
check 'compile for another processor' 0 'step_run for aarch64' "$kiln" compile "$tmp/step.kir" -o "$tmp/far.o" \
      --header "$tmp/far.h" --target aarch64
check 'compile for no processor' 1 'there are native, baseline, x86-64, x86-64-v3' "$kiln" compile "$tmp/step.kir" \
      -o "$tmp/far.o" --header "$tmp/far.h" --target z80
check 'opt unknown pass' 1 "no pass is called 'frob'" "$kiln" opt "$tmp/step.kir" -p dce,frob
check 'opt without file' 2 'needs a file' "$kiln" opt
check 'opt two files' 2 'unexpected argument' "$kiln" opt "$tmp/step.kir" "$tmp/step.kir"
check 'opt missing file' 1 'No such file' "$kiln" opt "$tmp/none.kir"
check 'opt of a folder' 1 'it is a folder' "$kiln" opt "$tmp"
check 'opt bad graph' 1 'error_return_nothing.kir:4:' "$kiln" opt "$tests/text/error_return_nothing.kir"
check 'opt option without value' 2 '-p needs a value' "$kiln" opt "$tmp/step.kir" -p
check 'opt unknown option' 2 'unknown option --frob' "$kiln" opt "$tmp/step.kir" --frob=3

check 'dump stage' 0 'group 0' "$kiln" dump "$tmp/step.kir" --stage fused
check 'dump unfused' 0 'group 1' "$kiln" dump "$tmp/step.kir" --stage=fused --unfused
check 'dump captured' 0 '^graph @step {' "$kiln" dump "$tmp/step.kir" --stage captured
check 'dump as a picture' 0 'subgraph "cluster_group0"' "$kiln" dump "$tmp/step.kir" --stage fused --format dot
check 'a page' 0 '<title>step</title>' "$kiln" dump "$tmp/step.kir" --format html --device ref
check 'a page in a file' 0 done sh -c '"$@" && echo done' sh "$kiln" dump "$tmp/step.kir" --device ref -o \
    "$tmp/step.html"
check 'that file' 0 '^</html>$' cat "$tmp/step.html"
check 'a picture in a file' 0 done sh -c '"$@" && echo done' sh "$kiln" dump "$tmp/step.kir" --stage captured -o \
    "$tmp/step.dot"
check 'that picture' 0 '^digraph "step" {$' cat "$tmp/step.dot"
check 'dump in no folder' 1 '/nowhere/x.kir: No such' "$kiln" dump "$tmp/step.kir" --stage captured -o /nowhere/x.kir
check 'dump unknown format' 2 "no format is called 'pdf'" "$kiln" dump "$tmp/step.kir" --stage fused --format pdf
sed 's/mul %x/div %x/' "$tmp/step.kir" >"$tmp/step2.kir"
check 'diff of the same' 0 '^nodes: 7 same, 0 changed, 0 removed, 0 added$' "$kiln" diff "$tmp/step.kir" "$tmp/step.kir"
check 'diff' 1 '^changed op: %6 = mul %1, %5 : f32\[2\]$' "$kiln" diff "$tmp/step.kir" "$tmp/step2.kir"
mkfifo "$tmp/fifo.kir" # opening it blocks until something writes
check 'a graph in a FIFO' 1 'fifo.kir is not a regular file: it is a FIFO' timeout 60 "$kiln" opt "$tmp/fifo.kir"
check 'schedules in a FIFO' 2 'fifo.kir is not a regular file: it is a FIFO' \
    timeout 60 "$kiln" run "$tmp/step.kir" --schedules "$tmp/fifo.kir"
check 'schedules in a FIFO, by environment' 0 'KILN_SCHEDULES=.*fifo.kir is not a regular file: it is a FIFO' \
    timeout 60 env KILN_SCHEDULES="$tmp/fifo.kir" "$kiln" ops add
check 'a graph in a folder' 1 'is not a regular file: it is a folder' "$kiln" opt "$tmp"
check 'a kernel in a device' 1 'is not a regular file: it is a device' "$kiln" kernel /dev/zero
check 'diff of one' 2 'needs two files' "$kiln" diff "$tmp/step.kir"
check 'diff of three' 2 'unexpected argument' "$kiln" diff "$tmp/step.kir" "$tmp/step.kir" "$tmp/step.kir"
check 'diff with what is not there' 2 'none.kir: No such' "$kiln" diff "$tmp/step.kir" "$tmp/none.kir"
check 'diff with what is no graph' 2 "cli.sh:6:1: expected 'graph'" "$kiln" diff "$tmp/step.kir" "$tests/cli.sh"
check 'dump unknown stage' 2 "no stage is called 'frob'" "$kiln" dump "$tmp/step.kir" --stage frob
check 'dump without stage' 2 'needs a file and --stage' "$kiln" dump "$tmp/step.kir"
check 'dump code of ref' 1 'has no stage llvm' "$kiln" dump "$tmp/step.kir" --stage llvm --device ref
sed '/^# expect:$/,$d' "$tests/text/pass_fuse_huge_values.kir" >"$tmp/huge.kir"
check 'dump of what fits in no memory' 1 'its values have .* bytes in all' "$kiln" dump "$tmp/huge.kir" --stage \
    scheduled
check 'source for CUDA' 0 'extern "C" __global__ void .*kernel_0(' "$kiln" dump "$tmp/step.kir" --stage source
check 'source for HIP' 0 '__shfl_down(x, h, w)' "$kiln" dump "$tmp/sum.kir" --stage source --target hip
sed '1,3d' "$tests/text/agree_dot_few_rows_stored.kir" >"$tmp/rows.kir"
check 'few rows times a stored transpose, on a processor' 0 'dot .* : f32\[1030,9\] group' \
    "$kiln" dump "$tmp/rows.kir" --stage fused --device cpu
check 'few rows times a stored transpose, elsewhere' 0 'dot .* : f32\[9,1030\] group' \
    "$kiln" dump "$tmp/rows.kir" --stage fused --target cuda
check 'source in GLSL' 0 'layout(local_size_x = ' "$kiln" dump "$tmp/sum.kir" --stage source --target=glsl
check 'kernels made for a GPU' 0 '^kernel @k0_sum' "$kiln" dump "$tmp/sum.kir" --stage scheduled --target glsl
cat >"$tmp/dot.kir" <<'END'
graph @d {
  %a = input 0 : f32[80,64]
  %b = input 1 : f32[64,80]
  %y = dot %a, %b contract(1; 0) : f32[80,80]
  return %y
}
END
check 'schedules for a GPU' 0 \
    '^@k0_dot schedule dot_blocks width 64 tile 4x4 block 32x32 step 16 kblock 64 stages 4 copy_a copy_b$' \
    "$kiln" dump "$tmp/dot.kir" --stage schedules --target cuda
echo '@k0_dot schedule dot_blocks width 64 tile 8x8 block 64x64 step 16 kblock 64' >"$tmp/dot.txt"
check 'a user-supplied schedule for a GPU' 0 'load b0\[.* : f32\[4x1\]' \
    "$kiln" dump "$tmp/dot.kir" --stage scheduled --target cuda --schedules "$tmp/dot.txt"
sed 's/f32/bf16/; s/80/1024/g; s/64/1024/g; s/f32/bf16/g' "$tmp/dot.kir" >"$tmp/dot_bf16.kir"
check 'schedules for a Hopper GPU' 0 'unit 64x8x16 subgroup 128 .*async panels$' \
    "$kiln" dump "$tmp/dot_bf16.kir" --stage schedules --target cuda:sm_90a
echo '@k0_dot schedule dot_matrix tile 64x64 block 64x64 step 0' >"$tmp/dot.txt"
check 'a step of no elements' 1 'dot.txt:1:52: step 0: it may be 1 to 65535' \
    "$kiln" dump "$tmp/dot_bf16.kir" --stage scheduled --target cuda:sm_90a --schedules "$tmp/dot.txt"
check 'source for a Hopper GPU' 0 'wgmma' "$kiln" dump "$tmp/dot_bf16.kir" --stage source --target cuda:sm_90a
check 'source for an MI250' 0 '__builtin_amdgcn_mfma' \
    "$kiln" dump "$tmp/dot_bf16.kir" --stage source --target hip:gfx90a
check 'source for a Vulkan device' 0 'subgroupShuffle' \
    "$kiln" dump "$tmp/sum.kir" --stage source --target vulkan:+subgroup32+fma
check 'an architecture of another language' 1 "'sm_90a' is no architecture of hip: they begin with gfx" \
    "$kiln" dump "$tmp/dot_bf16.kir" --stage source --target hip:sm_90a
check 'no features behind a colon' 1 "'cuda:' is no target" \
    "$kiln" dump "$tmp/dot_bf16.kir" --stage source --target cuda:
fake=${kiln%/*}/tests/libfake-gpu.so
if [ -e "$fake" ]; then # a device for which other code is made than without one
    check 'source as a device runs it' 0 'wgmma' env KILN_CUDA_DRIVER="$fake" KILN_CUDA_COMPILER="$fake" \
        "$kiln" dump "$tmp/dot_bf16.kir" --stage source --device cuda:0
fi
check 'source for nothing' 1 "no language is called 'metal': there are cuda, hip and glsl" \
    "$kiln" dump "$tmp/sum.kir" --stage source --target metal
check 'a stage that GPUs have not' 1 'have no stage llvm' "$kiln" dump "$tmp/sum.kir" --stage llvm --target cuda
glsl_assembly() { # SPIR-V, where shaderc is at hand
    "$kiln" dump "$tmp/sum.kir" --stage asm --target glsl >"$tmp/asm" 2>&1
    case $? in 0) grep -m1 -o 'OpEntryPoint GLCompute' "$tmp/asm" ;; *) grep -o "no compiler for 'glsl'" "$tmp/asm" \
        ;; esac
}
check 'assembly of GLSL' 0 '^OpEntryPoint\|^no compiler' glsl_assembly
check 'dump unknown device' 1 'frob' "$kiln" dump "$tmp/step.kir" --stage llvm --device frob

run() {
    name=$1 code=$2 pattern=$3
    shift 3
    check "$name" "$code" "$pattern" "$kiln" run "$tmp/step.kir" --device ref "$@"
}
run 'run prints' 0 '^return 1 : f32\[2\] = 0.5 1.0$' --input x="$tmp/x.npy" --state w="$tmp/w.npy" --slot lr=0.5
run 'run assigns' 0 '^assign 0 "w" : f32\[2\] = 1.5 1.0$' --input 0="$tmp/x.npy" --state 0="$tmp/w.npy" --slot 0=0.5
run 'run to file' 0 '^return 1' --input x="$tmp/x.npy" --state w="$tmp/w.npy" --slot lr=0 --output w="$tmp/new.npy"
check 'file written' 0 same sh -c "cmp '$tmp/new.npy' '$tmp/w.npy' && echo same"
run 'run without input' 1 'input 0 x has no value' --state w="$tmp/w.npy" --slot lr=0.5
run 'run without slot' 1 'slot 0 lr has no value' --input x="$tmp/x.npy" --state w="$tmp/w.npy"
run 'run unknown input' 1 "the graph has no input 'q'" --input q="$tmp/x.npy"
run 'run bad slot' 1 'expected a number' --slot lr=fast
run 'run unknown output' 1 "no output has the number or name 'q'" --output q="$tmp/q.npy"
run 'run without =' 2 'needs NAME=VALUE' --input x
cat >"$tmp/named.kir" <<'END'
graph @named {
  %x = input 0 "x" : f32[2]
  %sum = add %x, %x : f32[2]
  %1 = neg %sum : f32[2]
  return %sum
  return %1 "minus sum"
  return %sum
}
END
named() {
    name=$1 code=$2 pattern=$3
    shift 3
    check "$name" "$code" "$pattern" "$kiln" run "$tmp/named.kir" --device ref --input x="$tmp/x.npy" "$@"
}
named 'a return by its name' 0 '^return 2 : f32\[2\] = 2.0 4.0$' --output 0="$tmp/sum.npy" --output \
    'minus sum'="$tmp/minus.npy"
check 'that file' 0 '^return 1 "minus sum" : f32\[2\] = 4.0 8.0$' \
    "$kiln" run "$tmp/named.kir" --device ref --input x="$tmp/minus.npy"
named 'a name that two have' 1 "2 outputs are called 'sum': use their numbers" --output sum="$tmp/sum.npy"
sed '/^  return %1/d' "$tmp/named.kir" | sed '0,/^  return %sum/{/^  return %sum/d}' >"$tmp/named1.kir"
check 'a return by what the text calls it' 0 '^$' \
    sh -c "'$kiln' run '$tmp/named1.kir' --device ref --input x='$tmp/x.npy' --output sum='$tmp/sum2.npy' &&
           cmp '$tmp/sum.npy' '$tmp/sum2.npy' && echo"
cat >"$tmp/copy.kir" <<'END'
graph @copy {
  %x = const 1.5 : f32[]
  %y = copy %x : f32[] @cpu
  %z = exp2 %y : f32[] @cpu
  %w = copy %z : f32[] @ref
  return %w
}
END
sed 's/@cpu/@6/' "$tmp/copy.kir" >"$tmp/nowhere.kir"
if "$kiln" run "$tmp/half.kir" --device cpu >/dev/null 2>&1; then
    check 'run on two devices' 0 'return 0 : f32\[\] = 2.828' "$kiln" run "$tmp/copy.kir" --device ref
    check 'a code generator by name' 0 '^cpu  *[^ -]' env KILN_CODEGEN=llvm "$kiln" devices
    check 'one that there is not' 0 '^cpu  *- there is no backend named nothing' env KILN_CODEGEN=nothing "$kiln" \
        devices
fi
# the hash of results: any NaN is one, and nothing else is lost
cat >"$tmp/hash.kir" <<'END'
graph @hash {
  %a = const [1, -2.5, 0.1] : f32[3]
  %n = const nan : f32[]
  %i = const [1, 2] : i64[2]
  %s = sum %a axes(0) : f32[1]
  return %a
  return %n
  return %i
  return %s
}
END
sed 's/const nan/const bits(0xffc00001)/' "$tmp/hash.kir" >"$tmp/nan.kir"
sed 's/\[1, 2\]/[1, 3]/' "$tmp/hash.kir" >"$tmp/other.kir"
hash=c5d0f6e7a3f6a7e644ec5c788a30bdeb
check 'hash of results' 0 "^hash $hash\$" "$kiln" run "$tmp/hash.kir" --hash --device ref
check 'hash by default' 0 "^hash $hash\$" "$kiln" run "$tmp/hash.kir" --hash
check 'hash of another NaN' 0 "^hash $hash\$" "$kiln" run "$tmp/nan.kir" --hash --unfused
check 'hash of another number' 0 '^hash 43a11e7aa001c3acaf01e5b81e6e79fa$' "$kiln" run "$tmp/other.kir" --hash
cat >"$tmp/product.kir" <<'END'
graph @product {
  %x = input 0 "x" : f32[3,70]
  %s = state 0 "s" : f32[70,2]
  %r = slot 0 "rate" : f32[]
  %y = dot %x, %s contract(1; 0) : f32[3,2]
  %e = expand %r : f32[3,2]
  %z = mul %y, %e : f32[3,2]
  return %z
}
END
check 'no value' 1 "input 0 x has no value" "$kiln" run "$tmp/product.kir" --hash
check 'hash of random values' 0 '^hash b04984645a170c7fa5bc75659f567715$' "$kiln" run "$tmp/product.kir" --hash --seed 7
check 'hash of the interpreter' 0 '^hash b04984645a170c7fa5bc75659f567715$' \
    "$kiln" run "$tmp/product.kir" --hash --seed 7 --device ref
check 'hash of others' 0 '^hash cb6f6377987437a28cdedbc2be537ca4$' "$kiln" run "$tmp/product.kir" --hash --seed 8
check 'no seed below 0' 2 "seed: '-1' is no number" "$kiln" run "$tmp/product.kir" --hash --seed -1
check 'run on a device that is not there' 1 'there is no device 6' "$kiln" run "$tmp/nowhere.kir" --device ref
sed 's/@cpu/@7/' "$tmp/copy.kir" >"$tmp/dry.kir"
check 'run on device meta' 1 'device meta has no data' "$kiln" run "$tmp/dry.kir" --device ref
check 'f16 to file' 0 'return 1 : bf16\[\] = 1.5' "$kiln" run "$tmp/half.kir" --output 0="$tmp/h.npy"
check 'f16 as NumPy has it' 0 "'<f2'" head -c 60 "$tmp/h.npy"
check 'bf16 to file' 1 'cannot hold bf16' "$kiln" run "$tmp/half.kir" --output 1="$tmp/h2.npy"
check 'bf16 as bits' 0 '^return 0' "$kiln" run "$tmp/half.kir" --bf16-bits --output 1="$tmp/bits.npy"
check 'bits as NumPy has them' 0 "'<u2'" head -c 60 "$tmp/bits.npy"
printf 'graph @g {\n  %%x = input 0 "x" : bf16[]\n  %%y = add %%x, %%x : bf16[]\n  return %%y\n}\n' >"$tmp/bits.kir"
check 'bits read' 0 '^return 0 : bf16\[\] = 3.0$' "$kiln" run "$tmp/bits.kir" --device ref --bf16-bits --input \
    x="$tmp/bits.npy"
check 'bits not asked for' 1 'holds u16\[\] where .* is bf16\[\]; --bf16-bits takes it' \
    "$kiln" run "$tmp/bits.kir" --device ref --input x="$tmp/bits.npy"
run 'run short array' 1 '4 bytes of elements where the shape needs 8' --input x="$tmp/short.npy"
run 'run other shape' 1 'holds f32\[1,2\]' --input x="$tmp/wide.npy"
run 'run huge array' 1 'too large' --input x="$tmp/huge.npy"
run 'run cut array' 1 'ends inside the header' --input x="$tmp/cut.npy"
run 'run no array' 1 'neither .npy' --input x="$tmp/step.kir"

check 'bench, values made up' 0 '^fused  *[0-9.]* [mu]s' "$kiln" bench "$tmp/step.kir" --rounds 3 --json \
    "$tmp/b.json" --svg "$tmp/b.svg"
check 'bench writes rows' 0 '"case": "step", "variant": "fused", .* "baseline": "unfused"' cat "$tmp/b.json"
check 'bench draws' 0 '^</svg>$' cat "$tmp/b.svg"
check 'bench with values' 0 '^step: 3 rounds' "$kiln" bench "$tmp/step.kir" --input x="$tmp/x.npy" --slot lr=0.5 \
    --device ref --rounds=3
check 'bench every dtype' 0 'fused kernels' "$kiln" bench "$tmp/half.kir" --rounds 3
check 'bench bad rounds' 2 "'many' is not a number from 1 to 1000" "$kiln" bench "$tmp/step.kir" --rounds many
check 'bench without file' 2 'needs a file' "$kiln" bench
check 'bench other shape' 1 'holds f32\[1,2\]' "$kiln" bench "$tmp/step.kir" --input x="$tmp/wide.npy"
check 'bench to no folder' 1 '/no/such/b.json' "$kiln" bench "$tmp/step.kir" --rounds 3 --json /no/such/b.json
check 'profile' 0 '^mul\|^k[0-9]*_.* step  *20' "$kiln" profile "$tmp/step.kir" --trace "$tmp/p.json"
check 'profile, timeline' 0 '"cat":"kernel"' cat "$tmp/p.json"
check 'profile with values' 0 '^interpreter  *step  *3' "$kiln" profile "$tmp/step.kir" --input x="$tmp/x.npy" \
    --device ref --rounds 3
check 'profile unfused' 0 '^? mul  *3' "$kiln" profile "$tmp/step.kir" --unfused --rounds 3
check 'profile bad rounds' 2 "'0' is not a number from 1 to 1000" "$kiln" profile "$tmp/step.kir" --rounds 0
check 'profile without file' 2 'needs a file' "$kiln" profile
check 'profile to no folder' 1 '/no/such/p.json' "$kiln" profile "$tmp/step.kir" --trace /no/such/p.json
# Tuning: what it finds is in the folder of kernels, and a second process has it.
tune() { # NAME EXIT PATTERN ARGUMENTS...
    name=$1 code=$2 pattern=$3
    shift 3
    check "$name" "$code" "$pattern" env KILN_CACHE_DIR="$tmp/tuned" "$kiln" tune "$@"
}
if "$kiln" run "$tmp/half.kir" --device cpu >"$tmp/out" 2>&1; then
    tune 'tune' 0 '^[0-9]* of [1-9][0-9]* kernels have other schedules: ' "$tmp/step.kir" --device cpu --seconds 3600
    check 'what was tuned is kept' 0 'tuned schedules' env KILN_CACHE_DIR="$tmp/tuned" "$kiln" cache list
    tune 'tune without time' 0 '^0 of 0 kernels' "$tmp/step.kir" --device cpu --seconds 0
    check 'tune nothing kept' 0 '^they are not kept: KILN_CACHE_DIR is none' env KILN_CACHE_DIR=none "$kiln" tune \
        "$tmp/step.kir" --device cpu --seconds 0
    check 'tune, folder not writable' 1 '/proc/self/task: nothing can be written' env KILN_CACHE_DIR=/proc/self/task \
        "$kiln" tune "$tmp/step.kir" --device cpu
    check 'tune unfused' 1 'ran unfused' env KILN_FUSE=0 "$kiln" tune "$tmp/step.kir" --device cpu
    rm -r "$tmp/tuned"
fi
tune 'tune on ref' 1 'no kernel that a code generator compiles for device ref' "$tmp/step.kir" --device ref
tune 'tune without file' 2 'needs a file'
tune 'tune bad seconds' 2 "'soon' is not a number from 0 to 86400" "$tmp/step.kir" --seconds soon
tune 'tune on no device' 1 'cuda:7' "$tmp/step.kir" --device cuda:7
check 'chart' 0 '^</svg>$' "$kiln" chart "$tmp/b.json"
check 'chart of no JSON' 1 "step.kir:1:1: expected '\['" "$kiln" chart "$tmp/step.kir"
check 'chart to no folder' 1 '/no/such/c.svg' "$kiln" chart "$tmp/b.json" -o /no/such/c.svg
check 'chart without file' 2 'needs a file' "$kiln" chart -o x

# Kernels: what dump prints, kernel reads and prints again.
kernels_all() {
    for file in "$tests"/text/agree_*.kir; do
        sed '/^# expect:$/,$d' "$file" >"$tmp/any.kir"
        bind=$(sed -n '1s/^# test: agree \([^;]*\).*/\1/p' "$file" | sed 's/\([a-z]*=\)/--bind \1/g; s/,/ /g')
        "$kiln" dump "$tmp/any.kir" --stage scheduled $bind >"$tmp/any.loop" || return 1
        grep -q '^kernel' "$tmp/any.loop" || continue
        "$kiln" kernel "$tmp/any.loop" >"$tmp/again.loop" || return 1
        sed -i '/^#/d' "$tmp/any.loop" # the order of the kernels
        cmp "$tmp/any.loop" "$tmp/again.loop" || { echo "$file"; return 1; }
    done
    echo all
}
cat >"$tmp/double.loop" <<'END'
kernel @double {
  b0 = in 0 : f32[2]
  b1 = out 1 : f32[2]
  %s = slot 0 : f32
  %i = loop serial 0 to 2 {
    %x = load b0[%i] : f32
    %y = mul %x, %s : f32
    store b1[%i] = %y
  }
}
END
sed 's/b1\[%i\]/b1[%x]/' "$tmp/double.loop" >"$tmp/broken.loop"
sed 's/to 2/to 3/' "$tmp/double.loop" >"$tmp/beyond.loop"
cat "$tmp/double.loop" "$tmp/double.loop" >"$tmp/two.loop"
kernel() {
    name=$1 code=$2 pattern=$3 file=$4
    shift 4
    check "$name" "$code" "$pattern" "$kiln" kernel "$tmp/$file.loop" --run --device ref "$@"
}
if "$kiln" dump "$tmp/sum.kir" --stage scheduled --device cpu >/dev/null 2>&1; then
    check 'kernels of every graph' 0 '^all$' kernels_all
    "$kiln" dump "$tmp/sum.kir" --stage schedules --device cpu >"$tmp/own.txt"
    # A long chain of primitives has two vectors side by side where half of it has one.
    chain() {
        printf 'graph @g {\n  %%x = input 0 : f32[1000000]\n  %%a = sin %%x : f32[1000000]\n'
        printf '  %%b = %s : f32[1000000]\n  return %%b\n}\n' "$1"
    }
    chain_width() {
        chain "$1" >"$tmp/chain.kir"
        "$kiln" dump "$tmp/chain.kir" --stage schedules --device cpu | sed -n 's/.* width \([0-9]*\) .*/\1/p'
    }
    chain_widths() { echo "$(($(chain_width 'cos %a') / $(chain_width 'add %a, %x')))"; }
    check 'lanes of a long chain' 0 '^2$' chain_widths
    # A masked load of no lane reads where there is memory.
    printf 'graph @g {\n  %%a = input 0 : f32[1003]\n  %%b = input 1 : f32[1001]\n' >"$tmp/join.kir"
    printf '  %%c = concat %%a, %%b axis(0) : f32[2004]\n  return %%c\n}\n' >>"$tmp/join.kir"
    "$kiln" dump "$tmp/join.kir" --stage llvm --device cpu >"$tmp/join.ll" 2>&1 || true
    if grep -q masked.load "$tmp/join.ll"; then
        check 'masked loads of no lane' 0 'select i1 %[0-9]*, ptr' cat "$tmp/join.ll"
    fi
    sed 's/ grain.*//; s/$/ grain 7/; 1s/ grain 7//' "$tmp/own.txt" >"$tmp/other.txt"
    sed '2s/@k/@x/' "$tmp/own.txt" >"$tmp/gone.txt"
    check 'schedules' 0 '^@k0_.* schedule ' cat "$tmp/own.txt"
    check 'user-supplied schedules' 0 ' schedule .* grain 7$' "$kiln" dump "$tmp/sum.kir" --stage scheduled \
        --device cpu --schedules "$tmp/other.txt"
    check 'schedules come back' 0 '^same$' sh -c \
        "'$kiln' dump '$tmp/sum.kir' --stage schedules --device cpu --schedules '$tmp/other.txt' |
         cmp - '$tmp/other.txt' && echo same"
    check 'schedules by environment' 0 ' grain 7$' env KILN_SCHEDULES="$tmp/other.txt" "$kiln" dump "$tmp/sum.kir" \
        --stage schedules --device cpu
    check 'schedules for no kernel' 1 'gone.txt:2:1: graph @.* has no kernel @x0' "$kiln" dump "$tmp/sum.kir" --stage \
        asm --device cpu --schedules "$tmp/gone.txt"
    check 'schedules that are none' 2 'any.kir:[0-9]*:[0-9]*: expected' "$kiln" run "$tmp/sum.kir" --schedules \
        "$tmp/any.kir"
    check 'schedules of no file' 1 'KILN_SCHEDULES: .*none: No such file' env KILN_SCHEDULES="$tmp/none" "$kiln" dump \
        "$tmp/sum.kir" --stage asm --device cpu
    check 'schedules of a FIFO' 1 'KILN_SCHEDULES: .*fifo.kir is not a regular file: it is a FIFO' \
        timeout 60 env KILN_SCHEDULES="$tmp/fifo.kir" "$kiln" dump "$tmp/sum.kir" --stage asm --device cpu
    check 'kernel compiled' 0 '^b1 : f32\[2\] = 0.5 1.0$' "$kiln" kernel "$tmp/double.loop" --run --device cpu \
        --input b0="$tmp/x.npy" --slot 0=0.5
    check 'kernel to assembly' 0 'retq' "$kiln" kernel "$tmp/double.loop" --stage asm --device cpu
    # What all lanes load under a mask is one element, not a gather.
    cat >"$tmp/shared.loop" <<'END'
kernel @shared {
  schedule map width 32 grain 1
  estimate 320 flops 1344 bytes
  b0 = in 0 : f32[16]
  b1 = out 0 : f32[320]
  %1 = loop parallel 0 to 10 {
    %2 = mul %1, 32 : i64
    %3 = loop vector 0 to 32 {
      %4 = add %2, %3 : *i64
      %5 = le 3, %4 : *bool
      %6 = load b0[%1] if %5 : *f32
      store b1[%4] = %6
    }
  }
}
END
    check 'a shared element under a mask' 1 '^0$' sh -c "'$kiln' kernel '$tmp/shared.loop' --stage asm --device cpu |
        grep -c gather"
fi
check 'kernel prints' 0 '%4 = loop serial 0 to 2 {$' "$kiln" kernel "$tmp/double.loop"
check 'kernel from standard input' 0 '^kernel @double {' sh -c "cat '$tmp/two.loop' | '$kiln' kernel -"
check 'kernel broken' 1 'broken.loop:8:5: an index or bound is not i64' "$kiln" kernel "$tmp/broken.loop"
check 'kernel code of ref' 1 'has no stage llvm' "$kiln" kernel "$tmp/double.loop" --stage llvm --device ref
check 'kernel as source' 0 'kernel_0(const f32 \*b0' "$kiln" kernel "$tmp/double.loop" --stage source --target hip
cat >"$tmp/shared.loop" <<'END'
kernel @shared {
  b0 = out 0 : f32[64]
  b1 = shared : f32[40000]
  %i = loop grid 0 to 1 {
    %t = loop block 0 to 64 {
      store b1[%t] = 1.0:f32
      barrier
      %x = load b1[%t] : f32
      store b0[%t] = %x
    }
  }
}
END
check 'kernel that has no source' 1 'no hip source: it wants more shared memory' \
    "$kiln" kernel "$tmp/shared.loop" --stage source --target hip
check 'kernel unknown stage' 1 "no stage of a kernel is called 'fused'" "$kiln" kernel "$tmp/double.loop" --stage fused
check 'kernel without file' 2 'needs a file' "$kiln" kernel --run
kernel 'kernel run' 0 '^b1 : f32\[2\] = 0.5 1.0$' double --input b0="$tmp/x.npy" --slot 0=0.5
"$kiln" kernel "$tmp/double.loop" --run --device ref --input b0="$tmp/x.npy" --slot 0=1 --output b1="$tmp/same.npy"
kernel 'kernel from its own file' 0 '^b1 : f32\[2\] = 3.0 6.0$' double --input b0="$tmp/same.npy" --slot 0=3
kernel 'kernel run of two' 1 'has 2 kernels' two
kernel 'kernel without input' 1 'b0 has no value' double --slot 0=1
kernel 'kernel without slot' 1 'slot 0 of f32: has no value' double --input b0="$tmp/x.npy"
kernel 'kernel bad slot' 1 'slot 0 of f32: expected a number' double --input b0="$tmp/x.npy" --slot 0=fast
kernel 'kernel short input' 1 'holds 1 elements of f32 where b0 has 2' double --slot 0=1 --input b0="$tmp/one.npy"
kernel 'kernel input of an output' 1 "no input buffer 'b1'" double --slot 0=1 --input b1="$tmp/x.npy"
kernel 'kernel unknown output' 1 "no output buffer 'b7'" double --slot 0=1 --input b0="$tmp/x.npy" --output \
    b7="$tmp/none.npy"
kernel 'kernel beyond its buffer' 1 'accesses element 2 of buffer 0' beyond --input b0="$tmp/x.npy" --slot 0=1

# The kernels kept on disk.
cache() { # NAME EXIT PATTERN ARGUMENTS...
    name=$1 code=$2 pattern=$3
    shift 3
    check "$name" "$code" "$pattern" env KILN_CACHE_DIR="$tmp/cache" "$kiln" cache "$@"
}
cache 'cache is made' 0 '^0 entries, 0 damaged, 0 bytes in .*/cache$' list
kept=0
if "$kiln" run "$tmp/half.kir" --device cpu >"$tmp/out" 2>&1; then # the files of entries that this build makes
    KILN_CACHE_DIR=$tmp/cache "$kiln" run "$tmp/step.kir" --device cpu --input x="$tmp/x.npy" --state w="$tmp/w.npy" \
        --slot lr=1 >"$tmp/out"
    kept=$(ls "$tmp/cache" | wc -l)
fi
cache 'cache list' 0 "^$kept entries, 0 damaged" list
cache 'cache verify' 0 "^$kept entries, 0 damaged" verify
bad=0
if [ "$kept" -gt 0 ]; then
    entry=$(ls "$tmp/cache" | head -n 1)
    printf x >>"$tmp/cache/$entry"
    bad=1
    cache 'cache verify damaged' 1 "^${entry%.kernel} .* its length is wrong" verify
fi
cache 'cache list damaged' 0 "^$kept entries, $bad damaged" list
cache 'cache prune' 0 '^0 files removed, 0 bytes$' prune
cache 'cache prune to nothing' 0 "^$kept files removed" prune --max 0
cache 'cache clear' 0 '^0 files removed, 0 bytes$' clear
cache 'cache without command' 2 'list, verify, prune or clear'
cache 'cache unknown' 2 'cache frob' frob
cache 'cache two' 2 'unexpected argument' list list
cache 'cache prune bad' 2 "'many' is no number" prune --max many
cache 'cache prune negative' 2 "'-1' is no number" prune --max=-1
cache 'cache list max' 2 'unknown option --max' list --max 1
chmod 777 "$tmp/cache"
cache 'cache refused' 1 'can be written by others (mode 777)' list
check 'cache none' 1 'KILN_CACHE_DIR is none' env KILN_CACHE_DIR=none "$kiln" cache verify
sizes() {
    name=$1 code=$2 pattern=$3
    shift 3
    check "$name" "$code" "$pattern" "$kiln" run "$tmp/sizes.kir" --device ref "$@"
}
xyw() { echo "--input x=$tmp/$1.npy --input y=$tmp/$2.npy --state w=$tmp/$3.npy"; }
sizes 'symbols of two elements' 0 '^assign 0 "w" : f32\[2\] = 0.0 -2.0$' $(xyw x y5 w) --bind m=3
sizes 'the same of one' 0 '^assign 0 "w" : f32\[1\] = -2.0$' $(xyw one y3 one) --bind m=0
sizes 'a symbol given' 0 '^return 1 : f32\[3\] = 0.0 1.0 2.0$' $(xyw x y5 w) --bind m=3 --bind n=2
sizes 'a symbol that no shape says' 1 'no array.s shape says what symbol m is: give --bind m=NUMBER' $(xyw x y5 w)
sizes 'a symbol out of bounds' 1 'symbol m cannot be 9: its bounds are 0..8' $(xyw x y5 w) --bind m=9
sizes 'arrays that disagree' 1 "x.npy: input 'x': axis 0 has 2 elements, but is to have n with n = 1" $(xyw x y3 w) \
    --bind m=0 --bind n=1
sizes 'states say it too' 1 "one.npy: state 'w': axis 0 has 1 elements, but is to have n with n = 2" $(xyw x y5 one) \
    --bind m=0
sizes 'what does not divide' 1 "y4.npy: input 'y': axis 0 has 4 elements, but is to have 2\*n+1 with n = 2" \
    $(xyw x y4 w) --bind m=0
sizes 'an array too short' 1 "none.npy: input 'x': axis 0 has 0 elements, but is to have n for n in 1..64" \
    $(xyw none y5 w) --bind m=0
sizes 'another rank' 1 "wide.npy: input 'x': has shape \[1,2\], but is to have \[n\]" $(xyw wide y5 w) --bind m=0
sizes 'symbols without input' 1 'input 1 y has no value' --input x="$tmp/x.npy"
sizes 'no such symbol' 1 "the graph has no symbol 'k'" $(xyw x y5 w) --bind k=1
sizes 'no number' 2 'needs NAME=NUMBER' --bind n=two
check 'a symbol of a graph without' 1 "the graph has no symbol 'n'" "$kiln" opt "$tmp/sum.kir" --bind n=1
check 'opt with symbols' 0 '= sub %w, %[0-9]* : f32\[n\]$' "$kiln" opt "$tmp/sizes.kir"
check 'opt that binds one' 0 '^  symbol m 0..8$' "$kiln" opt "$tmp/sizes.kir" --bind n=5
check 'opt that binds all' 0 'start(6) count(5) step(1) : f32\[5\]' "$kiln" opt "$tmp/sizes.kir" --bind n=5 --bind=m=2
check 'dump with symbols' 0 'f32\[2\*n+1\]' "$kiln" dump "$tmp/sizes.kir" --stage fused
cat >"$tmp/sorted.kir" <<'END'
graph @sorted {
  symbol n 4..64
  %x = input 0 "x" : f32[n]
  %y = argsort %x axis(0) direction(ascending) : i32[n]
  return %y
}
END
check 'dump that needs numbers' 1 'for single values of its symbols only (.*--bind NAME=NUMBER' \
    "$kiln" dump "$tmp/sorted.kir" --stage scheduled
for target in cuda hip glsl; do
    check "kernels with symbols for $target" 0 'slots' "$kiln" dump tests/text/agree_symbolic_gather.kir \
        --stage source --target $target
done
check 'kernels with symbols' 0 'slot [0-9]* max 75' "$kiln" dump tests/text/agree_symbolic_gather.kir \
    --stage scheduled --device cpu
check 'kernels of one value' 0 'loop' "$kiln" dump tests/text/agree_symbolic_gather.kir --stage scheduled --bind b=2 \
    --bind l=3
check 'bench of a size' 0 '^fused  *[0-9.]* [mu]s' "$kiln" bench "$tmp/sizes.kir" --rounds 3 --bind n=7 --bind m=0
check 'bench without a size' 1 'symbol n is: give --bind n=NUMBER' "$kiln" bench "$tmp/sizes.kir" --rounds 3
check 'dump that has them' 0 'group 0' "$kiln" dump "$tmp/sizes.kir" --stage fused --bind n=5 --bind m=2

# as many values as the graph has
{
    echo 'graph @many {'
    for i in $(seq 0 299); do echo "  %s$i = slot $i \"s$i\" : f32[]"; done
    for i in $(seq 0 299); do echo "  return %s$i"; done
    echo '}'
} >"$tmp/many.kir"
check 'run with 300 slots' 0 'return 299 : f32\[\] = 299' \
    "$kiln" run "$tmp/many.kir" --device ref $(for i in $(seq 0 299); do echo "--slot s$i=$i"; done)

{
    echo 'kernel @many {'
    for i in $(seq 0 299); do echo "  b$i = in $i : f32[2]"; done
    echo '  b300 = out 300 : f32[2]'
    for i in $(seq 0 299); do echo "  %v$i = load b$i[1] : f32"; done
    echo '  %s0 = add %v0, %v1 : f32'
    for i in $(seq 2 299); do echo "  %s$((i - 1)) = add %s$((i - 2)), %v$i : f32"; done
    echo '  store b300[1] = %s298'
    echo '}'
} >"$tmp/many.loop"
check 'kernel with 300 inputs' 0 '^b300 : f32\[2\] = 0.0 600.0$' "$kiln" kernel "$tmp/many.loop" --run --device ref \
    $(for i in $(seq 0 299); do echo "--input b$i=$tmp/x.npy"; done)
printf 'kernel @k {\n  b0 = in 0 : bf16[1]\n  b1 = out 1 : bf16[1]\n' >"$tmp/bits.loop"
printf '  %%x = load b0[0] : bf16\n  store b1[0] = %%x\n}\n' >>"$tmp/bits.loop"
check 'kernel on bits of bf16' 0 '^b1 : bf16\[1\] = 1.5$' \
    "$kiln" kernel "$tmp/bits.loop" --run --device ref --bf16-bits --input b0="$tmp/bits.npy"

# ONNX models: y = -reshape(x, shape), and y = -x of [N]
printf '\010\010B\004\012\000\020\015:t\012\037\012\001x\012\005shape\022\001r\032\007Reshap' >"$tmp/shaped.onnx"
printf 'e"\007Reshap' >>"$tmp/shaped.onnx"
printf 'e\012\020\012\001r\022\001y\032\003Neg"\003Neg\022\001gZ\020\012\001x\022\013\012' >>"$tmp/shaped.onnx"
printf '\011\010\001' >>"$tmp/shaped.onnx"
printf '\022\005\012\003\022\001NZ\023\012\005shape\022\012\012\010\010\007\022\004\012\002' >>"$tmp/shaped.onnx"
printf '\010\002b\025' >>"$tmp/shaped.onnx"
printf '\012\001y\022\020\012\016\010\001\022\012\012\003\022\001N\012\003\022\001N' >>"$tmp/shaped.onnx"
printf '\010\010B\004\012\000\020\015:9\012\020\012\001x\022\001y\032\003Neg"\003Neg\022\001gZ\020\012' >"$tmp/neg.onnx"
printf '\001x\022\013\012\011\010\001\022\005\012\003\022\001Nb\020\012\001y\022\013\012\011' >>"$tmp/neg.onnx"
printf '\010\001\022' >>"$tmp/neg.onnx"
printf '\005\012\003\022\001N' >>"$tmp/neg.onnx"
printf '\010\002\020\001B\001xJ\010\000\000\200?\000\000\000@' >"$tmp/x.pb"
printf '\010\002\020\007B\005shapeJ\020\002\000\000\000\000\000\000\000\001\000\000\000\000' >"$tmp/shape.pb"
printf '\000\000\000' >>"$tmp/shape.pb"

# ---- kiln export ----
cat >"$tmp/net.kir" <<'END'
graph @net {
  symbol n 1..8
  %x = input 0 "x" : f32[n,3]
  %w = state 0 "w" : f32[3,2]
  %y = dot %x, %w contract(1; 0) : f32[n,2]
  %t = tanh %y : f32[n,2]
  %u = add %w, %w : f32[3,2]
  assign 0 = %u
  return %t "y"
}
END
check 'export without a length' 1 'symbol n' "$kiln" export "$tmp/net.kir" -o "$tmp/net.onnx"
check 'export' 0 'done' sh -c "'$kiln' export '$tmp/net.kir' -o '$tmp/net.onnx' --bind n=2 && echo done"
check 'export without -o' 2 'export needs a file and -o' "$kiln" export "$tmp/net.kir"
check 'export of a loop' 0 'done' sh -c "'$kiln' export tests/text/agree_while.kir -o '$tmp/w.onnx' && echo done"
check 'export of random numbers' 1 'cannot be written as ONNX: ONNX has no such op' \
    "$kiln" export tests/text/agree_rows_random.kir -o "$tmp/r.onnx"
if "$kiln" opt "$tmp/neg.onnx" --bind N=2 2>&1 | grep -q 'reads no ONNX'; then :; else
    check 'an exported graph read back' 0 'input 1 "w" : f32\[3,2\]' "$kiln" opt "$tmp/net.onnx"
    check 'its outputs' 0 'return %[0-9]* "w.new"' "$kiln" opt "$tmp/net.onnx"
    # outputs called 1 and 0: a name counts before a number
    printf '%s\n' 'graph @names {' '  %x = input 0 "x" : f32[2]' '  %n = neg %x : f32[2]' '  return %x "1"' \
        '  return %n "0"' '}' >"$tmp/names.kir"
    "$kiln" export "$tmp/names.kir" -o "$tmp/names.onnx"
    check 'the other output' 0 'return 0 "1" : f32\[2\] = 1.0 2.0' \
        "$kiln" run "$tmp/names.onnx" --input x="$tmp/x.pb" --output 0="$tmp/names.npy"
    check 'a name that is a number' 0 ' -1 *-2' od -An -tf4 -j128 "$tmp/names.npy"
fi

# ---- kiln train-log ----
for i in 1 2 3 2 3 4; do echo "{\"step\": $i, \"loss\": $i.5, \"rate\": 0.01, \"seconds\": $i.25}"; done >"$tmp/log"
check 'train-log' 0 'steps<td>1 to 4' "$kiln" train-log "$tmp/log"
check 'its loss' 0 'loss at first<td>1.5000' "$kiln" train-log "$tmp/log"
check 'its curves' 0 '<svg .*data-field=rate' "$kiln" train-log "$tmp/log"
check 'train-log to a file' 0 '</script>' \
    sh -c "'$kiln' train-log '$tmp/log' -o '$tmp/log.html'; tail -n 1 '$tmp/log.html'"
check 'steps that came again count once' 0 '\[1,1.5,0.01\],\[2,2.5,0.01\],\[3,3.5,0.01\],\[4,4.5,0.01\],\]' \
    cat "$tmp/log.html"
printf '{"step": 1, "loss": 2}\n\n{"loss": 2}\n' >"$tmp/bad.log"
check 'a line without step' 1 'bad.log:3: "step" or "loss" is missing' "$kiln" train-log "$tmp/bad.log"
printf '{"step": 1, "loss": 2} x\n' >"$tmp/bad.log"
check 'more on a line' 1 'bad.log:1: there is more' "$kiln" train-log "$tmp/bad.log"
printf '{"step": 1, "loss"\n' >"$tmp/bad.log"
check 'a line cut off' 1 "bad.log:1: ':' is missing" "$kiln" train-log "$tmp/bad.log"
check 'a step that cannot be' 1 'bad.log:1: "step" is beyond' \
    sh -c "echo '{\"step\": 1e300, \"loss\": 1}' >'$tmp/bad.log'; '$kiln' train-log '$tmp/bad.log'"
# a grid of lines ends, however far from 0 its numbers are
page_end() { timeout 600 "$kiln" train-log "$tmp/far.log" | tail -n 1; }
printf '{"step":1,"loss":-1e30}\n' >"$tmp/far.log"
check 'losses that are far away' 0 '</script>' page_end
printf '{"step":1,"loss":1e308}\n{"step":2,"loss":-1e308}\n{"step":9007199254740992,"loss":inf}\n' >"$tmp/far.log"
check 'losses that are too large to draw' 0 '</script>' page_end
check 'an empty log' 1 'there is no step' sh -c ": >'$tmp/bad.log'; '$kiln' train-log '$tmp/bad.log'"
check 'train-log without a file' 2 'train-log needs a file' "$kiln" train-log

# ---- kiln summary ----
header='{"__metadata__":{"step":"17"},"a.weight":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},'
header=$header'"a.bias":{"dtype":"F16","shape":[],"data_offsets":[8,10]}}   '
printf "\\$(printf %03o ${#header})"'\000\000\000\000\000\000\000%s' "$header" >"$tmp/s.safetensors"
printf '0123456789' >>"$tmp/s.safetensors"
check 'summary of safetensors' 0 '^  a.weight  F32  \[2,1\]  8$' "$kiln" summary "$tmp/s.safetensors"
check 'summary of a scalar' 0 '^  a.bias    F16  \[\]     2$' "$kiln" summary "$tmp/s.safetensors"
check 'its metadata' 0 '^  step = "17"$' "$kiln" summary "$tmp/s.safetensors"
check 'its sums' 0 '^total: 2 tensors, 3 elements, 10 bytes (10 bytes)$' "$kiln" summary "$tmp/s.safetensors"
check 'summary of an array' 0 '^  (no name)  <f4  \[2\]  8$' "$kiln" summary "$tmp/x.npy"
printf 'GGUF\003\000\000\000\001\000\000\000\000\000\000\000\001\000\000\000\000\000\000\000' >"$tmp/s.gguf"
printf '\003\000\000\000\000\000\000\000eps\006\000\000\000\000\000\000?' >>"$tmp/s.gguf"
printf '\001\000\000\000\000\000\000\000w\002\000\000\000' >>"$tmp/s.gguf"
printf '\100\000\000\000\000\000\000\000\003\000\000\000\000\000\000\000' >>"$tmp/s.gguf"
printf '\010\000\000\000\000\000\000\000\000\000\000\000' >>"$tmp/s.gguf"
head -c $((32 + 204)) /dev/zero >>"$tmp/s.gguf"
check 'summary of GGUF' 0 '^  w  Q8_0  \[3,64\]  204$' "$kiln" summary "$tmp/s.gguf"
check 'its numbers' 0 '^  eps = 0.5$' "$kiln" summary "$tmp/s.gguf"
check 'summary of a file cut off' 1 'short.gguf: byte 200, field offset: "w" takes 204 bytes' \
    sh -c "head -c 200 '$tmp/s.gguf' >'$tmp/short.gguf'; '$kiln' summary '$tmp/short.gguf'"
check 'summary of no such file' 1 'cannot open' "$kiln" summary "$tmp/none.npz"
check 'summary of a graph' 1 'neither .npy, .npz, safetensors nor GGUF' "$kiln" summary "$tmp/step.kir"
check 'summary without a file' 2 'summary needs a file' "$kiln" summary
if "$kiln" opt "$tmp/neg.onnx" --bind N=2 2>&1 | grep -q 'reads no ONNX'; then
    echo 'SKIP not-built onnx: this build reads no models'
else
    check 'run a model' 0 '^return 0 "y" : f32\[2\] = -1.0 -2.0$' "$kiln" run "$tmp/neg.onnx" --input x="$tmp/x.pb"
    check 'compile a model for a range of lengths' 0 'neg_run for x86-64-v3' "$kiln" compile "$tmp/neg.onnx" \
        -o "$tmp/range.o" --header "$tmp/range.h" --bind N=1..64
    check 'its length' 0 'int64_t length_N; .*N, from 1 to 64' cat "$tmp/range.h"
    check 'a model with a symbol' 0 'symbol N 1..64' "$kiln" opt "$tmp/neg.onnx" --bind N=1..64
    check 'a range for a run' 1 'one value here, not 1..64' "$kiln" bench "$tmp/neg.onnx" --bind N=1..64
    check 'a length that no input has' 1 "no input of the model has a length 'M'" "$kiln" compile "$tmp/neg.onnx" \
        -o "$tmp/range.o" --header "$tmp/range.h" --bind N=2 --bind M=2
    check 'run a model on .npy' 0 '= -1.0 -2.0$' "$kiln" run "$tmp/neg.onnx" --input 0="$tmp/x.npy" --unfused
    check 'run a model that reads a shape' 0 '^return 0 "y" : f32\[2,1\] = -1.0 -2.0$' \
        "$kiln" run "$tmp/shaped.onnx" --input x="$tmp/x.pb" --input shape="$tmp/shape.pb"
    twice="--input x=$tmp/x.npy --input x=$tmp/one.npy"
    check 'run a model twice' 0 '^return 0 "y" : f32\[1\] = ' "$kiln" run "$tmp/neg.onnx" $twice
    check 'both results' 0 '^return 0 "y" : f32\[2\] = -1.0 -2.0$' "$kiln" run "$tmp/neg.onnx" $twice
    check 'a file for each run' 0 '= -1.0 -2.0$' sh -c "'$kiln' run '$tmp/neg.onnx' $twice --output y='$tmp/r0.npy' \
        --output y='$tmp/r1.npy' && '$kiln' run '$tmp/neg.onnx' --input x='$tmp/r0.npy' --output y='$tmp/r2.npy' && \
        '$kiln' run '$tmp/neg.onnx' --input x='$tmp/r2.npy'"
    check 'lengths that determine a shape' 1 'each length is compiled for itself: .*has to be known while recording' \
        "$kiln" run "$tmp/shaped.onnx" --input x="$tmp/x.pb" --input x="$tmp/one.npy" --input shape="$tmp/shape.pb"
    check 'other numbers of arrays' 1 "input 'shape' is given 2 times, and another 3 times" "$kiln" run \
        "$tmp/shaped.onnx" --input x="$tmp/x.pb" --input shape="$tmp/shape.pb" --input x="$tmp/x.pb" \
        --input shape="$tmp/shape.pb" --input x="$tmp/x.pb"
    if "$kiln" devices | grep -q '^cpu *[^- ]'; then
        check 'one program for both' 0 '2 runs; those after the first built 0 graphs' "$kiln" run "$tmp/neg.onnx" \
            $twice --device cpu
    fi
    check 'summary of a model' 0 '^  x  f32  \[N\]$' "$kiln" summary "$tmp/neg.onnx"
    check 'its weights' 0 '^total: 0 tensors, 0 elements' "$kiln" summary "$tmp/neg.onnx"
    check 'a model without values' 1 "input 0 'x' has no value" "$kiln" run "$tmp/neg.onnx"
    check 'an input that it has not' 1 "the model has no input 'z'" "$kiln" run "$tmp/neg.onnx" --input z="$tmp/x.pb"
    check 'an output that it has not' 1 "the model has no output 'z'" "$kiln" run "$tmp/neg.onnx" --output z=z.npy
    check 'opt of a model' 0 'input 0 "x" : f32\[3\]' "$kiln" opt "$tmp/neg.onnx" --bind N=3
    check 'opt of a model names its nodes' 0 "neg.onnx: node 'Neg' (Neg, opset 13):1" \
        "$kiln" opt "$tmp/neg.onnx" --bind N=3
    check 'a symbol without value' 1 'symbol N has no value: give --bind N=NUMBER' "$kiln" opt "$tmp/neg.onnx"
    check 'dump of a model' 0 'neg %x : f32\[3\] .* neg.onnx: node' \
        "$kiln" dump "$tmp/neg.onnx" --bind N=3 --stage captured
    check 'a shape that is not known' 1 "has to be known while recording" "$kiln" opt "$tmp/shaped.onnx" --bind N=2
    check 'bench of a model' 0 '^shaped: 1 round' \
        "$kiln" bench "$tmp/shaped.onnx" --input 0="$tmp/x.pb" --input 1="$tmp/shape.pb" \
        --rounds 1 --device ref
    check 'profile of a model' 0 'node .Neg' "$kiln" profile "$tmp/neg.onnx" --bind N=5 --rounds 1 --device ref
    if "$kiln" devices | grep -q '^cpu *[^- ]'; then
        check 'tune a model' 0 '^[01] of 1 kernels' env KILN_CACHE_DIR="$tmp/tuned" "$kiln" tune "$tmp/neg.onnx" \
            --bind N=50 --seconds 3600
        check 'compile a model' 0 ': neg_run for .* kernels, [0-9]* bytes; .*; weights inside$' \
            "$kiln" compile "$tmp/neg.onnx" --bind N=4 -o "$tmp/neg.o" --header "$tmp/neg.h"
        check 'compile a model and a graph' 0 'neg_run, step_run for .*; weights inside$' "$kiln" compile \
            "$tmp/neg.onnx" "$tmp/step.kir" --bind N=4 -o "$tmp/two.o" --header "$tmp/two.h"
        # an axis without a name: advice that the command can follow
        {
            printf '\010\010B\004\012\000\020\015:3\012\020\012\001x\022\001y\032\003Neg"\003Neg\022\001gZ\015'
            printf '\012\001x\022\010\012\006\010\001\022\002\012\000b\015\012\001y\022\010\012\006\010\001'
            printf '\022\002\012\000'
        } >"$tmp/any.onnx"
        check 'compile with an axis that has no name' 1 \
            "input 'x' of the model has an axis 0 of any length, which only an array for it could say" \
            "$kiln" compile "$tmp/any.onnx" -o "$tmp/any.o" --header "$tmp/any.h"
        check 'profile with such an axis' 1 "of any length: give --input x=FILE" "$kiln" profile "$tmp/any.onnx"
        check 'a prefix for two' 2 'prefix is for one program' "$kiln" compile "$tmp/neg.onnx" "$tmp/step.kir" \
            --bind N=4 -o "$tmp/two.o" --header "$tmp/two.h" --prefix p
        check 'with its names' 0 'const float \*in_x; .*f32\[4\]' cat "$tmp/neg.h"
    fi
    check 'a model cut off' 1 'it is damaged or cut off' sh -c "head -c 60 '$tmp/neg.onnx' >'$tmp/cut.onnx'; \
        '$kiln' opt '$tmp/cut.onnx'"
fi

echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
