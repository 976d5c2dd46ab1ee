/* Dispatch as text: schemas, dumps, errors, and the log of a thread. */
#include "frontend/frontend.h"
#include "ir/text/text.h"
#include <stdlib.h>
#include <string.h>

/* ---- schemas ---- */

/* Counts the tensors in "Tensor a, Tensor b" up to the closing parenthesis or the end; `end` points after it. */
static bool count_tensors(const char *s, uint32_t *n, const char **end)
{
    *n = 0;
    for (s += strspn(s, " "); *s && *s != ')'; s += strspn(s, ", ")) {
        if (strncmp(s, "Tensor", 6))
            return false;
        s += 6;
        bool list = !strncmp(s, "[]", 2);
        *n = list || *n == VARIES ? VARIES : *n + 1;
        s += strcspn(s, ",)");
    }
    *end = s + (*s == ')');
    return true;
}

bool schema_counts(const char *schema, uint32_t *nin, uint32_t *nout)
{
    const char *s = strchr(schema, '('), *end;
    if (!s || !count_tensors(s + 1, nin, &end) || end[-1] != ')')
        return false;
    end += strspn(end, " ");
    if (strncmp(end, "->", 2))
        return false;
    s = end + 2 + strspn(end + 2, " ");
    bool list = *s == '(';
    return count_tensors(s + list, nout, &end) && (list ? end[-1] == ')' : *end == 0 && *nout >= 1) &&
           !end[strspn(end, " ")];
}

/* ---- dumps ---- */

static const char *const tag_text[] = {
    [TAG_MISSING] = "missing", [TAG_KERNEL] = "[kernel]", [TAG_DEFAULT] = "[default backend kernel]",
    [TAG_MATH] = "[math kernel]", [TAG_AMBIGUOUS] = "[ambiguous autogradother]", [TAG_AUTOGRAD] = "[autograd kernel]",
    [TAG_LAYER] = "[layer kernel]", [TAG_FALLBACK] = "[backend fallback]"};

static const char *kernel_location(const struct op_kernel *k)
{
    return k->kind == KERNEL_BUILTIN || k->kind == KERNEL_SELECT ||
        k->kind >= KERNEL_AMBIGUOUS ? "Kiln" : "a user's program";
}

static void kernel_line(const struct dispatch_op *op, const struct op_kernel *k, struct text *t)
{
    const char *schema = k->schema ? k->schema : op->schema ? op->schema + strcspn(op->schema, "(") : "(?)";
    if (k->kind == KERNEL_FALLTHROUGH)
        text_put(t, "fallthrough registered in %s", k->fn.name ? kernel_location(k) : "Kiln");
    else
        text_put(t, "%s :: %s [ %s ]", k->name, schema,
                 k->kind == KERNEL_RUN ? "run" : k->kind == KERNEL_CALL ? "boxed" : "boxed unboxed");
}

/* One registration; inactive: it is overridden. */
static void impl_text(const struct dispatch_op *op, const struct registration *r, bool active, struct text *t)
{
    text_put(t, "%s%s%s: ", kl_key_name((kl_key)r->key), kl_key_is_alias((kl_key)r->key) ? "[alias]" : "",
             active ? "" : " (inactive)");
    kernel_line(op, r->kernel, t);
    text_put(t, "\n");
}

static void state_text(const struct dispatch_op *op, struct text *t)
{
    text_put(t, "name: %s\n", op->name);
    if (op->defined)
        text_put(t, "schema: %s\ndebug: registered in %s\nalias analysis kind: PURE_FUNCTION\n", op->schema,
                 op->graph_op ? "Kiln" : "a user's program");
    else
        text_put(t, "schema: (none)\n");
    for (unsigned k = 0; k <= KL_KEY_DefaultBackend; k++) {
        bool active = true;
        for (const struct registration *r = op->impl; r; r = r->next)
            if (r->key == k) {
                impl_text(op, r, active, t);
                active = false;
            }
    }
}

static void table_text(const struct dispatch_op *op, struct text *t)
{
    for (unsigned k = 0; k < KL_KEY_COUNT; k++) {
        const struct op_kernel *kernel = atomic_load_explicit(&op->entry[k], memory_order_relaxed);
        text_put(t, "%s: ", key_info[k].name);
        if (kernel && kernel->kind == KERNEL_FALLTHROUGH)
            text_put(t, "fallthrough registered in %s ", kernel->fn.name ? "a user's program" : "Kiln");
        else if (kernel)
            text_put(t, "%s ", kernel->name);
        text_put(t, "%s\n", tag_text[op->tag[k]]);
    }
}

/* Takes the lock. */
static void dispatch_table_text(const struct dispatch_op *op, struct text *t)
{
    dispatch_lock();
    table_text(op, t);
    dispatch_unlock();
}

/* The thread's text, valid until its next one. */
static const char *text_of(const char *name, void (*print)(const struct dispatch_op *, struct text *))
{
    struct thread *t = thread_self();
    struct dispatch_op *op = t ? dispatch_find(name) : NULL;
    struct text text = {0};
    if (!t)
        return NULL;
    if (op) {
        dispatch_lock();
        print(op, &text);
        dispatch_unlock();
    }
    mem_free(t->dump);
    t->dump = text_take(&text);
    return op ? t->dump : "";
}

const char *kl_dispatch_dump(const char *op) { return text_of(op, state_text); }
const char *kl_dispatch_dump_table(const char *op) { return text_of(op, table_text); }

/* ---- errors for missing kernels ---- */

static void list_available_keys(const struct dispatch_op *op, char *buf, size_t size)
{
    size_t n = 0;
    buf[0] = 0;
    for (unsigned k = 0; k < KL_KEY_COUNT && n < size; k++) {
        const struct op_kernel *kernel = atomic_load_explicit(&op->entry[k], memory_order_acquire);
        if (kernel && kernel->kind != KERNEL_FALLTHROUGH)
            n += (size_t)snprintf(buf + n, size - n, "%s%s", n ? ", " : "", key_info[k].name);
    }
}

bool dispatch_missing(const struct dispatch_op *op, kl_key key, struct err *e)
{
    char list[512];
    struct text table = {0};
    list_available_keys(op, list, sizeof list);
    if (key == KL_KEY_Undefined) {
        err_set(
            e, KL_ERR_ARGUMENT,
            "There were no tensor arguments to this function (e.g., you passed an empty list of "
            "Tensors), but no fallback function is registered for schema %s.  This usually means that this function "
            "requires a non-empty list of Tensors. Available functions are [%s].",
            op->schema ? op->schema : op->name, list);
        return false;
    }
    dispatch_table_text(op, &table);
    err_set(e, KL_ERR_ARGUMENT,
            "Could not run '%s' with arguments from the '%s' backend. '%s' is only available for these "
            "backends: [%s].\n%s", op->name, kl_key_name(key), op->name, list, table.s ? table.s : "");
    mem_free(table.s);
    return false;
}

/* ---- the log ---- */

void dispatch_note(struct thread *t, const struct dispatch_op *op, kl_key key, const char *how)
{
    struct dispatch_log *l = &t->log;
    char line[160];
    int depth = KERNELS_DEEPEST - t->kernels;
    int n = snprintf(line, sizeof line, "%*s[%s] op=[%s], key=[%s]\n", depth < 32 ? depth : 32, "", how, op->name,
                     kl_key_name(key));
    if (l->print)
        fputs(line, stderr);
    if (!l->on || !mem_reserve(&l->s, &l->cap, (uint32_t)(l->len + (size_t)n + 1), 1))
        return;
    memcpy(l->s + l->len, line, (size_t)n + 1);
    l->len += (uint32_t)n;
}

void dispatch_log_start(struct thread *t)
{
    t->log.print = environment_switch("KILN_DISPATCH_TRACE", false);
    t->watch = t->log.print;
}

void kl_dispatch_log_begin(void)
{
    struct thread *t = thread_self();
    if (t) {
        t->log.len = 0;
        t->log.on = t->watch = true;
    }
}

const char *kl_dispatch_log_end(void)
{
    struct thread *t = thread_self();
    if (!t)
        return "";
    t->log.on = false;
    t->watch = t->log.print;
    return t->log.len ? t->log.s : "";
}

uint64_t kl_dispatch_reads(void)
{
    struct thread *t = thread_self();
    return t ? t->reads - 1 : 0; /* without this call's own */
}
