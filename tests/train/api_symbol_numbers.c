/* Functions that compute with lengths while they record: with symbolic lengths they give the bits that numbers give, or
 * refuse them with the op and the axis; nothing takes a symbol for a number. */
#include "tests/support/api_check.h"

enum { MAX_COUNT = 9, ROOM = MAX_COUNT * MAX_COUNT * 16 };
static float data[ROOM];
static kl_device dev;
static int64_t N, M; /* lengths of the trace: symbols, or the numbers */

typedef kl_tensor form(kl_tensor x, kl_tensor *more); /* x: [N, M]; *more: another result */

static kl_tensor index_of(kl_tensor x) /* -4 .. 4 */
{
    return kl_cast(kl_mul_scalar(x, 4), KL_I32);
}

static kl_tensor form_triu(kl_tensor x, kl_tensor *more)
{
    *more = kl_triu(x, -INT64_MAX);
    return kl_triu(x, 1);
}

static kl_tensor form_tril(kl_tensor x, kl_tensor *more)
{
    *more = kl_tril(x, INT64_MAX);
    return kl_tril(x, -1);
}

static kl_tensor form_cummax(kl_tensor x, kl_tensor *more) { return kl_cummax_indices(x, 0, true, more); }
static kl_tensor form_cummin(kl_tensor x, kl_tensor *more) { return kl_cummin_indices(x, 1, true, more); }
static kl_tensor form_nonzero(kl_tensor x, kl_tensor *more) { return kl_nonzero(kl_relu(x), 5, more); }

static kl_tensor form_elements(kl_tensor x, kl_tensor *more)
{
    *more = kl_take_along_axis_with(x, 0, index_of(x), KL_INDEX_FROM_END | KL_INDEX_DROP);
    return kl_take_along_axis_with(x, 1, index_of(x), 0);
}

static kl_tensor form_scatter(kl_tensor x, kl_tensor *more)
{
    *more = kl_put_along_axis_with(x, 0, index_of(x), x, KL_SCATTER_MEAN, KL_INDEX_DROP);
    return kl_put_along_axis_with(x, 1, index_of(x), x, KL_SCATTER_ADD, KL_INDEX_FROM_END);
}

static kl_tensor form_nd(kl_tensor x, kl_tensor *more)
{
    kl_tensor i = kl_stack(2, (kl_tensor[]){index_of(x), index_of(kl_neg(x))}, 2); /* [N, M, 2] */
    *more = kl_scatter_nd(x, i, x, KL_SCATTER_MAX, KL_INDEX_FROM_END | KL_INDEX_DROP);
    return kl_gather_nd(x, i, 0, KL_INDEX_FROM_END);
}

static kl_tensor form_index(kl_tensor x, kl_tensor *more)
{
    kl_tensor i[2] = {kl_none, index_of(kl_sum(x, 1, (int[]){0}, false))};
    *more = kl_index_put(x, 2, i, kl_const(dev, KL_F32, 2), KL_SCATTER_ADD, KL_INDEX_DROP);
    return kl_index(x, 2, i, KL_INDEX_FROM_END);
}

static kl_tensor form_grid(kl_tensor x, kl_tensor *more)
{
    kl_tensor a = kl_expand(kl_reshape(kl_arange(dev, KL_F32, 12), 3, (int64_t[]){2, 2, 3}), 4,
                            (int64_t[]){N, 2, 2, 3});
    kl_tensor at = kl_expand(kl_reshape(x, 4, (int64_t[]){N, 1, M, 1}), 4, (int64_t[]){N, 1, M, 2});
    *more = kl_grid_sample(a, at, KL_SAMPLING_NEAREST, KL_SAMPLE_BORDER, true);
    return kl_grid_sample(a, at, KL_SAMPLING_LINEAR, KL_SAMPLE_ZEROS, false);
}

static kl_tensor form_batch_norm(kl_tensor x, kl_tensor *more)
{
    kl_tensor mean = kl_zeros(dev, KL_F32, DIMS(2)), var = kl_ones(dev, KL_F32, DIMS(2));
    x = kl_stack(2, (kl_tensor[]){x, kl_square(x)}, 1); /* [N, 2, M] */
    kl_tensor y = kl_batch_norm(x, kl_none, kl_none, mean, var, true, 0.25, 1e-3);
    *more = kl_add(mean, var);
    return y;
}

static kl_tensor form_along(kl_tensor x, kl_tensor *more)
{
    kl_tensor i = kl_argsort(x, 1, true);
    *more = kl_put_along_axis(kl_cumsum(x, 0, true, true), 1, i, x);
    return kl_take_along_axis(x, 0, index_of(x));
}

static kl_tensor form_scaled(kl_tensor x, kl_tensor *more)
{
    *more = x;
    return kl_attention_with(kl_unsqueeze(x, 0), kl_unsqueeze(x, 0), kl_unsqueeze(x, 0),
                             &(kl_attention_options){.scale = 0.5}, NULL, NULL);
}

static kl_tensor gram(kl_tensor x) { return kl_matmul(x, kl_transpose(x, 0, 1)); }

static kl_tensor form_argmax(kl_tensor x, kl_tensor *more)
{
    *more = kl_argmin(x, 0);
    return kl_argmax(x, 1);
}

static kl_tensor form_mean(kl_tensor x, kl_tensor *more) /* of N*M*N numbers, which is no length */
{
    kl_tensor y = kl_expand(kl_unsqueeze(x, 2), 3, (int64_t[]){N, M, N});
    *more = kl_mean(kl_add(y, kl_unsqueeze(gram(x), 1)), 0, NULL, false);
    return kl_mean(y, 2, (int[]){0, 1}, false);
}

static kl_tensor refused_attention(kl_tensor x, kl_tensor *more)
{
    (void)more;
    return kl_attention(x, x, x, kl_none, true);
}

static kl_tensor refused_attention_with(kl_tensor x, kl_tensor *more)
{
    (void)more;
    x = kl_unsqueeze(x, 0);
    return kl_attention_with(x, x, x, NULL, NULL, NULL);
}

static kl_tensor refused_inverse(kl_tensor x, kl_tensor *more) { return (void)more, kl_inverse(gram(x)); }
static kl_tensor refused_qr(kl_tensor x, kl_tensor *more) { return kl_qr(x, more); }
static kl_tensor refused_diagonal(kl_tensor x, kl_tensor *more) { return (void)more, kl_diagonal(x, 0, 0, 1); }
static kl_tensor refused_matrix(kl_tensor x, kl_tensor *more) { return (void)more, kl_diagonal_matrix(x, 0); }
static kl_tensor refused_unique(kl_tensor x, kl_tensor *more) { return kl_unique(x, 4, more, NULL, NULL); }

static kl_tensor refused_places(kl_tensor x, kl_tensor *more)
{
    return kl_max_pool_indices(x, 1, (int64_t[]){2}, NULL, NULL, NULL, NULL, more);
}

static kl_tensor refused_product(kl_tensor x, kl_tensor *more)
{
    (void)more;
    return kl_put_along_axis_with(x, 0, index_of(x), x, KL_SCATTER_MUL, 0);
}

static kl_tensor refused_longer(kl_tensor x, kl_tensor *more) /* of an index that is longer for some symbols */
{
    (void)more;
    return kl_take_along_axis_with(kl_zeros(dev, KL_F32, DIMS(2, 3)), 1, index_of(x), 0);
}

static kl_tensor refused_bits(kl_tensor x, kl_tensor *more)
{
    (void)more;
    return kl_reduce_xor(index_of(x), 1, (int[]){0}, true);
}

static kl_tensor refused_classes(kl_tensor x, kl_tensor *more)
{
    (void)more;
    return kl_cross_entropy_with(x, kl_zeros(dev, KL_I32, 1, &N), &(kl_class_loss_options){.smoothing = 0.1});
}

/* A trace of f; status: of its end.  The results' bytes, NULL after an error. */
static char *run(form *f, bool symbols, int64_t n, int64_t m, size_t bytes[2], kl_status *status)
{
    const int64_t dims[2] = {n, m};
    char *all = calloc(2, ROOM * sizeof(double));
    N = symbols ? kl_symbol("n", 1, MAX_COUNT) : n;
    M = symbols ? kl_symbol("m", 2, MAX_COUNT) : m;
    kl_trace_begin(symbols ? "symbols" : "numbers");
    kl_tensor x = symbols ? kl_input_symbolic(dev, KL_F32, 2, (int64_t[]){N, M}, dims, data)
                          : kl_input(dev, KL_F32, 2, dims, data), more = kl_none;
    kl_tensor y = kl_keep(f(x, &more));
    if (more.id)
        kl_keep(more);
    *status = kl_trace_end();
    for (int i = 0; i < 2 && *status == KL_OK; i++) {
        kl_tensor r = i ? more : y;
        bytes[i] = (size_t)kl_numel(r) * kl_dtype_size(kl_dtype_of(r));
        OK(kl_read(r, all + (i ? bytes[0] : 0), bytes[i]));
        kl_release(r);
    }
    return all;
}

static void same(const char *name, form *f)
{
    static const int64_t size[][2] = {{4, 5}, {1, 7}, {9, 2}, {3, 3}};
    for (unsigned i = 0; i < sizeof size / sizeof *size; i++) {
        size_t want_bytes[2] = {0}, bytes[2] = {0};
        kl_status s, status;
        char *want = run(f, false, size[i][0], size[i][1], want_bytes, &s);
        char *got = run(f, true, size[i][0], size[i][1], bytes, &status);
        bool ok = s == KL_OK && status == KL_OK && !memcmp(bytes, want_bytes, sizeof bytes) &&
                  !memcmp(want, got, bytes[0] + bytes[1]);
        if (!ok)
            printf("%s of [%d,%d]: %s\n", name, (int)size[i][0], (int)size[i][1], kl_last_error());
        CHECK(ok);
        free(want), free(got);
    }
}

static void refuses(const char *name, form *f, const char *why)
{
    size_t bytes[2];
    kl_status status;
    free(run(f, true, 4, 5, bytes, &status));
    bool ok = status == KL_ERR_SHAPE && strstr(kl_last_error(), why) && strstr(kl_last_error(), "api_symbol_numbers.c");
    if (!ok)
        printf("%s: %s\n", name, kl_last_error());
    CHECK(ok);
}

#define SAME(name) same(#name, form_##name)
#define REFUSES(name, why) refuses(#name, refused_##name, why)

static void test(kl_device device)
{
    dev = device;
    SAME(triu);
    SAME(tril);
    SAME(cummax);
    SAME(cummin);
    SAME(nonzero);
    SAME(elements);
    SAME(scatter);
    SAME(nd);
    SAME(index);
    SAME(grid);
    SAME(batch_norm);
    SAME(along);
    SAME(scaled);
    SAME(argmax);
    SAME(mean);
    REFUSES(attention, "attention: axis 1 of [n,m] is symbolic");
    REFUSES(attention_with, "attention_with: axis 2 of [1,n,m] is symbolic");
    REFUSES(inverse, "inverse: axis 0 of [n,n] is symbolic");
    REFUSES(qr, "qr: axis 0 of [n,m] is symbolic");
    REFUSES(diagonal, "diagonal: axis 0 of [n,m] is symbolic");
    REFUSES(matrix, "diagonal_matrix: axis 1 of [n,m] is symbolic");
    REFUSES(unique, "unique: axis 0 of [n,m] is symbolic");
    REFUSES(places, "max_pool_indices: axis 1 of [n,m] is symbolic");
    REFUSES(product, "put_along_axis_with: products of symbolically many rows");
    REFUSES(longer, "take_along_axis_with: index [n,m] does not fit [2,3]");
    REFUSES(bits, "reduce_xor: axis 0 of [n,m] is symbolic");
    REFUSES(classes, "cross_entropy_with: axis 1 of [n,m] is symbolic");
}

int main(void)
{
    for (int i = 0; i < ROOM; i++)
        data[i] = (float)((i * 37 + 11) % 23 - 11) / 10;
    return on_devices(test);
}
