/* Training outside of traces by each loss and several update rules written with kl_assign: however many steps there
 * were, a step computes no more than the first ones, so what is recorded stays bounded.  If it grew, each read would be
 * another program.  The number of nodes in a step varies, since collections of the recorded graph come by its size. */
#include "tests/support/api_check.h"

enum { ROWS = 6, IN = 3, OUT = 4, WARM = 24, STEPS = 72, MAX_EXTRA = 24, LOSSES = 12, MAX_PROGRAMS = 4 };

static float data[ROWS * IN], goal[ROWS * OUT];
static int32_t label[ROWS];

struct model { kl_device device; kl_tensor w, m, v, average; };

/* ---- losses of predictions p [ROWS, OUT] ---- */

static kl_tensor labels_of(kl_device d) { return kl_input(d, KL_I32, DIMS(ROWS), label); }
static kl_tensor goal_of(kl_device d) { return kl_input(d, KL_F32, DIMS(ROWS, OUT), goal); }
static kl_tensor log_of(kl_tensor p) { return kl_log_softmax(p, 1); }

static kl_tensor with_options(kl_tensor p, kl_device d)
{
    kl_class_loss_options o = {.weight = kl_input(d, KL_F32, DIMS(OUT), goal), .smoothing = 0.1};
    return kl_cross_entropy_with(p, labels_of(d), &o);
}

static kl_tensor loss(int which, kl_device d, kl_tensor p)
{
    switch (which) {
    case 0: return kl_cross_entropy(p, labels_of(d));
    case 1: return kl_nll_loss(log_of(p), labels_of(d));
    case 2: return with_options(p, d);
    case 3: return kl_mse_loss(p, goal_of(d));
    case 4: return kl_l1_loss(p, goal_of(d));
    case 5: return kl_huber_loss(p, goal_of(d), 0.3);
    case 6: return kl_smooth_l1_loss(p, goal_of(d), 0.3);
    case 7: return kl_binary_cross_entropy_with_logits(p, goal_of(d));
    case 8: return kl_binary_cross_entropy(kl_sigmoid(p), goal_of(d));
    case 9: return kl_hinge_loss(p, goal_of(d));
    case 10: return kl_divergence(log_of(p), kl_softmax(goal_of(d), 1));
    default: return kl_sum_all(kl_mul(p, p));
    }
}

/* ---- update rules: what a state needs is the history of earlier gradients ---- */

static kl_tensor mixed(kl_tensor old, kl_tensor add, double keep)
{
    return kl_add(kl_mul_scalar(old, keep), kl_mul_scalar(add, 1 - keep));
}

static void update_momentum(struct model *m, kl_tensor g)
{
    kl_assign(m->m, kl_add(kl_mul_scalar(m->m, 0.5), g));
    kl_assign(m->w, kl_sub(m->w, kl_mul_scalar(m->m, 0.05)));
    kl_assign(m->average, mixed(m->average, m->w, 0.9));
}

static void update_adam(struct model *m, kl_tensor g)
{
    kl_assign(m->m, mixed(m->m, g, 0.9));
    kl_assign(m->v, mixed(m->v, kl_mul(g, g), 0.99));
    kl_assign(m->w, kl_sub(m->w, kl_div(kl_mul_scalar(m->m, 0.01), kl_add_scalar(kl_sqrt(m->v), 1e-3))));
}

static void update_plain(struct model *m, kl_tensor g)
{
    kl_assign(m->w, kl_sub(m->w, kl_mul_scalar(g, 0.05)));
}

/* A state that no step reads. */
static void update_norm(struct model *m, kl_tensor g)
{
    kl_tensor norm = kl_sqrt(kl_add_scalar(kl_sum_all(kl_mul(g, g)), 1e-3));
    kl_assign(m->v, mixed(m->v, kl_div(g, kl_expand(kl_reshape(norm, DIMS(1, 1)), DIMS(IN, OUT))), 0.9));
    kl_assign(m->w, kl_sub(m->w, kl_mul_scalar(g, 0.05)));
}

struct rule { const char *name; void (*update)(struct model *, kl_tensor gradient); bool read_first; };

static const struct rule rules[] = {
    {"momentum", update_momentum, false}, {"adam", update_adam, false},
    {"plain", update_plain, false},       {"norm", update_norm, false},
    {"momentum, read first", update_momentum, true},
};

static void step(struct model *m, int which, const struct rule *rule, int extra)
{
    kl_scope_begin();
    kl_tensor p = kl_matmul(kl_input(m->device, KL_F32, DIMS(ROWS, IN), data), m->w);
    for (int i = 0; i < extra; i++)
        p = kl_neg(p);
    kl_tensor l = loss(which, m->device, p);
    float before = rule->read_first ? kl_item_f32(l) : 0;
    rule->update(m, kl_grad(l, m->w));
    float after = kl_item_f32(l);
    CHECK(isfinite(after) && (!rule->read_first || before == after));
    kl_scope_end();
}

static void train(kl_device device, int which, const struct rule *rule, int extra)
{
    struct model m = {device, kl_randn(device, KL_F32, DIMS(IN, OUT), 7), kl_zeros(device, KL_F32, DIMS(IN, OUT)),
                      kl_zeros(device, KL_F32, DIMS(IN, OUT)), kl_zeros(device, KL_F32, DIMS(IN, OUT))};
    int64_t programs = 0, launches = 0, half = 0;
    kl_requires_grad(m.w);
    for (int s = 0; s < STEPS; s++) {
        if (s == WARM)
            programs = kl_counter("graphs_built"), launches = kl_counter("launches");
        if (s == WARM + (STEPS - WARM) / 2)
            half = kl_counter("launches") - launches;
        step(&m, which, rule, extra);
    }
    programs = kl_counter("graphs_built") - programs;
    launches = kl_counter("launches") - launches - half;
    bool few = CHECK(programs <= MAX_PROGRAMS), bounded = CHECK(launches <= half + half / 4);
    if (!few || !bounded)
        printf("    loss %d, %s, %d nodes more: %lld programs after the first steps, %lld launches, then %lld\n", which,
               rule->name, extra, (long long)programs, (long long)half, (long long)launches);
    kl_release(m.w), kl_release(m.m), kl_release(m.v), kl_release(m.average);
}

/* The path of a gradient leads through a marked value that is known, too. */
static void test_marked_in_the_middle(kl_device device)
{
    float v[2] = {0, 0};
    kl_tensor a = kl_ones(device, KL_F32, DIMS(2));
    kl_requires_grad(a);
    kl_tensor b = kl_mul_scalar(a, 2);
    kl_requires_grad(b);
    OK(kl_read(b, v, sizeof v));
    kl_tensor l = kl_sum_all(kl_mul(b, b)), ga = kl_grad(l, a), gb = kl_grad(l, b);
    OK(kl_read(ga, v, sizeof v));
    CHECK(v[0] == 8 && v[1] == 8);
    OK(kl_read(gb, v, sizeof v));
    CHECK(v[0] == 4 && v[1] == 4);
    kl_release(a), kl_release(b), kl_release(l), kl_release(ga), kl_release(gb);
}

static void test_all(kl_device device)
{
    bool interpreted = !strcmp(kl_device_name(device), "ref"); /* where nothing is compiled, all are combined */
    int nrule = (int)(sizeof rules / sizeof *rules);
    for (int i = 0; i < ROWS * IN; i++)
        data[i] = (float)(i * 37 % 101) / 100;
    for (int i = 0; i < ROWS * OUT; i++)
        goal[i] = (float)(1 + i * 29 % 97) / 100;
    for (int i = 0; i < ROWS; i++)
        label[i] = i % OUT;
    for (int which = 0; which < LOSSES; which++)
        for (int rule = 0; rule < (interpreted ? nrule : 1); rule++)
            train(device, which, &rules[rule], 0);
    for (int rule = 1; rule < nrule; rule++)
        train(device, 0, &rules[rule], 0);
    for (int extra = 1; interpreted && extra <= MAX_EXTRA; extra++)
        train(device, LOSSES - 1, &rules[extra % nrule], extra);
    test_marked_in_the_middle(device);
}

int main(void)
{
    return on_devices(test_all);
}
