#!/bin/sh
# CUDA and HIP: what is said where there is no driver, no device or an old one, and what is said of those that there
# are. B: the build folder.
cd "$(dirname "$0")/.." || exit 1
B=${B:-build}
new=$PWD/$B/tests/libfake-gpu.so
old=$PWD/$B/tests/libfake-gpu-old.so
case $B in /*) new=$B/tests/libfake-gpu.so old=$B/tests/libfake-gpu-old.so ;; esac
p=0
f=0

# says DEVICE TEXT VARIABLE...: what `kiln devices` has on the device's line.
says() {
    device=$1
    text=$2
    shift 2
    line=$(env KILN_CACHE_DIR=none "$@" "$B/kiln" devices 2>&1 | grep "^$device ")
    case $line in *"$text"*) p=$((p + 1)) ;; *) f=$((f + 1)) && echo "FAIL $*: \"$line\", not \"$text\"" ;; esac
}
fakes="KILN_CUDA_DRIVER=$new KILN_CUDA_COMPILER=$new KILN_HIP_DRIVER=$new KILN_HIP_COMPILER=$new"
# shellcheck disable=SC2086
{
    says cuda:0 "- /nowhere/libcuda.so.1: cannot open" KILN_CUDA_DRIVER=/nowhere/libcuda.so.1
    says cuda:0 "(it comes with NVIDIA's driver)" KILN_CUDA_DRIVER=/nowhere/libcuda.so.1
    says hip:0 "- /nowhere/libamdhip64.so: cannot open" KILN_HIP_DRIVER=/nowhere/libamdhip64.so
    says cuda:0 "- there is no NVIDIA GPU" $fakes FAKE_GPU_INIT=100
    says cuda:0 "- there is no NVIDIA GPU" $fakes FAKE_GPU_DEVICES=0
    says hip:0 "- there is no AMD GPU" $fakes FAKE_GPU_INIT=101
    says hip:0 "- there is no AMD GPU" $fakes FAKE_GPU_DEVICES=0
    says cuda:0 "- this libcuda is the toolkit's stub" $fakes FAKE_GPU_INIT=34
    says cuda:0 "- cuInit gives FAKE_ERROR_803" $fakes FAKE_GPU_INIT=803
    says cuda:0 "- the driver is too old: it is for CUDA 11.2" $fakes FAKE_GPU_VERSION=11020
    says cuda:0 "- the driver is too old: $old has no function cuGraphInstantiateWithFlags" $fakes \
        KILN_CUDA_DRIVER="$old"
    says cuda:0 "- NVRTC: no library /nowhere" $fakes KILN_CUDA_COMPILER=/nowhere
    says hip:0 "- hiprtc: no library /nowhere" $fakes KILN_HIP_COMPILER=/nowhere
    says cuda:1 "Fake 1 sm_90a +bool" $fakes
    says cuda:1 "driver for CUDA 12.4 +fma" $fakes
    says cuda:1 "tensor cores 16x8x16 of f16 bf16" $fakes
    says hip:0 "tensor cores 32x32x8 of bf16 f32, 16x16x16 of bf16 f32" $fakes
    says hip:1 "Fake 1 gfx90a:sramecc+:xnack- +bool" $fakes
    says hip:0 "Fake 0 gfx90a:sramecc+:xnack- +bool" $fakes KILN_HIP_DRIVER="$old" # its struct is another one
}
# Nobody gets a GPU unasked, and who asks for one that is not there gets the reason.
out=$(env KILN_CUDA_DRIVER=/nowhere/libcuda.so.1 "$B/examples/fashion_mnist" --device cuda 2>&1)
case $?$out in 1*"device cuda:0: /nowhere/libcuda.so.1: cannot open"*) p=$((p + 1)) ;; *) f=$((f + 1)) &&
    echo "FAIL demo: $out" ;; esac
out=$(env KILN_HIP_DRIVER=/nowhere/libamdhip64.so "$B/examples/fashion_mnist" --device hip 2>&1)
case $?$out in 1*"device hip:0: /nowhere/libamdhip64.so: cannot open"*) p=$((p + 1)) ;; *) f=$((f + 1)) &&
    echo "FAIL demo: $out" ;; esac
echo "$p passed, $f failed, 0 skipped"
[ "$f" -eq 0 ]
