#!/bin/sh
# Plug-ins by the environment: `kiln devices` lists what KILN_PLUGINS names, and why not; the tests of the public
# interface on a device that nobody can look into, and on a second plug-in's beside it.
B=${1:?a build folder}
p=0
f=0
export KILN_PLUGINS="$B/tests/plugin_near.so:$B/tests/plugin_far.so"
has() { # PATTERN COMMAND...: one of its lines is that
    pattern=$1
    shift
    if "$@" 2>&1 | grep -qE -e "$pattern"; then p=$((p + 1)); else f=$((f + 1)) &&
        echo "FAIL $*: no line '$pattern'"; fi
}
has "^near:1 +the tests' near device 1 \+bool.*\+f64" "$B/kiln" devices
has "^far:0 +the tests' far device 0 " "$B/kiln" devices
has '^\[call\] op=\[neg\], key=\[PrivateUse2\]|PrivateUse2' "$B/kiln" explain neg 'f32[3]' --device far
has '^plug-in +- KILN_PLUGINS: plugin_load: /nowhere.so: ' env KILN_PLUGINS="/nowhere.so:$KILN_PLUGINS" "$B/kiln" \
    devices
has '^near:0 +the' env KILN_PLUGINS="/nowhere.so:$KILN_PLUGINS" "$B/kiln" devices
has 'unknown device "far": .*; KILN_PLUGINS: plugin_load: /nowhere.so: ' env KILN_PLUGINS=/nowhere.so "$B/kiln" \
    explain neg 'f32[3]' --device far
has '^broken:0 +- it does not compute with f32$' env KILN_PLUGINS="$B/tests/plugin_broken.so" "$B/kiln" devices
for test in far:api_ops near:api_ops far:api_nn far:api_grad far:api_control near:api_custom near:api_step \
    far:api_optim; do
    out=$(KILN_DEVICE=${test%%:*} "$B/tests/${test#*:}" 2>&1)
    n=$(echo "$out" | sed -n '$s/^\([0-9]*\) passed, 0 failed, 0 skipped$/\1/p')
    if [ -n "$n" ]; then p=$((p + n)); else f=$((f + 1)) && printf 'FAIL %s:\n%s\n' "$test" "$out"; fi
done
echo "$p passed, $f failed, 0 skipped"
[ "$f" -eq 0 ]
