#!/bin/sh
# Models and results of other projects' newest packages, made by the Python that KILN_TEST_PYTHON names, python3, or one
# that is made in the build folder with the packages of the package index; then api_onnx on devices ref and cpu:
# - the node tests of onnx (opsets to 28).  node_passes.def lists those that have to pass; KILN_BLESS=1 adds those that
#   pass now;
# - operators of com.microsoft and ai.onnx.ml with random inputs beside onnxruntime (contrib_models.py): all have to
#   pass.
# Arguments: the build folder, a seed.
set -u
build=${1:-build} seed=${2:-1}
here=$(cd "$(dirname "$0")" && pwd)
log=$build/onnx-node.log
has_packages() {
    "$1" -c 'import onnx, onnxruntime, sys; sys.exit(onnx.defs.onnx_opset_version() < 28)' 2>/dev/null
}

python=${KILN_TEST_PYTHON:-python3}
if ! has_packages "$python"; then
    python=$build/onnx-python/bin/python
    has_packages "$python" ||
        { python3 -m venv "$build/onnx-python" && "$python" -m pip install --quiet onnx onnxruntime; } >&2
fi
if ! has_packages "$python"; then
    echo "SKIP no-tool onnx: no Python with onnx of opset 28 and onnxruntime, and the package index does not give one"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
fi

passed=0 failed=0
: >"$log"
# check FOLDER LIST: on both devices
check() {
    for device in ref cpu; do
        line=$(KILN_TEST_ONNX=$1 "$build/tests/api_onnx" "$device" "$2" | tee -a "$log" | tail -n 1)
        p=${line%% passed*} f=${line#* passed, }
        passed=$((passed + ${p:-0})) failed=$((failed + ${f%% failed*}))
    done
}
for what in node contrib; do
    data=$build/onnx-$what
    rm -rf "$data" && mkdir -p "$data" && "$python" "$here/${what}_models.py" "$data" "$seed" 2>>"$log" || exit 1
    list=$here/node_passes.def
    if [ $what = contrib ]; then
        list=$data/all.def
        (cd "$data" && LC_ALL=C ls -d node/*) >"$list"
    fi
    check "$data" "$list"
done
grep -E 'models:|^WRONG|^LOST|^FAIL' "$log"
echo "$passed passed, $failed failed, 0 skipped"
exit $((failed != 0))
