#!/bin/sh
# examples/data_parallel.c with 1, 2 and 4 ranks on some hundred images: about the same losses, the same bits at each
# repetition, whatever the buckets, sharded or not, by sockets and by MPI; and how it scales.
#
#   data_parallel.sh BUILD
program=$(cd "$1" && pwd)/examples/data_parallel
tmp=$(mktemp -d)
trap 'rm -r "$tmp"' EXIT
passed=0 failed=0 skipped=0
export KILN_THREADS=1

check() { # WHAT COMMAND...
    what=$1
    shift
    if "$@" >"$tmp/check" 2>&1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAIL data_parallel: $what"
        tail -n 15 "$tmp/check" "$tmp"/out* | sed 's/^/    /'
    fi
}

# ranks NAME COUNT OPTIONS...: as many processes, joined by sockets
ranks() {
    name=$1 count=$2
    shift 2
    # below the ports that Linux gives to connections (from 32768 on), which another test may have at the moment
    port=$((20000 + ($$ * 7 + passed * 13 + failed) % 12000))
    r=1
    while [ "$r" -lt "$count" ]; do
        RANK=$r WORLD_SIZE=$count MASTER_PORT=$port "$program" --images 512 --epochs 2 "$@" >"$tmp/out$r" 2>&1 &
        r=$((r + 1))
    done
    RANK=0 WORLD_SIZE=$count MASTER_PORT=$port "$program" --images 512 --epochs 2 --losses "$tmp/$name" "$@" \
        >"$tmp/out0" 2>&1
    status=$?
    wait
    return $status
}
# near A B: as many losses, each within 1e-4
near() {
    awk 'NR == FNR { a[NR] = $1; n = NR; next } { m++; d = a[FNR] - $1; if (d < -1e-4 || d > 1e-4) bad = 1 }
         END { exit bad || n < 4 || m != n }' "$tmp/$1.dec" "$tmp/$2.dec"
}
decimal() { while read -r x; do printf '%.9f\n' "$x"; done <"$tmp/$1" >"$tmp/$1.dec"; }

check 'one process' ranks one 1
speed1=$(sed -n 's/^images_per_second: //p' "$tmp/out0")
check 'two ranks' ranks two 2
speed2=$(sed -n 's/^images_per_second: //p' "$tmp/out0")
echo "images a second: $speed1 by one process, $speed2 by two"
check 'four ranks' ranks four 4
export KILN_PROFILE="$tmp/profile.json" # by the last rank to end
check 'two ranks again, small buckets' ranks again 2 --bucket 100000
unset KILN_PROFILE
check 'a profile shows communication on a thread of its own' grep -q 'kiln comm' "$tmp/profile.json"
check 'and what it did' grep -q 'kl.all_reduce' "$tmp/profile.json"
check 'two ranks, sharded' ranks sharded 2 --sharded 1
decimal one && decimal two && decimal four
check 'losses of one and two' near one two
check 'losses of one and four' near one four
check 'the same bits again' cmp "$tmp/two" "$tmp/again"
check 'the same bits sharded' cmp "$tmp/two" "$tmp/sharded"
if command -v mpirun >/dev/null && [ -e "$1/libkiln-mpi.so" ]; then
    check 'mpirun' mpirun -n 2 --oversubscribe --allow-run-as-root "$program" --images 512 --epochs 2 --losses \
        "$tmp/mpi"
    check 'the same bits by MPI' cmp "$tmp/two" "$tmp/mpi"
else
    echo 'SKIP no-tool mpi: no mpirun, or Kiln was built without mpi.h'
    skipped=1
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
