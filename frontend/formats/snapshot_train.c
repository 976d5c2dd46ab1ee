/* Snapshots of training objects: trees of parameters, optimizers, loaders. */
#define KL_NO_CALL_SITES
#include <kiln/train.h>
#include <stdio.h>

kl_status kl_snapshot_params(kl_snapshot *c, const kl_params *params)
{
    kl_status status = params ? KL_OK : kl_fail(KL_ERR_ARGUMENT, "snapshot: no parameters");
    kl_param p;
    for (int i = 0; status == KL_OK && i < kl_params_count(params); i++) {
        status = kl_params_get(params, i, &p);
        if (status == KL_OK)
            status = kl_snapshot_tensor(c, p.name, p.tensor);
    }
    return status;
}

static int64_t optimizer_steps(const void *opt) { return kl_optimizer_steps(opt); }
static kl_status optimizer_set_steps(void *opt, int64_t steps) { return kl_optimizer_set_steps(opt, steps); }

kl_status kl_snapshot_optimizer(kl_snapshot *c, const char *name, kl_optimizer *opt)
{
    char full[2 * KL_PARAM_NAME + 40];
    const char *state;
    kl_tensor t;
    if (!name || !opt)
        return kl_fail(KL_ERR_ARGUMENT, "snapshot: no optimizer, or no name");
    kl_status status = KL_OK;
    for (int i = 0; status == KL_OK && i < kl_optimizer_states(opt); i++) {
        status = kl_optimizer_state(opt, i, &state, &t);
        if (status != KL_OK)
            break;
        if ((size_t)snprintf(full, sizeof full, "%s.%s", name, state) >= sizeof full)
            return kl_fail(KL_ERR_ARGUMENT, "snapshot: the optimizer's name is too long");
        status = kl_snapshot_tensor(c, full, t);
    }
    if (status != KL_OK)
        return status;
    snprintf(full, sizeof full, "%.*s.steps", KL_PARAM_NAME, name);
    return kl_snapshot_number(c, full, optimizer_steps, optimizer_set_steps, opt);
}

static int64_t loader_position(const void *loader) { return kl_loader_position(loader); }
static kl_status loader_seek(void *loader, int64_t position) { return kl_loader_seek(loader, position); }

kl_status kl_snapshot_loader(kl_snapshot *c, const char *name, kl_loader *loader)
{
    if (!loader)
        return kl_fail(KL_ERR_ARGUMENT, "snapshot: no loader");
    return kl_snapshot_number(c, name, loader_position, loader_seek, loader);
}
