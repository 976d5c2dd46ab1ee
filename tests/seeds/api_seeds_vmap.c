/* Rows B9, D22 and D23 of the dispatch system: vmap.  A function on a batch gives what it gives on each element,
 * stacked; its gradients are those of the loop.  Arguments: ids of rows; none: all. */
#include "api_seeds.h"

enum { BATCH = 5 };
static kl_tensor W, V, TABLE; /* that functions capture: [4,3], [3], [6,4] */
static kl_tensor WQ, SPARSE;  /* [4,3] of 8-bit integers, [3,3] sparse */

static kl_tensor numbers(int rank, const int64_t *dims, int below)
{
    int32_t v[256];
    int64_t n = 1;
    for (int i = 0; i < rank; i++)
        n *= dims[i];
    for (int64_t i = 0; i < n; i++)
        v[i] = (int32_t)(next_number() * (float)below);
    return kl_input(cpu, KL_I32, rank, dims, v);
}

/* ---- functions of one element: x [3,4] f32, y [3,4] f32, i [3] i32 within 0..5, s [] i32 within 0..2 ---- */
enum { NIN = 4 };
#define FUNCTION(name, body) \
    static kl_tensor name(kl_tensor x, kl_tensor y, kl_tensor i, kl_tensor s) { (void)x, (void)y, (void)i, (void)s; \
                                                                                body }
FUNCTION(f_elementwise, return kl_add(kl_mul(x, kl_exp(y)), kl_mul_scalar(kl_tanh(x), 0.5));)
FUNCTION(f_broadcast, return kl_where(kl_gt(x, y), kl_add(x, kl_narrow(y, 0, 0, 1)), kl_transpose(W, 0, 1));)
FUNCTION(f_softmax, return kl_softmax(x, -1);)
FUNCTION(f_layer_norm, return kl_layer_norm(x, 1, kl_none, kl_none, 1e-5);)
FUNCTION(f_views, return kl_flip(kl_transpose(kl_reshape(x, DIMS(2, 6)), 0, 1), AXES(0));)
FUNCTION(f_slice, return kl_slice(x, (int64_t[]){0, 1}, (int64_t[]){3, 4}, (int64_t[]){2, 2});)
FUNCTION(f_pad, return kl_pad(x, (int64_t[]){1, 0}, (int64_t[]){0, 2}, 0.25);)
FUNCTION(f_window, return kl_sum(kl_window(x, 1, 2, 1, 1), AXES(-1), false);)
FUNCTION(f_concat, return kl_concat(3, (kl_tensor[]){x, kl_transpose(W, 0, 1), y}, 0);)
FUNCTION(f_stack, return kl_stack(2, (kl_tensor[]){x, y}, 1);)
FUNCTION(f_matmul, return kl_matmul(x, W);)
FUNCTION(f_matmul_left, return kl_matmul(W, x);)
FUNCTION(f_matmul_both, return kl_matmul(x, kl_transpose(y, 0, 1));)
FUNCTION(f_vector, return kl_matmul(kl_reshape(kl_narrow(x, 0, 1, 1), DIMS(4)), W);)
FUNCTION(f_dot_batch, return kl_dot_general(x, W, 1, (int[]){1}, (int[]){0}, 1, (int[]){0}, (int[]){1});)
FUNCTION(f_dot_right, return kl_dot_general(W, x, 1, (int[]){0}, (int[]){1}, 0, NULL, NULL);)
FUNCTION(f_einsum, return kl_einsum("ij,kj->ik", 2, (kl_tensor[]){x, y});)
FUNCTION(f_reduce, return kl_add(kl_max(x, AXES(0), false), kl_mean(y, AXES(0), false));)
FUNCTION(f_product, return kl_prod(x, 0, NULL, false);)
FUNCTION(f_argmax, return kl_cast(kl_argmax(x, 1), KL_F32);)
FUNCTION(f_cumulative, return kl_sub(kl_cumsum(x, 1, true, true), kl_cummax(y, 0, false));)
FUNCTION(f_recurrence, return kl_recurrence(x, y, 1, false);)
FUNCTION(f_recurrence_shared, return kl_recurrence(kl_transpose(W, 0, 1), y, 0, false);)
FUNCTION(f_sort, return kl_sort(x, 1, true);)
FUNCTION(f_topk, kl_tensor p; kl_tensor v = kl_topk(x, 2, 1, true, &p); return kl_add(v, kl_cast(p, KL_F32));)
FUNCTION(f_gather_shared, return kl_take(TABLE, 0, i);)
FUNCTION(f_gather_axis1, return kl_take(TABLE, 1, kl_minimum_scalar(i, 3));)
FUNCTION(f_gather_own, return kl_take(x, 1, i);) /* out of range: held */
FUNCTION(f_gather_same, return kl_take(x, 0, kl_arange(cpu, KL_I32, 2));)
FUNCTION(f_embedding, return kl_embedding(TABLE, i);)
FUNCTION(f_index_add, return kl_index_add(TABLE, 0, i, x);)
FUNCTION(f_index_put, return kl_index_copy(kl_transpose(x, 0, 1), 0, i, kl_narrow(y, 1, 0, 3));)
FUNCTION(f_index_max_same, return kl_index_max(x, 1, kl_arange(cpu, KL_I32, 2), kl_narrow(y, 1, 0, 2));)
FUNCTION(f_along, return kl_take_along_axis(x, 1, kl_unsqueeze(kl_minimum_scalar(i, 3), 1));)
FUNCTION(f_dynamic, return kl_dynamic_slice(x, (kl_tensor[]){s, s}, (int64_t[]){3, 2});)
FUNCTION(f_dynamic_shared, return kl_dynamic_slice(TABLE, (kl_tensor[]){s, kl_none}, (int64_t[]){3, 4});)
FUNCTION(f_dynamic_update, return kl_dynamic_update(TABLE, x, (kl_tensor[]){s, kl_none});)
FUNCTION(f_dynamic_update_same, return kl_dynamic_update(x, kl_narrow(y, 0, 0, 2),
                                                         (kl_tensor[]){kl_const(cpu, KL_I32, 1), kl_none});)
FUNCTION(f_pad_own, return kl_mul(kl_add(x, kl_eye(cpu, KL_F32, 3, 4)), kl_triu(y, 0));)
FUNCTION(f_cross_entropy, return kl_cross_entropy(x, kl_minimum_scalar(i, 3));)
FUNCTION(f_conv, return kl_conv(kl_reshape(x, DIMS(1, 1, 12)), kl_reshape(V, DIMS(1, 1, 3)), kl_none, NULL, NULL, NULL,
                                NULL, 1);)
FUNCTION(f_conv_own, return kl_conv(kl_reshape(y, DIMS(1, 3, 4)), kl_reshape(x, DIMS(2, 3, 2)), kl_none, NULL, NULL,
                                    NULL, NULL, 1);)
FUNCTION(f_pool, return kl_max_pool(kl_reshape(x, DIMS(1, 1, 3, 4)), 2, (int64_t[]){2, 2}, NULL, NULL, NULL, NULL);)
FUNCTION(f_attention, kl_tensor q = kl_reshape(x, DIMS(1, 1, 3, 4));
         return kl_attention(q, kl_reshape(y, DIMS(1, 1, 3, 4)), q, kl_none, true);)
FUNCTION(f_quantize, kl_tensor d = kl_scalar(cpu, KL_F32, 0.1);
         return kl_dequantize(kl_quantize(x, d, kl_none, KL_I8, 0), d, kl_none, 0);)
FUNCTION(f_bits, return kl_bitcast(kl_add_scalar(kl_bitcast(x, KL_I32), 3), KL_F32);)
FUNCTION(f_unmapped, return kl_exp(W);)
FUNCTION(f_input, return x;)
FUNCTION(f_detach, return kl_mul(kl_detach(x), x);)

/* Regions. */
static kl_status r_yes(void *c, const kl_tensor *in, int64_t n, kl_tensor *out, int64_t m)
{
    (void)c, (void)n, (void)m; out[0] = kl_mul(in[0], in[0]); return KL_OK;
}
static kl_status r_no(void *c, const kl_tensor *in, int64_t n, kl_tensor *out, int64_t m)
{
    (void)c, (void)n, (void)m; out[0] = kl_sub(in[0], kl_transpose(W, 0, 1)); return KL_OK;
}
static kl_tensor cond_on(kl_tensor p, kl_tensor x)
{
    kl_tensor y; kl_cond(p, r_yes, r_no, NULL, 1, &x, 1, &y); return y;
}
FUNCTION(f_cond, return cond_on(kl_gt(kl_sum_all(x), kl_const(cpu, KL_F32, 0)), x);)
FUNCTION(f_cond_same, return cond_on(kl_gt(kl_sum_all(W), kl_const(cpu, KL_F32, 1e6)), x);)
static kl_status r_step(void *c, const kl_tensor *in, int64_t n, kl_tensor *out, int64_t m)
{
    kl_tensor *captured = c;
    (void)n, (void)m;
    out[0] = kl_tanh(kl_add(kl_mul(in[0], in[1]), *captured));
    out[1] = kl_add(out[0], in[1]);
    return KL_OK;
}
FUNCTION(f_scan, kl_tensor h = kl_zeros(cpu, KL_F32, DIMS(4)); kl_tensor c = kl_reshape(kl_narrow(y, 0, 0, 1), DIMS(4));
         kl_tensor o[2];
         kl_scan(r_step, &c, 3, 1, &h, 1, &x, 1, false, o); return kl_add(o[1], o[0]);)
FUNCTION(f_scan_same, kl_tensor h = kl_zeros(cpu, KL_F32, DIMS(4));
         kl_tensor c = kl_reshape(kl_narrow(y, 0, 0, 1), DIMS(4)); kl_tensor o[2];
         kl_scan(r_step, &c, 6, 1, &h, 1, &TABLE, 1, true, o); return o[1];)
static kl_status r_small(void *c, const kl_tensor *in, int64_t n, kl_tensor *out, int64_t m)
{
    (void)c, (void)n, (void)m; out[0] = kl_lt(kl_sum_all(kl_abs(in[0])), kl_const(cpu, KL_F32, 20)); return KL_OK;
}
static kl_status r_double(void *c, const kl_tensor *in, int64_t n, kl_tensor *out, int64_t m)
{
    (void)c, (void)n, (void)m; out[0] = kl_add(in[0], in[0]); return KL_OK;
}
FUNCTION(f_while, kl_tensor o; kl_while(r_small, r_double, NULL, 1, &x, &o); return o;)
FUNCTION(f_while_same, kl_tensor o; kl_tensor w = kl_exp(W); kl_while(r_small, r_double, NULL, 1, &w, &o);
         return kl_matmul(x, o);)
static kl_status r_chain(void *c, const kl_tensor *in, int64_t n, kl_tensor *out, int64_t m)
{
    (void)c, (void)n, (void)m; out[0] = kl_matmul(kl_tanh(kl_matmul(in[0], W)), kl_transpose(W, 0, 1)); return KL_OK;
}
FUNCTION(f_checkpoint, kl_tensor o; kl_checkpoint(r_chain, NULL, 1, &x, 1, &o); return o;)
static kl_status r_back(void *c, const kl_tensor *in, int64_t n, kl_tensor *out, int64_t m) /* twice the true one */
{
    (void)c, (void)n, (void)m;
    out[0] = kl_mul_scalar(kl_mul(in[2], in[0]), 4);
    return KL_OK;
}
FUNCTION(f_custom_grad, kl_tensor o; kl_custom_grad(r_yes, r_back, NULL, 1, &x, 1, &o); return o;)

/* A custom op: 3 x + 1, which knows nothing of batches. */
static kl_status c_types(void *ctx, const kl_custom_call *call, kl_type *out)
{
    (void)ctx; out[0] = call->in_type[0]; return KL_OK;
}
static kl_status c_run(void *ctx, const kl_custom_call *call)
{
    (void)ctx;
    int64_t n = 1;
    for (int i = 0; i < call->in_type[0].rank; i++)
        n *= call->in_type[0].dims[i];
    for (int64_t i = 0; i < n; i++)
        ((float *)call->out[0])[i] = 3 * ((const float *)call->in[0])[i] + 1;
    return call->in_type[0].rank == 2 ? KL_OK : KL_ERR_INTERNAL;
}
static kl_status c_back(void *ctx, const void *attr, size_t bytes, const kl_tensor *in, int64_t nin, kl_tensor *out,
                        int64_t nout)
{
    (void)ctx, (void)attr, (void)bytes, (void)nin, (void)nout;
    out[0] = kl_mul_scalar(in[2], 3);
    return KL_OK;
}
FUNCTION(f_custom, kl_tensor o; kl_custom("vmap_triple", NULL, 0, 1, &x, 1, &o); return o;)

/* Gradients. */
FUNCTION(f_grad, return kl_grad(kl_sum_all(kl_mul(kl_exp(x), y)), x);)
FUNCTION(f_grad_shared, return kl_grad(kl_cross_entropy(kl_matmul(x, kl_tanh(W)), kl_minimum_scalar(i, 2)), W);)
FUNCTION(f_grad_two, kl_tensor l = kl_sum_all(kl_tanh(kl_add(kl_matmul(x, W), V)));
         return kl_add(kl_grad(l, W), kl_grad(l, V));)
FUNCTION(f_grad_table, return kl_grad(kl_sum_all(kl_mul(kl_embedding(TABLE, i), x)), TABLE);)
FUNCTION(f_grad_twice, kl_tensor g = kl_grad(kl_sum_all(kl_tanh(kl_matmul(x, W))), W);
         return kl_grad(kl_sum_all(kl_mul(g, g)), W);)
FUNCTION(f_grad_derived, kl_tensor w = kl_tanh(W); kl_tensor l = kl_sum_all(kl_exp(kl_matmul(x, w)));
         return kl_mul(kl_grad(l, w), kl_grad(l, W));)
FUNCTION(f_grad_unmapped, return kl_add(x, kl_transpose(kl_grad(kl_sum_all(kl_mul(W, W)), W), 0, 1));)
FUNCTION(f_grad_region, return kl_grad(kl_sum_all(cond_on(kl_gt(kl_sum_all(x), kl_const(cpu, KL_F32, 0)),
                                                          kl_mul(x, kl_transpose(W, 0, 1)))), W);)
FUNCTION(f_grad_scan, kl_tensor h = kl_zeros(cpu, KL_F32, DIMS(4)); kl_tensor c = V; kl_tensor o[2];
         c = kl_reshape(kl_narrow(TABLE, 0, 0, 1), DIMS(4)); kl_scan(r_step, &c, 3, 1, &h, 1, &x, 1, false,
                                                                     o); return kl_grad(kl_sum_all(o[1]), TABLE);)

/* Tensors stored in other ways. */
FUNCTION(f_complex, kl_tensor z = kl_complex(x, y); return kl_add(kl_real(kl_mul(z, z)), kl_imag(z));)
FUNCTION(f_quantized, return kl_matmul(kl_to_quantized(x, (kl_qscheme){.type = KL_Q_I8}, kl_none, kl_none), WQ);)
FUNCTION(f_quantized4, return kl_matmul(kl_to_quantized(x, (kl_qscheme){.type = KL_Q_I4}, kl_none, kl_none), WQ);)
FUNCTION(f_dequantized, return kl_matmul(x, kl_dense(WQ));)
FUNCTION(f_sparse, return kl_matmul(SPARSE, x);)

typedef kl_tensor function(kl_tensor x, kl_tensor y, kl_tensor i, kl_tensor s);
static const struct { const char *name; function *f; bool flat; } table[] = { /* flat: no gradient to compare */
#define F(name) {#name, f_##name, false}
#define FLAT(name) {#name, f_##name, true}
    F(elementwise), F(broadcast), F(softmax), F(layer_norm), F(views), F(slice), F(pad), F(window), F(concat), F(stack),
    F(matmul), F(matmul_left), F(matmul_both), F(vector), F(dot_batch), F(dot_right), F(einsum), F(reduce), F(product),
    FLAT(argmax), F(cumulative), F(recurrence), F(recurrence_shared), F(sort), FLAT(topk), FLAT(gather_shared),
    FLAT(gather_axis1), F(gather_own), F(gather_same), FLAT(embedding), F(index_add), F(index_put), F(index_max_same),
    F(along), F(dynamic), FLAT(dynamic_shared), F(dynamic_update), F(dynamic_update_same), F(pad_own), F(cross_entropy),
        F(conv),
    F(conv_own), F(pool), F(attention), F(quantize), FLAT(bits), FLAT(unmapped), F(input), F(detach), F(cond),
        F(cond_same),
    F(scan), F(scan_same), FLAT(while), FLAT(while_same), F(checkpoint), F(custom_grad), F(custom), F(grad),
    F(grad_shared), F(grad_two), F(grad_table), F(grad_twice), F(grad_derived), F(grad_unmapped), F(grad_region),
        F(grad_scan), F(complex), F(quantized), F(quantized4), F(dequantized), F(sparse)};

static kl_status on_element(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)nin, (void)nout;
    out[0] = (*(function *const *)ctx)(in[0], in[1], in[2], in[3]);
    return KL_OK;
}

/* Element e of axis `axis`. */
static kl_tensor element(kl_tensor t, int axis, int64_t e) { return kl_squeeze(kl_narrow(t, axis, e, 1), axis); }

static kl_tensor by_loop(function *f, const kl_tensor *in, const int *axis)
{
    kl_tensor part[BATCH];
    for (int e = 0; e < BATCH; e++) {
        kl_tensor x[NIN];
        for (int k = 0; k < NIN; k++)
            x[k] = axis[k] == KL_NO_AXIS ? in[k] : element(in[k], axis[k], e);
        part[e] = f(x[0], x[1], x[2], x[3]);
    }
    return kl_stack(BATCH, part, 0);
}

static bool equal(kl_tensor got, kl_tensor want, const char *name, const char *what)
{
    double *a = values_of(got), *b = values_of(want);
    int64_t n = kl_numel(want);
    bool ok = a && b && kl_numel(got) == n;
    for (int64_t i = 0; ok && i < n; i++)
        if (!(fabs(a[i] - b[i]) <= 1e-5 * (1 + fabs(b[i])))) {
            printf("%s: %s: element %lld is %.9g, not %.9g\n", name, what, (long long)i, a[i], b[i]);
            ok = false;
        }
    free(a), free(b);
    return ok;
}

/* f on the batch against the loop, and the gradient of both in x. */
static void compare(const char *name, function *f, bool flat, const int *axis, kl_tensor *in)
{
    kl_tensor all, loop = kl_none, ga = kl_none, gb = kl_none;
    OK(kl_trace_begin(name));
    kl_vmap(on_element, &f, NIN, in, axis, 1, NULL, KL_RANDOM_ERROR, &all);
    loop = by_loop(f, in, axis);
    kl_keep(all), kl_keep(loop);
    if (!flat) {
        kl_tensor two[2]; /* zeros where the function does not use in[0] */
        OK(kl_grads(kl_sum_all(kl_mul(all, all)), 2, (kl_tensor[]){in[0], all}, two));
        ga = kl_keep(two[0]);
        OK(kl_grads(kl_sum_all(kl_mul(loop, loop)), 2, (kl_tensor[]){in[0], loop}, two));
        gb = kl_keep(two[0]);
    }
    if (!check_at(kl_trace_end() == KL_OK, __LINE__, name))
        return;
    check_at(equal(all, loop, name, "vmap"), __LINE__, name);
    if (!flat)
        check_at(equal(ga, gb, name, "gradient"), __LINE__, name);
    kl_release(all), kl_release(loop), kl_release(ga), kl_release(gb);
}

static kl_tensor some_inputs(kl_tensor *in, bool spread)
{
    in[0] = spread ? made(DIMS(3, BATCH, 4)) : made(DIMS(BATCH, 3, 4));
    in[1] = made(DIMS(BATCH, 3, 4));
    in[2] = numbers(DIMS(BATCH, 3), 6);
    in[3] = numbers(DIMS(BATCH), 3);
    return in[0];
}

static void captured(void)
{
    W = made(DIMS(4, 3)), V = made(DIMS(3)), TABLE = made(DIMS(6, 4));
    WQ = kl_to_quantized(W, (kl_qscheme){.type = KL_Q_I8, .per_axis = true, .axis = 1}, kl_none, kl_none);
    SPARSE = kl_sparse_coo(V, kl_arange(cpu, KL_I32, 3), kl_sub(kl_const(cpu, KL_I32, 2), kl_arange(cpu, KL_I32, 3)), 3,
                           3);
    kl_custom_register("vmap_triple", &(kl_custom_op){.types = c_types, .run = c_run, .gradient = c_back}, NULL);
}

static void functions(void)
{
    kl_tensor in[NIN], other[NIN];
    kl_scope_begin();
    captured();
    some_inputs(in, false), some_inputs(other, true);
    kl_tensor x = element(other[0], 1, 0);
    for (size_t k = 0; k < sizeof table / sizeof *table; k++) {
        compare(table[k].name, table[k].f, table[k].flat, (int[]){0, 0, 0, 0}, in);
        if (k % 3 == 0) /* another axis, and an operand that is the same for all */
            compare(table[k].name, table[k].f, table[k].flat, (int[]){1, KL_NO_AXIS, 0, 0},
                    (kl_tensor[]){other[0], x, other[2], other[3]});
    }
    kl_scope_end();
}

/* Outside of traces, where a gradient's history is kept for what is marked. */
static void outside(void)
{
    function *f[] = {f_softmax, f_grad, f_grad_shared, f_scan, f_cond, f_custom};
    kl_tensor in[NIN], all, g;
    kl_scope_begin();
    captured();
    some_inputs(in, false);
    kl_requires_grad(in[0]);
    kl_requires_grad(W);
    for (int k = 0; k < 6; k++) {
        kl_tensor x[NIN];
        OK(kl_vmap(on_element, &f[k], NIN, in, NULL, 1, NULL, KL_RANDOM_ERROR, &all));
        g = kl_grad(kl_sum_all(kl_mul(all, all)), in[0]);
        kl_trace_begin("outside");
        for (int i = 0; i < NIN; i++)
            x[i] = in[i];
        kl_tensor loop = kl_keep(by_loop(f[k], x, (int[]){0, 0, 0, 0}));
        kl_tensor gl = kl_keep(kl_grad(kl_sum_all(kl_mul(loop, loop)), in[0]));
        OK(kl_trace_end());
        CHECK(equal(all, loop, "outside", "vmap") && equal(g, gl, "outside", "gradient"));
    }
    kl_scope_end();
}

static int64_t launches_of(int64_t batch, kl_status (*fn)(void *, const kl_tensor *, int64_t, kl_tensor *, int64_t))
{
    kl_tensor x = made(DIMS(batch, 40)), y;
    int64_t before = kl_counter("launches");
    kl_trace_begin("launches");
    kl_vmap(fn, NULL, 1, &x, NULL, 1, NULL, KL_RANDOM_ERROR, &y);
    kl_keep(y);
    kl_trace_end();
    kl_sync(cpu);
    int64_t n = kl_counter("launches") - before;
    kl_release(x), kl_release(y);
    return n;
}
static kl_status softmax(void *c, const kl_tensor *in, int64_t n, kl_tensor *out, int64_t m)
{
    (void)c, (void)n, (void)m; out[0] = kl_softmax(in[0], 0); return KL_OK;
}
static kl_status times(void *c, const kl_tensor *in, int64_t n, kl_tensor *out, int64_t m)
{
    (void)c, (void)n, (void)m; out[0] = kl_mul(in[0], in[1]); return KL_OK;
}

/* A step with a vmap in it, recorded again with other numbers, is the same program. */
static kl_status step_gradient(void *c, const kl_tensor *in, int64_t n, kl_tensor *out, int64_t m)
{
    kl_tensor w = *(kl_tensor *)c;
    (void)n, (void)m;
    out[0] = kl_grad(kl_sum_all(kl_tanh(kl_mul_scalar(kl_matmul(in[0], w), 0.5))), w);
    return KL_OK;
}

static void again(void)
{
    kl_tensor w = made(DIMS(4, 3)), y;
    for (int i = 0; i < 3; i++) {
        kl_tensor x = made(DIMS(5, 4));
        int64_t built = kl_counter("graphs_built"), replays = kl_counter("replays");
        OK(kl_trace_begin("step with vmap"));
        kl_vmap(step_gradient, &w, 1, &x, NULL, 1, NULL, KL_RANDOM_ERROR, &y);
        kl_assign(w, kl_sub(w, kl_mul_scalar(kl_sum(y, AXES(0), false), 0.1 * (i + 1))));
        OK(kl_trace_end());
        CHECK(i == 0 || (kl_counter("graphs_built") == built && kl_counter("replays") == replays + 1));
        kl_release(x);
    }
    kl_release(w);
}

static void b9(void)
{
    again();
    functions();
    outside();
    CHECK(!strcmp(device_now, "ref") || (launches_of(2, softmax) == 1 && launches_of(7, softmax) == 1));
    CHECK(!strcmp(device_now, "ref") || launches_of(64, softmax) == 1);
    /* The log: what depends on the batch hits Batched while the function runs, above Autograd; its batched op the
     * device. */
    kl_tensor x[2] = {made(DIMS(2, 3)), made(DIMS(2, 3))}, y;
    kl_dispatch_log_begin();
    OK(kl_vmap(times, NULL, 2, x, NULL, 1, NULL, KL_RANDOM_ERROR, &y));
    const char *log = kl_dispatch_log_end();
    CHECK(has_line(log, "[call] op=[mul], key=[Batched]"));
    char line[80];
    snprintf(line, sizeof line, "[call] op=[mul], key=[%s]",
             kl_key_name(kl_keyset_highest(kl_keyset_minus(kl_dispatch_keys(2, x),
                                                           SET(KL_KEY_Autograd, KL_KEY_BackendSelect)))));
    CHECK(has_line(log, line));
    SHAPE(y, 2, 3);
    kl_release(y);
    /* Where the batch's axis goes, and a negative one that is mapped. */
    kl_tensor w = made(DIMS(3, 2, 4));
    OK(kl_vmap(softmax, NULL, 1, &w, (int[]){-2}, 1, (int[]){-1}, KL_RANDOM_ERROR, &y));
    SHAPE(y, 3, 4, 2);
    kl_release(y);
    /* Errors say what is wrong with what. */
    CHECK(kl_vmap(softmax, NULL, 1, x, (int[]){2}, 1, NULL, KL_RANDOM_ERROR, &y) == KL_ERR_ARGUMENT);
    CHECK(says("in_axes[0] is 2, which is out of range for in[0] of shape [2,3]") && says("api_seeds_vmap.c"));
    kl_release(y);
    CHECK(kl_vmap(softmax, NULL, 1, x, (int[]){KL_NO_AXIS}, 1, NULL, KL_RANDOM_ERROR, &y) == KL_ERR_ARGUMENT &&
          says("no tensor is mapped"));
    kl_release(y);
    CHECK(kl_vmap(times, NULL, 2, (kl_tensor[]){x[0], w}, NULL, 1, NULL, KL_RANDOM_ERROR, &y) == KL_ERR_ARGUMENT);
    CHECK(says("axis 0 of in[1] of shape [3,2,4] has length 3, but the batch of the tensors before it has 2"));
    kl_release(y);
    CHECK(kl_vmap(softmax, NULL, 1, x, NULL, 1, (int[]){3}, KL_RANDOM_ERROR, &y) == KL_ERR_ARGUMENT &&
          says("out_axes[0] is 3"));
    kl_release(y);
    CHECK(kl_vmap(softmax, NULL, 0, x, NULL, 1, NULL, KL_RANDOM_ERROR, &y) == KL_ERR_ARGUMENT);
    kl_release(y);
    kl_tensor q8 = kl_to_quantized(w, (kl_qscheme){.type = KL_Q_I8}, kl_none, kl_none);
    CHECK(kl_vmap(softmax, NULL, 1, &q8, NULL, 1, NULL, KL_RANDOM_ERROR, &y) == KL_ERR_TYPE);
    CHECK(says("vmap: in[0] is a quantized tensor: map its parts (kl_layer_part) or kl_dense of it"));
    kl_release(y), kl_release(q8);
    /* rank 8: an element has 7, its unsqueeze 8 */
    kl_tensor deep = kl_zeros(cpu, KL_F32, DIMS(2, 1, 1, 1, 1, 1, 1, 3));
    OK(kl_vmap(softmax, NULL, 1, &deep, NULL, 1, NULL, KL_RANDOM_ERROR, &y));
    kl_release(y);
    kl_release(deep), kl_release(w), kl_release(x[0]), kl_release(x[1]);
}

/* ---- D22: nesting, the loop, what is refused ---- */

static kl_status inner(void *c, const kl_tensor *in, int64_t n, kl_tensor *out, int64_t m)
{
    (void)n, (void)m;
    kl_tensor y = *(kl_tensor *)c; /* the outer function's own element */
    out[0] = kl_sum_all(kl_mul(kl_sub(in[0], y), kl_sub(in[0], y)));
    return KL_OK;
}
static kl_status distances(void *c, const kl_tensor *in, int64_t n, kl_tensor *out, int64_t m)
{
    (void)n;
    kl_tensor y = in[0];
    return kl_vmap(inner, &y, 1, c, NULL, m, NULL, KL_RANDOM_ERROR, out);
}
static kl_status gradients(void *c, const kl_tensor *in, int64_t n, kl_tensor *out, int64_t m)
{
    (void)n;
    kl_tensor y = in[0], d;
    if (kl_vmap(inner, &y, 1, c, NULL, m, NULL, KL_RANDOM_ERROR, &d))
        return KL_ERR_ARGUMENT;
    out[0] = kl_grad(kl_sum_all(kl_exp(kl_neg(d))), y); /* in what the inner function captures */
    return KL_OK;
}
static kl_status per_pair(void *c, const kl_tensor *in, int64_t n, kl_tensor *out, int64_t m)
{
    (void)n, (void)m;
    kl_tensor w = *(kl_tensor *)c;
    out[0] = kl_grad(kl_sum_all(kl_tanh(kl_mul(in[0], w))), w);
    return KL_OK;
}
static kl_status per_pair_outer(void *c, const kl_tensor *in, int64_t n, kl_tensor *out, int64_t m)
{
    (void)n;
    return kl_vmap(per_pair, c, 1, in, NULL, m, NULL, KL_RANDOM_ERROR, out);
}

static int warnings;
static void note(void *ctx, kl_log_level level, const char *message)
{
    (void)ctx;
    warnings += level == KL_LOG_WARN && strstr(message, "Batching rule not implemented for argsort") == NULL &&
                strstr(message, "falling back to slow (for loop and stack) implementation") != NULL;
}
static kl_status custom(void *c, const kl_tensor *in, int64_t n, kl_tensor *out, int64_t m)
{
    (void)c; return kl_custom("vmap_triple2", NULL, 0, n, in, m, out);
}
static kl_status reads(void *c, const kl_tensor *in, int64_t n, kl_tensor *out, int64_t m)
{
    (void)c, (void)n, (void)m; out[0] = in[0]; kl_item_f32(in[0]); return KL_OK;
}
static kl_status assigns(void *c, const kl_tensor *in, int64_t n, kl_tensor *out, int64_t m)
{
    (void)n, (void)m; out[0] = in[0]; kl_assign(*(kl_tensor *)c, in[0]); return KL_OK;
}

/* Several threads at once, each a function of its own; also the first use of all in this process. */
static void *on_thread(void *ctx)
{
    kl_tensor x = kl_input(cpu, KL_F32, DIMS(2, 3), (float[]){1, 2, 3, 1, 2, 3}), y;
    float v[6] = {0};
    bool *ok = ctx;
    for (int i = 0; i < 20; i++) {
        *ok &= kl_autocast_begin(KL_BF16) == KL_OK && kl_vmap(softmax, NULL, 1, &x, NULL, 1, NULL, KL_RANDOM_ERROR,
                                                              &y) == KL_OK;
        kl_autocast_end();
        *ok &= kl_read(y, v, sizeof v) == KL_OK && v[0] == v[3] && v[2] > v[1] && fabsf(v[0] + v[1] + v[2] - 1) < 1e-6f;
        kl_release(y);
    }
    kl_release(x);
    return NULL;
}

static void threads(void)
{
    pthread_t thread[4];
    bool ok[4] = {true, true, true, true};
    for (int i = 0; i < 4; i++)
        pthread_create(&thread[i], NULL, on_thread, &ok[i]);
    for (int i = 0; i < 4; i++)
        pthread_join(thread[i], NULL);
    CHECK(ok[0] && ok[1] && ok[2] && ok[3]);
}

static void d22(void)
{
    threads();
    kl_tensor a = made(DIMS(3, 4)), b = made(DIMS(2, 4)), d, g;
    OK(kl_vmap(distances, &b, 1, &a, NULL, 1, NULL, KL_RANDOM_ERROR, &d));
    SHAPE(d, 3, 2);
    double *va = values_of(a), *vb = values_of(b), want[6] = {0}, slope[12] = {0}, each[24];
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 2; j++)
            for (int k = 0; k < 4; k++)
                want[2 * i + j] += (va[4 * i + k] - vb[4 * j + k]) * (va[4 * i + k] - vb[4 * j + k]);
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 2; j++)
            for (int k = 0; k < 4; k++)
                slope[4 * i + k] -= exp(-want[2 * i + j]) * 2 * (va[4 * i + k] - vb[4 * j + k]);
    NEAR(d, 6, want, 1e-5);
    kl_trace_begin("nested gradients");
    kl_vmap(gradients, &b, 1, &a, NULL, 1, NULL, KL_RANDOM_ERROR, &g);
    kl_keep(g);
    OK(kl_trace_end());
    NEAR(g, 12, slope, 1e-5);
    /* Per-element gradients in what two levels share. */
    kl_tensor w = made(DIMS(4)), c = made(DIMS(3, 2, 4));
    double *vw = values_of(w), *vc = values_of(c);
    for (int i = 0; i < 24; i++)
        each[i] = vc[i] * (1 - tanh(vc[i] * vw[i % 4]) * tanh(vc[i] * vw[i % 4]));
    kl_trace_begin("nested per element");
    kl_vmap(per_pair_outer, &w, 1, &c, NULL, 1, NULL, KL_RANDOM_ERROR, &g);
    kl_keep(g);
    OK(kl_trace_end());
    SHAPE(g, 3, 2, 4);
    NEAR(g, 24, each, 1e-5);
    free(va), free(vb), free(vw), free(vc);
    /* No rule: the loop, and one warning. */
    OK(kl_set_log(note, NULL, KL_LOG_WARN));
    kl_custom_register("vmap_triple2", &(kl_custom_op){.types = c_types, .run = c_run}, NULL);
    for (int i = 0; i < 2; i++) {
        double *v = values_of(c), tripled[24];
        for (int k = 0; k < 24; k++)
            tripled[k] = 3 * v[k] + 1;
        OK(kl_vmap(custom, NULL, 1, &c, NULL, 1, NULL, KL_RANDOM_ERROR, &d));
        NEAR(d, 24, tripled, 1e-6);
        free(v);
    }
    OK(kl_set_log(NULL, NULL, KL_LOG_NONE));
    CHECK(warnings == 1);
    /* Refused. */
    kl_tensor none = kl_zeros(cpu, KL_F32, DIMS(0, 3));
    CHECK(kl_vmap(softmax, NULL, 1, &none, NULL, 1, NULL, KL_RANDOM_ERROR, &d) == KL_ERR_ARGUMENT);
    CHECK(says("axis 0 of in[0] of shape [0,3] has no elements: a batch has at least one"));
    kl_release(d);
    kl_tensor four = made(DIMS(4));
    CHECK(kl_vmap(reads, NULL, 1, &four, NULL, 1, NULL, KL_RANDOM_ERROR, &d) == KL_ERR_TRACE &&
          says("not inside of a function that vmap records"));
    kl_release(d);
    CHECK(kl_vmap(assigns, &w, 1, &c, NULL, 1, NULL, KL_RANDOM_ERROR, &d) == KL_ERR_TRACE &&
          says("not inside of a function that vmap records"));
    kl_release(d);
    /* The error of a call inside is that call's, with its line: [5] and [2,4] do not broadcast. */
    kl_tensor five = made(DIMS(3, 5));
    CHECK(kl_vmap(times, NULL, 2, (kl_tensor[]){five, c}, NULL, 1, NULL, KL_RANDOM_ERROR, &d) == KL_ERR_SHAPE);
    CHECK(says("mul: shapes [5] and [2,4] do not broadcast") && says("api_seeds_vmap.c"));
    kl_release(d), kl_release(five);
    /* an element has no axis */
    CHECK(kl_vmap(softmax, NULL, 1, &four, NULL, 1, NULL, KL_RANDOM_ERROR, &d) == KL_ERR_SHAPE);
    kl_release(d);
    kl_release(a), kl_release(b), kl_release(c), kl_release(w), kl_release(none), kl_release(four);
}

/* ---- D23 ---- */

static kl_status noise(void *c, const kl_tensor *in, int64_t n, kl_tensor *out, int64_t m)
{
    (void)c, (void)n, (void)m; out[0] = kl_add(in[0], kl_rand(cpu, KL_F32, DIMS(3), 11)); return KL_OK;
}
static kl_status noise_inside(void *c, const kl_tensor *in, int64_t n, kl_tensor *out, int64_t m)
{
    (void)c; return kl_vmap(noise, NULL, n, in, NULL, m, NULL, KL_RANDOM_SAME, out);
}

static void d23(void)
{
    kl_tensor zero = kl_zeros(cpu, KL_F32, DIMS(4, 3)), y;
    CHECK(kl_vmap(noise, NULL, 1, &zero, NULL, 1, NULL, KL_RANDOM_ERROR, &y) == KL_ERR_ARGUMENT);
    CHECK(says("vmap: We do not yet support calling random operations inside of vmap. Please perform random operations "
               "outside of "
               "vmap as a workaround"));
    kl_release(y);
    kl_tensor row = kl_rand(cpu, KL_F32, DIMS(3), 11), all = kl_rand(cpu, KL_F32, DIMS(4, 3), 11);
    double *r = values_of(row), *a = values_of(all), same[12];
    for (int i = 0; i < 12; i++)
        same[i] = r[i % 3];
    OK(kl_vmap(noise, NULL, 1, &zero, NULL, 1, NULL, KL_RANDOM_SAME, &y));
    NEAR(y, 12, same, 0);
    OK(kl_vmap(noise, NULL, 1, &zero, NULL, 1, NULL, KL_RANDOM_DIFFERENT, &y));
    NEAR(y, 12, a, 0);
    free(r), free(a);
    kl_tensor cube = kl_zeros(cpu, KL_F32, DIMS(2, 4, 3));
    CHECK(kl_vmap(noise_inside, NULL, 1, &cube, NULL, 1, NULL, KL_RANDOM_ERROR, &y) == KL_ERR_ARGUMENT &&
          says("random operations"));
    kl_release(y);
    /* others for each of 2, the same for 4 */
    OK(kl_vmap(noise_inside, NULL, 1, &cube, NULL, 1, NULL, KL_RANDOM_DIFFERENT, &y));
    double *v = values_of(y);
    CHECK(v && v[0] == v[3] && v[0] != v[12] && v[12] == v[15]);
    free(v);
    kl_release(y), kl_release(zero), kl_release(row), kl_release(all), kl_release(cube);
}

int main(int argc, char **argv)
{
    const struct row rows[] = {{"D22", d22}, {"D23", d23}, {"B9", b9}};
    return RUN_ROWS(rows);
}
