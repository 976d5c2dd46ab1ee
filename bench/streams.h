/* How long threads take to read memory, or to copy it: the limit of what reads its operands once. */
#ifndef BENCH_STREAMS_H
#define BENCH_STREAMS_H
#include "bench.h"
#include <pthread.h>

enum { STREAM_THREADS = 2 };
struct stream { float *array[2]; size_t from, to; bool copies; };

static inline void *stream_run(void *arg)
{
    const struct stream *s = arg;
    if (s->copies) {
        limit_stream(s->array, 1, s->from, s->to);
    } else {
        volatile float sink = limit_sum(s->array[1], s->from, s->to);
        (void)sink;
    }
    return NULL;
}

/* Seconds for reading `bytes` in all or, copying, for reading one half and writing the other, by up to STREAM_THREADS
 * threads.  The arrays have room for as many bytes each. */
static inline double stream_seconds(float *const *array, size_t bytes, bool copies, int threads)
{
    size_t n = bytes / sizeof(float) / (copies ? 2 : 1);
    struct stream s[STREAM_THREADS];
    pthread_t other[STREAM_THREADS];
    double start = threads > 1 ? measure_now() : measure_cpu_now();
    for (int i = 0; i < threads; i++)
        s[i] = (struct stream){{array[0], array[1]}, n * (size_t)i / (size_t)threads,
                               n * ((size_t)i + 1) / (size_t)threads, copies};
    int begun = 0;
    while (begun < threads - 1 && !pthread_create(&other[begun], NULL, stream_run, &s[begun]))
        begun++;
    for (int i = begun; i < threads; i++)
        stream_run(&s[i]);
    for (int i = 0; i < begun; i++)
        pthread_join(other[i], NULL);
    return (threads > 1 ? measure_now() : measure_cpu_now()) - start;
}

#endif
