/* Writes a timeline as trace events (Chrome's Trace Event Format, JSON Object Format): a row for each thread, a
 * complete event for each span, in microseconds since the beginning. */
#include "ir/file_signal.h"
#include "runtime/runtime.h"
#include <errno.h>
#include <string.h>
#include <unistd.h>

static const char *const name_of[SPANS] = {
    [SPAN_KERNEL] = "kernel", [SPAN_SHARE] = "share of a kernel", [SPAN_COPY] = "copy", [SPAN_CUSTOM] = "custom op",
    [SPAN_INTERP] = "interpreter", [SPAN_REGION] = "region op", [SPAN_RECORD] = "record", [SPAN_STEP] = "run",
    [SPAN_READ] = "read", [SPAN_PASSES] = "passes", [SPAN_PLAN] = "plan", [SPAN_COMPILE] = "compile",
    [SPAN_LOAD] = "load from disk"};

/* A JSON string; bytes that are not ASCII may be invalid UTF-8 and become '?'. */
static void timeline_json_put_string(FILE *f, const char *s)
{
    fputc('"', f);
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;
        if (c == '"' || c == '\\') fprintf(f, "\\%c", c);
        else if (c < 0x20) fprintf(f, "\\u%04x", c);
        else fputc(c < 0x7f ? c : '?', f);
    }
    fputc('"', f);
}

/* With three decimals and a point, independent of the locale. */
static void timeline_json_put_number(FILE *f, const char *key, double v)
{
    long long milli = (long long)(v * 1e3 + 0.5);
    fprintf(f, ",\"%s\":%lld.%03lld", key, milli / 1000, milli % 1000);
}

static void put_event(FILE *f, const struct timeline *t, const struct event *e, long tid)
{
    /* a span that was running when the recording began */
    int64_t since = e->start > t->start ? e->start - t->start : 0;
    fprintf(f, ",\n{\"ph\":\"X\",\"pid\":%ld,\"tid\":%ld", (long)getpid(), tid);
    timeline_json_put_number(f, "ts", 1e-3 * (double)since);
    timeline_json_put_number(f, "dur", 1e-3 * (double)e->ns);
    fputs(",\"cat\":", f);
    timeline_json_put_string(f, name_of[e->kind]);
    fputs(",\"name\":", f);
    if (e->kind >= SPAN_RECORD) { /* the activity, then its name */
        char name[128];
        snprintf(name, sizeof name, "%s %.100s", name_of[e->kind], e->name);
        timeline_json_put_string(f, name);
    } else {
        timeline_json_put_string(f, e->name);
    }
    if (e->bytes || e->flops) {
        double ns = e->ns > 0 ? (double)e->ns : 1;
        fprintf(f, ",\"args\":{\"bytes\":%lld,\"flops\":%lld", (long long)e->bytes, (long long)e->flops);
        timeline_json_put_number(f, "GB/s", (double)e->bytes / ns);
        timeline_json_put_number(f, "GFLOP/s", (double)e->flops / ns);
        fputc('}', f);
    }
    fputc('}', f);
}

static void put_thread(FILE *f, const struct timeline *t, const struct thread_events *h, bool main_thread)
{
    fprintf(f, ",\n{\"ph\":\"M\",\"pid\":%ld,\"tid\":%ld,\"name\":\"thread_name\",\"args\":{\"name\":", (long)getpid(),
            h->tid);
    timeline_json_put_string(f, h->name);
    fprintf(f,
            "}},\n{\"ph\":\"M\",\"pid\":%ld,\"tid\":%ld,\"name\":\"thread_sort_index\",\"args\":{\"sort_index\":%d}}",
            (long)getpid(), h->tid, !main_thread);
    for (uint32_t i = 0; i < h->n; i++) put_event(f, t, &h->v[i], h->tid);
}

bool timeline_json(const struct timeline *t, const char *path, struct err *e)
{
    struct whole_file w;
    FILE *f = whole_file_open(&w, path);
    if (f) {
        fprintf(f,
                "{\"displayTimeUnit\":\"ns\",\"otherData\":{\"made by\":\"Kiln\",\"spans left "
                "out\":%llu},\n\"traceEvents\":[\n"
                "{\"ph\":\"M\",\"pid\":%ld,\"name\":\"process_name\",\"args\":{\"name\":\"kiln\"}}",
                (unsigned long long)t->dropped, (long)getpid());
        for (uint32_t i = 0; i < t->n; i++)
            if (t->thread[i].n) put_thread(f, t, &t->thread[i], !strcmp(t->thread[i].name, "main"));
        fputs("\n]}\n", f);
    }
    return whole_file_close(&w) || err_set(e, KL_ERR_IO, "profile: %s: %s", path, strerror(errno));
}
