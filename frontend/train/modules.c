/* Modules with one product, table or norm: linear, embedding, convolution, normalization, dropout. */
#include "modules.h"

kl_status module_make(kl_params *params, const char *prefix, const char *leaf, int rank,
                      const int64_t *dims, const kl_init *init, kl_tensor *out)
{
    char name[KL_PARAM_NAME + 2];
    *out = kl_none;
    module_name(name, prefix, leaf);
    kl_tensor t = kl_params_make(params, name, rank, dims, init);
    kl_status s = kl_check(t);
    if (s == KL_OK)
        *out = t;
    else
        train_release(t);
    return s;
}

void module_name(char *name, const char *prefix, const char *leaf)
{
    kl_format(name, KL_PARAM_NAME + 2, "%s%s%s", prefix ? prefix : "", prefix && *prefix ? "." : "", leaf);
}

kl_status module_refuse(const char *op, const char *prefix, const char *what)
{
    return kl_failf(NULL, KL_ERR_ARGUMENT, "%s: \"%.*s\": %s", op, KL_PARAM_NAME, prefix ? prefix : "", what);
}

kl_tensor module_end(kl_tensor result)
{
    kl_module_end();
    return result;
}

/* ---- linear ---- */

kl_status kl_nn_linear_init(kl_nn_linear *m, kl_params *params, const char *prefix, int64_t in, int64_t out, bool bias)
{
    if (!m || in < 1 || out < 1)
        return module_refuse("nn_linear_init", prefix, m ? "widths are counts from 1 on" : "the module is NULL");
    kl_init uniform = {.kind = KL_INIT_UNIFORM, .low = -1 / sqrt((double)in), .high = 1 / sqrt((double)in)};
    *m = (kl_nn_linear){0};
    kl_status s = module_make(params, prefix, "weight", 2, (int64_t[]){in, out}, &uniform, &m->weight);
    if (s == KL_OK && bias)
        s = module_make(params, prefix, "bias", 1, &out, NULL, &m->bias);
    return s;
}

kl_tensor kl_nn_linear_forward(const kl_nn_linear *m, kl_tensor x)
{
    if (kl_module_begin(m->weight, 1) != KL_OK)
        return kl_poison();
    return module_end(kl_linear(x, m->weight, m->bias));
}

/* ---- embedding ---- */

kl_status kl_nn_embedding_init(kl_nn_embedding *m, kl_params *params, const char *prefix, int64_t rows, int64_t width)
{
    if (!m || rows < 1 || width < 1)
        return module_refuse("nn_embedding_init", prefix,
                             m ? "rows and width are counts from 1 on" : "the module is NULL");
    kl_init normal = {.kind = KL_INIT_NORMAL, .std = 0.02};
    return module_make(params, prefix, "weight", 2, (int64_t[]){rows, width}, &normal, &m->weight);
}

kl_tensor kl_nn_embedding_forward(const kl_nn_embedding *m, kl_tensor ids)
{
    if (kl_module_begin(m->weight, 1) != KL_OK)
        return kl_poison();
    return module_end(kl_embedding(m->weight, ids));
}

/* ---- convolution ---- */

kl_status kl_nn_conv_init(kl_nn_conv *m, kl_params *params, const char *prefix, const kl_nn_conv_options *options)
{
    const kl_nn_conv_options *o = options;
    int groups = o && o->groups ? o->groups : 1;
    if (!m || !o || o->axes < 1 || o->axes > 3 || o->in < 1 || o->out < 1 || groups < 1 || o->in % groups ||
        o->out % groups)
        return module_refuse("nn_conv_init", prefix,
                             !m || !o ? "an argument is NULL" : "channels, axes or groups make no convolution");
    int64_t dims[5] = {o->out, o->in / groups}, area = 1;
    *m = (kl_nn_conv){.is = *o};
    m->is.groups = groups;
    for (int i = 0; i < o->axes; i++) {
        m->is.stride[i] = o->stride[i] ? o->stride[i] : 1;
        m->is.dilation[i] = o->dilation[i] ? o->dilation[i] : 1;
        area *= dims[2 + i] = o->kernel[i];
        if (o->kernel[i] < 1)
            return module_refuse("nn_conv_init", prefix, "the kernel's lengths are counts from 1 on");
    }
    kl_init kaiming = {.kind = KL_INIT_KAIMING_UNIFORM, .gain = KL_GAIN_RELU, .fan_in = dims[1] * area};
    kl_status s = module_make(params, prefix, "weight", 2 + o->axes, dims, &kaiming, &m->weight);
    if (s == KL_OK && !o->no_bias)
        s = module_make(params, prefix, "bias", 1, dims, NULL, &m->bias);
    return s;
}

kl_tensor kl_nn_conv_forward(const kl_nn_conv *m, kl_tensor x)
{
    const kl_nn_conv_options *o = &m->is;
    if (kl_module_begin(m->weight, 1) != KL_OK)
        return kl_poison();
    return module_end(kl_conv(x, m->weight, m->bias, o->stride, o->padding, o->padding, o->dilation, o->groups));
}

/* ---- normalization ---- */

static kl_status norm_buffer(kl_params *params, const char *prefix, const char *leaf,
                             int64_t width, bool ones, kl_tensor *out)
{
    char name[KL_PARAM_NAME + 2];
    module_name(name, prefix, leaf);
    kl_init init = {.kind = ones ? KL_INIT_ONES : KL_INIT_ZEROS};
    *out = kl_init_values(&init, kl_params_device(params), kl_params_dtype(params), 1, &width, 0);
    kl_status s = kl_params_add_buffer(params, name, *out);
    if (s != KL_OK)
        *out = kl_none;
    return s;
}

static kl_status norm_init(kl_nn_norm *m, kl_params *params, const char *prefix,
                           kl_nn_norm_kind kind, int64_t width, int groups)
{
    if (!m || width < 1 || groups < 1 || width % groups)
        return module_refuse("nn_norm_init", prefix, m ? "no such width or groups" : "the module is NULL");
    kl_init ones = {.kind = KL_INIT_ONES};
    *m = (kl_nn_norm){.kind = kind, .groups = groups, .eps = 1e-5, .momentum = 0.1};
    kl_status s = module_make(params, prefix, "weight", 1, &width, &ones, &m->weight);
    if (s == KL_OK && kind != KL_NN_RMS_NORM)
        s = module_make(params, prefix, "bias", 1, &width, NULL, &m->bias);
    if (s == KL_OK && kind == KL_NN_BATCH_NORM)
        s = norm_buffer(params, prefix, "mean", width, false, &m->mean);
    if (s == KL_OK && kind == KL_NN_BATCH_NORM)
        s = norm_buffer(params, prefix, "var", width, true, &m->var);
    return s;
}

kl_status kl_nn_layer_norm_init(kl_nn_norm *m, kl_params *params, const char *prefix, int64_t width)
{
    return norm_init(m, params, prefix, KL_NN_LAYER_NORM, width, 1);
}

kl_status kl_nn_rms_norm_init(kl_nn_norm *m, kl_params *params, const char *prefix, int64_t width)
{
    return norm_init(m, params, prefix, KL_NN_RMS_NORM, width, 1);
}

kl_status kl_nn_batch_norm_init(kl_nn_norm *m, kl_params *params, const char *prefix, int64_t channels)
{
    return norm_init(m, params, prefix, KL_NN_BATCH_NORM, channels, 1);
}

kl_status kl_nn_group_norm_init(kl_nn_norm *m, kl_params *params, const char *prefix, int64_t channels, int groups)
{
    return norm_init(m, params, prefix, KL_NN_GROUP_NORM, channels, groups);
}

static kl_tensor norm_of(const kl_nn_norm *m, kl_tensor x, bool training)
{
    switch (m->kind) {
    case KL_NN_LAYER_NORM: return kl_layer_norm(x, 1, m->weight, m->bias, m->eps);
    case KL_NN_RMS_NORM: return kl_rms_norm(x, 1, m->weight, m->eps);
    case KL_NN_GROUP_NORM: return kl_group_norm(x, m->groups, m->weight, m->bias, m->eps);
    case KL_NN_BATCH_NORM: break;
    }
    return kl_batch_norm(x, m->weight, m->bias, m->mean, m->var, training, m->momentum, m->eps);
}

kl_tensor kl_nn_norm_forward(const kl_nn_norm *m, kl_tensor x, bool training)
{
    if (kl_module_begin(m->weight, 1) != KL_OK)
        return kl_poison();
    return module_end(norm_of(m, x, training));
}

/* ---- dropout ---- */

kl_tensor kl_nn_dropout(kl_tensor x, double p, kl_tensor seed, int64_t which)
{
    if (!seed.id || p == 0)
        return kl_dropout(x, 0, 0, false);
    if (kl_composite_begin("nn_dropout") != KL_OK)
        return kl_poison();
    kl_tensor number = kl_scalar(kl_device_of(seed), KL_I64, (double)which);
    kl_tensor y = kl_dropout_seeded(x, p, kl_random_fold_in(seed, number), true);
    kl_composite_end(1, &y);
    return y;
}
