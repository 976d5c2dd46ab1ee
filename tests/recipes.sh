#!/bin/sh
# Follows the READMEs' recipes in a scratch copy (build/recipes), builds what their checks need, and runs these and the
# programs of tests/recipes/, which use what the recipes add.
cd "$(dirname "$0")/.." || exit 1
scratch=build/recipes
p=0
f=0
ok() { p=$((p + 1)); }
bad() {
    f=$((f + 1))
    echo "FAIL $1"
}

mkdir -p $scratch
find $scratch -mindepth 1 -maxdepth 1 ! -name build -exec rm -r {} +
cp -pr CMakeLists.txt CMakePresets.json README.md run include ir frontend passes codegen runtime tests bench examples \
    $scratch
for program in tests/recipes/*.c; do cp -p "$program" "$scratch/tests/api/api_recipe_$(basename "$program")"; done
rm -rf $scratch/tests/recipes $scratch/checks
mkdir -p $scratch/checks
cd $scratch || exit 1

# No part of a recipe is an optimisation, and half the cost of a build is: only the commands and libraries that the
# checks run, without, and without the accelerators.
build() {
    generator=
    if [ -z "${CMAKE_GENERATOR:-}" ] && command -v ninja >/dev/null; then generator=-GNinja; fi
    cmake -S . -B build $generator -DCMAKE_BUILD_TYPE=Plain -DCMAKE_C_FLAGS_PLAIN='-O0 -DNDEBUG' -DKILN_VULKAN=OFF \
        -DKILN_CUDA=OFF -DKILN_HIP=OFF &&
        cmake --build build --parallel "$(nproc)" --target kiln_cli kiln-aot \
            $(cat checks/*.sh | grep -oE 'build/(tests|examples)/[a-z_]+' | sort -u | sed 's|build/||; s|/|_|')
}

awk -v checks=checks -f tests/recipes.awk README.md ir/README.md frontend/nn/README.md passes/README.md \
    runtime/aot/README.md \
    codegen/README.md && ok || bad "a recipe does not fit the tree"
if build >build.log 2>&1; then
    ok
    for check in checks/*.sh; do
        sh -eux "$check" && ok || bad "$(head -n 1 "$check")"
    done
    for program in build/tests/api_recipe_*; do
        "$program" && ok || bad "$program"
    done
else
    tail -n 40 build.log
    bad "the tree with all recipes does not build"
fi
echo "$p passed, $f failed, 0 skipped"
[ "$f" -eq 0 ]
