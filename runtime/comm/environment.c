/* The environment variables of job launchers: torchrun and compatible ones, mpirun (Open MPI, MPICH), Slurm's srun. */
#include "comm.h"
#include <stdlib.h>
#include <string.h>

struct launcher { const char *rank, *ranks, *local_rank; bool mpi; };

/* The first launcher whose rank and number of ranks are both set is used. */
static const struct launcher launchers[] = {
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", false},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", true},
    {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", true},
    {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", false},
};

/* The value of a variable that must be a whole number of at least `least`; `otherwise` if the variable is not set. */
static bool whole_number(const char *name, int min, int otherwise, int *out, struct err *e)
{
    const char *text = getenv(name);
    char *end;
    *out = otherwise;
    if (!text || !*text)
        return true;
    long n = strtol(text, &end, 10);
    if (*end || n < min || n > 1000000)
        return err_set(e, KL_ERR_ARGUMENT, "environment variable %s is \"%.40s\", not a number from %d on", name, text,
                       min);
    *out = (int)n;
    return true;
}

bool comm_place_find(struct comm_place *p, struct err *e)
{
    *p = (struct comm_place){.rank = -1, .ranks = 1, .secret = getenv("KILN_COMM_SECRET")};
    const char *agent = getenv("TORCHELASTIC_USE_AGENT_STORE"), *address = getenv("MASTER_ADDR");
    if (!address || !*address)
        address = getenv("SLURM_LAUNCH_NODE_IPADDR");
    p->address = address && *address ? address : "127.0.0.1";
    if (!whole_number("MASTER_PORT", 1, 29500, &p->port, e))
        return false;
    p->port += agent && !strcmp(agent, "True"); /* torchrun itself listens at the port in MASTER_PORT */
    for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++) {
        const struct launcher *l = &launchers[i];
        if (!getenv(l->rank) || !getenv(l->ranks))
            continue;
        p->mpi = l->mpi;
        if (!whole_number(l->rank, 0, 0, &p->rank, e) || !whole_number(l->ranks, 1, 1, &p->ranks, e) ||
            !whole_number(l->local_rank, 0, p->rank, &p->local_rank, e))
            return false;
        return p->rank < p->ranks ||
               err_set(e, KL_ERR_ARGUMENT, "environment variables: %s is %d and %s is %d", l->rank, p->rank, l->ranks,
                       p->ranks);
    }
    p->rank = 0;
    return true;
}
