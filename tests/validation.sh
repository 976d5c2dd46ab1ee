#!/bin/sh
# Vulkan's validation layer has nothing to say of programs that do all that the driver and its kernels can.
# B: the build folder.
cd "$(dirname "$0")/.." || exit 1
out=$(mktemp)
trap 'rm "$out"' EXIT
status=0
for program in "api_accelerator vulkan" "gpu_lanes vulkan" "gpu_run graphs vulkan 20 1"; do
    # shellcheck disable=SC2086
    VK_INSTANCE_LAYERS=VK_LAYER_KHRONOS_validation VK_LOADER_DEBUG=layer "${B:-build}"/tests/$program >>"$out" 2>&1 \
        || status=$?
done
if grep -q '^SKIP no-device' "$out"; then
    grep -m 1 '^SKIP no-device' "$out"
    echo "0 passed, 0 failed, 1 skipped"
elif ! grep -q 'Insert.*VK_LAYER_KHRONOS_validation' "$out"; then
    echo "SKIP no-layer vulkan: VK_LAYER_KHRONOS_validation is not there"
    echo "0 passed, 0 failed, 1 skipped"
elif [ "$status" -ne 0 ] || grep -E 'VUID|Validation (Error|Warning)|UNASSIGNED' "$out"; then
    tail -n 20 "$out"
    echo "FAIL the validation layer complains, or a program fails (status $status)"
    echo "0 passed, 1 failed, 0 skipped"
    exit 1
else
    echo "1 passed, 0 failed, 0 skipped"
fi
