# The public functions as rows of a table, for `kiln ops NAME` (ops.c):  FUNCTION(name, header, prototype, comment)
# Arguments: the public headers.  A comment belongs to the prototypes below it, up to an empty line.
function quoted(text) {
    gsub(/[ \t\n]+/, " ", text)
    gsub(/^ | $/, "", text)
    gsub(/\\/, "\\\\", text)
    gsub(/"/, "\\\"", text)
    return "\"" text "\""
}

FNR == 1 {
    header = FILENAME
    sub(/.*\/include\//, "", header)
    comment = text = ""
    in_comment = in_prototype = 0
}
/^\/\*/ { in_comment = 1; comment = "" }
in_comment {
    line = $0
    sub(/^ *\/?\*+ ?/, "", line)
    in_comment = !sub(/ *\*\/.*$/, "", line)
    comment = comment " " line
    next
}
/^$/ { comment = "" }
comment ~ /----/ { gsub(/ *---- */, " ", comment) }
/^KL_API(_AT)? / { in_prototype = 1; text = ""; sub(/^KL_API(_AT)? /, "") }
in_prototype {
    text = text " " $0
    if ((end = index(text, ";"))) {
        in_prototype = 0
        text = substr(text, 1, end)
        if (match(text, /kl_[a-z_0-9]+\(/))
            printf "FUNCTION(%s, %s, %s, %s)\n", quoted(substr(text, RSTART, RLENGTH - 1)), quoted(header), quoted(text),
                   quoted(comment)
    }
}
