#!/bin/sh
# `kiln explain` and `kiln dispatch`: golden texts, on ref, whose output no machine changes. Argument: the build
# folder.
kiln=$1/kiln
tmp=$(mktemp -d)
trap 'rm -r "$tmp"' EXIT
passed=0 failed=0

# same NAME: the command's output in $tmp/out is the text on standard input
same() {
    cat >"$tmp/want"
    if diff "$tmp/want" "$tmp/out" >"$tmp/diff"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAIL $1:"
        cat "$tmp/diff"
    fi
}
# refused NAME PATTERN COMMAND...
refused() {
    name=$1 pattern=$2
    shift 2
    if "$@" >"$tmp/out" 2>&1 || ! grep -qe "$pattern" "$tmp/out"; then
        failed=$((failed + 1))
        echo "FAIL $name: $(cat "$tmp/out")"
    else
        passed=$((passed + 1))
    fi
}

"$kiln" explain add 'f32[2,3]' 'f32[3]' --device ref | grep -v 'graph node \[default' |
    grep -v -e ': missing$' -e '\[layer kernel\]$' >"$tmp/out"
same add <<'TEXT'
op: add
keys: {AutogradOther, BackendSelect, Ref}
schema: add(Tensor a, Tensor b) -> Tensor
resolved: Ref, kernel "graph node"
table:
BackendSelect: fallthrough registered in Kiln [backend fallback]
AutogradOther: fallthrough registered in Kiln [backend fallback]
AutogradCPU: fallthrough registered in Kiln [backend fallback]
AutogradCUDA: fallthrough registered in Kiln [backend fallback]
AutogradXLA: fallthrough registered in Kiln [backend fallback]
AutogradNestedTensor: fallthrough registered in Kiln [backend fallback]
AutogradXPU: fallthrough registered in Kiln [backend fallback]
Autocast: fallthrough registered in Kiln [backend fallback]
dispatched:
[call] op=[add], key=[Ref]
recorded:
graph @add {
  %1 = input 0 : f32[2,3]
  %2 = input 1 : f32[3]
  %3 = reshape %2 : f32[1,3]
  %4 = expand %3 : f32[2,3]
  %5 = add %1, %4 : f32[2,3]
  return %5
}
fused:
graph @add {
  %1 = input 0 : f32[2,3]
  %2 = input 1 : f32[3]
  %3 = reshape %2 : f32[1,3]
  %4 = expand %3 : f32[2,3]
  %5 = add %1, %4 : f32[2,3] group 0
  return %5
}
TEXT

"$kiln" explain relu --device ref --target cuda | sed -n '1,/^fused/p' >"$tmp/out"
same relu <<'TEXT'
op: relu
keys: {AutogradOther, BackendSelect, Ref}
dispatched:
[call] op=[const], key=[BackendSelect]
[call] op=[const], key=[Ref]
[call] op=[le], key=[Ref]
[call] op=[where], key=[Ref]
recorded:
graph @relu {
  %1 = input 0 : f32[4]
  %2 = const 0.0 : f32[]
  %3 = reshape %2 : f32[1]
  %4 = expand %3 : f32[4]
  %5 = le %1, %4 : bool[4]
  %6 = reshape %2 : f32[1]
  %7 = expand %6 : f32[4]
  %8 = where %5, %7, %1 : f32[4]
  return %8
}
fused:
TEXT

"$kiln" explain exp --device ref --target cuda | sed -n '/^kernels/,$p' |
    grep -cE '^kernels:|^kernel @k0_exp|^source:|__global__' >"$tmp/out"
echo 4 | same 'kernels and source'

"$kiln" dispatch neg | head -n 9 >"$tmp/out"
same dump <<'TEXT'
name: neg
schema: neg(Tensor a) -> Tensor
debug: registered in Kiln
alias analysis kind: PURE_FUNCTION
DefaultBackend[alias]: graph node :: (Tensor a) -> Tensor [ boxed unboxed ]
table:
Undefined: graph node [default backend kernel]
Ref: graph node [default backend kernel]
CPU: graph node [default backend kernel]
TEXT

"$kiln" dispatch | sed -n '1,3p;19,21p;35,38p;58,$p' >"$tmp/out"
same keys <<'TEXT'
key                          backend    autograd   components
Ref                          yes        Other      {Ref}
CPU                          yes        CPU        {CPU}
Sparse                       yes        Other      {Sparse}
SparseCPU                    yes        Other      {SparseCPU, CPU}
SparseCUDA                   yes        Other      {SparseCUDA, CUDA}
BackendSelect                no         -          {BackendSelect}
Named                        no         -          {Named}
AutogradOther                no         -          {AutogradOther}
AutogradCPU                  no         -          {AutogradCPU, CPU}
User5                        no         -          {User5}
Autograd                     alias
Math                         alias
DefaultBackend               alias
TEXT

refused 'no such op' "no op is called 'nothing'" "$kiln" dispatch nothing
refused 'cannot be called' "'dot' is no op that can be called with tensors alone" "$kiln" explain dot
refused 'bad type' "'f32(2)' is no type" "$kiln" explain neg 'f32(2)'
refused 'operands' 'neg takes 1 operand, not 2' "$kiln" explain neg 'f32[2]' 'f32[2]'
refused 'shapes' 'shapes \[2\] and \[3\] do not broadcast' "$kiln" explain add 'f32[2]' 'f32[3]'
refused 'nothing' 'explain needs an op' "$kiln" explain
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
