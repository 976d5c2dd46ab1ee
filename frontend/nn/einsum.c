/* Sums of products by subscripts: each repeated letter of an operand is reduced to a diagonal, then the operands are
 * multiplied from left to right; each letter is contracted or summed as soon as no later operand needs it. */
#include "frontend/frontend.h"
#include <inttypes.h>
#include <string.h>

enum { TERMS = 16, LETTERS = 128 };

/* A tensor and the letter of each of its axes.  The axes of an ellipsis have the letters 1..8, the last one 8; ELLIPSIS
 * stands for them while their number is unknown. */
enum { ELLIPSIS = '.' };
struct einsum_term {
    kl_tensor x;
    char letter[KL_MAX_RANK + 1];
    uint32_t rank;
};

struct einsum {
    struct thread *t;
    const char *text;
    int n;
    struct einsum_term term[TERMS];
    struct einsum_term out;             /* x: none */
    struct view like;            /* of the first operand: for constants */
    bool known[LETTERS];
    int64_t length[LETTERS];     /* of each letter's axes */
    int64_t own[TERMS][KL_MAX_RANK + 1]; /* of a term's axes of its ellipsis */
};

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static int einsum_axis_of(const struct einsum_term *m, char c)
{
    const char *p = memchr(m->letter, c, m->rank);
    return p ? (int)(p - m->letter) : -1;
}

#define BAD(e, code, ...) (fail((e)->t, code, "einsum: " __VA_ARGS__), false)

/* ---- parsing the subscripts ---- */

static bool put_letter(struct einsum *e, struct einsum_term *m, char c)
{
    if (!is_letter(c))
        return BAD(e, KL_ERR_ARGUMENT, "'%c' in \"%.80s\" is no subscript: letters, ',' and one '->'", c, e->text);
    if (m->rank == KL_MAX_RANK + (einsum_axis_of(m, ELLIPSIS) >= 0))
        return BAD(e, KL_ERR_ARGUMENT, "\"%.80s\" has more than %d subscripts at '%c'", e->text, KL_MAX_RANK, c);
    if (m == &e->out && einsum_axis_of(m, c) >= 0)
        return BAD(e, KL_ERR_ARGUMENT, "subscript '%c' occurs twice in the result of \"%.80s\"", c, e->text);
    m->letter[m->rank++] = c;
    return true;
}

/* The axes of an ellipsis, and letters that occur once, in order. */
static bool implicit_output(struct einsum *e)
{
    for (int i = 0; i < e->n && !e->out.rank; i++)
        if (einsum_axis_of(&e->term[i], ELLIPSIS) >= 0)
            e->out.letter[e->out.rank++] = ELLIPSIS;
    for (int c = 'A'; c <= 'z'; c++) {
        int uses = 0;
        for (int i = 0; i < e->n; i++)
            for (uint32_t j = 0; j < e->term[i].rank; j++)
                uses += e->term[i].letter[j] == c;
        if (uses == 1 && !put_letter(e, &e->out, (char)c))
            return false;
    }
    return true;
}

static bool einsum_parse(struct einsum *e)
{
    int terms = 1;
    struct einsum_term *m = &e->term[0];
    for (const char *p = e->text; *p; p++) {
        if (*p == ' ')
            continue;
        if (*p == ',' && m != &e->out) {
            if (++terms > e->n)
                break;
            m = &e->term[terms - 1];
        } else if (p[0] == '-' && p[1] == '>' && m != &e->out) {
            m = &e->out;
            p++;
        } else if (!strncmp(p, "...", 3) && einsum_axis_of(m, ELLIPSIS) < 0 && m->rank <= KL_MAX_RANK) {
            m->letter[m->rank++] = ELLIPSIS;
            p += 2;
        } else if (!put_letter(e, m, *p)) {
            return false;
        }
    }
    if (terms != e->n)
        return BAD(e, KL_ERR_ARGUMENT, "\"%.80s\" has %s terms than the %d operands", e->text,
                   terms < e->n ? "fewer" : "more", e->n);
    return m == &e->out || implicit_output(e);
}

/* Replaces an ellipsis by the letters of `axes` axes; false: too many. */
static bool expand_ellipsis(struct einsum_term *m, int axes)
{
    int at = einsum_axis_of(m, ELLIPSIS), behind = (int)m->rank - at - 1;
    if (at < 0)
        return true;
    if (axes < 0 || (int)m->rank - 1 + axes > KL_MAX_RANK)
        return false;
    memmove(m->letter + at + axes, m->letter + at + 1, (size_t)behind);
    for (int i = 0; i < axes; i++)
        m->letter[at + i] = (char)(KL_MAX_RANK - axes + 1 + i);
    m->rank = m->rank - 1 + (uint32_t)axes;
    return true;
}

/* Removes axes of an ellipsis that have one element where others have more, because the product broadcasts them. */
static void broadcast_ellipsis(const struct einsum *e, struct einsum_term *m)
{
    for (int j = (int)m->rank - 1; j >= 0; j--) {
        int c = m->letter[j];
        if (c > KL_MAX_RANK || e->length[c] == 1 || e->own[m - e->term][c] != 1)
            continue;
        m->x = kl_squeeze(m->x, j);
        m->rank--;
        memmove(&m->letter[j], &m->letter[j + 1], m->rank - (uint32_t)j);
    }
}

/* Each letter must have one length, and the result's letters must occur in an operand. */
static bool check_operands(struct einsum *e, const kl_tensor *operand)
{
    char text[SHAPE_TEXT];
    int max = 0; /* axes of an ellipsis */
    for (int i = 0; i < e->n; i++) {
        struct einsum_term *m = &e->term[i];
        struct view v;
        m->x = operand[i];
        if (!describe(e->t, "einsum", "an operand", m->x, &v))
            return false;
        if (i == 0)
            e->like = v;
        int axes = (int)v.shape.rank - (int)m->rank + 1;
        max = einsum_axis_of(m, ELLIPSIS) >= 0 && axes > max ? axes : max;
        if (!expand_ellipsis(m, axes) || v.shape.rank != m->rank)
            return BAD(e, KL_ERR_SHAPE, "term %d of \"%.80s\" has %u subscripts for shape %s", i + 1, e->text, m->rank,
                       shape_text(&v.shape, text, sizeof text));
        for (uint32_t j = 0; j < m->rank; j++) {
            int c = m->letter[j];
            if (c <= KL_MAX_RANK)
                e->own[i][c] = v.shape.dim[j];
            if (c <= KL_MAX_RANK && e->known[c] && (v.shape.dim[j] == 1 || e->length[c] == 1)) {
                e->length[c] = v.shape.dim[j] == 1 ? e->length[c] : v.shape.dim[j];
                continue;
            }
            if (e->known[c] && e->length[c] != v.shape.dim[j])
                return BAD(e, KL_ERR_SHAPE, "subscript '%c' of \"%.80s\" has lengths %" PRId64 " and %" PRId64
                           ", the second in term %d with shape %s", c <= KL_MAX_RANK ? ELLIPSIS : c, e->text,
                           e->length[c], v.shape.dim[j], i + 1, shape_text(&v.shape, text, sizeof text));
            e->known[c] = true;
            e->length[c] = v.shape.dim[j];
        }
    }
    if (!expand_ellipsis(&e->out, max))
        return BAD(e, KL_ERR_SHAPE, "the result of \"%.80s\" has more than %d axes", e->text, KL_MAX_RANK);
    for (uint32_t j = 0; j < e->out.rank; j++)
        if (!e->known[(int)e->out.letter[j]])
            return BAD(e, KL_ERR_ARGUMENT, "subscript '%c' of the result is in no operand of \"%.80s\"",
                       e->out.letter[j], e->text);
    return true;
}

/* ---- the products ---- */

static void sum_axis(struct einsum_term *m, int axis)
{
    m->x = kl_sum(m->x, 1, &axis, false);
    m->rank--;
    memmove(&m->letter[axis], &m->letter[axis + 1], m->rank - (uint32_t)axis);
}

/* Sums over a letter's second axis with a mask of the diagonal with its first. */
static void einsum_take_diagonals(const struct einsum *e, struct einsum_term *m)
{
    for (int j = 1; j < (int)m->rank;) {
        int i = einsum_axis_of(m, m->letter[j]);
        if (i == j) {
            j++;
            continue;
        }
        int64_t dims[KL_MAX_RANK];
        for (uint32_t k = 0; k < m->rank; k++)
            dims[k] = e->length[(int)m->letter[k]];
        kl_tensor row = kl_iota(e->like.device, KL_I64, (int)m->rank, dims, i);
        kl_tensor column = kl_iota(e->like.device, KL_I64, (int)m->rank, dims, j);
        kl_tensor zero = const_like(&e->like, 0);
        m->x = kl_where(kl_eq(row, column), m->x, zero);
        sum_axis(m, j);
    }
}

/* Whether the result or a term from `from` on has the letter. */
static bool einsum_is_needed(const struct einsum *e, int from, char c)
{
    for (int i = from; i < e->n; i++)
        if (einsum_axis_of(&e->term[i], c) >= 0)
            return true;
    return einsum_axis_of(&e->out, c) >= 0;
}

/* Sums over letters that neither `other` nor anything from `from` on has. */
static void sum_unneeded(const struct einsum *e, struct einsum_term *m, const struct einsum_term *other, int from)
{
    for (int j = (int)m->rank - 1; j >= 0; j--)
        if (!einsum_is_needed(e, from, m->letter[j]) && !(other && einsum_axis_of(other, m->letter[j]) >= 0))
            sum_axis(m, j);
}

/* a times b, into a: letters of both are batch axes if something later needs them, else contracted. */
static void einsum_multiply(const struct einsum *e, struct einsum_term *a, const struct einsum_term *b, int later)
{
    int batch_a[KL_MAX_RANK], batch_b[KL_MAX_RANK], con_a[KL_MAX_RANK], con_b[KL_MAX_RANK], nbatch = 0, ncon = 0;
    char letter[2 * KL_MAX_RANK];
    uint32_t rank = 0;
    for (int i = 0; i < (int)a->rank; i++) {
        int j = einsum_axis_of(b, a->letter[i]);
        if (j >= 0 && einsum_is_needed(e, later, a->letter[i])) {
            letter[rank++] = a->letter[i];
            batch_a[nbatch] = i;
            batch_b[nbatch++] = j;
        } else if (j >= 0) {
            con_a[ncon] = i;
            con_b[ncon++] = j;
        }
    }
    for (uint32_t i = 0; i < a->rank; i++)
        if (einsum_axis_of(b, a->letter[i]) < 0)
            letter[rank++] = a->letter[i];
    for (uint32_t j = 0; j < b->rank; j++)
        if (einsum_axis_of(a, b->letter[j]) < 0)
            letter[rank++] = b->letter[j];
    a->x = kl_dot_general(a->x, b->x, nbatch, batch_a, batch_b, ncon, con_a, con_b);
    a->rank = rank < KL_MAX_RANK ? rank : KL_MAX_RANK; /* above that the product has failed */
    memcpy(a->letter, letter, a->rank);
}

static kl_tensor einsum_contract(struct einsum *e)
{
    for (int i = 0; i < e->n; i++)
        broadcast_ellipsis(e, &e->term[i]);
    struct einsum_term all = e->term[0];
    einsum_take_diagonals(e, &all);
    for (int i = 1; i < e->n; i++) {
        struct einsum_term next = e->term[i];
        einsum_take_diagonals(e, &next);
        sum_unneeded(e, &all, &next, i + 1);
        sum_unneeded(e, &next, &all, i + 1);
        einsum_multiply(e, &all, &next, i + 1);
    }
    sum_unneeded(e, &all, NULL, e->n);
    int axes[KL_MAX_RANK];
    for (uint32_t j = 0; j < e->out.rank; j++)
        axes[j] = einsum_axis_of(&all, e->out.letter[j]);
    return kl_permute(all.x, axes); /* permuted even if nothing changes: a new handle */
}

kl_tensor kl_einsum(const char *subscripts, int64_t n, const kl_tensor *operand)
{
    struct thread *t = thread_self();
    struct einsum e = {.t = t, .text = subscripts};
    if (!t)
        return kl_none;
    if (!counts_valid(t, "einsum", COUNTS({"n", n})))
        return op_failed();
    e.n = (int)n;
    if (!subscripts || !operand || n < 1 || n > TERMS)
        return refuse(t, KL_ERR_ARGUMENT, "einsum: needs subscripts and 1..%d operands, got %d", TERMS,
                      operand ? (int)n : 0);
    if (!einsum_parse(&e) || !check_operands(&e, operand) || !(t = checked_begin("einsum")))
        return op_failed();
    return compose_end(t, einsum_contract(&e));
}
