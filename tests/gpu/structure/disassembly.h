/* Listings of machine code by a disassembler that the machine may have. */
#ifndef GPU_DISASSEMBLY_H
#define GPU_DISASSEMBLY_H
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* A disassembler: the environment variable that may name it, the shell's command that looks for it on the path, and the
 * option for a listing; path: as it was found. */
struct disassembler { const char *variable, *search, *option; char path[1024]; };
const char *disassembler_path(struct disassembler *d); /* "-": there is none */

struct listing { char file[40]; FILE *text; };
bool listing_open(struct listing *l, struct disassembler *d, const void *code, uint64_t size);
bool listing_close(struct listing *l); /* also where open failed.  false: there was no listing, or no whole one */

#endif
