/* XXH3 by the library's header where the build found one (KILN_XXHASH), else by xxh3.c.  Private to the files that
 * hash: the library's code is inlined into each. */
#ifndef KILN_CONTENT_HASH_H
#define KILN_CONTENT_HASH_H
#include "xxh3.h"

#ifdef KILN_XXHASH
#define XXH_INLINE_ALL
#include <xxhash.h>

typedef XXH3_state_t content_state;

static inline uint64_t content_hash64(const void *p, size_t n) { return XXH3_64bits(p, n); }

static inline struct xxh3_128 content_from_library(XXH128_hash_t h) { return (struct xxh3_128){h.low64, h.high64}; }

static inline struct xxh3_128 content_hash128(const void *p, size_t n)
{
    return content_from_library(XXH3_128bits(p, n));
}

static inline void content_begin(content_state *s) { XXH3_128bits_reset(s); }
static inline void content_update(content_state *s, const void *p, size_t n) { XXH3_128bits_update(s, p, n); }
static inline struct xxh3_128 content_end(const content_state *s)
{
    return content_from_library(XXH3_128bits_digest(s));
}
#else
typedef struct xxh3_state content_state;

static inline uint64_t content_hash64(const void *p, size_t n) { return xxh3_64(p, n); }
static inline struct xxh3_128 content_hash128(const void *p, size_t n) { return xxh3_128(p, n); }
static inline void content_begin(content_state *s) { xxh3_begin(s); }
static inline void content_update(content_state *s, const void *p, size_t n) { xxh3_update(s, p, n); }
static inline struct xxh3_128 content_end(const content_state *s) { return xxh3_end(s); }
#endif

#endif
