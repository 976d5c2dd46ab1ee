#!/bin/sh
# Fails where a call, or a list in braces, has two operands that each build nodes of a graph: C leaves their order to
# the compiler, and with it the nodes' numbers, the digests of graphs and the keys of kernels on disk.  Operands are
# named in locals instead.  What builds nodes: n_ functions, and those that return a ref and take a struct graph *.
cd "$(dirname "$0")/.." || exit 1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0

# findings FILE...: "FILE:LINE: CALL", one a line.
findings() {
    awk '
    # Ends an operand of the call or list at depth d.
    function end_operand() { count[d] += builds[d]; builds[d] = 0 }
    function builds_nodes(word) { return word ~ /^n_[a-z]/ || (word in builder) }
    function token(t, before) {
        if (t == "(" || t == "{" || t == "[") {
            d++
            name[d] = t == "(" ? before : ""
            kind[d] = t; builds[d] = count[d] = statements[d] = 0; at[d] = FNR
        } else if (t == ";") {
            statements[d] = 1; builds[d] = count[d] = 0
        } else if (t == ",") {
            end_operand()
        } else if (d > 0) {
            end_operand()
            if (count[d] > 1 && (kind[d] == "{" ? !statements[d] : name[d] !~ /^[A-Z]/))
                print FILENAME ":" at[d] ": " (name[d] ? name[d] : kind[d])
            d--
            builds[d] += count[d + 1] > 0 || builds_nodes(name[d + 1])
            if (builds[d] > 1) builds[d] = 1
        }
    }
    second && FNR == 1 { d = 0; comment = 0 }
    !second {
        if (match($0, /^(static )?ref [a-z_0-9]+\(struct graph \*/)) {
            s = substr($0, 1, RLENGTH); sub(/\(.*/, "", s); sub(/.* /, "", s); builder[s] = 1
        }
        next
    }
    /^[A-Za-z{]/ && !comment { d = 0 }
    /^#/ { next }
    {
        s = $0
        if (comment && !sub(/^.*\*\//, "", s)) next
        comment = 0
        gsub(/"([^"\\]|\\.)*"/, "0", s); gsub(/\047([^\047\\]|\\.)+\047/, "0", s)
        while (match(s, /\/\*/)) {
            tail = substr(s, RSTART + 2); s = substr(s, 1, RSTART - 1)
            if (match(tail, /\*\//)) s = s substr(tail, RSTART + 2); else comment = 1
        }
        before = ""
        while (match(s, /[A-Za-z_][A-Za-z_0-9]*|[][(){},;]/)) {
            t = substr(s, RSTART, RLENGTH)
            if (RSTART > 1 && substr(s, 1, RSTART - 1) !~ /^[ \t]*$/) before = ""
            s = substr(s, RSTART + RLENGTH)
            if (t ~ /^[A-Za-z_]/) before = t; else { token(t, before); before = "" }
        }
    }' "$@" second=1 "$@"
}

# What it has to find, and what not.
cat >"$work/found.c" <<'END'
static ref half_of(struct graph *g, ref a) { return n_mul(g, a, n_k(g, a, 0.5)); }
ref a1(struct graph *g, ref a) { return n_add(g, n_neg(g, a), n_k(g, a, 1)); }
ref a2(struct graph *g, ref a)
{
    return n_where(g, a, half_of(g, a), /* n_k(g, a, 2), */
                   a ? n_abs(g, n_exp(g, a)) : a);
}
ref a3(struct graph *g, ref a) { return n_concat(g, (ref[]){n_neg(g, a), half_of(g, a)}, 2, 0); }
ref a4(struct graph *g, ref a) { add_to(g, "a, \"n_k(", 2 * f(half_of(g, a)), 1, n_k(g, a, 2)); }
ref b1(struct graph *g, ref a)
{
    ref one = n_k(g, a, 1), more = n_add(g, one, a);
    for (ref r = n_neg(g, a), s = n_neg(g, r); r < n_exp(g, s); r++)
        more = n_sub(g, r, n_mul(g, one, more));
    return n_reduce(g, OP_sum, n_add(g, one, more), 1u << rank(g, a, "n_k(g), n_k(g)"));
}
EW2(sub,   A, SUB(a, b),         n_neg(g, dy), n_neg(g, dy), PROMOTE, "a - b")
END
found=$(findings "$work/found.c" | sed 's/.*found.c://' | tr '\n' ' ')
if [ "$found" = '2: n_add 5: n_where 8: { 9: add_to ' ]; then
    passed=$((passed + 1))
else
    failed=$((failed + 1))
    echo "FAIL of the sample, whose findings are at 2, 5, 8 and 9, it found: $found"
fi
files=$(find ir passes -name '*.[ch]' -o -name '*.def' -o -name '*.inc')
[ "$(echo "$files" | wc -l)" -gt 200 ] || { failed=$((failed + 1)) && echo "FAIL few files: $files"; }
# shellcheck disable=SC2086
found=$(findings $files)
if [ -z "$found" ]; then
    passed=$((passed + 1))
else
    failed=$((failed + 1))
    printf 'FAIL calls with two operands that build nodes:\n%s\n' "$found"
fi
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
