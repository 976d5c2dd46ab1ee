# Applies the recipes of READMEs to a scratch copy of the tree, whose root is the current folder.
#   awk -v checks=FOLDER -f recipes.awk README.md ...
# A fenced block is told what to do by the words behind its language:
#   file=PATH                  a new file
#   file=PATH after="TEXT"     lines to insert behind the one line of PATH that contains TEXT (or before="TEXT")
#   check                      commands, run in the root once all is built: written to FOLDER/NUMBER.sh
# Prints a line per block; exit status 1 if one does not fit.
function word(info, name,    s) {
    if (!match(info, " " name "=(\"[^\"]*\"|[^ ]+)"))
        return ""
    s = substr(info, RSTART + length(name) + 2, RLENGTH - length(name) - 2)
    gsub(/^"|"$/, "", s)
    return s
}
function fail(reason) { printf "FAIL %s:%d: %s\n", FILENAME, FNR, reason; status = 1 }
function insert(file, anchor, behind,    line, n, i, found, at) {
    while ((getline line < file) > 0) {
        old[++n] = line
        if (index(line, anchor)) { found++; at = i = n }
    }
    close(file)
    if (found != 1) { fail(file ": \"" anchor "\" stands in " found + 0 " lines, not in one"); return }
    printf "" > file
    for (i = 1; i <= n; i++) {
        if (i == at && !behind) printf "%s", text > file
        print old[i] > file
        if (i == at && behind) printf "%s", text > file
    }
    close(file)
    print section ": " file " changed"
}
function apply(    file, line) {
    file = word(info, "file")
    if (info ~ / check$/) {
        file = checks "/" ++ncheck ".sh"
        printf "# %s\n%s", section, text > file
        close(file)
    } else if (file == "") {
        return
    } else if (word(info, "after") != "") {
        insert(file, word(info, "after"), 1)
    } else if (word(info, "before") != "") {
        insert(file, word(info, "before"), 0)
    } else if ((getline line < file) >= 0) {
        close(file)
        fail(file " exists already")
    } else {
        if (match(file, /.*\//)) system("mkdir -p \"" substr(file, 1, RLENGTH) "\"")
        printf "%s", text > file
        close(file)
        print section ": " file " made"
    }
}
/^#/ && !inside { section = $0; sub(/^#+ */, "", section) }
/^```/ {
    if (inside) apply()
    inside = !inside
    info = $0
    text = ""
    next
}
inside { text = text $0 "\n" }
END {
    if (inside) fail("a block is not closed")
    exit status
}
