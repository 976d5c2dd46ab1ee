/* Unicode's properties of characters, normal forms, lower case, and UTF-8 character by character. */
#ifndef KILN_FORMATS_UNICODE_H
#define KILN_FORMATS_UNICODE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* General categories, in the order of unicode_tables.py. */
enum unicode_category {
    UC_CN, UC_LU, UC_LL, UC_LT, UC_LM, UC_LO, UC_MN, UC_MC, UC_ME, UC_ND, UC_NL, UC_NO, UC_PC, UC_PD, UC_PS, UC_PE,
    UC_PI, UC_PF, UC_PO, UC_SM, UC_SC, UC_SK, UC_SO, UC_ZS, UC_ZL, UC_ZP, UC_CC, UC_CF, UC_CS, UC_CO, UC_COUNT
};
#define UC_LETTER (1u << UC_LU | 1u << UC_LL | 1u << UC_LT | 1u << UC_LM | 1u << UC_LO)
#define UC_MARK (1u << UC_MN | 1u << UC_MC | 1u << UC_ME)
#define UC_NUMBER (1u << UC_ND | 1u << UC_NL | 1u << UC_NO)
#define UC_PUNCTUATION \
    (1u << UC_PC | 1u << UC_PD | 1u << UC_PS | 1u << UC_PE | 1u << UC_PI | 1u << UC_PF | 1u << UC_PO)
#define UC_SYMBOL (1u << UC_SM | 1u << UC_SC | 1u << UC_SK | 1u << UC_SO)
#define UC_SEPARATOR (1u << UC_ZS | 1u << UC_ZL | 1u << UC_ZP)
#define UC_CONTROL (1u << UC_CN | 1u << UC_CC | 1u << UC_CF | 1u << UC_CS | 1u << UC_CO)

/* A byte b that is no UTF-8 is the character UNICODE_BYTE + b, which has no property at all. */
enum { UNICODE_BYTE = 0x110000, UNICODE_REPLACEMENT = 0xfffd, UNICODE_MAX_EXPANSION = 18 };

unsigned unicode_category_bit(uint32_t c); /* 1 << the category; 0: a byte that is no UTF-8 */
bool unicode_is_space(uint32_t c);         /* White_Space */
bool unicode_is_word(uint32_t c);          /* letters, marks, numbers that are digits or letters, connectors: \w */
bool unicode_is_han(uint32_t c);
uint32_t unicode_lower_case(uint32_t c, uint32_t *second); /* *second: a second character, or 0 */

/* The character at p, which is before end; *n: its bytes. */
uint32_t unicode_at(const uint8_t *p, const uint8_t *end, size_t *n);
/* The bytes of the character that ends at p, which is after start. */
size_t unicode_before(const uint8_t *start, const uint8_t *p);
/* Writes c as UTF-8, a byte that is none as it was; returns the number of bytes, at most 4. */
size_t unicode_put(uint32_t c, uint8_t *to);

/* One step of a decomposition; its length, at most UNICODE_MAX_EXPANSION; 0: c has none. */
int unicode_decompose(uint32_t c, bool compatible, uint32_t *to);
unsigned unicode_combining_class(uint32_t c);
uint32_t unicode_compose(uint32_t first, uint32_t second); /* 0: these two are not composed */

#endif
