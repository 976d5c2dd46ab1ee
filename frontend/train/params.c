/* Trees of parameters: an array in the order in which parameters were added, and a hash table of their names. */
#include "train.h"

struct params_row {
    kl_param is;
    uint64_t hash;
};

struct kl_params {
    kl_device device;
    kl_dtype dtype;
    uint64_t seed;
    struct params_row *row;
    int n, cap;
    int *slot;             /* hash table: the number of a row + 1; 0: free */
    int slots;             /* its size: a power of two, at least 2 * n */
    kl_tensor *trained;
    int trained_cap;
};

/* The hash function FNV-1a, 64 bits. */
static uint64_t params_hash(const char *name)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (; *name; name++)
        h = (h ^ (unsigned char)*name) * UINT64_C(0x100000001b3);
    return h;
}

kl_params *kl_params_new(kl_device device, kl_dtype dtype, uint64_t seed)
{
    if (!*kl_device_name(device) || !strcmp(kl_device_name(device), "none")) {
        kl_failf(NULL, KL_ERR_DEVICE, "params_new: no device");
        return NULL;
    }
    if (dtype != KL_F16 && dtype != KL_BF16 && dtype != KL_F32 && dtype != KL_F64 && dtype != KL_FLOAT) {
        kl_failf(NULL, KL_ERR_TYPE, "params_new: dtype %s is not a float type", kl_dtype_name(dtype));
        return NULL;
    }
    kl_params *p = kl_memory_alloc(sizeof *p);
    if (!p) {
        kl_failf(NULL, KL_ERR_MEMORY, "params_new: out of memory");
        return NULL;
    }
    *p = (kl_params){.device = device, .dtype = dtype, .seed = seed};
    return p;
}

void kl_params_free(kl_params *p)
{
    if (!p)
        return;
    for (int i = 0; i < p->n; i++) {
        train_release(p->row[i].is.tensor);
        kl_memory_free((char *)p->row[i].is.name);
    }
    kl_memory_free(p->row);
    kl_memory_free(p->slot);
    kl_memory_free(p->trained);
    kl_memory_free(p);
}

kl_device kl_params_device(const kl_params *p) { return p ? p->device : (kl_device){0}; }
kl_dtype kl_params_dtype(const kl_params *p) { return p ? p->dtype : KL_DTYPE_COUNT; }
uint64_t kl_params_seed(const kl_params *p) { return p ? p->seed : 0; }
int64_t kl_params_count(const kl_params *p) { return p ? p->n : 0; }

/* ---- names ---- */

/* The slot of a name, or the free slot for it. */
static int *params_slot(const kl_params *p, const char *name, uint64_t hash)
{
    for (uint64_t i = hash;; i++) {
        int *at = &p->slot[i & (uint64_t)(p->slots - 1)];
        const struct params_row *r = *at ? &p->row[*at - 1] : NULL;
        if (!r || (r->hash == hash && !strcmp(r->is.name, name)))
            return at;
    }
}

int kl_params_index(const kl_params *p, const char *name)
{
    return p && p->n && name ? *params_slot(p, name, params_hash(name)) - 1 : -1;
}

int kl_params_index_of(const kl_params *p, kl_tensor tensor)
{
    for (int i = 0; p && tensor.id && i < p->n; i++)
        if (p->row[i].is.tensor.id == tensor.id)
            return i;
    return -1;
}

kl_tensor kl_params_find(const kl_params *p, const char *name)
{
    int i = kl_params_index(p, name);
    if (i >= 0)
        return p->row[i].is.tensor;
    kl_failf(NULL, KL_ERR_ARGUMENT, "params_find: no tensor \"%s\" among the %" PRId64 " of the tree",
             name ? name : "(NULL)", kl_params_count(p));
    return kl_poison();
}

kl_status kl_params_get(const kl_params *p, int64_t i, kl_param *out)
{
    if (p && out && i >= 0 && i < p->n) {
        *out = p->row[i].is;
        return KL_OK;
    }
    if (out)
        *out = (kl_param){0};
    return kl_failf(NULL, KL_ERR_ARGUMENT, "params_get: %s: number %" PRId64 " of %" PRId64,
                   !p ? "no tree" : !out ? "out is NULL" : "no tensor", i, kl_params_count(p));
}

/* '*' stands for any number of characters.  The shortest match is tried first, and only the last '*' needs to be
 * extended. */
static bool params_glob(const char *pattern, const char *name)
{
    const char *star = NULL, *from = NULL;
    while (*name) {
        if (*pattern == '*') {
            star = pattern++;
            from = name;
        } else if (*pattern == *name) {
            pattern++;
            name++;
        } else if (star) {
            pattern = star + 1;
            name = ++from;
        } else {
            return false;
        }
    }
    while (*pattern == '*')
        pattern++;
    return !*pattern;
}

static bool params_match(const char *pattern, const char *name)
{
    if (strchr(pattern, '*'))
        return params_glob(pattern, name);
    size_t n = strlen(pattern);
    return !n || (!strncmp(pattern, name, n) && (!name[n] || name[n] == '.'));
}

int kl_params_next(const kl_params *p, const char *pattern, int from)
{
    for (int i = from < 0 ? 0 : from; p && pattern && i < p->n; i++)
        if (params_match(pattern, p->row[i].is.name))
            return i;
    return -1;
}

int64_t kl_params_elements(const kl_params *p, const char *pattern)
{
    int64_t sum = 0;
    for (int i = kl_params_next(p, pattern, 0); i >= 0; i = kl_params_next(p, pattern, i + 1))
        if (!p->row[i].is.buffer)
            sum += kl_numel(p->row[i].is.tensor);
    return sum;
}

/* Returns what is wrong with a name; NULL: nothing. */
static const char *params_name_fault(const kl_params *p, const char *name)
{
    if (!name || !*name)
        return "is empty";
    if (strlen(name) > KL_PARAM_NAME)
        return "is longer than 200 bytes";
    for (const char *c = name; *c; c++)
        if (*c <= ' ' || *c > '~' || *c == '*')
            return "has a character that no name may have";
    if (*name == '.' || name[strlen(name) - 1] == '.' || strstr(name, ".."))
        return "has an empty part";
    return kl_params_index(p, name) >= 0 ? "is there already" : NULL;
}

/* ---- adding ---- */

/* Makes room for one more row, also in the hash table. */
static bool params_reserve(kl_params *p)
{
    if (p->n == p->cap) {
        int cap = p->cap ? 2 * p->cap : 16;
        struct params_row *row = kl_memory_grow(p->row, (size_t)p->cap * sizeof *row, (size_t)cap * sizeof *row);
        if (!row)
            return false;
        p->row = row;
        p->cap = cap;
    }
    if (p->slots >= 2 * (p->n + 1))
        return true;
    int slots = p->slots ? 2 * p->slots : 64, *slot = kl_memory_alloc((size_t)slots * sizeof *slot);
    if (!slot)
        return false;
    kl_memory_free(p->slot);
    p->slot = slot;
    p->slots = slots;
    for (int i = 0; i < p->n; i++)
        *params_slot(p, p->row[i].is.name, p->row[i].hash) = i + 1;
    return true;
}

static kl_status params_put(const char *op, kl_params *p, const char *name, kl_tensor t, bool buffer)
{
    kl_status s = KL_OK;
    const char *fault = p ? params_name_fault(p, name) : NULL;
    char *own = NULL;
    if (!p)
        s = kl_failf(NULL, KL_ERR_ARGUMENT, "%s: no tree", op);
    else if (fault)
        s = kl_failf(NULL, KL_ERR_ARGUMENT, "%s: name \"%.*s\" %s", op, KL_PARAM_NAME, name ? name : "", fault);
    else if (kl_check(t) != KL_OK)
        kl_keep(t), s = kl_check(t); /* kl_keep reports what is wrong with the handle */
    else if (!buffer)
        s = kl_requires_grad(t);
    if (s == KL_OK && (!params_reserve(p) || !(own = kl_memory_alloc(strlen(name) + 1))))
        s = kl_failf(NULL, KL_ERR_MEMORY, "%s: out of memory", op);
    if (s != KL_OK) {
        train_release(t);
        return s;
    }
    kl_keep(t);
    kl_set_name(t, name);
    uint64_t hash = params_hash(name);
    int *at = params_slot(p, name, hash);
    p->row[p->n] = (struct params_row){.is = {strcpy(own, name), t, buffer, false, 1, 1}, .hash = hash};
    *at = ++p->n;
    return KL_OK;
}

kl_status kl_params_add(kl_params *p, const char *name, kl_tensor t)
{
    return params_put("params_add", p, name, t, false);
}

kl_status kl_params_add_buffer(kl_params *p, const char *name, kl_tensor t)
{
    return params_put("params_add_buffer", p, name, t, true);
}

kl_tensor kl_params_make(kl_params *p, const char *name, int rank, const int64_t *dims, const kl_init *init)
{
    static const kl_init zeros = {.kind = KL_INIT_ZEROS};
    const char *fault = p ? params_name_fault(p, name) : "has no tree";
    if (fault) {
        kl_failf(NULL, KL_ERR_ARGUMENT, "params_make: name \"%.*s\" %s", KL_PARAM_NAME, name ? name : "", fault);
        return kl_poison();
    }
    uint64_t seed = train_mix(p->seed ^ params_hash(name));
    kl_tensor t = kl_init_values(init ? init : &zeros, p->device, p->dtype, rank, dims, seed);
    if (kl_check(t) != KL_OK)
        return t;
    return params_put("params_make", p, name, t, false) == KL_OK ? t : kl_poison();
}

kl_status kl_params_reset(kl_params *p, const char *pattern, const kl_init *init)
{
    int n = 0;
    kl_status s = KL_OK;
    for (int i = kl_params_next(p, pattern, 0); i >= 0 && s == KL_OK; i = kl_params_next(p, pattern, i + 1)) {
        kl_tensor t = p->row[i].is.tensor;
        int64_t dims[KL_MAX_RANK];
        int rank = kl_shape(t, dims);
        if (p->row[i].is.buffer)
            continue;
        n++;
        kl_tensor x = kl_init_values(init, kl_device_of(t), kl_dtype_of(t), rank, dims,
                                     train_mix(p->seed ^ p->row[i].hash));
        s = kl_assign(t, x);
        train_release(x);
    }
    return n || s != KL_OK ? s : kl_failf(NULL, KL_ERR_ARGUMENT, "params_reset: \"%.*s\" stands for no parameter",
                                         KL_PARAM_NAME, pattern ? pattern : "(NULL)");
}

/* ---- what optimizers see ---- */

const kl_tensor *kl_params_trained(kl_params *p, int64_t *n)
{
    if (n)
        *n = 0;
    if (!p || !n) {
        kl_failf(NULL, KL_ERR_ARGUMENT, "params_trained: %s", p ? "n is NULL" : "no tree");
        return NULL;
    }
    if (p->trained_cap < p->cap || !p->trained) {
        kl_tensor *list = kl_memory_alloc(((size_t)p->cap + 1) * sizeof *list);
        if (!list) {
            kl_failf(NULL, KL_ERR_MEMORY, "params_trained: out of memory");
            return NULL;
        }
        kl_memory_free(p->trained);
        p->trained = list;
        p->trained_cap = p->cap;
    }
    for (int i = 0; i < p->n; i++)
        if (!p->row[i].is.buffer && !p->row[i].is.frozen)
            p->trained[(*n)++] = p->row[i].is.tensor;
    return p->trained;
}

enum params_option { OPTION_FROZEN, OPTION_RATE, OPTION_DECAY };

static kl_status params_set(const char *op, kl_params *p, const char *pattern, enum params_option option,
                            double value)
{
    int first = kl_params_next(p, pattern, 0);
    if (!(value >= 0 && value <= 1e300))
        return kl_failf(NULL, KL_ERR_ARGUMENT, "%s: factor %g; it must be a finite number from 0 on", op, value);
    if (first < 0)
        return kl_failf(NULL, KL_ERR_ARGUMENT, "%s: \"%.*s\" stands for none of the %" PRId64 " tensors of the tree",
                        op, KL_PARAM_NAME, pattern ? pattern : "(NULL)", kl_params_count(p));
    for (int i = first; i >= 0; i = kl_params_next(p, pattern, i + 1)) {
        kl_param *is = &p->row[i].is;
        switch (option) {
        case OPTION_FROZEN: is->frozen = value != 0; break;
        case OPTION_RATE: is->rate = value; break;
        case OPTION_DECAY: is->decay = value; break;
        }
    }
    return KL_OK;
}

kl_status kl_params_freeze(kl_params *p, const char *pattern, bool frozen)
{
    return params_set("params_freeze", p, pattern, OPTION_FROZEN, frozen);
}

kl_status kl_params_set_rate(kl_params *p, const char *pattern, double rate)
{
    return params_set("params_set_rate", p, pattern, OPTION_RATE, rate);
}

kl_status kl_params_set_decay(kl_params *p, const char *pattern, double decay)
{
    return params_set("params_set_decay", p, pattern, OPTION_DECAY, decay);
}
