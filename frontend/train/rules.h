/* An optimizer consists of a rule, which records the update of one parameter, and of numbers that change from step to
 * step. */
#ifndef KILN_TRAIN_RULES_H
#define KILN_TRAIN_RULES_H
#include "train.h"

/* The numbers that change from step to step are scalars with names, so that a frozen step can get new values of
 * them. */
enum rule_number {
    NUMBER_RATE,  /* lr; for Adam lr / (1 - beta1^t) */
    NUMBER_ROOT,  /* for Adam: 1 / sqrt(1 - beta2^t) */
    NUMBER_DECAY, /* 1 - lr weight_decay */
    NUMBER_LR,    /* lr, if NUMBER_RATE has another value */
    NUMBER_BLEND, /* b of Adafactor */
    NUMBERS
};
_Static_assert(NUMBERS == KL_OPTIMIZER_SLOTS, "the public header says how many");

enum { STATES = 3 };

struct tracked {
    kl_tensor param;
    kl_tensor state[STATES]; /* kl_none: the rule has no such state */
};

/* Numbers that a step has recorded as scalars, one for all parameters: their updates are then equal kernels. */
enum { MAX_RULE_SCALARS = 32 };
struct rule_scalars {
    struct rule_scalar { double x; const char *name; kl_device device; kl_dtype dtype; kl_tensor scalar; }
        v[MAX_RULE_SCALARS];
    int n;
};

/* The update of one parameter while it is recorded. */
struct update {
    kl_optimizer *o;
    struct tracked *of;
    kl_tensor p, g;          /* the parameter and its gradient, in the dtype of the computation */
    double rate, decay;      /* the parameter's factors */
    const double *x;         /* the numbers */
    struct rule_scalars *scalars; /* of the step */
};

struct rule {
    const char *name;
    const char *const *(*states)(const kl_optimizer *o, kl_tensor param); /* names of the states, which end with NULL */
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
    char name[NUMBERS][24];  /* names of the numbers, unique for this optimizer */
    bool used[NUMBERS];      /* the latest recorded step used the number */
    const kl_params *params; /* NULL: none is attached */
    char text[KL_PARAM_NAME + 16]; /* the name that kl_optimizer_state returned */
    kl_tensor *list;         /* room for 2 * n: the parameters that take part in a step, and their gradients */
    int64_t steps;
    int n;
    struct tracked of[];
};

/* For rules.  rule_scalar: x as a scalar of a's dtype and device, with a name or NULL, the same for the same arguments.
 * rule_number: a number as such a scalar.  rule_times: a times this number.  rule_rated:
 * a times the learning rate of u's parameter. */
kl_tensor rule_scalar(struct rule_scalars *s, kl_tensor a, double x, const char *name);
kl_tensor rule_number(struct update *u, enum rule_number which, kl_tensor a);
kl_tensor rule_times(struct update *u, enum rule_number which, kl_tensor a);
kl_tensor rule_rated(struct update *u, kl_tensor a);
/* beta * a + (1 - beta) * b.  s may be NULL. */
kl_tensor rule_blend(struct rule_scalars *s, kl_tensor a, double beta, kl_tensor b);
/* Returns x, the new value of a state, but 0 where |x| (for squares: x) is below the smallest normal number / step. */
enum rule_sign { RULE_ANY_SIGN, RULE_SQUARES };
kl_tensor rule_flushed(kl_tensor x, double step, enum rule_sign sign);
/* The next value of a state that is a moving average: rule_blend, then rule_flushed, so that the next value is not
 * subnormal. */
kl_tensor rule_average(struct rule_scalars *s, kl_tensor a, double beta, kl_tensor b, enum rule_sign sign);
/* The parameter times 1 - lr weight_decay, with the parameter's factors. */
kl_tensor rule_decayed(struct update *u, double weight_decay);

/* Makes an optimizer with a rule and its options, which are no larger than the union.  NULL: an error was reported. */
kl_optimizer *optimizer_new(const struct rule *rule, const void *options, size_t bytes, const kl_tensor *param,
                            int64_t n);
/* Checks that n parameters are usable and different, and calls kl_requires_grad for them.  Returns false after it has
 * reported an error of `op`. */
bool train_count_valid(const char *op, int64_t n); /* 0 to INT32_MAX; false: reported */
bool train_check_params(const char *op, const kl_tensor *param, int64_t n);
/* kl_clip_norm, with errors of `op`.  comm: NULL, or each rank has its part of the gradients, and the norm is that of
 * all parts. */
kl_tensor train_clip_norm(const char *op, kl_comm *comm, int64_t n, kl_tensor *gradients, double max);
/* Makes zeros of this shape on t's device, in the dtype in which updates of t are computed; they outlive the trace. */
kl_tensor train_state(kl_tensor t, int rank, const int64_t *dims, const char *name);
#endif
