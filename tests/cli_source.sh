#!/bin/sh
# kiln dump --stage source: the names of arrays in the source of a GPU's kernels.
#
#   cli_source.sh BUILD
kiln=$1/kiln
tests=$(dirname "$0")
. "$tests/cli_check.sh"

# Two layers with equal kernels, of parameters w0 and w1, and their update.
layers() { # NAME OF THE FIRST, OF THE SECOND
    cat <<END_OF_GRAPH
graph @layers {
  %x = input 0 "x" : f32[96,96]
  %w0 = state 0 "$1" : f32[96,96]
  %w1 = state 1 "$2" : f32[96,96]
  %a = dot %x, %w0 contract(1; 0) : f32[96,96]
  %b = tanh %a : f32[96,96]
  %c = dot %b, %w1 contract(1; 0) : f32[96,96]
  %d = tanh %c : f32[96,96]
  %s = sum %d axes(0, 1) : f32[1,1]
  %e = expand %s : f32[96,96]
  %u = sub %w0, %e : f32[96,96]
  assign 0 = %u
  return %d "logits"
}
END_OF_GRAPH
}
layers h.0.up.weight h.1.up.weight >"$tmp/layers.kir"
layers h.0.up.weight h.0.gate.weight >"$tmp/parts.kir"
layers Q.0 'float' >"$tmp/apart.kir"
layers '__2 x..\"' '' >"$tmp/odd.kir"

plain() { sed -e 's/\b\(b\|work\)\([0-9][0-9]*\)_[A-Za-z0-9_]*/\1\2/g' "$1"; } # without the names
for target in cuda cuda:sm_90a hip vulkan; do
    check "one kernel for both layers ($target)" 0 '\bb[0-9]*_h_up_weight\b' \
        "$kiln" dump "$tmp/layers.kir" --stage source --target $target
    cp "$tmp/out" "$tmp/layers"
    check "a result of both, which differ ($target)" 0 '^//   b[0-9]*: out f32\[9216\]$' cat "$tmp/layers"
    check "the next value of a parameter ($target)" 0 'b[0-9]*_h_0_up_weight_next: out f32\[9216\]' cat "$tmp/layers"
    check "its schedule ($target)" 0 '^// schedule dot_' cat "$tmp/layers"
    check "what differs between the layers has no name ($target)" 0 '^1$' grep -c '^//   b[0-9]*: in' "$tmp/layers"
    check "what two of a layer have in common ($target)" 0 '\bb[0-9]*_h_0_weight\b' \
        "$kiln" dump "$tmp/parts.kir" --stage source --target $target
    cp "$tmp/out" "$tmp/parts"
    "$kiln" dump "$tmp/apart.kir" --stage source --target $target >"$tmp/apart"
    check "nothing in common ($target)" 0 '^2$' grep -c '^//   b[0-9]*: in' "$tmp/apart"
    check "a name that is no word ($target)" 0 '\bb[0-9]*_2_x_next\b' \
        "$kiln" dump "$tmp/odd.kir" --stage source --target $target
    cp "$tmp/out" "$tmp/odd"
    plain "$tmp/layers" >"$tmp/one"
    for other in parts apart odd; do
        plain "$tmp/$other" >"$tmp/two"
        check "names change nothing else: $other ($target)" 0 '^same$' sh -c "cmp '$tmp/one' '$tmp/two' && echo same"
    done
done
check 'memory of a kernel' 0 '^//   b[0-9]*_shared: shared f32\[' "$kiln" dump "$tmp/layers.kir" --stage source \
    --target cuda:sm_90a

echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
