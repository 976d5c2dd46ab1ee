#!/bin/sh
# The driver itself (tests/run.sh): every way in which a suite can go wrong must make the run fail.
cd "$(dirname "$0")/.." || exit 1
scratch=$(mktemp -d)
trap 'rm -r "$scratch"' EXIT
export KILN_TEST_SCRATCH=$scratch
p=0
f=0

# expect STATUS LAST-LINE COMMAND: what the driver makes of a suite that is this one command.
expect() {
    echo "one - quick $3" >"$scratch/suites"
    out=$(KILN_TEST_SUITES=$scratch/suites bash tests/run.sh quick 2>&1)
    status=$?
    last=$(echo "$out" | tail -n 1)
    if [ "$status" -eq "$1" ] && [ "$last" = "$2" ]; then
        p=$((p + 1))
    else
        f=$((f + 1))
        printf 'FAIL "%s": status %s, "%s"; expected %s, "%s"\n%s\n' "$3" "$status" "$last" "$1" "$2" "$out"
    fi
}
expect 0 "3 passed, 0 failed, 0 skipped" "echo 3 passed, 0 failed, 0 skipped"
expect 1 "3 passed, 2 failed, 0 skipped" "echo 3 passed, 2 failed, 0 skipped; false"
expect 1 "3 passed, 2 failed, 0 skipped" "echo 3 passed, 2 failed, 0 skipped"
expect 1 "3 passed, 1 failed, 0 skipped" "echo 3 passed, 0 failed, 0 skipped; exit 9"
expect 1 "0 passed, 1 failed, 0 skipped" "echo 0 passed, 0 failed, 0 skipped"
expect 1 "0 passed, 1 failed, 0 skipped" "echo fine"
expect 1 "0 passed, 1 failed, 0 skipped" "tests/no_such_program"
expect 1 "0 passed, 1 failed, 0 skipped" "kill -SEGV \$\$"
expect 1 "3 passed, 1 failed, 1 skipped" "echo 3 passed, 0 failed, 1 skipped"
expect 1 "3 passed, 1 failed, 1 skipped" "echo SKIP unheard_of cpu: x; echo 3 passed, 0 failed, 1 skipped"

# Commands run side by side; what came of them is told in the table's order, and all of it is counted.
printf '%s\n' "a - quick sleep 0.3; echo 1 passed, 0 failed, 0 skipped" "a - quick echo 2 passed, 0 failed, 0 skipped" \
    "b - quick echo 4 passed, 1 failed, 0 skipped" >"$scratch/suites"
for jobs in 1 2 5; do
    order=$(KILN_TEST_JOBS=$jobs KILN_TEST_SUITES=$scratch/suites bash tests/run.sh quick 2>&1 |
        grep -o '0 skipped: [0-9]' | tr -dc '0-9')
    case $order in 010204) p=$((p + 1)) ;; *) f=$((f + 1)) &&
        echo "FAIL $jobs at a time: told as $order, not 010204" ;; esac
done

# The last lines of a run name what failed, with the lines that say why.
printf '%s\n' "a - quick echo FAIL here; seq 99; echo 1 passed, 1 failed, 0 skipped" \
    "b - quick echo fine; kill -SEGV \$\$" "c - quick echo 2 passed, 0 failed, 0 skipped" >"$scratch/suites"
KILN_TEST_SUITES=$scratch/suites bash tests/run.sh quick 2>&1 | tail -n 7 >"$scratch/end"
for line in '^FAIL 1 of a: echo FAIL here' '^FAIL here$' '^FAIL 1 of b, no result (exit status 139): echo fine' \
    '^fine$' '^3 passed, 2 failed, 0 skipped$'; do
    if grep -q -- "$line" "$scratch/end"; then p=$((p + 1)); else
        f=$((f + 1))
        echo "FAIL the end of a run that failed lacks $line:" && cat "$scratch/end"
    fi
done

# Which lines a run chooses; choosing none is a failure, an unknown suite an error, and so is --gpu without a GPU.
echo "two - all echo 1 passed, 0 failed, 0 skipped" >"$scratch/suites"
echo "three - gpu echo 1 passed, 0 failed, 0 skipped" >>"$scratch/suites"
for run in quick:1 full:1 all:0 two:0 four:2 --gpu:0; do
    KILN_TEST_SUITES=$scratch/suites bash tests/run.sh "${run%:*}" >/dev/null 2>&1
    status=$?
    if [ "$status" -eq "${run#*:}" ]; then
        p=$((p + 1))
    else
        f=$((f + 1))
        echo "FAIL ./run test ${run%:*}: exit status $status, not ${run#*:}"
    fi
done
printf '%s\n' "three - gpu printf 'SKIP no-device cuda: none\n0 passed, 0 failed, 1 skipped\n'" >"$scratch/suites"
echo "three - gpu echo SKIP no-device hip: no /dev/kfd; echo 5 passed, 0 failed, 1 skipped" >>"$scratch/suites"
if KILN_TEST_SUITES=$scratch/suites bash tests/run.sh --gpu >"$scratch/gpu.log" 2>&1; then f=$((f + 1)) &&
    echo "FAIL --gpu passes without a GPU"; else p=$((p + 1)); fi
for line in '^skipped: no-device cuda: none$' '^skipped: no-device hip: no /dev/kfd$' '^FAIL no GPU was tested$' \
    '^5 passed, 1 failed, 2 skipped$'; do
    if grep -q -- "$line" "$scratch/gpu.log"; then p=$((p + 1)); else
        f=$((f + 1))
        echo "FAIL --gpu without a GPU lacks $line:" && cat "$scratch/gpu.log"
    fi
done
echo "three - gpu echo 5 passed, 0 failed, 0 skipped" >>"$scratch/suites"
if KILN_TEST_SUITES=$scratch/suites bash tests/run.sh --gpu >/dev/null 2>&1; then p=$((p + 1)); else
    f=$((f + 1)) && echo "FAIL --gpu with one of two GPUs"; fi
# A command that never ends is ended: one that loops by its processor time, one that waits because it uses none, with
# all that it has started.  Limits of the whole run are of processor time: one that only waits is within them.
limited() { # NAME VARIABLE=VALUE.. -- PATTERN COMMAND
    name=$1
    shift
    vars=
    while [ "$1" != -- ]; do vars="$vars $1" && shift; done
    echo "one - quick $3" >"$scratch/suites"
    # shellcheck disable=SC2086
    out=$(env $vars KILN_TEST_SUITES="$scratch/suites" bash tests/run.sh quick 2>&1)
    if echo "$out" | grep -qE "$2"; then p=$((p + 1)); else f=$((f + 1)) && printf 'FAIL %s: %s\n' "$name" "$out"; fi
}
limited 'a loop' KILN_TEST_COMMAND=1 -- 'ended, since it had used 1 s of processor time' 'while :; do :; done'
limited 'a loop of a child' KILN_TEST_COMMAND=1 -- 'ended, since it had used 1 s' 'sh -c "while :; do :; done" & wait'
limited 'a wait' KILN_TEST_IDLE=2 -- 'ended, since it had used no processor time for 2 s' 'sleep 1000 & wait'
if pgrep -f '^sleep 1000$' >/dev/null; then f=$((f + 1)) && echo "FAIL what a command started is left"
else p=$((p + 1)); fi
# one that began after the look at all processes, of which nothing is known yet, is left alone
mkdir "$scratch/watched"
bash tests/watch.sh "$scratch/watched" 100 1 >/dev/null 2>&1 &
watcher=$!
sleep 3
echo 99999999 >"$scratch/watched/new.pid"
sleep 3
kill "$watcher"
if [ -e "$scratch/watched/new.why" ]; then f=$((f + 1)) && echo "FAIL what has just begun is ended"
else p=$((p + 1)); fi
limited 'too much work' KILN_TEST_TOTAL=0 -- '^FAIL the commands took more than 0 s of processor time' \
    'i=0; while [ $i -lt 100000 ]; do i=$((i + 1)); done; echo 1 passed, 0 failed, 0 skipped'
limited 'much time and no work' KILN_TEST_TOTAL=1 -- '^1 passed, 0 failed, 0 skipped' \
    'sleep 2; echo 1 passed, 0 failed, 0 skipped'
# A line of the table that says less than it has to is an error, whatever is chosen, and builds nothing.
printf '%s\n' "one - quick echo 1 passed, 0 failed, 0 skipped" "'" >"$scratch/suites"
KILN_TEST_SUITES=$scratch/suites bash tests/run.sh quick >/dev/null 2>&1
if [ $? -eq 2 ]; then p=$((p + 1)); else f=$((f + 1)) && echo "FAIL a line of one word passes"; fi
echo "$p passed, $f failed, 0 skipped"
[ "$f" -eq 0 ]
