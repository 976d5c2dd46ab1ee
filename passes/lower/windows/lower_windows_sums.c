/* Sums of a tile of channels and results of a convolution (lower_windows.c): loops that carry them, what of a window is
 * in the image, and what ends a k-block. */
#include "lower_windows.h"

val windows_open_sums(const struct windows_product *c, val from, val to, val *acc, val *carry)
{
    struct kernel *k = c->d->w->k;
    val loop = k_loop(k, LOOP_SERIAL, from, to, 1);
    for (int64_t i = 0; i < c->d->mr; i++)
        acc[i] = carry[i] = k_carry(k, acc[i]);
    return loop;
}

void windows_close_sums(const struct windows_product *c, val loop, val *acc, const val *carry)
{
    struct kernel *k = c->d->w->k;
    for (int64_t i = 0; i < c->d->mr; i++)
        k_next(k, carry[i], acc[i]);
    k_end(k, loop);
    for (int64_t i = 0; i < c->d->mr; i++)
        acc[i] = k_out(k, carry[i]);
}

struct windows_loop windows_open_loop(const struct windows_product *c, val from, val to, val at, val step, val *acc)
{
    const struct image_windows *win = c->win;
    struct kernel *k = c->d->w->k;
    const int64_t steps = windows_plane_steps(win);
    struct windows_loop l;
    l.loop = windows_open_sums(c, from, to, acc, l.outer);
    l.at = k_carry(k, at);
    l.step = k_carry(k, step);
    ix_assume_range(k, l.at, -windows_before(win), win->images * win->groups * win->channels * windows_channel(win));
    ix_assume_range(k, l.step, windows_blocks_of(c, steps) ? 0 : -steps, c->d->size.k);
    return l;
}

void windows_close_loop(const struct windows_product *c, const struct windows_loop *l, int64_t at, int64_t step,
                        val *acc)
{
    struct kernel *k = c->d->w->k;
    val next_at = ix_add(k, l->at, k_int(k, at)), next_step = ix_add(k, l->step, k_int(k, step));
    k_next(k, l->at, next_at);
    k_next(k, l->step, next_step);
    windows_close_sums(c, l->loop, acc, l->outer);
}

val windows_and(struct kernel *k, val a, val b) { return a && b ? k_prim(k, P_AND, a, b, 0) : a ? a : b; }

val windows_is_between(struct kernel *k, val x, const struct window_axis *a)
{
    val in = a->first > 0 ? k_prim(k, P_LE, k_int(k, a->first), x, 0) : 0;
    return windows_and(k, in, a->end < a->all ? k_prim(k, P_LT, x, k_int(k, a->end), 0) : 0);
}

val windows_is_element(struct kernel *k, val x, const struct window_axis *a)
{
    if (a->gap == 1)
        return 0;
    val phase = ix_mod(k, ix_add(k, x, k_int(k, a->gap * a->before - a->before)), a->gap);
    return k_prim(k, P_EQ, phase, k_int(k, 0), 0);
}

val windows_load_in(const struct windows_product *c, val at, val in)
{
    const struct image_windows *win = c->win;
    struct kernel *k = c->d->w->k;
    if (!in)
        return k_load(k, c->images, at, 0);
    at = k_prim(k, P_SELECT, in, at, k_int(k, 0));
    ix_assume_range(k, at, 0, win->images * win->groups * win->channels * windows_channel(win) - 1);
    val element = k_load(k, c->images, at, 0);
    return k_prim(k, P_SELECT, in, element, k_bits(k, KL_F32, 0));
}

val windows_element(struct kernel *k, val x, const struct window_axis *a)
{
    /* x is not below 0, nor is what is divided */
    val from = ix_add(k, x, k_int(k, a->gap * a->before - a->before));
    return ix_sub(k, ix_div(k, from, a->gap), k_int(k, a->before));
}

struct windows_start windows_first_element(struct kernel *k, const struct window_axis *a, val number)
{
    val x = ix_scale(k, number, a->stride);
    struct windows_start s = {windows_element(k, ix_add(k, x, k_int(k, a->gap - 1)), a), k_int(k, 0)};
    if (a->gap > 1) {
        s.kernel = ix_sub(k, ix_add(k, ix_scale(k, s.element, a->gap), k_int(k, a->before)), x);
        ix_assume_range(k, s.kernel, 0, a->gap - 1);
    }
    return s;
}

/* How many elements of the kernel along an axis are before `position` for window `number`: at most all of them. */
static val kernel_before(struct kernel *k, const struct window_axis *a, val number, int64_t position)
{
    val before = k_max(k, ix_sub(k, k_int(k, position), ix_scale(k, number, a->stride)), k_int(k, 0));
    ix_assume_range(k, before, 0, position);
    return ix_min(k, ix_div(k, ix_add(k, before, k_int(k, a->dilation - 1)), a->dilation), a->kernel);
}

struct windows_range windows_in_image(struct kernel *k, const struct window_axis *a, val number)
{
    if (!windows_pad(a))
        return (struct windows_range){0};
    return (struct windows_range){kernel_before(k, a, number, a->first), kernel_before(k, a, number, a->end)};
}

struct windows_range windows_by_gap(struct kernel *k, const struct window_axis *a, struct windows_range r, val start)
{
    val *const bound[] = {&r.first, &r.end};
    for (unsigned i = 0; i < 2 && a->gap > 1; i++) {
        val from = k_max(k, ix_sub(k, *bound[i], start), k_int(k, 0));
        ix_assume_range(k, from, 0, a->kernel);
        *bound[i] = ix_div(k, ix_add(k, from, k_int(k, a->gap - 1)), a->gap);
    }
    return r;
}

struct windows_range windows_range_here(struct kernel *k, const struct windows_range *in, int64_t length, bool whole,
                                        val from, val to, val top)
{
    struct windows_range r = {in->first ? in->first : k_int(k, 0), in->end ? in->end : k_int(k, length)};
    if (!whole) {
        r.first = k_max(k, r.first, ix_sub(k, from, top));
        r.end = k_min(k, r.end, ix_sub(k, to, top));
    }
    return r;
}

bool windows_blocks_of(const struct windows_product *c, int64_t steps)
{
    return c->d->blocks == 1 || (!c->d->symbolic_k && c->d->kblock % steps == 0);
}

val windows_has_special(const struct windows_product *c, const val *acc)
{
    struct kernel *k = c->d->w->k;
    val least = 0;
    for (int64_t i = 0; i < c->d->mr; i++) { /* -0 has the least bits of all, as i32 */
        val bits = k_inst(k, L_OP(P_BITS), KL_I32, acc[i], 0, 0, 0);
        least = i ? k_fold_step(k, FOLD_MIN, least, bits) : bits;
    }
    least = k_lane_reduce(k, FOLD_MIN, least);
    val negative = k_prim(k, P_EQ, least, k_bits(k, KL_I32, 0x80000000), 0);
    val infinite = k_prim(k, P_LE, k_bits(k, KL_I32, 0x7f800000), k_load(k, c->max_magnitude, k_int(k, 0), 0), 0);
    val times = k_prim(k, P_SELECT, k_prim(k, P_OR, negative, infinite, 0), k_int(k, 1), k_int(k, 0));
    ix_assume_range(k, times, 0, 1);
    return times;
}

void windows_add_chains(const struct windows_product *c, val at, val *acc)
{
    const struct dot *d = c->d;
    struct kernel *k = d->w->k;
    for (int64_t i = 0; i < d->mr; i++) {
        val here = ix_add(k, at, k_int(k, i * c->apart * d->nr)), sum = acc[i];
        if (d->blocks > 1) {
            sum = k_prim(k, P_ADD, k_load(k, c->sums, here, 0), acc[i], 0);
            sum = k_prim(k, P_SELECT, k_prim(k, P_EQ, c->kb, k_int(k, 0), 0), acc[i], sum);
        }
        k_store(k, c->sums, here, sum, 0);
    }
}
