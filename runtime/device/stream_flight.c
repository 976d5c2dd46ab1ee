/* CUDA and HIP: which memory commands in flight may access, which decides what an upload waits for.
 *
 * The ranges of addresses that commands access are collected with the commands.  When a list of commands is issued, its
 * ranges and an event after the commands become a flight.  The last FLIGHTS are kept; the ranges of an older one that
 * has not ended are added to the next one, which ends later. */
#include "stream.h"

static bool ranges_overlap(const struct ranges *r, const void *address, size_t bytes)
{
    uint64_t begin = (uintptr_t)address, end = begin + bytes;
    bool yes = r->all;
    for (uint32_t i = 0; i < r->n && !yes; i++)
        yes = r->v[i].begin < end && begin < r->v[i].end;
    return yes;
}

/* If there is no memory for one more range, the commands count as accessing all memory. */
static void ranges_add(struct ranges *r, struct range x)
{
    if (r->all)
        return;
    if (mem_reserve(&r->v, &r->cap, r->n + 1, sizeof *r->v))
        r->v[r->n++] = x;
    else
        r->all = true;
}

static void ranges_clear(struct ranges *r)
{
    r->n = 0;
    r->all = false;
}

void stream_touch(struct driver_device *d, const void *address, size_t bytes)
{
    uint64_t begin = (uintptr_t)address;
    ranges_add(&d->touched, (struct range){begin, begin + bytes});
}

void stream_touch_all(struct driver_device *d) { d->touched.all = true; }

/* The flight that is `before` flights older than the latest. */
static struct flight *flight_at(struct driver_device *d, unsigned before)
{
    return &d->flight[(d->latest + FLIGHTS - before) % FLIGHTS];
}

bool stream_depart(struct driver_device *d, struct err *e)
{
    struct flight *oldest = flight_at(d, FLIGHTS - 1), *next = flight_at(d, FLIGHTS - 2);
    if (oldest->busy && d->l->event_query(oldest->done)) {
        for (uint32_t i = 0; i < oldest->touched.n; i++)
            ranges_add(&next->touched, oldest->touched.v[i]);
        next->touched.all |= oldest->touched.all;
    }
    struct ranges room = oldest->touched;
    ranges_clear(&room);
    oldest->touched = d->touched;
    d->touched = room;
    oldest->busy = true;
    d->latest = (d->latest + 1) % FLIGHTS;
    return stream_ok(d, d->l->event_record(oldest->done, d->stream), "giving it work", e);
}

/* The commands of a stream run in order, so waiting for the latest flight that accesses the memory is enough. */
static struct flight *flight_touching(struct driver_device *d, const void *address, size_t bytes)
{
    for (unsigned i = 0; i < FLIGHTS; i++) {
        struct flight *f = flight_at(d, i);
        if (f->busy && ranges_overlap(&f->touched, address, bytes))
            return f;
    }
    return NULL;
}

bool stream_clear(struct driver_device *d, const void *to, size_t bytes, struct err *e)
{
    const struct flight *f = flight_touching(d, to, bytes);
    return !f || stream_ok(d, d->l->stream_wait(d->copies, f->done, 0), "waiting for its work", e);
}

bool stream_join(struct driver_device *d, struct err *e)
{
    if (!d->uploading)
        return true;
    gpu_result r = d->l->event_record(d->uploaded, d->copies);
    r = r ? r : d->l->stream_wait(d->stream, d->uploaded, 0);
    d->uploading = r != 0;
    return stream_ok(d, r, "waiting for an upload", e);
}

void stream_landed(struct driver_device *d)
{
    for (unsigned i = 0; i < FLIGHTS; i++) {
        d->flight[i].busy = false;
        ranges_clear(&d->flight[i].touched);
    }
}

void stream_landed_until(struct driver_device *d, gpu_event done)
{
    bool ended = false;
    for (unsigned i = 0; i < FLIGHTS; i++) {
        struct flight *f = flight_at(d, i);
        ended |= f->done == done;
        f->busy &= !ended;
    }
}

bool stream_in_use(struct driver_device *d, const void *address, size_t bytes)
{
    if (ranges_overlap(&d->touched, address, bytes))
        return true;
    struct flight *f = flight_touching(d, address, bytes);
    if (!f || d->lost || d->l->enter(d))
        return false;
    bool ended = !d->l->event_query(f->done);
    d->l->leave(d);
    return !ended;
}

void stream_flights_free(struct driver_device *d)
{
    for (unsigned i = 0; i < FLIGHTS; i++) {
        if (d->flight[i].done)
            d->l->event_free(d->flight[i].done);
        mem_free(d->flight[i].touched.v);
    }
    mem_free(d->touched.v);
}
