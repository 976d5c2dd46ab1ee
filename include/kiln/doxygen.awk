# A header as Doxygen reads it: a comment in front of a declaration or behind one becomes Doxygen's, the first one the
# file's; indented lines in a comment are code; all else in it is text without commands.
function escape(s) {
    gsub(/[\\@<>&#%"$]/, "\\\\&", s)
    return s
}
# The text of one line of a comment, without its marks.
function body(s,    code) {
    code = s ~ /^ *\* {4,}[^ ]/
    if (code && !in_code) { in_code = 1; printf " * @code{.c}\n" }
    if (!code && in_code && s !~ /^ *\*? *$/) { in_code = 0; printf " * @endcode\n" }
    return in_code ? s : escape(s)
}
function close_code() { if (in_code) printf " * @endcode\n"; in_code = 0 }
# A header that kiln.h includes: its declarations are in the other branch.
FILENAME !~ /kiln\/kiln\.h$/ && /^#ifndef KILN_KILN_H$/ { print "#if 0"; next }
in_comment {
    if ((end = index($0, "*/"))) {
        in_comment = 0
        line = body(substr($0, 1, end - 1))
        print line
        close_code()
        print " */" substr($0, end + 2)
    } else {
        print body($0)
    }
    next
}
/^ *\/\* ---- .* ---- \*\/$/ { print; next }
{
    start = index($0, "/* ")
    if (!start) { print; next }
    before = substr($0, 1, start - 1)
    rest = substr($0, start + 3)
    mark = NR == 1 ? "/** @file\n * " : before ~ /^ *$/ ? "/** " : "/**< "
    if (before ~ /^#/) { print; next }
    if ((end = index(rest, "*/"))) {
        print before mark escape(substr(rest, 1, end - 1)) substr(rest, end)
    } else {
        print before mark escape(rest)
        in_comment = 1
    }
}
