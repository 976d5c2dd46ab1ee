/* Kernels of groups that were lowered before, in this program or an earlier one of the process.
 *
 * The key is all that lowering reads of a group: its members in order, what they are computed from up to the values
 * that lie in memory, of which only dtype and shape count, and the target.  Nodes are numbered as the key meets them,
 * so numbers of nodes, leaves and groups in their graph play no part.  What lowering reads beyond those values stands
 * in the key as an answer (KEY_EXP_NONPOSITIVE, KEY_BORDER).  Builds with assertions lower a found group all the same
 * and compare.
 *
 * Entries are bounded by bytes, and the least recently used go first.  Without memory nothing is kept.
 *
 * The entries of a program's groups can be packed into bytes and passed in by another process of the same build, whose
 * groups are then found. */
#include "lower.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

enum { MEMO_BUCKETS = 4096, MEMO_BYTES = 16 << 20, MAX_PACKED = 4096 }; /* bytes: at first */

/* How a node is met: computed in the kernel as a member or as a view or scalar of its own, or read from memory. */
enum { KEY_MEMBER = 1, KEY_INLINE = 2, KEY_MEMORY = 3, KEY_STORED = 4, KEY_EXP_NONPOSITIVE = 8,
       KEY_PITCH = 16, KEY_BORDER = 32 };

struct memo_entry {
    struct memo_entry *next;           /* of its bucket */
    struct memo_entry *newer, *older;  /* by use */
    atomic_uint refs;                  /* the table's, and those of threads that copy it */
    struct hash128 hash;               /* this and what follows never changes: MEMO_CONSTANT */
    size_t bytes;                      /* of all */
    struct sched_record sched;
    int64_t extent, flops, traffic;
    uint32_t nkey, narg, ninst, nbuf;
    uint64_t key[];                    /* then the instructions, the buffers, and the arguments by number in the key */
};

enum { MEMO_CONSTANT = offsetof(struct memo_entry, hash) };

static pthread_mutex_t memo_lock = PTHREAD_MUTEX_INITIALIZER; /* guards the rest */
static struct memo_entry *memo_bucket[MEMO_BUCKETS], *memo_newest, *memo_oldest;
static size_t memo_bytes, memo_limit = MEMO_BYTES;

static void lower_memo_before_fork(void) { pthread_mutex_lock(&memo_lock); }
static void lower_memo_after_fork(bool child) { (void)child, pthread_mutex_unlock(&memo_lock); }
const struct fork_part lower_memo_fork = {lower_memo_before_fork, lower_memo_after_fork};

static struct linst *memo_inst(struct memo_entry *m) { return (struct linst *)(m->key + m->nkey); }
static struct lbuf *memo_buf(struct memo_entry *m) { return (struct lbuf *)(memo_inst(m) + m->ninst); }
static struct arg *memo_arg(struct memo_entry *m) { return (struct arg *)(memo_buf(m) + m->nbuf); }

/* ---- the key ---- */

static bool key_put(struct lower_key *k, uint64_t word)
{
    if (!mem_reserve(&k->word, &k->cap, k->n + 1, sizeof *k->word))
        return false;
    k->word[k->n++] = word;
    return true;
}

/* The number of node r, which stands behind those met so far if it is new. */
static bool key_number(struct lower_key *k, ref r, uint32_t *number)
{
    if (k->mark[r].stamp != k->stamp) {
        if (!mem_reserve(&k->node, &k->node_cap, k->nnode + 1, sizeof *k->node))
            return false;
        k->mark[r].stamp = k->stamp;
        k->mark[r].number = k->nnode;
        k->node[k->nnode++] = r;
    }
    *number = k->mark[r].number;
    return true;
}

static bool key_node(struct lower_key *k, const struct lowering *w, ref r)
{
    const struct node *n = &w->g->node[r];
    const struct shape *s = node_shape(w->g, r);
    uint64_t how = lower_is_member(w, r) ? KEY_MEMBER : lower_in_memory(w, r) ? KEY_MEMORY : KEY_INLINE;
    how |= w->pitch[r] ? KEY_PITCH : 0;
    if ((how & ~(uint64_t)KEY_PITCH) == KEY_MEMORY) {
        struct zero_border border;
        bool zeros = lower_zero_border(w->g, r, &border);
        if (!key_put(k, how | (zeros ? KEY_BORDER : 0) | (uint64_t)n->dtype << 8 | (uint64_t)s->rank << 16))
            return false;
        for (uint32_t d = 0; zeros && d < s->rank; d++)
            if (!key_put(k, (uint64_t)border.first[d]) || !key_put(k, (uint64_t)border.end[d]))
                return false;
    } else {
        how |= w->stored[r] ? KEY_STORED : 0;
        how |= n->op == OP_exp && lower_exp_nonpositive(w->g, n) ? KEY_EXP_NONPOSITIVE : 0;
        if (!key_put(k, how | (uint64_t)n->dtype << 8 | (uint64_t)s->rank << 16 | (uint64_t)n->nin << 24 |
                            (uint64_t)n->op << 32 | (uint64_t)n->flags << 48))
            return false;
        for (unsigned i = 0; i < sizeof n->attr.word / sizeof *n->attr.word; i++)
            if (!key_put(k, n->attr.word[i]))
                return false;
        for (unsigned i = 0; i < n->nin; i++) {
            uint32_t number;
            if (!key_number(k, n->in[i], &number) || !key_put(k, number))
                return false;
        }
    }
    for (uint32_t d = 0; d < s->rank; d++)
        if (!key_put(k, (uint64_t)s->dim[d]))
            return false;
    return !w->pitch[r] || key_put(k, (uint64_t)w->pitch[r]);
}

bool lower_key_make(struct lower_key *k, const struct lowering *w, struct hash128 target)
{
    k->n = k->nnode = 0;
    k->stamp++;
    bool ok = key_put(k, target.lo) && key_put(k, target.hi) && key_put(k, (uint64_t)w->nmember << 1 | w->assigned);
    for (uint32_t m = 0; ok && m < w->nmember; m++)
        ok = key_number(k, w->member[m], &(uint32_t){0});
    for (uint32_t i = 0; ok && i < k->nnode; i++)
        ok = key_node(k, w, k->node[i]);
    if (ok)
        k->hash = bytes_hash(k->word, k->n * sizeof *k->word);
    return ok;
}

bool lower_key_schedule(struct lower_key *k, const struct schedule *s)
{
    uint64_t word[(sizeof *s + 7) / 8] = {0};
    memcpy(word, s, sizeof *s);
    for (size_t i = 0; i < sizeof word / sizeof *word; i++)
        if (!key_put(k, word[i]))
            return false;
    k->hash = bytes_hash(k->word, k->n * sizeof *k->word);
    return true;
}

void lower_key_free(struct lower_key *k)
{
    mem_free(k->mark);
    mem_free(k->word);
    mem_free(k->node);
}

/* ---- packs ---- */

/* The entries that groups were found in or added; one of them for each kernel, however many groups are like it. */
struct memo_pack {
    struct memo_entry **entry;
    uint32_t n, cap;
    uint32_t slot[2 * MAX_PACKED];     /* open addressing by hash: index + 1; 0: free */
    size_t bytes;
    bool missed, failed;
};

static void memo_release(struct memo_entry *m);

static void memo_collect(struct memo_pack *p, struct memo_entry *m, bool missed)
{
    if (!p)
        return;
    p->missed |= missed;
    uint32_t at = m->hash.lo % (2 * MAX_PACKED);
    for (; p->slot[at]; at = (at + 1) % (2 * MAX_PACKED))
        if (p->entry[p->slot[at] - 1] == m)
            return;
    if (p->n == MAX_PACKED || !mem_reserve(&p->entry, &p->cap, p->n + 1, sizeof *p->entry)) {
        p->failed = true;
        return;
    }
    atomic_fetch_add(&m->refs, 1);
    p->entry[p->n++] = m;
    p->slot[at] = p->n;
    p->bytes += (m->bytes + 7) / 8 * 8;
}

struct memo_pack *memo_pack_new(void)
{
    return mem_alloc(sizeof(struct memo_pack));
}

void *memo_pack_end(struct memo_pack *p, size_t *size)
{
    unsigned char *bytes = p && p->missed && !p->failed && p->n ? mem_alloc(p->bytes) : NULL;
    *size = 0;
    for (uint32_t i = 0; p && i < p->n; i++) {
        struct memo_entry *m = p->entry[i];
        if (bytes) {
            /* what other threads change meanwhile stays zeros */
            memcpy(bytes + *size + MEMO_CONSTANT, (char *)m + MEMO_CONSTANT, m->bytes - MEMO_CONSTANT);
            *size += (m->bytes + 7) / 8 * 8;
        }
        memo_release(m);
    }
    if (p)
        mem_free(p->entry);
    mem_free(p);
    return bytes;
}

/* ---- the table ---- */

static void memo_release(struct memo_entry *m)
{
    if (atomic_fetch_sub(&m->refs, 1) == 1)
        mem_free(m);
}

static struct memo_entry **memo_place(struct hash128 h) { return &memo_bucket[h.lo % MEMO_BUCKETS]; }

/* These need the lock. */
static void memo_unlink(struct memo_entry *m)
{
    *(m->newer ? &m->newer->older : &memo_newest) = m->older;
    *(m->older ? &m->older->newer : &memo_oldest) = m->newer;
}

static void memo_link_newest(struct memo_entry *m)
{
    m->newer = NULL;
    m->older = memo_newest;
    *(memo_newest ? &memo_newest->newer : &memo_oldest) = m;
    memo_newest = m;
}

static void memo_drop(struct memo_entry *m)
{
    struct memo_entry **p = memo_place(m->hash);
    while (*p != m)
        p = &(*p)->next;
    *p = m->next;
    memo_unlink(m);
    memo_bytes -= m->bytes;
    memo_release(m);
}

static struct memo_entry *memo_look(const struct lower_key *k)
{
    for (struct memo_entry *m = *memo_place(k->hash); m; m = m->next)
        if (m->hash.lo == k->hash.lo && m->hash.hi == k->hash.hi && m->nkey == k->n &&
            !memcmp(m->key, k->word, k->n * sizeof *k->word))
            return m;
    return NULL;
}

void lower_memo_clear(void)
{
    pthread_mutex_lock(&memo_lock);
    while (memo_newest)
        memo_drop(memo_newest);
    pthread_mutex_unlock(&memo_lock);
}

void lower_memo_limit(size_t bytes)
{
    pthread_mutex_lock(&memo_lock);
    memo_limit = bytes;
    while (memo_bytes > memo_limit)
        memo_drop(memo_oldest);
    pthread_mutex_unlock(&memo_lock);
}

size_t lower_memo_bytes(void)
{
    pthread_mutex_lock(&memo_lock);
    size_t n = memo_bytes;
    pthread_mutex_unlock(&memo_lock);
    return n;
}

bool lower_memo_find(const struct lower_key *key, struct kernel *k, struct lowered *out)
{
    pthread_mutex_lock(&memo_lock);
    struct memo_entry *m = memo_look(key);
    if (m) {
        atomic_fetch_add(&m->refs, 1);
        memo_unlink(m);
        memo_link_newest(m);
    }
    pthread_mutex_unlock(&memo_lock);
    if (!m)
        return false;
    memo_collect(key->pack, m, false);
    bool ok = mem_reserve(&k->inst, &k->inst_cap, m->ninst, sizeof *k->inst) &&
              (!m->nbuf || mem_reserve(&k->buf, &k->buf_cap, m->nbuf, sizeof *k->buf)) &&
              (out->arg = mem_alloc((m->narg + 1) * sizeof *out->arg));
    if (ok) {
        memcpy(k->inst, memo_inst(m), m->ninst * sizeof *k->inst);
        if (m->nbuf)
            memcpy(k->buf, memo_buf(m), m->nbuf * sizeof *k->buf);
        k->ninst = m->ninst;
        k->nbuf = m->nbuf;
        schedule_set(k, &m->sched);
        k->extent = m->extent;
        k->flops = m->flops;
        k->bytes = m->traffic;
        out->narg = m->narg;
        for (uint32_t i = 0; i < m->narg; i++)
            out->arg[i] = (struct arg){key->node[memo_arg(m)[i].node], memo_arg(m)[i].role};
    }
    memo_release(m);
    return ok;
}

/* Takes the entry, whose table's reference it has. */
static void memo_insert(struct memo_entry *m)
{
    struct lower_key key = {.hash = m->hash, .word = m->key, .n = m->nkey};
    pthread_mutex_lock(&memo_lock);
    if (memo_look(&key)) { /* another thread was quicker */
        memo_release(m);
    } else {
        m->next = *memo_place(m->hash);
        *memo_place(m->hash) = m;
        memo_link_newest(m);
        memo_bytes += m->bytes;
        while (memo_bytes > memo_limit)
            memo_drop(memo_oldest);
    }
    pthread_mutex_unlock(&memo_lock);
}

void lower_memo_add(const struct lower_key *key, const struct lowered *l)
{
    const struct kernel *k = l->k;
    size_t bytes = sizeof(struct memo_entry) + key->n * sizeof *key->word + k->ninst * sizeof *k->inst +
                   k->nbuf * sizeof *k->buf + l->narg * sizeof *l->arg;
    struct memo_entry *m = bytes <= MEMO_BYTES / 4 ? mem_alloc(bytes) : NULL;
    if (!m)
        return;
    *m = (struct memo_entry){.hash = key->hash, .bytes = bytes, .refs = 1, .sched = k->sched, .extent = k->extent,
                             .flops = k->flops, .traffic = k->bytes, .nkey = key->n, .narg = l->narg,
                             .ninst = k->ninst, .nbuf = k->nbuf};
    memcpy(m->key, key->word, key->n * sizeof *key->word);
    memcpy(memo_inst(m), k->inst, k->ninst * sizeof *k->inst);
    if (k->nbuf)
        memcpy(memo_buf(m), k->buf, k->nbuf * sizeof *k->buf);
    for (uint32_t i = 0; i < l->narg; i++)
        memo_arg(m)[i] = (struct arg){key->mark[l->arg[i].node].number, l->arg[i].role};
    memo_collect(key->pack, m, true);
    memo_insert(m);
}

bool memo_unpack(const void *pack, size_t size)
{
    const unsigned char *at = pack, *end = at + size;
    bool ok = size > 0;
    while (ok && at < end) {
        struct memo_entry head, *m;
        ok = (size_t)(end - at) >= sizeof head;
        if (ok)
            memcpy(&head, at, sizeof head);
        uint64_t whole = sizeof head + (uint64_t)head.nkey * sizeof *head.key +
                         (uint64_t)head.ninst * sizeof(struct linst) + (uint64_t)head.nbuf * sizeof(struct lbuf) +
                         (uint64_t)head.narg * sizeof(struct arg);
        ok = ok && head.bytes == whole && whole <= MEMO_BYTES / 4 && whole <= (size_t)(end - at) &&
             (m = mem_alloc(whole));
        if (!ok)
            break;
        memcpy(m, at, whole);
        m->next = m->newer = m->older = NULL;
        atomic_init(&m->refs, 1);
        memo_insert(m);
        at += (whole + 7) / 8 * 8 < (size_t)(end - at) ? (whole + 7) / 8 * 8 : (size_t)(end - at);
    }
    return ok;
}
