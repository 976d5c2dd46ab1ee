#!/bin/sh
# The node tests of the newest onnx package (opsets to 28), made by the Python that KILN_TEST_PYTHON names, python3, or
# one that is made in the build folder with the package of the package index; then api_onnx on devices ref and cpu.
# Arguments: the build folder.  tests/onnx/node_passes.def lists the models that have to pass; KILN_BLESS=1 adds those
# that pass now.
set -u
build=${1:-build}
here=$(cd "$(dirname "$0")" && pwd)
data=$build/onnx-node
has_onnx() { "$1" -c 'import onnx, sys; sys.exit(onnx.defs.onnx_opset_version() < 28)' 2>/dev/null; }

python=${KILN_TEST_PYTHON:-python3}
if ! has_onnx "$python"; then
    python=$build/onnx-python/bin/python
    has_onnx "$python" || { python3 -m venv "$build/onnx-python" && "$python" -m pip install --quiet onnx; } >&2
fi
if ! has_onnx "$python"; then
    echo "SKIP no-tool onnx: no Python with onnx of opset 28, and the package index does not give one"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
fi
rm -rf "$data" && mkdir -p "$data" && "$python" "$here/node_models.py" "$data" 2>/dev/null || exit 1
passed=0 failed=0
for device in ref cpu; do
    line=$(KILN_TEST_ONNX=$data "$build/tests/api_onnx" "$device" "$here/node_passes.def" | tee /dev/stderr | tail -n 1)
    p=${line%% passed*} f=${line#* passed, }
    passed=$((passed + ${p:-0})) failed=$((failed + ${f%% failed*}))
done 2>"$build/onnx-node.log"
grep -E 'models:|^WRONG|^LOST|^FAIL' "$build/onnx-node.log"
echo "$passed passed, $failed failed, 0 skipped"
exit $((failed != 0))
