/* Rows of the dispatch system that are named and nested tensors, layers with layers, and allocations that fail in any
 * of them. Arguments: ids of rows; none: all. */
#include "api_wrappers.h"

/* ---- named ---- */

#define NAMES(...) ((const char *const[]){__VA_ARGS__})

static bool names_are(kl_tensor t, const char *want)
{
    const char *names[KL_MAX_RANK];
    char got[100] = "";
    int rank = kl_names(t, names);
    for (int i = 0; i < rank; i++)
        snprintf(got + strlen(got), sizeof got - strlen(got), "%s%s", i ? "," : "", names[i] ? names[i] : "-");
    if (strcmp(got, want))
        printf("names are %s, not %s (%s)\n", got, want, kl_last_error());
    return !strcmp(got, want);
}

static void d15(void)
{
    OK(kl_scope_begin());
    kl_tensor p = noise(D(2, 3), 1), x = kl_named(p, NAMES("N", "C")), c = kl_named(noise(D(3), 2), NAMES("C"));
    CHECK(!strcmp(kl_layer_name(x), "named") && names_are(x, "N,C") && names_are(p, "-,-") && kl_axis(x, "C") == 1);
    CHECK(kl_axis(x, "W") == -1 && says("axis: no axis of [N, C] is called 'W'"));
    kl_clear_error();
    CHECK(names_are(kl_add(x, c), "N,C") && names_are(kl_add(c, x), "N,C") && names_are(kl_mul(x, p), "N,C"));
    CHECK(close(kl_add(x, c), kl_add(p, kl_dense(c)), 0));
    CHECK(names_are(kl_where(kl_gt(x, c), x, p), "N,C") && names_are(kl_mul_scalar(kl_exp(x), 2), "N,C") &&
          names_are(kl_cast(x, KL_F64), "N,C"));
    kl_tensor y = kl_named(p, NAMES("N", "D"));
    CHECK(refused(kl_add(x, y), KL_ERR_ARGUMENT,
                  "add: names [N, C] and [N, D] do not match: axis -1 is 'C' in one, 'D' in the other"));
    CHECK(names_are(kl_named(x, NULL), "-,-") && !strcmp(kl_layer_name(kl_named(x, NULL)), "") &&
          names_are(kl_named(x, NAMES(NULL, "C")), "-,C"));
    CHECK(refused(
        kl_index_add(x, 0, kl_zeros(cpu, KL_I32, D(2)), p), KL_ERR_ARGUMENT,
        "scatter is not yet supported with named tensors. Please drop names via `tensor = kl_named(tensor, NULL)`"));
    CHECK(refused(kl_reshape(x, 1, (int64_t[]){6}), KL_ERR_ARGUMENT,
                  "reshape is not yet supported with named tensors"));
    CHECK(refused(kl_named(p, NAMES("N", "N")), KL_ERR_ARGUMENT, "two axes of the result would be called 'N'"));

    CHECK(names_are(kl_transpose(x, 0, 1), "C,N") && names_are(kl_sum(x, AXES(0), false), "C") &&
          names_are(kl_sum(x, AXES(0), true), "N,C"));
    CHECK(names_are(kl_mean(x, 1, (int[]){kl_axis(x, "C")}, false), "N") && names_are(kl_argmax(x, 1), "N") &&
          names_are(kl_sum_all(x), ""));
    CHECK(names_are(kl_softmax(x, -1), "N,C") && names_are(kl_layer_norm(x, 1, c, kl_none, 1e-5), "N,C") &&
          close(kl_softmax(x, -1), kl_softmax(p, -1), 0));
    kl_tensor ones = kl_named(kl_ones(cpu, KL_F32, D(1, 1, 3)), NAMES("A", "B", "C"));
    CHECK(names_are(kl_sum(ones, AXES(1), false), "A,C") && names_are(kl_squeeze(ones, 0), "-,C") &&
          names_are(kl_unsqueeze(c, 0), "-,C"));
    kl_tensor w = kl_named(noise(D(3, 4), 3), NAMES("C", "E"));
    CHECK(names_are(kl_matmul(x, w), "N,E") && close(kl_matmul(x, w), kl_matmul(p, kl_dense(w)), 0));
    CHECK(refused(kl_matmul(x, kl_transpose(x, 0, 1)), KL_ERR_ARGUMENT, "two axes of the result would be called 'N'"));
    kl_tensor batch = kl_named(noise(D(5, 2, 3), 4), NAMES("B", NULL, "C"));
    CHECK(names_are(kl_matmul(batch, w), "B,-,E") && names_are(kl_concat(2, (kl_tensor[]){x, p}, 0), "N,C") &&
          names_are(kl_narrow(x, 1, 0, 2), "N,C"));
    kl_tensor s = kl_named(kl_to_sparse(p, 6), NAMES("N", "C"));
    CHECK(names_are(kl_neg(s), "N,C") && !strcmp(kl_layer_name(kl_layer_part(kl_neg(s), 0)), "sparse") &&
          close(kl_dense(kl_neg(s)), kl_neg(p), 0));
    OK(kl_requires_grad(x));
    kl_tensor g = kl_grad(kl_sum_all(kl_square(x)), x);
    CHECK(names_are(g, "N,C") && close(g, kl_mul_scalar(p, 2), 1e-6));

    /* names record nothing */
    int64_t nodes[2];
    for (int i = 0; i < 2; i++) {
        OK(kl_trace_begin("named"));
        kl_tensor a = kl_input(cpu, KL_F32, D(2, 3), (float[6]){1, 2, 3, 4, 5, 6});
        kl_keep(kl_softmax(kl_add(i ? kl_named(a, NAMES("N", "C")) : a, i ? kl_named(a, NAMES("N", "C")) : a), 1));
        OK(kl_trace_end());
        kl_run_info info;
        OK(kl_trace_info(&info));
        nodes[i] = info.nodes;
    }
    CHECK(nodes[0] == nodes[1]);
    OK(kl_scope_end());
}

/* ---- nested ---- */

/* 3, 5, 0 and 2 rows, and one more than is needed. */
enum { ROWS = 11, PARTS = 4 };
static const int32_t starts[PARTS + 1] = {0, 3, 8, 8, 10};

static kl_tensor offsets(void) { return kl_input(cpu, KL_I32, D(PARTS + 1), starts); }
static kl_tensor component(kl_tensor values, int i)
{
    return kl_narrow(values, 0, starts[i], starts[i + 1] - starts[i]);
}

static kl_tensor nested_loss(kl_tensor values, void *ctx)
{
    kl_tensor w = *(kl_tensor *)ctx, x = kl_nested(values, offsets());
    kl_tensor h = kl_nested_attention(kl_matmul(x, w), x, kl_tanh(x), true);
    kl_tensor s = kl_mul(kl_nested_softmax(h), x);
    kl_tensor mean = kl_narrow(kl_nested_mean(kl_narrow(s, 1, 0, 2)), 0, 0, 2); /* of the empty one it is NaN */
    return kl_add(kl_sum_all(kl_square(mean)), kl_sum_all(kl_square(kl_nested_sum(s))));
}

static void b6(void)
{
    OK(kl_scope_begin());
    kl_tensor v = noise(D(ROWS, 4), 1), x = kl_nested(v, offsets()), w = noise(D(4, 6), 2), b = noise(D(6), 3);
    CHECK(!strcmp(kl_layer_name(x), "nested") && kl_numel(x) == ROWS * 4);
    NEAR_LIST(kl_layer_part(x, 2), 0, 0, 0, 0, 1, 1, 1, 1, 1, 3, 3, 4);
    kl_tensor y = kl_softmax(kl_relu(kl_linear(x, w, b)), -1), sum = kl_nested_sum(x), max = kl_nested_max(x),
        soft = kl_nested_softmax(x);
    NEAR_LIST(kl_layer_part(y, 1), 0, 0, 3, 8, 8, 10);
    for (int i = 0; i < PARTS; i++) { /* each component as if alone */
        kl_tensor one = component(v, i);
        CHECK(close(component(kl_dense(y), i), kl_softmax(kl_relu(kl_linear(one, w, b)), -1), 1e-6));
        CHECK(close(kl_narrow(sum, 0, i, 1), kl_sum(one, AXES(0), true), 1e-6) &&
              close(component(kl_dense(soft), i), kl_softmax(one, 0), 1e-6));
        CHECK(i == 2 || (close(kl_narrow(max, 0, i, 1), kl_max(one, AXES(0), true), 0) &&
                         close(kl_narrow(kl_nested_mean(x), 0, i, 1), kl_mean(one, AXES(0), true), 1e-6)));
        for (int causal = 0; causal < 2 && i != 2; causal++) {
            kl_tensor got = kl_nested_attention(x, kl_mul_scalar(x, 2), kl_matmul(x, w), causal);
            CHECK(close(component(kl_dense(got), i), kl_attention(one, kl_mul_scalar(one, 2), kl_matmul(one, w),
                                                                  kl_none, causal), 1e-5));
        }
    }
    kl_tensor heads = kl_nested_like(noise(D(ROWS, 2, 3), 4), x),
        many = kl_dense(kl_nested_attention(heads, heads, heads, true));
    kl_tensor second = kl_transpose(component(kl_dense(heads), 1), 0, 1);
    CHECK(close(component(many, 1), kl_transpose(kl_attention(second, second, second, kl_none, true), 0, 1), 1e-5));
    kl_tensor padded = kl_nested_pad(x, 5, -1), lengths = kl_input(cpu, KL_I32, D(PARTS), (int32_t[]){3, 5, 0, 2}),
        back = kl_to_nested(padded, lengths, 10);
    CHECK(close(kl_dense(back), kl_narrow(v, 0, 0, 10), 0) &&
          kl_item_f64(kl_sum_all(kl_narrow(padded, 0, 2, 1))) == -20);
    CHECK(close(kl_layer_part(back, 1), offsets(), 0));
    kl_tensor ids = kl_nested(kl_input(cpu, KL_I32, D(ROWS), (int32_t[ROWS]){3, 1, 2}), offsets());
    CHECK(!strcmp(kl_layer_name(kl_embedding(w, ids)), "nested"));
    CHECK(close(kl_sum_all(x), kl_sum_all(v), 1e-5) && close(kl_dense(kl_layer_norm(x, 1, kl_none, kl_none, 1e-5)),
                                                             kl_layer_norm(v, 1, kl_none, kl_none, 1e-5), 0));

    CHECK(refused(kl_add(x, kl_nested(v, offsets())), KL_ERR_TYPE, "add: its operands have offsets of their own"));
    CHECK(refused(kl_add(x, kl_unsqueeze(v, 0)), KL_ERR_TYPE, "an operand has more axes"));
    CHECK(close(kl_dense(kl_add(x, v)), kl_mul_scalar(v, 2), 0) &&
          !strcmp(kl_layer_name(kl_dropout(x, 0.5, 1, true)), "nested"));
    kl_tensor classes = kl_nested_like(kl_cast(kl_floor(kl_abs(kl_squeeze(kl_narrow(v, 1, 0, 1), 1))), KL_I32), x);
    CHECK(close(kl_cross_entropy(x, classes), kl_cross_entropy(v, kl_dense(classes)), 1e-6));
    CHECK(refused(kl_sum(x, AXES(0), false), KL_ERR_TYPE, "components are not to be mixed"));
    CHECK(refused(kl_transpose(x, 0, 1), KL_ERR_TYPE, "components are not to be mixed"));
    CHECK(refused(kl_nested(v, kl_cast(v, KL_I32)), KL_ERR_SHAPE, "the offsets have shape [11,4], not one axis"));
    CHECK(refused(kl_nested_sum(v), KL_ERR_TYPE, "nested_sum: needs a nested tensor"));

    /* one kernel whatever the lengths, attention too, as that of one long sequence with a mask */
    OK(kl_read(kl_layer_part(x, 2), (int32_t[ROWS]){0}, ROWS * 4));
    CHECK(kl_item_f64(kl_sum_all(v)) == kl_item_f64(kl_sum_all(v)));
    kl_tensor mask = kl_eye(cpu, KL_BOOL, ROWS, ROWS);
    OK(kl_read(mask, (char[ROWS * ROWS]){0}, ROWS * ROWS));
    for (int i = 0; i < 4; i++) {
        OK(kl_trace_begin("nested_kernel"));
        kl_tensor z = i == 0 ? kl_relu(kl_linear(x, w, b)) : i == 1 ? kl_softmax(kl_mul_scalar(x, 3), -1)
                      : i == 2 ? kl_attention(v, v, v, mask, true) : kl_nested_attention(x, x, x, true);
        kl_keep(z);
        OK(kl_trace_end());
        kl_run_info info;
        OK(kl_trace_info(&info));
        if (strcmp(kl_device_name(cpu), "ref"))
            CHECK(info.kernels == 1 && !strcmp(kl_layer_name(z), i == 2 ? "" : "nested"));
    }
    OK(kl_scope_end());
}

static int nested_grads;
static kl_status nested_autograd(void *ctx, kl_call *call, kl_keyset keys)
{
    nested_grads++;
    return pass_on(ctx, call, keys);
}

static void d10(void)
{
    OK(kl_scope_begin());
    kl_tensor v = noise(D(ROWS, 4), 5), w = noise(D(4, 4), 6), x = kl_nested(v, offsets());
    OK(kl_requires_grad(x));
    kl_tensor g = kl_grad(kl_sum_all(kl_square(kl_matmul(x, w))), x);
    kl_tensor want = kl_mul_scalar(kl_matmul(kl_matmul(v, w), kl_transpose(w, 0, 1)), 2);
    CHECK(!strcmp(kl_layer_name(g), "nested") && close(kl_dense(g), want, 1e-5));
    NEAR_LIST(kl_layer_part(g, 1), 0, 0, 3, 8, 8, 10);
    CHECK(refused(kl_nested_attention(x, kl_nested(v, offsets()), x, true), KL_ERR_TYPE,
                  "q, k and v are nested and have the same offsets"));
    kl_tensor p = noise(D(ROWS, 4), 7);
    OK(kl_requires_grad(p));
    CHECK(slopes_are(nested_loss, &w, p, kl_grad(nested_loss(p, &w), p), 3e-2));

    CHECK(kl_key_autograd(KL_KEY_NestedTensor) == KL_KEY_AutogradNestedTensor);
    kl_registration r = reg("tanh", KL_KEY_AutogradNestedTensor, (kl_kernel){.name = "count", .call = nested_autograd});
    kl_tanh(x);
    kl_tanh(v);
    CHECK(nested_grads == 1);
    drop(r);
    OK(kl_scope_end());
}

/* ---- with other layers: right, or a clear error ---- */

struct both { kl_tensor w8, s; };

static kl_status per_row(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    const struct both *b = ctx;
    kl_tensor row = kl_reshape(in[0], 2, (int64_t[]){1, 4}), q = kl_to_quantized(row, Q(KL_Q_I8), kl_none, kl_none);
    kl_tensor z = kl_complex(in[0], kl_exp(in[0])), y = kl_matmul(b->s, in[0]);
    (void)nin;
    out[0] = kl_matmul(q, b->w8);
    out[1] = kl_add(kl_sum_all(y), kl_sum_all(kl_square(kl_abs(kl_mul(z, kl_conj(z))))));
    out[2] = kl_grad(kl_sum_all(kl_square(out[0])), in[0]);
    return nout == 3 ? KL_OK : KL_ERR_ARGUMENT;
}

static kl_status first_part(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)ctx, (void)nin, (void)nout;
    out[0] = kl_exp(in[0]);
    return KL_OK;
}

static void mixed(void)
{
    OK(kl_scope_begin());
    kl_tensor x = noise(D(5, 4), 1), w = noise(D(4, 3), 2), all[3], each[3];
    struct both b = {kl_to_quantized(w, Q(KL_Q_I8, .per_axis = true, .axis = 1), kl_none, kl_none), csr(noise(D(7),
                                                                                                              3))};
    /* inside of a function for a batch: what a loop over it gives */
    OK(kl_vmap(per_row, &b, 1, &x, NULL, 3, NULL, KL_RANDOM_ERROR, all));
    for (int i = 0; i < 5; i++) {
        kl_tensor row = kl_narrow(x, 0, i, 1), out[3];
        OK(kl_vmap(per_row, &b, 1, &row, NULL, 3, NULL, KL_RANDOM_ERROR, out));
        kl_tensor alone = kl_squeeze(kl_narrow(x, 0, i, 1), 0);
        OK(kl_requires_grad(alone));
        OK(per_row(&b, &alone, 1, each, 3));
        for (int k = 0; k < 3; k++)
            CHECK(close(kl_reshape(kl_narrow(all[k], 0, i, 1), 1, (int64_t[]){-1}),
                        kl_reshape(each[k], 1, (int64_t[]){-1}), 1e-4) &&
                  kl_numel(out[k]) == kl_numel(each[k]));
    }
    kl_tensor out[1];
    CHECK(kl_vmap(first_part, NULL, 1, &b.w8, NULL, 1, NULL, KL_RANDOM_ERROR, out) == KL_ERR_TYPE &&
          says("vmap: in[0] is a quantized tensor"));
    kl_clear_error();
    kl_release(out[0]);
    /* one layer's tensors with another's */
    kl_tensor sd = kl_dense(b.s), wd = kl_dense(b.w8), z = kl_complex(w, w);
    CHECK(close(kl_matmul(b.s, b.w8), kl_matmul(sd, wd), 1e-5) &&
          close(kl_real(kl_matmul(b.s, z)), kl_matmul(sd, w), 1e-5));
    kl_tensor named = kl_named(b.w8, NAMES("in", "out"));
    CHECK(names_are(kl_exp(named), "in,out") && !strcmp(kl_layer_name(kl_layer_part(kl_exp(named), 0)), "quantized"));
    CHECK(close(kl_matmul(kl_to_quantized(x, Q(KL_Q_I8), kl_none, kl_none), kl_named(b.w8, NULL)),
                kl_matmul(kl_dense(kl_to_quantized(x, Q(KL_Q_I8), kl_none, kl_none)), wd), 1e-5));
    /* under autocast products of the parts are in bf16, those of integers stay */
    kl_autocast_begin(KL_BF16);
    kl_tensor low = kl_matmul(b.s, x.id ? kl_transpose(kl_narrow(x, 0, 0, 4), 0, 1) : x),
        zz = kl_matmul(kl_transpose(z, 0, 1), z);
    kl_tensor ints = kl_matmul(kl_to_quantized(x, Q(KL_Q_I8), kl_none, kl_none), b.w8);
    kl_autocast_end();
    CHECK(kl_check(low) == KL_OK && kl_dtype_of(kl_real(zz)) == KL_BF16 && kl_dtype_of(ints) == KL_F32);
    CHECK(close(kl_cast(kl_real(zz), KL_F32), kl_zeros(cpu, KL_F32, D(3, 3)), 0.1) &&
          close(ints, kl_matmul(kl_dense(kl_to_quantized(x, Q(KL_Q_I8), kl_none, kl_none)), wd), 1e-5));
    OK(kl_scope_end());
}

/* ---- allocations that fail while all of these are recorded: an error each, nothing lost, and the next time it works
 * ---- */

static int64_t taken, fail_at;
static bool fails(void)
{
    return __atomic_add_fetch(&taken, 1, __ATOMIC_RELAXED) == __atomic_load_n(&fail_at, __ATOMIC_RELAXED);
}
static void *take(void *ctx, size_t bytes)
{
    (void)ctx;
    void *p = fails() ? NULL : malloc(bytes);
    return p ? memset(p, 0xa5, bytes) : NULL;
}
static void *grow(void *ctx, void *p, size_t bytes) { (void)ctx; return fails() ? NULL : realloc(p, bytes); }
static void release(void *ctx, void *p) { (void)ctx; free(p); }

static kl_status record_everything(void)
{
    kl_tensor v = f32(D(11, 4), (float[44]){0}), w = f32(D(4, 4), (float[16]){0}), row = f32(D(7), (float[7]){0});
    kl_tensor x = kl_nested(v, offsets()), z = kl_complex(w, w), s = csr(row),
        q = kl_to_quantized(w, Q(KL_Q_U8), kl_none, kl_none);
    kl_tensor made[] = {kl_nested_attention(x, x, x, true), kl_nested_pad(kl_nested_softmax(x), 5, 0),
                        kl_matmul(kl_exp(z), kl_conj(z)),
                        kl_matmul(s, w), kl_add(s, coo(row)), kl_exp(s), kl_matmul(q, kl_transpose(q, 0, 1)), kl_exp(q),
                            kl_to_sparse(w, 5),
                        kl_to_quantized(w, Q(KL_Q_I4, .block = 2), kl_none, kl_none), kl_named(w, NAMES("A", NULL)),
                            kl_relu(kl_blocked(w, 2)),
                        kl_layer_part(z, 1), kl_dense(q), kl_sum_all(kl_named(x, NAMES("T", "D")))};
    kl_status status = KL_OK;
    for (unsigned i = 0; i < sizeof made / sizeof *made; i++)
        status = kl_check(made[i]) ? kl_check(made[i]) : status;
    return status;
}

static void memory(void)
{
    int wrong = 0, errors = 0;
    for (int traced = 0; traced < 2; traced++)
        for (int64_t n = 0, all = 1; n <= all; n++) {
            OK(traced ? kl_trace_begin("memory") : kl_scope_begin());
            __atomic_store_n(&taken, 0, __ATOMIC_RELAXED);
            __atomic_store_n(&fail_at, n, __ATOMIC_RELAXED);
            kl_clear_error();
            kl_status status = record_everything();
            __atomic_store_n(&fail_at, 0, __ATOMIC_RELAXED);
            if (status ? !n || status != KL_ERR_MEMORY : false) {
                printf("allocation %d: %s\n", (int)n, kl_last_error());
                wrong++;
            }
            errors += status != KL_OK;
            all = n ? all : __atomic_load_n(&taken, __ATOMIC_RELAXED);
            if (traced)
                kl_trace_abandon();
            else
                OK(kl_scope_end());
        }
    printf("%d allocations that failed were errors\n", errors);
    CHECK(!wrong && errors > 30);
    kl_clear_error();
}

static const struct row rows[] = {{"D15", d15}, {"B6", b6}, {"D10", d10}, {"mixed", mixed}, {"memory", memory}};

int main(int argc, char **argv)
{
    kl_set_memory(&(kl_memory){take, grow, release, NULL});
    return RUN_ROWS(rows);
}
