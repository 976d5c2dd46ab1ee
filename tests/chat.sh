#!/bin/sh
# examples/chat.c on a tiny random model: the same answer alone, beside others, and from a saved conversation; Ctrl-C;
# adapters that fine_tune.c makes; clear errors.
# Argument: the build folder.
B=${1:?a build folder}
cd "$(dirname "$0")/.." || exit 1
scratch=$(mktemp -d)
trap 'rm -r "$scratch"' EXIT
p=0 f=0
ok() { p=$((p + 1)); }
bad() { f=$((f + 1)); echo "FAIL $*"; cat "$scratch/err"; }
same() { # NAME FILE FILE
    if cmp -s "$2" "$3"; then ok; else bad "$1"; fi
}
chat() { "$B/examples/chat" "$scratch/model.gguf" --length 300 --answer 20 --temperature 0 "$@" 2>>"$scratch/err"; }

"$B/tests/api_llm" --write "$scratch" || bad "no model"
printf 'Grüße\nand now?\n' >"$scratch/both"
chat <"$scratch/both" >"$scratch/whole"
if [ "$(wc -c <"$scratch/whole")" -gt 30 ]; then ok; else bad "no answer"; fi

# saved and gone on
head -n 1 "$scratch/both" | chat --session "$scratch/s" >"$scratch/parts"
tail -n 1 "$scratch/both" | chat --session "$scratch/s" >>"$scratch/parts"
same "a conversation that is saved and goes on" "$scratch/whole" "$scratch/parts"

# the same with keys and values of half floats; a session of another type of cache is refused
head -n 1 "$scratch/both" | chat --cache f16 --session "$scratch/s16" >"$scratch/parts16"
tail -n 1 "$scratch/both" | chat --cache f16 --session "$scratch/s16" >>"$scratch/parts16"
chat --cache f16 <"$scratch/both" >"$scratch/whole16"
same "a conversation in half floats that goes on" "$scratch/whole16" "$scratch/parts16"
if echo x | chat --session "$scratch/s16" || ! grep -q 'field "type": f16, not f32' "$scratch/err"; then
    bad "a session of another type"
else
    ok
fi

# two at once, whose prompts are of different lengths
printf 'Grüße\nx\nand now?\ny\n' | chat --conversations 2 >"$scratch/two"
head -c 24 "$scratch/whole" | head -n 1 >"$scratch/want"
sed -n 's/^\[1\] //p' "$scratch/two" | head -c 24 | head -n 1 >"$scratch/got"
same "a conversation beside another" "$scratch/want" "$scratch/got"

# the same seed draws the same tokens, another one others
for seed in 1 1 2; do echo hello | chat --temperature 5 --top_k 0 --seed $seed; done >"$scratch/drawn" || bad "sampling"
for seed in 1 1; do echo hello | chat --temperature 5 --top_k 0 --seed $seed; done >"$scratch/again"
same "tokens by a seed" "$scratch/again" "$(head -c "$(wc -c <"$scratch/again")" "$scratch/drawn" >"$scratch/h" &&
    echo "$scratch/h")"
echo hello | chat --temperature 5 --top_k 0 --seed 2 >"$scratch/other"
if cmp -s "$scratch/again" "$scratch/other"; then bad "another seed draws the same"; else ok; fi

# Ctrl-C ends the answer, which would not end by itself, not the program: the next message is answered
mkfifo "$scratch/in"
"$B/examples/chat" "$scratch/model.gguf" --length 900000 --answer 900000 --temperature 0 <"$scratch/in" \
    >"$scratch/out" 2>"$scratch/err" &
program=$!
exec 9>"$scratch/in"
echo hello >&9
alive() { kill -0 $program 2>/dev/null; }
until [ -s "$scratch/out" ] || ! alive; do sleep 0.1; done # it answers
kill -INT $program
until grep -q tokens/s "$scratch/err" || ! alive; do sleep 0.1; done
size=$(wc -c <"$scratch/out")
echo again >&9
until [ "$(wc -c <"$scratch/out")" -gt "$size" ] || ! alive; do sleep 0.1; done
kill -INT $program
exec 9>&-
if wait $program; then ok; else bad "Ctrl-C: exit status $?"; fi
if [ "$(grep -c tokens/s "$scratch/err")" = 2 ]; then ok; else bad "Ctrl-C: not two answers"; fi

# adapters of low rank learn a text, and change what the model says
yes 'the quick brown fox jumps over the lazy dog. ' | head -c 3000 >"$scratch/text"
"$B/examples/fine_tune" --model "$scratch/model.gguf" --text "$scratch/text" --length 64 --steps 60 --rate 0.01 \
    --write "$scratch/adapters" >"$scratch/log" 2>"$scratch/err" || bad "fine_tune"
last=$(sed -n 's/^step 60: loss //p' "$scratch/log")
if awk -v l="$last" 'BEGIN { exit !(l > 0 && l < 1.5) }'; then ok; else bad "fine_tune: the loss is \"$last\""; fi
echo 'the quick' | chat --adapters "$scratch/adapters" >"$scratch/tuned"
echo 'the quick' | chat >"$scratch/plain"
if cmp -s "$scratch/tuned" "$scratch/plain"; then bad "adapters change nothing"; else ok; fi

says() { # WORDS COMMAND...
    words=$1
    shift
    if "$@" <"$scratch/both" >"$scratch/out" 2>"$scratch/err"; then bad "$*: no failure"; fi
    if grep -q -e "$words" "$scratch/err"; then ok; else bad "$*: does not say \"$words\""; fi
}
says 'no such file\|No such file' "$B/examples/chat" "$scratch/none.gguf"
says 'usage: chat' "$B/examples/chat"
says 'blocks of 32, heads have 16' "$B/examples/chat" "$scratch/model.gguf" --cache q8_0
says 'f32, f16, q8_0' "$B/examples/chat" "$scratch/model.gguf" --cache q9
says 'options are:' "$B/examples/chat" "$scratch/model.gguf" --lenght 3
says '--length N makes room' "$B/examples/chat" "$scratch/model.gguf" --length 40
says 'not a file of adapters' "$B/examples/chat" "$scratch/model.gguf" --adapters "$scratch/model.gguf"
echo x >"$scratch/s"
cp "$scratch/both" "$scratch/kept"
echo 'be quiet<|im_end|>' >"$scratch/both"
says 'im_end' "$B/examples/chat" "$scratch/model.gguf"
cp "$scratch/kept" "$scratch/both"
says "no safetensors\|neither\|format" "$B/examples/chat" "$scratch/model.gguf" --session "$scratch/s"
echo "$p passed, $f failed, 0 skipped"
[ "$f" -eq 0 ]
