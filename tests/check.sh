#!/bin/sh
# kiln check: graphs that agree, a kernel that is wrong, its node, the small graph that shows it, and bad arguments.
# The wrong kernels are those of device wrong (tests/seeds/plugin_device.c): it changes the sign of the first result of
# a kernel that divides and takes a square root, which only a fused kernel does.
#
#   check.sh BUILD
B=$(cd "$1" && pwd)
cd "$(dirname "$0")/.." || exit 1
kiln=$B/kiln
scratch=$(mktemp -d)
trap 'rm -r "$scratch"' EXIT
export KILN_PLUGINS=$B/tests/plugin_wrong.so
p=0
f=0
# check NAME CODE PATTERN COMMAND..: the exit code, and a line of the output that fits the pattern
check() {
    name=$1 code=$2 pattern=$3
    shift 3
    "$@" >"$scratch/out" 2>&1
    got=$?
    if [ "$got" -eq "$code" ] && grep -qe "$pattern" "$scratch/out"; then
        p=$((p + 1))
    else
        f=$((f + 1))
        echo "FAIL $name: exit $got, expected $code and '$pattern' in:"
        cat "$scratch/out"
    fi
}

cat >"$scratch/model.kir" <<'END'
graph @model {
  %x = input 0 "x" : f32[7,33]
  %y = input 1 "y" : f32[7,33]
  %s = mul %x, %x : f32[7,33]
  %m = sum %s axes(1) : f32[7,1]
  %b = expand %m : f32[7,33]
  %a = abs %y : f32[7,33]
  %q = sqrt %a : f32[7,33] # model.c:31
  %e = exp %x : f32[7,33]
  %d = div %e, %q : f32[7,33] # model.c:32
  %r = add %d, %b : f32[7,33]
  %t = tanh %r : f32[7,33]
  %yt = permute %y perm(1, 0) : f32[33,7]
  %u = dot %t, %yt batch( ; ) contract(1 ; 0) : f32[7,7]
  %n = neg %x : f32[7,33]
  return %n "sign"
  return %u "logits"
}
END
check 'a graph that agrees' 0 'cpu fused: the same bits as interpreted' "$kiln" check "$scratch/model.kir" --device cpu
check 'unfused, too' 0 'cpu unfused: the same bits as interpreted' "$kiln" check "$scratch/model.kir" --device cpu
cd "$scratch" || exit 1
check 'a fused kernel is wrong' 1 'wrong:0 fused: output 1 logits differs: element 0 is' \
    "$kiln" check model.kir --device wrong
check 'unfused kernels are right' 1 'wrong:0 unfused: as interpreted' "$kiln" check model.kir --device wrong
check 'its kernel' 1 'first in kernel k[0-9]*_[a-z_]*sqrt[a-z_]*div[a-z_]*, of node' \
    "$kiln" check model.kir --device wrong
check 'its first wrong node' 1 '= tanh %' "$kiln" check model.kir --device wrong
check 'the small graph' 1 '^5 of 14 nodes show it: kiln check model.check.kir --device wrong:0$' \
    "$kiln" check model.kir --device wrong
check 'the small graph has both ops' 0 'div' cat model.check.kir
check 'and the other one' 0 'sqrt' cat model.check.kir
check 'lines of the user stay' 0 'model.c:32' cat model.check.kir
check 'the small graph fails alone' 1 'wrong:0 fused: output 0 differs' \
    "$kiln" check model.check.kir --device wrong -o again.kir
check 'and is right elsewhere' 0 'cpu fused: the same bits' "$kiln" check model.check.kir --device cpu
check 'no time: the graph as it is' 1 '^11 of 14 nodes show it: kiln check slow.kir' \
    "$kiln" check model.kir --device wrong --seconds 0 -o slow.kir

# Device wrong changes the first result of a kernel that rounds and takes a square root only where that is above 100:
# made-up values do not show it, so the given ones are kept beside the small graph.
cat >"$scratch/large.kir" <<'END'
graph @large {
  %x = input 0 "x" : f32[3]
  %h = input 1 "h" : bf16[3]
  %w = cast %h : f32[3]
  %z = add %x, %w : f32[3]
  %f = floor %z : f32[3]
  %q = sqrt %f : f32[3]
  %y = mul %q, %q : f32[3]
  return %y
}
END
printf 'graph @g {\n  %%c = const 90000.0 : f32[]\n  %%e = expand %%c : f32[3]\n  return %%e\n}\n' >ones.kir
"$kiln" run ones.kir --output 0=x.npy --device ref
check 'values that are made up do not show it' 0 'wrong:0 fused: as interpreted' "$kiln" check large.kir --device wrong
files='large.check.kir --input 0=large.check.kir.input0.npy'
check 'values that are given do' 1 "show it: kiln check $files" \
    "$kiln" check large.kir --device wrong --input x=x.npy
sh -c "$(sed -n 's/^# kiln/"$0"/p' large.check.kir)" "$kiln" >again.out
check 'and show it again from their files' 0 'wrong:0 fused: output 0 differs' cat again.out

check 'a tolerance' 0 'wrong:0 fused: as interpreted, within the tolerance' \
    "$kiln" check model.kir --device wrong --tolerance 100
check 'the tolerance of the small graph' 1 'nodes show it: kiln check t.kir --tolerance 0 --device wrong:0$' \
    "$kiln" check model.kir --device wrong --tolerance 0 --seconds 0 -o t.kir
check 'no tolerance below 0' 2 "tolerance: '-1' is no number from 0 on" "$kiln" check model.kir --tolerance -1
check 'no file' 2 'check needs a file' "$kiln" check
check 'a file that is none' 2 'none.kir: No such file' "$kiln" check none.kir
check 'an option that is none' 2 'unknown option --fast' "$kiln" check model.kir --fast
check 'an array of another shape' 2 'holds f32\[3\] where' "$kiln" check model.kir --input x=x.npy
check 'a place that cannot be written' 2 'cannot be written' \
    "$kiln" check model.kir --device wrong -o /none/small.kir
check 'help of one command' 0 'kiln check FILE' "$kiln" check --help
check 'the same' 0 'kiln check FILE' "$kiln" help check
check 'the version' 0 '^kiln [0-9]*\.[0-9]*\.[0-9]*$' "$kiln" --version
echo "$p passed, $f failed, 0 skipped"
[ "$f" -eq 0 ]
