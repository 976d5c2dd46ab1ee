# Read by the tests of the command with `.`: a folder that is removed at the end, numbers of what passed and failed, and
# check; a graph of two ops.
tmp=$(mktemp -d)
trap 'rm -r "$tmp"' EXIT
passed=0 failed=0

# check NAME EXIT PATTERN COMMAND...: the exit code, and a pattern somewhere in stdout or stderr, but no line of Kiln's
# own source as the place of an error
check() {
    name=$1 code=$2 pattern=$3
    shift 3
    "$@" >"$tmp/out" 2>&1 </dev/null
    got=$?
    if [ "$got" -eq "$code" ] && grep -qe "$pattern" "$tmp/out" &&
        ! grep -q '^\(kiln: \)\{0,1\}[^ ]*\(frontend\|runtime\|ir\)/[a-z_/]*\.[ch]:[0-9]*: ' "$tmp/out"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAIL $name: exit $got, expected $code and '$pattern' in:"
        sed 's/^/    /' "$tmp/out"
    fi
}

# float array file: npy FILE SHAPE BYTES
npy() {
    header=$(printf "{'descr': '<f4', 'fortran_order': False, 'shape': (%s), }" "$2")
    printf '\223NUMPY\001\000\166\000%-117s\n' "$header" >"$1"
    printf "$3" >>"$1"
}
one='\000\000\200\077' two='\000\000\000\100'

cat >"$tmp/sum.kir" <<'END'
graph @sum {
  %x = input 0 "x" : f32[3]
  %dead = neg %x : f32[3]
  %s = sum %x axes(0) : f32[1]
  return %s
}
END
