#!/bin/sh
# Vulkan's validation layer has nothing to say of a program that does all that the driver can.
# B: the build folder.
cd "$(dirname "$0")/.." || exit 1
out=$(mktemp)
trap 'rm "$out"' EXIT
VK_INSTANCE_LAYERS=VK_LAYER_KHRONOS_validation VK_LOADER_DEBUG=layer "${B:-build}/tests/api_accelerator" vulkan >"$out" 2>&1
status=$?
if grep -q '^SKIP no-device' "$out"; then
    grep '^SKIP no-device' "$out"
    echo "0 passed, 0 failed, 1 skipped"
elif ! grep -q 'Insert.*VK_LAYER_KHRONOS_validation' "$out"; then
    echo "SKIP no-layer vulkan: VK_LAYER_KHRONOS_validation is not there"
    echo "0 passed, 0 failed, 1 skipped"
elif [ "$status" -ne 0 ] || grep -E 'VUID|Validation (Error|Warning)|UNASSIGNED' "$out"; then
    tail -n 20 "$out"
    echo "FAIL the validation layer complains, or the program fails (status $status)"
    echo "0 passed, 1 failed, 0 skipped"
    exit 1
else
    echo "1 passed, 0 failed, 0 skipped"
fi
