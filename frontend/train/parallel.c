/* Training with many processes: gradients averaged over the ranks in buckets, and optimizers whose states are divided
 * among the ranks. */
#include "rules.h"

#define DEFAULT_BUCKET (INT64_C(4) << 20) /* bytes */

static int64_t bytes_of(kl_tensor t)
{
    return kl_numel(t) * (int64_t)kl_dtype_size(kl_dtype_of(t));
}

/* Concatenates the tensors to [n], followed by zeros up to `length` elements. */
static kl_tensor flat_of(int n, const kl_tensor *tensors, kl_tensor *room, int64_t length)
{
    int64_t sum = 0;
    for (int i = 0; i < n; i++) {
        int64_t count = kl_numel(tensors[i]);
        room[i] = kl_reshape(tensors[i], 1, &count);
        sum += count;
    }
    if (sum < length) {
        int64_t rest = length - sum;
        room[n] = kl_zeros(kl_device_of(tensors[0]), kl_dtype_of(tensors[0]), 1, &rest);
        n++;
    }
    return n == 1 ? room[0] : kl_concat(n, room, 0);
}

/* The elements of flat from element `at` on, in the shape of tensor `like`. */
static kl_tensor piece_of(kl_tensor flat, int64_t at, kl_tensor like)
{
    int64_t dims[KL_MAX_RANK];
    int rank = kl_shape(like, dims);
    return kl_reshape(kl_narrow(flat, 0, at, kl_numel(like)), rank, dims);
}

/* ---- values of rank 0 ---- */

kl_status kl_comm_sync(kl_comm *comm, int64_t n, const kl_tensor *tensors)
{
    if (!train_count_valid("comm_sync", n))
        return KL_ERR_ARGUMENT;
    if (n && !tensors)
        return kl_failf(NULL, KL_ERR_ARGUMENT, "comm_sync: %d tensors at NULL", (int)n);
    kl_status s = kl_trace_begin("comm_sync");
    for (int i = 0; i < n && s == KL_OK; i++)
        s = kl_assign(tensors[i], kl_comm_broadcast(comm, 0, kl_detach(tensors[i])));
    return kl_tracing() ? kl_trace_end() : s;
}

/* ---- gradients ---- */

/* Replaces m gradients, whose indices in result[] are in at[], by their means over all ranks, with one collective. */
static void reduce_bucket(kl_comm *comm, int m, const int *at, kl_tensor *result, kl_tensor *room)
{
    if (m == 1) {
        result[at[0]] = kl_comm_all_reduce(comm, KL_REDUCE_MEAN, result[at[0]]);
        return;
    }
    for (int i = 0; i < m; i++)
        room[i] = result[at[i]];
    kl_tensor all = kl_comm_all_reduce(comm, KL_REDUCE_MEAN, flat_of(m, room, room + m, 0));
    for (int64_t i = 0, from = 0; i < m; i++) {
        int64_t count = kl_numel(result[at[i]]);
        result[at[i]] = piece_of(all, from, result[at[i]]);
        from += count;
    }
}

static bool same_kind(kl_tensor a, kl_tensor b)
{
    return kl_dtype_of(a) == kl_dtype_of(b) && kl_device_of(a).id == kl_device_of(b).id;
}

static void reduce_gradients(kl_comm *comm, int n, kl_tensor *result, int64_t bucket_bytes, int *at, kl_tensor *room)
{
    int m = 0;
    int64_t bytes = 0;
    for (int i = n - 1; i >= 0; i--) {
        if (!result[i].id)
            continue;
        int64_t more = bytes_of(result[i]);
        if (m && (bytes + more > bucket_bytes || !same_kind(result[at[0]], result[i]))) {
            reduce_bucket(comm, m, at, result, room);
            m = 0;
            bytes = 0;
        }
        at[m++] = i;
        bytes += more;
    }
    if (m)
        reduce_bucket(comm, m, at, result, room);
}

kl_status kl_comm_gradients(kl_comm *comm, int64_t n, kl_tensor *gradients, int64_t bucket_bytes)
{
    if (!train_count_valid("comm_gradients", n))
        return KL_ERR_ARGUMENT;
    if (!comm || (n && !gradients) || bucket_bytes < 0)
        return kl_failf(NULL, KL_ERR_ARGUMENT, "comm_gradients: %s, %d gradients at %s, buckets of %lld bytes",
                        comm ? "a communicator" : "no communicator", (int)n, gradients ? "an array" : "NULL",
                        (long long)bucket_bytes);
    if (!kl_tracing())
        return kl_failf(NULL, KL_ERR_TRACE, "comm_gradients: no trace is open");
    for (int i = 0; i < n; i++)
        if (gradients[i].id && kl_check(gradients[i]) != KL_OK)
            return kl_last_error_code();
    kl_tensor *room = kl_memory_alloc(((size_t)n * 3 + 1) * sizeof *room);
    int *at = kl_memory_alloc(((size_t)n + 1) * sizeof *at);
    kl_status s = room && at ? kl_composite_begin("comm_gradients")
                             : kl_failf(NULL, KL_ERR_MEMORY, "comm_gradients: out of memory");
    if (s == KL_OK) {
        kl_tensor *result = room + 2 * n;
        memcpy(result, gradients, (size_t)n * sizeof *result);
        reduce_gradients(comm, (int)n, result, bucket_bytes ? bucket_bytes : DEFAULT_BUCKET, at, room);
        memcpy(gradients, result, (size_t)n * sizeof *result);
        kl_composite_end(n, result);
    }
    kl_memory_free(room);
    kl_memory_free(at);
    for (int i = 0; i < n && s == KL_OK; i++)
        s = gradients[i].id ? kl_check(gradients[i]) : KL_OK;
    return s;
}

/* ---- sharded optimizers ---- */

struct bucket {
    int first, n;              /* number of the first parameter and number of parameters */
    int64_t length;            /* number of elements, including zeros at the end that make the parts equally long */
};

struct kl_comm_shards {
    kl_comm *comm;
    int n, buckets;
    kl_tensor *param, *part;   /* part: one tensor for each bucket, then room for as many gradients */
    const kl_params *params;   /* the tree that has the parameters' factors, or NULL */
    kl_params *tree;           /* of the parts, which it owns; part b has the factors of the parameters of bucket b */
    kl_tensor *room;
    struct bucket *bucket;
};

/* The settings of parameter i in the tree. */
static kl_param settings_of(const kl_comm_shards *s, int i)
{
    kl_param is = {.rate = 1, .decay = 1};
    if (s->params)
        kl_params_get(s->params, kl_params_index_of(s->params, s->param[i]), &is);
    return is;
}

static bool same_settings(const kl_comm_shards *s, int i, int k)
{
    kl_param a = settings_of(s, i), b = settings_of(s, k);
    return a.rate == b.rate && a.decay == b.decay && a.frozen == b.frozen;
}

/* The parameters of a bucket have the same factors, so that these can be the factors of its parts. */
static int fill_buckets(kl_comm_shards *s, int64_t bucket_bytes)
{
    int64_t bytes = 0, ranks = kl_comm_ranks(s->comm);
    int b = -1;
    for (int i = 0; i < s->n; i++) {
        int64_t more = bytes_of(s->param[i]);
        if (b < 0 || bytes + more > bucket_bytes || !same_settings(s, i - 1, i)) {
            s->bucket[++b] = (struct bucket){.first = i};
            bytes = 0;
        }
        s->bucket[b].n++;
        s->bucket[b].length += kl_numel(s->param[i]);
        bytes += more;
    }
    for (int i = 0; i <= b; i++)
        s->bucket[i].length = (s->bucket[i].length + ranks - 1) / ranks * ranks;
    return b + 1;
}

/* This rank's part of the present values of the parameters of bucket b. */
static kl_tensor part_now(const kl_comm_shards *s, int b)
{
    const struct bucket *k = &s->bucket[b];
    int64_t count = k->length / kl_comm_ranks(s->comm);
    kl_tensor flat = kl_detach(flat_of(k->n, s->param + k->first, s->room, k->length));
    return kl_narrow(flat, 0, count * kl_comm_rank(s->comm), count);
}

static bool shards_check(const kl_comm *comm, int n, const kl_tensor *param, int64_t bucket_bytes)
{
    if (!comm || n < 1 || !param || bucket_bytes < 0) {
        kl_failf(NULL, KL_ERR_ARGUMENT, "comm_shards_new: %s, %d parameters at %s, buckets of %lld bytes",
                 comm ? "a communicator" : "no communicator", n, param ? "an array" : "NULL", (long long)bucket_bytes);
        return false;
    }
    for (int i = 0; i < n; i++) {
        if (kl_check(param[i]) != KL_OK)
            return false;
        if (!same_kind(param[0], param[i])) {
            kl_failf(NULL, KL_ERR_TYPE, "comm_shards_new: parameter %d is %s on %s, parameter 0 is %s on %s", i,
                     kl_dtype_name(kl_dtype_of(param[i])), kl_device_name(kl_device_of(param[i])),
                     kl_dtype_name(kl_dtype_of(param[0])), kl_device_name(kl_device_of(param[0])));
            return false;
        }
    }
    return true;
}

/* Makes this rank's part of bucket b, which the tree owns. */
static kl_status make_part(kl_comm_shards *s, int b)
{
    char name[24];
    int64_t count = s->bucket[b].length / kl_comm_ranks(s->comm);
    kl_format(name, sizeof name, "part.%d", b);
    s->part[b] = train_state(s->param[0], 1, &count, name);
    return kl_params_add(s->tree, name, s->part[b]);
}

static kl_comm_shards *shards_new(kl_comm *comm, int n, const kl_tensor *param,
                                  const kl_params *params, int64_t bucket_bytes)
{
    if (!shards_check(comm, n, param, bucket_bytes))
        return NULL;
    kl_comm_shards *s = kl_memory_alloc(sizeof *s);
    if (s) {
        *s = (kl_comm_shards){.comm = comm, .n = n, .params = params,
                              .param = kl_memory_alloc((size_t)n * sizeof *s->param),
                              .part = kl_memory_alloc(2 * (size_t)n * sizeof *s->part),
                              .room = kl_memory_alloc(((size_t)n + 1) * sizeof *s->room),
                              .bucket = kl_memory_alloc((size_t)n * sizeof *s->bucket),
                              .tree = kl_params_new(kl_device_of(param[0]), kl_dtype_of(param[0]), 0)};
    }
    if (!s || !s->param || !s->part || !s->room || !s->bucket || !s->tree) {
        kl_comm_shards_free(s);
        kl_failf(NULL, KL_ERR_MEMORY, "comm_shards_new: out of memory");
        return NULL;
    }
    memcpy(s->param, param, (size_t)n * sizeof *param);
    int buckets = fill_buckets(s, bucket_bytes ? bucket_bytes : DEFAULT_BUCKET);
    kl_status status = KL_OK;
    for (; s->buckets < buckets && status == KL_OK; s->buckets++)
        status = make_part(s, s->buckets);
    if (status == KL_OK && kl_comm_shards_reload(s) == KL_OK)
        return s;
    kl_comm_shards_free(s);
    return NULL;
}

kl_comm_shards *kl_comm_shards_new(kl_comm *comm, int64_t n, const kl_tensor *param, int64_t bucket_bytes)
{
    return train_count_valid("comm_shards_new", n) ? shards_new(comm, (int)n, param, NULL, bucket_bytes) : NULL;
}

kl_comm_shards *kl_comm_shards_new_params(kl_comm *comm, kl_params *params, int64_t bucket_bytes)
{
    int64_t n;
    const kl_tensor *param = kl_params_trained(params, &n);
    return param ? shards_new(comm, (int)n, param, params, bucket_bytes) : NULL;
}

const kl_params *kl_comm_shards_params(const kl_comm_shards *s) { return s ? s->tree : NULL; }

kl_status kl_comm_shards_reload(kl_comm_shards *s)
{
    if (!s)
        return kl_failf(NULL, KL_ERR_ARGUMENT, "comm_shards_reload: no shards");
    kl_status status = kl_trace_begin("comm_shards_reload");
    for (int b = 0; b < s->buckets && status == KL_OK; b++)
        status = kl_assign(s->part[b], part_now(s, b));
    return kl_tracing() ? kl_trace_end() : status;
}

const kl_tensor *kl_comm_shards_parts(const kl_comm_shards *s, int64_t *parts)
{
    if (parts)
        *parts = s ? s->buckets : 0;
    return s ? s->part : NULL;
}

/* Splits the parts of all ranks into the parameters. */
static kl_status take_parts(kl_comm_shards *s, int b)
{
    const struct bucket *k = &s->bucket[b];
    kl_tensor all = kl_comm_all_gather(s->comm, 0, kl_detach(s->part[b]));
    int64_t at = 0;
    kl_status status = kl_check(all);
    for (int i = k->first; i < k->first + k->n && status == KL_OK; i++) {
        status = kl_assign(s->param[i], piece_of(all, at, s->param[i]));
        at += kl_numel(s->param[i]);
    }
    return status;
}

/* Gives the parts the present factors of the parameters. */
static kl_status set_factors(kl_comm_shards *s, const char *op)
{
    for (int b = 0; b < s->buckets && s->params; b++) {
        const struct bucket *k = &s->bucket[b];
        kl_param is = settings_of(s, k->first), part;
        for (int i = k->first + 1; i < k->first + k->n; i++)
            if (!same_settings(s, k->first, i))
                return kl_failf(NULL, KL_ERR_ARGUMENT, "%s: the factors of \"%.60s\" and \"%.60s\" were equal when the "
                                "shards were made, and are not any more; make the shards after setting factors", op,
                                is.name, settings_of(s, i).name);
        kl_status status = kl_params_get(s->tree, b, &part);
        if (status == KL_OK)
            status = kl_params_set_rate(s->tree, part.name, is.rate);
        if (status == KL_OK)
            status = kl_params_set_decay(s->tree, part.name, is.decay);
        if (status == KL_OK)
            status = kl_params_freeze(s->tree, part.name, is.frozen);
        if (status != KL_OK)
            return status;
    }
    return KL_OK;
}

/* Checks a call that records something; reports errors of `op`. */
static kl_status shards_ready(const char *op, const kl_comm_shards *s, bool arguments)
{
    if (!s || !arguments)
        return kl_failf(NULL, KL_ERR_ARGUMENT, "%s: %s", op, s ? "an argument is NULL" : "no shards");
    return kl_tracing() ? KL_OK : kl_failf(NULL, KL_ERR_TRACE, "%s: no trace is open", op);
}

static kl_status check_gradients(const char *op, const kl_comm_shards *s, const kl_tensor *g)
{
    for (int i = 0; i < s->n; i++) {
        int64_t want[KL_MAX_RANK], has[KL_MAX_RANK];
        if (kl_check(g[i]) != KL_OK)
            return g[i].id ? kl_last_error_code()
                           : kl_failf(NULL, KL_ERR_ARGUMENT, "%s: there is no gradient %d", op, i);
        int rank = kl_shape(s->param[i], want);
        if (kl_shape(g[i], has) != rank || memcmp(want, has, (size_t)rank * sizeof *want))
            return kl_failf(NULL, KL_ERR_SHAPE, "%s: gradient %d is not shaped like its parameter", op, i);
    }
    return KL_OK;
}

static kl_status reduce_parts(kl_comm_shards *s, const kl_tensor *g, kl_tensor *part)
{
    kl_status status = KL_OK;
    for (int b = s->buckets - 1; b >= 0 && status == KL_OK; b--) { /* in the order in which a backward pass computes
                                                                      the gradients */
        const struct bucket *k = &s->bucket[b];
        part[b] = kl_comm_reduce_scatter(s->comm, KL_REDUCE_MEAN, 0, flat_of(k->n, g + k->first, s->room, k->length));
        status = kl_check(part[b]);
    }
    return status;
}

static kl_status gather_parts(kl_comm_shards *s)
{
    kl_status status = KL_OK;
    for (int b = s->buckets - 1; b >= 0 && status == KL_OK; b--)
        status = take_parts(s, b);
    return status;
}

/* What the caller's gradients have to pass before they are reduced in a composite op. */
static kl_status begin_reduction(const char *op, kl_comm_shards *s, const kl_tensor *g)
{
    kl_status status = check_gradients(op, s, g);
    if (status == KL_OK)
        status = set_factors(s, op);
    return status == KL_OK ? kl_composite_begin(op) : status;
}

kl_status kl_comm_shards_reduce(kl_comm_shards *s, const kl_tensor *g, kl_tensor *parts)
{
    static const char op[] = "comm_shards_reduce";
    kl_status status = shards_ready(op, s, g && parts);
    if (status == KL_OK)
        status = begin_reduction(op, s, g);
    if (status != KL_OK)
        return status;
    status = reduce_parts(s, g, parts);
    kl_composite_end(s->buckets, parts);
    return status;
}

kl_tensor kl_comm_shards_clip_norm(kl_comm_shards *s, kl_tensor *parts, double max)
{
    if (shards_ready("comm_shards_clip_norm", s, parts != NULL) != KL_OK)
        return kl_poison();
    return train_clip_norm("comm_shards_clip_norm", s->comm, s->buckets, parts, max);
}

kl_status kl_comm_shards_gather(kl_comm_shards *s)
{
    kl_status status = shards_ready("comm_shards_gather", s, true);
    if (status == KL_OK)
        status = kl_composite_begin("comm_shards_gather");
    if (status != KL_OK)
        return status;
    status = gather_parts(s);
    kl_composite_end(0, NULL);
    return status;
}

kl_status kl_comm_shards_step(kl_comm_shards *s, kl_optimizer *opt, const kl_tensor *g, double lr)
{
    static const char op[] = "comm_shards_step";
    kl_status status = shards_ready(op, s, opt && g);
    if (status == KL_OK && s->params && opt->params != s->tree)
        status = kl_failf(NULL, KL_ERR_ARGUMENT, "%s: the optimizer is not attached to kl_comm_shards_params, which "
                          "has the factors", op);
    if (status == KL_OK)
        status = begin_reduction(op, s, g);
    if (status != KL_OK)
        return status;
    status = reduce_parts(s, g, s->part + s->n);
    if (status == KL_OK)
        status = kl_optimizer_step_gradients(opt, s->part + s->n, lr);
    if (status == KL_OK)
        status = gather_parts(s);
    kl_composite_end(0, NULL);
    return status;
}

void kl_comm_shards_free(kl_comm_shards *s)
{
    if (!s)
        return;
    kl_params_free(s->tree);
    kl_memory_free(s->param);
    kl_memory_free(s->part);
    kl_memory_free(s->room);
    kl_memory_free(s->bucket);
    kl_memory_free(s);
}
