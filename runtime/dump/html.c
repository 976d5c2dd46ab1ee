/* Writes a page that shows all stages of a program side by side. page.html is the page; this file writes its data, as
 * JSON in elements that the browser does not execute; no byte of the data can end the element.  The code of kernels,
 * most of the bytes, is compressed (deflate, base64). */
#include "dump.h"
#include "dump_page.h" /* of page.html: const char page[] */
#include <string.h>

struct page {
    struct text *out;
    const struct trail *trail;
    const struct times *times;         /* times of the program's commands; NULL: not measured */
    struct names site, type;           /* each is listed once */
    struct text site_list, type_list;  /* JSON */
    struct text source_list;           /* JSON: the line of source text of each site, "" if it cannot be read */
    struct source_file file;           /* the file that was read last */
    char **name; uint32_t nname, name_cap; /* the keys of the two lists */
    const struct graph *g;             /* the current stage */
    bool first;
    uint32_t nodes;
};

/* ---- JSON ---- */

/* The length of the UTF-8 sequence at s; 0: invalid. */
static int utf8_sequence_length(const unsigned char *s)
{
    int n = s[0] < 0x80 ? 1 : s[0] >= 0xc2 && s[0] < 0xe0 ? 2 : s[0] >= 0xe0 && s[0] < 0xf0 ? 3 : s[0] >= 0xf0 &&
        s[0] < 0xf5 ? 4 : 0;
    for (int i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    bool overlong = (s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xf0 && s[1] < 0x90);
    bool none = (s[0] == 0xed && s[1] >= 0xa0) || (s[0] == 0xf4 && s[1] >= 0x90); /* a surrogate, too large */
    return overlong || none ? 0 : n;
}

static bool is_plain(unsigned char c) { return c >= 0x20 && c < 0x7f && !strchr("\"\\<>&'", c); }

/* A JSON string. < > and & are escaped, so that it is safe in any element; invalid UTF-8 becomes U+FFFD. */
static void html_put_string(struct text *t, const char *s, size_t len)
{
    text_put(t, "\"");
    for (size_t i = 0; i < len;) {
        unsigned char c = (unsigned char)s[i];
        size_t n = 0;
        while (i + n < len && is_plain((unsigned char)s[i + n]))
            n++;
        if (n)
            text_put(t, "%.*s", (int)n, s + i);
        else if (c < 0x80)
            text_put(t, c == '\n' ? "\\n" : "\\u%04x", c);
        else if ((n = (size_t)utf8_sequence_length((const unsigned char *)s + i)))
            text_put(t, "%.*s", (int)n, s + i);
        else
            text_put(t, "\xef\xbf\xbd");
        i += n + !n;
    }
    text_put(t, "\"");
}

static void html_put(struct text *t, const char *s) { html_put_string(t, s, strlen(s)); }

/* The index of a string in a list; it is added if it is new. */
static uint32_t html_listed(struct page *p, struct names *names, struct text *list, const char *s)
{
    size_t len = strlen(s);
    char *copy = mem_alloc(len + 1);
    if (!copy || !mem_reserve(&p->name, &p->name_cap, p->nname + 1, sizeof *p->name)) {
        mem_free(copy);
        p->out->failed = true;
        return 0;
    }
    memcpy(copy, s, len);
    p->name[p->nname++] = copy;
    uint32_t *known = names_at(names, copy, len);
    if (!known) {
        p->out->failed = true;
        return 0;
    }
    if (!*known) {
        *known = names->n;
        text_put(list, "%s", names->n > 1 ? "," : "");
        html_put(list, s);
    } else {
        mem_free(p->name[--p->nname]);
    }
    return *known - 1;
}

/* Adds the source text of a site's line, for a site that is new in the list. */
static void put_source(struct page *p, const kl_site *s)
{
    size_t len = 0;
    const char *line = s->file && s->line > 0 ? source_line(&p->file, s->file, s->line, &len) : NULL;
    text_put(&p->source_list, "%s", p->site.n > 1 ? "," : "");
    html_put_string(&p->source_list, line ? line : "", len);
}

/* ---- rows: [path, text, origin, site, type, bytes, group, operands] ---- */

static uint32_t site_of(struct page *p, ref r)
{
    const kl_site *s = &p->g->site[p->g->node[r].site];
    char function[160], at[512] = "";
    trail_function(s, function, sizeof function);
    if (s->file && *s->file && s->line)
        snprintf(at, sizeof at, "%.300s:%d%s%s", s->file, s->line, *function ? " " : "", function);
    uint32_t known = p->site.n, number = html_listed(p, &p->site, &p->site_list, at);
    if (p->site.n > known)
        put_source(p, s);
    return number;
}

static uint32_t type_of(struct page *p, const struct node *n)
{
    char shape[SHAPE_TEXT], type[SHAPE_TEXT * 5];
    size_t at = 0;
    if (!op_is_region(n->op))
        snprintf(type, sizeof type, "%s%s", dtype_name(n->dtype),
                 shape_text_in(p->g, &p->g->shape[n->shape], shape, sizeof shape));
    for (uint32_t i = 0; op_is_region(n->op) && i < region_results(p->g, n) && at + SHAPE_TEXT + 32 < sizeof type;
         i++) {
        struct shape s;
        unsigned dtype = region_result(p->g, n, i, &s);
        at += (size_t)snprintf(type + at, sizeof type - at, "%s%s%s", i ? ", " : "", dtype_name(dtype),
                               shape_text_in(p->g, &s, shape, sizeof shape));
    }
    return html_listed(p, &p->type, &p->type_list, type);
}

static long long html_bytes_of(const struct graph *g, const struct node *n, ref r)
{
    size_t bytes = 0;
    if (!op_is_region(n->op))
        return shape_is_symbolic(node_shape(g, r)) ? 0 : (long long)node_bytes(g, r);
    for (uint32_t i = 0; i < region_results(g, n); i++) {
        struct shape s;
        region_result(g, n, i, &s);
        bytes += shape_is_symbolic(&s) ? 0 : region_result_bytes(g, n, i);
    }
    return (long long)bytes;
}

static void begin_row(struct page *p, const char *path, const char *id)
{
    char full[256];
    snprintf(full, sizeof full, "%s%s", path, id);
    text_put(p->out, "%s\n[", p->first ? "" : ",");
    p->first = false;
    html_put(p->out, full);
    text_put(p->out, ",");
}

/* A line that is not a node: the beginning of a region, an output. */
static void put_line(struct page *p, const char *path, const char *id, const char *text, ref operand)
{
    begin_row(p, path, id);
    html_put(p->out, text);
    text_put(p->out, ",\"\",0,0,0,\"\",[");
    if (operand) {
        char name[256];
        snprintf(name, sizeof name, "%s%u", path, operand);
        html_put(p->out, name);
    }
    text_put(p->out, "]]");
}

static void html_put_node(struct page *p, struct graph *g, ref r, const char *path)
{
    struct node *n = &g->node[r];
    char id[256];
    const char *origin = trail_origin(g, r);
    uint32_t site = site_of(p, r), own = n->site;
    n->site = 0; /* the row has it separately */
    char *line = node_text(g, r);
    n->site = own;
    size_t len = line ? strlen(line) : 0;
    while (len && (line[len - 1] == ' ' || line[len - 1] == '{'))
        len--;
    snprintf(id, sizeof id, "%u", r);
    begin_row(p, path, id);
    html_put_string(p->out, line ? line : "", len);
    mem_free(line);
    text_put(p->out, ",");
    html_put(p->out, origin);
    text_put(p->out, ",%u,%u,%lld,\"", site, type_of(p, n), html_bytes_of(g, n, r));
    if (g->group && g->group[r] != GROUP_NONE)
        text_put(p->out, "%s%u", path, g->group[r]);
    text_put(p->out, "\",[");
    for (unsigned i = 0; i < node_nin(n); i++)
        text_put(p->out, "%s\"%s%u\"", i ? "," : "", path, node_in(g, n, i));
    text_put(p->out, "]]");
    p->nodes++;
}

static void put_rows(struct page *p, struct graph *g, const char *path)
{
    for (ref r = 1; r < g->nnode; r++) {
        p->g = g;
        html_put_node(p, g, r, path);
        for (uint32_t i = 0; i < op_regions(g->node[r].op); i++) {
            char inner[200], id[64], text[160];
            struct graph *region = node_region(g, &g->node[r], i);
            snprintf(id, sizeof id, "%u/%u", r, i);
            snprintf(inner, sizeof inner, "%.150s%.30s/", path, id);
            snprintf(text, sizeof text, "region %u @%s", i, region->name);
            put_line(p, path, id, text, NIL);
            put_rows(p, region, inner);
        }
    }
    for (uint32_t i = 0; i < g->nout; i++) {
        const struct output *o = &g->out[i];
        char id[32], text[128];
        snprintf(id, sizeof id, "out%u", i);
        if (o->kind == OUT_ASSIGN)
            snprintf(text, sizeof text, "assign %u \"%s\" = %%%u", o->state, g->state.v[o->state].name, o->value);
        else
            snprintf(text, sizeof text, "%s %%%u", *path ? "yield" : "return", o->value);
        put_line(p, path, id, text, o->value);
    }
}

/* ---- the program ---- */

static void put_values(struct page *p, const struct program *q, const struct command *c, const char *path, bool written)
{
    bool first = true;
    uint32_t nin = c->kind == CMD_REGION || c->kind == CMD_CUSTOM ? node_nin(&q->g->node[c->region]) : 0;
    for (uint32_t i = 0; c->value && i < c->narg; i++) {
        ref r = c->value[i];
        bool out = c->kind == CMD_KERNEL ? q->kernel[c->kernel]->buf[i].role == BUF_OUT : c->kind == CMD_COPY ? !i
            : i >= nin;
        char shape[SHAPE_TEXT];
        if (!r || out != written)
            continue;
        text_put(p->out, "%s[\"%s%u\",\"%s%s\"]", first ? "" : ",", path, r, dtype_name(q->g->node[r].dtype),
                 shape_text_in(q->g, node_shape(q->g, r), shape, sizeof shape));
        first = false;
    }
}

static void put_commands(struct page *p, const struct program *q, const char *path)
{
    static const char *const kind[] = {"kernel", "copy", "interpreter", "region", "call"};
    for (uint32_t i = 0; i < q->ncmd; i++) {
        const struct command *c = &q->cmd[i];
        uint32_t group = command_group(q, c);
        if (c->kind == CMD_INTERP)
            continue;
        const char *what = c->kind == CMD_REGION   ? opinfo[q->g->node[c->region].op].name
                           : c->kind == CMD_CUSTOM ? node_custom(q->g, &q->g->node[c->region])->name
                                                   : kind[c->kind];
        text_put(p->out, "%s\n{\"kind\":", p->first ? "" : ",");
        p->first = false;
        html_put(p->out, what);
        text_put(p->out, ",\"kernel\":%lld,\"group\":\"", c->kind == CMD_KERNEL ? (long long)c->kernel : -1LL);
        if (group != GROUP_NONE)
            text_put(p->out, "%s%u", path, group);
        const struct command_time *t = p->times ? &p->times->row[c->row] : NULL;
        if (t && atomic_load(&t->calls))
            text_put(p->out, "\",\"calls\":\"%llu\",\"ns\":\"%llu", (unsigned long long)atomic_load(&t->calls),
                     (unsigned long long)atomic_load(&t->ns));
        text_put(p->out, "\",\"device\":\"%s\",\"reads\":[", device_name(c->device));
        put_values(p, q, c, path, false);
        text_put(p->out, "],\"writes\":[");
        put_values(p, q, c, path, true);
        text_put(p->out, "]}");
        for (uint32_t k = 0; k < 2; k++)
            if (c->sub[k]) {
                char inner[200];
                snprintf(inner, sizeof inner, "%.150s%u/%u/", path, c->region, k);
                put_commands(p, c->sub[k], inner);
            }
    }
}

/* A kernel's text in each form, as one compressed JSON object. */
static void put_code(struct page *p, const struct kernel *k, uint32_t number)
{
    struct text json = {0};
    char *loop = kernel_text(k);
    text_put(&json, "{\"loop\":");
    html_put(&json, loop ? loop : "");
    mem_free(loop);
    for (int kind = EMIT_LLVM; p->trail->backend && kind <= EMIT_ASM; kind++) {
        struct code code = {0};
        struct err e = {0};
        bool ok = device_compile(p->trail->device, k, (enum emit_kind)kind, &code, &e);
        text_put(&json, ",\"%s\":", kind == EMIT_LLVM ? "llvm" : "asm");
        html_put_string(&json, ok ? code.bytes : e.msg, ok ? strnlen(code.bytes, code.size) : strlen(e.msg));
        mem_free(code.bytes);
    }
    text_put(&json, "}");
    text_put(p->out, "<script type=\"application/json\" id=\"kernel-%u\">\"", number);
    if (json.failed || !put_compressed(p->out, json.s, json.len))
        p->out->failed = true;
    text_put(p->out, "\"</script>\n");
    mem_free(json.s);
}

static void put_program(struct page *p)
{
    const struct program *q = p->trail->program;
    text_put(p->out, "],\"launches\":[");
    p->first = true;
    if (q)
        put_commands(p, q, "");
    text_put(p->out, "],\n\"kernels\":[");
    for (uint32_t i = 0; q && i < q->nkernel; i++) {
        text_put(p->out, "%s\n{\"name\":", i ? "," : "");
        html_put(p->out, q->kernel[i]->name);
        text_put(p->out, ",\"flops\":%lld,\"bytes\":%lld}", (long long)q->kernel[i]->flops,
                 (long long)q->kernel[i]->bytes);
    }
    text_put(p->out, "],\n\"arena\":%lld,\"peak\":%lld", q ? (long long)program_arenas(q) : 0,
             q ? (long long)q->peak_bytes : 0);
}

static void put_data(struct page *p, const struct graph *captured, const struct dump_request *r)
{
    const struct trail *t = p->trail;
    text_put(p->out, "<script type=\"application/json\" id=\"data\">{\"name\":");
    html_put(p->out, captured->name);
    text_put(p->out, ",\"device\":\"%s\",\"fused\":%s,\"why\":", device_name((int)graph_device(t->graph[t->n - 1])),
             r->fuse ? "true" : "false");
    html_put(p->out, t->program ? "" : t->why.msg);
    text_put(p->out, ",\n\"stages\":[");
    for (uint32_t i = 0; i < t->n; i++) {
        text_put(p->out, "%s{\"name\":\"%s\",\"rows\":[", i ? ",\n" : "", t->name[i]);
        p->first = true;
        p->nodes = 0;
        put_rows(p, t->graph[i], "");
        text_put(p->out, "],\"nodes\":%u}", p->nodes);
    }
    put_program(p);
    text_put(p->out, ",\n\"sites\":[%s],\n\"sources\":[%s],\n\"types\":[%s]}</script>\n",
             p->site_list.len ? p->site_list.s : "", p->source_list.len ? p->source_list.s : "",
             p->type_list.len ? p->type_list.s : "");
    for (uint32_t i = 0; t->program && i < t->program->nkernel; i++)
        put_code(p, t->program->kernel[i], i);
}

/* As text between tags. */
static void put_title(struct text *t, const char *s)
{
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;
        if (c < 0x20 || c >= 0x7f || strchr("<>&\"'", c))
            text_put(t, c < 0x20 || c >= 0x7f ? "?" : "&#%d;", c);
        else
            text_put(t, "%c", c);
    }
}

void html_page(const struct trail *t, const struct graph *captured, const struct dump_request *r, struct text *out)
{
    struct page p = {.out = out, .trail = t};
    const char *title = strstr(page, "@TITLE@"), *data = strstr(page, "@DATA@");
    if (r->times && t->program && t->program->rows == r->times->x->program->rows)
        p.times = r->times;
    html_listed(&p, &p.site, &p.site_list, ""); /* number 0: unknown */
    text_put(&p.source_list, "\"\"");
    html_listed(&p, &p.type, &p.type_list, "");
    text_put(out, "%.*s", (int)(title - page), page);
    put_title(out, captured->name);
    text_put(out, "%.*s", (int)(data - title - strlen("@TITLE@")), title + strlen("@TITLE@"));
    put_data(&p, captured, r);
    text_put(out, "%s", data + strlen("@DATA@"));
    out->failed |= p.site_list.failed || p.type_list.failed || p.source_list.failed;
    for (uint32_t i = 0; i < p.nname; i++)
        mem_free(p.name[i]);
    mem_free(p.name);
    mem_free(p.site_list.s);
    mem_free(p.type_list.s);
    mem_free(p.source_list.s);
    source_close(&p.file);
    names_free(&p.site);
    names_free(&p.type);
}
