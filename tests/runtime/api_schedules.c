/* User-supplied schedules, through the public header: what dump stage "schedules" writes, edited, gives other kernels
 * and the same bits; a text that comes back finds its programs again; errors say where; nothing else is disturbed. */
#include "tests/support/api_check.h"
#include <sys/stat.h>
#include <unistd.h>

enum { ROWS = 37, COLUMNS = 50 };

static kl_tensor a, b;
static float first[ROWS * COLUMNS], result[ROWS * COLUMNS];

static kl_status run(const char *name)
{
    kl_trace_begin(name);
    kl_tensor y = kl_keep(kl_softmax(kl_add_scalar(kl_matmul(kl_tanh(a), b), 0.5), 1));
    kl_tensor z = kl_keep(kl_mul(kl_exp(a), a));
    kl_status status = kl_trace_end();
    if (!status) {
        kl_read(y, result, sizeof result);
        kl_release(y);
        kl_release(z);
    }
    return status;
}

static bool same(void) { return !memcmp(first, result, sizeof first); }

static char dir[] = "/tmp/kiln-schedules-XXXXXX";

static const char *path(const char *file)
{
    static char p[256];
    snprintf(p, sizeof p, "%s/%s", dir, file);
    return p;
}

static char *file_text(const char *file)
{
    static char text[1 << 16];
    FILE *f = fopen(path(file), "r");
    text[f ? fread(text, 1, sizeof text - 1, f) : 0] = 0;
    if (f)
        fclose(f);
    return text;
}

/* Removes a program's dump; "" is the folder. */
static void remove_dump(const char *name)
{
    static const char *const ext[] = {"captured.kir", "differentiated.kir", "simplified.kir", "numerics.kir",
                                      "fused.kir",
                                      "scheduled.loop", "schedules.txt", "source.cu", "llvm.ll", "asm.s"};
    for (size_t i = 0; i < sizeof ext / sizeof *ext; i++) {
        char file[128];
        snprintf(file, sizeof file, "%s.%s", name, ext[i]);
        unlink(path(file));
    }
}

/* text with the first `from` replaced; false: it is not there. */
static bool edit(const char *text, const char *from, const char *to, char *out, size_t size)
{
    const char *at = strstr(text, from);
    snprintf(out, size, "%.*s%s%s", at ? (int)(at - text) : 0, text, at ? to : "", at ? at + strlen(from) : "");
    return at;
}

static int64_t compiled(void) { return kl_counter("compiles") + kl_counter("disk_hits") + kl_counter("kernel_hits"); }

static void refused(const char *text, const char *why)
{
    OK(kl_set_schedules(text));
    CHECK(run("step") == KL_ERR_ARGUMENT && strstr(kl_last_error(), why));
}

/* A line for the kernel of `kind` in an unchanged text. */
static void kernel_of(const char *text, const char *kind, char *name, size_t size)
{
    const char *at = strstr(text, kind), *start = at;
    while (start && start > text && start[-1] != '\n')
        start--;
    snprintf(name, size, "%.*s", start ? (int)(strchr(start, ' ') - start) : 0, start);
}

static void round_trip(void)
{
    char own[4096], other[4096], scheduled[1 << 16], mul[128], rows[128], text[512];
    kl_dump_next(dir);
    OK(run("step"));
    memcpy(first, result, sizeof first);
    snprintf(own, sizeof own, "%s", file_text("step.schedules.txt"));
    snprintf(scheduled, sizeof scheduled, "%s", file_text("step.asm.s"));
    remove_dump("step");
    CHECK(!strncmp(own, "graph @step\n@k0_", 16) && strstr(own, "schedule rows width 64") && strstr(own, " tile "));

    int64_t built = kl_counter("graphs_built"), code = compiled();
    OK(kl_set_schedules(own)); /* its own choice: another program of the same kernels */
    OK(run("step"));
    CHECK(same() && kl_counter("graphs_built") == built + 1 && compiled() > code);
    CHECK(strstr(kl_trace_miss(), "with other schedules"));

    char tile[80] = "", width[64] = "";
    sscanf(strstr(own, " tile "), " tile %63s", width);
    snprintf(tile, sizeof tile, "tile %s", width);
    char whole[4096], task[40];
    snprintf(task, sizeof task, " rows %u ", (unsigned)strtoul(strstr(own, " rows ") + 6, NULL, 10));
    CHECK(edit(own, tile, "tile 3x16", whole, sizeof whole) && edit(whole, task, " rows 3 ", other, sizeof other));
    char *nr = strstr(strstr(other, "schedule dot"), "width ");
    memmove(nr + 8, nr + strcspn(nr + 6, " ") + 6, strlen(nr + strcspn(nr + 6, " ") + 6) + 1);
    memcpy(nr, "width 16", 8);
    OK(kl_set_schedules(other));
    kl_dump_next(dir);
    OK(run("step"));
    CHECK(same() && strcmp(scheduled, file_text("step.asm.s")) &&
          strstr(file_text("step.scheduled.loop"), "tile 3x16"));
    CHECK(!strcmp(file_text("step.schedules.txt"), other));
    remove_dump("step");
    CHECK(edit(other, " rows 3 ", " rows 2 ", whole, sizeof whole)); /* no whole tile */
    refused(whole, "rows 2: a task has a whole number of tiles, of 3 rows, or all rows");
    char chosen[4096];
    CHECK(edit(other, " rows 3", "", whole, sizeof whole)); /* as chosen */
    CHECK(edit(whole, " epilogue in_tile", "", chosen, sizeof chosen));
    OK(kl_set_schedules(chosen));
    OK(run("step"));
    CHECK(same());
    OK(kl_set_schedules(other));
    OK(run("step"));
    built = kl_counter("graphs_built");
    for (int i = 0; i < 4; i++) { /* back and forth: all is known, and a replayed trace notices, too */
        OK(kl_set_schedules(i & 1 ? other : NULL));
        OK(run("step"));
        OK(run("step"));
        CHECK(same());
    }
    CHECK(kl_counter("graphs_built") == built);

    kernel_of(own, "schedule map", mul, sizeof mul);
    kernel_of(own, "schedule rows", rows, sizeof rows);
    snprintf(text, sizeof text, "%s schedule map width 8\ngraph @other\n@k7_none schedule map width 4\n", mul);
    OK(kl_set_schedules(text)); /* in front of all sections: for any graph; a section for another is no matter */
    OK(run("step"));
    CHECK(same());
    CHECK(run("other") == KL_ERR_ARGUMENT && strstr(kl_last_error(),
                                                    "schedules:3:1: graph @other has no kernel @k7_none"));

    snprintf(text, sizeof text, "# mine\ngraph @step\n  %s schedule map width 24\n", mul);
    char why[256];
    snprintf(why, sizeof why, "schedules:3:%d: width 24: it may be 1, 2, 4 .. 64", (int)strlen(mul) + 17);
    refused(text, why);
    snprintf(text, sizeof text, "%s schedule rows width 16\n", rows);
    refused(text, "width 16: it is 64 here, the order of the graph's sums");
    snprintf(text, sizeof text, "%s schedule map width 16\n", rows);
    refused(text, "the kernel's kind is not a choice: its own record is \"schedule rows");
    snprintf(text, sizeof text, "%s schedule rows width 64 keep 9\n", rows);
    refused(text, "keep: only of members that several passes over the row need");
    snprintf(text, sizeof text, "%s schedule map width 4\n@k9_gone schedule dot\n", mul);
    refused(text, "schedules:2:1: graph @step has no kernel @k9_gone; it has @k0_");

    kl_set_option("fuse", 0); /* what is for fused kernels is not for the others */
    OK(run("step"));
    CHECK(same());
    OK(kl_set_schedules("graph @step unfused\n@k99 schedule map width 1\n"));
    CHECK(run("step") == KL_ERR_ARGUMENT && strstr(kl_last_error(), "graph @step has no unfused kernel @k99"));
    kl_set_option("fuse", 1);
    OK(run("step"));
    OK(kl_set_schedules(NULL));
}

static void texts(void)
{
    static const struct { const char *text, *why; } wrong[] = {
        {"@k0 schedul map", "schedules:1:5: expected 'schedule', found 'schedul'"},
        {"graph @g\n@k0 schedule maps width 4",
         "schedules:2:14: expected a kind of schedule such as map, found 'maps'"},
        {"@k0 schedule map width x", "schedules:1:24: expected width, found 'x'"},
        {"@k0 schedule map grain 4 width 8",
         "schedules:1:26: expected width, vectors, vector, join_short, tasks, stream or grain in this order"},
        {"@k0 schedule dot epilogue soon", "schedules:1:27: expected in_tile, after_tile, after_rows or during_next"},
        {"@k0 schedule map width 70000", "width is above 65535"},
        {"@k0 schedule rows keep 2,64", "schedules:1:26: keep is above 63"},
        {"@k0 schedule dot tile 3", "expected 'x' and another side of the tile"},
        {"@k0 schedule map\n@k0 schedule map", "schedules:2:1: kernel @k0 has a schedule already, in line 1"},
        {"graph @g\ngraph @g unfused\ngraph @g", "schedules:3:7: graph @g has a section already"},
        {"graph @g fused", "schedules:1:10: expected unfused or the end of the line, found 'fused'"},
        {"kernel @k0 {", "schedules:1:1: expected 'graph' or '@' and a kernel's name, found 'kernel'"},
        {"@", "expected a name"},
        {"@\"k0 schedule map", "has no closing"},
        {"@a123456789012345678901234567890123456789012345678901234567890123 schedule map", "longer than 63 bytes"},
    };
    OK(kl_set_schedules("graph @step\n@k99 schedule map width 1\n"));
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        CHECK(kl_set_schedules(wrong[i].text) == KL_ERR_PARSE && strstr(kl_last_error(), wrong[i].why));
    CHECK(run("step") == KL_ERR_ARGUMENT); /* those before are still in force */
    OK(kl_set_schedules("\n# nothing\n"));
    OK(run("step"));
    CHECK(same());
}

int main(void)
{
    kl_device cpu = kl_device_named("cpu");
    if (!cpu.id) {
        printf("SKIP not-built cpu: %s\n0 passed, 0 failed, 1 skipped\n", kl_last_error());
        return 0;
    }
    device_now = "cpu";
    a = kl_randn(cpu, KL_F32, DIMS(ROWS, COLUMNS), 1);
    b = kl_randn(cpu, KL_F32, DIMS(COLUMNS, COLUMNS), 2);
    float ignored[ROWS * COLUMNS];
    kl_read(a, ignored, sizeof ignored);
    if (!CHECK(mkdtemp(dir)))
        return 1;
    round_trip();
    texts();
    CHECK(rmdir(dir) == 0);
    kl_release(a);
    kl_release(b);
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed != 0;
}
