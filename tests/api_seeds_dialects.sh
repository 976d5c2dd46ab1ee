#!/bin/sh
# Row D3: HIP is a device of its own, no CUDA under another name, and the same loop IR becomes both: what `kiln dump`
# prints of kernels for the one and the other is the same text but for the dialect's prelude. In f64, for halves and f32
# have matrix units of each maker's own, and so another loop IR.
B=${1:?a build folder}
cd "$(dirname "$0")/.." || exit 1
p=0
f=0
scratch=$(mktemp -d)
trap 'rm -r "$scratch"' EXIT
check() { # STATUS MESSAGE
    if [ "$1" -eq 0 ]; then p=$((p + 1)); else f=$((f + 1)) && echo "FAIL $2"; fi
}

for graph in rows_softmax rows_softmax_grad dot_blocks scatter_of_itself cycle_of_early_and_late cond; do
    sed 's/f16\|f32/f64/g' "tests/text/agree_$graph.kir" >"$scratch/$graph.kir"
    for target in cuda hip; do
        "$B/kiln" dump "$scratch/$graph.kir" --stage source --target $target >"$scratch/$target" 2>&1
        sed -n '/^extern "C" __global__/,$p' "$scratch/$target" >"$scratch/$target.kernels"
        sed '/^extern "C" __global__/,$d' "$scratch/$target" >"$scratch/$target.prelude"
    done
    [ -s "$scratch/hip.kernels" ] && cmp -s "$scratch/cuda.kernels" "$scratch/hip.kernels"
    check $? "$graph: the kernels' text differs between cuda and hip"
    ! grep -q 'asm(\|_sync(' "$scratch/hip.prelude" && grep -q '_Float16' "$scratch/hip.prelude" &&
        grep -q 'asm(' "$scratch/cuda.prelude"
    check $? "$graph: the prelude is not the language's own"
done
"$B/kiln" devices | grep -q '^hip:0 '
check $? "kiln devices does not list hip"
"$B/kiln" explain neg 'f32[2]' --device hip >"$scratch/explain" 2>&1 # where there is none: why
grep -q 'device hip:0: \|resolved: HIP' "$scratch/explain" && ! grep -q 'cuda:0' "$scratch/explain"
check $? "asking for hip: $(cat "$scratch/explain")"
if [ "$f" -eq 0 ]; then
    printf 'D3 ok %d checks\n1 passed, 0 failed, 0 skipped\n' "$p"
else
    printf 'D3 FAILED %d checks\n0 passed, 1 failed, 0 skipped\n' $((p + f))
    exit 1
fi
