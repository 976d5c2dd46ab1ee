#!/bin/sh
# The examples with trained models, by the library and with the model compiled in: the same answers, and right ones.
#   tests/model_examples.sh BUILD_FOLDER
# KILN_TEST_MODELS is the folder of the models and of MNIST's test images; without it nothing runs.
build=${1:?build folder}
models=${KILN_TEST_MODELS:-}
root=$(cd "$(dirname "$0")/.." && pwd)
p=0 f=0
ok() { p=$((p + 1)); }
bad() { f=$((f + 1)) && echo "FAIL $*"; }
for file in mnist-cnn.onnx silero_vad_v6.onnx ultraface_slim.onnx t10k-images-idx3-ubyte.gz \
    t10k-labels-idx1-ubyte.gz; do
    if [ -z "$models" ] || [ ! -e "$models/$file" ]; then
        echo "SKIP no-data models: KILN_TEST_MODELS is not a folder that has $file"
        echo '0 passed, 0 failed, 1 skipped'
        exit 0
    fi
done
tmp=$(mktemp -d)
trap 'rm -r "$tmp"' EXIT

# object EXAMPLE MODEL OPTION..: the example as a program of the model's object and the small runtime.
object() {
    example=$1 model=$2
    shift 2
    mkdir "$tmp/$example"
    "$build/kiln" compile "$models/$model" --prefix model -o "$tmp/$example/model.o" --header "$tmp/$example/model.h" \
        "$@" >"$tmp/log" 2>&1 &&
        cc -std=c17 -D_DEFAULT_SOURCE -DINFER_OBJECT -O1 -Wall -Werror -I"$tmp/$example" -o "$tmp/$example/run" \
            "$root/examples/$example.c" "$tmp/$example/model.o" "$build/libkiln-aot.a" -pthread -lm 2>>"$tmp/log" ||
        bad "$example as an object: $(cat "$tmp/log")"
}

# same EXAMPLE MODEL INPUT: what it prints is in $tmp/out, and the same for the object, in $tmp/other.
same() {
    "$build/examples/$1" "$models/$2" <"$3" >"$tmp/out" 2>"$tmp/err" || bad "$1: $(cat "$tmp/err")"
    "$tmp/$1/run" inside <"$3" >"$tmp/other" 2>"$tmp/other_err" || bad "$1 as an object: $(cat "$tmp/other_err")"
    if cmp "$tmp/out" "$tmp/other" && cmp "$tmp/err" "$tmp/other_err" && [ -s "$tmp/out" ]; then ok
    else bad "$1: other answers from the object"; fi
}

images=500
gzip -dc "$models/t10k-images-idx3-ubyte.gz" | tail -c +17 >"$tmp/bytes"
head -c $((784 * images)) "$tmp/bytes" >"$tmp/images"
gzip -dc "$models/t10k-labels-idx1-ubyte.gz" | tail -c +9 | head -c $images | od -An -v -t u1 | tr -s ' ' '\n' |
    grep . >"$tmp/labels"
object classify mnist-cnn.onnx
same classify mnist-cnn.onnx "$tmp/images"
right=$(cut -d ' ' -f 1 "$tmp/out" | paste -d ' ' - "$tmp/labels" | awk '$1 == $2' | wc -l)
if [ "$right" -ge $((images * 98 / 100)) ]; then ok; else bad "classify: $right of $images right"; fi

# A second of silence, then noise: neither is speech.
object voice silero_vad_v6.onnx --bind seq_len=1
{
    printf 'RIFF\000\000\000\000WAVE'
    printf 'fmt \020\000\000\000\001\000\001\000\200\076\000\000\000\175\000\000\002\000\020\000'
    printf 'data\377\377\377\177'
    head -c 32768 /dev/zero
    head -c 200000 "$tmp/bytes"
} >"$tmp/wav"
same voice silero_vad_v6.onnx "$tmp/wav"
if grep -qE '^227 chunks, 0\.0' "$tmp/out"; then ok; else bad "voice: $(cat "$tmp/out")"; fi
if "$build/examples/voice" "$models/silero_vad_v6.onnx" <"$tmp/images" 2>"$tmp/err" ||
    ! grep -q 'no WAV file' "$tmp/err"; then bad 'voice: what is no WAV file'; else ok; fi

object faces ultraface_slim.onnx
{
    printf 'P6\n# digits\n400 300\n255\n'
    head -c 360000 "$tmp/bytes"
} >"$tmp/ppm"
same faces ultraface_slim.onnx "$tmp/ppm"
if grep -qx '0 faces' "$tmp/err" && [ "$(wc -c <"$tmp/out")" = 360015 ]; then ok
else bad "faces: $(cat "$tmp/err")"; fi
if printf 'P6\n9 9\n255\n' | "$build/examples/faces" "$models/ultraface_slim.onnx" >"$tmp/out" 2>"$tmp/err" ||
    ! grep -q 'no PPM picture' "$tmp/err"; then bad 'faces: a picture cut off'; else ok; fi

echo "$p passed, $f failed, 0 skipped"
[ "$f" -eq 0 ]
