#!/bin/sh
# The order of ops.def means nothing: shuffle_rows.sh BUILD builds the program kiln from a scratch copy whose rows are
# shuffled and compares the kernels of all text tests with those of BUILD/kiln.
cd "$(dirname "$0")/.." || exit 1
build=$(cd "$1" && pwd)
scratch=$build/shuffled
mkdir -p "$scratch"
find "$scratch" -mindepth 1 -maxdepth 1 ! -name build -exec rm -r {} +
cp -pr CMakeLists.txt CMakePresets.json README.md run include ir frontend passes codegen runtime tests bench examples \
    "$scratch"
# A row goes from a line that begins with its kind to the next such line, or to an empty one; srand makes it the same
# each time.
awk '/^(ST|SF|EW[123]|EW2_AS)\(/ { row[++n] = $0; open = 1; next }
     /^$/ || /^#/ { open = 0 }
     open { row[n] = row[n] "\n" $0; next }
     n && /^#undef EW1/ {
         srand(7)
         for (i = n; i > 1; i--) { k = 1 + int(rand() * i); t = row[i]; row[i] = row[k]; row[k] = t }
         for (i = 1; i <= n; i++) print row[i]
     }
     { print }' ir/ops/ops.def >"$scratch/ir/ops/ops.def"
generator=
if [ -z "${CMAKE_GENERATOR:-}" ] && command -v ninja >/dev/null; then generator=-GNinja; fi
if cmp -s ir/ops/ops.def "$scratch/ir/ops/ops.def" ||
    ! { cmake -S "$scratch" -B "$scratch/build" $generator -DCMAKE_BUILD_TYPE=Plain \
        -DCMAKE_C_FLAGS_PLAIN='-O0 -DNDEBUG' \
        -DKILN_VULKAN=OFF -DKILN_CUDA=OFF -DKILN_HIP=OFF &&
        cmake --build "$scratch/build" --parallel "$(nproc)" --target kiln_cli; } >"$scratch/build.log" 2>&1; then
    echo "FAIL no program with shuffled rows, see $scratch/build.log"
    echo "0 passed, 1 failed, 0 skipped"
    exit 1
fi
sh tests/kernel_texts.sh "$build/kiln" >"$scratch/rows.txt"
sh tests/kernel_texts.sh "$scratch/build/kiln" >"$scratch/shuffled.txt"
graphs=$(wc -l <"$scratch/rows.txt")
if [ "$graphs" -lt 500 ] || ! cmp -s "$scratch/rows.txt" "$scratch/shuffled.txt"; then
    diff "$scratch/rows.txt" "$scratch/shuffled.txt" | head -n 20
    echo "FAIL kernels of $graphs graphs differ when the rows of ops.def are shuffled"
    echo "0 passed, 1 failed, 0 skipped"
    exit 1
fi
echo "$graphs passed, 0 failed, 0 skipped"
