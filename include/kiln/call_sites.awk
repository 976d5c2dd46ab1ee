# What follows from the prototypes marked KL_API_AT in the public headers (arguments: the headers).
#   mode=header   each one's variant with a call site, and the macro that calls it with the caller's line.  `includer` is
#                 the header that includes this: <kiln/kiln.h> <kiln/call_sites.h>, of all headers that it includes, and
#                 each other header, such as <kiln/train/params.h>, its own <kiln/call_sites/train/params.h>
#   mode=source   the variants, for the library of `includer`. Each sets the thread's call site around the plain
#                 function, so that no call inside passes it on. The ops of ir/ops/ops.def, which is an argument in front
#                 of the headers, have both in frontend/ops/ops.c, where the variant looks up the thread once.
# A prototype starts a line and ends with the first ';'.
function trim(s) { gsub(/^[ \t\n]+|[ \t\n]+$/, "", s); return s }

# The names of a parameter list, separated by ", ": of "int n, void (*release)(void *ctx)" "n, release".
function names_of(list,    i, c, depth, part, all) {
    for (i = 1; i <= length(list) + 1; i++) {
        c = i > length(list) ? "," : substr(list, i, 1)
        if (c == "(") depth++
        if (c == ")") depth--
        if (c != "," || depth) { part = part c; continue }
        if (match(part, /\(\*[a-z_0-9]+\)/)) part = substr(part, RSTART + 2, RLENGTH - 3)
        sub(/\[[^]]*\]$/, "", part)
        match(part, /[A-Za-z_0-9]+$/)
        all = all (all == "" ? "" : ", ") substr(part, RSTART)
        part = ""
    }
    return all
}

# A declaration in lines of at most 120 columns, the later ones below its first parameter.
function wrapped(text,    all, margin, i) {
    margin = index(text, "(")
    while (length(text) > 120) {
        for (i = 120; substr(text, i - 1, 2) != ", "; i--) ;
        all = all substr(text, 1, i - 1) "\n"
        text = sprintf("%*s%s", margin, "", substr(text, i + 1))
    }
    return all text "\n"
}

function declare(text,    open, head, name, result, list, none) {
    gsub(/[ \t\n]+/, " ", text)
    open = index(text, "(")
    head = trim(substr(text, 1, open - 1))
    match(head, /kl_[a-z_0-9]+$/)
    name = substr(head, RSTART)
    result = trim(substr(head, 1, RSTART - 1))
    result = result (result ~ /\*$/ ? "" : " ")
    list = trim(substr(text, open + 1))
    sub(/\) *;$/, "", list)
    none = list == "void"
    if (mode == "source" && name in row) return
    if (mode == "source") {
        # outside of libkiln.so by a public function
        begin = includer == "kiln.h" ? "*outer;\n    struct thread *thread = call_begin(site, &outer);" \
                                     : "*outer = kl_set_call_site(site);"
        end_call = includer == "kiln.h" ? "call_end(thread, outer);" : "kl_set_call_site(outer);"
        printf "%s%s_at(const kl_site *site%s)\n{\n    const kl_site %s\n    %sresult = %s(%s);\n    %s\n" \
               "    return result;\n}\n", result, name, none ? "" : ", " list, begin, result, name,
               none ? "" : names_of(list), end_call
        return
    }
    prototypes = prototypes wrapped(sprintf("KL_API %s%s_at(const kl_site *site%s);", result, name,
                                            none ? "" : ", " list))
    macros = macros sprintf("#define %s(%s) %s_at(KL_HERE%s)\n", name, none ? "" : "...", name,
                            none ? "" : ", __VA_ARGS__")
}

BEGIN {
    if (mode == "source") printf "/* Made from the public headers by include/kiln/call_sites.awk. */\n%s\n" \
                                 "#include <kiln/extend.h>\n#include <kiln/%s>\n",
                                 includer == "kiln.h" ? "#include \"frontend/frontend.h\"\n" \
                                 "#include <kiln/formats/dlpack.h>" : "#define KL_NO_CALL_SITES", includer
}
/^#ifndef KILN_[A-Z_]*_H$/ && !includer_guard { includer_guard = $2 } # the includer is the first of the headers
/^EW[123]\(/ { split($0, part, /[(,]/); row["kl_" part[2]] }
/^EW2_AS\(/ { split($0, part, /[(,] */); row["kl_" part[3]] }
/^KL_API_AT / { inside = 1; text = ""; sub(/^KL_API_AT /, "") }
inside {
    text = text " " $0
    if ((end = index(text, ";"))) {
        inside = 0
        declare(substr(text, 1, end))
    }
}
END {
    if (mode == "source") exit
    guard = toupper(includer)
    gsub(/[^A-Z]/, "_", guard)
    printf "/* Variants with a call site, which may be NULL, and macros that pass the caller's.  Included by <kiln/%s>.\n" \
           " * Made from the prototypes by call_sites.awk. */\n", includer
    printf "#ifndef KILN_CALL_SITES_%s\n#ifndef %s\n#include <kiln/%s> /* which includes this file */\n#else\n" \
           "#define KILN_CALL_SITES_%s\n\n", guard, includer_guard, includer, guard
    print "#ifdef __cplusplus\nextern \"C\" {\n#endif\n"
    printf "%s", prototypes
    print "\n#ifdef __cplusplus\n}\n#endif\n"
    print "#ifndef KL_NO_CALL_SITES"
    printf "%s", macros
    print "#endif\n#endif\n#endif"
}
