/* Names in messages: those of the tensors that a failing call has looked at, and scopes of names.
 *
 * A scope's path is part of the call sites of nodes, as "FUNCTION.PATH" in place of the function: dumps, pages and
 * profiles show it without knowing of scopes.  Sites with a path are made once and kept. */
#include "frontend/frontend.h"
#include "ir/text/text.h"
#include <kiln/extend.h>
#include <string.h>

/* ---- names of operands ---- */

enum { SEEN = sizeof ((struct operands_seen *)0)->id / sizeof(uint64_t) };

/* The name, dtype and shape of a tensor that has a name; false: it has none, or has ended. */
static bool operand_name(uint64_t id, char name[64], struct view *v)
{
    front_lock(); /* kl_set_name of another thread */
    const struct entry *x = entry_peek((kl_tensor){id});
    bool known = x && x->name[0] && x->kind != KIND_POISON;
    if (known)
        memcpy(name, x->name, sizeof x->name);
    front_unlock();
    if (!known)
        return false;
    const struct graph *g = x->kind == KIND_TEMP && x->trace ? x->trace->r.g : NULL;
    const struct node *n = g ? node_at(g, x->node) : NULL;
    *v = n ? (struct view){n->dtype, g->shape[n->shape], entry_device(x)}
           : (struct view){x->dtype, x->shape, entry_device(x)};
    return v->dtype < KL_DTYPE_COUNT;
}

/* The start of the word with the text, if that stands in the message once; else NULL. */
static char *only_place(char *message, const char *text)
{
    char *found = NULL;
    for (char *at = strstr(message, text); at; at = strstr(at + 1, text)) {
        if (found)
            return NULL;
        found = at;
    }
    while (found && found > message && found[-1] != ' ') /* a dtype before the shape */
        found--;
    return found;
}

/* Inserts the text at the place; false: there is no room. */
static bool message_insert(char *message, size_t size, char *at, const char *text)
{
    size_t length = strlen(text), rest = strlen(at) + 1;
    if ((size_t)(at - message) + length + rest > size)
        return false;
    memmove(at + length, at, rest);
    memcpy(at, text, length);
    return true;
}

void operands_add_names(struct thread *t, char *message, size_t size)
{
    const struct operands_seen *s = &t->seen;
    unsigned n = s->site == t->site ? s->n < SEEN ? s->n : SEEN : 0;
    for (unsigned i = 0; i < n; i++) { /* the last ones first */
        char name[64], shape[SHAPE_TEXT], text[2 * SHAPE_TEXT + 128];
        struct view v;
        uint64_t id = s->id[(s->n - 1 - i) % SEEN];
        bool again = false;
        for (unsigned k = 0; k < i; k++)
            again |= s->id[(s->n - 1 - k) % SEEN] == id;
        if (again || !operand_name(id, name, &v))
            continue;
        snprintf(text, sizeof text, "\"%s\"", name);
        if (strstr(message, text))
            continue;
        shape_text(&v.shape, shape, sizeof shape);
        char *at = v.shape.rank ? only_place(message, shape) : NULL;
        if (at)
            snprintf(text, sizeof text, "\"%s\" ", name);
        else
            snprintf(text, sizeof text, "; \"%s\" is %s%s", name, dtype_name(v.dtype), shape);
        message_insert(message, size, at ? at : message + strlen(message), text);
    }
}

/* ---- scopes ---- */

enum { PATH = 100, DEPTH = 32, CACHED = 64, SITES_MAX = 1 << 16 };

/* A call site in a scope. */
struct named_site {
    kl_site is;                  /* its func is "FUNCTION.PATH" */
    const char *func;            /* of the site without a scope */
    const char *path;            /* the end of is.func */
};

struct name_scopes {
    char path[PATH + 1];
    uint32_t depth;
    uint32_t before[DEPTH];      /* the path's length before each open scope */
    uint32_t module[DEPTH];      /* where in the path the name begins of the module that each open scope is in */
    const struct named_site *cache[CACHED]; /* by hash */
};

/* All sites with a path, in a hash table that is at most half full; under the lock, kept until the process ends. */
static struct named_site **sites;
static uint32_t nsites, sites_cap;

static uint64_t site_hash(const kl_site *site, const char *path)
{
    uint64_t h = ((uintptr_t)site->file ^ (uint64_t)(uint32_t)site->line << 40) * UINT64_C(0x9E3779B97F4A7C15);
    for (; *path; path++)
        h = (h ^ (unsigned char)*path) * UINT64_C(0x100000001B3);
    return h ^ h >> 29;
}

static bool is_site(const struct named_site *n, const kl_site *site, const char *path)
{
    return n && n->is.line == site->line && n->is.file == site->file && n->func == site->func && !strcmp(n->path, path);
}

static struct named_site **find_site(const kl_site *site, const char *path, uint64_t hash)
{
    uint32_t i = (uint32_t)hash & (sites_cap - 1);
    while (sites[i] && !is_site(sites[i], site, path))
        i = (i + 1) & (sites_cap - 1);
    return &sites[i];
}

static bool sites_grow(void)
{
    uint32_t cap = sites_cap ? 2 * sites_cap : 256, old_cap = sites_cap;
    struct named_site **old = sites, **more = mem_alloc(cap * sizeof *more);
    if (!more)
        return false;
    sites = more;
    sites_cap = cap;
    for (uint32_t i = 0; i < old_cap; i++)
        if (old[i]) {
            kl_site plain = {old[i]->is.file, old[i]->is.line, old[i]->func};
            *find_site(&plain, old[i]->path, site_hash(&plain, old[i]->path)) = old[i];
        }
    mem_free(old);
    return true;
}

/* NULL: no memory, or there are too many. */
static const struct named_site *named_site(const kl_site *site, const char *path, uint64_t hash)
{
    if (2 * nsites >= sites_cap && (nsites >= SITES_MAX || !sites_grow()))
        return NULL;
    struct named_site **at = find_site(site, path, hash);
    if (*at)
        return *at;
    size_t function = strlen(site->func), length = strlen(path);
    struct named_site *n = mem_alloc(sizeof *n + function + length + 2);
    char *text = n ? (char *)(n + 1) : NULL;
    if (!n)
        return NULL;
    memcpy(text, site->func, function);
    text[function] = '.';
    memcpy(text + function + 1, path, length + 1);
    *n = (struct named_site){{site->file, site->line, text}, site->func, text + function + 1};
    nsites++;
    return *at = n;
}

const kl_site *name_scope_site(struct thread *t, const kl_site *site)
{
    struct name_scopes *s = t->names;
    if (!s || !*s->path || !site || !site->func || strchr(site->func, '.'))
        return site;
    uint64_t hash = site_hash(site, s->path);
    const struct named_site **cached = &s->cache[hash >> 32 & (CACHED - 1)];
    if (is_site(*cached, site, s->path))
        return &(*cached)->is;
    front_lock();
    const struct named_site *n = named_site(site, s->path, hash);
    front_unlock();
    return n ? &(*cached = n)->is : site;
}

const char *name_scope_path(const struct thread *t) { return t->names ? t->names->path : ""; }
uint32_t name_scope_depth(const struct thread *t) { return t->names ? t->names->depth : 0; }
void name_scopes_free(struct thread *t) { mem_free(t->names); }

void name_scopes_end(struct thread *t, uint32_t depth)
{
    if (name_scope_depth(t) <= depth)
        return;
    t->names->path[t->names->before[depth]] = 0;
    t->names->depth = depth;
}

/* NULL: reported. */
static struct name_scopes *scopes_of_thread(struct thread *t, const char *op)
{
    if (t && !t->names && !(t->names = mem_alloc(sizeof *t->names)))
        fail(t, KL_ERR_MEMORY, "%s: out of memory", op);
    return t ? t->names : NULL;
}

static bool is_scope_name(const char *name)
{
    const char *c = name;
    while (c && is_name_char(*c))
        c++;
    return c && c != name && !*c;
}

static uint32_t name_scope_module(const struct name_scopes *s) { return s->depth ? s->module[s->depth - 1] : 0; }

/* Opens a scope; there is room.  name: "" adds nothing to the path. */
static void scope_push(struct name_scopes *s, const char *name, uint32_t module)
{
    size_t end = strlen(s->path);
    s->before[s->depth] = (uint32_t)end;
    s->module[s->depth++] = module;
    if (*name && end)
        s->path[end++] = '.';
    memcpy(s->path + end, name, strlen(name) + 1);
}

kl_status kl_name_begin(const char *name)
{
    struct thread *t = thread_self();
    struct name_scopes *s = scopes_of_thread(t, "name_begin");
    if (!s)
        return KL_ERR_MEMORY;
    if (!is_scope_name(name))
        return fail(t, KL_ERR_ARGUMENT, "name_begin: \"%.*s\" is no name of letters, digits, '_' and '.'", PATH,
                    name ? name : "(NULL)");
    size_t before = strlen(s->path), length = strlen(name);
    if (s->depth == DEPTH || before + (before > 0) + length > PATH)
        return fail(t, KL_ERR_ARGUMENT, "name_begin: \"%.*s\" %s", PATH, name,
                    s->depth == DEPTH ? "would be the 33rd open scope" : "makes a path of more than 100 bytes");
    scope_push(s, name, name_scope_module(s));
    return KL_OK;
}

static kl_status name_scope_end(const char *op)
{
    struct thread *t = thread_self();
    if (!t)
        return KL_ERR_MEMORY;
    if (name_scope_depth(t) == t->floor.names)
        return fail(t, KL_ERR_ARGUMENT, "%s: %s", op,
                    name_scope_depth(t) ? "the scope was begun outside of this function or suspension"
                                        : "no scope is open");
    name_scopes_end(t, name_scope_depth(t) - 1);
    return KL_OK;
}

kl_status kl_name_end(void) { return name_scope_end("name_end"); }

/* ---- scopes of modules ---- */

/* The parameter's name without its last parts; "": it has no such name, or one that was cut. */
static void module_path(kl_tensor parameter, int parts, char path[64])
{
    front_lock(); /* kl_set_name of another thread */
    const struct entry *x = entry_peek(parameter);
    memcpy(path, x ? x->name : "", x ? sizeof x->name : 1);
    front_unlock();
    if (strlen(path) == sizeof x->name - 1)
        *path = 0;
    for (int i = 0; i < parts; i++) {
        char *dot = strrchr(path, '.');
        *(dot ? dot : path) = 0;
    }
}

/* The rest of the name, if it begins with all parts of `start`; else NULL. */
static const char *behind_parts(const char *name, const char *start)
{
    size_t n = strlen(start);
    if (!n || strncmp(name, start, n) || (name[n] && name[n] != '.'))
        return NULL;
    return name[n] ? name + n + 1 : name + n;
}

kl_status kl_module_begin(kl_tensor parameter, int parts)
{
    struct thread *t = thread_self();
    struct name_scopes *s = scopes_of_thread(t, "module_begin");
    char path[64];
    if (!s)
        return KL_ERR_MEMORY;
    if (parts < 0 || s->depth == DEPTH)
        return fail(t, KL_ERR_ARGUMENT, "module_begin: %d parts%s", parts, parts < 0 ? "" : " in the 33rd open scope");
    module_path(parameter, parts, path);
    uint32_t at = name_scope_module(s), before = (uint32_t)strlen(s->path);
    const char *rest = behind_parts(path, s->path + at);
    uint32_t module = rest || !before ? at : before + 1;
    rest = rest ? rest : path;
    bool fits = is_scope_name(rest) && before + 1 + strlen(rest) <= PATH;
    scope_push(s, fits ? rest : "", fits ? module : at);
    return KL_OK;
}

kl_status kl_module_end(void) { return name_scope_end("module_end"); }
