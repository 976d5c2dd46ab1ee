/* Functions for host programs: memory, threads, log, limits. */
#include "frontend/frontend.h"

/* Does not set kl_last_error, which would allocate memory. */
kl_status kl_set_memory(const kl_memory *memory)
{
    if (memory && memory->alloc && memory->grow && memory->release && mem_use(memory))
        return KL_OK;
    bool complete = memory && memory->alloc && memory->grow && memory->release;
    thread_refuse_memory(complete ? MEMORY_IN_USE : MEMORY_INCOMPLETE);
    return KL_ERR_ARGUMENT;
}

kl_status kl_set_memory_limit(kl_device d, int64_t bytes)
{
    struct thread *t = thread_self();
    if (!t)
        return KL_ERR_MEMORY;
    if (!device_valid(d))
        return report(t, KL_ERR_DEVICE, "set_memory_limit: %u is no device", d.id);
    if (bytes < 0)
        return report(t, KL_ERR_ARGUMENT, "set_memory_limit: %lld bytes", (long long)bytes);
    buffer_limit(device_index(d), (size_t)bytes); /* 0: none */
    return KL_OK;
}

kl_status kl_memory_used(kl_device d, kl_memory_use *use)
{
    struct thread *t = thread_self();
    if (!t)
        return KL_ERR_MEMORY;
    if (!use)
        return report(t, KL_ERR_ARGUMENT, "memory_used: use is NULL");
    if (!device_valid(d))
        return report(t, KL_ERR_DEVICE, "memory_used: %u is no device", d.id);
    struct buffer_stats s = buffer_stats(device_index(d));
    *use = (kl_memory_use){(int64_t)s.live, (int64_t)s.peak, (int64_t)s.pooled, (int64_t)s.limit};
    return KL_OK;
}

void kl_memory_trim(void)
{
    if (thread_self()) {
        front_lock();
        deferred_collect(); /* frees nodes that no handle can reach */
        front_unlock();
    }
    buffer_trim();
}

kl_status kl_set_pool(const kl_pool *pool)
{
    struct thread *t = thread_self();
    if (!t)
        return KL_ERR_MEMORY;
    if (pool && !pool->run)
        return report(t, KL_ERR_ARGUMENT, "set_pool: run is NULL");
    if (pool && (pool->threads < 1 || pool->threads > POOL_MAX_THREADS))
        return report(t, KL_ERR_ARGUMENT, "set_pool: %d threads; there may be 1 to %d", pool->threads,
                      POOL_MAX_THREADS);
    pool_use(pool);
    return KL_OK;
}

struct parallel_loop { kl_parallel_fn *part; void *ctx; };

static void run_parallel(void *ctx, uint32_t part, int64_t begin, int64_t end, unsigned worker)
{
    const struct parallel_loop *loop = ctx;
    (void)part, (void)worker;
    loop->part(loop->ctx, begin, end);
}

kl_status kl_parallel(int64_t n, int64_t grain, kl_parallel_fn *part, void *ctx)
{
    struct thread *t = thread_self();
    if (!t)
        return KL_ERR_MEMORY;
    if (n < 0 || grain < 1 || !part)
        return report(t, KL_ERR_ARGUMENT, !part ? "parallel: part is NULL"
                                                : "parallel: %lld iterations, at least %lld a thread",
                      (long long)n, (long long)grain);
    struct parallel_loop loop = {part, ctx};
    const struct pool_part all = {.extent = n, .grain = grain, .movable = true};
    if (n)
        pool_run_parts(run_parallel, &loop, &all, 1, POOL_MAX_THREADS);
    return KL_OK;
}

kl_status kl_set_log(kl_log_fn *fn, void *ctx, kl_log_level min)
{
    struct thread *t = thread_self();
    if (!t)
        return KL_ERR_MEMORY;
    if ((unsigned)min > KL_LOG_NONE)
        return report(t, KL_ERR_ARGUMENT, "set_log: there is no level %d", (int)min);
    log_use(fn, ctx, min);
    environment_log();
    return KL_OK;
}

void kl_log_write(kl_log_level level, const char *message)
{
    if (message && level >= KL_LOG_DEBUG && level < KL_LOG_NONE)
        log_put(level, "%s", message);
}

const char *kl_log_level_name(kl_log_level level)
{
    return log_level_name(level);
}
