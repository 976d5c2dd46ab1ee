#!/usr/bin/env bash
# Ends commands of tests/run.sh that never end.  How fast the machine is decides nothing: one that loops has used more
# processor time than any test takes, one that waits for ever has used none for a long time.
#
#   watch.sh FOLDER PROCESSOR_SECONDS IDLE_SECONDS
#
# A command is a session of its own; FOLDER/NAME.pid names the session while it runs.  Why one was ended is written to
# FOLDER/NAME.why.
folder=$1 most=$2 idle=$3
tick=$(getconf CLK_TCK)
declare -A used since
pause=$((idle < 60 || most < 60 ? 1 : 15)) # seconds between looks

# SESSION and the processor seconds of its processes and of those that they have waited for, a line each
sessions() {
    cat /proc/[0-9]*/stat 2>/dev/null |
        awk -v tick="$tick" '{ sub(/^.*\) /, ""); used[$4] += $12 + $13 + $14 + $15 }
            END { for (s in used) printf "%d %.2f\n", s, used[s] / tick }'
}

while sleep "$pause"; do
    now=$(sessions)
    for file in "$folder"/*.pid; do
        session=$(cat "$file" 2>/dev/null) && [ -n "$session" ] || continue
        seconds=$(awk -v s="$session" '$1 == s { print $2 }' <<<"$now")
        [ -n "$seconds" ] || continue # it began after the look at all processes, or has ended
        if [ "$seconds" != "${used[$file $session]:-}" ]; then
            used[$file $session]=$seconds since[$file $session]=$SECONDS
        fi
        why=
        if awk -v used="${seconds:-0}" -v most="$most" 'BEGIN { exit used <= most }'; then
            why="it had used $most s of processor time"
        elif [ $((SECONDS - since[$file $session])) -gt "$idle" ]; then
            why="it had used no processor time for $idle s"
        fi
        if [ -n "$why" ]; then
            echo "$why" >"${file%.pid}.why"
            pkill -KILL -s "$session"
        fi
    done
done
