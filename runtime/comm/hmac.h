/* HMAC-SHA-256 of messages between ranks. */
#ifndef KILN_HMAC_H
#define KILN_HMAC_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { HMAC_BYTES = 32 };
void hmac_sha256(const void *key, size_t key_bytes, const void *data, size_t bytes, uint8_t out[HMAC_BYTES]);
bool hmac_equal(const uint8_t a[HMAC_BYTES], const uint8_t b[HMAC_BYTES]); /* in a time that tells nothing of them */
#endif
