#!/bin/sh
# examples/char_gpt.c in a small size: it learns, and a run that was stopped, or killed at any moment, ends with the
# same bits as one that was not.
#
#   char_gpt.sh BUILD [KILLS]
#
# KILLS: how often the process is killed (10).
program=$(cd "$1" && pwd)/examples/char_gpt
kills=${2:-10}
root=$(cd "$(dirname "$0")/../.." && pwd)
tmp=$(mktemp -d)
trap 'rm -r "$tmp"' EXIT
passed=0 failed=0

# check WHAT COMMAND...: the command succeeds
check() {
    what=$1
    shift
    if "$@" >"$tmp/check" 2>&1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAIL char_gpt: $what"
        tail -n 15 "$tmp/check" "$tmp/out" | sed 's/^/    /'
    fi
}

cat "$root"/*.md "$root"/*/README.md >"$tmp/text"
# train FOLDER STEPS EVERY [OPTIONS]
train() {
    folder=$tmp/$1 steps=$2 every=$3
    shift 3
    "$program" --text "$tmp/text" --checkpoints "$folder" --layers 2 --width 32 --heads 2 --length 32 --batch 8 \
        --steps "$steps" --every "$every" --sample 0 --rate 0.01 --quiet "$@" >"$tmp/out" 2>&1
}
last() { ls "$tmp/$1"/char_gpt-*.safetensors | tail -n 1; }
# learned: the loss on text held out fell below that of single characters' frequencies
learned() { awk '/^step/ { loss = $7 } END { exit !(loss > 0.5 && loss < 2.9) }' "$tmp/out"; }
# refused WORDS OPTIONS...: it fails and says so
refused() {
    words=$1
    shift
    ! "$program" --quiet "$@" >"$tmp/out" 2>&1 && grep -q -- "$words" "$tmp/out"
}

# ---- it learns; stopped and gone on with ----
check "trains" train whole 300 50
check "learns" learned
check "stops" train parts 300 50 --until 100
check "stopped at the step asked for" grep -q '^step 100:' "$tmp/out"
check "goes on" train parts 300 50
check "goes on where it was" grep -q 'going on at step 100$' "$tmp/out"
check "the same bits" cmp "$(last whole)" "$(last parts)"
check "samples" "$program" --text "$tmp/text" --layers 2 --width 32 --heads 2 --length 32 --batch 8 --steps 20 \
    --every 20 --sample 32 --quiet

# ---- killed at any moment; each step writes a checkpoint, so that most of the time one is being written ----
# The run has no end that it could reach.  A kill waits until the run has gone on, and then some milliseconds, so that
# all of them hit a run that trains, however fast the machine is.
endless=1000000 n=0 alive=yes
checkpoints() { ls "$tmp/killed" 2>/dev/null | tail -n 1; }
while [ $n -lt "$kills" ] && [ -n "$alive" ]; do
    before=$(checkpoints)
    train killed $endless 1 &
    shell=$!
    while [ "$(checkpoints)" = "$before" ] && kill -0 $shell 2>/dev/null; do sleep 0.01; done
    sleep "$(awk -v n=$n 'BEGIN { srand(n); printf "%.3f", 0.05 * rand() }')"
    # the shell that runs the function has the program as its child
    pkill -KILL -P $shell 2>/dev/null || alive=
    wait $shell 2>/dev/null
    n=$((n + 1))
done
check "kill $n of $kills found no run" [ -n "$alive" ]
reached=$(last killed | sed 's/.*char_gpt-0*\([1-9][0-9]*\)\..*/\1/')
check "at least a step for each kill" [ "${reached:-0}" -ge "$kills" ]
check "goes on after it was killed" train killed $endless 1 --until $((reached + 1))
check "as many steps without a kill" train once $endless 1000 --until $((reached + 1))
check "the same bits at the end" cmp "$(last once)" "$(last killed)"

# ---- what it refuses ----
printf 'short' >"$tmp/short"
check "a text that is too short" refused 'too short' --text "$tmp/short"
check "no text" refused 'No such file' --text "$tmp/nothing"
check "an option that is none" refused 'usage: char_gpt' --what 3
check "a width that heads do not divide" refused 'no model: ' --text "$tmp/text" --width 33 --heads 2 --length 32
head -c 1000 "$(last whole)" >"$tmp/cut"
rm "$tmp"/whole/*
cp "$tmp/cut" "$tmp/whole/char_gpt-000000000300.safetensors"
check "a checkpoint that is cut off" refused "$tmp/whole" --text "$tmp/text" --checkpoints "$tmp/whole" --layers 2 \
    --width 32 --heads 2 --length 32 --batch 8

echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
