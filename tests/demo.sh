#!/bin/sh
# The demo on a few hundred images: the same losses, bit for bit, whatever runs the steps, and clear errors; and the
# other examples.
# B: the build folder.
cd "$(dirname "$0")/.." || exit 1
demo=${B:-build}/examples/fashion_mnist
source=/usr/share/datasets/fashion-mnist
scratch=$(mktemp -d)
trap 'rm -r "$scratch"' EXIT
p=0
f=0
ok() { p=$((p + 1)); }
bad() { f=$((f + 1)); echo "FAIL $*"; }

# first PART COUNT BYTES: the first COUNT images and labels of a part; BYTES is COUNT as four octal bytes.
first() {
    {
        printf '\0\0\10\3%b\0\0\0\34\0\0\0\34' "$3"
        gunzip -c "$source/$1-images-idx3-ubyte.gz" | tail -c +17 | head -c $(($2 * 784))
    } | gzip -1 >"$scratch/$1-images-idx3-ubyte.gz"
    {
        printf '\0\0\10\1%b' "$3"
        gunzip -c "$source/$1-labels-idx1-ubyte.gz" | tail -c +9 | head -c "$2"
    } | gzip -1 >"$scratch/$1-labels-idx1-ubyte.gz"
}
first train 300 '\0\0\01\054'
first t10k 100 '\0\0\0\0144'

# Two epochs of three steps, the last of each with 44 images.
# steps NAME VARIABLE... -- ARGUMENT...: writes $scratch/NAME.{losses,out,err}
steps() {
    name=$1
    shift
    vars=
    while [ "$1" != -- ]; do
        vars="$vars $1"
        shift
    done
    shift
    # shellcheck disable=SC2086
    env KILN_CACHE_DIR=none $vars "$demo" --data "$scratch" --dump "$scratch/dump" --epochs 2 --losses \
        "$scratch/$name.losses" "$@" \
        >"$scratch/$name.out" 2>"$scratch/$name.err" || { bad "$name: status $?"; cat "$scratch/$name.err"; }
}
weights() { sed -n 's/^weights_hash: //p' "$scratch/$1.out"; }
# same NAME: the losses and the hash of the weights
same() {
    if [ -s "$scratch/base.losses" ] && cmp "$scratch/base.losses" "$scratch/$1.losses"; then ok; else
        bad "$1: other losses"; fi
    if [ -n "$(weights "$1")" ] && [ "$(weights "$1")" = "$(weights base)" ]; then ok; else
        bad "$1: the weights' hash is $(weights "$1"), not $(weights base)"; fi
}
differ() {
    if [ -s "$scratch/$1.losses" ] && ! cmp -s "$scratch/base.losses" "$scratch/$1.losses"; then ok; else
        bad "$1: same losses"; fi
}

# gpu: only this, with few images. On a device with a driver: about the same losses, and the second process compiles
# nothing.
compiles() { sed -n 's/^compiles: //p' "$scratch/$1.out"; }
if [ "${1:-}" = gpu ]; then
    if "${B:-build}/kiln" devices | grep -q '^vulkan:0 *-'; then
        echo "SKIP no-device vulkan: $("${B:-build}/kiln" devices | sed -n 's/^vulkan:0 *- //p')"
        echo "0 passed, 0 failed, 1 skipped"
        exit 0
    fi
    first train 24 '\0\0\0\030'
    first t10k 16 '\0\0\0\020'
    keep="KILN_CACHE_DIR=$scratch/cache"
    steps cpu KILN_THREADS=1 -- --epochs 1 --batch 8
    steps gpu "$keep" -- --device vulkan --epochs 1 --batch 8
    steps gpu_warm "$keep" -- --device vulkan --epochs 1 --batch 8
    numbers() { while read -r x; do env printf '%.9f\n' "$x"; done <"$scratch/$1.losses"; }
    numbers gpu >"$scratch/gpu.numbers"
    numbers cpu | paste - "$scratch/gpu.numbers" >"$scratch/both"
    if awk '{ d = $1 - $2; if (d < 0) d = -d; if (d > 1e-4 * $1) bad = 1 }
            END { exit bad || NR != 3 }' "$scratch/both"; then ok
    else bad "gpu: losses $(cat "$scratch/both")"; fi
    if [ "$(compiles gpu)" -gt 0 ] && [ "$(compiles gpu_warm)" -eq 0 ]; then ok; else
        bad "gpu: compiles $(compiles gpu), $(compiles gpu_warm)"; fi
    for arch in mlp cnn; do # in the graph's order: the processor's bits
        steps $arch-cpu KILN_THREADS=1 -- --arch $arch --epochs 1 --batch 8
        steps $arch-gpu KILN_ORDER=graph "$keep" -- --device vulkan --arch $arch --epochs 1 --batch 8
        if [ -n "$(weights $arch-cpu)" ] && [ "$(weights $arch-cpu)" = "$(weights $arch-gpu)" ] &&
            cmp "$scratch/$arch-cpu.losses" "$scratch/$arch-gpu.losses"; then ok
        else bad "$arch: weights $(weights $arch-gpu), not $(weights $arch-cpu)"; fi
    done
    echo "$p passed, $f failed, 0 skipped"
    [ "$f" -eq 0 ]
    exit
fi

steps base KILN_THREADS=1 --
if [ "$(wc -l <"$scratch/base.losses")" -eq 6 ]; then ok; else
    bad "base: $(wc -l <"$scratch/base.losses") losses, not 6"; fi
steps two_threads KILN_THREADS=2 -- && same two_threads
steps unfused KILN_FUSE=0 KILN_THREADS=1 -- && same unfused
steps again KILN_THREADS=1 -- && same again
steps ref -- --device ref && same ref
steps other_seed KILN_THREADS=1 -- --seed 2 && differ other_seed
steps other_rate KILN_THREADS=1 -- --lr 0.01 && differ other_rate

# A learning rate and a step number are run-time slots: three or six steps, the same programs.
steps half KILN_THREADS=1 -- --epochs 1
for counter in graphs_built compiles; do
    if [ "$(grep "^$counter:" "$scratch/half.out")" = "$(grep "^$counter:" "$scratch/base.out")" ]; then ok
    else bad "$counter grew with the steps"; fi
done

# A shorter last batch of an epoch builds nothing: as many programs as with three batches of 100.  (The CNN:
# tests/train/api_symbol_conv.c.)
steps equal_batches KILN_THREADS=1 -- --batch 100
built() { sed -n 's/^graphs_built: //p' "$scratch/$1.out"; }
if [ -n "$(built base)" ] && [ "$(built base)" = "$(built equal_batches)" ]; then ok; else
    bad "graphs_built $(built base), with equal batches $(built equal_batches)"; fi

# With a folder to keep kernels in, the second process compiles nothing, whatever its numbers.
keep="KILN_CACHE_DIR=$scratch/cache"
steps cold KILN_THREADS=1 "$keep" -- && same cold
if [ "$(compiles cold)" -gt 0 ] && [ "$(compiles cold)" -eq "$(compiles base)" ]; then ok; else
    bad "cold: compiles $(compiles cold)"; fi
steps warm KILN_THREADS=2 "$keep" -- && same warm
steps warm_rate KILN_THREADS=1 "$keep" -- --lr 0.01
for run in warm warm_rate; do
    if [ "$(compiles $run)" -eq 0 ]; then ok; else bad "$run: compiles $(compiles $run)"; fi
done
if cmp -s "$scratch/warm_rate.losses" "$scratch/other_rate.losses"; then ok; else bad "warm_rate: other losses"; fi

for result in accuracy steps step_us_fused step_us_unfused fused_speedup kernels_fused kernels_unfused graphs_built \
    compiles peak_bytes lower_bound_bytes; do
    if [ "$(grep -cE "^$result: [0-9]+(\.[0-9]+)?$" "$scratch/base.out")" -eq 1 ]; then ok; else
        bad "no result $result"; fi
done
if [ -n "$(ls "$(sed -n 's/^ir_dump: //p' "$scratch/base.out")")" ]; then ok; else bad "nothing in ir_dump"; fi

# The convolutional network: the same bits fused and unfused, and it learns.
steps cnn KILN_THREADS=1 -- --arch cnn
steps cnn_unfused KILN_FUSE=0 KILN_THREADS=2 -- --arch cnn
if cmp "$scratch/cnn.losses" "$scratch/cnn_unfused.losses" && ! cmp -s "$scratch/cnn.losses" "$scratch/base.losses"
then ok; else bad 'cnn: other losses unfused, or those of the mlp'; fi

# Mixed precision, on all images: products of bf16 and no others in the program, and the accuracy within half a point.
for precision in '' --autocast; do
    # shellcheck disable=SC2086
    "$demo" $precision --epochs 1 --steps 200 --dump "$scratch/dump$precision" >"$scratch/mixed$precision.out" \
        2>"$scratch/err" ||
        bad "mixed precision: $(cat "$scratch/err")"
done
accuracy() { sed -n 's/^accuracy: //p' "$1"; }
if [ "$(grep -c '= dot .*bf16' "$scratch/dump--autocast/train_step.captured.kir")" -eq 3 ] &&
    ! grep -q '= dot .*f32' "$scratch/dump--autocast/train_step.captured.kir"; then ok
else bad "autocast: other products than three of bf16"; fi
# group OP: of every value that a kernel computes; a kernel of casts alone would be one that fused with nothing
kernels=$(sed -n 's/^ *%[^ ]* = \([a-z_0-9]*\) .* group \([0-9]*\).*/\2 \1/p' \
    "$scratch/dump--autocast/train_step.fused.kir")
if echo "$kernels" | grep -q cast && echo "$kernels" | awk '{ all[$1] = 1; if ($2 != "cast") more[$1] = 1 }
    END { for (k in all) if (!more[k]) { print "casts alone: kernel " k; exit 1 } }'; then ok
else bad "autocast: a cast that fused with nothing"; fi
if [ -n "$(accuracy "$scratch/mixed.out")" ] && accuracy "$scratch/mixed.out" | paste - "$scratch/mixed--autocast.out" |
    awk 'NR == 1 { d = $1 - $3; exit !($1 > 0.8 && d < 0.005 && d > -0.005) }'; then ok
else bad "autocast: accuracy $(accuracy "$scratch/mixed--autocast.out"), f32 $(accuracy "$scratch/mixed.out")"; fi

# refuses STATUS PHRASE ARGUMENT...
refuses() {
    status=$1
    phrase=$2
    shift 2
    "$demo" --dump "$scratch/dump" "$@" >"$scratch/out" 2>"$scratch/err" </dev/null
    got=$?
    if [ "$got" -eq "$status" ] && grep -qF -e "$phrase" "$scratch/err" && [ ! -s "$scratch/out" ]; then ok
    else bad "$*: status $got, $(cat "$scratch/err")"; fi
}
refuses 2 'arch' --arch tree
refuses 2 'epochs' --epochs 0
refuses 2 'epochs' --epochs many
refuses 2 'batch' --batch -3
refuses 2 'lr' --lr nan
refuses 2 'seed' --seed 1x
refuses 2 'steps' --steps ''
refuses 2 'nonsense' --nonsense
refuses 2 'more' more
refuses 1 "$scratch/none/train-images-idx3-ubyte.gz" --data "$scratch/none"
refuses 1 'abacus' --data "$scratch" --device abacus
cp "$scratch/train-images-idx3-ubyte.gz" "$scratch/t10k-labels-idx1-ubyte.gz"
refuses 1 't10k-labels-idx1-ubyte.gz' --data "$scratch"
head -c 1000 "$scratch/train-images-idx3-ubyte.gz" >"$scratch/cut" &&
    mv "$scratch/cut" "$scratch/train-images-idx3-ubyte.gz"
refuses 1 'truncated' --data "$scratch"

# The other examples: what they print.
prints() { # EXAMPLE PATTERN...
    example=${B:-build}/examples/$1
    shift
    # shellcheck disable=SC2086 # with its arguments
    $example >"$scratch/out" 2>&1 || bad "$example: $(cat "$scratch/out")"
    for pattern; do
        if grep -qE -e "$pattern" "$scratch/out"; then ok
        else bad "$example: no '$pattern' in $(cat "$scratch/out")"; fi
    done
}
prints custom '^row 0: 5 at 4, 4 at 2; gradient 0 0 8 0 10$' '^row 1: 8 at 3, 7 at 1; gradient 0 14 0 16 0$' \
    'custom\.c:[0-9]+: read: custom "topk": row 0 holds a NaN \(recorded at .*custom\.c:[0-9]+\)$'
prints per_sample '^equal: yes$' '^kernels: ([0-9]|1[0-2])$' '^largest_gradient: [1-9]'
prints plugin '^devices: example:0 and (cpu|ref)$' '^step 300: loss 0\.0'
prints graph_network '^stored: 7000 of 1000000$' '^accuracy without the graph: 0\.[345]' '^accuracy: 0\.(8[5-9]|9)'
prints physics '^largest error: 0\.00'
prints 'autoencoder --epochs 1' '^error: 0\.0[12]' '^error of the mean picture: 0\.08'
prints 'resnet --images 6000 --epochs 2 --width 8 --batch 64' '^parameters: 19714$' '^step 186: .*, accuracy 0\.[78]'
if ! "${B:-build}/examples/fine_tune" --steps 1 2>&1 | grep -q 'reads no ONNX'; then
    prints 'fine_tune --steps 100' '^accuracy before: 0\.[34]' '^head: weight2, 2560 numbers$' \
        '^accuracy after: 0\.[67]'
fi
prints quantize '^floats: accuracy 0\.8[3-9]' \
    '^8 bits: accuracy 0\.8.*, weights 204328 bytes, 1000 images [0-9.]* ms$' \
    '^8 bits: [-+]0\.[0-4][0-9] points' '^4 bits: accuracy 0\.8.*, weights 152448 bytes'

echo "$p passed, $f failed, 0 skipped"
[ "$f" -eq 0 ]
