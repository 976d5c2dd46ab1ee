/* ai.onnx.ml: support vector machines.
 *
 * A kernel gives a number for each row of the operand and each support vector.  A classifier of k classes compares each
 * two of them, i < j: the numbers of both classes' vectors times coefficients, plus rho.  Above 0 it is a vote for i,
 * else for j.  Probabilities of classes from those of pairs: T.-F. Wu, C.-J. Lin, R. C. Weng, "Probability estimates
 * for multi-class classification by pairwise coupling", JMLR 5 (2004), their second method, with the number of rounds
 * and the bound of libsvm. */
#include "frontend/formats/onnx/ops/ml/labels.h"

enum { SVM_ROUNDS = 100, SVM_CLASSES = 1000 };

static kl_tensor svm_number(struct node *n, double v) { return onnx_number(n, KL_F32, v); }

/* Operand 0 as rows of features, f32 [N, features]; kl_none: reported. */
static kl_tensor svm_rows(struct node *n, int64_t features)
{
    struct type t;
    if (!onnx_type(n, 0, &t))
        return kl_none;
    if ((t.rank != 1 && t.rank != 2) || t.dims[t.rank - 1] != features)
        return onnx_fails(n, KL_ERR_SHAPE, "an operand of %d axes, not rows of %lld features", t.rank,
                          (long long)features), kl_none;
    kl_tensor x = kl_cast(onnx_in(n, 0), KL_F32);
    return t.rank == 1 ? kl_unsqueeze(x, 0) : x;
}

/* The kernel of rows x [N, F] and vectors v [V, F]: [N, V]; kl_none: reported. */
static kl_tensor svm_kernel(struct node *n, kl_tensor x, kl_tensor v)
{
    const Onnx__AttributeProto *p = onnx_attr(n, "kernel_params");
    float none[3] = {0}, *given = p && p->n_floats ? p->floats : none;
    if (p && p->n_floats && p->n_floats < 3)
        return onnx_fails(n, KL_ERR_ARGUMENT, "kernel_params has %zu numbers, not 3", p->n_floats), kl_none;
    float degree = given[2];
    kl_tensor gamma = svm_number(n, given[0]), offset = svm_number(n, given[1]);
    if (onnx_attr_is(n, "kernel_type", "RBF", false)) {
        kl_tensor d = kl_sub(kl_unsqueeze(x, 1), v);
        return kl_exp(kl_neg(kl_mul(gamma, kl_sum(kl_square(d), 1, (int[]){-1}, false))));
    }
    kl_tensor y = kl_matmul(x, kl_transpose(v, 0, 1));
    if (onnx_attr_is(n, "kernel_type", "LINEAR", true))
        return y;
    y = kl_add(kl_mul(gamma, y), offset);
    if (onnx_attr_is(n, "kernel_type", "SIGMOID", false))
        return kl_tanh(y);
    if (!onnx_attr_is(n, "kernel_type", "POLY", false))
        return onnx_fails(n, KL_ERR_ARGUMENT, "its kernel_type is neither LINEAR, POLY, RBF nor SIGMOID"), kl_none;
    if (degree == 2 || degree == 3)
        return degree == 2 ? kl_square(y) : kl_mul(kl_square(y), y);
    return kl_pow(y, svm_number(n, degree));
}

/* Attribute rho, which has at least `count` numbers; NULL: reported. */
static const float *svm_rho(struct node *n, const char *name, size_t count)
{
    const Onnx__AttributeProto *a = onnx_attr(n, name);
    if (a && a->n_floats && a->n_floats >= count)
        return a->floats;
    onnx_fails(n, KL_ERR_ARGUMENT, "%s has %zu numbers for %zu pairs of classes", name, a ? a->n_floats : 0, count);
    return NULL;
}

/* ---- regression ---- */

bool onnx_svm_regressor(struct node *n)
{
    int64_t vectors = onnx_attr_int(n, "n_supports", 0), count = vectors > 0 ? vectors : 1;
    const float *rho = svm_rho(n, "rho", 1);
    kl_tensor v = rho ? ml_matrix(n, vectors > 0 ? "support_vectors" : "coefficients", count, 0) : kl_none;
    kl_tensor x = v.id ? svm_rows(n, onnx_type_of(v).dims[1]) : kl_none, y = x;
    if (x.id && vectors > 0) {
        kl_tensor c = ml_matrix(n, "coefficients", 1, vectors);
        y = c.id ? svm_kernel(n, x, v) : kl_none;
        y = y.id ? kl_matmul(y, kl_transpose(c, 0, 1)) : y;
    } else if (x.id) {
        y = kl_matmul(x, kl_transpose(v, 0, 1));
    }
    if (!y.id)
        return false;
    y = kl_add(y, svm_number(n, rho[0]));
    if (onnx_attr_int(n, "one_class", 0)) /* does it belong to the one class? */
        y = kl_where(kl_gt(y, svm_number(n, 0)), svm_number(n, 1), svm_number(n, -1));
    return onnx_give(n, 0, y);
}

/* ---- pairs of classes ---- */

struct svm {
    struct node *n;
    const Onnx__AttributeProto *count;    /* of vectors of each class */
    int64_t classes, pairs, vectors;
    kl_tensor q;                          /* the matrix of pair probabilities, [N, classes, classes] */
};

/* The number of the pair i < j. */
static int64_t svm_pair(const struct svm *s, int64_t i, int64_t j)
{
    return i * (2 * s->classes - i - 1) / 2 + j - i - 1;
}

/* A table of numbers of a class, or of a place, for each of `count`, i64; kl_none: reported. */
static kl_tensor svm_table(struct svm *s, int64_t count, int64_t (*of)(const struct svm *s, int64_t i, int64_t j))
{
    struct array *a = array_new(KL_I64, 1, (int64_t[]){count});
    if (!a)
        return onnx_fails(s->n, KL_ERR_MEMORY, "out of memory"), kl_none;
    int64_t *to = a->data;
    bool square = count == s->classes * s->classes;
    for (int64_t i = 0; i < s->classes; i++)
        for (int64_t j = square ? 0 : i + 1; j < s->classes; j++)
            *to++ = of(s, i, j);
    return onnx_tensor(s->n, a);
}

static int64_t svm_first(const struct svm *s, int64_t i, int64_t j) { return (void)s, (void)j, i; }
static int64_t svm_second(const struct svm *s, int64_t i, int64_t j) { return (void)s, (void)i, j; }
/* Places in [classes, classes - 1]: the coefficients of class i against j, and of j against i. */
static int64_t svm_row(const struct svm *s, int64_t i, int64_t j) { return i * (s->classes - 1) + j - 1; }
static int64_t svm_column(const struct svm *s, int64_t i, int64_t j) { return j * (s->classes - 1) + i; }
/* Places in [pairs, pairs, 1]: probabilities of i against j, of j against i, and 0. */
static int64_t svm_either(const struct svm *s, int64_t i, int64_t j)
{
    return i < j ? svm_pair(s, i, j) : i > j ? s->pairs + svm_pair(s, j, i) : 2 * s->pairs;
}

/* The sums of all pairs, f64 [N, pairs]: each class's vectors give their sums with all other classes. */
static kl_tensor svm_sums(struct svm *s, kl_tensor kernels, kl_tensor rho)
{
    struct node *n = s->n;
    kl_tensor of_class[SVM_CLASSES], c = ml_matrix(n, "coefficients", s->classes - 1, s->vectors);
    if (!c.id)
        return kl_none;
    kernels = kl_cast(kernels, KL_F64);
    c = kl_cast(kl_transpose(c, 0, 1), KL_F64);
    for (int64_t i = 0, at = 0; i < s->classes; at += s->count->ints[i++]) {
        int64_t count = s->count->ints[i];
        of_class[i] = kl_matmul(kl_narrow(kernels, 1, at, count), kl_narrow(c, 0, at, count));
    }
    kl_tensor all = kl_concat(s->classes, of_class, 1);
    kl_tensor one = svm_table(s, s->pairs, svm_row), other = svm_table(s, s->pairs, svm_column);
    return one.id && other.id ? kl_add(kl_add(kl_take(all, 1, one), kl_take(all, 1, other)), rho) : kl_none;
}

/* The class with most votes, the first of several. */
static kl_tensor svm_elect(struct svm *s, kl_tensor sums)
{
    kl_tensor one = svm_table(s, s->pairs, svm_first), other = svm_table(s, s->pairs, svm_second);
    if (!one.id || !other.id)
        return kl_none;
    kl_tensor winner = kl_where(kl_gt(sums, onnx_number(s->n, KL_F64, 0)), one, other);
    kl_tensor each = kl_arange(onnx_device(s->n), KL_I64, s->classes);
    kl_tensor votes = kl_cast(kl_eq(kl_unsqueeze(winner, -1), each), KL_I32);
    return kl_argmax(kl_sum(votes, 1, (int[]){1}, false), 1);
}

/* ---- probabilities ---- */

/* in[]: the round; which rows are done, bool [N]; probabilities, f32 [N, classes]. */
static kl_status svm_goes_on(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    struct svm *s = ctx;
    (void)nin, (void)nout;
    out[0] = kl_and(kl_lt(in[0], onnx_number(s->n, KL_I64, SVM_ROUNDS)), kl_not(kl_all(in[1], 0, NULL, false)));
    return KL_OK;
}

/* One class after the other is given the probability that is best with the others as they are. */
static kl_status svm_round(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    struct svm *s = ctx;
    struct node *n = s->n;
    int last = 1;
    (void)nin, (void)nout;
    kl_tensor p = in[2], one = svm_number(n, 1), two = svm_number(n, 2);
    kl_tensor qp = kl_sum(kl_mul(s->q, kl_unsqueeze(p, 1)), 1, (int[]){2}, false);
    kl_tensor pqp = kl_sum(kl_mul(p, qp), 1, &last, true);
    kl_tensor error = kl_max(kl_abs(kl_sub(qp, pqp)), 1, &last, false);
    kl_tensor done = kl_or(in[1], kl_lt(error, svm_number(n, 0.005f / (float)s->classes)));
    kl_tensor each = kl_arange(onnx_device(n), KL_I64, s->classes);
    for (int64_t t = 0; t < s->classes; t++) {
        kl_tensor row = kl_squeeze(kl_narrow(s->q, 1, t, 1), 1), at = kl_narrow(qp, 1, t, 1);
        kl_tensor own = kl_narrow(row, 1, t, 1), step = kl_div(kl_sub(pqp, at), own), sum = kl_add(one, step);
        pqp = kl_add(pqp, kl_mul(step, kl_add(kl_mul(step, own), kl_mul(two, at))));
        pqp = kl_div(kl_div(pqp, sum), sum);
        qp = kl_div(kl_add(qp, kl_mul(step, row)), sum);
        p = kl_div(kl_where(kl_eq(each, onnx_number(n, KL_I64, (double)t)), kl_add(p, step), p), sum);
    }
    out[0] = kl_add(in[0], onnx_number(n, KL_I64, 1));
    out[1] = done;
    out[2] = kl_where(kl_unsqueeze(done, 1), in[2], p);
    return KL_OK;
}

/* Probabilities of the classes, f32 [N, classes], from the sums of pairs, f32; kl_none: reported. */
static kl_tensor svm_probabilities(struct svm *s, kl_tensor sums)
{
    struct node *n = s->n;
    const float *ab[2] = {svm_rho(n, "prob_a", (size_t)s->pairs), NULL};
    ab[1] = ab[0] ? svm_rho(n, "prob_b", (size_t)s->pairs) : NULL;
    kl_tensor a = ab[1] ? ml_numbers(n, ab[0], s->pairs) : kl_none;
    kl_tensor b = a.id ? ml_numbers(n, ab[1], s->pairs) : kl_none;
    kl_tensor either = b.id ? svm_table(s, s->classes * s->classes, svm_either) : kl_none;
    struct type t = onnx_type_of(sums);
    if (!either.id)
        return kl_none;
    kl_tensor one = svm_number(n, 1), zero = svm_number(n, 0);
    kl_tensor yes = kl_sub(one, kl_sigmoid(kl_add(kl_mul(sums, a), b)));
    yes = kl_minimum(kl_maximum(yes, svm_number(n, 1e-7f)), svm_number(n, 1 - 1e-7f));
    kl_tensor none = kl_expand(zero, 2, (int64_t[]){t.dims[0], 1});
    kl_tensor all = kl_concat(3, (kl_tensor[]){yes, kl_sub(one, yes), none}, 1);
    kl_tensor r = kl_reshape(kl_take(all, 1, either), 3, (int64_t[]){t.dims[0], s->classes, s->classes});
    kl_tensor down = kl_transpose(r, 1, 2), own = kl_sum(kl_square(down), 1, (int[]){2}, true);
    kl_tensor diagonal = kl_cast(kl_eye(onnx_device(n), KL_F32, s->classes, s->classes), KL_BOOL);
    s->q = kl_where(diagonal, own, kl_neg(kl_mul(r, down)));
    kl_tensor start = kl_expand(svm_number(n, 1.0f / (float)s->classes), 2,
                                (int64_t[]){t.dims[0], s->classes});
    kl_tensor done = kl_expand(onnx_number(n, KL_BOOL, 0), 1, t.dims), out[3];
    if (kl_while(svm_goes_on, svm_round, s, 3, (kl_tensor[]){onnx_number(n, KL_I64, 0), done, start}, out) != KL_OK)
        return kl_none;
    return out[2];
}

/* ---- classification ---- */

/* Without support vectors: a row of coefficients for each class, and one number rho.  *at: the classes. */
static kl_tensor svm_linear(struct node *n, int64_t classes, kl_tensor *at)
{
    const Onnx__AttributeProto *c = onnx_attr(n, "coefficients");
    const float *rho = svm_rho(n, "rho", 1);
    kl_tensor w = rho ? ml_matrix(n, "coefficients", classes, 0) : kl_none;
    kl_tensor x = w.id ? svm_rows(n, onnx_type_of(w).dims[1]) : kl_none;
    if (!x.id)
        return x;
    kl_tensor y = kl_add(kl_matmul(x, kl_transpose(w, 0, 1)), svm_number(n, rho[0]));
    *at = kl_argmax(y, 1);
    if (classes == 2 && !onnx_attr(n, "prob_a")) { /* as onnxruntime: the second where the larger is above a bound */
        bool positive = true;
        for (size_t i = 0; i < c->n_floats; i++)
            positive &= c->floats[i] >= 0;
        kl_tensor most = kl_max(y, 1, (int[]){1}, false), bound = svm_number(n, positive ? 0.5 : 0);
        kl_tensor above = positive ? kl_ge(most, bound) : kl_gt(most, bound);
        *at = kl_where(above, onnx_number(n, KL_I64, 1), kl_cast(*at, KL_I64));
    }
    return ml_transform(n, y);
}

/* Checks the counts of vectors and makes s->vectors; false: reported. */
static bool svm_counts(struct svm *s)
{
    for (int64_t i = 0; i < s->classes; i++) {
        int64_t count = s->count->n_ints == (size_t)s->classes ? s->count->ints[i] : -1;
        if (count < 0 || count > INT32_MAX)
            return onnx_fails(s->n, KL_ERR_ARGUMENT, "vectors_per_class is not a count for each of %lld classes",
                              (long long)s->classes);
        s->vectors += count;
    }
    if (s->classes < 2 || s->classes > SVM_CLASSES)
        return onnx_fails(s->n, KL_ERR_ARGUMENT, "%lld classes; 2 to %d are supported", (long long)s->classes,
                          SVM_CLASSES);
    return true;
}

/* The scores of pairs, or probabilities of classes.  *at: the classes. */
static kl_tensor svm_pairs(struct svm *s, kl_tensor *at)
{
    struct node *n = s->n;
    const float *rho = svm_counts(s) ? svm_rho(n, "rho", (size_t)s->pairs) : NULL;
    const Onnx__AttributeProto *a = onnx_attr(n, "prob_a");
    kl_tensor v = rho ? ml_matrix(n, "support_vectors", s->vectors, 0) : kl_none;
    kl_tensor x = v.id ? svm_rows(n, onnx_type_of(v).dims[1]) : kl_none;
    kl_tensor kernels = x.id ? svm_kernel(n, x, v) : kl_none;
    kl_tensor added = kernels.id ? ml_numbers(n, rho, s->pairs) : kl_none;
    kl_tensor sums = added.id ? svm_sums(s, kernels, kl_cast(added, KL_F64)) : kl_none;
    *at = sums.id ? svm_elect(s, sums) : kl_none;
    if (!at->id)
        return kl_none;
    kl_tensor y = kl_cast(sums, KL_F32);
    if (a && a->n_floats) {
        y = svm_probabilities(s, y);
        return y.id ? ml_transform(n, y) : y;
    }
    if (s->classes > 2)
        return ml_transform(n, y);
    kl_tensor other = kl_neg(y); /* of two classes, as onnxruntime has it */
    if (onnx_attr_is(n, "post_transform", "LOGISTIC", false)) {
        other = kl_sigmoid(other);
        y = kl_sigmoid(y);
    } else if (!onnx_attr_is(n, "post_transform", "NONE", true)) {
        other = kl_sub(svm_number(n, 1), y);
    }
    return kl_concat(2, (kl_tensor[]){other, y}, 1);
}

/* Results: labels [N], scores [N, pairs], or of classes where it has their probabilities or no vectors, or if they are
 * two. */
bool onnx_svm_classifier(struct node *n)
{
    struct array *labels = ml_labels(n, "classlabels_ints");
    if (!labels)
        return false;
    struct svm s = {.n = n, .count = onnx_attr(n, "vectors_per_class"), .classes = labels->count,
                    .pairs = sat_mul(labels->count, labels->count - 1) / 2};
    kl_tensor at = kl_none, scores = s.count && s.count->n_ints ? svm_pairs(&s, &at) : svm_linear(n, s.classes, &at);
    if (!scores.id) {
        array_unref(labels);
        return false;
    }
    return ml_give_labels(n, labels, at) && onnx_give(n, 1, scores);
}
