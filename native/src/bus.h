/*
 * SIGBUS: our handler on top of whoever handles it besides us.
 */
#ifndef MCPD_BUS_H
#define MCPD_BUS_H

#include <stdint.h>

/* guard.c: 1 if the address is of a guarded mapping, whose missing pages are there now. */
int mcpd_guarded_fill(uintptr_t address);

/*
 * Puts our handler on top, if it is not. A handler that was installed since the last call is kept and
 * gets what is not ours. Called under a lock.
 */
void mcpd_bus_install(void);
int mcpd_bus_installed(void); /* whether ours is on top now; a system call */

#endif
