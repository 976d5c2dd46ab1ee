#!/bin/sh
# The pages and charts that Kiln writes, in a real browser (headless Chromium; Debian: chromium): no script fails, the
# rows are those of the data, and a click on each of them works.
#
#   browser.sh BUILD
B=${1:?a build folder}
cd "$(dirname "$0")/.." || exit 1
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome) || {
    echo "SKIP no-tool chromium: no browser for the pages"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
}
tmp=$(mktemp -d)
trap 'rm -r "$tmp"' EXIT
p=0 f=0
check() { # WHAT COMMAND...
    what=$1
    shift
    if "$@" >"$tmp/check" 2>&1; then p=$((p + 1)); else
        f=$((f + 1))
        echo "FAIL $what"
        tail -n 15 "$tmp/check"
    fi
}

# opened PAGE SCRIPT: the page with one more script at its end, in the browser, which the script's `said` writes into
# what comes back.  An error of any script, or no word of this one, fails.
opened() {
    {
        cat "$1"
        printf '<script>\nconst said = [], say = s => said.push(s);\n'
        printf 'const want = (ok, what) => { if (!ok) say("WRONG " + what) };\n'
        printf 'addEventListener("load", () => {\ntry {\n%s\n} catch (e) { say("WRONG " + e) }\n' "$2"
        printf 'const p = document.createElement("pre"); p.id = "said";\n'
        printf 'p.textContent = said.concat("END").join("; ");\n'
        printf 'document.body.append(p) });\n</script>\n'
    } >"$tmp/page.html"
    "$browser" --headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --user-data-dir="$tmp/profile" \
        --enable-logging=stderr --window-size=1600,1000 --virtual-time-budget=20000 --dump-dom \
        "file://$tmp/page.html" >"$tmp/dom" 2>"$tmp/err"
    grep -E 'CONSOLE.*(Uncaught|Error)' "$tmp/err" && return 1
    if ! grep -q 'id="said">.*END' "$tmp/dom"; then
        echo "the script has not come to its end"
        tail -n 5 "$tmp/err"
        return 1
    fi
    sed -n 's/.*id="said">\([^<]*\)<.*/\1/p' "$tmp/dom"
    ! grep -q 'id="said">.*WRONG' "$tmp/dom"
}

# ---- pages of programs ----

page='
const text = r => r.querySelector("span").textContent;
for (const c of columns) {
  const all = [...c.rows.querySelectorAll(".r")];
  want(all.length === c.items.length && c.items.length > 0, c.name + " has other rows than items");
  for (const r of all)
    want(text(r).trim() && !/undefined|NaN|\[object/.test(r.textContent), c.name + ": " + r.textContent);
}
want(stages.length > 0 && stageColumns.every((c, k) => c.items.length === stages[k].rows.length), "rows of stages");
stages.forEach(s => want(s.rows.filter(r => r[TYPE]).length >= s.nodes - 1, s.name + " has fewer rows than nodes"));
want(!launchColumn || launchColumn.items.length === data.launches.length, "launches");
say(columns.map(c => c.name + " " + c.items.length).join(", "));
let clicks = 0;
for (const c of columns) for (let i = 0; i < c.items.length && i < 200; i++) {
  c.row(i).click();
  clicks++;
  const picked = c.row(i).classList.contains("picked") && $("about").textContent.length > 20;
  want(picked, c.name + " row " + i + " is not picked");
}
for (const h of document.querySelectorAll("h2")) { h.click(); h.click() }
$("find").value = "add"; $("find").oninput(); $("find").value = ""; $("find").oninput();
say(clicks + " clicks");
const lineTexts = lineColumn ? [...lineColumn.rows.querySelectorAll(".r")].map(text) : [];
want(new Set(lineTexts).size === lineTexts.length, "two lines are called the same: " + lineTexts.join(" | "));
if (launchColumn) {
  const whole = launchColumn.rows.clientWidth < 0.25 * $("columns").clientWidth;
  for (const r of launchColumn.rows.querySelectorAll("span"))
    want(!whole || r.scrollWidth <= r.clientWidth + 1, "cut: " + r.textContent);
}'

check 'a page of a graph' sh -c "'$B/kiln' dump examples/mlp_step.kir --stage fused -o '$tmp/mlp.html'"
check 'a page of a graph, opened' opened "$tmp/mlp.html" "$page"
check 'a profile of a graph' sh -c "'$B/kiln' profile examples/mlp_step.kir --rounds 1 --page '$tmp/profile.html'"
check 'a profile of a graph, opened' opened "$tmp/profile.html" "$page
want(data.launches.some(l => l.ns), 'no times');"
models=yes
"$B/tests/api_example_models" "$tmp" >"$tmp/check" 2>&1 || models=
if [ -n "$models" ]; then
    check 'a page of a model' sh -c "'$B/kiln' profile '$tmp/faces.onnx' --rounds 1 --page '$tmp/model.html'"
    check 'a page of a model, opened' opened "$tmp/model.html" "$page
want(lineTexts.includes('v2') && lineTexts.length > 5, 'names of nodes: ' + lineTexts.join(' | '));
want(!lineTexts.some(t => /:\$/.test(t)), 'a line ends with a colon');"
elif ! grep -q ONNX "$tmp/check"; then check 'models' false; fi
check 'a page without kernels' sh -c "'$B/kiln' dump examples/mlp_step.kir --stage captured -o '$tmp/c.html'"
check 'that page, opened' opened "$tmp/c.html" "$page"

# ---- charts: as many bars as the data say, texts inside of the picture ----

chart='
const svg = document.querySelector("svg"), box = svg.viewBox.baseVal;
for (const t of svg.querySelectorAll("text")) {
  const b = t.getBBox();
  want(b.x >= 0 && b.x + b.width <= box.width + 1 && b.y + b.height <= box.height + 1, "outside: " + t.textContent);
}
const bars = [...svg.querySelectorAll("rect:not(.time)")].filter(r => r.getAttribute("height") === "14");
const times = svg.querySelectorAll("rect.time");
say(bars.length + " bars, " + times.length + " of time");'
cat >"$tmp/rows.json" <<'END'
[{"bench": "one", "case": "alone", "variant": "fused", "threads": 1, "median": 10, "min": 9, "max": 11, "unit": "us",
  "limit": 5, "fraction": 0.5, "baseline": null, "ratio": null},
 {"bench": "one", "case": "two", "variant": "fused", "threads": 1, "median": 10, "min": 9, "max": 11, "unit": "us",
  "limit": 5, "fraction": 0.5, "baseline": "unfused", "ratio": 2},
 {"bench": "one", "case": "two", "variant": "unfused", "threads": 1, "median": 20, "min": 19, "max": 21, "unit": "us",
  "limit": 5, "fraction": 0.25, "baseline": null, "ratio": null},
 {"bench": "one", "case": "two", "variant": "torch", "threads": 1, "median": null, "min": null, "max": null,
  "unit": "", "limit": null, "fraction": null, "baseline": null, "ratio": null, "missing": "it is not installed"},
 {"bench": "two & <three>", "case": "a case with a name that has far too many letters", "variant": "GB/s", "threads": 2,
  "median": 99, "min": 98, "max": 100, "unit": "GB/s", "limit": null, "fraction": null, "baseline": null,
  "ratio": null}]
END
check 'a chart' "$B/kiln" chart "$tmp/rows.json" -o "$tmp/rows.svg"
check 'a chart, opened' opened "$tmp/rows.svg" "$chart
want(bars.length === 4 && times.length === 2, 'bars');
want(+times[1].getAttribute('width') === 2 * +times[0].getAttribute('width'), 'a time twice as long');
want(!/torch/.test(svg.textContent) && /two & <three>/.test(svg.textContent), 'texts');"
for name in gemm skinny overhead; do
    check "bench $name" "$B/bench/$name" --smoke --json "$tmp/$name.json"
    check "a chart of bench $name" "$B/kiln" chart "$tmp/$name.json" -o "$tmp/$name.svg"
    rows=$(grep -c '"bench"' "$tmp/$name.json")
    check "a chart of bench $name, opened" opened "$tmp/$name.svg" "$chart
want(bars.length === $rows, bars.length + ' bars for $rows rows');"
done

# ---- a training run ----

i=1
while [ $i -le 40 ]; do
    echo "{\"step\": $i, \"loss\": $((50 - i)).5, \"rate\": 0.01, \"seconds\": $i}"
    i=$((i + 1))
done >"$tmp/log"
check 'curves' "$B/kiln" train-log "$tmp/log" -o "$tmp/log.html"
check 'curves, opened' opened "$tmp/log.html" '
want(rows.length === 40 && rows[39][1] === 10.5, "rows");
const lines = [...document.querySelectorAll("polyline")];
want(lines.length >= 2 && lines.every(l => l.getAttribute("points").trim().split(" ").length > 1), "curves");
const svg = document.querySelector("svg"), b = svg.getBoundingClientRect();
svg.dispatchEvent(new MouseEvent("mousemove", { clientX: b.left + b.width * 0.5, clientY: b.top + 20 }));
const at = document.getElementById("at").textContent;
want(/^step \d+: loss [\d.]+, rate 0.01$/.test(at), at);
say(rows.length + " steps, " + lines.length + " curves");'

# ---- the test itself: a script that fails, and one that finds something wrong ----

failing() { ! opened "$@"; }
sed 's/^const \$ = /undefined_function();\nconst $ = /' "$tmp/mlp.html" >"$tmp/bad.html"
check 'a page whose script fails' failing "$tmp/bad.html" "$page"
check 'a page with a row too few' failing "$tmp/mlp.html" "columns[0].rows.querySelector('.r').remove(); $page"

echo "$p passed, $f failed, 0 skipped"
[ "$f" -eq 0 ]
