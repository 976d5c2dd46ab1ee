#!/usr/bin/env bash
# Runs the suites of tests/suites.def (./run test [quick|all|--gpu|SUITE ...]), one command more at a time than
# there are cores, and prints, in the table's order, what came of each and as its last line the sum: "P passed, F
# failed, S skipped". A command that cannot be built, crashes, runs too long, prints no such line or skips for a reason
# that tests/skips.def does not allow counts as a failure.
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
table=${KILN_TEST_SUITES:-tests/suites.def}     # tests/driver.sh sets both
scratch=${KILN_TEST_SCRATCH:-$PWD/build}
# Limits are of processor time, and that of the whole run, without arguments or with `quick`, grows with what a loop of
# this shell takes here: how fast a machine is, or what else it does, decides nothing.
limit_total=${KILN_TEST_TOTAL:-3000}         # seconds for all commands
limit_command=${KILN_TEST_COMMAND:-3600}     # seconds for one of them
limit_idle=${KILN_TEST_IDLE:-900}            # seconds of a clock in which a command uses no processor time at all
usual_pace=600                               # milliseconds for the loop where the limit was chosen
jobs=${KILN_TEST_JOBS:-$(($(nproc) + 1))}    # one more than cores, since some commands wait
logs=$scratch/test-logs
mkdir -p "$logs"
export KILN_CACHE_DIR=$scratch/test-cache MESA_SHADER_CACHE_DIR=$scratch/test-cache/mesa
export KILN_TEST_COMPILED=$scratch/test-compiled # by tests/gpu/fake/fake_compiler.c
# Mesa's device on the CPU runs a shader about once: LLVM's optimising of it costs more than that.
export GALLIVM_PERF=nopt
# Tests ask for more memory than there is, to see the error: the sanitizers' allocators must return NULL too.
# gcc's leak checker crashes on the thread-local data of libraries opened late unless it leaves that alone.
# A quarter less time than with the defaults: freed memory of 16 MB, not 256, is kept from reuse, and 8 callers are kept
# of an allocation, not 30.
export ASAN_OPTIONS=allocator_may_return_null=1:intercept_tls_get_addr=0:quarantine_size_mb=16:malloc_context_size=8
export LSAN_OPTIONS=suppressions=$PWD/tests/lsan.supp:print_suppressions=0
export TSAN_OPTIONS=allocator_may_return_null=1:suppressions=$PWD/tests/tsan.supp
export UBSAN_OPTIONS=print_stacktrace=1
# ThreadSanitizer may be unable to start where the kernel randomizes addresses by more bits than it knows.
fixed_addresses=
if setarch -R true 2>/dev/null; then fixed_addresses='setarch -R'; fi
unset KILN_DEVICE KILN_CODEGEN KILN_THREADS KILN_FUSE KILN_DUMP KILN_DUMP_DIR KILN_PROFILE KILN_LOG
export KILN_CHECK=1
rm -rf "$KILN_CACHE_DIR" "$KILN_TEST_COMPILED"
mkdir -p "$MESA_SHADER_CACHE_DIR" "$KILN_TEST_COMPILED"

# ./run test seeds --break ROW ...: the row's mechanism is off, its test has to fail.
if [ "${1:-}" = seeds ] && [ "${2:-}" = --break ]; then
    shift 2
    [ $# -gt 0 ] || { echo "--break needs a row of tests/breaks.def" >&2 && exit 2; }
    exec sh tests/breaks.sh build "$@"
fi

if short=$(awk '!/^#/ && NF && NF < 4' "$table") && [ -n "$short" ]; then
    printf '%s: a line without suite, build, when or command: %s\n' "$table" "$short" >&2
    exit 2
fi
suites=$(awk '!/^#/ && NF { print $1 }' "$table" | uniq)
wanted=" ${*:-full} "
known=" quick full all --gpu "$(echo $suites)" "
for w in $wanted; do
    if [[ $known != *" $w "* ]]; then
        echo "no suite \"$w\"; there are: quick all --gpu $(echo $suites)" >&2
        exit 2
    fi
done

# chosen SUITE WHEN: whether a line of the table is part of this run.
chosen() {
    case "$wanted" in *" $1 "*) return 0 ;; esac
    case "$2" in
    quick) [[ $wanted == *" quick "* || $wanted == *" full "* || $wanted == *" all "* ]] ;;
    full) [[ $wanted == *" full "* || $wanted == *" all "* ]] ;;
    all) [[ $wanted == *" all "* ]] ;;
    gpu) [[ $wanted == *" --gpu "* ]] ;;
    *) false ;;
    esac
}

# skips_allowed LOG COUNT: each skip gives a listed reason, no more often than listed, and none is silent.
skips_allowed() {
    awk -v count="$2" '
        FNR == NR { if ($0 !~ /^#/ && NF >= 4) most[$1 " " $2] = $3; next }
        /^SKIP / { sub(/:$/, "", $3); n[$2 " " $3]++; total++ }
        END {
            for (r in n)
                if (n[r] > most[r] + 0) { print "skips not allowed by tests/skips.def: " r ", " n[r] " times"; bad = 1 }
            if (total + 0 != count) { print count " skips counted, " total + 0 " explained"; bad = 1 }
            exit bad
        }' tests/skips.def "$1"
}

now() { echo "${EPOCHREALTIME/[.,]/}"; }
seconds() { printf '%d.%d' $((($2 - $1) / 1000000)) $((($2 - $1) / 100000 % 10)); }

# What runs in the background would go on: commands are sessions of their own.
end_all() {
    local file
    for file in "$logs"/*.pid; do [ ! -s "$file" ] || pkill -KILL -s "$(cat "$file")"; done
    kill 0
}
trap 'trap - INT TERM; end_all' INT TERM
passed=0 failed=0 skipped=0 started=$(now)
failed_logs=() failed_commands=() # of what failed
whole=0                           # commands that skipped nothing
suites_of=() presets=() commands=() logs_of=() # of the chosen lines
suite_of= suite_time=0 next=0 running=0 processor_time=0
declare -A built

# targets PRESET: the targets that the chosen lines need of it. The build by GCC, release, is whole for the sake of its
# warnings, as is clang: no target stands for all. clang_warnings.sh checks what clang's build with sanitizers leaves
# out.
targets() {
    local suite preset when command word
    case $1 in
    release | clang | fuzz) return ;;
    aarch64) echo kiln_cli examples test_modules ;; # what its commands run, no more: it is built beside others
    *) echo kiln_cli kiln-aot examples test_modules ;;
    esac
    while read -r suite preset when command; do
        [ "$preset" = "$1" ] && chosen "$suite" "$when" || continue
        for word in $command; do
            case $word in \$B/tests/*.so) ;; \$B/tests/*) echo "tests_${word##*/}" ;; esac
        done
    done <"$table" | sort -u
}

# What a build for AArch64 needs beside this machine's own.
cross_packages() {
    command -v aarch64-linux-gnu-gcc && command -v qemu-aarch64 && sh tests/sysroot.sh build/aarch64-sysroot
}

# build PRESET: once; a warning is a failure.
build() {
    local t log=$logs/build-$1.log
    t=$(now)
    if [ "$1" = aarch64 ] && ! cross_packages >"$log" 2>&1; then
        built[$1]=skipped
        return
    fi
    if ./run build "$1" $(targets "$1") >"$log" 2>&1; then built[$1]=yes; else built[$1]=no; fi
    printf 'build %s: %s s\n' "$1" "$(seconds "$t" "$(now)")"
    [ "${built[$1]}" = yes ] || cat "$log"
    if grep -q 'warning:' "build/build-$1.log" 2>/dev/null; then
        grep -A3 'warning:' "build/build-$1.log" | head -n 40
        echo "build $1 has warnings"
        failed=$((failed + 1))
    fi
}

# milliseconds_of FILE LINE: of the output of `times`, whose first line is the shell's own, the second its children's.
milliseconds_of() {
    awk -v line="$2" 'NR == line {
        split($1 "m" $2, t, "[ms]+"); printf "%d", 6e4 * (t[1] + t[3]) + 1e3 * (t[2] + t[4]) }' "$1"
}

# run_command: $command into $log, as a session of its own, which tests/watch.sh ends if it never ends.
run_command() {
    local pid emulator=
    rm -f "$log.why"
    case $B in */aarch64) emulator=qemu-aarch64 ;; esac
    B=$B KILN_TEST_EMULATOR=$emulator QEMU_LD_PREFIX=$PWD/build/aarch64-sysroot setsid $under bash -c "$command" \
        >"$log" 2>&1 </dev/null &
    pid=$!
    echo "$pid" >"$log.pid"
    wait "$pid"
    status=$?
    rm -f "$log.pid"
}

# execute LINE: runs a command into its log; leaves its exit status, microseconds and milliseconds of processor time
# beside that.
execute() {
    local preset=${presets[$1]} command=${commands[$1]} log=${logs_of[$1]} B=build t status=0 under=
    t=$(now)
    case $preset in - | release) ;; *) B=build/$preset ;; esac
    if [ "$preset" != - ] && [ "${built[$preset]}" = skipped ]; then
        printf 'SKIP no-packages %s: %s\n0 passed, 0 failed, 1 skipped\n' "$preset" \
            "$(tail -n 1 "$logs/build-$preset.log")" >"$log"
    elif [ "$preset" != - ] && [ "${built[$preset]}" != yes ]; then
        echo "build $preset failed" >"$log"
        status=1
    else
        [ "$preset" != tsan ] || under=$fixed_addresses
        run_command
        # gcc 12's leak checker can trip over a thread that is just ending ("Tracer caught signal"): that says
        # nothing about the program, which had finished; the test runs again, once.
        if [ "$status" -ne 0 ] && grep -q 'LeakSanitizer has encountered a fatal error' "$log"; then
            run_command
        fi
    fi
    times >"$log.times"
    echo "$status $(($(now) - t)) $(milliseconds_of "$log.times" 2)" >"$log.end.new"
    mv "$log.end.new" "$log.end"
}

# Milliseconds of processor time that a loop takes here, at least.
pace_here() {
    local least=1000000 i took
    for i in 1 2 3; do
        took=$(for ((i = 0; i < 300000; i++)); do :; done
            times >"$logs/pace.times"
            milliseconds_of "$logs/pace.times" 1)
        [ "$took" -ge "$least" ] || least=$took
    done
    echo "$least"
}

end_suite() { [ -z "$suite_of" ] || printf '%-12s %s s\n\n' "$suite_of" "$(seconds 0 "$suite_time")"; }

# report LINE: prints and adds up what came of a command that has ended.
report() {
    local suite=${suites_of[$1]} log=${logs_of[$1]} status time used last reason='' p=0 f=0 s=0
    read -r status time used <"$log.end"
    processor_time=$((processor_time + used))
    if [ "$suite" != "$suite_of" ]; then
        end_suite
        suite_of=$suite suite_time=0
    fi
    suite_time=$((suite_time + time))
    last=$(tail -n 1 "$log")
    if [[ $last =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed,\ ([0-9]+)\ skipped$ ]]; then
        p=$((10#${BASH_REMATCH[1]})) f=$((10#${BASH_REMATCH[2]})) s=$((10#${BASH_REMATCH[3]}))
        if [ "$f" -eq 0 ] && [ "$status" -ne 0 ]; then
            reason="exit status $status"
        elif [ $((p + f + s)) -eq 0 ]; then
            reason="tested nothing"
        else
            reason=$(skips_allowed "$log" "$s")
        fi
    else
        reason="no result (exit status $status$([ ! -s "$log.why" ] || echo ": ended, since $(cat "$log.why")"))"
    fi
    [ -z "$reason" ] || f=$((f + 1))
    [ $((f + s)) -ne 0 ] || whole=$((whole + 1))
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    printf '%-12s %s: %d passed, %d failed, %d skipped (%s s) %s\n' "$suite" "${commands[$1]}" "$p" "$f" "$s" \
        "$(seconds 0 "$time")" "$reason"
    if [ "$f" -ne 0 ]; then
        echo "---- the end of $log"
        tail -n 60 "$log"
        echo "----"
        failed_logs+=("$log") failed_commands+=("$f of $suite${reason:+, $reason}: ${commands[$1]}")
    fi
}

# repeat_failures: prints what failed again, near the last line, where those look who read only the end of a log.
repeat_failures() {
    local i
    for i in "${!failed_commands[@]}"; do
        echo "FAIL ${failed_commands[i]}"
        grep -a -m 8 -E '^FAIL|AddressSanitizer|ThreadSanitizer|runtime error:' "${failed_logs[i]}" ||
            tail -n 8 "${failed_logs[i]}"
    done
}

# tell_skips: on a machine for GPUs what each kind of device lacks, once.
tell_skips() {
    [[ $wanted == *" --gpu "* ]] || return 0
    sed -n 's/^SKIP //p' "${logs_of[@]}" | sort -u | sed 's/^/skipped: /'
}

# report_ended: reports the commands that have ended, up to the first that has not.
report_ended() {
    while [ "$next" -lt "${#commands[@]}" ] && [ -e "${logs_of[next]}.end" ]; do report $((next++)); done
}

rm -f "$logs"/*.pid
bash tests/watch.sh "$logs" "$limit_command" "$limit_idle" >/dev/null 2>&1 3<&- &
watcher=$!
trap 'kill "$watcher" 2>/dev/null' EXIT

while read -r -u 3 suite preset when command; do
    case "$suite" in '#'* | '') continue ;; esac
    chosen "$suite" "$when" || continue
    if [ "$preset" != - ] && [ -z "${built[$preset]:-}" ]; then
        build "$preset"
        report_ended
    fi
    i=${#commands[@]}
    suites_of+=("$suite") presets+=("$preset") commands+=("$command")
    logs_of+=("$logs/$(echo "$suite-$preset-$command" | tr -c 'A-Za-z0-9\n' '_' | cut -c1-120).log")
    rm -f "${logs_of[i]}.end"
    if [ "$running" -ge "$jobs" ]; then
        wait -n
        running=$((running - 1))
        report_ended
    fi
    execute "$i" 3<&- &
    running=$((running + 1))
done 3<"$table"
while [ "$running" -gt 0 ]; do
    wait -n
    running=$((running - 1))
    report_ended
done
end_suite

total=$((($(now) - started) / 1000000))
tell_skips
repeat_failures
echo "total        $total s; processor time of the commands $((processor_time / 1000)) s"
if [[ $wanted != *" all "* ]] && [ "$processor_time" -gt $((1000 * limit_total)) ]; then
    pace=$(pace_here)
    [ "$pace" -le "$usual_pace" ] || limit_total=$((limit_total * pace / usual_pace))
fi
if [[ $wanted != *" all "* ]] && [ "$processor_time" -gt $((1000 * limit_total)) ]; then
    echo "FAIL the commands took more than $limit_total s of processor time (a loop takes $pace ms here)"
    failed=$((failed + 1))
fi
if [ $((passed + failed + skipped)) -eq 0 ] || { [ "$wanted" = " aarch64 " ] && [ "$passed" -eq 0 ]; }; then
    echo "FAIL nothing was tested"
    failed=1
elif [ "$wanted" = " --gpu " ] && [ "$whole" -eq 0 ]; then # tests of a device that is missing pass some checks
    echo "FAIL no GPU was tested"
    failed=$((failed + 1))
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
