#!/bin/sh
# What the `kiln` command does with variables of the environment: the log that they ask for, values that mean nothing.
#
#   environment.sh BUILD
kiln=$1/kiln
. "$(dirname "$0")/cli_check.sh"

# ---- the log ----
npy "$tmp/three.npy" 3, "$one$two$one"
logged() { # logged SETTING: a graph is run that no cache has
    env KILN_LOG="$1" KILN_CACHE_DIR=none "$kiln" run "$tmp/sum.kir" --device cpu --input x="$tmp/three.npy"
}
check 'a log' 0 '^kiln: debug: kernel ' logged debug
check 'a log of less' 0 '^kiln: info: ' logged info
cp "$tmp/out" "$tmp/before"
check 'no kernels in it' 1 '^0$' grep -c 'kiln: debug' "$tmp/before"
check 'a log in a file' 0 '' logged "debug:$tmp/log"
cp "$tmp/out" "$tmp/before"
check 'nothing of it on stderr' 1 '^0$' grep -c 'kiln: ' "$tmp/before"
check 'kernels in it' 0 '^kiln: debug: kernel ' cat "$tmp/log"
check 'a second process writes behind' 0 '' logged "info:$tmp/log"
check 'both are there' 0 '^2$' grep -c '^kiln: info: ' "$tmp/log"
check 'no level' 0 'KILN_LOG=loud: it is not LEVEL or LEVEL:FILE' logged loud
check 'no file of a log' 0 'KILN_LOG=warn:/nowhere/log: the file cannot be written: No such' logged warn:/nowhere/log

# ---- values that mean nothing ----
check 'no number of threads' 0 'kiln: KILN_THREADS=abc: it is not a number from 1 to' env KILN_THREADS=abc "$kiln" \
    ops add
check 'an unknown stage' 0 'kiln: KILN_DUMP=captured,nostage: "nostage" is neither a stage' \
    env KILN_DUMP=captured,nostage "$kiln" ops add
check 'a folder that cannot be made' 0 'kiln: KILN_DUMP_DIR=/nowhere/at/all: there is no such folder' \
    env KILN_DUMP_DIR=/nowhere/at/all "$kiln" ops add
check 'no switch' 0 'kiln: KILN_FUSE=yes: it is neither 0 nor 1' env KILN_FUSE=yes "$kiln" ops add
check 'a check that is none' 0 'kiln: KILN_CHECK=1,none: "none" is none of' env KILN_CHECK=1,none "$kiln" ops add
check 'schedules that are not there' 0 'kiln: KILN_SCHEDULES=/nowhere: cannot open /nowhere: No such file' \
    env KILN_SCHEDULES=/nowhere "$kiln" ops add
check 'a misspelt variable' 0 'kiln: KILN_THREAD is no variable that Kiln reads' env KILN_THREAD=2 "$kiln" ops add

echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
