#!/bin/sh
# A build folder installed, and used as its users do: a project that finds the package and has a graph compiled, the
# command, and the library, none of which may need the build folder any more.
build=$(realpath "${1:?a build folder}")
cd "$(dirname "$0")/.." || exit 1
p=0
f=0
check() { # WHAT COMMAND...
    what=$1
    shift
    if "$@" >"$tmp/out" 2>&1; then
        p=$((p + 1))
    else
        f=$((f + 1))
        echo "FAIL $what"
        tail -n 15 "$tmp/out"
    fi
}
tmp=$build/install-test
rm -rf "$tmp"
mkdir -p "$tmp/user" "$tmp/cache"
chmod 700 "$tmp/cache"
export KILN_CACHE_DIR="$tmp/cache"
version=$(sed -n 's/^project(kiln VERSION \([0-9.]*\) .*/\1/p' CMakeLists.txt)
compatible=${version%.*} # programs of other numbers do not load this library

cat >"$tmp/user/or.kir" <<'END'
graph @or {
  symbol n 1..64
  %x = input 0 "x" : f32[n,2]
  %w = state 0 "w" : f32[2,1]
  %y = dot %x, %w contract(1; 0) : f32[n,1]
  return %y
}
END
cat >"$tmp/user/ahead.c" <<'END'
#include "product.h"
#include <stdio.h>
int main(void)
{
    float x[] = {0, 0, 0, 1, 1, 0, 1, 1}, w[] = {2, 3}, y[product_count_out_0];
    product_args a = {.in_x = x, .state_w = w, .out_0 = y};
    int status = product_run(&a);
    printf("%d: %g %g %g %g\n", status, y[0], y[1], y[2], y[3]);
    return status;
}
END
cat >"$tmp/user/later.c" <<'END'
#include <kiln/kiln.h>
#include <stdio.h>
int main(void)
{
    kl_tensor x = kl_full(kl_device_named("cpu"), KL_F32, 1, (int64_t[]){3}, 2);
    printf("%g\n", kl_item_f32(kl_sum(kl_mul(x, x), 1, (int[]){0}, false)));
    return kl_last_error_code();
}
END
cat >"$tmp/user/train.c" <<'END'
#include <kiln/train.h>
#include <stdio.h>
int main(void)
{
    kl_params *params = kl_params_new(kl_device_named("cpu"), KL_F32, 1);
    kl_tensor w = kl_params_make(params, "w", 1, (int64_t[]){2}, NULL);
    kl_optimizer *opt = kl_sgd(1, &w, NULL);
    kl_trace_begin("step");
    kl_optimizer_step(opt, kl_sum(kl_add_scalar(w, 1), 1, (int[]){0}, false), 0.5);
    printf("%d", kl_trace_end());
    printf(" %g\n", kl_item_f32(kl_sum(w, 1, (int[]){0}, false)));
    kl_optimizer_free(opt);
    kl_params_free(params);
    return kl_last_error_code();
}
END
cat >"$tmp/user/model.c" <<'END'
#include <kiln/onnx.h>
#include <stdio.h>
#include <string.h>
int main(void)
{
    kl_model *m = kl_model_open(kl_device_named("cpu"), "/nowhere.onnx");
    puts(!m && strstr(kl_last_error(), "/nowhere.onnx") ? "no file" : kl_last_error());
    return m != NULL;
}
END
cat >"$tmp/user/CMakeLists.txt" <<END
cmake_minimum_required(VERSION 3.20)
project(user C)
find_package(kiln $compatible REQUIRED COMPONENTS train onnx)
find_package(kiln $compatible QUIET COMPONENTS nonsense)
if(kiln_FOUND)
    message(FATAL_ERROR "there is no component nonsense")
endif()
kiln_add_object(product or.kir CPU native BIND n=4)
add_executable(ahead ahead.c)
target_link_libraries(ahead PRIVATE product)
add_executable(later later.c)
target_link_libraries(later PRIVATE kiln::kiln)
add_executable(train train.c)
target_link_libraries(train PRIVATE kiln::train)
add_executable(model model.c)
target_link_libraries(model PRIVATE kiln::onnx)
END

flags=
case $(grep -h '^KILN_SANITIZE:' "$build/CMakeCache.txt") in
*address) flags=-fsanitize=address,undefined ;;
*thread) flags=-fsanitize=thread ;;
esac
check 'install' cmake --install "$build" --prefix "$tmp/root"
check 'a user of it configures' cmake -S "$tmp/user" -B "$tmp/user/build" -DCMAKE_PREFIX_PATH="$tmp/root" \
    "-DCMAKE_C_FLAGS=$flags"
check 'a user of it builds' cmake --build "$tmp/user/build"
check 'a program compiled ahead of time' sh -c "[ \"\$('$tmp/user/build/ahead')\" = '0: 0 3 2 5' ]"
check 'a program that compiles' sh -c "[ \"\$('$tmp/user/build/later')\" = 12 ]"
check 'a program of component train' sh -c "[ \"\$('$tmp/user/build/train')\" = '0 -1' ]"
check 'a program of component onnx' sh -c "[ \"\$('$tmp/user/build/model' | grep -c -e 'no file' -e protobuf)\" = 1 ]"
check 'it links no library that it does not use' sh -c "! readelf -d '$tmp/user/build/later' | grep -E 'train|onnx'"
# the same program through pkg-config, the package moved to another place
mv "$tmp/root" "$tmp/moved"
pc=$(dirname "$(find "$tmp/moved" -name kiln.pc)")
check 'pkg-config knows it' sh -c "[ \"\$(PKG_CONFIG_PATH='$pc' pkg-config --modversion kiln)\" = $version ]"
check 'a program built by pkg-config' sh -c "cc $flags '$tmp/user/later.c' -o '$tmp/user/by_pc' \
    \$(PKG_CONFIG_PATH='$pc' pkg-config --cflags --libs kiln) -Wl,-rpath,'$(dirname "$pc")' &&
        [ \"\$('$tmp/user/by_pc')\" = 12 ]"
check 'a training program built by pkg-config' sh -c "cc $flags '$tmp/user/train.c' -o '$tmp/user/train_by_pc' \
    \$(PKG_CONFIG_PATH='$pc' pkg-config --cflags --libs kiln-train) -Wl,-rpath,'$(dirname "$pc")' &&
        [ \"\$('$tmp/user/train_by_pc')\" = '0 -1' ]"
if command -v c++ >/dev/null; then
    cat >"$tmp/user/plus.cpp" <<'END'
#include <cstdio>
#include <kiln/kiln.hpp>
int main() { std::printf("%g\n", kiln::sum(kiln::full({3}, 2) * kiln::full({3}, 2)).item<double>()); }
END
    check 'a C++ program built by pkg-config' sh -c "c++ -std=c++17 $flags '$tmp/user/plus.cpp' -o '$tmp/user/plus' \
        \$(PKG_CONFIG_PATH='$pc' pkg-config --cflags --libs kiln) -Wl,-rpath,'$(dirname "$pc")' &&
            [ \"\$('$tmp/user/plus')\" = 12 ]"
fi
# a training loop in Python, through ctypes; a sanitizer's library would have to be loaded before the interpreter
cat >"$tmp/user/train.py" <<'END'
import ctypes as c, sys
class Tensor(c.Structure): _fields_ = [("id", c.c_uint64)]
class Device(c.Structure): _fields_ = [("id", c.c_uint32)]
kl = c.CDLL(sys.argv[1])
F32, I32, dims = 11, 7, lambda *n: (c.c_int64 * len(n))(*n)
def function(name, result, *arguments):
    f = getattr(kl, name)
    f.restype, f.argtypes = result, arguments
    return f
device = function("kl_device_default", Device)()
randn = function("kl_randn", Tensor, Device, c.c_int, c.c_int, c.POINTER(c.c_int64), c.c_uint64)
kl_input = function("kl_input", Tensor, Device, c.c_int, c.c_int, c.POINTER(c.c_int64), c.c_void_p)
matmul = function("kl_matmul", Tensor, Tensor, Tensor)
cross_entropy = function("kl_cross_entropy", Tensor, Tensor, Tensor)
grad, sub = function("kl_grad", Tensor, Tensor, Tensor), function("kl_sub", Tensor, Tensor, Tensor)
scaled = function("kl_mul_scalar", Tensor, Tensor, c.c_double)
assign, keep = function("kl_assign", c.c_int, Tensor, Tensor), function("kl_keep", Tensor, Tensor)
begin, end = function("kl_trace_begin", c.c_int, c.c_char_p), function("kl_trace_end", c.c_int)
requires_grad = function("kl_requires_grad", c.c_int, Tensor)
item, error = function("kl_item_f32", c.c_float, Tensor), function("kl_last_error", c.c_char_p)
w = randn(device, F32, 2, dims(3, 2), 42)
requires_grad(w)
x = (c.c_float * 12)(0, 0, 1, 0, 1, 1, 1, 0, 1, 1, 1, 1)
y = (c.c_int32 * 4)(0, 1, 1, 1)
for step in range(200):
    begin(b"step")
    loss = cross_entropy(matmul(kl_input(device, F32, 2, dims(4, 3), x), w), kl_input(device, I32, 1, dims(4), y))
    assign(w, sub(w, scaled(grad(loss, w), 0.5)))
    loss = keep(loss)
    if end():
        sys.exit(error().decode())
print("learned" if item(loss) < 0.2 else item(loss))
matmul(w, kl_input(device, F32, 1, dims(4), x))
print(error().decode())
END
s=0
if [ -z "$flags" ] && command -v python3 >/dev/null; then
    check 'a program in Python' sh -c \
        "python3 '$tmp/user/train.py' '$(find "$tmp/moved" -name libkiln.so)' | grep -A1 -x learned |
            grep -F 'matmul: '"
else
    echo 'SKIP no-tool python3: it calls the library through ctypes'
    s=1
fi
mv "$tmp/moved" "$tmp/root"
check 'the library has a version in its name' sh -c \
    "readelf -d '$tmp'/root/lib*/libkiln.so '$tmp'/root/lib/*/libkiln.so 2>/dev/null |
    grep -F 'soname: [libkiln.so.$compatible]'"
check 'nothing but headers stands between the headers' sh -c \
    "! find '$tmp'/root/include -type f ! -name '*.h' ! -name '*.hpp' | grep ."
check 'the manual page' grep -q '^.TH KILN 1' "$tmp/root/share/man/man1/kiln.1"
check 'the command' sh -c "'$tmp/root/bin/kiln' dump '$tmp/user/or.kir' --bind n=4 --stage asm | grep -q ret"
# without the code generators of GPUs, which are opened when one is asked for, all else works
gpu=$(find "$tmp/root" -name libkiln-gpu.so)
check 'the code generators of GPUs' sh -c \
    "'$tmp/root/bin/kiln' dump '$tmp/user/or.kir' --bind n=4 --stage source --target hip | grep -q __global__"
check 'they are a library beside the others' test "${gpu%/*}" = "$(dirname "$(find "$tmp/root" -name libkiln.so)")"
mv "$gpu" "$tmp/elsewhere.so"
check 'the error where they are missing' sh -c \
    "'$tmp/root/bin/kiln' dump '$tmp/user/or.kir' --bind n=4 --stage source --target hip 2>&1 |
    grep -E '^kiln: code generators of GPUs: libkiln-gpu.so: cannot open .*, nor is it at .*/libkiln-gpu.so$'"
check 'the CPU without them' sh -c "[ \"\$('$tmp/user/build/later')\" = 12 ]"
mv "$tmp/elsewhere.so" "$gpu"
check 'the first needs no shared library of Kiln or LLVM' sh -c "! ldd '$tmp/user/build/ahead' | grep -iE 'kiln|llvm'"
echo "$p passed, $f failed, $s skipped"
[ "$f" -eq 0 ]
