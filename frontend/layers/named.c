/* Named: axes with names, which each op passes to its result or rejects.  Names are not recorded. */
#include "wrapper.h"
#include <pthread.h>
#include <string.h>

/* A name is its index + 1 in this list, which only grows; 0: none.  An axis of length 1 made by a reduction has this
 * flag, so that the reshape that removes it is recognised. */
#define REDUCED (INT64_C(1) << 32)
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char **known;
static uint32_t nknown, known_cap;

struct axis_names { uint32_t rank; int64_t of[KL_MAX_RANK]; };

/* 0: out of memory. */
static int64_t named_intern(const char *name)
{
    pthread_mutex_lock(&lock);
    uint32_t i = 0;
    while (i < nknown && strcmp(known[i], name))
        i++;
    char *copy = i == nknown && mem_reserve(&known, &known_cap, nknown + 1, sizeof *known) ? mem_text(name) : NULL;
    if (copy)
        known[nknown++] = copy;
    int64_t number = i < nknown ? (int64_t)i + 1 : 0;
    pthread_mutex_unlock(&lock);
    return number;
}

static const char *text_of(int64_t name)
{
    pthread_mutex_lock(&lock);
    const char *s = name & ~REDUCED ? known[(name & ~REDUCED) - 1] : NULL;
    pthread_mutex_unlock(&lock);
    return s;
}

static struct axis_names names_of(kl_tensor h)
{
    const struct wrapper *w = wrapper_of(h, &layer_named);
    struct axis_names n = {.rank = view_of(h).shape.rank};
    if (w)
        memcpy(n.of, w->number, sizeof n.of);
    return n;
}

static kl_tensor named_plain(kl_tensor h)
{
    const struct wrapper *w = wrapper_of(h, &layer_named);
    return w ? w->part[0] : h;
}

/* "[batch, None, width]" */
static char *names_text(const struct axis_names *n, char *buf, size_t size)
{
    size_t at = (size_t)snprintf(buf, size, "[");
    for (uint32_t i = 0; i < n->rank && at < size; i++) {
        const char *s = text_of(n->of[i]);
        at += (size_t)snprintf(buf + at, size - at, "%s%s", i ? ", " : "", s ? s : "None");
    }
    if (at < size)
        snprintf(buf + at, size - at, "]");
    return buf;
}

static kl_tensor named_dense(struct thread *t, kl_tensor h)
{
    (void)t;
    return kl_dense(named_plain(h));
}

/* ---- names of results ---- */

/* Combines both operands' names, counted from the last axis; false: reported. */
static bool named_unify(struct thread *t, const struct call *c, struct axis_names *all, const struct axis_names *more)
{
    char a[200], b[200];
    struct axis_names out = {.rank = all->rank > more->rank ? all->rank : more->rank};
    for (uint32_t i = 1; i <= out.rank; i++) {
        int64_t x = i <= all->rank ? all->of[all->rank - i] & ~REDUCED : 0,
            y = i <= more->rank ? more->of[more->rank - i] & ~REDUCED : 0;
        if (x && y && x != y) {
            call_refused(t, c, KL_ERR_ARGUMENT,
                         "names %s and %s do not match: axis -%u is '%s' in one, '%s' in the other",
                         names_text(all, a, sizeof a), names_text(more, b, sizeof b), i, text_of(x), text_of(y));
            return false;
        }
        out.of[out.rank - i] = x ? x : y;
    }
    *all = out;
    return true;
}

/* Wraps y; a repeated name is an error. */
static kl_tensor named_wrap(struct thread *t, const struct call *c, kl_tensor y, const struct axis_names *n)
{
    struct view v = view_of(y);
    int64_t number[WRAPPER_NUMBERS] = {0};
    for (uint32_t i = 0; i < n->rank; i++) {
        number[i] = n->of[i];
        for (uint32_t k = 0; k < i; k++)
            if ((number[i] & ~REDUCED) && (number[i] & ~REDUCED) == (number[k] & ~REDUCED))
                return call_refused(t, c, KL_ERR_ARGUMENT,
                                    "two axes of the result would be called '%s': give one another name first",
                                    text_of(number[i]));
    }
    return wrap(t, &layer_named, &v, 1, &y, number);
}

/* Matches axes if only axes of length 1 are added or removed, from the first axis on, or from the last. false: they do
 * not match. */
static bool named_match_axes(const struct axis_names *from, const struct shape *old, const struct shape *new, bool back,
                   struct axis_names *to)
{
    uint32_t i = 0, k = 0;
    *to = (struct axis_names){.rank = new->rank};
    while (i < old->rank || k < new->rank) {
        uint32_t at_old = back ? old->rank - 1 - i : i, at_new = back ? new->rank - 1 - k : k;
        bool more_old = i < old->rank, more_new = k < new->rank;
        if (more_old && more_new && old->dim[at_old] == new->dim[at_new]) {
            to->of[at_new] = from->of[at_old];
            i++, k++;
        } else if (more_old && old->dim[at_old] == 1) {
            i++;
        } else if (more_new && new->dim[at_new] == 1) {
            k++;
        } else {
            return false;
        }
    }
    return true;
}

/* A name that could belong to two axes is dropped. */
static bool named_reshape(const struct axis_names *from, const struct shape *old, const struct shape *new,
                          struct axis_names *to)
{
    struct axis_names kept = {0}, other;
    struct shape rest = {0};
    for (uint32_t i = 0; i < old->rank; i++)
        if (!(from->of[i] & REDUCED) || old->dim[i] != 1) {
            rest.dim[rest.rank++] = old->dim[i];
            kept.of[kept.rank++] = from->of[i];
        }
    if (shape_equal(&rest, new)) { /* the reduced axis is removed */
        *to = kept;
        return true;
    }
    if (!named_match_axes(from, old, new, false, to) || !named_match_axes(from, old, new, true, &other))
        return false;
    for (uint32_t i = 0; i < to->rank; i++)
        if (to->of[i] != other.of[i])
            to->of[i] = 0;
    return true;
}

/* Batch axes, then the other axes of each operand; false: reported. */
static bool product_names(struct thread *t, const struct call *c, struct axis_names *out)
{
    unsigned nbatch = c->proto.attr.dot.nbatch, ncon = c->proto.attr.dot.ncon;
    *out = (struct axis_names){0};
    for (unsigned side = 0; side < 2; side++) {
        struct axis_names n = names_of(c->in[side]);
        uint32_t batch = side ? c->proto.attr.dot.batch_b : c->proto.attr.dot.batch_a, gone = 0;
        uint32_t con = side ? c->proto.attr.dot.con_b : c->proto.attr.dot.con_a;
        struct axis_names shared = {.rank = nbatch};
        for (unsigned i = 0; i < nbatch; i++) {
            shared.of[i] = n.of[axis_get(batch, i)];
            gone |= 1u << axis_get(batch, i);
        }
        for (unsigned i = 0; i < ncon; i++)
            gone |= 1u << axis_get(con, i);
        struct axis_names first = *out;
        first.rank = nbatch;
        if (!named_unify(t, c, &first, &shared))
            return false;
        memcpy(out->of, first.of, nbatch * sizeof *out->of);
        out->rank = side ? out->rank : nbatch;
        for (uint32_t i = 0; i < n.rank; i++)
            if (!(gone >> i & 1) && out->rank < KL_MAX_RANK)
                out->of[out->rank++] = n.of[i];
    }
    return true;
}

static kl_tensor call_named(struct thread *t, const struct call *c)
{
    struct call inner = *c;
    struct axis_names n = names_of(c->in[0]), from = n;
    unsigned op = c->proto.op, together = op_is_elementwise(op) || op == OP_concat ? call_operands(c) : 1;
    for (unsigned i = 1; i < together; i++) {
        struct axis_names more = names_of(c->in[i]);
        if (!named_unify(t, c, &n, &more))
            return poison(t);
    }
    for (unsigned i = 0; i < call_operands(c); i++)
        inner.in[i] = named_plain(c->in[i]);
    struct view v = view_of(c->in[0]);
    bool known_op = op_is_elementwise(op);
    switch (op) {
    case OP_sum: case OP_reduce_max: case OP_reduce_min: case OP_reduce_prod:
        for (uint32_t i = 0; i < n.rank; i++)
            n.of[i] |= c->proto.attr.reduce.axes >> i & 1 ? REDUCED : 0;
        known_op = true;
        break;
    case OP_permute:
        for (uint32_t i = 0; i < n.rank; i++)
            n.of[i] = from.of[c->proto.attr.permute.perm[i]];
        known_op = true;
        break;
    case OP_reshape: known_op = named_reshape(&from, &v.shape, &c->target, &n); break;
    case OP_dot:
        if (!product_names(t, c, &n))
            return poison(t);
        known_op = true;
        break;
    case OP_attention: /* axes of q, but for the last, which is v's */
        n.of[n.rank - 1] = names_of(c->in[2]).of[n.rank - 1];
        known_op = true;
        break;
    case OP_window: /* its windows' elements are a new last axis */
        n.rank++;
        known_op = n.rank <= KL_MAX_RANK;
        break;
    case OP_cast: case OP_argsort: known_op = true; break;
    case OP_dynamic_update: case OP_recurrence: break;
    default: known_op |= op_is_view(op) || op_is_select(op) || op_is_cumulative(op);
    }
    if (!known_op)
        return call_refused(t, c, KL_ERR_ARGUMENT,
                            "%s is not yet supported with named tensors. Please drop names via `tensor = "
                            "kl_named(tensor, NULL)`, call the op with an unnamed tensor, and set names on the result "
                            "of the operation.",
                            opinfo[op].name);
    return named_wrap(t, c, record(&inner), &n);
}

const struct layer layer_named = {.name = "named", .key = LAYER_Named, .grad_parts = 1, .call = call_named,
                                  .dense = named_dense};

/* ---- setting and reading names ---- */

kl_tensor kl_named(kl_tensor a, const char *const *names)
{
    struct thread *t = checked_begin("named");
    struct view v;
    if (!t)
        return op_failed();
    if (!describe(t, "named", "the tensor", a, &v))
        return compose_end(t, poison(t));
    kl_tensor x = named_plain(a);
    if (!names)
        return compose_end(t, wrapper_duplicate(t, x));
    struct axis_names n = {.rank = v.shape.rank};
    struct call c = {.op = "named"};
    for (uint32_t i = 0; i < n.rank; i++)
        if (names[i] && !(n.of[i] = named_intern(names[i])))
            return compose_end(t, refuse(t, KL_ERR_MEMORY, "named: out of memory"));
    return compose_end(t, named_wrap(t, &c, x, &n));
}

int kl_names(kl_tensor h, const char **names)
{
    int rank = kl_rank(h);
    struct axis_names n = {0};
    if (rank >= 0)
        n = names_of(h);
    for (int i = 0; i < rank; i++)
        names[i] = text_of(n.of[i]);
    return rank;
}

int kl_axis(kl_tensor h, const char *name)
{
    const char *names[KL_MAX_RANK];
    char text[200];
    int rank = kl_names(h, names);
    for (int i = 0; i < rank; i++)
        if (names[i] && name && !strcmp(names[i], name))
            return i;
    struct thread *t = thread_self();
    struct axis_names n = {0};
    if (rank >= 0)
        n = names_of(h);
    if (t)
        fail(t, KL_ERR_ARGUMENT, "axis: no axis of %s is called '%s'", names_text(&n, text, sizeof text),
             name ? name : "(null)");
    return -1;
}
