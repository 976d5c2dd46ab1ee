/* What this process may use of its processor. */
#include "codegen.h"
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>

/* Linux saves these registers for a process that has asked for that, from then on: its signals need larger stacks. */
bool tiles_permitted(void)
{
    enum { REQUEST = 0x1023, TILE_DATA = 18 }; /* ARCH_REQ_XCOMP_PERM of <asm/prctl.h>, since Linux 5.16 */
    static _Atomic int permitted;              /* 0: not asked yet, 1: no, 2: yes */
    if (!permitted)
        permitted = 1 + !syscall(SYS_arch_prctl, REQUEST, TILE_DATA);
    return permitted == 2;
}
#else
bool tiles_permitted(void) { return false; }
#endif
