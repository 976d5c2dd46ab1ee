#!/bin/sh
# Do the public declarations keep the convention of include/kiln/README.md?  Rules are named by the letters there.
#
#   convention.sh [FOLDER]     of headers; without one include/kiln, after a check that planted violations are found
#
# tests/convention.def lists declarations that break a rule and why; it may only shrink: a line without its violation
# fails.
cd "$(dirname "$0")/.." || exit 1

# One line a declaration: its text without comments.
declarations() {
    for file in $(find "$1" -name '*.h' | LC_ALL=C sort); do
        awk '
            { text = text " " $0 }
            END {
                while ((i = index(text, "/*"))) {
                    j = index(substr(text, i), "*/")
                    text = substr(text, 1, i - 1) " " substr(text, i + j + 1)
                }
                n = split(text, part, /;/)
                for (k = 1; k <= n; k++) if (match(part[k], /KL_API(_AT)? [^#]*\(.*\)/)) {
                    line = substr(part[k], RSTART, RLENGTH)
                    gsub(/[ \t]+/, " ", line)
                    sub(/^KL_API(_AT)? /, "", line)
                    print line
                }
            }' "$file"
    done
}

# Prints "RULE function: what" for each violation.
violations() {
    declarations "$1" | awk '
        function bad(rule, what) { print rule " " name ": " what }
        function has(what) { return what in defined }
        # The first parameter may be an object that the function is about.
        function is_output(type, i) {
            if (type ~ /^(kl_tensor|int64_t|double|int|uint32_t) \*$/) return 1
            if (i == 1 || type !~ /\*$/ || type ~ /^const |void \*$|char \*$|_fn \*$|_get \*$|_set \*$|FILE/) return 0
            return type !~ ("^kl_(params|comm|optimizer|loader|nn_cache|object|snapshot|step|tracer|model|file)" \
                            "[a-z_]* [*]$")
        }
        {
            open = index($0, "(")
            head = substr($0, 1, open - 1)
            match(head, /kl_[a-z_0-9]+$/)
            name = substr(head, RSTART)
            result = substr(head, 1, RSTART - 1)
            list = substr($0, open + 1)
            sub(/\)[^)]*$/, "", list)
            defined[name] = result " (" list ")"
            # parameters; those of function pointers stay together
            n = depth = 0
            one = ""
            for (i = 1; i <= length(list) + 1; i++) {
                c = i > length(list) ? "," : substr(list, i, 1)
                if (c == "(") depth++
                if (c == ")") depth--
                if (c == "," && !depth) { sub(/^ /, "", one); p[++n] = one; one = "" } else one = one c
            }
            out = options = 0
            for (i = 1; i <= n; i++) {
                split_name = p[i]
                sub(/\[[^]]*\]$/, "", split_name)
                match(split_name, /[a-z_0-9A-Z]+$/)
                word = substr(split_name, RSTART)
                type = substr(split_name, 1, RSTART - 1)
                before = i > 1 ? p[i - 1] : ""
                # B: a list of tensors comes after its number; a start has as many as there are axes
                if (type ~ /^const kl_tensor \*$/ && before !~ /(int (naxes|rank)|int64_t n[a-z]*)$/ &&
                    word !~ /^(start|gradients)$/)
                    bad("B", word " is a list without its number before it")
                # C: outputs are last: what follows one is an output, or the size of the memory that it points to
                if (out && out !~ /^(gradients|parts)$/ && type !~ /\*$/ &&
                    p[i] !~ /^(size_t|int64_t) (size|room|bytes)$/)
                    bad("C", word " comes after the output " out)
                if (is_output(type, i)) out = word
                # D: options come behind axes and sizes
                if (options && p[i] ~ /^(int|int64_t) (axis|rank|naxes|n|width|length|count)$/)
                    bad("D", word " comes after the options")
                if (type ~ /_options \*$/) options = 1
                # E: words
                if (word ~ /^(most|least|places|place|carrier)$/) bad("E", "parameter " word)
                # A: ranks and axes are int
                if (word ~ /^(rank|axis|naxes|axis0|axis1)$/ && type != "int ") bad("A", word " is no int")
                if (word ~ /^(count|length|rows|columns|classes|batch|width)$/ && type ~ /^(int|uint32_t|unsigned) $/ &&
                    name !~ /gather_nd|kl_tokens_open/)
                    bad("A", word " is a count, but no int64_t")
                if (word ~ /^n(in|out|inputs|outputs|slots|meta|carried|scanned|stacked|results)?$/ &&
                    type !~ /^int64_t [*]?$/ && p[i] != "size_t n")
                    bad("A", word " is a count, but no int64_t")
                if (word ~ /^[ik]$/ && type ~ /^(int|uint32_t|unsigned|size_t) $/)
                    bad("A", word " is the number of an element, but no int64_t")
                if (type ~ /^uint32_t $/ && word != "i" && p[i + 1] ~ /[*]/)
                    bad("A", word " is before a list, but no int64_t")
            }
            if (name ~ /_(count|inputs|outputs|results|weights|parts|states|slots|enumerate)$/ &&
                result ~ /^(int|uint32_t|unsigned|size_t) $/)
                bad("A", "returns a count, but no int64_t")
            if (name ~ /(^|_)(most|least|places|place|carrier|reduce_max|reduce_min|reduce_prod)($|_)/)
                bad("E", "a word that the convention replaces")
        }
        END {
            for (name in defined) {
                base = name
                # F: what makes and what ends come in pairs
                if (sub(/_new(_[a-z]+)?$/, "", base) && !has(base "_free")) bad("F", "has no " base "_free")
                base = name
                if (sub(/_open(_[a-z]+)?$/, "", base) && !has(base "_close")) bad("F", "has no " base "_close")
                base = name
                if (name !~ /^kl_(all|is)_close$/ && sub(/_close$/, "", base) && !has(base "_open"))
                    bad("F", "has no " base "_open")
                base = name
                if (sub(/_begin$/, "", base) && !has(base "_end")) bad("F", "has no " base "_end")
                base = name
                if (sub(/_end$/, "", base) && !has(base "_begin")) bad("F", "has no " base "_begin")
                base = name
                if (sub(/_deinit$/, "", base) && !has(base "_init")) bad("F", "has no " base "_init")
                base = name
                if (sub(/_free$/, "", base) && has(base "_init")) bad("F", "frees what " base "_init does not allocate")
            }
        }' | LC_ALL=C sort -u
}

if [ $# -gt 0 ]; then
    violations "$1"
    exit
fi
p=0
f=0
scratch=$(mktemp -d)
trap 'rm -r "$scratch"' EXIT
mkdir "$scratch/kiln"
cat >"$scratch/kiln/planted.h" <<'END'
KL_API_AT kl_tensor kl_good(kl_tensor a, int naxes, const int *axes, int64_t size, bool flag);
KL_API kl_status kl_lists(const kl_tensor *in, int64_t nin);
KL_API kl_status kl_outputs(kl_tensor *out, int axis);
KL_API kl_tensor kl_options(kl_tensor a, const kl_x_options *options, int axis);
KL_API kl_tensor kl_places(kl_tensor a);
KL_API uint32_t kl_things_count(const kl_things *things);
KL_API int kl_things_outputs(const kl_things *things);
KL_API_AT kl_tensor kl_many(int n, const kl_tensor *parts);
KL_API kl_status kl_ranks(int64_t axis);
KL_API kl_status kl_element(const kl_things *things, uint32_t i, kl_thing *thing);
KL_API kl_thing *kl_thing_new(void); /* without a kl_thing_free */
KL_API kl_status kl_area_begin(void);
END
planted='A kl_element: i is the number of an element, but no int64_t
A kl_many: n is a count, but no int64_t
A kl_ranks: axis is no int
A kl_things_count: returns a count, but no int64_t
A kl_things_outputs: returns a count, but no int64_t
B kl_lists: in is a list without its number before it
B kl_many: parts is a list without its number before it
C kl_outputs: axis comes after the output out
D kl_options: axis comes after the options
E kl_places: a word that the convention replaces
F kl_area_begin: has no kl_area_end
F kl_thing_new: has no kl_thing_free'
violations "$scratch/kiln" | grep -v 'kl_lists: nin' >"$scratch/found"
if echo "$planted" | cmp -s - "$scratch/found"; then p=$((p + 1)); else
    f=$((f + 1))
    echo "FAIL planted violations; < wanted, > found:"
    echo "$planted" | diff - "$scratch/found"
fi

violations include/kiln >"$scratch/violations"
sed -n 's/^\([A-F] kl_[a-z_0-9]*\):.*/\1/p' tests/convention.def | LC_ALL=C sort -u >"$scratch/listed"
cut -d : -f 1 "$scratch/violations" | LC_ALL=C sort -u >"$scratch/broken"
for new in $(LC_ALL=C comm -13 "$scratch/listed" "$scratch/broken" | tr ' ' ,); do
    f=$((f + 1))
    grep "^$(echo "$new" | tr , ' '):" "$scratch/violations" | sed 's/^/FAIL rule /'
done
for gone in $(LC_ALL=C comm -23 "$scratch/listed" "$scratch/broken" | tr ' ' ,); do
    f=$((f + 1))
    echo "FAIL tests/convention.def lists $(echo "$gone" | tr , ' '), which keeps the rule now"
done
# Names of Kiln's that the guides write exist; those of 0.1 in the table of renames do not.
for guide in README.md include/kiln/README.md include/kiln/pytorch.md; do
    sed '/^## Names of 0.1/,/^## What there is/d' $guide | grep -oE '\bkl_[a-z_0-9]*[a-z0-9]\b' | LC_ALL=C sort -u |
        while read -r name; do
            grep -rqw "$name" include/kiln --include='*.h' --include='*.hpp' || echo "FAIL $guide: there is no $name"
        done
done >"$scratch/unknown"
cat "$scratch/unknown"
f=$((f + $(wc -l <"$scratch/unknown")))

# Functions that take a number of list elements are called with wrong ones.
lists='int64_t n(in|out|inputs|outputs|slots|meta|carried|scanned|stacked|results)[,)]'
for name in $(declarations include/kiln | grep -E "$lists|int64_t n, (const )?kl_(tensor|device) \*" |
    sed -E 's/.*(kl_[a-z_0-9]*)\(.*/\1/'); do
    grep -q "$name(" tests/api/numbers/api_counts.c || {
        f=$((f + 1))
        echo "FAIL tests/api/numbers/api_counts.c does not call $name with a wrong number of elements"
    }
done
# Functions with options are called with zeros.
for name in $(declarations include/kiln | sed -nE '/_options \*options[,)]/ s/.*(kl_[a-z_0-9]*)\(.*/\1/p'); do
    grep -q "$name(" tests/api/numbers/api_options.c || [ "$name" = kl_trace_compile ] || {
        f=$((f + 1))
        echo "FAIL tests/api/numbers/api_options.c does not call $name with options of zeros"
    }
done
p=$((p + $(declarations include/kiln | wc -l) - f))
echo "$p passed, $f failed, 0 skipped"
[ "$f" -eq 0 ]
