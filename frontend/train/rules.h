/* What an optimizer is made of: a rule, which records the update of one parameter, and numbers that change from step
 * to step. */
#ifndef KILN_TRAIN_RULES_H
#define KILN_TRAIN_RULES_H
#include "train.h"

/* Numbers that change from step to step: scalars by name, which a frozen step can be given anew. */
enum rule_number {
    NUMBER_RATE,  /* lr; of Adam lr / (1 - beta1^t) */
    NUMBER_ROOT,  /* Adam's 1 / sqrt(1 - beta2^t) */
    NUMBER_DECAY, /* 1 - lr weight_decay */
    NUMBER_LR,    /* lr, beside a rate that is more */
    NUMBER_BLEND, /* Adafactor's b */
    NUMBERS
};
_Static_assert(NUMBERS == KL_OPTIMIZER_SLOTS, "the public header says how many");

enum { STATES = 3 };

struct tracked {
    kl_tensor param;
    kl_tensor state[STATES]; /* kl_none where the rule has none */
};

/* One parameter's update on its way. */
struct update {
    const kl_site *site;
    kl_optimizer *o;
    struct tracked *of;
    kl_tensor p, g;          /* the parameter and its gradient, in what the rule computes in */
    double rate, decay;      /* factors */
    const double *x;         /* the numbers */
};

struct rule {
    const char *name;
    const char *const *(*states)(const kl_optimizer *o, kl_tensor param); /* their names, NULL behind the last */
    void (*numbers)(const kl_optimizer *o, int64_t step, double lr, double *x);
    kl_status (*update)(struct update *u);
};

struct kl_optimizer {
    const struct rule *rule;
    union {
        kl_sgd_options sgd;
        kl_adam_options adam;
        kl_lion_options lion;
        kl_rmsprop_options rmsprop;
        kl_adafactor_options adafactor;
    } is;
    char name[NUMBERS][24];  /* of the numbers, this optimizer's own */
    bool used[NUMBERS];      /* by what was recorded last */
    const kl_params *params; /* NULL: none is attached */
    char text[KL_PARAM_NAME + 16]; /* the name that kl_optimizer_state gave */
    kl_tensor *list;         /* room for 2 n: parameters that take part in a step, and their gradients */
    int64_t steps;
    int n;
    struct tracked of[];
};

/* For rules: a number as a scalar beside a; a times it; a times the learning rate of u's parameter. */
kl_tensor rule_number(struct update *u, enum rule_number which, kl_tensor a);
kl_tensor rule_times(struct update *u, enum rule_number which, kl_tensor a);
kl_tensor rule_rated(struct update *u, kl_tensor a);
/* beta a + (1 - beta) b */
kl_tensor rule_blend(const kl_site *site, kl_tensor a, double beta, kl_tensor b);
/* x, the new value of a state, with 0 where |x|, or x of squares, is below the least normal number / step. */
enum rule_sign { RULE_ANY_SIGN, RULE_SQUARES };
kl_tensor rule_flushed(const kl_site *site, kl_tensor x, double step, enum rule_sign sign);
/* A state's next value, a moving average: rule_blend, flushed where its next step might be a subnormal number. */
kl_tensor rule_average(const kl_site *site, kl_tensor a, double beta, kl_tensor b, enum rule_sign sign);
/* The parameter, times 1 - lr weight_decay with its factors. */
kl_tensor rule_decayed(struct update *u, double weight_decay);

/* An optimizer by a rule with its options, of the size of the union at most.  NULL: reported. */
kl_optimizer *optimizer_new(const kl_site *site, const struct rule *rule, const void *options, size_t bytes,
                            const kl_tensor *param, int n);
/* Whether n parameters are usable and different, reported as an error of op if not; marks them by kl_requires_grad. */
bool train_check_params(const kl_site *site, const char *op, const kl_tensor *param, int n);
/* Zeros of a shape beside t, in what updates of t are computed in, that outlive the trace. */
kl_tensor train_state(const kl_site *site, kl_tensor t, int rank, const int64_t *dims, const char *name);
#endif
