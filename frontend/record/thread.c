/* Per-thread state, the global lock, and scopes. */
#include "frontend/frontend.h"
#include <pthread.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t idle = PTHREAD_COND_INITIALIZER;
static struct buffer **due; /* borrowed buffers to release when the lock is free; guarded by it */
static uint32_t ndue, due_cap;

#if defined(__GNUC__) && defined(__ELF__)
/* Found without a call.  This TLS model makes all thread-local data of the library static, and a host that opens the
 * library at run time has few bytes of static TLS left: tests/exports.sh allows 64. */
static _Thread_local struct thread *self __attribute__((tls_model("initial-exec")));
#else
static _Thread_local struct thread *self;
#endif
static pthread_key_t key;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool key_works;

static void thread_end(void *p)
{
    struct thread *t = p;
    if (t->suspended.on)
        trace_resume(t);
    if (t->tracing)
        trace_drop(t);
    trace_free(t->trace);
    graph_free(t->spare);
    front_lock();
    entries_return(t);
    front_unlock();
    mem_free(t->made);
    mem_free(t->scope);
    mem_free(t->log.s);
    mem_free(t->dump);
    mem_free(t->miss);
    mem_free(t->autocast);
    op_profile_free(t->op_profile);
    dump_next_to(NULL);
    mem_free(t);
    self = NULL;
}

/* A child of fork has none of the other threads, which would release the lock or finish their writes. */
static void before_fork(void)
{
    pthread_mutex_lock(&lock);
    dispatch_lock();
}
static void parent_after_fork(void)
{
    dispatch_unlock();
    pthread_mutex_unlock(&lock);
}
static void child_after_fork(void)
{
    entries_after_fork();
    idle = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
    parent_after_fork();
}

static void thread_start(void)
{
    key_works = pthread_key_create(&key, thread_end) == 0;
    fork_watch(); /* called first, because the lock here is the first that fork takes */
    pthread_atfork(before_fork, parent_after_fork, child_after_fork);
    timeline_from_environment();
}

/* The error of kl_set_memory if this thread had no struct yet, which would need memory; or NULL. */
static _Thread_local const char *memory_refused;

void thread_refuse_memory(const char *message)
{
    memory_refused = message;
    if (self) {
        self->last.code = KL_OK;
        err_set(&self->last, KL_ERR_ARGUMENT, "%s", message);
        memory_refused = NULL;
    }
}

static struct thread *make_self(void)
{
    static _Thread_local bool failed; /* an error for which there was no memory */
    pthread_once(&once, thread_start);
    struct thread *t = key_works && dispatch_start() ? mem_alloc(sizeof *t) : NULL;
    if (!t || pthread_setspecific(key, t) != 0) {
        mem_free(t);
        failed = true;
        return NULL;
    }
    t->free = NO_ENTRY;
    t->kernels = KERNELS_DEEPEST;
    if (failed)
        err_set(&t->last, KL_ERR_MEMORY, "no memory for what Kiln keeps for each thread");
    failed = false;
    if (memory_refused)
        err_set(&t->last, KL_ERR_ARGUMENT, "%s", memory_refused);
    memory_refused = NULL;
    dispatch_log_start(t);
    return self = t;
}

struct thread *thread_self(void)
{
    struct thread *t = self;
    if (!t && !(t = make_self()))
        return NULL;
    t->reads++;
    return t;
}

void front_lock(void)
{
    pthread_mutex_lock(&lock);
}

void front_unlock(void)
{
    struct buffer **drop = due;
    uint32_t n = ndue;
    due = NULL;
    ndue = due_cap = 0;
    pthread_mutex_unlock(&lock);
    for (uint32_t i = 0; i < n; i++)
        buffer_unref(drop[i]);
    mem_free(drop);
}

void front_wait(void)
{
    pthread_cond_wait(&idle, &lock);
}

void front_wake(void)
{
    pthread_cond_broadcast(&idle);
}

/* The release callback of the user's memory may call Kiln, so it is not called under the lock, unless there is no
 * memory to note it for later. */
void front_drop(struct buffer *b)
{
    if (b && b->release && mem_reserve(&due, &due_cap, ndue + 1, sizeof *due))
        due[ndue++] = b;
    else
        buffer_unref(b);
}

/* ---- scopes ---- */

bool scope_note(struct thread *t, kl_tensor h)
{
    if (!t->nscope)
        return true;
    if (!mem_reserve(&t->made, &t->made_cap, t->nmade + 1, sizeof *t->made))
        return false;
    t->made[t->nmade++] = h.id;
    return true;
}

static bool scope_push(struct thread *t)
{
    if (!mem_reserve(&t->scope, &t->scope_cap, t->nscope + 1, sizeof *t->scope))
        return false;
    t->scope[t->nscope++] = t->nmade;
    return true;
}

/* Releases what was made in the innermost scope except the results, which move to the enclosing scope. */
static void scope_pop(struct thread *t, const kl_tensor *result, uint32_t n)
{
    uint32_t from = t->scope[--t->nscope], mine = from;
    front_lock();
    for (uint32_t i = from; i < t->nmade; i++) {
        uint64_t id = t->made[i];
        bool kept = false;
        for (uint32_t k = 0; k < n; k++)
            kept |= result[k].id == id;
        if (kept && t->nscope)
            t->made[mine++] = id; /* an earlier position is free */
        else if (id && !kept)
            handle_end((kl_tensor){id}, DEATH_SCOPE);
    }
    front_unlock();
    t->nmade = mine;
}

kl_status kl_scope_begin(void)
{
    struct thread *t = thread_self();
    if (!t)
        return KL_ERR_MEMORY;
    if (region_refuses(t, NULL, "scope_begin"))
        return KL_ERR_TRACE;
    return scope_push(t) ? KL_OK : report(t, NULL, KL_ERR_MEMORY, "scope_begin: out of memory");
}

kl_status kl_scope_end_at(const kl_site *site)
{
    struct thread *t = thread_self();
    if (!t)
        return KL_ERR_MEMORY;
    if (region_refuses(t, site, "scope_end"))
        return KL_ERR_TRACE;
    if (!t->nscope)
        return fail(t, site, KL_ERR_ARGUMENT, "scope_end: no scope is open");
    scope_pop(t, NULL, 0);
    return KL_OK;
}

/* ---- no_grad blocks ---- */

kl_status kl_no_grad_begin(void)
{
    struct thread *t = thread_self();
    if (!t)
        return KL_ERR_MEMORY;
    t->no_grad++;
    return KL_OK;
}

kl_status kl_no_grad_end_at(const kl_site *site)
{
    struct thread *t = thread_self();
    if (!t)
        return KL_ERR_MEMORY;
    if (t->no_grad == t->outer_no_grad)
        return fail(t, site, KL_ERR_ARGUMENT, "no_grad_end: %s",
                    t->no_grad ? "the block was begun before this trace" : "no block is open");
    t->no_grad--;
    return KL_OK;
}

bool kl_grad_enabled(void)
{
    struct thread *t = thread_self();
    return !t || !t->no_grad;
}

/* ---- composites ---- */

bool compose_begin_on(struct thread *t, const char *name)
{
    if (!t->tracing && !scope_push(t))
        return false;
    if (t->depth++ == 0)
        t->composite = name;
    if (t->depth < COMPOSE_DEEPEST)
        t->narrow[t->depth] = (struct narrow){KL_DTYPE_COUNT, NULL};
    return true;
}

/* NULL: out of memory; the composite returns kl_none. */
struct thread *compose_begin(const char *name)
{
    struct thread *t = thread_self();
    return t && compose_begin_on(t, name) ? t : NULL;
}

void compose_end_all(struct thread *t, const kl_tensor *result, uint32_t n)
{
    if (--t->depth == 0)
        t->composite = NULL;
    if (!t->tracing)
        scope_pop(t, result, n);
}

kl_tensor compose_end(struct thread *t, kl_tensor result)
{
    result = narrowed(t, result);
    compose_end_all(t, &result, 1);
    return result;
}
