# Writes OUT, a header with the bytes of FILE as an array NAME.  Run with cmake -P.
file(READ "${FILE}" hex HEX)
string(REGEX REPLACE "(..)" "0x\\1," hex "${hex}")
file(WRITE "${OUT}" "static const char ${NAME}[] = {${hex}0};\n")
