/* The rules of the optimizers: the formulas of <kiln/train/optim.h>.  They use only public calls, as a rule of a user
 * could. */
#include "rules.h"

/* Computes x^n with multiplications only, because the last bit of libm's pow may differ between processors. */
static double rule_power(double x, int64_t n)
{
    double y = 1;
    for (; n > 0; n >>= 1, x *= x)
        if (n & 1)
            y *= x;
    return y;
}

static void rule_plain_numbers(double lr, double weight_decay, double *x)
{
    x[NUMBER_RATE] = x[NUMBER_LR] = lr;
    x[NUMBER_DECAY] = 1 - lr * weight_decay;
}

static kl_tensor rule_mul(struct update *u, kl_tensor a, double x)
{
    return kl_mul(a, rule_scalar(u->scalars, a, x, NULL));
}

static kl_tensor rule_add(struct update *u, kl_tensor a, double x)
{
    return kl_add(a, rule_scalar(u->scalars, a, x, NULL));
}

/* Records the new value of p, rounded once if p is a half float. */
static kl_status rule_move(struct update *u, kl_tensor p, kl_tensor step)
{
    return kl_assign(u->of->param, train_cast(kl_sub(p, step), kl_dtype_of(u->of->param)));
}

/* g + weight_decay p */
static kl_tensor rule_coupled(struct update *u, double weight_decay)
{
    if (weight_decay * u->decay == 0)
        return u->g;
    return kl_add(u->g, rule_mul(u, u->p, weight_decay * u->decay));
}

/* ---- options ---- */

/* A number of an options struct: 0 stands for its default, a negative one for 0 unless any number is one. */
struct rule_option {
    const char *name;
    double *value, fallback;
    enum { ANY, NOT_NEGATIVE, BELOW_1, ABOVE_0 } range;
};

/* Replaces what stands for something else; false: reported. */
static bool options_complete(const char *op, const struct rule_option *list, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const struct rule_option *o = &list[i];
        double given = *o->value;
        if (!isfinite(given) || (o->range == BELOW_1 && given >= 1) || (o->range == ABOVE_0 && given < 0))
            return kl_failf(NULL, KL_ERR_ARGUMENT, "%s: %s is %g: it is a finite number%s", op, o->name, given,
                            o->range == BELOW_1 ? " below 1" : o->range == ABOVE_0 ? " above 0" : "") == KL_OK;
        if (given == 0)
            *o->value = o->fallback;
        else if (given < 0 && o->range != ANY)
            *o->value = 0;
    }
    return true;
}

/* ---- SGD ---- */

static const char *const *sgd_states(const kl_optimizer *o, kl_tensor param)
{
    static const char *const velocity[] = {"m", NULL};
    (void)param;
    return o->is.sgd.momentum != 0 ? velocity : velocity + 1;
}

static void sgd_numbers(const kl_optimizer *o, int64_t step, double lr, double *x)
{
    (void)o;
    (void)step;
    rule_plain_numbers(lr, 0, x);
}

static kl_status sgd_update(struct update *u)
{
    const kl_sgd_options *s = &u->o->is.sgd;
    kl_tensor g = rule_coupled(u, s->weight_decay), v = g;
    if (s->momentum != 0) {
        v = rule_flushed(kl_add(rule_mul(u, u->of->state[0], s->momentum), g), 1, RULE_ANY_SIGN);
        kl_assign(u->of->state[0], v);
    }
    if (s->nesterov)
        v = kl_add(rule_mul(u, v, s->momentum), g);
    return rule_move(u, u->p, rule_rated(u, v));
}

kl_optimizer *kl_sgd(int64_t n, const kl_tensor *param, const kl_sgd_options *options)
{
    static const struct rule rule = {"sgd", sgd_states, sgd_numbers, sgd_update};
    kl_sgd_options is = options ? *options : (kl_sgd_options){0};
    const struct rule_option list[] = {{"momentum", &is.momentum, 0, ANY}, {"weight_decay", &is.weight_decay, 0, ANY}};
    if (!options_complete("sgd", list, sizeof list / sizeof *list))
        return NULL;
    if (is.nesterov && is.momentum == 0) {
        kl_failf(NULL, KL_ERR_ARGUMENT, "sgd: Nesterov's momentum is 0");
        return NULL;
    }
    return optimizer_new(&rule, &is, sizeof is, param, n);
}

/* ---- Adam ---- */

static const char *const *adam_states(const kl_optimizer *o, kl_tensor param)
{
    static const char *const moments[] = {"m", "v", NULL};
    (void)o;
    (void)param;
    return moments;
}

/* Both bias corrections are combined into two numbers: with c1 = 1 - beta1^t and c2 = 1 - beta2^t, lr (m / c1) /
 * (sqrt(v / c2) + eps) = (lr / c1) m / (sqrt(v) / sqrt(c2) + eps). */
static void adam_numbers(const kl_optimizer *o, int64_t step, double lr, double *x)
{
    const kl_adam_options *a = &o->is.adam;
    rule_plain_numbers(lr, a->weight_decay, x);
    x[NUMBER_RATE] = lr / (1 - rule_power(a->beta1, step));
    x[NUMBER_ROOT] = 1 / sqrt(1 - rule_power(a->beta2, step));
}

static kl_status adam_update(struct update *u)
{
    const kl_adam_options *a = &u->o->is.adam;
    kl_tensor p = u->p;
    kl_tensor m = rule_average(u->scalars, u->of->state[0], a->beta1, u->g, RULE_ANY_SIGN);
    kl_tensor v = rule_average(u->scalars, u->of->state[1], a->beta2, kl_mul(u->g, u->g), RULE_SQUARES);
    kl_tensor root = rule_add(u, rule_times(u, NUMBER_ROOT, kl_sqrt(v)), a->eps);
    kl_tensor rate = rule_number(u, NUMBER_RATE, p);
    if (u->rate != 1)
        rate = rule_mul(u, rate, u->rate);
    kl_tensor move = kl_mul(kl_div(rate, root), m);
    p = rule_decayed(u, a->weight_decay);
    kl_assign(u->of->state[0], m);
    kl_assign(u->of->state[1], v);
    return rule_move(u, p, move);
}

kl_optimizer *kl_adam(int64_t n, const kl_tensor *param, const kl_adam_options *options)
{
    static const struct rule rule = {"adam", adam_states, adam_numbers, adam_update};
    kl_adam_options is = options ? *options : (kl_adam_options){0};
    const struct rule_option list[] = {{"beta1", &is.beta1, 0.9, BELOW_1}, {"beta2", &is.beta2, 0.999, BELOW_1},
                                  {"eps", &is.eps, 1e-8, NOT_NEGATIVE}, {"weight_decay", &is.weight_decay, 0, ANY}};
    return options_complete("adam", list, sizeof list / sizeof *list)
               ? optimizer_new(&rule, &is, sizeof is, param, n) : NULL;
}

/* ---- Lion ---- */

static const char *const *lion_states(const kl_optimizer *o, kl_tensor param)
{
    static const char *const moment[] = {"m", NULL};
    (void)o;
    (void)param;
    return moment;
}

static void lion_numbers(const kl_optimizer *o, int64_t step, double lr, double *x)
{
    (void)step;
    rule_plain_numbers(lr, o->is.lion.weight_decay, x);
}

static kl_status lion_update(struct update *u)
{
    const kl_lion_options *l = &u->o->is.lion;
    kl_tensor m = u->of->state[0], way = kl_sign(rule_blend(u->scalars, m, l->beta1, u->g));
    kl_tensor p = rule_decayed(u, l->weight_decay), move = rule_rated(u, way);
    kl_assign(m, rule_average(u->scalars, m, l->beta2, u->g, RULE_ANY_SIGN));
    return rule_move(u, p, move);
}

kl_optimizer *kl_lion(int64_t n, const kl_tensor *param, const kl_lion_options *options)
{
    static const struct rule rule = {"lion", lion_states, lion_numbers, lion_update};
    kl_lion_options is = options ? *options : (kl_lion_options){0};
    const struct rule_option list[] = {{"beta1", &is.beta1, 0.9, BELOW_1}, {"beta2", &is.beta2, 0.99, BELOW_1},
                                  {"weight_decay", &is.weight_decay, 0, ANY}};
    return options_complete("lion", list, sizeof list / sizeof *list)
               ? optimizer_new(&rule, &is, sizeof is, param, n) : NULL;
}

/* ---- RMSprop ---- */

static const char *const *rmsprop_states(const kl_optimizer *o, kl_tensor param)
{
    static const char *const names[4][4] = {{"v"}, {"v", "a"}, {"v", "m"}, {"v", "a", "m"}};
    (void)param;
    return names[(o->is.rmsprop.momentum != 0) * 2 + o->is.rmsprop.centered];
}

static void rmsprop_numbers(const kl_optimizer *o, int64_t step, double lr, double *x)
{
    (void)o;
    (void)step;
    rule_plain_numbers(lr, 0, x);
}

static kl_status rmsprop_update(struct update *u)
{
    const kl_rmsprop_options *r = &u->o->is.rmsprop;
    kl_tensor *state = u->of->state, g = rule_coupled(u, r->weight_decay);
    kl_tensor v = rule_average(u->scalars, state[0], r->alpha, kl_mul(g, g), RULE_SQUARES), square = v;
    kl_assign(state[0], v);
    if (r->centered) {
        kl_tensor a = rule_average(u->scalars, state[1], r->alpha, g, RULE_ANY_SIGN);
        square = kl_maximum_scalar(kl_sub(v, kl_mul(a, a)), 0); /* the rounded difference may be
                                                                                          negative */
        kl_assign(state[1], a);
    }
    kl_tensor move = kl_div(g, rule_add(u, kl_sqrt(square), r->eps));
    if (r->momentum != 0) {
        kl_tensor m = state[1 + r->centered];
        move = rule_flushed(kl_add(rule_mul(u, m, r->momentum), move), 1, RULE_ANY_SIGN);
        kl_assign(m, move);
    }
    return rule_move(u, u->p, rule_rated(u, move));
}

kl_optimizer *kl_rmsprop(int64_t n, const kl_tensor *param, const kl_rmsprop_options *options)
{
    static const struct rule rule = {"rmsprop", rmsprop_states, rmsprop_numbers, rmsprop_update};
    kl_rmsprop_options is = options ? *options : (kl_rmsprop_options){0};
    const struct rule_option list[] = {{"alpha", &is.alpha, 0.99, BELOW_1}, {"eps", &is.eps, 1e-8, NOT_NEGATIVE},
                                  {"momentum", &is.momentum, 0, ANY}, {"weight_decay", &is.weight_decay, 0, ANY}};
    return options_complete("rmsprop", list, sizeof list / sizeof *list)
               ? optimizer_new(&rule, &is, sizeof is, param, n) : NULL;
}

/* ---- Adafactor ---- */

static const char *const *adafactor_states(const kl_optimizer *o, kl_tensor param)
{
    static const char *const whole[] = {"v", NULL}, *const factors[] = {"r", "c", NULL};
    (void)o;
    return kl_rank(param) < 2 ? whole : factors;
}

static void adafactor_numbers(const kl_optimizer *o, int64_t step, double lr, double *x)
{
    rule_plain_numbers(lr, o->is.adafactor.weight_decay, x);
    /* rounded to float, so that differences between processors in the last bit of pow almost never matter */
    x[NUMBER_BLEND] = (double)(float)(1 - pow((double)step, -o->is.adafactor.decay_power));
}

/* b * old + (1 - b) * new */
static kl_tensor adafactor_blend(struct update *u, kl_tensor old, kl_tensor new)
{
    kl_tensor next = kl_add(new, rule_times(u, NUMBER_BLEND, kl_sub(old, new)));
    kl_assign(old, next);
    return next;
}

static kl_tensor adafactor_rms(kl_tensor a)
{
    return kl_sqrt(kl_mean(kl_mul(a, a), 0, NULL, false));
}

/* Divides g by the root of its second moment.  The roots of r / mean(r) and of c are taken separately: where gradients
 * are 0, the product is 1e-60, which f32 cannot represent. */
static kl_tensor adafactor_direction(struct update *u)
{
    kl_tensor *state = u->of->state;
    kl_tensor square = rule_add(u, kl_mul(u->g, u->g), u->o->is.adafactor.eps1);
    if (kl_rank(u->of->param) < 2)
        return kl_div(u->g, kl_sqrt(adafactor_blend(u, state[0], square)));
    int last = -1, before = -2;
    kl_tensor r = adafactor_blend(u, state[0], kl_mean(square, 1, &last, false));
    kl_tensor c = adafactor_blend(u, state[1], kl_mean(square, 1, &before, false));
    kl_tensor rows = kl_sqrt(kl_div(r, kl_mean(r, 1, &last, true)));
    kl_tensor root = kl_mul(kl_unsqueeze(rows, -1), kl_unsqueeze(kl_sqrt(c), kl_rank(c) - 1));
    return kl_div(u->g, root);
}

static kl_status adafactor_update(struct update *u)
{
    const kl_adafactor_options *a = &u->o->is.adafactor;
    kl_tensor p = u->p, move = adafactor_direction(u), rate = rule_number(u, NUMBER_RATE, p);
    if (a->clip > 0)
        move = kl_div(move, kl_maximum_scalar(rule_mul(u, adafactor_rms(move), 1 / a->clip), 1));
    if (u->rate != 1)
        rate = rule_mul(u, rate, u->rate);
    if (!a->unscaled)
        rate = kl_mul(rate, kl_maximum_scalar(adafactor_rms(p), a->eps2));
    return rule_move(u, rule_decayed(u, a->weight_decay), kl_mul(move, rate));
}

kl_optimizer *kl_adafactor(int64_t n, const kl_tensor *param, const kl_adafactor_options *options)
{
    static const struct rule rule = {"adafactor", adafactor_states, adafactor_numbers, adafactor_update};
    kl_adafactor_options is = options ? *options : (kl_adafactor_options){0};
    const struct rule_option list[] = {{"decay_power", &is.decay_power, 0.8, NOT_NEGATIVE},
                                  {"eps1", &is.eps1, 1e-30, ABOVE_0}, {"eps2", &is.eps2, 1e-3, NOT_NEGATIVE},
                                  {"clip", &is.clip, 1, NOT_NEGATIVE}, {"weight_decay", &is.weight_decay, 0, ANY}};
    return options_complete("adafactor", list, sizeof list / sizeof *list)
               ? optimizer_new(&rule, &is, sizeof is, param, n) : NULL;
}
