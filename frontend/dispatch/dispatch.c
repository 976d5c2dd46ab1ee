/* The dispatch tables of ops, and registering kernels. */
#include "frontend/frontend.h"
#include "ir/text/text.h"
#include <pthread.h>
#include <string.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;

void dispatch_lock(void) { pthread_mutex_lock(&lock); }
void dispatch_unlock(void) { pthread_mutex_unlock(&lock); }

const struct op_kernel kernel_builtin = {.kind = KERNEL_BUILTIN, .name = "graph node"};
static const struct op_kernel kernel_select = {.kind = KERNEL_SELECT, .name = "by device"};
static const struct op_kernel kernel_through = {.kind = KERNEL_FALLTHROUGH, .name = "fallthrough"};
static const struct op_kernel kernel_ambiguous = {.kind = KERNEL_AMBIGUOUS, .name = "ambiguous"};

struct dispatch_op graph_ops[OP_COUNT];
static _Atomic(struct dispatch_op *) user_ops; /* new ones are added at the head */
static struct registration builtin_impl[OP_COUNT], select_impl[OP_COUNT];
static struct registration *fallback[KL_KEY_COUNT];
static struct op_kernel *kernels;                 /* all kernels that were ever registered */
static uint64_t last_id;

/* ---- computing one entry: the first rule that gives a kernel applies ---- */

static const struct registration *newest_registration(const struct dispatch_op *op, kl_key key)
{
    const struct registration *r = op->impl;
    while (r && r->key != key)
        r = r->next;
    return r;
}

/* Has a backend whose autograd key is this one its own kernel? */
static bool backend_has_kernel(const struct dispatch_op *op, kl_key autograd)
{
    bool any = false;
    for (const struct registration *r = op->impl; r && !any; r = r->next)
        any = kl_key_is_backend((kl_key)r->key) && kl_key_autograd((kl_key)r->key) == autograd;
    return any;
}

/* Needs the lock. */
static const struct op_kernel *dispatch_compute(const struct dispatch_op *op, kl_key key, uint8_t *tag)
{
    const struct registration *r = newest_registration(op, key);
    bool autograd = key_in_alias(key, KL_KEY_Autograd);
    *tag = TAG_KERNEL;
    if (r)
        return r->kernel;
    unsigned layer = key_info[key].layer;
    if (layer && key_info[key].device && !autograd && (r = newest_registration(op, (kl_key)key_at[layer][DEV_None]))) {
        *tag = TAG_LAYER;
        return r->kernel;
    }
    const struct op_kernel *own = op->graph_op && layer && !autograd ? layer_kernel(layer) : NULL;
    if (own && (kl_key_is_backend(key) || !fallback[key])) { /* a storage layer precedes the kernel for dense tensors */
        *tag = TAG_LAYER;
        return own;
    }
    if (key_in_alias(key, KL_KEY_DefaultBackend) && (r = newest_registration(op, KL_KEY_DefaultBackend))) {
        *tag = TAG_DEFAULT;
        return r->kernel;
    }
    if (key_in_alias(key, KL_KEY_Math) && (r = newest_registration(op, KL_KEY_Math))) {
        bool taken = autograd && backend_has_kernel(op, key);
        *tag = TAG_AMBIGUOUS;
        if (taken && key == KL_KEY_AutogradOther)
            return &kernel_ambiguous;
        *tag = TAG_MATH;
        if (!taken && !(autograd && newest_registration(op, KL_KEY_DefaultBackend)))
            return r->kernel;
    }
    if (autograd && (r = newest_registration(op, KL_KEY_Autograd))) {
        *tag = TAG_AUTOGRAD;
        return r->kernel;
    }
    *tag = fallback[key] ? TAG_FALLBACK : TAG_MISSING;
    return fallback[key] ? fallback[key]->kernel : NULL;
}

/* Entries first, so that a reader of the new mask finds them. */
static void compute_all(struct dispatch_op *op)
{
    uint64_t mask[DEV_SLOTS];
    for (unsigned dev = 0; dev < DEV_SLOTS; dev++)
        mask[dev] = ORDER_16;
    for (unsigned k = 0; k < KL_KEY_COUNT; k++) {
        const struct op_kernel *kernel = dispatch_compute(op, (kl_key)k, &op->tag[k]);
        atomic_store_explicit(&op->entry[k], kernel, memory_order_release);
        unsigned layer = key_info[k].layer;
        if (!kernel || kernel->kind == KERNEL_FALLTHROUGH || layer == LAYER_Dense)
            continue;
        for (unsigned dev = 0; dev < DEV_SLOTS; dev++)
            if (key_at[layer][dev] == k || layer == LAYER_Autograd)
                mask[dev] |= LAYER_BIT(layer);
    }
    for (unsigned dev = 0; dev < DEV_SLOTS; dev++)
        atomic_store_explicit(&op->mask[dev], mask[dev], memory_order_release);
}

const struct op_kernel *dispatch_resolve_lower(const struct dispatch_op *op, uint64_t bits, kl_key *key)
{
    for (;;) {
        uint64_t rest;
        const struct op_kernel *k = dispatch_highest(op, bits, top_device(bits), bits & ORDER_16, key, &rest);
        if (k && k->kind != KERNEL_FALLTHROUGH)
            return k;
        if (key_info[*key].layer == LAYER_Dense && (!k || *key == KL_KEY_Undefined))
            return NULL;
        bits = rest;
    }
}

/* ---- built-in kernels ---- */

static const kl_key through[] = {
    KL_KEY_AutogradOther, KL_KEY_AutogradCPU, KL_KEY_AutogradCUDA, KL_KEY_AutogradXLA, KL_KEY_AutogradNestedTensor,
    KL_KEY_AutogradXPU, KL_KEY_BackendSelect, KL_KEY_Autocast};
enum { THROUGH = sizeof through / sizeof *through };

static void schema_of_op(unsigned op, char *text, size_t size)
{
    static const char *const arguments[] = {"", "Tensor a", "Tensor a, Tensor b", "Tensor a, Tensor b, Tensor c"};
    bool list = op_is_region(op) || op_varies(op);
    snprintf(text, size, "%s(%s) -> %s", opinfo[op].name, list ? "Tensor[] in" : arguments[opinfo[op].nin],
             op_is_region(op) ? "Tensor[]" : "Tensor");
}

static bool op_is_dispatched(unsigned op) { return op_is_leaf(op) && op != OP_state; }

static void dispatch_fill_tables(void)
{
    static struct registration through_impl[THROUGH];
    static char schemas[OP_COUNT][64];
    keys_start();
    device_keys_start();
    for (unsigned i = 0; i < THROUGH; i++) {
        through_impl[i] = (struct registration){.kernel = &kernel_through, .key = (uint8_t)through[i]};
        fallback[through[i]] = &through_impl[i];
    }
    for (unsigned i = OP_nil + 1; i < OP_COUNT; i++) {
        struct dispatch_op *op = &graph_ops[i];
        builtin_impl[i] = (struct registration){.kernel = &kernel_builtin, .key = KL_KEY_DefaultBackend};
        select_impl[i] = (struct registration){.kernel = &kernel_select, .key = KL_KEY_BackendSelect};
        builtin_impl[i].next = op_is_dispatched(i) ? &select_impl[i] : NULL;
        op->impl = &builtin_impl[i];
        op->graph_op = (uint16_t)i;
        op->defined = UINT64_MAX;
        op->nin = op_is_region(i) || op_varies(i) ? VARIES : opinfo[i].nin;
        op->nout = op_is_region(i) ? VARIES : 1;
        snprintf(op->name, sizeof op->name, "%s", opinfo[i].name);
        schema_of_op(i, schemas[i], sizeof schemas[i]);
        op->schema = schemas[i];
        compute_all(op);
    }
}

bool dispatch_start(void) { return pthread_once(&once, dispatch_fill_tables) == 0; }

/* ---- look-up ---- */

static bool dispatch_is_known(const struct dispatch_op *op) { return op->defined || op->impl; }

/* Finds the op even if nothing is registered for it. */
static struct dispatch_op *dispatch_op_named(const char *name)
{
    for (unsigned i = OP_nil + 1; name && i < OP_COUNT; i++)
        if (!strcmp(name, graph_ops[i].name))
            return &graph_ops[i];
    struct dispatch_op *op = atomic_load_explicit(&user_ops, memory_order_acquire);
    while (op && (!name || strcmp(name, op->name)))
        op = op->next;
    return op;
}

struct dispatch_op *dispatch_find(const char *name)
{
    struct dispatch_op *op = dispatch_op_named(name);
    if (!op || op->graph_op)
        return op;
    dispatch_lock();
    bool known = dispatch_is_known(op);
    dispatch_unlock();
    return known ? op : NULL;
}

bool dispatch_defined(const struct dispatch_op *op)
{
    dispatch_lock();
    bool defined = op && op->defined;
    dispatch_unlock();
    return defined;
}

/* Iterates over all ops, NULL first; needs the lock. */
static const struct dispatch_op *dispatch_next(const struct dispatch_op *op)
{
    if (!op)
        return &graph_ops[OP_nil + 1];
    if (op->graph_op)
        return op->graph_op + 1 < OP_COUNT ? op + 1 : atomic_load_explicit(&user_ops, memory_order_acquire);
    return op->next;
}

/* ---- registering; all below needs the lock ---- */

static struct dispatch_op *find_or_add(const char *name, struct err *e)
{
    struct dispatch_op *op = dispatch_op_named(name);
    if (op)
        return op;
    op = mem_alloc(sizeof *op);
    if (!op) {
        err_set(e, KL_ERR_MEMORY, "out of memory");
        return NULL;
    }
    op->nin = op->nout = VARIES;
    snprintf(op->name, sizeof op->name, "%s", name);
    compute_all(op); /* fallbacks only */
    op->next = atomic_load_explicit(&user_ops, memory_order_relaxed);
    atomic_store_explicit(&user_ops, op, memory_order_release);
    return op;
}

static bool same_text(const char *a, const char *b) { return a == b || (a && b && !strcmp(a, b)); }

/* The permanent kernel record for these functions; *op is the op whose nodes a `run` computes. own: Kiln's function;
 * else NULL. */
static const struct op_kernel *intern_op_kernel(const struct dispatch_op *op, const kl_kernel *fn,
                                                const struct transform *own,
                                      struct err *e)
{
    struct op_kernel new = {.kind = own ? KERNEL_TRANSFORM : fn->call ? KERNEL_CALL : fn->run ? KERNEL_RUN
                            : KERNEL_FALLTHROUGH,
                            .fn = *fn, .idle = own ? own->idle : NULL, .marks = own ? own->marks : 0};
    new.at_once = new.kind == KERNEL_CALL || (new.kind == KERNEL_TRANSFORM && !new.idle && !new.marks);
    snprintf(new.name, sizeof new.name, "%s", fn->name ? fn->name : "kernel");
    if (fn->run && !(new.custom = backend_custom(op, fn, e)))
        return NULL;
    for (const struct op_kernel *k = kernels; k; k = k->next)
        if (k->kind == new.kind && k->fn.call == fn->call && k->fn.run == fn->run && k->fn.ctx == fn->ctx &&
            k->custom == new.custom &&
            !strcmp(k->name, new.name) && same_text(k->schema, fn->schema))
            return k;
    struct op_kernel *k = mem_alloc(sizeof *k);
    if (k && (!fn->schema || (new.schema = mem_text(fn->schema)))) {
        *k = new;
        k->next = kernels;
        k->fn.name = k->name;
        k->fn.schema = k->schema;
        return kernels = k;
    }
    mem_free(k);
    err_set(e, KL_ERR_MEMORY, "out of memory");
    return NULL;
}

/* Compares the schemas of a kernel and its op; a missing schema agrees with any. */
static bool schemas_agree(const struct dispatch_op *op, const char *kernel, const char *schema, struct err *e)
{
    uint32_t nin, nout, own_in, own_out;
    if (!schema || !op->schema || !op->defined)
        return true;
    if (!schema_counts(schema, &nin, &nout) || !schema_counts(op->schema, &own_in, &own_out))
        return err_set(e, KL_ERR_ARGUMENT, "\"%s\" is no schema: it is \"name(Tensor a, Tensor b) -> Tensor\"", schema);
    bool in = nin == own_in || nin == VARIES || own_in == VARIES;
    if (in && (nout == own_out || nout == VARIES || own_out == VARIES))
        return true;
    return err_set(e, KL_ERR_ARGUMENT,
                   "In registering the kernel %s for %s: expected schema of operator is \"%s\", but "
                   "inferred schema is \"%s\". (The number of %s is different. %u vs %u)", kernel, op->name, op->schema,
                   schema, in ? "returns" : "arguments", in ? own_out : own_in, in ? nout : nin);
}

static bool key_fits(kl_key key, const kl_kernel *k, bool fallback_only, struct err *e)
{
    if (!k)
        return err_set(e, KL_ERR_ARGUMENT, "kernel is NULL");
    if ((unsigned)key > KL_KEY_DefaultBackend)
        return err_set(e, KL_ERR_ARGUMENT, "%u is no key", (unsigned)key);
    if (key >= KL_KEY_MKLDNN && key <= KL_KEY_IDEEP)
        return err_set(e, KL_ERR_ARGUMENT, "key %s is not dispatchable: its name is reserved", kl_key_name(key));
    if (fallback_only && k->run)
        return err_set(e, KL_ERR_ARGUMENT, "a fallback is for all ops: it needs `call`");
    if (fallback_only && (kl_key_is_alias(key) || key == KL_KEY_Undefined))
        return err_set(e, KL_ERR_ARGUMENT, "%s has no fallback", kl_key_name(key));
    if (k->run && k->call)
        return err_set(e, KL_ERR_ARGUMENT, "a kernel is `call` or `run`, not both");
    if (k->run && !kl_key_is_backend(key) && key != KL_KEY_DefaultBackend)
        return err_set(e, KL_ERR_ARGUMENT, "%s is no backend, so `run` is not for it", kl_key_name(key));
    return true;
}

static bool add_impl(const char *name, kl_key key, const kl_kernel *fn, const struct transform *own,
                     struct registration **out,
                     struct err *e, char *warning, size_t size)
{
    struct dispatch_op *op = find_or_add(name, e);
    const struct op_kernel *k = op && schemas_agree(op, fn->name ? fn->name : "kernel", fn->schema, e)
        ? intern_op_kernel(op, fn, own, e) : NULL;
    struct registration *r = k ? mem_alloc(sizeof *r) : NULL;
    if (!r)
        return e->code ? false : err_set(e, KL_ERR_MEMORY, "out of memory");
    const struct registration *old = newest_registration(op, key);
    if (old)
        snprintf(warning, size,
                 "Overriding a previously registered kernel for the same operator and the same dispatch key: "
                 "operator %s, dispatch key %s, previous kernel %s, new kernel %s", op->name, kl_key_name(key),
                 old->kernel->name, k->name);
    *r = (struct registration){.next = op->impl, .kernel = k, .id = ++last_id, .key = (uint8_t)key};
    op->impl = r;
    compute_all(op);
    *out = r;
    return true;
}

static void refresh_everything(void)
{
    for (const struct dispatch_op *op = dispatch_next(NULL); op; op = dispatch_next(op))
        compute_all((struct dispatch_op *)(uintptr_t)op);
}

static bool add_fallback(kl_key key, const kl_kernel *fn, const struct transform *own, struct registration **out,
                         struct err *e)
{
    if (fallback[key])
        return err_set(e, KL_ERR_ARGUMENT, "Tried to register multiple backend fallbacks for the same dispatch key %s; "
                       "previous registration %s", kl_key_name(key), fallback[key]->kernel->name);
    const struct op_kernel *k = intern_op_kernel(NULL, fn, own, e);
    struct registration *r = k ? mem_alloc(sizeof *r) : NULL;
    if (!r)
        return e->code ? false : err_set(e, KL_ERR_MEMORY, "out of memory");
    *r = (struct registration){.kernel = k, .id = ++last_id, .key = (uint8_t)key};
    fallback[key] = r;
    refresh_everything();
    *out = r;
    return true;
}

static bool is_layers(const struct op_kernel *k, const kl_kernel *fn)
{
    return k->fn.call == fn->call && k->fn.ctx == fn->ctx;
}

bool dispatch_layer(const char *name, kl_key key, const struct transform *own, struct err *e)
{
    const kl_kernel *fn = &own->kernel;
    struct registration *r;
    char warning[1];
    bool ok;
    dispatch_lock();
    struct registration *old = name ? NULL : fallback[key];
    if (name) {
        ok = newest_registration(dispatch_op_named(name), key) || add_impl(name, key, fn, own, &r, e, warning,
                                                                           sizeof warning);
    } else if (old && is_layers(old->kernel, fn)) {
        ok = true;
    } else if (old && old->kernel != &kernel_through) {
        ok = err_set(e, KL_ERR_ARGUMENT, "key %s has a kernel of the user's for all ops: %s", kl_key_name(key),
                     old->kernel->name);
    } else {
        fallback[key] = NULL;
        ok = add_fallback(key, fn, own, &r, e);
        fallback[key] = ok ? fallback[key] : old;
    }
    dispatch_unlock();
    return ok;
}

/* Defines the op of a schema, unless a registered kernel has another schema. */
static bool add_definition(const char *schema, uint32_t nin, uint32_t nout, size_t name_length, uint64_t *id,
                           struct err *e)
{
    char name[CUSTOM_NAME];
    snprintf(name, sizeof name, "%.*s", (int)name_length, schema);
    struct dispatch_op *op = find_or_add(name, e);
    char *own = op ? mem_text(schema) : NULL;
    if (!own)
        return e->code ? false : err_set(e, KL_ERR_MEMORY, "out of memory");
    if (op->defined) {
        err_set(
            e, KL_ERR_ARGUMENT,
            "Tried to register an operator (%s) with the same name and overload name multiple times. "
            "Each overload's schema should only be registered with a single call to def(). Original registration: %s",
            schema, op->schema);
        mem_free(own);
        return false;
    }
    op->schema = own;
    op->defined = last_id + 1;
    bool ok = true;
    for (const struct registration *r = op->impl; r && ok; r = r->next)
        ok = schemas_agree(op, r->kernel->name, r->kernel->schema, e);
    if (!ok) {
        op->schema = NULL;
        op->defined = 0;
        mem_free(own);
        return false;
    }
    *id = ++last_id;
    op->nin = nin;
    op->nout = nout;
    return true;
}

static bool remove_registration(uint64_t id)
{
    if (!id || id > last_id) /* built-in registrations stay */
        return false;
    for (unsigned k = 0; k < KL_KEY_COUNT; k++)
        if (fallback[k] && fallback[k]->id == id) {
            mem_free(fallback[k]);
            fallback[k] = NULL;
            refresh_everything();
            return true;
        }
    for (const struct dispatch_op *each = dispatch_next(NULL); each; each = dispatch_next(each)) {
        struct dispatch_op *op = (struct dispatch_op *)(uintptr_t)each;
        if (op->defined == id) {
            op->defined = 0;
            op->nin = op->nout = VARIES;
            mem_free(op->schema);
            op->schema = NULL;
            return true;
        }
        for (struct registration **link = &op->impl; *link; link = &(*link)->next)
            if ((*link)->id == id) {
                struct registration *r = *link;
                *link = r->next;
                mem_free(r);
                compute_all(op);
                return true;
            }
    }
    return false;
}

bool dispatch_define_custom(const struct custom_op *op, struct err *e)
{
    char schema[CUSTOM_NAME + 32];
    kl_kernel fn = {.name = "run", .run = op->functions.run, .ctx = op->ctx};
    struct registration *r;
    uint64_t id;
    char unused[1];
    snprintf(schema, sizeof schema, "%s(Tensor[] in) -> Tensor[]", op->name);
    dispatch_lock();
    bool ok = add_definition(schema, VARIES, VARIES, strlen(op->name), &id, e);
    if (ok && !add_impl(op->name, KL_KEY_DefaultBackend, &fn, NULL, &r, e, unused, 1)) {
        remove_registration(id);
        ok = false;
    }
    dispatch_unlock();
    return ok;
}

/* ---- public functions ---- */

static kl_status finish_registration(struct thread *t, const char *what, bool ok, uint64_t id, kl_registration *out,
                            const struct err *e)
{
    if (out)
        out->id = ok ? id : 0;
    return ok ? KL_OK : report(t, e->code, "%s: %s", what, e->msg);
}

/* "name(...) -> ..."; returns the length of the name, 0: no valid schema. */
static size_t schema_name(const char *schema, uint32_t *nin, uint32_t *nout)
{
    size_t n = schema ? strcspn(schema, "(") : 0;
    bool fits = n > 0 && n < CUSTOM_NAME && schema[n] && schema_counts(schema, nin, nout);
    for (size_t i = 0; i < n && fits; i++)
        fits = is_name_char(schema[i]) || schema[i] == ':';
    return fits ? n : 0;
}

kl_status kl_dispatch_define(const char *schema, kl_registration *out)
{
    struct thread *t = thread_self();
    struct err e;
    uint32_t nin, nout;
    uint64_t id = 0;
    e.code = KL_OK;
    if (!t)
        return KL_ERR_MEMORY;
    size_t n = schema_name(schema, &nin, &nout);
    bool ok = n || err_set(&e, KL_ERR_ARGUMENT, "\"%.200s\" is no schema: it is \"name(Tensor a, Tensor b) -> Tensor\"",
                           schema ? schema : "");
    if (ok) {
        dispatch_lock();
        ok = add_definition(schema, nin, nout, n, &id, &e);
        dispatch_unlock();
    }
    return finish_registration(t, "dispatch_define", ok, id, out, &e);
}

/* op NULL: the fallback of the key. */
static kl_status register_kernel(const char *what, const char *op, kl_key key, const kl_kernel *kernel,
                                 kl_registration *out)
{
    struct thread *t = thread_self();
    struct registration *r = NULL;
    struct err e;
    e.code = KL_OK;
    if (!t)
        return KL_ERR_MEMORY;
    t->warning[0] = 0;
    bool named = !op || (*op && memchr(op, 0, CUSTOM_NAME));
    if (!named)
        err_set(&e, KL_ERR_ARGUMENT, "the name of an op has 1 to %d bytes", CUSTOM_NAME - 1);
    if (named && key_fits(key, kernel, !op, &e)) {
        dispatch_lock();
        if (op)
            add_impl(op, key, kernel, NULL, &r, &e, t->warning, sizeof t->warning);
        else
            add_fallback(key, kernel, NULL, &r, &e);
        dispatch_unlock();
    }
    return finish_registration(t, what, r != NULL, r ? r->id : 0, out, &e);
}

kl_status kl_dispatch_register(const char *op, kl_key key, const kl_kernel *kernel, kl_registration *out)
{
    return register_kernel("dispatch_register", op ? op : "", key, kernel, out);
}

kl_status kl_dispatch_fallback(kl_key key, const kl_kernel *kernel, kl_registration *out)
{
    return register_kernel("dispatch_fallback", NULL, key, kernel, out);
}

kl_status kl_dispatch_deregister(kl_registration r)
{
    struct thread *t = thread_self();
    if (!t)
        return KL_ERR_MEMORY;
    dispatch_lock();
    bool ok = remove_registration(r.id);
    dispatch_unlock();
    return ok ? KL_OK : report(t, KL_ERR_ARGUMENT, "dispatch_deregister: it is not registered");
}

const char *kl_dispatch_warning(void)
{
    struct thread *t = thread_self();
    return t ? t->warning : "";
}

bool kl_dispatch_has_kernel(const char *name, kl_key key)
{
    struct dispatch_op *op = thread_self() ? dispatch_op_named(name) : NULL;
    dispatch_lock();
    bool has = op && newest_registration(op, key);
    dispatch_unlock();
    return has;
}

int64_t kl_dispatch_kernel_count(const char *name)
{
    struct dispatch_op *op = thread_self() ? dispatch_op_named(name) : NULL;
    uint32_t n = 0;
    dispatch_lock();
    for (unsigned k = 0; op && k <= KL_KEY_DefaultBackend; k++)
        n += newest_registration(op, (kl_key)k) != NULL;
    dispatch_unlock();
    return n;
}

kl_status kl_dispatch_check(void)
{
    struct thread *t = thread_self();
    if (!t)
        return KL_ERR_MEMORY;
    const struct dispatch_op *bad = NULL;
    unsigned at = 0;
    dispatch_lock();
    for (const struct dispatch_op *op = dispatch_next(NULL); op && !bad; op = dispatch_next(op))
        for (unsigned k = 0; k < KL_KEY_COUNT && !bad; k++) {
            uint8_t tag;
            const struct op_kernel *kernel = dispatch_compute(op, (kl_key)k, &tag);
            if (kernel != atomic_load_explicit(&op->entry[k], memory_order_relaxed) || tag != op->tag[k])
                bad = op, at = k;
        }
    dispatch_unlock();
    return bad ? report(t, KL_ERR_INTERNAL, "dispatch_check: %s: the entry of %s is not what it should be", bad->name,
                        kl_key_name((kl_key)at)) : KL_OK;
}
