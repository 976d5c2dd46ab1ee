/* Matrices of few rows: each element is a tensor [B], and no loop is left.
 *
 * The values are the same bits as those of the scans of the other files, so that a matrix has the same results in any
 * batch, but for infinities in equations, of which a scan multiplies by 0 what is not computed here.  A scan has fewer
 * nodes, which counts where there is one matrix of more than a few rows. */
#include "linalg.h"

bool linalg_is_small(const struct matrices *x, int64_t max_alone)
{
    bool few = x->n <= (x->B < 0 || x->B >= MIN_BATCH ? MAX_SMALL : max_alone);
    return few && x->m >= 0 && x->m <= MAX_SMALL; /* a right side may have a symbolic number of columns */
}

void linalg_small_load(struct small_matrix *w, const struct matrices *x, kl_tensor a, int64_t at, int64_t columns)
{
    w->n = x->n;
    w->columns = at + columns;
    a = kl_reshape(a, 2, (int64_t[]){x->B, x->n * columns});
    for (int64_t i = 0; i < x->n; i++)
        for (int64_t j = 0; j < columns; j++)
            w->of[i][at + j] = kl_squeeze(kl_narrow(a, 1, i * columns + j, 1), 1);
}

kl_tensor linalg_small_store(const struct small_matrix *w, const struct matrices *x, int64_t at, int64_t columns)
{
    kl_tensor all[MAX_SMALL * MAX_SMALL];
    for (int64_t i = 0; i < w->n; i++)
        memcpy(all + i * columns, &w->of[i][at], (size_t)columns * sizeof *all);
    return kl_reshape(kl_stack(w->n * columns, all, 1), 3, (int64_t[]){x->B, w->n, columns});
}

/* w[i][k] - factor w[j][k], for columns from `first` on */
static void small_subtract(struct small_matrix *w, int64_t i, kl_tensor factor, int64_t j, int64_t first)
{
    for (int64_t k = first; k < w->columns; k++)
        w->of[i][k] = linalg_minus_product(w->of[i][k], factor, w->of[j][k]);
}

/* Exchanges row j and the row behind it in which column j is largest, if it is larger.  Whether that happened. */
static kl_tensor small_pivot(struct small_matrix *w, int64_t j)
{
    kl_tensor larger[MAX_SMALL], largest = kl_abs(w->of[j][j]), later = kl_none;
    for (int64_t i = j + 1; i < w->n; i++) {
        kl_tensor size = kl_abs(w->of[i][j]);
        larger[i] = kl_gt(size, largest);
        largest = kl_where(larger[i], size, largest);
    }
    kl_tensor before[2 * MAX_SMALL];
    memcpy(before, w->of[j], sizeof before);
    for (int64_t k = j; k < w->columns; k++)
        for (int64_t i = j + 1; i < w->n; i++)
            w->of[j][k] = kl_where(larger[i], w->of[i][k], w->of[j][k]);
    for (int64_t i = w->n - 1; i > j; i--) {
        kl_tensor is_pivot = later.id ? kl_and(larger[i], kl_not(later)) : larger[i];
        later = later.id ? kl_or(larger[i], later) : larger[i];
        for (int64_t k = j; k < w->columns; k++)
            w->of[i][k] = kl_where(is_pivot, before[k], w->of[i][k]);
    }
    return later;
}

void linalg_small_eliminate(struct small_matrix *w, kl_tensor *sign)
{
    for (int64_t j = 0; j + 1 < w->n; j++) {
        kl_tensor moved = small_pivot(w, j), pivot = w->of[j][j];
        if (sign)
            *sign = kl_where(moved, kl_neg(*sign), *sign);
        kl_tensor none = kl_eq(pivot, same_number(pivot, 0)); /* zeros below, too */
        for (int64_t i = j + 1; i < w->n; i++)
            small_subtract(w, i, kl_where(none, w->of[i][j], kl_div(w->of[i][j], pivot)), j, j + 1);
    }
}

void linalg_small_substitute(struct small_matrix *w, bool upper, bool transposed)
{
    bool backward = upper != transposed;
    for (int64_t s = 0; s < w->n; s++) {
        int64_t j = backward ? w->n - 1 - s : s;
        for (int64_t k = w->n; k < w->columns; k++)
            w->of[j][k] = kl_div(w->of[j][k], w->of[j][j]);
        for (int64_t i = backward ? 0 : j + 1; i < (backward ? j : w->n); i++)
            small_subtract(w, i, transposed ? w->of[j][i] : w->of[i][j], j, w->n);
    }
}

void linalg_small_cholesky(struct small_matrix *w, kl_tensor zero)
{
    for (int64_t j = 0; j < w->n; j++) {
        kl_tensor d = kl_sqrt(w->of[j][j]);
        for (int64_t i = 0; i < w->n; i++)
            w->of[i][j] = i < j ? zero : kl_div(w->of[i][j], d);
        for (int64_t i = j + 1; i < w->n; i++)
            for (int64_t k = j + 1; k <= i; k++)
                w->of[i][k] = linalg_minus_product(w->of[i][k], w->of[i][j], w->of[k][j]);
    }
}
