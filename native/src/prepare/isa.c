/* Which instruction set runs a plan; see isa.h. */
#include "prepare/isa.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VARIABLE "MCPD_PREPARE"

static const struct mcpd_prepare_isa *portable(void)
{
    return &mcpd_prepare_scalar;
}

/* Fastest first; the last runs every plan. */
static const struct {
    const char *name;
    const struct mcpd_prepare_isa *(*get)(void);
} known[] = {{"avx2", mcpd_prepare_avx2}, {"scalar", portable}};

enum { KNOWN = sizeof(known) / sizeof(known[0]) };

int mcpd_prepare_isa_choose(struct mcpd_prepare_plan *plan, char *why, size_t nbytes)
{
    const char *wanted = getenv(VARIABLE);
    int first = 0, failed = -ENOTSUP;

    if (wanted && wanted[0]) {
        while (first < KNOWN && strcmp(wanted, known[first].name) != 0)
            first++;
        if (first == KNOWN) {
            snprintf(why, nbytes, VARIABLE " is '%s', not 'avx2' or 'scalar'", wanted);
            return -EINVAL;
        }
        if (!known[first].get()) {
            snprintf(why, nbytes, VARIABLE " is '%s', which this processor does not have", wanted);
            return -EINVAL;
        }
    }
    for (int i = first; failed == -ENOTSUP && i < KNOWN; i++) {
        const struct mcpd_prepare_isa *isa = known[i].get();

        if (!isa)
            continue;
        failed = isa->open(plan);
        if (!failed)
            plan->isa = isa;
    }
    return failed;
}
